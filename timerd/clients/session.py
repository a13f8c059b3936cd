"""One session: a client that is connected, or was when an earlier daemon ended.

A client is known by its *incarnation*, the hash of a secret that the client has made. Its *session* is a 128-bit secret
that the daemon gives it at hello. The client shows its session in every frame, to its outlet and to the liveness
socket. The arena, which every worker may read, holds the session's hash only.
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
        self.maker_pid = 0  # the process that the client is charged to, as the kernel says; 0 = not known
        self.routing = 0  # the connection over which its newest frame came
        self.subscribed = False  # whether its outlet is connected
        self.greeted_ns = -ANNOUNCE_LAST_NS  # when it was last welcomed
        self.is_greeted = False  # whether this daemon, or an earlier one, has accepted a hello of it
        self.is_leaving = False  # whether its newest frame said that its process is ending: then its end is a goodbye
        self.published_ns = 0  # when it was last sent a report
        self.gone = 0  # after it came back from its tombstone: operations of commands up to this one are gone
        self.asked_turn = 0  # the turn in which it last asked for missing outcomes
        self.received = (0, 0)  # newest outcome and answer that it has acknowledged
        self.progress_ns = 0  # when `received` last changed, or the client was last reminded
        self.gap_ns = ANNOUNCE_FIRST_NS  # from progress_ns to its next reminder
        self.held = False  # whether its next command waits until the client acknowledges answers
        self.expected = (-1, 0)  # the command in the last EXPECTED frame, and the newest acknowledged answer then
        self.expected_ns = 0  # when that frame was sent
        self.has_returned = True  # False: it has sent nothing yet, and may have ended before this daemon watched it
        self.last_frame_ns = now_ns
        self.silent_ns = 0  # its silence since its last frame, as far as silence was counted
        self.is_silent = False  # whether silent_ns has reached its lease
        self.keeps = False  # whether it is silent, and keeps its calls and outcomes of its group (keepers.py)
        self.takeover_ns = 0  # the silence after which it no longer keeps them
        self.watch = 0  # the watch that reports its end (liveness.py); 0 = there is none
        self.ends_ns = NEVER  # when its end is acted upon, if it has ended


def client_name(slot: int, name: bytes, pid: int) -> str:
    """A client as a message names it: client 'billing' (slot 3, process 1234)."""
    return f"client {name.decode(errors='replace')!r} (slot {slot}, {f'process {pid}' if pid else 'process not seen'})"


def session_hash(secret: bytes) -> bytes:
    """The form in which the arena keeps a session: the first 16 bytes of its SHA-256."""
    return hashlib.sha256(secret).digest()[:16]
