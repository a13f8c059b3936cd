"""{mark, check, own fire, another client's fire, register arrives} in every order, judged by rule 4 and by the model.

Client A has two threads. One takes a mark, checks its condition in vain, and registers; the other fires. Client B fires
as well. The order of *issuing* decides which events count; the order of *arrival* must not (see the scenarios by
name, such as C1, below). Rule 4 is in timerd/DESIGN.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations

import pytest

from support.oracle.model import Model
from support.rig.commands import Key, KeyAct, Register
from support.rig.harness import MS, Client, Rig, advance, cancel_for_key, fail, fire, forget
from support.rig.rules import (
    ONE,
    a_limited_event_is_taken_once,
    an_event_that_overtook_a_registration_counts,
    own_earlier_fire_does_not_complete_an_own_later_op,
)
from timerd_shm.declare.errors import ErrorCode
from timerd_shm.declare.layout import Region
from timerd_shm.declare.limits import REPLAY_WALK_MAX
from timerd_shm.declare.states import Condition, Outcome

TWO = (Key(b"k1"), Key(b"k2"))
SHAPES = {
    "any": (Condition.AT_LEAST, 1, 0, None),
    "all": (Condition.AT_LEAST, 2, 0, None),
    "total": (Condition.TOTAL, 1, 2, None),
    "limit": (Condition.AT_LEAST, 1, 0, 1),
}
STEPS = ("mark", "issue own fire", "own fire arrives", "other's fire", "issue register", "register arrives")


def orders() -> Iterator[tuple[str, ...]]:
    """Orders that programs and sockets allow: a client's commands arrive in the order in which they were issued."""
    for order in permutations(STEPS):
        at = {step: position for position, step in enumerate(order)}
        if not at["mark"] < at["issue register"] < at["register arrives"]:
            continue
        if not at["issue own fire"] < at["own fire arrives"]:
            continue
        if (at["issue own fire"] < at["issue register"]) != (at["own fire arrives"] < at["register arrives"]):
            continue
        yield order


ORDERS = tuple(orders())


