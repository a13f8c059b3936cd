"""The *outlet* of a client: the newest connection to NAME.pub with the client's session. It gets the outcomes.

    a peer without a session            refused in the handshake, and counted; over NAME.unix it gets HELLO_FIRST
    a second connection of a client     takes the place of the first, which is closed
    messages over the outlet            the client's one subscription (the empty prefix), and its end

Any other message closes the outlet. The client connects again, and asks for the outcomes that it lacks.
"""

from __future__ import annotations

from timerd.clients.session import Session
from timerd.clients.sessions import Sessions
from timerd.core import Core
from timerd_shm.declare.counters import DAEMON_COUNTERS, index_of
from timerd_shm.declare.errors import MalformedError
from timerd_shm.declare.wire import DownKind
from timerd_wire.outlet import SUBSCRIBE, UNSUBSCRIBE

from .bounds import Bounds
from .error_log import ErrorLog
from .outbox import Outbox
from .transport import NOT_ADMITTED, Transport

MESSAGES_PER_TURN = 64
FRAMES_MALFORMED = index_of(DAEMON_COUNTERS, "frames_malformed")
FRAMES_UNKNOWN_SESSION = index_of(DAEMON_COUNTERS, "frames_unknown_session")
OUTLETS_SHUT = index_of(DAEMON_COUNTERS, "outlets_shut")
TOO_MANY = "more was sent than the one subscription, the empty prefix: the connection is closed"


class Subscriptions:
    """Answers the connections for outcomes."""

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
        sessions.on_end = self._ended

    def accept(self, now_ns: int) -> int:
        """Admit connections, and announce the newest numbers to subscribers. Returns the number of messages."""
        heard = 0
        for connection, slot, message in self._transport.outlet_messages(MESSAGES_PER_TURN):
            heard += 1
            if slot == NOT_ADMITTED:
                self._answer(connection, message, now_ns)
                continue
            session = self._sessions.at(slot)
            assert session is not None, f"the outlet of slot {slot} outlived its session"
            if message == SUBSCRIBE:
                session.subscribed = True
                self._core.send_looks_again(slot)
                self._outbox.announce(session, now_ns)
                continue
            session.subscribed = False
            if message != UNSUBSCRIBE:
                self._core.count(OUTLETS_SHUT)
                self._errors.note(MalformedError(TOO_MANY), session.maker_pid, self._sessions.named(session))
                self._transport.close_outlet(slot)
        for pid, error in self._transport.complaints():
            if isinstance(error, MalformedError):
                self._core.count(FRAMES_MALFORMED)
            self._errors.note(error, pid)
        if heard >= MESSAGES_PER_TURN:
            self._bounds.cut()
        return heard

    def _answer(self, connection: int, secret: bytes, now_ns: int) -> None:
        """Admit a connection that shows a known session. Any other is not admitted, and gets HELLO_FIRST."""
        session = self._sessions.find(secret)
        if session is None:
            self._core.count(FRAMES_UNKNOWN_SESSION)
            # Over packets a client may say hello at once. The transport closes a connection that is for outcomes alone.
            self._outbox.send(connection, self._outbox.header(DownKind.HELLO_FIRST, now_ns))
        else:
            session.subscribed = False
            self._transport.admit(connection, session.slot)

    def _ended(self, session: Session) -> None:
        self._transport.close_outlet(session.slot)
