"""Who the daemon's clients are: sessions, and what each is due (a sign of life, a reminder, a look whether it lives).

A client is its incarnation; its *session* is a 128-bit secret that it got at hello and shows in every frame and in its
subscription. The arena, which every worker may read, holds the session's hash only, and by it a client that outlived
the daemon is known again after a restart. Routing ids are where answers go, nothing else: the newest frame's counts.

    HELLO, session zero            a new incarnation: a slot and a session
    HELLO, its session             resumes: same slot, same session, its numbering goes on
    HELLO, known incarnation,      a new slot while no command was applied (its WELCOME was lost), and the old one is
      session not shown            closed; else SessionGone, because the arena tells everybody the incarnation
    HELLO, unknown incarnation,    SessionGone: what it had not acknowledged is unknown
      a session shown
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from typing import NamedTuple

from timerd_shm.errors import SessionGoneError
from timerd_shm.layout import ClientRecord
from timerd_shm.limits import ANNOUNCE_FIRST_NS, ANNOUNCE_LAST_NS, HEARTBEAT_NS
from timerd_shm.rundir import boot_id, namespace_inode, process_start_ticks

from .core import NEVER, Core
from .messages import Hello

NO_SESSION = bytes(16)
BEAT_NS = HEARTBEAT_NS // 2  # heartbeats and deaths are looked after on this grid: all clients in one wake-up
BEAT_DEATHS_MAX = 128  # processes looked up in /proc in one turn
ANNOUNCE_GRID_NS = 10_000_000  # reminders are looked after this often at most


class Process(NamedTuple):
    """A client's process, where this daemon can see it; pid 0 = it cannot."""

    pid: int
    start_ticks: int


class Host(NamedTuple):
    """What a client must share with the daemon for its clock and its pid to mean the same here; and a look at pids."""

    boot_id: bytes
    pid_namespace: int
    time_namespace: int
    start_ticks_of: Callable[[int], int | None]  # of a pid; None = there is no such process

    @classmethod
    def here(cls) -> Host:
        """This process's own."""
        return cls(boot_id(), namespace_inode("pid"), namespace_inode("time"), process_start_ticks)

    def has_ended(self, process: Process) -> bool:
        """Whether the process has certainly ended."""
        return process.pid != 0 and self.start_ticks_of(process.pid) != process.start_ticks


class Session:
    """A client that is connected, or was when an earlier daemon ended (then `secret` is not known yet)."""

    __slots__ = (
        "gap_ns",
        "process",
        "progress_ns",
        "published_ns",
        "received",
        "routing",
        "secret",
        "slot",
        "subscribed",
        "told_applied",
        "told_ns",
        "topic",
    )

    def __init__(self, slot: int, topic: int, process: Process) -> None:
        self.slot = slot
        self.topic = topic
        self.process = process
        self.secret = NO_SESSION
        self.routing = b""
        self.subscribed = False
        self.published_ns = 0  # when it was last sent a report
        self.received = (0, 0)  # newest outcome and answer that it has acknowledged
        self.progress_ns = 0  # when that last changed, or it was last reminded
        self.gap_ns = ANNOUNCE_FIRST_NS  # when it is reminded next, after progress_ns
        self.told_applied = -1  # what the last EXPECTED said
        self.told_ns = 0


