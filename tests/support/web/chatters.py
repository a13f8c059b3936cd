"""Readers and writers of a chat, which try again until they have an answer, as browsers do.

with Chat(port, seed) as chat:              # 12 readers of 3 rooms, 6 writers
    chat.wait_sent(0.5)                     # half of the messages are sent: kill something now
    chat.wait()                             # all writers have their answers, all readers all messages
"""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from typing import Self

from support.real.patience import PATIENCE_S, eventually

ROOMS = ("a", "b", "c")
READERS, WRITERS = 4, 2  # of each room
MESSAGES = 100  # of each writer
ALL = WRITERS * MESSAGES
LATE_S = 4 * PATIENCE_S


class Reader(threading.Thread):
    """Polls a room, and notes the messages that it got."""

    def __init__(self, chat: Chat, room: str) -> None:
        super().__init__(name=f"reader of {room}", daemon=True)
        self.room = room
        self.ids: list[str] = []
        self._chat = chat

    def run(self) -> None:
        last = 0
        while len(self.ids) < ALL and not self._chat.stopped:
            status, body = self._chat.ask("GET", f"/rooms/{self.room}?after={last}")
            if status == 200:
                found = json.loads(body)
                self.ids += [one["id"] for one in found]
                last = found[-1]["number"]


class Writer(threading.Thread):
    """Posts messages to a room, one after another. Each is sent again until it is accepted."""

    def __init__(self, chat: Chat, room: str, number: int, seed: int) -> None:
        super().__init__(name=f"writer {number} of {room}", daemon=True)
        self.room = room
        self.ids = [f"{room}-{number}-{message}" for message in range(MESSAGES)]
        self.sent = 0
        self._chat = chat
        self._rng = random.Random(seed)

    def run(self) -> None:
        for id in self.ids:
            message = json.dumps({"id": id, "text": f"text of {id}"}).encode()
            while self._chat.ask("POST", f"/rooms/{self.room}", message)[0] not in (200, 201):
                if self._chat.stopped:
                    return
            self.sent += 1
            time.sleep(self._rng.uniform(0, 0.02))


class Chat:
    """All readers and writers."""

    def __init__(self, port: int, seed: int, reader: type[Reader] = Reader) -> None:
        self.stopped = False
        self.statuses: dict[int, int] = {}  # status -> number of answers; 0 = no answer came
        self._port = port
        self.readers = [reader(self, room) for room in ROOMS for _ in range(READERS)]
        self.writers = [Writer(self, room, number, seed + number) for room in ROOMS for number in range(WRITERS)]

    def ask(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        """One request, on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=LATE_S)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            status, answer = response.status, response.read()
        except (OSError, http.client.HTTPException):  # the server's worker was killed
            status, answer = 0, b""
        finally:
            connection.close()
        self.statuses[status] = self.statuses.get(status, 0) + 1
        if status not in (200, 201, 204):
            time.sleep(0.05)
        return status, answer

    def wait_sent(self, share: float) -> None:
        """Wait until that share of all messages was sent."""
        wanted = share * len(self.writers) * MESSAGES
        eventually(lambda: sum(one.sent for one in self.writers) >= wanted, f"no progress: {self.statuses}")

    def wait(self) -> None:
        """Wait until all is written and read."""
        end = time.monotonic() + LATE_S
        for one in (*self.writers, *self.readers):
            one.join(max(0.0, end - time.monotonic()))
        missing = {one.name: len(one.ids) for one in self.readers if one.is_alive()}
        assert not missing, f"not all messages came: {missing} of {ALL}; answers: {self.statuses}"

    def check(self) -> None:
        """Nothing is lost, nothing comes twice, and each stream is in order."""
        for room in ROOMS:
            streams = [one.ids for one in self.readers if one.room == room]
            assert all(stream == streams[0] for stream in streams), "readers of one room see different orders"
            for writer in (one for one in self.writers if one.room == room):
                assert [id for id in streams[0] if id in set(writer.ids)] == writer.ids, "a writer's order is not kept"
            assert len(streams[0]) == len(set(streams[0])) == ALL

    def __enter__(self) -> Self:
        for one in (*self.readers, *self.writers):
            one.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped = True
