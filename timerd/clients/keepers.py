"""Silent clients that keep the calls and outcomes of their group.

For example, a handler keeps the GIL of its process for a minute. Nothing comes from the client, so it is silent after a
lease. But its process runs, and so does the call: another member must not run it as well. So the client keeps its calls
and outcomes while it is silent, for the time in its hello (its *takeover*, 5 min by default). After that time they go
to other members.

A client keeps nothing if its process is stopped, has ended, or cannot be seen by this daemon (another pid namespace,
hidepid). On each beat (each half second, sessions.py) the daemon looks up in /proc the processes of the clients that
keep something, LOOKED_UP_MAX at most. If there are more, the clients take turns. If the daemon can open no file for a
look, the client keeps everything.
"""

from __future__ import annotations

from itertools import islice

from timerd.core import Core

from .process import Host
from .session import Session

LOOKED_UP_MAX = 128  # processes looked up in /proc on one beat


class Keepers:
    """The silent clients that keep their calls and outcomes."""

    def __init__(self, core: Core, host: Host) -> None:
        self._core = core
        self._host = host
        self._looks = 0  # how many looks were made on this beat
        self._sessions: dict[Session, None] = {}  # in order of their last looks, the oldest first

    def begin_beat(self) -> None:
        """A new beat begins: LOOKED_UP_MAX looks are allowed again."""
        self._looks = 0

    def fell_silent(self, session: Session, now_ns: int) -> None:
        """The client is silent from now on. Decide whether it keeps its calls and outcomes."""
        session.keeps = self._may_keep(session)
        self._core.silence(session.slot, now_ns, keeps=session.keeps)
        if session.keeps:
            self._sessions[session] = None

    def forget(self, session: Session) -> None:
        """The client is live again, or closed."""
        session.keeps = False
        self._sessions.pop(session, None)

    def look(self, now_ns: int) -> list[Session]:
        """Look at the clients that keep something, as far as this beat allows. Returns those that lose it."""
        lost = []
        for session in list(islice(self._sessions, LOOKED_UP_MAX)):
            if self._looks >= LOOKED_UP_MAX:
                break
            del self._sessions[session]
            if self._may_keep(session):
                self._sessions[session] = None
            else:
                session.keeps = False
                self._core.silence(session.slot, now_ns)
                lost.append(session)
        return lost

    def _may_keep(self, session: Session) -> bool:
        if session.silent_ns >= session.takeover_ns or not session.process.pid or not self._core.holds(session.slot):
            return False
        if self._looks >= LOOKED_UP_MAX:
            return True  # it is looked at on a later beat
        self._looks += 1
        return self._host.is_running(session.process) is not False
