"""The tests can fail: for each ground rule a defect is seeded, and the test of the rule must fail.

The core's defects are compiled into `timerd.core_faults` alone (timerd_shm.generate.DEFECTS) and chosen at run time.
Most bodies below are also run by other tests, on the core as it is. Here each body runs twice on the build for tests:
it must pass without the defect, and fail with the defect. A defect of the daemon replaces one of the daemon's
functions. Defects of the client are in test_simulation.py, test_aio.py, test_subscribers.py and
test_dropped_operations.py.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from support.fakes.collisions import keys_of_a_known_seed_share_no_chain
from support.fakes.daemonrules import (
    a_daemon_that_was_stopped_suspects_nobody,
    a_restart_makes_leases_whole,
    an_incarnation_is_not_enough,
    what_the_arena_shows_is_not_enough,
)
from support.fakes.networks import World
from support.oracle.copies import SteppedCopy
from support.oracle.journalplay import no_row_is_lost_or_written_twice
from support.rig.commands import Key, Register
from support.rig.crashes import recovers_from_a_crash_at_every_point
from support.rig.harness import MS, START_NS, Rig, S, fire
from support.rig.journals import JournaledRig
from support.rig.makers import (
    a_call_that_makes_room_is_replaced_by_none,
    a_schedules_call_makes_no_room,
    kept_operations_leave_the_last_quarter,
    outcomes_make_room_for_the_next_client_of_their_user,
    outcomes_that_share_values_make_room,
    outcomes_within_the_share_stay,
    the_next_client_of_a_slot_pays_for_nothing,
    the_oldest_outcomes_make_room,
)
from support.rig.rules import (
    CAPACITY,
    a_call_that_another_member_runs_is_not_given_up,
    a_call_that_runs_alone_gets_no_company,
    a_client_makes_itself_forget_first,
    a_frame_sent_again_is_skipped,
    a_limited_event_is_taken_once,
    a_lost_frame_is_expected_again,
    a_silent_member_keeps_what_it_holds,
    an_event_that_overtook_a_registration_counts,
    calls_of_an_id_run_one_after_the_other,
    complete_counts_by_its_effective_time,
    delivered_to_one_at_a_time,
    done_by_a_former_holder_is_refused,
    grant_of_a_dead_owner_is_requeued,
    idle_costs_nothing,
    looks_are_due_until_the_owner_has_looked,
    looks_outlive_the_daemon,
    mass_fire_is_cut_into_turns,
    outcomes_are_kept_until_acknowledged,
    own_earlier_fire_does_not_complete_an_own_later_op,
    the_end_of_a_process_is_counted,
    the_id_of_a_call_that_runs_is_known,
)
from timerd.clients import messages, silence
from timerd.clients.session import Session
from timerd.clients.sessions import Sessions
from timerd.clients.silence import DEAD_AFTER_NS
from timerd_shm.declare.errors import TimerdError
from timerd_shm.declare.states import Outcome
from timerd_shm.generate import DEFECTS
from timerd_shm.read.reader import ArenaReader

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
    rig.clone(bytes(rig.memory))


def removal_leaves_all_lists(rig: Rig) -> None:
    client = rig.client()
    rig.do(client, Register((Key(b"k"), Key(b"l")), timeout_ns=S), fire(b"k"))
    rig.check()


def a_crash_leaves_before_or_after(rig: Rig) -> None:
    recovers_from_a_crash_at_every_point("cancel: id and payload")


def rows_are_true_with_what_they_tell(rig: Rig) -> None:
    with tempfile.TemporaryDirectory() as directory:
        no_row_is_lost_or_written_twice(Path(directory), "cancel: id and payload", points=1_000)


def a_copy_shows_one_turn(rig: Rig) -> None:
    """The copy begins to read after the arena has changed. So it takes all changed lines from the core's log."""
    client = rig.client()
    rig.do(client, Register((Key(b"k"), Key(b"l")), timeout_ns=S))
    copy = SteppedCopy(rig.core, rig.memory)
    try:
        rig.do(client, Register((Key(b"k"),), timeout_ns=S), fire(b"l"))
        copy.finish()
    finally:
        copy.close()


