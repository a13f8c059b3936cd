"""Who the daemon's clients are: sessions, what each is due, and how each ends.

A client is its incarnation; its *session* is a 128-bit secret that it got at hello and shows in every frame, in its
subscription and to the liveness socket. The arena, which every worker may read, holds the session's hash only, and by
it a client that outlived the daemon is known again after a restart. Routing ids are where answers go, nothing else: the
newest frame's counts.

    HELLO, session zero            a new incarnation: a slot and a session
    HELLO, its session             resumes: same slot, same session, its numbering goes on; a silent one is live again
    HELLO, session of a dead one   no answer while what it held is cleared away; then its tombstone is live again
    HELLO, known incarnation,      a new slot while no command was applied (its WELCOME was lost), and the old one is
      session not shown            closed; else SessionGone, because the arena tells everybody the incarnation
    HELLO, unknown incarnation,    SessionGone: what it had not acknowledged is unknown
      a session shown

*Dead* is certain: liveness.py tells. It is acted upon a moment later, when what the client sent last has been read.
*Silent* is a suspicion: nothing came for a lease. It changes nothing for the client's own operations, and ends with its
next frame. Silence is counted only up to a turn that had read the sockets until they were dry, and at most a heartbeat
from one count to the next; a start or a gap makes every lease whole. So a daemon that was stopped suspects nobody.
Silence becomes death only after an hour counted so; and, where nothing can tell whether the client of an earlier daemon
still is, after 60 s in which it has not come back.
"""

from __future__ import annotations

import hashlib
import itertools
import secrets
from collections.abc import Callable
from typing import Any, NamedTuple

from timerd.core import NEVER, Core
from timerd_shm.declare.counters import DAEMON_COUNTERS, index_of
from timerd_shm.declare.errors import SessionGoneError
from timerd_shm.declare.limits import ANNOUNCE_FIRST_NS, ANNOUNCE_LAST_NS, HEARTBEAT_NS
from timerd_shm.declare.records import ClientRecord
from timerd_shm.host.process import boot_id, namespace_inode, process_start_ticks

from .liveness import Liveness
from .messages import Hello

TOMBSTONES_RESUMED = index_of(DAEMON_COUNTERS, "tombstones_resumed")
NO_SESSION = bytes(16)
BEAT_NS = HEARTBEAT_NS // 2  # heartbeats, silence and /proc are looked after on this grid: all clients in one wake-up
LOOKED_UP_MAX = 128  # processes looked up in /proc on one beat
ENDS_PER_TURN = 128
LAST_WORDS_NS = 10_000_000  # what a client sent before it ended may still be with libzmq's thread
DEAD_AFTER_NS = 3_600_000_000_000  # silence that counts as death
BACK_WITHIN_NS = 60_000_000_000  # silence after a restart that does, where nothing can tell
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
        "ends_ns",
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
        "told",
        "told_ns",
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
        self.told = (-1, 0)  # what the last EXPECTED said, and the answers that were acknowledged then
        self.told_ns = 0
        self.has_returned = True  # False: it may have ended before this daemon could see, and has said nothing since
        self.heard_ns = now_ns
        self.silent_ns = 0  # since then, as far as it was counted
        self.is_silent = False  # that is more than its lease
        self.watch = 0  # what tells of its end: a number of liveness; 0 = nothing does
        self.ends_ns = NEVER  # it has ended, and this is when that is acted upon


class Lapses(NamedTuple):
    """Clients that a count of silence has found: silent from now on, and dead."""

    silent: list[Session]
    dead: list[Session]


