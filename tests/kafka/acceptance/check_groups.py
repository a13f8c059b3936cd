"""Groups: a member is killed, leaves, or does not join again. Committed offsets: each worker is killed."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from kio.schema.errors import ErrorCode

from bench.lib.common import Failed, Suite
from clients.rawgroup import RawMember, coordinator_address
from processes import Peer, several
from support.kafka.rawkafka import RawKafka
from timerd_kafka.cluster.placement import coordinator_of
from timerd_kafka.testing import KafkaCluster
from world import WORKERS, able, cluster, eventually, side_by_side

PARTITIONS, MEMBERS = 12, 3
SESSION_MS, HEARTBEAT_MS = 3_000, 300
KILLED_S, LEFT_S = 4.0, 1.0  # at most, from a member's SIGKILL or close() until others have its partitions
REBALANCE_S, LATE_S = 2.0, 0.1
SLOW_SESSION_S = 60.0  # of members that are removed by the rebalance timeout, and not for want of heartbeats
SHARED_S = 120.0


def play(suite: Suite) -> None:
    with cluster(suite) as kafka:
        committing = able(suite, "commit", "committed")
        offsets = OffsetsOf(kafka, committing[-1:] if suite.short else committing)
        offsets.commit()
        rounds = 1 if suite.short else 3
        for number in range(rounds):
            suite.say(f"groups of each client, {number + 1} of {rounds}")
            # The clients wait most of the time: side by side they take a third of the time.
            side_by_side(partial(play_client, suite, kafka), able(suite, "member"))
        play_slow(suite, kafka, 1 if suite.short else 5)
        offsets.survive(suite)


def play_client(suite: Suite, kafka: KafkaCluster, client: str) -> None:
    """Run a group of three members of one client."""
    topic = kafka.topic(partitions=PARTITIONS, replicas=3)
    plan = {"topic": topic, "partitions": PARTITIONS, "group": f"group-of-{topic}"}
    plan |= {"session_ms": SESSION_MS, "heartbeat_ms": HEARTBEAT_MS}

    def member() -> Peer:
        return Peer("member", client, kafka.bootstrap, **plan)

    with several(member, member, member) as members:
        begun = time.monotonic()
        eventually(lambda: shared(members) and all(map(assigned, members)), f"{client}: three share the work", SHARED_S)
        joined = time.monotonic() - begun
        shares = [len(assigned(one)) for one in members]
        time.sleep(2 * HEARTBEAT_MS / 1000)
        victim, others = members[0], members[1:]
        lost = set(assigned(victim))
        killed = victim.kill()
        eventually(lambda: shared(others), f"{client}: two have the work of the killed one", SHARED_S)
        after_kill = max(one.said[-1]["at"] for one in others) - killed
        time.sleep(2 * HEARTBEAT_MS / 1000)
        leaving, last = others
        leaving.stop()
        eventually(lambda: leaving.last("closing") and shared([last]), f"{client}: one has all the work", SHARED_S)
        asked = leaving.last("closing")
        assert asked is not None
        after_leave = last.said[-1]["at"] - asked["at"]
        leaving.result(SHARED_S)
        last.stop()
        last.result(SHARED_S)
    suite.add(
        "groups",
        client=client,
        members=MEMBERS,
        joined_s=round(joined, 2),
        shares=" + ".join(map(str, shares)),
        killed_had=len(lost),
        after_kill_s=round(after_kill, 3),
        after_leave_s=round(after_leave, 3),
    )
    suite.check(
        "killed_member", after_kill <= KILLED_S, f"{KILLED_S:g} s after a member's SIGKILL others have its partitions"
    )
    suite.check(
        "leaving_member", after_leave <= LEFT_S, f"{LEFT_S:g} s after a member's close() others have its partitions"
    )


def assigned(member: Peer) -> list[int]:
    """The partitions that a member has printed last."""
    said = member.last("assigned")
    return said["assigned"] if said else []


def shared(members: list[Peer]) -> bool:
    """Whether these members have all partitions, and no partition twice."""
    return sorted(number for one in members for number in assigned(one)) == list(range(PARTITIONS))


def play_slow(suite: Suite, kafka: KafkaCluster, rounds: int) -> None:
    """A member that sends heartbeats, but does not join again, is removed when the rebalance timeout is over."""
    took = []
    for number in range(rounds):
        group = f"slow-{number}-{time.monotonic_ns()}"
        with (
            RawMember(kafka.bootstrap, group, session=SLOW_SESSION_S, rebalance=REBALANCE_S) as slow,
            RawMember(kafka.bootstrap, group, session=SLOW_SESSION_S, rebalance=REBALANCE_S) as quick,
        ):
            slow.join()
            slow.sync()
            over = threading.Event()
            answers: set[str] = set()

            def beat(slow: RawMember = slow, over: threading.Event = over, answers: set[str] = answers) -> None:
                while not over.wait(0.1):
                    answers.add(slow.heartbeat().name)

            thread = threading.Thread(target=beat)
            thread.start()
            begun = time.monotonic()
            members = quick.join()
            took.append(time.monotonic() - begun)
            over.set()
            thread.join()
            gone = slow.heartbeat()
            rebalanced = "rebalance_in_progress" in answers
            if members != [quick.member] or not rebalanced or gone != ErrorCode.unknown_member_id:
                raise Failed(f"the slow member: {len(members)} members, answers {answers}, and then {gone.name}")
            quick.leave()
    suite.add("slow_rejoiner", rebalance_timeout_s=REBALANCE_S, rounds=rounds, min_s=min(took), max_s=max(took))
    suite.check(
        "slow_rejoiner",
        min(took) >= REBALANCE_S and max(took) <= REBALANCE_S + LATE_S,
        f"a member that does not join again is removed after {REBALANCE_S:.2f} to {REBALANCE_S + LATE_S:.2f} s",
    )


class OffsetsOf:
    """Offsets of groups at each worker. Committed offsets are read again after each worker was killed."""

    def __init__(self, kafka: KafkaCluster, clients: Sequence[str]) -> None:
        self._kafka = kafka
        topic = kafka.topic(partitions=PARTITIONS, replicas=3)
        plan = {"topic": topic, "partitions": PARTITIONS, "assign": True}
        self._groups: list[tuple[str, dict[str, Any], dict[int, int]]] = []  # client, plan, offsets
        for client in clients:
            for worker in range(WORKERS):  # a group at each worker
                names = (f"offsets-{topic}-{client}-{number}" for number in range(10_000))
                group = next(name for name in names if coordinator_of(name, WORKERS) == worker)
                offsets = {number: 100 * worker + number + 1 for number in range(PARTITIONS)}
                self._groups.append((client, plan | {"group": group}, offsets))

    def commit(self) -> None:
        """Each client commits to its groups."""
        self._ask("commit")

    def survive(self, suite: Suite) -> None:
        """Kill each worker in turn: all offsets survive. At last each client reads the offsets of its groups."""
        for worker in range(WORKERS):
            before = self._kafka.pids()[str(worker)]
            self._kafka.kill(worker)
            back = eventually(lambda n=worker, old=before: is_back(self._kafka, n, old), "the worker is back")  # type: ignore[misc]
            wrong = sum(raw_offsets(self._kafka, plan) != offsets for _, plan, offsets in self._groups)
            suite.add("offsets", killed_worker=worker, back_after_ms=back * 1e3, groups=len(self._groups), wrong=wrong)
            self._judge(suite, wrong)
        found = [{int(number): to for number, to in said["offsets"].items()} for said in self._ask("committed")]
        self._judge(suite, sum(one != offsets for one, (_, _, offsets) in zip(found, self._groups, strict=True)))

    def _ask(self, role: str) -> list[dict[str, Any]]:
        made = [
            partial(Peer, role, client, self._kafka.bootstrap, offsets=offsets, **plan)
            for client, plan, offsets in self._groups
        ]
        with several(*made) as peers:
            return [peer.result(SHARED_S) for peer in peers]

    def _judge(self, suite: Suite, wrong: int) -> None:
        suite.check("offsets_survive", not wrong, "committed offsets survive SIGKILL of any one worker")


def is_back(kafka: KafkaCluster, worker: int, before: int) -> bool:
    """Whether a worker that was killed answers again."""
    return kafka.pids().get(str(worker), before) != before and str(worker) in kafka.state()


def raw_offsets(kafka: KafkaCluster, plan: dict[str, Any]) -> dict[int, int]:
    """The committed offsets of a group."""
    with RawKafka(kafka.bootstrap) as raw, RawKafka(coordinator_address(raw, plan["group"])) as owner:
        answer = owner.ask(9, 5, group_id=plan["group"], topics=None)
    return {one.partition_index: one.committed_offset for topic in answer.topics for one in topic.partitions}
