"""The base of a link, which all its parts use: lock, clock, flags, protocol, log, and the refusal of a closed link."""

from __future__ import annotations

import logging
import re
import weakref
from collections.abc import Callable
from typing import NoReturn

from timerd_client.hot import Line
from timerd_client.protocol.protocol import Protocol
from timerd_shm.declare.errors import ClosedError
from timerd_wire import native

logger = logging.getLogger("timerd_client")
AGAIN_NS = 10_000_000_000  # a complaint of one kind is logged once in this time
KINDS_MAX = 64


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
        self.has_no_thread = False  # a waiting caller receives and sends, as a thread of the link would do
        self.complaints = Complaints()

    def check_open(self, *, in_doubt: bool = False) -> None:
        """Raises ClosedError if the link issues no more commands. `in_doubt`: the call has issued some."""
        if self.sealed:
            self.refuse_closed(in_doubt=in_doubt)

    def refuse_closed(self, *, in_doubt: bool = False) -> NoReturn:
        """Raises ClosedError."""
        why = f"this client is closed: {self.why_closed}; make another one, or use td.client()"
        raise ClosedError(why, in_doubt=in_doubt)

    def seal_because(self, why: str) -> None:
        """Refuse all further calls, for this reason."""
        self.why_closed = why
        self.sealed = self.closed = True

    def drive(self, seconds: float) -> None:
        """At the end of the process, receive and send for `seconds`: by the link's thread or loop, otherwise here."""
        native.sleep(seconds)

    def complain(self, what: str, error: BaseException | None = None, *, often: bool = False) -> None:
        """Log an error that no caller can get. `often`: thousands of this kind may come, see Complaints."""
        line = self.complaints.line(what, self.now_ns()) if often else what
        if line:
            logger.warning("timerd client: %s", line, exc_info=error)


class Complaints:
    """Complaints for the log. Those of one kind make one line in 10 s.

    For example, the daemon refuses 7,000 commands because the arena is full. The log shows the first refusal at once,
    and 10 s later the next one, "and 6,998 more of this kind before it".
    """

    def __init__(self) -> None:
        self._kinds: dict[str, tuple[int, int, str]] = {}  # kind -> (when it was logged, how many followed, the last)

    def line(self, what: str, now_ns: int) -> str:
        """The line for a complaint; empty if it is only counted."""
        kind = re.sub(r"\d+", "#", what)
        logged_ns, more, _ = self._kinds.pop(kind, (now_ns - AGAIN_NS, 0, ""))
        if now_ns - logged_ns < AGAIN_NS:
            self._kinds[kind] = logged_ns, more + 1, what
            return ""
        if len(self._kinds) == KINDS_MAX:
            del self._kinds[next(iter(self._kinds))]
        self._kinds[kind] = now_ns, 0, ""
        return f"{what} (and {more:,} more of this kind before it)" if more else what

    def rest(self) -> list[str]:
        """The last complaint of each kind that was counted and not logged. From now on they are forgotten."""
        kinds, self._kinds = self._kinds, {}
        return [
            f"{what} (and {more - 1:,} more of this kind before it)" if more > 1 else what
            for _, more, what in kinds.values()
            if more
        ]


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
