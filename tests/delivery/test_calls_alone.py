"""Calls that are to run alone in the process of a member, because processes have ended while they ran."""

from __future__ import annotations

import pytest

from support.rig.frames import DeliveredForGroup
from support.rig.groups import ID, ask, call, cancel_id, handler
from support.rig.harness import Client, Rig, S, done
from support.rig.rules import a_call_that_runs_alone_gets_no_company, names


def test_a_call_that_is_to_run_alone_gets_no_company() -> None:
    a_call_that_runs_alone_gets_no_company(Rig())


def test_a_call_that_is_to_run_alone_waits_for_an_idle_member_and_delays_no_other() -> None:
    rig = Rig()
    busy, full = handler(rig, b"job", most=4), handler(rig, b"else", most=4)
    rig.do(busy, call(payload=b"1"))
    rig.do(busy, call(payload=b"alone", alone=True), call(payload=b"2"), call(b"else"))
    assert names(busy, full) == [[b"1", b"2"], [b""]]
    rig.do(busy, done(busy.delivered_for_group[0]))
    assert names(busy) == [[b"1", b"2"]], "the busy member holds another call"
    rig.do(busy, done(busy.delivered_for_group[1]))
    rig.turn()
    assert names(busy) == [[b"1", b"2", b"alone"]]
    rig.check()


class Traffic:
    """Calls that come and end all the time, two for each member at once: none of the members is ever idle by itself."""

    def __init__(self, rig: Rig, *members: Client) -> None:
        self.rig, self.members = rig, members
        self.sent = 0
        self.waits = [0] * len(members)
        self.send(2 * len(members))

    def send(self, count: int) -> None:
        for _ in range(count):
            self.sent += 1
            self.rig.do(self.members[0], call(payload=b"%d" % self.sent))

    def second(self) -> None:
        """The oldest call of each member ends, and another one comes."""
        self.rig.turn(self.rig.now_ns + S)
        for member in self.members:
            ended = next((delivered for delivered in held_by(member) if delivered.payload != b"alone"), None)
            if ended is not None:
                self.rig.do(member, done(ended))
                member.delivered_for_group.remove(ended)
            self.send(1)
        self.rig.turn()

    def has_alone(self) -> bool:
        return any(delivered.payload == b"alone" for member in self.members for delivered in held_by(member))


def held_by(member: Client) -> list[DeliveredForGroup]:
    return list(member.delivered_for_group)


@pytest.mark.parametrize("count", [1, 2])
def test_a_call_that_is_to_run_alone_comes_to_a_member_that_is_never_idle_by_itself(count: int) -> None:
    rig = Rig()
    members = [handler(rig, b"job", most=3) for _ in range(count)]
    traffic = Traffic(rig, *members)
    rig.do(members[0], call(payload=b"alone", alone=True))
    for _ in range(9):
        traffic.second()
        assert not traffic.has_alone()
    for _ in range(5):
        traffic.second()
    assert traffic.has_alone()
    (holder,) = (member for member in members if any(delivered.payload == b"alone" for delivered in held_by(member)))
    assert len(holder.delivered_for_group) == 1, "the call that is to run alone has company"
    for other in members:
        assert other is holder or len(held_by(other)) >= 2, "the other member goes on"
    rig.do(holder, done(holder.delivered_for_group.pop()))
    traffic.second()
    assert len(held_by(holder)) >= 2, "the former holder goes on, too"
    rig.check()


def test_a_member_that_does_not_become_idle_for_a_call_gets_others_again_after_10_s() -> None:
    rig = Rig()
    member = handler(rig, b"job", most=3)
    rig.do(member, call(payload=b"long"))
    rig.do(member, call(payload=b"alone", alone=True))
    rig.turn(rig.now_ns + 10 * S)
    rig.do(member, call(payload=b"1"))
    assert names(member) == [[b"long"]]
    rig.turn(rig.now_ns + 10 * S)
    assert names(member) == [[b"long", b"1"]], "after 10 s the member gets other calls again"
    rig.do(member, done(member.delivered_for_group[1]))
    rig.turn(rig.now_ns + 49 * S)
    rig.do(member, call(payload=b"2"))
    assert names(member) == [[b"long", b"1", b"2"]]
    rig.do(member, done(member.delivered_for_group[2]))
    rig.turn(rig.now_ns + S)
    rig.do(member, call(payload=b"3"))
    assert names(member) == [[b"long", b"1", b"2"]], "the second attempt comes a minute after the first one"
    rig.do(member, done(member.delivered_for_group[0]))
    rig.turn()
    assert names(member) == [[b"long", b"1", b"2", b"alone"]]
    rig.check()


def test_a_restart_keeps_a_call_alone() -> None:
    rig = Rig()
    member = handler(rig, b"job", most=4)
    rig.do(member, call(payload=b"alone", alone=True))
    rig.acknowledge()
    rig.restart()
    rig.check()
    rig.do(member, call(payload=b"1"))
    assert names(member) == [[b"alone"]]
    rig.do(member, done(member.delivered_for_group[0]))
    rig.turn()
    assert names(member) == [[b"alone", b"1"]]
    rig.check()


def test_others_are_delivered_when_a_call_that_is_alone_is_withdrawn() -> None:
    rig = Rig()
    member = handler(rig, b"job", most=4)
    rig.do(member, call(payload=b"alone", alone=True, id=ID), call(payload=b"1"))
    assert names(member) == [[b"alone"]]
    assert ask(rig, member, cancel_id()) == 1
    rig.turn()
    assert names(member) == [[b"alone", b"1"]]
    rig.check()
