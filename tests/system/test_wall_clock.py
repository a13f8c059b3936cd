"""Schedules of threaded and asyncio clients, with real daemons, while the wall clock is wrong.

See also simulation/test_clock_jumps.py.
"""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest

import timerd as td
from support.real.daemons import Daemon
from support.real.patience import PATIENCE_S, eventually
from support.real.registries import serve
from timerd_client import aio
from timerd_client.link.link import Wall


def member() -> td.Client:
    return td.connect(group="web", timeout=PATIENCE_S)


def points(calls: list[td.Call], since: datetime) -> list[float]:
    """The points for which a schedule was called, in seconds after `since`."""
    return [(call.due - since).total_seconds() for call in calls if call.due is not None]


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The ns by which the wall clock of this process's clients is ahead of the machine's. A test may set `wall[0]`."""
    ahead = [0]
    monkeypatch.setattr(Wall, "now_ns", lambda wall: time.time_ns() + ahead[0])
    return ahead


def judge_jumps(calls: list[td.Call], start: datetime) -> None:
    """Judge the calls of a schedule. The clock was right for some calls, then an hour ahead, and then right again."""
    found = points(calls, start)
    assert len(set(found)) == len(found), "a point ran twice"
    assert len([each for each in found if each > 3_500]) >= 1, "the schedule had no call while the clock was wrong"
    assert found[-1] < 60, "the schedule did not go on when the clock was right"


def test_a_wall_clock_that_is_wrong_for_two_seconds_silences_no_schedule(daemon: Daemon, wall: list[int]) -> None:
    period: list[td.Call] = []
    cron: list[td.Call] = []
    start = datetime.now(UTC)
    with member() as one, member() as other:
        for each in (one, other):
            serve(each, "period", period.append, seconds=0.5)
            serve(each, "cron", cron.append, cron="* * * * * *")
        eventually(lambda: len(cron) >= 2)
        for ahead in (3_600, 0):
            wall[0] = ahead * 1_000_000_000
            before = len(period), len(cron)
            eventually(lambda before=before: len(period) >= before[0] + 4 and len(cron) >= before[1] + 3)  # type: ignore[misc]
    judge_jumps(cron, start)


def test_an_asyncio_member_goes_on_after_the_wall_clock_was_wrong(daemon: Daemon, wall: list[int]) -> None:
    async def work() -> None:
        cron: list[td.Call] = []
        start = datetime.now(UTC)
        async with aio.connect(group="web", timeout=PATIENCE_S) as client, asyncio.timeout(4 * PATIENCE_S):
            serve(client, "cron", cron.append, cron="* * * * * *")
            for ahead in (0, 3_600, 0):
                wall[0] = ahead * 1_000_000_000
                client._link.wall.was_set()  # as when its timerfd fires
                before = len(cron)
                while len(cron) < before + 3:
                    await asyncio.sleep(0.02)
        judge_jumps(cron, start)

    asyncio.run(work())


def timers(pid: int | str = "self") -> list[str]:
    """The timers of a process that end when somebody sets the wall clock."""
    found = []
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            if os.readlink(each) == "anon_inode:[timerfd]":
                found.append(Path(f"/proc/{pid}/fdinfo", each.name).read_text())
    return [text for text in found if "clockid: 0" in text and "settime flags: 03" in text]


def test_a_daemon_has_a_timer_that_wakes_it_when_the_clock_is_set(daemon: Daemon) -> None:
    """The test may not set the clock. simulation/test_wall_time.py tests what a daemon does when the clock is set."""
    assert len(timers(daemon.pid)) == 1


@pytest.mark.parametrize("face", ["threaded", "asyncio"])
def test_a_member_with_a_cron_schedule_has_a_timer_that_ends_when_the_clock_is_set(daemon: Daemon, face: str) -> None:
    """The test may not set the clock. The kernel shows that the timer would end if the clock were set."""

    async def work() -> None:
        async with aio.connect(group="web", timeout=PATIENCE_S) as client, asyncio.timeout(PATIENCE_S):
            serve(client, "cron", print, cron="0 3 * * *")
            while len(timers()) != 1:
                await asyncio.sleep(0.01)

    assert not timers()
    if face == "asyncio":
        asyncio.run(work())
    else:
        with member() as client:
            serve(client, "cron", print, cron="0 3 * * *")
            eventually(lambda: len(timers()) == 1)
    assert not timers()
