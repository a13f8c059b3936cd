"""Rule 2: after a crash at any ordering point of any change, an arena recovers to the state before or after the change.

Each situation is played once on the build for tests, which keeps a copy of the arena after each ordering point. A new
core attaches to each copy. Then `check()` must find nothing, the truth must be the one before or after the change, and
sending the same frames again must lead to the state without a crash. For some situations, recovery itself is cut off
at each of its points as well.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.oracle.truth import truth
from support.rig.acts import turn
from support.rig.crashes import differences, known, look, record, recovers_from_a_crash_at_every_point, resume
from support.rig.faults import core_faults
from support.rig.harness import Client, Rig, advance, fire
from support.rig.situations import OFFSETS, SITUATIONS, WATCHERS
from timerd_shm.declare.fields import size_of
from timerd_shm.declare.layout import Region
from timerd_shm.declare.wire import CommandFlag, CommandHeader, CommandKind, RegisterFlag

pytestmark = pytest.mark.skipif(core_faults is None, reason="the build for tests was not made (TIMERD_FAULTS)")


@pytest.mark.parametrize("name", SITUATIONS)
def test_a_crash_at_any_ordering_point_leaves_the_state_before_or_after(name: str) -> None:
    points = recovers_from_a_crash_at_every_point(name)
    print(f"{name}: {points} points")


def test_more_than_two_hundred_ordering_points_are_covered() -> None:
    points = {}
    for name, prepare in SITUATIONS.items():
        rig = Rig(core=core_faults)
        points[name] = len(record(rig, prepare(rig)))
    print(f"{sum(points.values())} distinct ordering points in {len(points)} situations")
    assert sum(points.values()) > 200, points


class Spy:
    """Keeps the frames that a rig applies."""

    def __init__(self, rig: Rig) -> None:
        self.applied: list[bytes] = []
        self._apply, rig.apply = rig.apply, self.apply  # type: ignore[method-assign]

    def apply(self, client: Client, frame: bytes) -> int:
        self.applied.append(frame)
        return self._apply(client, frame)


def test_every_command_and_each_of_its_flags_is_in_some_situation() -> None:
    kinds, register_flags, flags = set[int](), 0, 0
    for prepare in SITUATIONS.values():
        rig = Rig()
        act = prepare(rig)
        spy = Spy(rig)
        act(rig)
        for command in (command for frame in spy.applied for command in commands_of(frame)):
            kinds.add(command[0])
            if command[0] == CommandKind.REGISTER:
                register_flags |= int.from_bytes(command[2:4], "little")
            else:
                flags |= command[2]
    assert kinds == set(CommandKind)
    assert set(RegisterFlag(register_flags)) == set(RegisterFlag)
    assert set(CommandFlag(flags)) == set(CommandFlag)


def commands_of(frame: bytes) -> Iterator[bytes]:
    """The commands of a frame, each with its variable part."""
    at = size_of(CommandHeader)
    while at < len(frame):
        length = int.from_bytes(frame[at + 4 : at + 8], "little")
        yield frame[at : at + length]
        at += length


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    (
        "fire: every condition",
        "fire: totals",
        "advance: some",
        "register: id replaced",
        "expire: one",
        "a holder dies",
        "requeue at a death: two watchers",
        "a call: followed",
        "handles other names",
    ),
)
def test_a_recovery_cut_off_at_any_ordering_point_can_be_repeated(name: str) -> None:
    rig = Rig(core=core_faults)
    copies = record(rig, SITUATIONS[name](rig))
    done: set[bytes] = set()  # arenas that are tried already: an earlier recovery also went through them
    for copy in copies:
        whole: list[Rig] = []
        cut = record(rig, lambda rig, copy=copy, whole=whole: whole.append(resume(rig.clone(copy))))  # type: ignore[misc]
        _, wanted = look(known(whole[0]))
        for second in set(cut) - done:
            done.add(second)
            again = resume(rig.clone(second))
            found, ended = look(known(again))
            assert ended == wanted, f"{name}: {differences(ended, wanted)}"
            assert not found, f"{name}: {found}"
            again.core.release()
    print(f"{name}: {len(done)} points of recovery")


@pytest.mark.parametrize("length", range(8, 16))
def test_a_value_that_left_the_ring_before_a_crash_is_not_shared_after_it(length: int) -> None:
    """In a free block, another field lies at the offset of a value's `length`, and may have the same number."""
    rig = Rig(core=core_faults, ring_bytes=300)
    client, other = rig.client(), rig.client()
    values = [bytes([at]) * length for at in range(18)]
    rig.do(client, *(fire(b"k", value=value) for value in values))
    large = client.frame([(client.issue(command), command) for command in [fire(b"k", value=b"v" * 300)]])
    same = other.frame([(other.issue(command), command) for command in [fire(b"k", value=values[-1], wait=True)]])
    emptied = 0
    for copy in record(rig, lambda rig: turn(rig, client, large)):
        again = rig.clone(copy)
        header = again.arena.header
        emptied += header.tail > header.newest
        turn(again, other, same)
        found, _ = look(known(again))
        assert not found
        again.core.release()
    assert emptied, "the ring was never empty"


def test_attaching_reports_the_transaction_that_it_finished() -> None:
    rig = Rig(core=core_faults)
    copies = record(rig, SITUATIONS["fire: one"](rig))
    replayed = [rig.clone(copy).core.redo_replayed for copy in copies]
    assert any(replayed), "no crash was inside of a transaction"
    assert rig.clone(bytes(rig.memory)).core.redo_replayed == 0


def test_attaching_to_a_sound_arena_changes_no_truth() -> None:
    rig = Rig(core=core_faults)
    a = rig.client()
    rig.do(a, *WATCHERS, *OFFSETS, advance(b"p", 4), fire(b"l", value=b"v" * 300), fire(b"k", 2, limit=1))
    again = rig.clone(bytes(rig.memory))
    assert truth(again.memory) == truth(rig.memory)
    assert again.arena.in_use() == rig.arena.in_use()
    assert again.arena.region(Region.OPS).in_use == again.arena.count("pending", 0) + len(a.delivered)
    again.check()
