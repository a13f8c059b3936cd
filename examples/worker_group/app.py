"""A group of workers that shares twelve shards of jobs, by Kafka's group protocol. This is the group's coordinator.

    POST /jobs       {"id", "key", "text"}: 201, or 200 if a job has this id already

    POST /join       {"member"}: {"error", "generation", "members", "shards"}, when all known members have joined
    POST /sync       {"member", "generation", "assignment"}: {"error", "shards"}, when the leader has assigned shards
    POST /heartbeat  {"member", "generation"}: {"error"}
    POST /poll       {"member", "generation", "shards"}: {"jobs"}, as soon as there are any, else after a while
    POST /commit     {"member", "generation", "job", "result"}: {"error"}
    POST /leave      {"member"}: {"error"}

worker.py is a member. Jobs with the same key are in one shard. Each job is done exactly once, and the jobs of a shard
are done in order. A job may be begun twice, but it has one result: a commit names its generation, and is refused if a
later generation has begun, or if the shard belongs to another member in this generation. One transaction checks this
and stores the result. So the table decides, even if a member or the coordinator was killed or stopped. A member that
got no answer asks again.

The list of members is in memory alone. A restarted coordinator knows no member, so all members join again.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any

from flask import Flask, Response, abort, jsonify, request

import timerd as td
from timerd_client.operations import DelayedHeartbeat, DelayedJoin, DelayedSync, Errors, join_key, sync_key
from timerd_client.operations.join import Joined
from timerd_client.web import WSGI

DATABASE = os.environ.get("GROUP_DATABASE", "group.sqlite")
SESSION_S = float(os.environ.get("GROUP_SESSION_S", "10"))  # a member without a heartbeat for this long is removed
REBALANCE_S = float(os.environ.get("GROUP_REBALANCE_S", "60"))  # a rebalance waits this long for the known members
INITIAL_S = float(os.environ.get("GROUP_INITIAL_S", "3"))  # an empty group waits this long for others to start
WAIT_S = REBALANCE_S + 2.0  # a rebalance that takes longer has lost its DelayedJoin
SHARDS = 12
NAME_MAX = 100  # bytes of a member's name
GROUP = "workers"
JOIN, SYNC = join_key(GROUP), sync_key(GROUP)

app = Flask(__name__, static_folder=None)
client = td.client()  # it connects at its first use


# the table, which decides ---------------------------------------------------------------------------------------------


def database() -> closing[sqlite3.Connection]:
    """A connection for a few statements, each of which is a transaction."""
    return closing(sqlite3.connect(DATABASE, timeout=30, isolation_level=None))


with database() as at_start:
    at_start.executescript("""
        PRAGMA journal_mode = WAL;
        CREATE TABLE IF NOT EXISTS jobs (
            number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, shard INTEGER NOT NULL,
            text TEXT NOT NULL, result TEXT, member TEXT, generation INTEGER);
        CREATE INDEX IF NOT EXISTS open_jobs ON jobs (shard, number) WHERE result IS NULL;
        CREATE TABLE IF NOT EXISTS generations (number INTEGER PRIMARY KEY AUTOINCREMENT);
        CREATE TABLE IF NOT EXISTS owners (
            generation INTEGER NOT NULL, shard INTEGER NOT NULL, member TEXT NOT NULL, PRIMARY KEY (generation, shard));
    """)


def begin_generation() -> int:
    """Begin the next generation. From now on no result of an earlier generation is stored. Returns its number."""
    with database() as connection:
        return int(connection.execute("INSERT INTO generations DEFAULT VALUES").lastrowid or 0)


def store_owners(generation: int, assignment: Mapping[str, Sequence[int]]) -> None:
    """Store the owners of all shards of a generation, or of none."""
    rows = [(generation, shard, member) for member, shards in assignment.items() for shard in shards]
    with database() as connection, connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany("INSERT INTO owners (generation, shard, member) VALUES (?, ?, ?)", rows)


def open_jobs(shards: Sequence[int]) -> list[tuple[int, str]]:
    """Jobs of these shards without a result, in order: number and text."""
    these = ", ".join("?" * len(shards))
    with database() as connection:
        return connection.execute(
            f"SELECT number, text FROM jobs WHERE result IS NULL AND shard IN ({these}) ORDER BY number LIMIT 10",
            shards,
        ).fetchall()


def store_result(commit: Mapping[str, Any]) -> bool:
    """Store a result, if this member may. Returns whether the job has it now. A repeated commit changes nothing."""
    with database() as connection:
        connection.execute(
            "UPDATE jobs SET result = :result, member = :member, generation = :generation"
            " WHERE number = :job AND result IS NULL AND :generation = (SELECT max(number) FROM generations)"
            " AND :member = (SELECT member FROM owners WHERE generation = :generation AND shard = jobs.shard)",
            commit,
        )
        stored = "SELECT 1 FROM jobs WHERE number = :job AND member = :member AND generation = :generation"
        return connection.execute(stored, commit).fetchone() is not None


# the group ------------------------------------------------------------------------------------------------------------


class Coordinator:
    """The members of the group. When a member comes or goes, all join again, and the next generation begins."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._sessions: dict[str, DelayedHeartbeat] = {}  # of the known members
        self._generation = 0
        self._joined: list[str] = []  # members of this generation; in a rebalance, of the next. The first leads
        self._assignment: Mapping[str, Sequence[int]] | None = None  # None: the leader has not decided yet
        self._synced: set[str] = set()  # the members that have got their shards
        self._rebalances = False
        self._overdue = 0.0  # a rebalance that still runs at this time has lost its DelayedJoin
        self._join: DelayedJoin | None = None
        self._sync: DelayedSync | None = None

    def join(self, member: str) -> dict[str, Any]:
        """Wait for the next generation."""
        with self._lock:
            before = self._generation
            if self._rebalances and time.monotonic() < self._overdue:
                self._add(member)
                client.fire(JOIN)
            else:
                self._prepare_rebalance(member)
        client.wait_for(lambda: self._generation > before, JOIN, timeout=WAIT_S, unavailable="poll")
        with self._lock:
            error = self.check(member, self._generation)
            return {"error": error, "generation": self._generation, "members": list(self._joined), "shards": SHARDS}

    def sync(self, member: str, generation: int, assignment: Mapping[str, Sequence[int]]) -> dict[str, Any]:
        """Wait until the leader, which is the first member, has assigned the shards."""
        with self._lock:
            if self.check(member, generation) is Errors.NONE:
                self._sessions[member].rebalancing(WAIT_S + SESSION_S)  # while it waits it sends no heartbeats
                if member == self._joined[0] and self._assignment is None:
                    store_owners(generation, assignment)
                    self._assignment = assignment
                    client.fire(SYNC)

        def decided() -> bool:
            return self._assignment is not None or self.check(member, generation) is not Errors.NONE

        client.wait_for(decided, SYNC, timeout=REBALANCE_S, unavailable="poll")
        with self._lock:
            error = self.heartbeat(member, generation)
            if error is not Errors.NONE or self._assignment is None:
                return {"error": error or Errors.REBALANCE_IN_PROGRESS}
            self._synced.add(member)
            client.fire(SYNC)
            return {"error": Errors.NONE, "shards": self._assignment.get(member, [])}

    def heartbeat(self, member: str, generation: int) -> Errors:
        """Note that the member lives. Returns what `check` returns."""
        with self._lock:
            if member in self._sessions:
                self._sessions[member].heartbeat()
            return self.check(member, generation)

    def check(self, member: str, generation: int) -> Errors:
        """Errors.NONE if the member may go on with its work; otherwise the reason why it must join again."""
        with self._lock:
            if member not in self._sessions:
                return Errors.UNKNOWN_MEMBER_ID
            if generation != self._generation:
                return Errors.ILLEGAL_GENERATION
            return Errors.REBALANCE_IN_PROGRESS if self._rebalances else Errors.NONE

    def leave(self, *members: str) -> None:
        """Remove these members. The other members share the removed members' shards."""
        with self._lock:
            left = [self._sessions.pop(member) for member in members if member in self._sessions]
            for session in left:
                session.leave()
            if self._rebalances:
                self._joined = [member for member in self._joined if member in self._sessions]
                client.fire(JOIN)  # perhaps the rebalance waited only for these members
            elif left:
                self._prepare_rebalance()

    def _prepare_rebalance(self, *members: str) -> None:
        """Wait until all known members have joined again. `members` have joined already."""
        for operation in (self._join, self._sync):
            if operation is not None:
                operation.cancel()
        if not self._rebalances:
            self._rebalances, self._joined = True, []
        delay = 0.0 if self._sessions else INITIAL_S
        self._overdue = 0.0  # if an error ends this method, the next member that joins begins the rebalance again
        for session in self._sessions.values():
            session.heartbeat()
        for member in members:
            self._add(member)
        self._join = DelayedJoin(
            GROUP, lambda: list(self._sessions), lambda: list(self._joined), self._begin, initial_delay=delay
        ).watch(client, timeout=REBALANCE_S)
        self._overdue = time.monotonic() + WAIT_S
        client.fire_many([JOIN, SYNC])  # wakes the members that wait for jobs or for an assignment

    def _add(self, member: str) -> None:
        """Add a member that has joined. It sends no heartbeats while it waits for the others."""
        session = self._sessions.get(member)
        if session is None or not session.is_alive:
            session = DelayedHeartbeat(client, GROUP, member, SESSION_S, lambda: self._expired(member))
            self._sessions[member] = session
        session.rebalancing(WAIT_S + SESSION_S)
        if member not in self._joined:
            self._joined.append(member)

    def _begin(self, _: Joined) -> None:
        """Begin the next generation with the members that have joined. The others are removed."""
        with self._lock:
            for member in [member for member in self._sessions if member not in self._joined]:
                self._sessions.pop(member).leave()
            self._generation = generation = begin_generation()
            self._assignment, self._synced = None, set()
            self._rebalances = False
            for session in self._sessions.values():
                session.heartbeat()
            self._sync = DelayedSync(
                GROUP,
                generation,
                self._joined,
                lambda: self._synced,
                lambda: self._generation,
                lambda missing: self.leave(*missing),
            ).watch(client, timeout=REBALANCE_S)
            client.fire(JOIN)

    def _expired(self, member: str) -> None:
        """Remove a member that has sent no heartbeat for a session timeout."""
        with self._lock:
            session = self._sessions.get(member)
            if session is not None and not session.is_alive:  # otherwise it has joined again
                self.leave(member)


