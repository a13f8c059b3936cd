"""The base of a link, which all its parts use: lock, clock, flags, protocol, log, and the refusal of a closed link."""

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
    """A link as its parts know it. It derives from Line because the hot path reads the lock, the clock and the flags.

    No part may keep a reference to the lock: a fork and the end of the process replace the lock.
    """

    def __init__(self, protocol: Protocol, now_ns: Callable[[], int]) -> None:
        super().__init__(now_ns)
        self.protocol = protocol
        self.why_closed = "close() was called"
        self.is_left = False  # its client makes another link: see Lazy.leave()
        self.ends_with_process = False  # the process is ending: see process_end.py
        self.has_no_thread = False  # the caller makes the passes that a thread of the link would make

    def check_open(self) -> None:
        """Raises ClosedError if the link issues no more commands."""
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
        """Let passes go on for `seconds` at the end of the process. Without a thread or loop, make passes here."""
        native.sleep(seconds)

    def complain(self, what: str, error: BaseException | None = None) -> None:
        """Log an error that no caller can get."""
        logger.warning("timerd client: %s", what, exc_info=error)


class Use:
    """A client and its purgatories share this object; nothing else refers to it. When it is freed, the link may end."""

    __slots__ = ("__weakref__",)


class Users:
    """Whether the link still has users: clients and purgatories."""

    def __init__(self) -> None:
        self._use: weakref.ref[Use] | None = None

    def begin(self, on_end: Callable[[], None] | None = None) -> Use:
        """The caller keeps the result while it uses the link. `on_end` is called when it is freed, in any thread."""
        made = Use()
        self._use = weakref.ref(made, None if on_end is None else lambda _: on_end())
        return made

    @property
    def are_gone(self) -> bool:
        """Whether there was a user, and none is left."""
        return self._use is not None and self._use() is None
