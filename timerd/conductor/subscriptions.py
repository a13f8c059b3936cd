"""Subscriptions: a subscriber shows a session, and is given the topic of that client.

A session is a secret, so no subscriber is given another client's topic. Anything else than a session is ignored, and
counted.
"""

from __future__ import annotations

from timerd.clients.sessions import Sessions
from timerd.core import Core
from timerd_shm.declare.counters import DAEMON_COUNTERS, index_of

from .bounds import Bounds
from .outbox import Outbox
from .transport import Transport

SUBSCRIPTIONS_PER_TURN = 64
SUBSCRIBE = b"\x01"  # how a subscription begins; an unsubscription, or the end of a subscriber, begins otherwise
FRAMES_UNKNOWN_SESSION = index_of(DAEMON_COUNTERS, "frames_unknown_session")


class Subscriptions:
    """Answers subscribers."""

    def __init__(self, core: Core, transport: Transport, sessions: Sessions, outbox: Outbox, bounds: Bounds) -> None:
        self._core = core
        self._transport = transport
        self._sessions = sessions
        self._outbox = outbox
        self._bounds = bounds

    def accept(self, now_ns: int) -> int:
        """Give each subscriber that shows a session its topic, and the newest numbers; how many messages were read."""
        taken = 0
        for message in self._transport.subscriptions(SUBSCRIPTIONS_PER_TURN):
            taken += 1
            if message[:1] != SUBSCRIBE:
                continue
            session = self._sessions.find(message[1:])
            if session is None:
                self._core.count(FRAMES_UNKNOWN_SESSION)
                continue
            self._transport.subscribe(session.topic.to_bytes(8, "little"))
            session.subscribed = True
            self._outbox.announce(session, now_ns)
        if taken == SUBSCRIPTIONS_PER_TURN:
            self._bounds.cut()
        return taken