class Scene:
    """The core and the model, with client A, which waits, and client B, which only fires."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.model = Model(
            tick_ns=MS,
            ring_events=rig.arena.region(Region.EVENTS).count,
            slot_of=rig.slot_of,
            capacity=rig.arena.region(Region.OPS).count,
            quota_operations=rig.arena.header.quota_operations,
        )
        self.a, self.b = rig.client(), rig.client()
        self.twins = {self.a: self.model.open_client(), self.b: self.model.open_client()}

    def arrive(self, client: Client, count: int) -> None:
        """Let the next `count` commands in flight arrive."""
        frame, later = client.in_flight[:count], client.in_flight[count:]
        client.in_flight = frame
        self.rig.turn(only=[client])
        client.in_flight = later
        for _, command in frame:
            self.model.apply(self.twins[client], command, self.rig.now_ns)
        self.model.advance(self.rig.now_ns)

    def act(self, client: Client, *commands: KeyAct | Register) -> int:
        """Issue commands that arrive at once."""
        numbers = [client.issue(command) for command in commands]
        self.arrive(client, len(commands))
        return numbers[0]

    def roll_over(self) -> None:
        """Fire on other keys until the ring holds none of the earlier events."""
        slots = {self.rig.slot_of(0, key.name) for key in TWO}
        others = [b"other %d" % n for n in range(100) if self.rig.slot_of(0, b"other %d" % n) not in slots]
        self.act(self.b, *(fire(key) for key in others[: self.rig.arena.region(Region.EVENTS).count]))

    def compare(self) -> None:
        for client, twin in self.twins.items():
            assert client.delivered == twin.delivered
            assert [answer.code for answer in client.answers] == [answer.code for answer in twin.answers]
        self.rig.check()


def play(order: tuple[str, ...], keys: tuple[Key, ...], shape: str, rolled: bool) -> None:
    """Play one interleaving. Core and model must agree, and rule 4 must hold (`assert_rule_4`)."""
    condition, needed, total, limit = SHAPES[shape]
    scene = Scene(Rig())
    a, b = scene.a, scene.b
    mark = None
    number = 0
    for step in order:
        if step == "mark":
            mark = a.mark()
        elif step == "issue own fire":
            a.issue(fire(b"k1", limit=limit, value=b"own"))
        elif step == "issue register":
            number = a.issue(
                Register(
                    keys, timeout_ns=50 * MS, condition=condition, needed=min(needed, len(keys)), total=total, mark=mark
                )
            )
        elif step == "other's fire":
            scene.act(b, fire(keys[-1].name, limit=limit, value=b"other's"))
        else:
            if step == "register arrives" and rolled:
                scene.roll_over()
            scene.arrive(a, 1)
    scene.compare()
    assert_rule_4(order, keys, shape, rolled, a, number)


def assert_rule_4(
    order: tuple[str, ...], keys: tuple[Key, ...], shape: str, rolled: bool, a: Client, number: int
) -> None:
    """Check the result without the model: events that were issued after the mark count, earlier events do not."""
    at = {step: position for position, step in enumerate(order)}
    own = at["issue own fire"] > at["mark"]
    others = at["other's fire"] > at["mark"]
    arrived_after_mark = {
        "own": at["mark"] < at["own fire arrives"] < at["register arrives"],
        "other's": at["mark"] < at["other's fire"] < at["register arrives"],
    }
    state = a.state(number)
    refused = a.answer(number)
    if rolled and any(arrived_after_mark.values()):
        assert refused is not None and refused.code == ErrorCode.MARK_TOO_OLD, f"{order}: {refused}"
        return
    assert refused is None, f"{order}: {refused}"
    if shape in ("any", "limit"):
        assert (state is Outcome.COMPLETED) == (own or others), f"{order}: lost or false: {state}"
    elif shape == "all" and len(keys) == 2:
        assert (state is Outcome.COMPLETED) == (own and others), f"{order}: lost or false: {state}"
    elif shape == "total":
        assert (state is Outcome.COMPLETED) == (own and others), f"{order}: counted twice or lost: {state}"


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("keys", (ONE, TWO), ids=("one key", "two keys"))
@pytest.mark.parametrize("rolled", (False, True), ids=("ring holds all", "ring rolled over"))
def test_every_interleaving_of_mark_check_fires_and_register(keys: tuple[Key, ...], shape: str, rolled: bool) -> None:
    for order in ORDERS:
        play(order, keys, shape, rolled)


def test_every_interleaving_is_generated() -> None:
    assert len(ORDERS) >= 40, f"only {len(ORDERS)} orders"
    assert any(o.index("issue own fire") < o.index("mark") < o.index("own fire arrives") for o in ORDERS), (
        "C1 is missing"
    )


# the scenarios by name ------------------------------------------------------------------------------------------------


def test_C1_an_own_earlier_fire_does_not_complete_an_own_later_operation() -> None:
    own_earlier_fire_does_not_complete_an_own_later_op(Rig())


def test_an_event_that_arrives_before_the_registration_counts() -> None:
    an_event_that_overtook_a_registration_counts(Rig())


def test_C1_a_fire_of_another_thread_of_the_same_client_is_not_lost() -> None:
    rig = Rig()
    a = rig.client()
    mark = a.mark()  # thread 1 marks and checks
    a.issue(fire(b"k1"))  # thread 2 changes the state, and fires
    number = a.issue(Register(ONE, timeout_ns=30 * MS, mark=mark))  # thread 1 registers
    rig.turn()
    assert a.state(number) is Outcome.COMPLETED


def test_C1_a_mark_of_another_client_counts_by_sequence_alone() -> None:
    rig = Rig()
    a, b = rig.client(), rig.client()
    rig.do(a, fire(b"k1"), fire(b"k1"), fire(b"k1"))
    mark = b.mark()
    rig.do(a, fire(b"k1"))
    number = rig.do(a, Register(ONE, timeout_ns=MS, mark=mark, mark_by_sequence=True))
    assert a.state(number) is Outcome.COMPLETED


def test_H1_a_used_grant_does_not_complete_a_late_registration() -> None:
    a_limited_event_is_taken_once(Rig())
    rig = Rig()
    a_limited_event_is_taken_once(rig, between=rig.restart)


def test_H1_the_remaining_grants_of_a_limited_event_complete_late_registrations() -> None:
    rig = Rig()
    a, b = rig.client(), rig.client()
    mark = a.mark()
    rig.do(b, fire(b"k1", limit=2))
    numbers = [rig.do(a, Register(ONE, timeout_ns=30 * MS, mark=mark)) for _ in range(3)]
    assert [a.state(number) for number in numbers] == [Outcome.COMPLETED, Outcome.COMPLETED, Outcome.NONE]


def test_H1_a_limited_event_skips_an_operation_that_it_would_not_complete() -> None:
    rig = Rig()
    a, b = rig.client(), rig.client()
    both = rig.do(a, Register(TWO, timeout_ns=30 * MS, needed=2))
    one = rig.do(a, Register(ONE, timeout_ns=30 * MS))
    rig.do(b, fire(b"k1", limit=1))
    assert (a.state(both), a.state(one)) == (Outcome.NONE, Outcome.COMPLETED)
    rig.do(b, fire(b"k2"))
    assert a.state(both) is Outcome.NONE, "the limited event advanced an operation that it did not complete"


def test_H3_a_total_counts_from_its_registration() -> None:
    rig = Rig()
    a, b = rig.client(), rig.client()
    rig.do(b, fire(b"k1", 4096))
    number = rig.do(a, Register(ONE, timeout_ns=30 * MS, condition=Condition.TOTAL, total=65_536, mark=a.mark()))
    rig.do(b, fire(b"k1", 61_440))
    assert a.state(number) is Outcome.NONE
    rig.do(b, fire(b"k1", 4096))
    assert a.state(number) is Outcome.COMPLETED


def test_H4_replayed_events_count_in_sequence_over_all_keys() -> None:
    rig = Rig()
    a, b = rig.client(), rig.client()
    mark = a.mark()
    rig.do(b, fire(b"k2", value=b"first"), fire(b"k1", value=b"second"))
    delivered = a.outcome(rig.do(a, Register(TWO, timeout_ns=30 * MS, mark=mark)))
    assert delivered is not None
    assert (delivered.settled_key, delivered.value) == (2, b"first")


def test_H4_a_fail_after_a_completion_does_not_replace_it() -> None:
    rig = Rig()
    a, b = rig.client(), rig.client()
    mark = a.mark()
    rig.do(b, fire(b"k2"), fail(b"k1", 6))
    assert a.state(rig.do(a, Register(TWO, timeout_ns=30 * MS, mark=mark))) is Outcome.COMPLETED
    mark = a.mark()
    rig.do(b, fail(b"k1", 6, value=b"not leader"), fire(b"k1"))
    delivered = a.outcome(rig.do(a, Register(ONE, timeout_ns=30 * MS, mark=mark)))
    assert delivered is not None
    assert (delivered.state, delivered.error, delivered.value) == (Outcome.FAILED, 6, b"not leader")


def test_H4_cancel_for_key_is_an_event_that_a_late_registration_sees() -> None:
    rig = Rig()
    a, b = rig.client(), rig.client()
    mark = a.mark()
    rig.do(b, cancel_for_key(b"k1"))
    assert a.state(rig.do(a, Register(ONE, timeout_ns=30 * MS, mark=mark))) is Outcome.CANCELLED
    assert a.state(rig.do(a, Register(ONE, timeout_ns=30 * MS, mark=a.mark()))) is Outcome.NONE


def test_H4_an_event_after_the_deadline_does_not_count() -> None:
    rig = Rig()
    a, b = rig.client(), rig.client()
    number = a.issue(Register(ONE, timeout_ns=5 * MS, registered_ns=rig.now_ns, mark=a.mark()))
    rig.turn(rig.now_ns + 9 * MS, only=[])
    rig.do(b, fire(b"k1"))
    rig.turn(rig.now_ns + MS)
    delivered = a.outcome(number)
    assert delivered is not None
    assert delivered.state is Outcome.EXPIRED
    assert a.marks[delivered.number] < rig.core.newest, (
        "a registration from the outcome's mark on would lose that event"
    )


def test_H4_an_event_before_the_deadline_counts_even_if_the_registration_arrives_later() -> None:
    rig = Rig()
    a, b = rig.client(), rig.client()
    number = a.issue(Register(ONE, timeout_ns=5 * MS, registered_ns=rig.now_ns, mark=a.mark()))
    rig.do(b, fire(b"k1"), now_ns=rig.now_ns + 3 * MS)
    rig.turn(rig.now_ns + 9 * MS)
    assert a.state(number) is Outcome.COMPLETED


def test_a_watermark_reached_after_the_deadline_still_counts() -> None:
    rig = Rig()
    a, b = rig.client(), rig.client()
    number = a.issue(Register((Key(b"p0", 812),), timeout_ns=5 * MS, registered_ns=rig.now_ns, mark=a.mark()))
    rig.do(b, advance(b"p0", 812), now_ns=rig.now_ns + 9 * MS)
    rig.turn()
    assert a.state(number) is Outcome.COMPLETED


def test_H12_a_forgotten_watermark_no_longer_counts_and_settles_no_operation() -> None:
    rig = Rig()
    a, b = rig.client(), rig.client()
    rig.do(b, advance(b"p0", 812))
    waiting = rig.do(a, Register((Key(b"p0", 813),), timeout_ns=30 * MS))
    rig.do(b, forget(b"p0"))
    assert a.state(waiting) is Outcome.NONE
    number = rig.do(a, Register((Key(b"p0", 5),), timeout_ns=30 * MS, mark=a.mark()))
    assert a.state(number) is Outcome.NONE
    rig.do(b, advance(b"p0", 5))
    assert (a.state(waiting), a.state(number)) == (Outcome.NONE, Outcome.COMPLETED)


def test_H5_a_quiet_key_is_never_too_old() -> None:
    rig = Rig()
    scene = Scene(rig)
    mark = scene.a.mark()
    for _ in range(5):
        scene.roll_over()
    number = scene.act(scene.a, Register(ONE, timeout_ns=30 * MS, mark=mark))
    assert scene.a.state(number) is Outcome.NONE
    assert scene.a.answer(number) is None
    scene.compare()


def test_H5_a_mark_is_too_old_when_an_event_of_the_same_key_slot_was_overwritten() -> None:
    rig = Rig()
    scene = Scene(rig)
    mark = scene.a.mark()
    scene.act(scene.b, fire(b"k1"))
    after = scene.a.mark()
    scene.roll_over()
    too_old = scene.act(scene.a, Register(ONE, timeout_ns=30 * MS, mark=mark))
    just_right = scene.act(scene.a, Register(ONE, timeout_ns=30 * MS, mark=after))
    other_arena = scene.act(scene.a, Register(ONE, timeout_ns=30 * MS, mark_of_other_arena=True))
    codes = {answer.command: answer.code for answer in scene.a.answers}
    assert codes == {too_old: ErrorCode.MARK_TOO_OLD, other_arena: ErrorCode.MARK_TOO_OLD}
    assert scene.a.state(just_right) is Outcome.NONE
    scene.compare()


def test_a_mark_ahead_of_every_event_is_refused_as_too_old() -> None:
    rig = Rig()
    scene = Scene(rig)
    scene.act(scene.b, fire(b"k1"))
    newest = scene.a.mark()
    ahead = newest._replace(sequence=newest.sequence + 1)
    waits = scene.act(scene.a, Register(ONE, timeout_ns=30 * MS, mark=newest))
    refused = scene.act(scene.a, Register(ONE, timeout_ns=30 * MS, mark=ahead))
    assert {answer.command: answer.code for answer in scene.a.answers} == {refused: ErrorCode.MARK_TOO_OLD}
    assert scene.a.state(waits) is Outcome.NONE
    scene.compare()


def test_H4_a_mark_that_needs_a_longer_walk_than_the_bound_is_too_old() -> None:
    rig = Rig(ring_events=2 * REPLAY_WALK_MAX)
    a, b = rig.client(), rig.client()
    mark = a.mark()
    rig.do(b, *(fire(b"k1", 0) for _ in range(REPLAY_WALK_MAX)))
    total = Register(ONE, timeout_ns=30 * MS, condition=Condition.TOTAL, total=1, mark=mark)
    within = rig.do(a, total)
    assert a.answer(within) is None
    rig.do(b, fire(b"k1", 0))
    beyond = rig.do(a, total)
    answer = a.answer(beyond)
    assert answer is not None and answer.code == ErrorCode.MARK_TOO_OLD
