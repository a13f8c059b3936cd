"""How a conductor and clients in one process notice each other's end: by connections that are numbers.

A *lifeline* is a client's connection to NAME.live, by whose end the daemon notices the end of the client.
"""

from __future__ import annotations

from collections.abc import Callable

from timerd.clients.liveness import Kind, Sign
from timerd.core import NEVER


class Lifelines:
    """A Liveness whose connections are numbers. It keeps signs until signs() takes them, and watches no process."""

    due_ns = NEVER

    def __init__(self) -> None:
        self.connections: set[int] = set()
        self.came: list[Sign] = []
        self.refused = 0
        self._made = 0

    def connect(self, session: bytes) -> int:
        """A client connects and shows a session. Returns the number of its connection."""
        connection = self.adopt(session)
        self.connections.add(connection)
        return connection

    def cut(self, connection: int, kind: Kind = Kind.ENDED) -> None:
        """Send end of file, or rubbish, on a connection that the daemon has not closed."""
        if connection in self.connections:
            self.connections.remove(connection)
            self.came.append(Sign(connection, kind))

    def adopt(self, session: bytes) -> int:
        self._made += 1
        self.came.append(Sign(self._made, Kind.SHOWN, session))
        return self._made

    def adopted_ended(self, watch: int, *, is_client: bool) -> None:
        self.came.append(Sign(watch, Kind.ENDED if is_client else Kind.BROKEN))

    def pending(self) -> bool:
        """Whether the daemon would be woken."""
        return bool(self.came)

    def signs(self, limit: int, now_ns: int) -> list[Sign]:
        found, self.came = self.came[:limit], self.came[limit:]
        return found

    def watch(self, pid: int) -> int:
        return 0

    def drop(self, watch: int) -> None:
        self.connections.discard(watch)

    def take_refused(self) -> int:
        refused, self.refused = self.refused, 0
        return refused


class Lifeline:
    """The client's side of a lifeline. `lifelines()` returns the daemon's side while a daemon serves, else None."""

    def __init__(self, lifelines: Callable[[], Lifelines | None]) -> None:
        self._lifelines = lifelines
        self._held: Lifelines | None = None
        self._connection = 0
        self._session = b""

    def fileno(self) -> int:
        return self._connection or -1

    def is_held(self, session: bytes) -> bool:
        return self._session == session

    def hold(self, session: bytes, now_ns: int) -> bool:
        self.let_go()
        self._held = self._lifelines()
        if self._held is None:
            return False
        self._session, self._connection = session, self._held.connect(session)
        return True

    @property
    def is_cut(self) -> bool:
        """Whether the daemon has ended, or has closed the connection, and `has_ended` was not called since."""
        held = self._held
        return held is not None and (held is not self._lifelines() or self._connection not in held.connections)

    def has_ended(self, now_ns: int) -> bool:
        self.let_go()
        return True

    def end(self) -> None:
        """Let go, and hold nothing again: the process has ended."""
        self.let_go()
        self._lifelines = lambda: None

    def let_go(self) -> None:
        if self._held is not None:
            self._held.cut(self._connection)
        self._held, self._connection, self._session = None, 0, b""
