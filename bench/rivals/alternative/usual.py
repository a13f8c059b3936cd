"""The scripts of scripts.py with redis-py: one pipeline for all calls that are due at one time, and pub/sub."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from .book import Book, Firer, Owner
from .scripts import CHANNEL, FIRE, KEYS, REGISTER, Scripts, address_of, note

LISTEN_S = 0.1


class UsualOwner(Owner):
    """Registers by a pipeline, and listens in a thread."""

    def __init__(self, directory: Path, book: Book) -> None:
        import redis

        super().__init__(directory, book)
        self._client = redis.Redis(unix_socket_path=address_of(directory))
        self._sha = self._client.script_load(REGISTER)
        self._channel = self._client.pubsub(ignore_subscribe_messages=True)
        self._channel.subscribe(CHANNEL)
        self._channel.get_message(timeout=1.0)
        self._closed = False
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def register(self, keys: Sequence[str]) -> None:
        call, payload = self.book.call, self.book.payload
        pipeline = self._client.pipeline(transaction=False)
        for key in keys:
            pipeline.evalsha(self._sha, 2, *KEYS, key, -(-call() // 1_000), payload)
        pipeline.execute()

    def _listen(self) -> None:
        while not self._closed:
            if message := self._channel.get_message(timeout=LISTEN_S):
                note(self.book, message["data"].decode())

    def close(self) -> None:
        self._closed = True
        self._thread.join()
        self._channel.close()
        self._client.close()


class UsualFirer(Firer):
    """Fires by a pipeline."""

    def __init__(self, directory: Path) -> None:
        import redis

        super().__init__(directory)
        self._client = redis.Redis(unix_socket_path=address_of(directory))
        self._sha = self._client.script_load(FIRE)

    def fire(self, keys: Sequence[str], at_ns: Sequence[int]) -> None:
        pipeline = self._client.pipeline(transaction=False)
        for key, at in zip(keys, at_ns, strict=True):
            pipeline.evalsha(self._sha, 2, *KEYS, key, at)
        pipeline.execute()

    def close(self) -> None:
        self._client.close()


class Usual(Scripts):
    """See the module."""

    name = "Redis sorted set + Lua, redis-py"

    def missing(self) -> str:
        from importlib.util import find_spec

        return super().missing() or ("" if find_spec("redis") else "pip install 'timerd[bench]'")

    def owner(self, directory: Path, book: Book) -> Owner:
        return UsualOwner(directory, book)

    def firer(self, directory: Path) -> Firer:
        return UsualFirer(directory)
