"""Groups of unmodified clients: members that leave while they join, and static members with other topics."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from kio.schema.errors import ErrorCode

from bench.lib.common import Failed, Suite
from clients.rawgroup import LEAVE, coordinator_address
from clients.roster import STATIC
from processes import Peer, several
from support.kafka.rawkafka import RawKafka
from timerd_kafka.testing import KafkaCluster
from timerd_kafka.wire.codec import Question
from world import able, cluster, eventually, side_by_side

PARTITIONS = 12
SESSION_MS, HEARTBEAT_MS = 30_000, 300
CLOSED_S, JOINED_S = 5.0, 10.0  # far less than a session
STARTED_S = 120.0
LATER_S = 3.0  # for this time a further rebalance would have to begin


def play(suite: Suite) -> None:
    with cluster(suite) as kafka:
        suite.say("members that leave while they join")
        side_by_side(partial(play_leavers, suite, kafka), able(suite, "member"))
        suite.say("static members with other topics")
        side_by_side(partial(play_static, suite, kafka), able(suite, "member", STATIC))
        kafka.clear_faults()


def play_leavers(suite: Suite, kafka: KafkaCluster, client: str) -> None:
    """Many members join and leave at once. Then the group is empty, and a new member need not wait for any of them."""
    count = 3 if suite.short else 12
    topic = kafka.topic(partitions=PARTITIONS, replicas=1)
    plan = {"topic": topic, "partitions": PARTITIONS, "group": f"joins-{topic}"}
    plan |= {"session_ms": SESSION_MS, "heartbeat_ms": HEARTBEAT_MS}

    def member() -> Peer:
        return Peer("member", client, kafka.bootstrap, **plan)

    with several(*[member] * count) as members:
        for one in members:
            one.ready()
        for one in members:
            one.stop()
        for one in members:
            one.result(STARTED_S)
        closed = max(at(one, "closed") - at(one, "closing") for one in members)
    with member() as last:
        last.ready()
        begun = at(last, "ready")
        eventually(has(last, range(PARTITIONS)), f"{client}: a new member has all partitions", STARTED_S)
        joined = max(0.0, at(last, "assigned") - begun)  # kafkajs is ready only when it has joined
        last.stop()
        last.result(STARTED_S)
    suite.add(
        "left_while_they_joined",
        client=client,
        members=count,
        session_s=SESSION_MS / 1000,
        slowest_close_s=round(closed, 2),
        a_new_member_joined_s=round(joined, 2),
    )
    suite.check("closed_at_once", closed <= CLOSED_S, f"members that are joining close within {CLOSED_S:g} s")
    suite.check(
        "joined_at_once",
        joined <= JOINED_S,
        f"the first member of an empty group joins within {JOINED_S:g} s, whoever has left before it had joined",
    )


def at(member: Peer, key: str) -> float:
    """The time of a member's last line of output with this key."""
    said = member.last(key)
    assert said is not None
    found: float = said["at"]
    return found


def has(member: Peer, numbers: range) -> Callable[[], bool]:
    """Whether a member has exactly these partitions."""

    def look() -> bool:
        said = member.last("assigned")
        return said is not None and said["assigned"] == list(numbers)

    return look


def play_static(suite: Suite, kafka: KafkaCluster, client: str) -> None:
    """A static member is killed, and comes back with another topic: one rebalance, and each member joins again once."""
    first, second = kafka.topic(partitions=3, replicas=1), kafka.topic(partitions=2, replicas=1)
    group = f"static-{first}"
    plan = {"topic": first, "partitions": 3, "group": group}
    plan |= {"session_ms": SESSION_MS, "heartbeat_ms": HEARTBEAT_MS}

    # A leader in kafka-python assigns the partitions before it has asked for those of the new topic. When it knows
    # them, it begins another rebalance itself.
    expected = 4 if client == "kafka-python" else 2

    def member(instance: str, topic: str) -> Peer:
        return Peer("member", client, kafka.bootstrap, **plan, instance=instance, topics=[topic])

    def both() -> bool:
        found = [said["assigned"] for one in (moving, staying) if (said := one.last("assigned"))]
        return len(found) == 2 and sorted(found[0] + found[1]) == [0, 1, 2]

    with member("one", first) as moving, member("two", first) as staying:
        eventually(both, f"{client}: two static members share a topic", STARTED_S)
        kafka.wait_for_group(group, members=2, timeout=STARTED_S)
        time.sleep(LATER_S)
        # A late answer that is 1 ms late changes nothing, and its requests are counted.
        counts = {api: kafka.delay(api, 0.001, group=group, times=None) for api in ("JoinGroup", "SyncGroup")}
        moving.kill()
        with member("one", second) as back:
            eventually(has(back, range(2)), f"{client}: it has its new topic", STARTED_S)
            eventually(has(staying, range(3)), f"{client}: the other one has the whole first topic", STARTED_S)
            eventually(lambda: met_of(kafka)[counts["SyncGroup"]] >= expected, f"{client}: all have synced", STARTED_S)
            time.sleep(LATER_S)
            met = met_of(kafka)
            back.stop()
            back.result(STARTED_S)
        staying.stop()
        staying.result(STARTED_S)
    dismiss(kafka, group, "one", "two")
    joins, syncs = (met[counts[api]] for api in ("JoinGroup", "SyncGroup"))
    suite.add("static_members", client=client, members=2, joins=joins, syncs=syncs)
    claim = "a static member that comes back with other topics causes one rebalance (two if its leader begins another)"
    suite.check("one_rebalance", syncs == expected, claim)


def met_of(kafka: KafkaCluster) -> dict[int, int]:
    """How many requests each fault has met."""
    return {one.number: one.met for one in kafka.faults()}


def dismiss(kafka: KafkaCluster, group: str, *instances: str) -> None:
    """Remove static members, as an administrator does: else their sessions would wait for 30 s."""
    module = Question(LEAVE, 4).module
    members = tuple(module.MemberIdentity(member_id="", group_instance_id=name) for name in instances)
    with RawKafka(kafka.bootstrap) as raw, RawKafka(coordinator_address(raw, group)) as owner:
        answer = owner.ask(LEAVE, 4, group_id=group, members=members)
    if answer.error_code != ErrorCode.none:
        raise Failed(f"LeaveGroup: {answer.error_code!r}")
