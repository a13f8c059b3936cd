"""The application of examples/worker_group: its coordinator, its workers, and writers that give them jobs.

with Group(directory) as group, group.writing(seed):    # writers add jobs all the time
    group.start("a", "b")
    after = group.wait_shared("a", "b")                 # two workers share all shards: kill something now
    ...
group.check()                                           # at the end: each job once, and in order
"""

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
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.request import Request, urlopen

from patience import PATIENCE_S, eventually
from servers import Server
from trees import ROOT

SESSION_S, REBALANCE_S, INITIAL_S = 2.0, 4.0, 0.5
TIMES = {"GROUP_SESSION_S": SESSION_S, "GROUP_REBALANCE_S": REBALANCE_S, "GROUP_INITIAL_S": INITIAL_S}
SHARDS = range(12)
# Each storing of a result, as it happens: what the application's table alone would hide.
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
    owner: str | None  # of the shard, in the result's generation


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
        """A signal that does not end a worker."""
        self._workers[name].send_signal(number)

    def end(self, name: str, number: signal.Signals) -> int:
        """End a worker by a signal; its exit status."""
        worker = self._workers.pop(name)
        worker.send_signal(number)
        return worker.wait(PATIENCE_S)

    def ended(self) -> list[str]:
        """The workers that have ended by themselves, with what they have logged."""
        return [f"{name}: {self.log(name)}" for name, worker in self._workers.items() if worker.poll() is not None]

    def log(self, name: str) -> str:
        return (self._directory / f"worker-{name}.log").read_text()

    def kill_coordinator(self) -> None:
        """SIGKILL it. Its server starts another one."""
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
        """Until these share all shards evenly, in a generation after that one; which generation it is."""

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
        """Until so many further results are stored."""
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
        """All jobs that were accepted are done, each once and in order, by who owned the shard at that moment."""
        jobs = self.rows("SELECT id, text, result FROM jobs")
        numbers = [number for (number,) in self.rows("SELECT number FROM jobs ORDER BY number")]
        accepted = [id for writer in self.writers for id in writer.accepted]
        assert sorted(id for id, _, _ in jobs) == sorted(accepted), "no job is lost, and none is there twice"
        assert all(result == text.upper() for _, text, result in jobs)
        stored = self.stored()
        assert sorted(one.job for one in stored) == numbers, "each is done once"  # an id that came twice left a gap
        for one in stored:
            assert one.member == one.owner and one.generation == one.newest, f"by its owner at that moment: {one}"
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
        """Jobs come all the time, some twenty a second from each writer. At the end all of them have their results."""
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
    """Adds jobs, one after another, each until it was accepted."""

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
