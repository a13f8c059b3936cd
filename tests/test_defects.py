"""The tests can fail: for each ground rule a defect is seeded, and the test that holds the rule must turn red.

The defects are compiled into `timerd.core_faults` alone (timerd_shm.generate.DEFECTS) and chosen at run time. Each body
below is one that the suite runs against the core as it is; here it runs twice on the build for tests: without the
defect it must pass, with it it must raise AssertionError.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from commands import Key, Register
from harness import MS, START_NS, Rig, S, fire
from test_commands import a_lost_frame_is_expected_again, outcomes_are_kept_until_acknowledged
from test_groups_core import done_by_a_former_holder_is_refused, told_to_one_at_a_time
from test_interleavings import (
    a_limited_event_is_taken_once,
    an_event_that_overtook_a_registration_counts,
    own_earlier_fire_does_not_complete_an_own_later_op,
)
from test_journal import no_row_is_lost_or_written_twice
from test_owners import credit_of_a_dead_owner_goes_on
from test_redo import recovers_from_a_crash_at_every_point
from test_turn_bounds import CAPACITY, mass_fire_is_cut_into_turns
from test_wheel import idle_costs_nothing
from timerd_shm.errors import ArenaDamagedError, LayoutMismatchError
from timerd_shm.generate import DEFECTS
from timerd_shm.layout import Outcome
from timerd_shm.reader import ArenaReader

core_faults = pytest.importorskip("timerd.core_faults", reason="the build for tests was not made (TIMERD_FAULTS)")


@pytest.fixture(autouse=True)
def no_defect_is_left() -> Iterator[None]:
    yield
    core_faults.set_defect(0)


def small() -> Rig:
    return Rig(core=core_faults)


def never_early(rig: Rig) -> None:
    client = rig.client()
    number = rig.do(client, Register((Key(b"k"),), timeout_ns=5 * MS + 1))
    rig.turn(START_NS + 5 * MS)
    assert client.state(number) is Outcome.NONE, "early"
    rig.turn(START_NS + 6 * MS)
    assert client.state(number) is Outcome.EXPIRED, "late"


def time_is_what_the_caller_says(rig: Rig) -> None:
    client = rig.client()
    number = rig.do(client, Register((Key(b"k"),), timeout_ns=3600 * S))
    rig.turn(START_NS + 3599 * S)
    assert client.state(number) is Outcome.NONE
    rig.do(client, fire(b"k"))
    told = client.outcome(number)
    assert told is not None
    assert told.settled_ns == START_NS + 3599 * S, f"settled at {told.settled_ns}, by another clock"


def the_core_and_python_agree_on_the_layout(rig: Rig) -> None:
    try:
        rig.clone(bytes(rig.memory))
    except LayoutMismatchError as error:
        raise AssertionError(str(error)) from error


def removal_leaves_all_lists(rig: Rig) -> None:
    client = rig.client()
    rig.do(client, Register((Key(b"k"), Key(b"l")), timeout_ns=S), fire(b"k"))
    rig.check()


def a_crash_leaves_before_or_after(rig: Rig) -> None:
    recovers_from_a_crash_at_every_point("cancel: id and payload")


def rows_are_true_with_what_they_tell(rig: Rig) -> None:
    with tempfile.TemporaryDirectory() as directory:
        no_row_is_lost_or_written_twice(Path(directory), "cancel: id and payload")


BODIES: dict[str, Callable[[Rig], None]] = {
    "NO_REDO": a_crash_leaves_before_or_after,
    "EARLY_BY_A_TICK": never_early,
    "MARK_IGNORES_OWN_COMMANDS": own_earlier_fire_does_not_complete_an_own_later_op,
    "NO_REPLAY": an_event_that_overtook_a_registration_counts,
    "APPLY_IF_NEWER": a_lost_frame_is_expected_again,
    "UNBOUNDED_TURN": mass_fire_is_cut_into_turns,
    "STALE_CONSTANT": the_core_and_python_agree_on_the_layout,
    "TAKES_ITS_OWN_TIME": time_is_what_the_caller_says,
    "WAKES_EVERY_TICK": idle_costs_nothing,
    "UNLINK_FROM_ONE_LIST": removal_leaves_all_lists,
    "LIMIT_NOT_LOWERED": a_limited_event_is_taken_once,
    "FREED_UNACKNOWLEDGED": outcomes_are_kept_until_acknowledged,
    "CREDIT_DROPPED": credit_of_a_dead_owner_goes_on,
    "TOLD_TO_TWO_MEMBERS": told_to_one_at_a_time,
    "DONE_BY_FORMER_HOLDER": done_by_a_former_holder_is_refused,
    "ROWS_APART": rows_are_true_with_what_they_tell,
}
LARGE = {"UNBOUNDED_TURN": CAPACITY, "WAKES_EVERY_TICK": 1024}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_seeded_defect_turns_its_test_red(defect: str) -> None:
    body = BODIES[defect]
    capacity = LARGE.get(defect, 64)
    body(Rig(core=core_faults, capacity=capacity))
    rig = Rig(core=core_faults, capacity=capacity)
    core_faults.set_defect(DEFECTS.index(defect) + 1)
    with pytest.raises((AssertionError, ArenaDamagedError)):
        body(rig)


def cannot_be_written(reader: ArenaReader, memory: memoryview) -> None:
    """Rule 1: who maps the arena to read it cannot change a byte of it."""
    assert memory.readonly, "the mapping can be written"
    with pytest.raises(TypeError):
        reader.words[0] = 0


def test_rule_1_a_mapping_that_can_be_written_turns_its_test_red(tmp_path: Path) -> None:
    path = tmp_path / "arena"
    path.write_bytes(small().memory)
    with ArenaReader.from_path(path) as reader:
        cannot_be_written(reader, reader.words)
    descriptor = os.open(path, os.O_RDWR)
    with mmap.mmap(descriptor, 0) as writable:
        os.close(descriptor)
        view = memoryview(writable)
        with ArenaReader(view) as reader, pytest.raises(AssertionError):
            cannot_be_written(reader, view)
        view.release()
