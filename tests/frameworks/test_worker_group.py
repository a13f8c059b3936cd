"""examples/worker_group: workers that are killed and stopped under load, as are the coordinator and the daemon."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

from daemons import Daemon
from patience import eventually
from timerd_client.operations import Errors
from workergroups import SHARDS, Group

OUTAGE_S = 7.0  # longer than a rebalance: what was due in it is given up


@pytest.fixture
def group(daemon: Daemon, runtime_dir: Path) -> Iterator[Group]:
    with Group(runtime_dir / "app") as made:
        yield made


# real workers ---------------------------------------------------------------------------------------------------------


@pytest.mark.timeout(240)
def test_each_job_is_done_once_and_in_order_whoever_is_killed_or_stopped(
    group: Group, daemon: Daemon, seed: int
) -> None:
    killed, stopped, leaves, stays = random.Random(seed).sample("abcd", 4)
    group.start(*"abcd")
    after = group.wait_shared(*"abcd")
    with group.writing(seed):
        group.wait_stored(20)
        group.end(killed, signal.SIGKILL)
        after = group.wait_shared(stopped, leaves, stays, after=after)
        group.wait_stored(20)
        group.send(stopped, signal.SIGSTOP)
        after = group.wait_shared(leaves, stays, after=after)
        group.send(stopped, signal.SIGCONT)
        group.start("e")
        after = group.wait_shared("e", stopped, leaves, stays, after=after)
        group.wait_stored(20)
        group.kill_coordinator()
        after = group.wait_shared("e", stopped, leaves, stays, after=after)
        group.wait_stored(20)
        daemon.kill()
        group.wait_stored(20)  # work goes on without it
        daemon.start()
        assert group.end(leaves, signal.SIGTERM) == 0
        after = group.wait_shared("e", stopped, stays, after=after)
        daemon.kill()
        group.kill_coordinator()
        daemon.start()
        after = group.wait_shared("e", stopped, stays, after=after)
        group.server.hang_up()  # for a moment there are two coordinators
        after = group.wait_shared("e", stopped, stays, after=after)
        group.wait_stored(20)
    group.wait_shared("e", stopped, stays)
    assert not group.ended()
    group.check()


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "joins", [pytest.param(False, marks=pytest.mark.long), True], ids=["nobody joins", "one joins"]
)
def test_a_worker_that_dies_while_the_daemon_is_away_is_removed_when_it_is_back(
    group: Group, daemon: Daemon, seed: int, joins: bool
) -> None:
    group.start("a", "b")
    after = group.wait_shared("a", "b")
    with group.writing(seed, writers=1):
        group.wait_stored(5)
        daemon.kill()
        group.end("b", signal.SIGKILL)
        if joins:
            group.start("c")
        time.sleep(OUTAGE_S)  # until its session's end, and that of the rebalance, have passed unnoticed
        daemon.start()
        group.wait_shared(*("ac" if joins else "a"), after=after)
    group.check()


# members that do what no worker does ----------------------------------------------------------------------------------


class Member:
    """A member in this process, which does one thing at a time."""

    def __init__(self, group: Group, name: str) -> None:
        self.name, self._group = name, group
        self.generation = 0
        self.members: list[str] = []
        self.shards: list[int] = []

    def ask(self, what: str, **more: Any) -> Any:
        return self._group.ask(what, member=self.name, **more)

    def join(self) -> int:
        joined = self.ask("join")
        self.generation, self.members = joined["generation"], joined["members"]
        return int(joined["error"])

    def sync(self) -> int:
        """The leader gives all shards to itself."""
        assignment = {self.name: list(SHARDS)} if self.members[0] == self.name else {}
        synced = self.ask("sync", generation=self.generation, assignment=assignment)
        self.shards = synced.get("shards", [])
        return int(synced["error"])

    def heartbeat(self) -> int:
        return int(self.ask("heartbeat", generation=self.generation)["error"])

    def poll(self) -> list[tuple[int, str]]:
        return [(job, text) for job, text in self.ask("poll", generation=self.generation, shards=self.shards)["jobs"]]

    def commit(self, job: int, result: str) -> int:
        return int(self.ask("commit", generation=self.generation, job=job, result=result)["error"])


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as made:
        yield made


def joined(pool: ThreadPoolExecutor, *members: Member) -> None:
    """They join together."""
    waiting: list[Future[int]] = [pool.submit(member.join) for member in members]
    assert [one.result() for one in waiting] == [Errors.NONE] * len(members)


def test_a_member_that_was_stopped_commits_nothing_when_its_shards_are_anothers(
    group: Group, pool: ThreadPoolExecutor
) -> None:
    old, new = Member(group, "old"), Member(group, "new")
    joined(pool, old)
    assert old.sync() == Errors.NONE and old.shards == list(SHARDS)
    group.ask("jobs", id="1", key="k", text="first")
    group.ask("jobs", id="2", key="k", text="second")
    group.ask("jobs", id="1", key="k", text="first")
    assert old.poll() == [(1, "first"), (2, "second")]
    assert old.commit(1, "FIRST") == Errors.NONE == old.commit(1, "again"), "an answer may be lost"
    joined(pool, new)  # `old` sends no heartbeat
    assert (new.generation, new.members) == (old.generation + 1, ["new"])
    assert old.commit(2, "late") == Errors.ILLEGAL_GENERATION, "the shards are nobody's yet"
    assert new.sync() == Errors.NONE and new.shards == list(SHARDS)
    assert old.commit(2, "late") == Errors.ILLEGAL_GENERATION
    assert old.heartbeat() == Errors.UNKNOWN_MEMBER_ID
    old.generation = new.generation
    assert old.commit(2, "late") == Errors.ILLEGAL_GENERATION, "it owns nothing in this one"
    assert new.poll() == [(2, "second")] and new.commit(2, "SECOND") == Errors.NONE
    results = group.rows("SELECT result, member, generation FROM jobs ORDER BY number")
    assert results == [("FIRST", "old", new.generation - 1), ("SECOND", "new", new.generation)]


def test_a_member_that_lives_and_does_not_join_again_is_removed_when_the_rebalance_is_over(
    group: Group, pool: ThreadPoolExecutor
) -> None:
    idle, new = Member(group, "idle"), Member(group, "new")
    joined(pool, idle)
    assert idle.sync() == Errors.NONE == idle.heartbeat()
    waits = pool.submit(new.join)
    eventually(lambda: idle.heartbeat() == Errors.REBALANCE_IN_PROGRESS)
    eventually(lambda: idle.heartbeat() == Errors.UNKNOWN_MEMBER_ID)
    assert waits.result() == Errors.NONE and new.members == ["new"]


def test_a_member_that_lives_and_does_not_take_its_shards_is_removed_and_the_others_join_again(
    group: Group, pool: ThreadPoolExecutor
) -> None:
    members = [Member(group, "a"), Member(group, "b")]
    joined(pool, *members)
    leader, idle = sorted(members, key=lambda member: member.name != member.members[0])
    assert leader.sync() == Errors.NONE

    def is_removed() -> bool:
        assert leader.heartbeat() in (Errors.NONE, Errors.REBALANCE_IN_PROGRESS)
        return idle.heartbeat() == Errors.UNKNOWN_MEMBER_ID

    eventually(is_removed)
    assert leader.heartbeat() == Errors.REBALANCE_IN_PROGRESS
    joined(pool, leader)
    assert leader.members == [leader.name]


def test_members_that_wait_for_a_leader_that_was_killed_join_again(group: Group, pool: ThreadPoolExecutor) -> None:
    members = [Member(group, "a"), Member(group, "b")]
    joined(pool, *members)
    leader, waits = sorted(members, key=lambda member: member.name != member.members[0])
    assert waits.sync() == Errors.REBALANCE_IN_PROGRESS  # when the leader's session is over
    joined(pool, waits)
    assert waits.members == [waits.name]
    assert leader.heartbeat() == Errors.UNKNOWN_MEMBER_ID


def test_a_rebalance_whose_generation_could_not_be_stored_is_begun_again(
    group: Group, pool: ThreadPoolExecutor
) -> None:
    member = Member(group, "a")
    group.change("CREATE TRIGGER full BEFORE INSERT ON generations BEGIN SELECT RAISE(ABORT, 'no space'); END")
    assert member.join() == Errors.REBALANCE_IN_PROGRESS
    group.change("DROP TRIGGER full")
    joined(pool, member)
    assert member.sync() == Errors.NONE


def test_a_wrong_request_is_refused_and_holds_up_nobody(group: Group, pool: ThreadPoolExecutor) -> None:
    for what, body in (
        ("join", {"member": ["x"]}),
        ("join", {"member": "x" * 300}),
        ("join", {"member": "\ud800"}),
        ("join", {"member": ""}),
        ("join", {"member": None}),
        ("join", {}),
        ("join", {"member": "a", "more": 1}),
        ("sync", {"member": "a", "generation": 1, "assignment": {"a": [12]}}),
        ("sync", {"member": "a", "generation": 1, "assignment": {"a": [1], "b": [1]}}),
        ("heartbeat", {"member": "a", "generation": "1"}),
        ("poll", {"member": "a", "generation": 1, "shards": [-1]}),
        ("commit", {"member": "a", "generation": 2**64, "job": 1, "result": "r"}),
        ("jobs", {"id": "1", "key": 7, "text": "t"}),
    ):
        with pytest.raises(HTTPError, match="400"):
            group.ask(what, **body)
    member = Member(group, "a")
    joined(pool, member)
    assert member.sync() == Errors.NONE