coordinator = Coordinator()


# the routes -----------------------------------------------------------------------------------------------------------


def is_text(value: Any, least: int = 0, most: int = 1_000_000) -> bool:
    """Whether it is a text of `least` to `most` bytes in UTF-8. Half of a surrogate pair has no bytes in UTF-8."""
    try:
        return isinstance(value, str) and least <= len(value.encode()) <= most
    except UnicodeEncodeError:
        return False


def is_number(value: Any, most: int = 2**63 - 1) -> bool:
    return type(value) is int and 0 <= value <= most


def are_shards(value: Any) -> bool:
    return isinstance(value, list) and all(is_number(shard, SHARDS - 1) for shard in value)


def is_assignment(value: Any) -> bool:
    """Whether it is an object of lists of shards, in which each shard belongs to at most one member."""
    if not isinstance(value, dict) or not all(map(are_shards, value.values())):
        return False
    shards = [shard for own in value.values() for shard in own]
    return len(shards) == len(set(shards)) and all(map(is_text, value))


FIELDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "member": (lambda value: is_text(value, 1, NAME_MAX), f"a text of 1 to {NAME_MAX} bytes"),
    "assignment": (is_assignment, f"an object: for each member its shards, each 0 to {SHARDS - 1} and of one member"),
    "shards": (are_shards, f"a list of numbers, 0 to {SHARDS - 1}"),
    **dict.fromkeys(("generation", "job"), (is_number, "a number")),
    **dict.fromkeys(("id", "key", "text", "result"), (is_text, "a text")),
}