def a_turns_clock_comes_before_its_rows(_: Rig) -> None:
    with tempfile.TemporaryDirectory() as directory:
        rig = JournaledRig(Path(directory), core=core_faults)
        client = rig.client()
        for _turn in range(3):
            rig.do(client, Register((Key(b"k"),), timeout_ns=S), fire(b"k"), now_ns=rig.now_ns + MS)
        rig.end()
        assert not rig.audit().wrong


BODIES: dict[str, Callable[[Rig], None]] = {
    "NO_REDO": a_crash_leaves_before_or_after,
    "MISSING_FENCE": a_crash_leaves_before_or_after,
    "EARLY_BY_A_TICK": never_early,
    "MARK_IGNORES_OWN_COMMANDS": own_earlier_fire_does_not_complete_an_own_later_op,
    "NO_REPLAY": an_event_that_overtook_a_registration_counts,
    "APPLY_IF_NEWER": a_lost_frame_is_expected_again,
    "APPLIED_AGAIN": a_frame_sent_again_is_skipped,
    "UNBOUNDED_TURN": mass_fire_is_cut_into_turns,
    "STALE_CONSTANT": the_core_and_python_agree_on_the_layout,
    "TAKES_ITS_OWN_TIME": time_is_what_the_caller_says,
    "WAKES_EVERY_TICK": partial(idle_costs_nothing, span_s=60),
    "UNLINK_FROM_ONE_LIST": removal_leaves_all_lists,
    "LIMIT_NOT_LOWERED": a_limited_event_is_taken_once,
    "FREED_UNACKNOWLEDGED": outcomes_are_kept_until_acknowledged,
    "GRANT_DROPPED": grant_of_a_dead_owner_is_requeued,
    "DELIVERED_TO_TWO_MEMBERS": delivered_to_one_at_a_time,
    "TAKEN_OVER_AT_ONCE": a_silent_member_keeps_what_it_holds,
    "ACKNOWLEDGED_BY_FORMER_HOLDER": done_by_a_former_holder_is_refused,
    "TURN_NOT_NOTED": a_turns_clock_comes_before_its_rows,
    "WEAK_HASH": keys_of_a_known_seed_share_no_chain,
    "ROWS_APART": rows_are_true_with_what_they_tell,
    "FORGETS_THE_LEAST": a_client_makes_itself_forget_first,
    "UNLOGGED_STORE": a_copy_shows_one_turn,
    "IMAGE_AFTER_STORE": a_copy_shows_one_turn,
    "LOOKED_AT_ALL": looks_are_due_until_the_owner_has_looked,
    "LOOKS_NOT_RESTORED": looks_outlive_the_daemon,
    "COMPLETE_IS_NEVER_LATE": complete_counts_by_its_effective_time,
    "ENDS_NOT_COUNTED": the_end_of_a_process_is_counted,
    "ALONE_GETS_COMPANY": a_call_that_runs_alone_gets_no_company,
    "TWO_OF_AN_ID": calls_of_an_id_run_one_after_the_other,
    "ENDED_BY_FORMER_HOLDER": a_call_that_another_member_runs_is_not_given_up,
    "EVICTS_WITHIN_SHARE": outcomes_within_the_share_stay,
    "SHARED_VALUES_STAY": outcomes_that_share_values_make_room,
    "SCHEDULES_MAKE_ROOM": a_schedules_call_makes_no_room,
    "EVICTS_THE_NEWEST": the_oldest_outcomes_make_room,
    "LAST_QUARTER_TAKEN": kept_operations_leave_the_last_quarter,
    "OUTCOMES_COUNT_AS_KEPT": outcomes_make_room_for_the_next_client_of_their_user,
    "USES_WHAT_IS_EVICTED": a_call_that_makes_room_is_replaced_by_none,
    "CHARGED_TO_THE_SLOT": the_next_client_of_a_slot_pays_for_nothing,
    "FORGETS_CALLS": the_id_of_a_call_that_runs_is_known,
}
LARGE = {"UNBOUNDED_TURN": CAPACITY, "WAKES_EVERY_TICK": 1024}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_test_fails_with_its_seeded_defect(defect: str) -> None:
    body = BODIES[defect]
    capacity = LARGE.get(defect, 64)
    body(Rig(core=core_faults, capacity=capacity))
    rig = Rig(core=core_faults, capacity=capacity)
    core_faults.set_defect(DEFECTS.index(defect) + 1)
    with pytest.raises((AssertionError, TimerdError)):  # a start that refuses the arena is a failure as well
        body(rig)


