"""examples/replicated_log: three replicas in three workers; leader, follower and daemon are killed under load."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from support.real.daemons import Daemon
from support.real.patience import PATIENCE_S, eventually
from support.real.trees import ROOT
from support.web.servers import Server

WRITERS = READERS = 3
TIMEOUT_S = 20.0
REPLICAS = ("0", "1", "2")


class Users:
    """Each writer repeats each of its records until the write is answered. Each reader polls without end."""

    def __init__(self, port: int, seed: int) -> None:
        self._port = port
        self._seed = seed
        self._over = threading.Event()
        self._all_written = threading.Event()
        self._writers = [threading.Thread(target=self._write, args=(number,)) for number in range(WRITERS)]
        self._readers = [threading.Thread(target=self._read, args=(number,)) for number in range(READERS)]
        self.written: dict[str, int] = {}  # offset by id, as it was answered
        self.read: list[list[dict[str, Any]]] = [[] for _ in range(READERS)]
        self.wrong: list[str] = []
        self.asked_again = 0

    def __enter__(self) -> Self:
        for thread in (*self._writers, *self._readers):
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._all_written.set()
        self._over.set()
        for thread in (*self._writers, *self._readers):
            thread.join(PATIENCE_S)

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Status and answer; status 0: there was no answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=TIMEOUT_S)
        try:
            connection.request(method, path, json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            content = answer.read()
            return answer.status, json.loads(content) if answer.status < 300 else None
        except (OSError, http.client.HTTPException):
            return 0, None
        finally:
            connection.close()

    def _write(self, number: int) -> None:
        count = 0
        while not self._all_written.is_set():
            identity = f"{self._seed}/{number}/{count}"
            status, answer = self.ask("POST", "/log", {"id": identity, "text": f"text of {identity}"})
            if status in (200, 201):
                self.written[identity] = answer["offset"]
                count += 1
            elif status in (0, 500, 502, 503, 504):
                self.asked_again += 1
                self._over.wait(0.05)
            else:
                self.wrong.append(f"POST: {status}")

    def _read(self, number: int) -> None:
        seen = self.read[number]
        while not self._over.is_set():
            status, answer = self.ask("GET", f"/log?offset={len(seen)}&max_wait=1")
            if status == 200:
                for record in answer["records"]:
                    if record["offset"] != len(seen):
                        self.wrong.append(f"a reader expected offset {len(seen)}: {record}")
                    seen.append(record)
            else:
                self._over.wait(0.05)

    def wait_written(self, more: int) -> None:
        """Wait until `more` further records are written."""
        wanted = len(self.written) + more
        eventually(lambda: len(self.written) >= wanted)

    def roles(self) -> dict[str, dict[str, Any]]:
        """Each replica's own answer, by its number. Several requests are needed to meet all of them."""
        found: dict[str, dict[str, Any]] = {}

        def all_met() -> bool:
            status, answer = self.ask("GET", "/pid")
            if status == 200:
                found[answer["replica"]] = answer
            return len(found) == len(REPLICAS)

        eventually(all_met)
        return found

    def role(self, *, leader: bool) -> dict[str, Any]:
        """The leader, or a follower."""
        found: list[dict[str, Any]] = []

        def is_found() -> bool:
            roles = self.roles()
            found[:] = [role for role in roles.values() if role["leads"] is leader]
            return bool(found) and sum(role["leads"] for role in roles.values()) == 1

        eventually(is_found)
        return found[0]

    def end(self) -> None:
        """The writers end, and all readers read what was written."""
        self._all_written.set()
        for thread in self._writers:
            thread.join(PATIENCE_S)
        eventually(lambda: all(len(seen) > max(self.written.values()) for seen in self.read))

    def check(self, directory: Path) -> None:
        """Each answered record is there once, at its offset; all readers and replicas have the same sequence."""
        assert not self.wrong
        longest = max(self.read, key=len)
        for seen in self.read:
            assert seen == longest[: len(seen)]
        ids = [record["id"] for record in longest]
        assert len(ids) == len(set(ids)), "a record comes twice"
        for identity, offset in self.written.items():
            assert longest[offset] == {"offset": offset, "id": identity, "text": f"text of {identity}"}
        logs = [(directory / f"replica-{name}.log").read_text().splitlines() for name in REPLICAS]
        for log in logs:
            assert log == max(logs, key=len)[: len(log)], "the logs differ"
            assert len(set(log)) == len(log)