def asked(*names: str) -> dict[str, Any]:
    """The fields of the request. The answer is 400 if a field is wrong or missing, or if the request has others."""
    body = request.get_json()
    if not isinstance(body, dict) or set(body) != set(names):
        abort(400, f"the body is an object with {', '.join(names)}")
    for name in names:
        is_right, what = FIELDS[name]
        if not is_right(body[name]):
            abort(400, f"{name}={body[name]!r:.100}: {what}")
    return body


@app.post("/jobs")
def add_job() -> tuple[Response, int]:
    """Store the row first, then fire the event: so a woken member finds the row."""
    job = asked("id", "key", "text")
    shard = zlib.crc32(job["key"].encode()) % SHARDS
    with database() as connection:
        stored = connection.execute(
            "INSERT OR IGNORE INTO jobs (id, shard, text) VALUES (?, ?, ?)", (job["id"], shard, job["text"])
        )
    client.fire(f"jobs/{shard}")  # also for a repeated post: the process may have died before this line the first time
    return Response(), 201 if stored.rowcount else 200


@app.post("/join")
def join() -> Response:
    return jsonify(coordinator.join(**asked("member")))


@app.post("/sync")
def sync() -> Response:
    return jsonify(coordinator.sync(**asked("member", "generation", "assignment")))


@app.post("/heartbeat")
def heartbeat() -> Response:
    return jsonify(error=coordinator.heartbeat(**asked("member", "generation")))


@app.post("/poll")
def jobs() -> Response:
    """Wait for jobs. A rebalance ends the wait, too."""
    poll = asked("member", "generation", "shards")

    def jobs_or_error() -> list[tuple[int, str]] | Errors:
        return open_jobs(poll["shards"]) or coordinator.check(poll["member"], poll["generation"])

    keys = [JOIN, *(f"jobs/{shard}" for shard in set(poll["shards"]))]
    found = client.wait_for(jobs_or_error, keys, timeout=SESSION_S / 3, unavailable="poll")
    return jsonify(jobs=[] if isinstance(found, Errors) else found)


@app.post("/commit")
def commit() -> Response:
    """Store a result, even if a restarted coordinator does not know the member: the member's generation goes on."""
    return jsonify(
        error=Errors.NONE if store_result(asked("member", "generation", "job", "result")) else Errors.ILLEGAL_GENERATION
    )


@app.post("/leave")
def leave() -> Response:
    coordinator.leave(asked("member")["member"])
    return jsonify(error=Errors.NONE)


@app.get("/pid")
def pid() -> str:
    return str(os.getpid())


application = WSGI(app)
