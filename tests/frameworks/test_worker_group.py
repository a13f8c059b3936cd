"""examples/worker_group: under load, workers are killed and stopped, and the coordinator and the daemon are killed."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from support.real.daemons import Daemon
from support.real.patience import PATIENCE_S, eventually
from support.real.trees import ROOT
from support.web.servers import Server
from timerd_client.operations import Errors

SESSION_S, REBALANCE_S, INITIAL_S = 2.0, 4.0, 0.5
OUTAGE_S = 7.0  # longer than a session or a rebalance: meanwhile their delayed operations become UNAVAILABLE
TIMES = {"GROUP_SESSION_S": SESSION_S, "GROUP_REBALANCE_S": REBALANCE_S, "GROUP_INITIAL_S": INITIAL_S}
SHARDS = range(12)
# A row for each result, when it is stored: the application's table alone would hide the order.
AUDIT = """
    CREATE TABLE audit (sequence INTEGER PRIMARY KEY, job INTEGER, member TEXT, generation INTEGER, newest INTEGER);
    CREATE TRIGGER audits AFTER UPDATE ON jobs BEGIN
        INSERT INTO audit (job, member, generation, newest)
        VALUES (NEW.number, NEW.member, NEW.generation, (SELECT max(number) FROM generations));
    END;
