"""Who hears an outlet: a peer that shows the session of its client, and subscribes once.

    a peer without that session         refused in the handshake, and counted; it gets no pipe
    a client's connections              16 at most since its outlet was made
    what a client may send there        its one subscription (the empty prefix), and the end of it

With one connection or one other subscription more, the client's outlet is closed, with all connections to it, and made
anew a second later. Meanwhile nothing is published to that client; its outcomes are kept, and it may ask for them.
"""

from __future__ import annotations

from collections import deque

from timerd.clients.session import Session
from timerd.clients.sessions import Sessions
from timerd.core import NEVER, Core
from timerd_shm.declare.counters import DAEMON_COUNTERS, index_of
from timerd_shm.declare.errors import MalformedError, ResourceLimitError, TimerdError
from timerd_wire.outlet import SUBSCRIBE, UNSUBSCRIBE

from .bounds import Bounds
from .error_log import ErrorLog
from .outbox import Outbox
from .transport import Transport

SUBSCRIPTIONS_PER_TURN = 64
ADMISSIONS_PER_TURN = 32
OUTLETS_PER_TURN = 4  # to be made: each takes some 250 us
CONNECTIONS_MAX = 16  # to one outlet; an honest client connects once, and again when the daemon was restarted
PENALTY_NS = 1_000_000_000  # until an outlet that was closed for what came over it is made anew
FRAMES_UNKNOWN_SESSION = index_of(DAEMON_COUNTERS, "frames_unknown_session")
OUTLETS_SHUT = index_of(DAEMON_COUNTERS, "outlets_shut")
TOO_MANY = "more was sent than the one subscription, the empty prefix: the outlet is closed for a second"
TOO_OFTEN = f"more than {CONNECTIONS_MAX} connections to the outlet: it is closed for a second"


class Subscriptions:
    """Makes the outlets of sessions, and answers the peers that come to them."""

    def __init__(
        self,
        core: Core,
        transport: Transport,
        sessions: Sessions,
        outbox: Outbox,
        errors: ErrorLog,
        bounds: Bounds,
    ) -> None:
        self._core = core
        self._transport = transport
        self._sessions = sessions
        self._outbox = outbox
        self._errors = errors
        self._bounds = bounds
        self._waiting: deque[Session] = deque(sessions)  # for an outlet
        self._shut_until: deque[tuple[int, Session]] = deque()  # (when its outlet is made anew, session)
        self._left = 0  # outlets that may still be made in this turn
        sessions.on_begin, sessions.on_end = self._begun, self._ended

    @property
    def due_ns(self) -> int:
        """When the next outlet that was closed is to be made anew."""
        return self._shut_until[0][0] if self._shut_until else NEVER

    def accept(self, now_ns: int) -> int:
        """Make outlets, answer peers, and announce the newest numbers to subscribers; how much was dealt with."""
        self._left = OUTLETS_PER_TURN
        while self._shut_until and self._shut_until[0][0] <= now_ns:
            self._waiting.append(self._shut_until.popleft()[1])
        while self._waiting and self._left:
            self._open(self._waiting.popleft(), now_ns)
        asked = heard = 0
        for admission in self._transport.admissions(ADMISSIONS_PER_TURN):
            asked += 1
            session = self._sessions.find(admission.session)
            if session is None or session.slot != admission.slot:
                self._core.count(FRAMES_UNKNOWN_SESSION)
                self._transport.admit(admission, admitted=False)
                continue
            self._transport.admit(admission, admitted=session.connections < CONNECTIONS_MAX)
            if session.connections < CONNECTIONS_MAX:
                session.connections += 1
            elif not session.is_shut:
                self._shut(session, MalformedError(TOO_OFTEN), now_ns)
        for slot, message in self._transport.subscriptions(SUBSCRIPTIONS_PER_TURN):
            heard += 1
            session = self._sessions.at(slot)
            assert session is not None, f"the outlet of slot {slot} outlived its session"
            if message == SUBSCRIBE:
                session.subscribed = True
                self._outbox.announce(session, now_ns)
            elif message == UNSUBSCRIBE:
                session.subscribed = False
            else:
                self._shut(session, MalformedError(TOO_MANY), now_ns)
        if asked == ADMISSIONS_PER_TURN or heard == SUBSCRIPTIONS_PER_TURN or self._waiting:
            self._bounds.cut()
        return asked + heard

    def _begun(self, session: Session, now_ns: int) -> None:
        if self._left:
            self._open(session, now_ns)
        else:
            self._waiting.append(session)

    def _open(self, session: Session, now_ns: int) -> None:
        """Make the outlet of a session, unless the session has ended meanwhile."""
        if self._sessions.at(session.slot) is not session:
            return
        self._left -= 1
        session.connections, session.is_shut = 0, False
        try:
            self._transport.open_outlet(session.slot)
        except ResourceLimitError as error:
            self._shut(session, error, now_ns)

    def _ended(self, session: Session) -> None:
        self._transport.close_outlet(session.slot)

    def _shut(self, session: Session, error: TimerdError, now_ns: int) -> None:
        """Close an outlet, for a second."""
        self._core.count(OUTLETS_SHUT)
        self._errors.note(error, session.maker_pid, self._sessions.named(session))
        session.subscribed, session.is_shut = False, True
        self._transport.close_outlet(session.slot)
        self._shut_until.append((now_ns + PENALTY_NS, session))