class Sessions:
    """The table of sessions, and their due times in CLOCK_MONOTONIC nanoseconds."""

    def __init__(
        self, core: Core, record_of: Callable[[int], ClientRecord], host: Host, *, lease_ns: int, now_ns: int
    ) -> None:
        """`record_of` gives the arena's record of a slot: clients that an earlier daemon left are taken over."""
        self.by_secret: dict[bytes, Session] = {}
        self._by_slot: dict[int, Session] = {}
        self._announcing: dict[int, Session] = {}
        self._announce_ns = NEVER
        self._beat_ns = NEVER
        self._deaths: list[Session] = []
        self._core = core
        self._host = host
        self._lease_ns = lease_ns
        self.idle_since_ns = now_ns  # since when there has been no client; NEVER while there is one
        for slot in core.live_slots():
            record = record_of(slot)
            known = record.pid_namespace == host.pid_namespace
            self._add(slot, Process(record.pid if known else 0, record.start_ticks), now_ns)

    def __len__(self) -> int:
        return len(self._by_slot)

    @property
    def due_ns(self) -> int:
        """When somebody is due something."""
        return min(self._beat_ns, self._announce_ns)

    def at(self, slot: int) -> Session | None:
        """The session of a slot."""
        return self._by_slot.get(slot)

    def find(self, secret: bytes) -> Session | None:
        """The session of that secret, also one that an earlier daemon gave."""
        session = self.by_secret.get(secret)
        if session is None and secret != NO_SESSION:
            session = self._by_slot.get(self._core.find_session(session_hash(secret)))
            if session is not None:
                self._bind(session, secret)
        return session

    def hello(self, hello: Hello, shown: bytes, *, now_ns: int, wall_ns: int) -> Session:
        """The session of a client that says hello and shows a session (zero: none).

        Raises SessionGoneError (it must come back as a new incarnation) and ArenaFullError (all slots are in use).
        """
        core = self._core
        slot = core.find_incarnation(hello.incarnation)
        shown_session = self.find(shown)
        if shown_session is not None and shown_session.slot == slot:
            return shown_session
        if slot >= 0:
            if core.last_command(slot):
                raise SessionGoneError("that incarnation is another session's: connect as a new one")
            # Not the old slot: its topic may have been subscribed to by who read the incarnation in the arena.
            self.close(self._by_slot[slot], now_ns)
        elif shown != NO_SESSION:
            raise SessionGoneError("that session is not known any more: connect as a new incarnation")
        secret = secrets.token_bytes(len(NO_SESSION))
        # A pid of another namespace is somebody else's here; one with other start ticks is somebody else's by now.
        process = Process(hello.pid if hello.pid_namespace == self._host.pid_namespace else 0, hello.start_ticks)
        if self._host.has_ended(process):
            process = Process(0, 0)
        slot = core.open_client(
            hello.incarnation,
            session_hash(secret),
            name=hello.name,
            pid=process.pid,
            start_ticks=process.start_ticks,
            pid_namespace=hello.pid_namespace,
            orphans=hello.orphans,
            lease_ns=self._lease_ns,
            now_ns=now_ns,
            wall_ns=wall_ns,
        )
        session = self._add(slot, process, now_ns)
        self._bind(session, secret)
        return session

    def shares_clock(self, hello: Hello) -> bool:
        """Whether the client's CLOCK_MONOTONIC is the daemon's."""
        return (hello.boot_id, hello.time_namespace) == (self._host.boot_id, self._host.time_namespace)

    def close(self, session: Session, now_ns: int) -> None:
        """The client has ended: its operations go the way of their orphans policy."""
        self._core.close_client(session.slot, now_ns)
        self.by_secret.pop(session.secret, None)
        self._announcing.pop(session.slot, None)
        del self._by_slot[session.slot]
        if not self._by_slot:
            self._beat_ns = self._announce_ns = NEVER
            self.idle_since_ns = now_ns

    def heard(self, session: Session, received: tuple[int, int], now_ns: int) -> None:
        """The client has acknowledged these outcome and answer numbers: it keeps up, so reminders can wait."""
        session.received = received
        session.progress_ns = now_ns
        session.gap_ns = ANNOUNCE_FIRST_NS

    def published(self, session: Session, now_ns: int) -> None:
        """The client was sent a report: it is reminded of what it does not acknowledge."""
        session.published_ns = now_ns
        if session.slot not in self._announcing and self._core.unacknowledged(session.slot):
            self._announcing[session.slot] = session
            session.progress_ns = now_ns
            session.gap_ns = ANNOUNCE_FIRST_NS
            self._announce_ns = min(self._announce_ns, now_ns + ANNOUNCE_FIRST_NS)

    def silent(self, now_ns: int) -> list[Session]:
        """Sessions that are due a heartbeat now. Also looks for dead processes: see `take_dead`."""
        if now_ns < self._beat_ns:
            return []
        self._beat_ns = now_ns + BEAT_NS
        if not self._deaths:
            self._deaths = list(self._by_slot.values())
        return [s for s in self._by_slot.values() if s.subscribed and now_ns - s.published_ns >= BEAT_NS]

    def take_dead(self) -> list[Session]:
        """Sessions whose process has ended, of the next few that were not looked at in this round."""
        looked, self._deaths = self._deaths[:BEAT_DEATHS_MAX], self._deaths[BEAT_DEATHS_MAX:]
        return [s for s in looked if self._by_slot.get(s.slot) is s and self._host.has_ended(s.process)]

    def unacknowledged(self, now_ns: int) -> list[Session]:
        """Sessions that are due a reminder now: 50 ms after the last sign that they keep up, doubling to 1 s."""
        if now_ns < self._announce_ns:
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
        self._announce_ns = max(next_ns, now_ns + ANNOUNCE_GRID_NS)
        return due

    def _add(self, slot: int, process: Process, now_ns: int) -> Session:
        session = Session(slot, self._core.topic(slot), process)
        self._by_slot[slot] = session
        self.idle_since_ns = NEVER
        if self._beat_ns == NEVER:
            self._beat_ns = now_ns + BEAT_NS
        return session

    def _bind(self, session: Session, secret: bytes) -> None:
        self.by_secret.pop(session.secret, None)
        session.secret = secret
        self.by_secret[secret] = session


def session_hash(secret: bytes) -> bytes:
    """What the arena keeps of a session: the first 16 bytes of its SHA-256."""
    return hashlib.sha256(secret).digest()[:16]
