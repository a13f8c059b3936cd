"""docs/howto/upgrading.md: its messages and effects are those of a daemon of another version, and of an older arena."""

from __future__ import annotations

import json
import logging
import os
import re
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest

import timerd as td
from support.real.daemons import Daemon
from support.real.patience import PATIENCE_S, eventually
from support.real.shell import Run
from support.site import DOCS, programs
from timerd_shm.declare.fields import offset_of
from timerd_shm.declare.journal import JOURNAL_VERSION, OLDER
from timerd_shm.declare.layout import LAYOUT_VERSION
from timerd_shm.declare.records import ArenaHeader
from timerd_shm.declare.wire import PROTOCOL_VERSION, ReportHeader
from timerd_shm.host.paths import read_location

FILE = DOCS / "howto/upgrading.md"
PAGE = " ".join(FILE.read_text().split())
AT = offset_of(ReportHeader, "version")
# A daemon of the next version of the protocol, which differs in nothing else: each frame shows that version.
OTHER_PROTOCOL = f"""
import timerd_shm.declare.wire as wire
from timerd.conductor.transport import SocketTransport
wire.PROTOCOL_VERSION = {PROTOCOL_VERSION + 1}
def shown(send):
    return lambda self, to, frame: send(self, to, frame[:{AT}] + bytes([{PROTOCOL_VERSION + 1}]) + frame[{AT + 1}:])
SocketTransport.send, SocketTransport.publish = shown(SocketTransport.send), shown(SocketTransport.publish)
"""
REFUSED = f"the daemon speaks version {PROTOCOL_VERSION + 1} of the protocol, this client {PROTOCOL_VERSION}"
OLD_WORKER = """
import time, timerd as td
client = td.connect(group="jobs")
client.register("a", timeout=100)
client.register("b", timeout=100, orphans="keep")
client.call_later("resize", 3600, b"image 7")
client.flush()
print("ready", flush=True)
time.sleep(1000)
"""


Timerctl = Callable[..., tuple[int, str]]


@pytest.fixture
def timerctl(run: Run) -> Timerctl:
    """Runs timerctl in this process. Returns its exit status, and all that it has printed."""

    def both(*arguments: str) -> tuple[int, str]:
        status, out, err = run(*arguments)
        return status, out + err

    return both


def make_older(path: Path) -> None:
    """Give an arena the layout version before this one."""
    with path.open("r+b") as file:
        file.seek(offset_of(ArenaHeader, "layout_version"))
        file.write(struct.pack("<Q", LAYOUT_VERSION - 1))


def text_of_refusal(client: td.Client) -> str:
    """The text of the error of a call that waits."""
    with pytest.raises(td.TimerdUnavailableError) as raised:
        client.fire_wait("inbox/9")
    return str(raised.value)


def restart(daemon: Daemon, patch: str) -> None:
    daemon.stop()
    daemon.patch = patch
    daemon.start()


def test_the_program_of_the_page_prints_the_three_versions(tmp_path: Path) -> None:
    program = tmp_path / "versions.py"
    program.write_text(programs(FILE)[program.name])
    printed = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=True).stdout
    assert printed == f"layout {LAYOUT_VERSION} protocol {PROTOCOL_VERSION} journal {JOURNAL_VERSION}\n"
    assert printed.strip() in PAGE


def test_the_versions_that_the_page_quotes_are_the_present_ones() -> None:
    assert REFUSED in PAGE
    assert f"a frame of protocol {PROTOCOL_VERSION}; this daemon has {PROTOCOL_VERSION + 1}" in PAGE
    assert f"the arena's layout version is {LAYOUT_VERSION - 1}, and this daemon's {LAYOUT_VERSION}" in PAGE
    assert f"the arena's is {LAYOUT_VERSION - 1}, this program's {LAYOUT_VERSION}" in PAGE
    assert {version for version, _ in OLDER} == set(range(min(OLDER)[0], JOURNAL_VERSION))


@pytest.mark.long
@pytest.mark.parametrize("transport", ["zeromq", "unix"])
def test_a_client_of_another_protocol_is_refused_and_works_again_when_its_version_is_back(
    make_daemon: Callable[..., Daemon], transport: Literal["zeromq", "unix"], timerctl: Timerctl
) -> None:
    daemon = make_daemon()
    with td.connect(transport=transport) as old:
        kept = old.register("inbox/7", timeout=3600)
        short = old.register("inbox/8", timeout=0.5)
        old.flush()
        restart(daemon, OTHER_PROTOCOL)
        with pytest.raises(td.UnsupportedVersionError, match=REFUSED):
            td.connect(transport=transport, timeout=PATIENCE_S)
        assert timerctl("ping") == (1, f"timerctl: {REFUSED}\n")
        assert timerctl("check") == (1, f"timerctl: {REFUSED}\n")
        assert timerctl("stats")[0] == 0
        assert f"UNSUPPORTED_VERSION  a frame of protocol {PROTOCOL_VERSION};" in timerctl("errors")[1]
        assert f"refused: UnsupportedVersionError: a frame of protocol {PROTOCOL_VERSION};" in daemon.log
        eventually(lambda: not old.connected)
        old.fire("inbox/7", value=b"while it was refused")
        eventually(lambda: f"it refuses this client: {REFUSED}" in text_of_refusal(old))
        assert short.result(PATIENCE_S).state is td.State.UNAVAILABLE
        restart(daemon, "")
        assert kept.result(PATIENCE_S).value == b"while it was refused"


