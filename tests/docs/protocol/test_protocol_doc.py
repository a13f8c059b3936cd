"""PROTOCOL.md names every kind of frame, command and error, and has the numbers of the declarations."""

from __future__ import annotations

import re
from enum import IntEnum

import pytest

from support.real.trees import ROOT
from timerd_client.groups import plan
from timerd_shm.declare import limits
from timerd_shm.declare.errors import ErrorCode
from timerd_shm.declare.fields import size_of
from timerd_shm.declare.wire import PROTOCOL_VERSION, CommandHeader, CommandKind, DownKind, ReportHeader, UpKind

DOC = (ROOT / "client" / "PROTOCOL.md").read_text()


@pytest.mark.parametrize("kinds", [UpKind, DownKind, CommandKind])
def test_each_kind_has_its_row(kinds: type[IntEnum]) -> None:
    rows = set(re.findall(r"^\| ([A-Z_]+) \|", DOC, re.MULTILINE))
    assert {kind.name for kind in kinds} <= rows


def test_each_error_has_its_row_with_its_code() -> None:
    rows = {name: int(code) for code, name in re.findall(r"^\| (\d+) \| ([A-Z_]+) \|", DOC, re.MULTILINE)}
    assert rows == {code.name: int(code) for code in ErrorCode}


def test_the_numbers_are_those_of_the_declarations() -> None:
    for number in (
        limits.COMMANDS_PER_FRAME_MAX,
        limits.WINDOW_COMMANDS_MAX,
        limits.PAYLOAD_SIZE_MAX,
        limits.ANSWERS_PER_CLIENT_MAX,
    ):
        assert f"{number:,}" in DOC
    assert f"Version {PROTOCOL_VERSION}." in DOC
    assert f"CommandHeader ({size_of(CommandHeader)} bytes)" in DOC
    assert f"ReportHeader ({size_of(ReportHeader)} bytes)" in DOC
    assert limits.FRAME_SIZE_MAX == 4 << 20


def test_a_changed_plan_of_calls_needs_another_version_of_the_protocol() -> None:
    """Workers of one daemon read each other's plans, and the daemon refuses a worker of another version."""
    formats = plan._HEAD.format, plan._STRETCH.format, (plan.CALL, plan.WALL, plan.DAEMON)
    assert (PROTOCOL_VERSION, *formats) == (6, "<BBQqqqqIIBBBBB", "<qq", (7, 8, 9))
