"""What the named operations share: the lock of their owner, and an end although timerd cannot say how they ended."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from timerd_client import DelayedOperation
from timerd_client.errors import ClosedError

Lock = AbstractContextManager[Any]


class NamedOperation(DelayedOperation):
    """A delayed operation that always ends, unless it is cancelled or its client is closed.

    The daemon may be lost until a second after the deadline, or refuse the operation (`error` says why). Both end as an
    expired operation does: whoever waits for the answer gets one.
    """

    def __init__(self, lock: Lock | None) -> None:
        super().__init__(lock=lock)

    def on_error(self) -> None:
        if not isinstance(self.error, ClosedError):
            self.on_complete()
            self.on_expiration()
