"""Reminders: a client that does not acknowledge its reports gets the newest numbers again.

The first reminder is due 50 ms after the client's last acknowledgement. The time to the next one doubles, up to 1 s.
For example, a client that has lost a report, and receives nothing else, notices the loss after 50 ms.
"""

from __future__ import annotations

from timerd.core import NEVER, Core
from timerd_shm.declare.limits import ANNOUNCE_FIRST_NS, ANNOUNCE_LAST_NS

from .session import Session

ANNOUNCE_GRID_NS = 10_000_000  # the shortest time between two looks for due reminders


class Reminders:
    """The clients that have something to acknowledge, and when each is reminded of it."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._announcing: dict[int, Session] = {}  # by slot
        self.due_ns = NEVER

    def acknowledged(self, session: Session, received: tuple[int, int], now_ns: int) -> None:
        """The client has acknowledged these outcome and answer numbers: it keeps up, so reminders can wait."""
        session.received = received
        session.progress_ns = now_ns
        session.gap_ns = ANNOUNCE_FIRST_NS

    def published(self, session: Session, now_ns: int) -> None:
        """A report went to the client: remind it later, unless it acknowledges everything."""
        session.published_ns = now_ns
        if session.slot not in self._announcing and self._core.unacknowledged(session.slot):
            self._announcing[session.slot] = session
            session.progress_ns = now_ns
            session.gap_ns = ANNOUNCE_FIRST_NS
            self.due_ns = min(self.due_ns, now_ns + ANNOUNCE_FIRST_NS)

    def take(self, now_ns: int) -> list[Session]:
        """Sessions that are due a reminder now."""
        if now_ns < self.due_ns:
            return []
        due: list[Session] = []
        next_ns = NEVER
        for slot, session in list(self._announcing.items()):
            if not self._core.unacknowledged(slot):
                del self._announcing[slot]
                continue
            if now_ns >= session.progress_ns + session.gap_ns:
                session.gap_ns = min(2 * session.gap_ns, ANNOUNCE_LAST_NS)
                session.progress_ns = now_ns
                if session.subscribed:
                    due.append(session)
            next_ns = min(next_ns, session.progress_ns + session.gap_ns)
        self.due_ns = max(next_ns, now_ns + ANNOUNCE_GRID_NS)
        return due

    def forget(self, session: Session) -> None:
        """The session is closed."""
        self._announcing.pop(session.slot, None)

    def rest(self) -> None:
        """All clients have ended."""
        self.due_ns = NEVER
