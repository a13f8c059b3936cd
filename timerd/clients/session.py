"""One session: a client that is connected, or was when an earlier daemon ended.

A client is its incarnation; its *session* is a 128-bit secret that it got at hello and shows in every frame, in its
subscription and to the liveness socket. The arena, which every worker may read, holds the session's hash only.
"""

from __future__ import annotations

import hashlib

from timerd.core import NEVER
from timerd_shm.declare.limits import ANNOUNCE_FIRST_NS, ANNOUNCE_LAST_NS

from .process import Process

NO_SESSION = bytes(16)


class Session:
    """A client that is connected, or was when an earlier daemon ended (then `secret` is not known yet)."""

    __slots__ = (
        "ends_ns",
        "expected",
        "expected_ns",
        "gap_ns",
        "gone",
        "greeted_ns",
        "has_returned",
        "heard_ns",
        "held",
        "is_silent",
        "lease_ns",
        "process",
        "progress_ns",
        "published_ns",
        "received",
        "routing",
        "secret",
        "silent_ns",
        "slot",
        "subscribed",
        "topic",
        "watch",
    )

    def __init__(self, slot: int, topic: int, process: Process, lease_ns: int, now_ns: int) -> None:
        self.slot = slot
        self.topic = topic
        self.process = process
        self.lease_ns = lease_ns
        self.secret = NO_SESSION
        self.routing = b""
        self.subscribed = False
        self.greeted_ns = -ANNOUNCE_LAST_NS  # when it was last welcomed
        self.published_ns = 0  # when it was last sent a report
        self.gone = 0  # of its commands up to this one nothing is held: it was dead, and came back from its tombstone
        self.received = (0, 0)  # newest outcome and answer that it has acknowledged
        self.progress_ns = 0  # when that last changed, or it was last reminded
        self.gap_ns = ANNOUNCE_FIRST_NS  # when it is reminded next, after progress_ns
        self.held = False  # whether its next command waits until it acknowledges answers
        self.expected = (-1, 0)  # what the last EXPECTED frame said, and the answers that were acknowledged then
        self.expected_ns = 0  # when it was sent
        self.has_returned = True  # False: it may have ended before this daemon could see, and has said nothing since
        self.heard_ns = now_ns
        self.silent_ns = 0  # since then, as far as it was counted
        self.is_silent = False  # that is more than its lease
        self.watch = 0  # what tells of its end: a number of liveness; 0 = nothing does
        self.ends_ns = NEVER  # it has ended, and this is when that is acted upon


def session_hash(secret: bytes) -> bytes:
    """What the arena keeps of a session: the first 16 bytes of its SHA-256."""
    return hashlib.sha256(secret).digest()[:16]
