"""What the parts of a link share: lock, clock and flags, the protocol, the log, and the refusal of a closed link."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from typing import NoReturn

from timerd_client.hot import Line
from timerd_client.protocol.protocol import Protocol
from timerd_shm.declare.errors import ClosedError
from timerd_wire import native

logger = logging.getLogger("timerd_client")


class LinkBase(Line):
    """A link as its parts know it. It derives from Line: its lock, clock and flags are those that the hot path reads.

    No part keeps the lock: a fork and the end of the process replace it.
    """

    def __init__(self, protocol: Protocol, now_ns: Callable[[], int]) -> None:
        super().__init__(now_ns)
        self.protocol = protocol
        self.why_closed = "close() was called"
        self.ends_with_process = False  # the end has begun: see process_end.py
        self.has_no_thread = False  # the caller makes the passes that a thread of the link would make

    def check_open(self) -> None:
        """Raises ClosedError if no more commands are issued."""
        if self.sealed:
            self.refuse_closed()

    def refuse_closed(self) -> NoReturn:
        """Raises ClosedError."""
        raise ClosedError(f"this client is closed: {self.why_closed}; make another one, or use td.client()")

    def seal_because(self, why: str) -> None:
        """Refuse all further calls, for this reason."""
        self.why_closed = why
        self.sealed = self.closed = True

    def drive(self, seconds: float) -> None:
        """The process ends: go on for so long. Where no thread or loop of the link does that, the caller does."""
        native.sleep(seconds)

    def complain(self, what: str, error: BaseException | None = None) -> None:
        """Log what no caller can be given as an error."""
        logger.warning("timerd client: %s", what, exc_info=error)


class Use:
    """What a client and its purgatories share, and nobody else refers to. When it is gone, the link may end."""

    __slots__ = ("__weakref__",)


class Users:
    """Knows whether there are users still."""

    def __init__(self) -> None:
        self._use: weakref.ref[Use] | None = None

    def begin(self, on_end: Callable[[], None] | None = None) -> Use:
        """The caller keeps what is returned for as long as it uses the link. `on_end` is called in any thread."""
        made = Use()
        self._use = weakref.ref(made, None if on_end is None else lambda _: on_end())
        return made

    @property
    def are_gone(self) -> bool:
        """Whether there was a user, and is none any more."""
        return self._use is not None and self._use() is None