"""


class Stored(NamedTuple):
    """A result that was stored."""

    job: int
    shard: int
    member: str
    generation: int
    newest: int  # the newest generation at that moment
    owner: str | None  # the shard's owner in the result's generation


class Group:
    """The coordinator's server, its database, and its workers."""

    def __init__(self, directory: Path) -> None:
        shutil.copytree(ROOT / "examples/worker_group", directory)
        self._directory = directory
        self._workers: dict[str, subprocess.Popen[bytes]] = {}
        self.writers: list[Writer] = []
        environment = {name: str(seconds) for name, seconds in TIMES.items()}
        self.server = Server.gunicorn(
            "app:application",
            directory,
            "--worker-class=gthread",
            "--threads=30",
            workers=1,
            hooks=False,
            **environment,
        )
        self.change(AUDIT)

    # workers

    def start(self, *names: str) -> None:
        """Start workers of these names."""
        for name in names:
            with (self._directory / f"worker-{name}.log").open("ab") as log:
                self._workers[name] = subprocess.Popen(
                    [sys.executable, "worker.py", name, f"http://127.0.0.1:{self.server.port}"],
                    env={**os.environ, "WORKER_JOB_S": "0.005", "WORKER_PATIENCE_S": str(2 * PATIENCE_S)},
                    cwd=self._directory,
                    stdin=subprocess.DEVNULL,
                    stderr=log,
                )

    def send(self, name: str, number: signal.Signals) -> None:
        """Send a signal that does not end the worker."""
        self._workers[name].send_signal(number)

    def end(self, name: str, number: signal.Signals) -> int:
        """End a worker by a signal. Returns its exit status."""
        worker = self._workers.pop(name)
        worker.send_signal(number)
        return worker.wait(PATIENCE_S)

    def ended(self) -> list[str]:
        """The workers that have ended by themselves, with what they have logged."""
        return [f"{name}: {self.log(name)}" for name, worker in self._workers.items() if worker.poll() is not None]

    def log(self, name: str) -> str:
        return (self._directory / f"worker-{name}.log").read_text()

    def kill_coordinator(self) -> None:
        """Kill the coordinator. Its server starts another one."""
        (coordinator,) = self.server.workers()
        coordinator.kill()

    def ask(self, what: str, **body: Any) -> Any:
        """Ask the coordinator, as a worker does."""
        url, headers = f"http://127.0.0.1:{self.server.port}/{what}", {"Content-Type": "application/json"}
        with urlopen(Request(url, json.dumps(body).encode(), headers), timeout=2 * PATIENCE_S) as answer:
            return json.loads(answer.read() or b"{}")

    # the database

    def change(self, script: str) -> None:
        with closing(sqlite3.connect(self._directory / "group.sqlite", timeout=30)) as connection:
            connection.executescript(script)

    def rows(self, query: str) -> list[Any]:
        with closing(sqlite3.connect(self._directory / "group.sqlite", timeout=30)) as connection:
            return connection.execute(query).fetchall()

    def owners(self) -> tuple[int, dict[str, list[int]]]:
        """The newest generation, and the shards of each member in it."""
        rows = self.rows(
            "SELECT number, shard, member FROM generations LEFT JOIN owners ON generation = number"
            " WHERE number = (SELECT max(number) FROM generations)"
        )
        shards: dict[str, list[int]] = {}
        for _, shard, member in rows:
            if member is not None:
                shards.setdefault(member, []).append(shard)
        return rows[0][0] if rows else 0, shards

    def wait_shared(self, *names: str, after: int = 0) -> int:
        """Wait until these workers share all shards evenly, in a later generation than `after`. Returns its number."""

        def is_shared() -> bool:
            generation, shards = self.owners()
            sizes = [len(owned) for owned in shards.values()]
            return generation > after and set(shards) == set(names) and max(sizes) - min(sizes) <= 1

        try:
            eventually(is_shared)
        except AssertionError:
            logs = "\n".join(path.read_text()[-2_000:] for path in self._directory.glob("*.log"))
            raise AssertionError(f"{names} do not share the shards: {self.owners()}\n{logs}") from None
        return self.owners()[0]

    def wait_stored(self, count: int) -> None:
        """Wait until `count` further results are stored."""
        query = "SELECT count(*) FROM audit"
        ((before,),) = self.rows(query)
        eventually(lambda: self.rows(query)[0][0] >= before + count, f"no {count} results: {self.ended()}")

    def stored(self) -> list[Stored]:
        """All results, in the order in which they were stored."""
        rows = self.rows(
            "SELECT audit.job, jobs.shard, audit.member, audit.generation, newest, owners.member"
            " FROM audit JOIN jobs ON jobs.number = audit.job"
            " LEFT JOIN owners ON owners.shard = jobs.shard AND owners.generation = audit.generation ORDER BY sequence"
        )
        return [Stored(*row) for row in rows]

    def check(self) -> None:
        """All jobs that were accepted are done, each once and in order, by the owner of the shard at that moment."""
        jobs = self.rows("SELECT id, text, result FROM jobs")
        numbers = [number for (number,) in self.rows("SELECT number FROM jobs ORDER BY number")]
        accepted = [id for writer in self.writers for id in writer.accepted]
        assert sorted(id for id, _, _ in jobs) == sorted(accepted), "no job is lost, and none is there twice"
        assert all(result == text.upper() for _, text, result in jobs)
        stored = self.stored()
        # The numbers have a gap for each job that was sent twice.
        assert sorted(one.job for one in stored) == numbers, "each job is done once"
        for one in stored:
            assert one.member == one.owner and one.generation == one.newest, (
                f"not by the owner of its shard at that moment: {one}"
            )
        for shard in SHARDS:
            of_shard = [one.job for one in stored if one.shard == shard]
            assert of_shard == sorted(of_shard), "the jobs of a shard are done in order"
        owned: dict[int, list[int]] = {}
        for generation, shard in self.rows("SELECT generation, shard FROM owners"):
            owned.setdefault(generation, []).append(shard)
        assert all(sorted(shards) == list(SHARDS) for shards in owned.values()), "a shard has one owner"

    # writers

    @contextmanager
    def writing(self, seed: int, writers: int = 3) -> Iterator[None]:
        """Jobs come all the time, some twenty a second from each writer. At the end all jobs have their results."""
        self.writers = [Writer(self, number, seed) for number in range(writers)]
        for one in self.writers:
            one.start()
        try:
            yield
        finally:
            for one in self.writers:
                one.stopped = True
            for one in self.writers:
                one.join(PATIENCE_S)
        assert not any(one.is_alive() for one in self.writers)
        open_jobs = "SELECT count(*) FROM jobs WHERE result IS NULL"
        eventually(lambda: self.rows(open_jobs) == [(0,)], f"open jobs: {self.rows(open_jobs)}, {self.owners()}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self._workers):
            self.end(name, signal.SIGKILL)
        self.server.kill()


class Writer(threading.Thread):
    """Adds jobs, one after another. Repeats each until it is accepted."""

    def __init__(self, group: Group, number: int, seed: int) -> None:
        super().__init__(name=f"writer {number}", daemon=True)
        self.accepted: list[str] = []
        self.stopped = False
        self._group = group
        self._number = number
        self._rng = random.Random(seed + number)

    def run(self) -> None:
        while not self.stopped:
            id = f"{self._number}-{len(self.accepted)}"
            self._add(id, f"key {self._rng.randrange(40)}")
            self.accepted.append(id)
            time.sleep(self._rng.uniform(0, 0.1))

    def _add(self, id: str, key: str) -> None:
        while True:
            try:
                self._group.ask("jobs", id=id, key=key, text=f"text of {id}")
                return
            except OSError:  # the coordinator was killed
                time.sleep(0.05)


@pytest.fixture
def group(daemon: Daemon, runtime_dir: Path) -> Iterator[Group]:
    with Group(runtime_dir / "app") as made:
        yield made


# real workers ---------------------------------------------------------------------------------------------------------


@pytest.mark.long
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
        group.wait_stored(20)  # work goes on without the daemon
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


@pytest.mark.long
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "joins", [pytest.param(False, marks=pytest.mark.long), True], ids=["nobody joins", "one joins"]
)
def test_a_worker_that_dies_while_the_daemon_is_away_is_removed_when_the_daemon_is_back(
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
        time.sleep(OUTAGE_S)  # until the worker's session and the rebalance have ended unnoticed
        daemon.start()
        group.wait_shared(*("ac" if joins else "a"), after=after)
    group.check()


# members that do what no worker does ----------------------------------------------------------------------------------


class Member:
    """A member in this process. It does one thing at a time."""

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
        """Ask for the shards of this member. If it is the leader, it assigns all shards to itself."""
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
    """The members join together."""
    waiting: list[Future[int]] = [pool.submit(member.join) for member in members]
    assert [one.result() for one in waiting] == [Errors.NONE] * len(members)


@pytest.mark.long
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
    assert old.commit(1, "FIRST") == Errors.NONE == old.commit(1, "again"), (
        "a commit may be repeated, because its answer may be lost"
    )
    joined(pool, new)  # `old` sends no heartbeat
    assert (new.generation, new.members) == (old.generation + 1, ["new"])
    assert old.commit(2, "late") == Errors.ILLEGAL_GENERATION, "the shards are nobody's yet"
    assert new.sync() == Errors.NONE and new.shards == list(SHARDS)
    assert old.commit(2, "late") == Errors.ILLEGAL_GENERATION
    assert old.heartbeat() == Errors.UNKNOWN_MEMBER_ID
    old.generation = new.generation
    assert old.commit(2, "late") == Errors.ILLEGAL_GENERATION, "the old member owns nothing in this generation"
    assert new.poll() == [(2, "second")] and new.commit(2, "SECOND") == Errors.NONE
    results = group.rows("SELECT result, member, generation FROM jobs ORDER BY number")
    assert results == [("FIRST", "old", new.generation - 1), ("SECOND", "new", new.generation)]


@pytest.mark.long
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


@pytest.mark.long
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


@pytest.mark.long
def test_a_rebalance_whose_generation_could_not_be_stored_is_begun_again(
    group: Group, pool: ThreadPoolExecutor
) -> None:
    member = Member(group, "a")
    group.change("CREATE TRIGGER full BEFORE INSERT ON generations BEGIN SELECT RAISE(ABORT, 'no space'); END")
    assert member.join() == Errors.REBALANCE_IN_PROGRESS
    group.change("DROP TRIGGER full")
    joined(pool, member)
    assert member.sync() == Errors.NONE


@pytest.mark.long
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
