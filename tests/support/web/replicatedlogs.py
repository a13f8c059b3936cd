"""Writers and readers of examples/replicated_log, and what they have seen.

with Users(port, seed) as users:
    users.wait_written(100)                 # kill something now
    ...
    users.end()
users.check(directory)
"""

from __future__ import annotations

import http.client
import json
import threading
from pathlib import Path
from typing import Any, Self

from patience import PATIENCE_S, eventually

WRITERS = READERS = 3
TIMEOUT_S = 20.0
REPLICAS = ("0", "1", "2")


class Users:
    """Each writer writes one record after the other, and again until it is answered. Each reader polls without end."""

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
        """So many records more are written."""
        wanted = len(self.written) + more
        eventually(lambda: len(self.written) >= wanted)

    def roles(self) -> dict[str, dict[str, Any]]:
        """What each replica says of itself, by its number. Several requests are needed to meet all of them."""
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
        """Each answered record is there once, at its offset; all readers and replicas have one sequence."""
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