@pytest.mark.long
def test_what_an_old_worker_has_left_follows_its_policy_under_a_daemon_of_another_protocol(
    make_daemon: Callable[..., Daemon], timerctl: Timerctl
) -> None:
    daemon = make_daemon()
    with subprocess.Popen([sys.executable, "-c", OLD_WORKER], stdout=subprocess.PIPE) as worker:
        try:
            assert worker.stdout is not None and worker.stdout.readline() == b"ready\n"
            restart(daemon, OTHER_PROTOCOL)
            assert str(worker.pid) in timerctl("clients")[1]
        finally:
            worker.kill()
    eventually(lambda: daemon.stats()["counters"]["pending"] == 2)
    listed = timerctl("ops")[1]
    assert all(re.search(rf"  {key}  ", listed) for key in ("b", "resize")) and not re.search("  a  ", listed)


@pytest.mark.long
def test_an_arena_of_another_layout_is_refused_and_stays_as_it_is(
    make_daemon: Callable[..., Daemon], timerctl: Timerctl
) -> None:
    daemon = make_daemon()
    daemon.stop()
    arena = read_location(daemon.paths).path
    make_older(arena)
    held = arena.read_bytes()
    refused = daemon.spawn()
    assert refused.wait(PATIENCE_S) == 5
    versions = f"the arena's layout version is {LAYOUT_VERSION - 1}, and this daemon's {LAYOUT_VERSION}"
    assert f"{versions}: start the timerd that made it, or remove it with every operation in it" in daemon.log
    assert arena.read_bytes() == held
    message = f"layout version: the arena's is {LAYOUT_VERSION - 1}, this program's {LAYOUT_VERSION}"
    for command in ("stats", "ops", "check", "errors", "clients"):
        status, printed = timerctl(command)
        assert (status, message in printed) == (1, True), command
    assert timerctl("destroy", "--yes")[0] == 0
    daemon.start()


def test_a_client_of_another_layout_works_without_a_map_of_the_arena(
    daemon: Daemon, caplog: pytest.LogCaptureFixture, timerctl: Timerctl
) -> None:
    make_older(read_location(daemon.paths).path)  # while its daemon runs: a daemon reads this word at its start alone
    with caplog.at_level(logging.INFO, "timerd_client"), td.connect(group="jobs") as client:
        operation = client.register("a", timeout=60)
        client.fire("a", value=b"hello")
        assert operation.result(PATIENCE_S).value == b"hello"
        with pytest.raises(td.TimerdUnavailableError, match="layout"):
            client.calls()
    assert "timerd client: arena not mapped: layout version: " in caplog.text
    assert timerctl("ping")[0] == 0
    assert timerctl("check")[0] == 1
    daemon.stop()
    os.unlink(read_location(daemon.paths).path)


@pytest.mark.long
def test_a_client_that_goes_on_in_a_new_arena_gets_the_errors_of_the_page(
    make_daemon: Callable[..., Daemon], timerctl: Timerctl
) -> None:
    daemon = make_daemon()
    with td.connect() as client:
        mark, pending = td.Mark.parse(str(client.mark())), client.register("inbox/7", timeout=3600)
        client.flush()
        daemon.stop()
        assert timerctl("destroy", "--yes")[0] == 0
        daemon.start()
        assert isinstance(pending.result(PATIENCE_S).error, td.SessionGoneError)
        assert isinstance(client.register("a", timeout=60, since=mark).result().error, td.MarkTooOldError)
        with client.subscribe("a", since=mark, timeout=0.1) as subscription:
            gaps = [item.reason for item in subscription if isinstance(item, td.Gap)]
        assert gaps == ["arena"]


def test_the_list_of_calls_has_what_a_program_needs_to_make_them_again(daemon: Daemon, timerctl: Timerctl) -> None:
    with td.connect(group="jobs") as client:
        client.call_later_wait("resize", 3600, b"7" * 60_000)
        status, printed = timerctl("calls", "--json", "--limit", "100000", "--bytes", "65536")
    assert status == 0, printed
    (call,) = json.loads(printed)["rows"]
    assert (call["name"], call["payload"]["text"], call["due"][:2]) == ("resize", "7" * 60_000, "20")
