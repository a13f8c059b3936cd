"""Small parts of a turn: its CPU time, the loop, and the gap."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from support.fakes.networks import World
from support.rig.harness import MS, S
from timerd.clients.process import Process
from timerd.clients.session import Session
from timerd.conductor.gap import DRY_NS, GAP_READ_NS, Gap
from timerd.conductor.loop import Loop
from timerd.core import NEVER
from timerd.host.selector import Selector
from timerd_shm.declare.layout import DaemonHistogram
from timerd_shm.read.reader import ArenaReader


def session(slot: int) -> Session:
    return Session(slot, slot, Process(0, 0), 15 * S, 0)


# the CPU time of turns --------------------------------------------------------------------------------------------


def test_each_turn_is_counted_with_the_cpu_time_since_the_one_before(world: World) -> None:
    def counted() -> tuple[int, int, int]:
        with ArenaReader.from_bytes(bytes(world.rig.memory)) as reader:
            record = reader.daemon_histograms()[DaemonHistogram.TURN_CPU]
        return record.count, record.sum, record.max

    world.clock.spent_ns += 50 * MS  # the start goes on
    world.attach()
    turns, spent, _ = counted()
    world.clock.spent_ns += 50 * MS
    world.turn()
    assert counted() == (turns + 1, spent, 0), "the start is no turn"
    turns, spent, _ = counted()
    for cpu_ns in (3 * MS, 2 * MS, 0):
        world.clock.spent_ns += cpu_ns
        world.turn()
    assert counted() == (turns + 3, spent + 5 * MS, 3 * MS)


# the loop ---------------------------------------------------------------------------------------------------------


class Quiet:
    """Stands in for the conductor, the transport and the clock. Only a SIGTERM ever comes."""

    due_ns = NEVER

    def __init__(self) -> None:
        self.turns = self.looks = 0

    def now_ns(self) -> int:
        """Time stands still. So turns follow each other too quickly, and the loop pauses before the seventh turn."""
        self.looks += self.turns == 6
        if self.looks == 2:  # the first look ends the sixth turn, the second one begins the pause
            signal.raise_signal(signal.SIGTERM)
        return 10 * S

    def do_work(self, now_ns: int) -> None:
        self.turns += 1
        self.due_ns = now_ns if self.turns <= 6 else NEVER

    def has_input(self) -> bool:
        return False


def test_a_signal_that_comes_in_the_pause_between_turns_ends_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pause reads the byte that the signal has written. A loop that forgot the signal would sleep for ever."""
    monkeypatch.setattr("timerd.conductor.loop.sharpen", lambda: None)  # the loop runs in the thread of all tests
    quiet: Any = Quiet()
    selector = Selector()
    loop = Loop(quiet, quiet, selector, quiet)
    try:
        assert loop.run(lambda now_ns: NEVER) == "SIGTERM"
    finally:
        loop.close()
        selector.close()
    assert quiet.turns <= 7


# the gap ----------------------------------------------------------------------------------------------------------


def test_a_start_is_a_gap_that_ends_when_the_sockets_are_dry() -> None:
    gap = Gap(S, 0)
    assert gap.is_open and gap.due_ns == S + DRY_NS
    gap.received(S + MS)
    gap.end_if_dry(S + DRY_NS)
    assert gap.is_open, "something came a moment ago"
    assert gap.due_ns == S + MS + DRY_NS
    gap.end_if_dry(S + MS + DRY_NS)
    assert not gap.is_open


def test_a_gap_ends_although_frames_keep_arriving() -> None:
    gap = Gap(0, 0)
    for now_ns in range(0, GAP_READ_NS, MS):
        gap.received(now_ns)
        gap.end_if_dry(now_ns)
        assert gap.is_open
    gap.received(GAP_READ_NS)
    gap.end_if_dry(GAP_READ_NS)
    assert not gap.is_open


def test_only_a_turn_outside_of_a_gap_counts_as_having_read_all() -> None:
    gap = Gap(0, 0)
    gap.read_dry(MS)
    assert gap.dry_ns == 0
    gap.end_if_dry(DRY_NS)
    gap.read_dry(DRY_NS)
    assert gap.dry_ns == DRY_NS
    gap.begin(S, DRY_NS)
    gap.read_dry(S + MS)
    assert gap.dry_ns == DRY_NS
