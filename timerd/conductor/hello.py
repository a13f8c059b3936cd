"""Greets clients: a hello is answered by WELCOME, SESSION_GONE or ERROR.

clients/sessions.py decides which session a hello gets. The core notices that all client slots are in use
(`open_slot` in purgatory/binding/arguments.pxd); the ERROR is sent here. A hello that is refused adds no client.
"""

from __future__ import annotations

import logging

from timerd.clients.messages import Hello, message_frame, read_hello
from timerd.clients.session import NO_SESSION, Session
from timerd.clients.sessions import Sessions
from timerd.clock import Clock
from timerd.core import Core
from timerd_shm.declare.errors import MalformedError, SessionGoneError, TimerdError
from timerd_shm.declare.limits import HEARTBEAT_NS, HELLO_FIRST_SIZE_MAX
from timerd_shm.declare.wire import DownKind

from .outbox import Outbox

HELLO_SIZE_EASY = 262_144  # a larger hello lists many operations, and each of them is looked up
HELLO_REST_NS = 100_000_000  # a client with such a hello is welcomed once in this time

log = logging.getLogger("timerd")


class Greeter:
    """Answers hellos. `pid` is the daemon's own pid, which every welcome shows."""

    def __init__(self, core: Core, clock: Clock, sessions: Sessions, outbox: Outbox, *, pid: int) -> None:
        self._core = core
        self._clock = clock
        self._sessions = sessions
        self._outbox = outbox
        self._pid = pid

    def rests(self, routing: int, shown: bytes, frame: bytes, now_ns: int) -> bool:
        """Whether a large hello is ignored, because its sender was welcomed a moment ago.

        That loses no client: a client that was not welcomed sends its hello again after 250 ms.
        """
        if len(frame) <= HELLO_SIZE_EASY:
            return False
        session = self._sessions.by_secret.get(shown)
        return session is not None and session.routing == routing and now_ns < session.greeted_ns + HELLO_REST_NS

    def _name(self, hello: Hello, session: Session, now_ns: int) -> dict[str, int]:
        """The indices of the purgatories that an accepted hello names. New purgatories are made.

        Raises ArenaFullError and QuotaExceededError (the process has made as many purgatories as it may). If this
        hello has opened the client, the client is closed again then.
        """
        try:
            return {name: self._core.purgatory(name.encode(), session.slot) for name in hello.purgatories}
        except TimerdError:
            if not session.is_greeted:
                # A client that has come back from its tombstone becomes a tombstone again.
                self._sessions.close(session, now_ns, goodbye=not self._core.last_command(session.slot))
            raise

    def greet(self, routing: int, shown: bytes, frame: bytes, pid: int, uid: int, now_ns: int) -> None:
        """Answer a hello that shows this session (zero: none). The WELCOME is made last: all refusals come before it.

        `pid` and `uid`: the process that has sent it, and its user, as the kernel says; pid 0 = not known.
        """
        core, sessions, outbox = self._core, self._sessions, self._outbox
        try:
            if len(frame) > HELLO_FIRST_SIZE_MAX and not sessions.knows(shown):
                # Such a frame is not unpacked: a client without a session here has no operation here to list.
                if shown != NO_SESSION:
                    raise SessionGoneError("that session is not known any more: connect as a new incarnation")
                raise MalformedError(f"a first hello has {len(frame)} bytes; at most {HELLO_FIRST_SIZE_MAX} are taken")
            hello = read_hello(frame)
            session = sessions.hello(hello, shown, pid=pid, uid=uid, now_ns=now_ns, wall_ns=self._clock.wall_ns())
            if session is None:
                return
            purgatories = self._name(hello, session, now_ns)
        except SessionGoneError:
            outbox.send(routing, outbox.header(DownKind.SESSION_GONE, now_ns))
            return
        except TimerdError as error:
            outbox.refuse(routing, error, now_ns)
            return
        session.routing, session.greeted_ns, session.is_greeted = routing, now_ns, True
        log.debug("client %d: %s (pid %d) says hello", session.slot, hello.name.decode(), session.process.pid)
        header = outbox.header(DownKind.WELCOME, now_ns, session)
        message = {
            "incarnation": hello.incarnation,
            "session": session.secret,
            "slot": session.slot,
            "topic": session.topic,
            "applied": core.last_command(session.slot),
            "shared_clock": sessions.shares_clock(hello),
            "purgatories": purgatories,
            "unknown": core.unknown_waits(session.slot, hello.waits),
            "gone": session.gone,
            "newest": core.newest,
            "now_ns": now_ns,
            "lease_ns": session.lease_ns,
            "heartbeat_ns": HEARTBEAT_NS,
            "daemon_pid": self._pid,
        }
        outbox.send(routing, message_frame(header, message))