@pytest.mark.long
@pytest.mark.timeout(240)
def test_no_written_record_is_lost_when_leader_follower_and_daemon_are_killed(
    make_daemon: Callable[..., Daemon], runtime_dir: Path, seed: int
) -> None:
    daemon = make_daemon()
    directory = runtime_dir / "app"
    shutil.copytree(ROOT / "examples/replicated_log", directory)
    flags = ("--worker-class=gthread", "--threads=50")
    with (
        Server.gunicorn("app:application", directory, *flags, workers=3, hooks=False, LOG_WRITE_S="2") as server,
        Users(server.port, seed) as users,
    ):
        for _ in range(3):
            users.wait_written(50)
            leader = users.role(leader=True)
            (directory / f"replica-{leader['replica']}.log").unlink()  # its disk is lost, too
            os.kill(leader["pid"], signal.SIGKILL)
        users.wait_written(50)
        os.kill(users.role(leader=False)["pid"], signal.SIGKILL)
        users.wait_written(50)
        daemon.kill()
        daemon.start()
        users.wait_written(50)
        daemon.kill()
        os.kill(users.role(leader=True)["pid"], signal.SIGKILL)
        daemon.start()
        users.wait_written(50)
        users.end()

        def are_equal() -> bool:
            return len({(directory / f"replica-{name}.log").read_bytes() for name in REPLICAS}) == 1

        eventually(are_equal)
        users.check(directory)
        assert "was sent SIGKILL" in server.log


def status(server: Server, path: str, body: bytes | None = None) -> int:
    """The status of the answer to a GET, or to a POST if a body is given."""
    url = f"http://127.0.0.1:{server.port}{path}"
    try:
        with urlopen(Request(url, body, {"Content-Type": "application/json"}), timeout=PATIENCE_S) as answer:
            return int(answer.status)
    except HTTPError as error:
        return error.code


@pytest.mark.timeout(120)
def test_wrong_requests_and_strangers_are_refused_and_a_log_may_begin_anew(
    make_daemon: Callable[..., Daemon], runtime_dir: Path
) -> None:
    make_daemon()
    directory = runtime_dir / "app"
    shutil.copytree(ROOT / "examples/replicated_log", directory)
    flags = ("--worker-class=gthread", "--threads=20")
    record = b'{"id": "a", "text": "b"}'
    with Server.gunicorn("app:application", directory, *flags, workers=3, hooks=False, LOG_WRITE_S="2") as server:
        eventually(lambda: status(server, "/log", record) in (200, 201))
        for _ in range(3):  # the kernel chooses the worker of each request
            assert status(server, "/log?max_wait=0") == 200
            for wrong in ("offset=-2", "offset=99999999999999999999", "max_wait=nan", "max_wait=inf", "max_wait=-1"):
                assert status(server, f"/log?{wrong}") == 400
            for body in (b"[]", b"null", b"{}", b'{"id": 1, "text": "b"}', b'{"id": "a"}', b'{"id": "a", "text": NaN}'):
                assert status(server, "/log", body) == 400
            assert status(server, "/replica?replica=1&epoch=1&offset=0") == 403
        assert (directory / "leader.json").stat().st_mode & 0o077 == 0
    for file in (*directory.glob("*.log"), directory / "leader.json"):
        file.unlink()
    with Server.gunicorn("app:application", directory, *flags, workers=1, hooks=False, LOG_WRITE_S="1") as server:
        eventually(lambda: status(server, "/log", record) == 504)
        url = f"http://127.0.0.1:{server.port}/log?max_wait=0"
        with urlopen(url, timeout=PATIENCE_S) as answer:
            assert json.load(answer) == {"records": []}, "no quorum of the new log has the record"