# the daemon's Python ----------------------------------------------------------------------------------------------


def incarnation_is_its_own_proof(patch: pytest.MonkeyPatch) -> None:
    """The daemon accepts a client's incarnation as the proof of this incarnation."""
    patch.setattr(messages, "incarnation_of", lambda proof: proof)


def session_is_what_the_arena_tells(patch: pytest.MonkeyPatch) -> None:
    """In place of a session, the daemon accepts the session's hash, or the client's incarnation."""
    find = Sessions.find

    def forgeable(self: Sessions, secret: bytes) -> Session | None:
        core = self._core
        return find(self, secret) or self.at(max(core.find_session(secret), core.find_incarnation(secret)))

    patch.setattr(Sessions, "find", forgeable)


def lease_over_a_stop(patch: pytest.MonkeyPatch) -> None:
    """Time counts as silence even if the daemon was not reading."""
    patch.setattr(Sessions, "make_leases_whole", lambda self, now_ns: None)
    patch.setattr(silence, "HEARTBEAT_NS", DEAD_AFTER_NS)  # the most time that counts from one heartbeat to the next


def lease_over_downtime(patch: pytest.MonkeyPatch) -> None:
    """A start counts the time since the client's last frame to the former daemon as silence."""
    add = Sessions._add

    def since_its_last_frame(self: Sessions, slot: int, *given: Any) -> Session:
        session = add(self, slot, *given)
        session.silent_ns = max(0, given[-1] - self._record_of(slot).last_frame_ns)
        return session

    patch.setattr(Sessions, "_add", since_its_last_frame)


DAEMON_DEFECTS: dict[Callable[[pytest.MonkeyPatch], None], Callable[[World], None]] = {
    incarnation_is_its_own_proof: what_the_arena_shows_is_not_enough,
    session_is_what_the_arena_tells: an_incarnation_is_not_enough,
    lease_over_a_stop: a_daemon_that_was_stopped_suspects_nobody,
    lease_over_downtime: a_restart_makes_leases_whole,
}


@pytest.mark.parametrize("defect", DAEMON_DEFECTS, ids=lambda defect: defect.__name__)
def test_a_test_fails_with_its_defect_of_the_daemon(
    defect: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    body = DAEMON_DEFECTS[defect]
    for is_sound in (True, False):
        if not is_sound:
            defect(monkeypatch)
        world = World()
        world.until_quiet()
        if is_sound:
            body(world)
            continue
        with pytest.raises(AssertionError):
            body(world)


# readers ----------------------------------------------------------------------------------------------------------


def cannot_be_written(reader: ArenaReader, memory: memoryview) -> None:
    """Rule 1: a process that maps the arena to read it cannot change a byte of it."""
    assert memory.readonly, "the mapping can be written"
    with pytest.raises(TypeError):
        reader.words[0] = 0


def test_the_test_of_rule_1_fails_with_a_writable_mapping(tmp_path: Path) -> None:
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
