"""Calls that wait for a reason other than a busy worker: each is delivered when the reason is over."""

from __future__ import annotations

import pytest

from support.rig.commands import Key, Register
from support.rig.groups import HOUR, ID, call, due, handler, waiting, work
from support.rig.harness import MS, Rig, S, begun, done
from support.rig.makers import USER, make
from timerd_shm.declare.errors import QuotaExceededError
from timerd_shm.declare.limits import USERS_MAX

# The numbers of names (n1208 and so on) whose hashes, made without a seed, have the same low ten bits.
ONE_CHAIN = [
    *(1208, 2089, 2333, 2343, 2800, 2919, 4507, 4723, 7397, 8082, 8410, 8442, 9821, 10722, 10928, 10988, 11424, 12827),
    *(13569, 13635, 14116, 14235, 15977, 16047, 16457, 16824, 18115, 19769, 21090, 23097, 23437, 23814, 26050, 27549),
    *(28364, 28536, 29418, 30130, 31552, 32373),
]


def test_a_call_that_waits_for_its_id_in_another_group_is_delivered_at_once() -> None:
    """An id belongs to a purgatory, not to a group. In an earlier version the call waited an hour."""
    rig = Rig(clients=8, groups=4)
    first, second = handler(rig, b"job", group=b"one", most=4), handler(rig, b"job", group=b"two", most=4)
    running = due(rig, first, id=ID)
    rig.do(first, begun(running))
    rig.do(second, call(id=ID, if_exists="again"))
    assert second.delivered_for_group == [], "another call of the id runs"
    rig.do(first, done(running))
    rig.turn()
    assert len(second.delivered_for_group) == 1


def test_a_call_that_is_redelivered_waits_for_the_call_of_its_id_in_another_group() -> None:
    """Both calls of the id are due. The id's record names the newer one alone."""
    rig = Rig(clients=8, groups=4)
    first, second = handler(rig, b"job", group=b"one"), handler(rig, b"job", group=b"two")
    running = due(rig, first, id=ID)
    rig.do(first, begun(running))
    rig.do(second, call(id=ID, if_exists="again"))
    rig.close(first)
    rig.turn()
    assert len(second.delivered_for_group) == 1
    heir = handler(rig, b"job", group=b"one")
    rig.turn()
    assert heir.delivered_for_group == [], "the newer call of the id runs"
    rig.do(second, done(second.delivered_for_group[0]))
    rig.turn()
    assert len(heir.delivered_for_group) == 1


@pytest.mark.parametrize("other", [False, True])
def test_a_call_that_a_member_passes_by_while_it_becomes_idle_waits_no_longer(other: bool) -> None:
    """With `other` another group's retention ends meanwhile: in an earlier version the wake-up was lost for an hour."""
    rig = Rig(clients=8, groups=4)
    many, one = handler(rig, b"job", most=16), handler(rig, b"job", most=1)
    if other:
        ended = rig.client(group=b"ended")
        rig.do(ended, work(b"k", timeout_ns=0))
        rig.close(ended, goodbye=True)
    start = rig.now_ns + HOUR - 15 * S
    rig.turn(start)
    rig.do(many, call(), call())
    rig.do(many, call(alone=True))
    rig.turn(start + 10 * S + MS)  # `many` is to become idle, within 10 s
    rig.do(one, done(one.delivered_for_group[0]))
    rig.turn()
    assert len(one.delivered_for_group) == 2, "the call that is to run alone"
    rig.do(many, call())
    assert waiting(rig) == 1 + other
    for second in range(11, 22):
        assert rig.core.next_wake_ns() <= start + 21 * S or not waiting(rig)
        rig.turn(start + second * S)
    assert (waiting(rig), len(many.delivered_for_group)) == (0, 2)


def test_names_of_calls_that_anybody_can_compute_share_no_chain() -> None:
    """When the table of names was indexed by a hash without a seed, 5,000 such calls took 365 turns."""
    touched = []
    for names in (range(1, len(ONE_CHAIN) + 1), ONE_CHAIN):
        rig = Rig(capacity=64)
        client = rig.client(group=b"one", uid=USER)
        touched.append(0)
        for number in names:
            client.issue(call(b"n%d" % number))
        touched[-1] = rig.turn()
    assert touched[1] < touched[0] + len(ONE_CHAIN)


def test_users_without_a_record_together_leave_groups_to_others() -> None:
    rig = Rig(capacity=64, quota_operations=32, clients=40, groups=20)
    for number in range(USERS_MAX - 1):
        rig.client(group=b"shared", uid=2_000 + number)
    for number in range(15):
        make(rig, b"left-%d" % number, 1, uid=3_000 + number)
    match = f"all but {USERS_MAX - 1} users.* in 15 groups without a member, of 20"
    with pytest.raises(QuotaExceededError, match=match):
        make(rig, b"one more", 1, uid=4_000)
    make(rig, b"ours", 1, uid=2_000)
    rig.do(rig.client(group=b"left-1", uid=4_000), Register((Key(b"k"),), for_group=True))
    rig.check()
