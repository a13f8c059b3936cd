"""Certain ends of clients: how the daemon notices them, and when it acts upon them.

The daemon has a *watch* on each client: the connection over which the client has shown its session, or else a pidfd of
its process. If neither is possible, the daemon looks at /proc at intervals. If it can open no file for that, no client
counts as ended. The daemon acts upon an end 10 ms later, when it has read the client's last frames. A client that
changes its connection within that time has not ended.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from timerd.core import NEVER

from .liveness import Liveness
from .process import Host
from .session import Session

LOOKED_UP_MAX = 128  # processes looked up in /proc on one beat, which comes each half second (sessions.py)
ENDS_PER_TURN = 128
LAST_WORDS_NS = 10_000_000  # the last frames of a client that has ended may still be in its socket


class Ends:
    """The watch of each session, and the sessions that have ended and are not closed yet."""

    def __init__(self, host: Host, liveness: Liveness) -> None:
        self._host = host
        self._liveness = liveness
        self._by_watch: dict[int, Session] = {}
        self.ending: dict[int, Session] = {}  # by slot
        self._looked_up: list[Session] = []

    @property
    def due_ns(self) -> int:
        """When to act upon the next end."""
        return min((session.ends_ns for session in self.ending.values()), default=NEVER)

    def begin(self, session: Session, now_ns: int) -> None:
        """Watch a session's process, if this daemon can see it. The process may have ended already."""
        if not self._watch(session):
            self._end(session, now_ns)

    def forget(self, session: Session) -> None:
        """The session is closed."""
        self._unwatch(session)
        self.ending.pop(session.slot, None)

    def hold(self, watch: int, session: Session) -> None:
        """A connection has shown this session: from now on the connection's end is the client's end."""
        self._unwatch(session)
        self.ending.pop(session.slot, None)  # the client has changed its connection
        session.ends_ns = NEVER
        session.watch = watch
        session.has_returned = True
        self._by_watch[watch] = session

    def broken(self, watch: int, now_ns: int) -> None:
        """A connection cannot be watched any more: watch a pidfd instead, where that is possible."""
        session = self._by_watch.pop(watch, None)
        if session is not None:
            session.watch = 0
            self.begin(session, now_ns)

    def ended(self, watch: int, now_ns: int) -> None:
        """The client, or the process, of this watch has ended."""
        session = self._by_watch.pop(watch, None)
        if session is not None:
            session.watch = 0
            self._end(session, now_ns)

    def take(self, now_ns: int) -> list[Session]:
        """Sessions whose end is due, a bounded number of them. The caller closes each or puts its end off."""
        due = (session for session in self.ending.values() if now_ns >= session.ends_ns)
        return list(itertools.islice(due, ENDS_PER_TURN))

    def put_off(self, session: Session, now_ns: int) -> None:
        """Act upon this session's end later: some of its frames are still waiting."""
        session.ends_ns = now_ns + LAST_WORDS_NS

    def look_up(self, by_slot: Mapping[int, Session], now_ns: int) -> None:
        """Look in /proc for the next few processes without a watch: pidfds were refused, or no descriptor was left."""
        if not self._looked_up:
            self._looked_up = [s for s in by_slot.values() if s.process.pid and not s.watch]
        looked, self._looked_up = self._looked_up[:LOOKED_UP_MAX], self._looked_up[LOOKED_UP_MAX:]
        for session in looked:
            if by_slot.get(session.slot) is session and self._host.has_ended(session.process):
                self._end(session, now_ns)

    def _watch(self, session: Session) -> bool:
        """Watch the session's process, if this daemon can see it. Returns False if the process has ended.

        The pidfd is opened first, and then the pid is looked up. So if the pid belongs to another process by then, that
        is noticed.
        """
        pid = session.process.pid
        if not pid or not (watch := self._liveness.watch(pid)):
            return not self._host.has_ended(session.process)
        session.watch = watch
        self._by_watch[watch] = session
        is_its_own = self._host.shows(session.process)  # /proc shows nothing of a zombie, but the pidfd reports its end
        if is_its_own is None:
            self._unwatch(session)  # the watch may be on another process: look_up() looks again
            return True
        return is_its_own

    def _unwatch(self, session: Session) -> None:
        if session.watch:
            self._liveness.drop(session.watch)
            del self._by_watch[session.watch]
            session.watch = 0

    def _end(self, session: Session, now_ns: int) -> None:
        """The session's client has certainly ended."""
        if session.slot not in self.ending:
            session.ends_ns = now_ns + LAST_WORDS_NS
            self.ending[session.slot] = session
