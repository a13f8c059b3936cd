"""One session: a client that is connected, or was when an earlier daemon ended.

A client is its incarnation, which is the hash of a secret that it has made; its *session* is a 128-bit secret that it
got at hello and shows in every frame, to its outlet and to the liveness socket. The arena, which every worker may read,
holds the session's hash only.
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
        "asked_turn",
        "ends_ns",
        "expected",
        "expected_ns",
        "gap_ns",
        "gone",
        "greeted_ns",
        "has_returned",
        "held",
        "is_greeted",
        "is_leaving",
        "is_silent",
        "keeps",
        "last_frame_ns",
        "lease_ns",
        "maker_pid",
        "process",
        "progress_ns",
        "published_ns",
        "received",
        "routing",
        "secret",
        "silent_ns",
        "slot",
        "subscribed",
        "takeover_ns",
        "topic",
        "watch",
    )

    def __init__(self, slot: int, topic: int, process: Process, lease_ns: int, now_ns: int) -> None:
        self.slot = slot
        self.topic = topic
        self.process = process
        self.lease_ns = lease_ns
        self.secret = NO_SESSION
        self.maker_pid = 0  # the process that it is charged to, as the kernel says; 0 = not known
        self.routing = 0  # the connection that its newest frame came over
        self.subscribed = False  # whether its outlet is connected
        self.greeted_ns = -ANNOUNCE_LAST_NS  # when it was last welcomed
        self.is_greeted = False  # whether a hello of it was accepted, by this daemon or an earlier one
        self.is_leaving = False  # whether its newest frame said that its process is ending: its end is a goodbye then
        self.published_ns = 0  # when it was last sent a report
        self.gone = 0  # operations of its commands up to this one are gone, since it came back from its tombstone
        self.asked_turn = 0  # the turn in which it last asked for missing outcomes
        self.received = (0, 0)  # newest outcome and answer that it has acknowledged
        self.progress_ns = 0  # when `received` last changed, or the client was last reminded
        self.gap_ns = ANNOUNCE_FIRST_NS  # from progress_ns to its next reminder
        self.held = False  # whether its next command waits until it acknowledges answers
        self.expected = (-1, 0)  # the command that the last EXPECTED frame named, and the answer acknowledged then
        self.expected_ns = 0  # when that frame was sent
        self.has_returned = True  # False: it may have ended before this daemon watched it, and has sent nothing since
        self.last_frame_ns = now_ns
        self.silent_ns = 0  # its silence since then, as far as it was counted
        self.is_silent = False  # whether silent_ns is more than its lease
        self.keeps = False  # whether it is silent, and keeps its calls and outcomes of its group (keepers.py)
        self.takeover_ns = 0  # the silence after which it does not
        self.watch = 0  # the watch that reports its end (liveness.py); 0 = there is none
        self.ends_ns = NEVER  # when its end is acted upon, if it has ended


def client_name(slot: int, name: bytes, pid: int) -> str:
    """A client as a message names it: client 'billing' (slot 3, process 1234)."""
    return f"client {name.decode(errors='replace')!r} (slot {slot}, {f'process {pid}' if pid else 'process not seen'})"


def session_hash(secret: bytes) -> bytes:
    """The form in which the arena keeps a session: the first 16 bytes of its SHA-256."""
    return hashlib.sha256(secret).digest()[:16]