class Sessions:
    """The table of sessions, and their due times in CLOCK_MONOTONIC nanoseconds."""

    def __init__(
        self,
        core: Core,
        record_of: Callable[[int], ClientRecord],
        host: Host,
        liveness: Liveness,
        *,
        lease_ns: int,
        now_ns: int,
    ) -> None:
        """`record_of` gives the arena's record of a slot: clients that an earlier daemon left are taken over."""
        self.by_secret: dict[bytes, Session] = {}
        self._by_slot: dict[int, Session] = {}
        self._by_watch: dict[int, Session] = {}
        self._announcing: dict[int, Session] = {}
        self._announce_ns = NEVER
        self._ending: dict[int, Session] = {}
        self._beat_ns = NEVER
        self._counted_ns = now_ns  # up to here silence was counted
        self._looked_up: list[Session] = []
        self._core = core
        self._record_of = record_of
        self._host = host
        self._liveness = liveness
        self._lease_ns = lease_ns
        self.idle_since_ns = now_ns  # since when there has been no client; NEVER while there is one
        for slot in core.live_slots():
            record = record_of(slot)
            process = Process(record.pid if record.pid_namespace == host.pid_namespace else 0, record.start_ticks)
            session = self._add(slot, process, record.lease_ns, now_ns)
            session.has_returned = False
            if not self._watch(session):
                self._end(session, now_ns)

    def __len__(self) -> int:
        return len(self._by_slot)

    @property
    def due_ns(self) -> int:
        """When somebody is due something."""
        due_ns = min(self._beat_ns, self._announce_ns)
        return min(due_ns, *(session.ends_ns for session in self._ending.values())) if self._ending else due_ns

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

    def knows(self, secret: bytes) -> bool:
        """Whether that is the session of a client, of one whose end is being dealt with, or of a tombstone."""
        if secret == NO_SESSION or self.find(secret) is not None:
            return secret != NO_SESSION
        known = session_hash(secret)
        return self._core.is_dying(known) or self._core.find_tombstone(known) >= 0

    def hello(self, hello: Hello, shown: bytes, *, now_ns: int, wall_ns: int) -> Session | None:
        """The session of a client that says hello and shows a session (zero: none).

        None: it is not answered, because what it held when it died is still being cleared away; it says hello again.
        Raises SessionGoneError (it must come back as a new incarnation), ArenaFullError (all slots, or all groups, are
        in use), QuotaExceededError (its process has made as many groups as it may) and NotAMemberError.
        """
        core = self._core
        slot = core.find_incarnation(hello.incarnation)
        session = self.find(shown)
        if session is not None and session.slot == slot:
            self.came(session, now_ns)
            return session
        if slot >= 0:
            if core.last_command(slot):
                raise SessionGoneError("that incarnation is another session's: connect as a new one")
            # Not the old slot: its topic may have been subscribed to by who read the incarnation in the arena.
            self.close(self._by_slot[slot], now_ns, goodbye=True)
        elif shown != NO_SESSION:
            if core.is_dying(session_hash(shown)):
                return None
            slot = core.find_tombstone(session_hash(shown))
            if slot >= 0 and _incarnation_of(self._record_of(slot)) == hello.incarnation:
                return self._take_in(hello, shown, slot, now_ns, wall_ns)
            raise SessionGoneError("that session is not known any more: connect as a new incarnation")
        return self._take_in(hello, secrets.token_bytes(len(NO_SESSION)), None, now_ns, wall_ns)

    def _take_in(self, hello: Hello, secret: bytes, tombstone: int | None, now_ns: int, wall_ns: int) -> Session:
        """A new client, or the one of a tombstone again, whose numbering goes on."""
        core = self._core
        # A pid of another namespace is somebody else's here; one with other start ticks is somebody else's by now.
        process = Process(hello.pid if hello.pid_namespace == self._host.pid_namespace else 0, hello.start_ticks)
        is_known = not self._host.has_ended(process)
        if not is_known:
            process = Process(0, 0)
        said: dict[str, Any] = {
            "name": hello.name,
            "pid": process.pid,
            "start_ticks": process.start_ticks,
            "pid_namespace": hello.pid_namespace,
            "orphans": hello.orphans,
            "lease_ns": self._lease_ns,
            "now_ns": now_ns,
            "wall_ns": wall_ns,
            "group": core.group(hello.group, hello.pid, hello.start_ticks) if hello.group else 0,
            "listens": hello.listens,
        }
        if tombstone is None:
            slot = core.open_client(hello.incarnation, session_hash(secret), **said)
        else:
            slot = tombstone
            core.resume_client(slot, **said)
            core.count(TOMBSTONES_RESUMED)
        session = self._add(slot, process, self._lease_ns, now_ns)
        if tombstone is not None:
            session.gone = core.last_command(slot)
        session.has_returned = is_known  # else it may have ended while its hello waited; its next word tells
        self._bind(session, secret)
        if not self._watch(session):
            self._end(session, now_ns)
        return session

    def shares_clock(self, hello: Hello) -> bool:
        """Whether the client's CLOCK_MONOTONIC is the daemon's."""
        return (hello.boot_id, hello.time_namespace) == (self._host.boot_id, self._host.time_namespace)

    def close(self, session: Session, now_ns: int, *, goodbye: bool) -> None:
        """The client is no more: its operations go the way of their orphans policy. A `goodbye` leaves no tombstone."""
        self._core.close_client(session.slot, now_ns, goodbye=goodbye)
        self._unwatch(session)
        self.by_secret.pop(session.secret, None)
        self._announcing.pop(session.slot, None)
        self._ending.pop(session.slot, None)
        del self._by_slot[session.slot]
        if not self._by_slot:
            self._beat_ns = self._announce_ns = NEVER
            self.idle_since_ns = now_ns

    def came(self, session: Session, now_ns: int) -> None:
        """Something came from the client: it is not silent, and has come back if there was a restart."""
        self._core.heard(session.slot, now_ns)
        session.heard_ns = now_ns
        session.silent_ns = 0
        session.has_returned = True
        if session.is_silent:
            session.is_silent = False
            self._core.revive(session.slot, now_ns)

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

    def beat(self, now_ns: int) -> list[Session] | None:
        """On the beat: the sessions that are due a heartbeat. None between beats."""
        if now_ns < self._beat_ns:
            return None
        self._beat_ns = now_ns + BEAT_NS
        self._look_up(now_ns)
        return [s for s in self._by_slot.values() if s.subscribed and now_ns - s.published_ns >= BEAT_NS]

    # Ends and silence -------------------------------------------------------------------------------------------------

    def hold(self, watch: int, secret: bytes) -> bool:
        """A connection has shown this session: from now on it tells of its client's end. False: it is not known."""
        session = self.find(secret)
        if session is None:
            return False
        self._unwatch(session)
        self._ending.pop(session.slot, None)  # it has changed its connection
        session.ends_ns = NEVER
        session.watch = watch
        session.has_returned = True
        self._by_watch[watch] = session
        return True

    def broken(self, watch: int, now_ns: int) -> None:
        """A connection tells nothing any more: a pidfd does, where there can be one."""
        session = self._by_watch.pop(watch, None)
        if session is not None:
            session.watch = 0
            if not self._watch(session):
                self._end(session, now_ns)

    def ended(self, watch: int, now_ns: int) -> None:
        """What this watch told of has ended."""
        session = self._by_watch.pop(watch, None)
        if session is not None:
            session.watch = 0
            self._end(session, now_ns)

    def take_ended(self, now_ns: int) -> list[Session]:
        """Sessions whose end is to be acted upon now; a bounded number, which the caller closes or puts off."""
        due = (session for session in self._ending.values() if now_ns >= session.ends_ns)
        return list(itertools.islice(due, ENDS_PER_TURN))

    def put_off(self, session: Session, now_ns: int) -> None:
        """The end of this session is not to be acted upon yet."""
        session.ends_ns = now_ns + LAST_WORDS_NS

    def make_leases_whole(self, now_ns: int) -> None:
        """After a gap: nobody was read, so nobody was silent. Who was silent before it goes on being so."""
        self._counted_ns = now_ns
        for session in self._by_slot.values():
            if not session.is_silent:
                session.silent_ns = 0

    def count_silence(self, until_ns: int, now_ns: int) -> Lapses:
        """Count how long clients have been silent until the last turn that had read the sockets dry.

        Who is found silent has been told to the core; who is found dead is the caller's to close.
        """
        lapses = Lapses([], [])
        counted_ns, self._counted_ns = self._counted_ns, max(until_ns, self._counted_ns)
        for session in self._by_slot.values():
            silence_ns = until_ns - max(counted_ns, session.heard_ns)
            if silence_ns <= 0:
                continue
            session.silent_ns += min(silence_ns, HEARTBEAT_NS)
            self._core.set_silent_ns(session.slot, session.silent_ns)
            if session.silent_ns < session.lease_ns:
                continue
            if not session.is_silent:
                session.is_silent = True
                self._core.silence(session.slot, now_ns)
                lapses.silent.append(session)
            nothing_tells = not session.has_returned and not session.watch
            if session.silent_ns >= (BACK_WITHIN_NS if nothing_tells else DEAD_AFTER_NS):
                lapses.dead.append(session)
        return lapses

    # Reminders --------------------------------------------------------------------------------------------------------

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

    def _add(self, slot: int, process: Process, lease_ns: int, now_ns: int) -> Session:
        session = Session(slot, self._core.topic(slot), process, lease_ns, now_ns)
        self._by_slot[slot] = session
        self.idle_since_ns = NEVER
        if self._beat_ns == NEVER:
            self._beat_ns = now_ns + BEAT_NS
        return session

    def _watch(self, session: Session) -> bool:
        """Be told when its process ends, where that is seen; False if it has ended.

        First the pidfd, then the look at who has that pid: it cannot have become another's in between unnoticed.
        """
        pid, start_ticks = session.process
        if not pid or not (watch := self._liveness.watch(pid)):
            return not self._host.has_ended(session.process)
        session.watch = watch
        self._by_watch[watch] = session
        # None: it is hidden from us, or a zombie, which the pidfd tells.
        return self._host.start_ticks_of(pid) in (None, start_ticks)

    def _unwatch(self, session: Session) -> None:
        if session.watch:
            self._liveness.drop(session.watch)
            del self._by_watch[session.watch]
            session.watch = 0

    def _look_up(self, now_ns: int) -> None:
        """Look in /proc for the next few processes that nothing tells of, because pidfds are refused."""
        if not self._looked_up:
            self._looked_up = [s for s in self._by_slot.values() if s.process.pid and not s.watch]
        looked, self._looked_up = self._looked_up[:LOOKED_UP_MAX], self._looked_up[LOOKED_UP_MAX:]
        for session in looked:
            if self._by_slot.get(session.slot) is session and self._host.has_ended(session.process):
                self._end(session, now_ns)

    def _end(self, session: Session, now_ns: int) -> None:
        """It has certainly ended."""
        if session.slot not in self._ending:
            session.ends_ns = now_ns + LAST_WORDS_NS
            self._ending[session.slot] = session

    def _bind(self, session: Session, secret: bytes) -> None:
        self.by_secret.pop(session.secret, None)
        session.secret = secret
        self.by_secret[secret] = session


def session_hash(secret: bytes) -> bytes:
    """What the arena keeps of a session: the first 16 bytes of its SHA-256."""
    return hashlib.sha256(secret).digest()[:16]


def _incarnation_of(record: ClientRecord) -> bytes:
    return record.incarnation_low.to_bytes(8, "little") + record.incarnation_high.to_bytes(8, "little")
