"""The base of the named operations: they use their owner's lock, and end even if their outcome is not known."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any, Self

from timerd_client import DelayedOperation, Purgatory
from timerd_client.errors import ClosedError, InvalidValueError

Lock = AbstractContextManager[Any]


def threaded(purgatory: Purgatory) -> Purgatory:
    """The purgatory, if it belongs to a threaded client. Raises InvalidValueError otherwise."""
    if not isinstance(purgatory, Purgatory):
        raise InvalidValueError(
            f"purgatory={purgatory!r}: give a threaded client, such as td.client(), or a purgatory of it; for asyncio "
            "there are no named operations: derive from td.aio.DelayedOperation"
        )
    return purgatory


class NamedOperation(DelayedOperation):
    """A delayed operation that always ends, unless it is cancelled or its client is closed.

    The daemon may be lost until a second after the deadline, or refuse the operation (`error` says why). In both cases
    the operation ends like an expired operation, so its request gets an answer.
    """

    def __init__(self, lock: Lock | None) -> None:
        super().__init__(lock=lock)
        self._watched = False

    def watch(self, purgatory: Purgatory, *, timeout: float) -> Self:
        """Answer at once, or begin to wait, for `timeout` seconds at most. Returns at once. Call it only once."""
        raise NotImplementedError

    def once(self, purgatory: Purgatory) -> None:
        """Note that watch() was called. Raises InvalidValueError the second time, and for an asyncio client."""
        threaded(purgatory)
        if self._watched:
            raise InvalidValueError(f"{self!r} was watched before: make a new one")
        self._watched = True

    def begin(self, purgatory: Purgatory, keys: str | Iterable[str], timeout: float) -> None:
        """Watch these keys, after once()."""
        try:
            purgatory.try_complete_else_watch(self, keys, timeout=timeout)
        except BaseException:
            self._watched = self.done()  # watch() may be called again
            raise

    def on_error(self) -> None:
        if not isinstance(self.error, ClosedError):
            self.on_complete()
            self.on_expiration()
