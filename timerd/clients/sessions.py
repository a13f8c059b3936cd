"""The table of the clients' sessions, and the choice of the session that a hello gets.

The arena has the hash of each session, so a restarted daemon recognizes the clients that outlived the previous daemon.
Answers go over the connection of the client's newest frame. Every process can read an incarnation in the arena. But an
incarnation is the hash of a secret, and a hello has this secret (timerd_wire/proof.py). So only the incarnation's
client can use it.

    HELLO, session zero            a new incarnation: a slot and a session
    HELLO, its session             resumes: same slot and session, the numbering goes on; a silent client is live again
    HELLO, session of a dead one   no answer until the sweep is done; then the client goes on from its tombstone
    HELLO, known incarnation,      if no command was applied, the same session again, or a new one if an earlier daemon
      session not shown            made the session: the WELCOME was lost; else SessionGone
    HELLO, unknown incarnation,    SessionGone: its unacknowledged commands are unknown
      a session shown

Each session has three sides, and a part for each: its end (ends.py), its silence (silence.py), its reminders
(reminders.py).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from typing import Any

from timerd.core import NEVER, Core
from timerd_shm.declare.counters import DAEMON_COUNTERS, index_of
from timerd_shm.declare.errors import SessionGoneError
from timerd_shm.declare.limits import HEARTBEAT_NS
from timerd_shm.declare.records import ClientRecord

from .ends import Ends
from .liveness import Liveness
from .messages import Hello
from .process import Host, Process
from .reminders import Reminders
from .session import NO_SESSION, Session, client_name, session_hash
from .silence import Lapses, Silence

TOMBSTONES_RESUMED = index_of(DAEMON_COUNTERS, "tombstones_resumed")
BEAT_NS = HEARTBEAT_NS // 2  # heartbeats, silence and /proc are looked after on this grid: all clients in one wake-up


class Sessions:
    """The table of sessions, with the parts for ends, silence, reminders. Times are in CLOCK_MONOTONIC nanoseconds."""

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
        """Take over the sessions that an earlier daemon left."""
        self.ends = Ends(host, liveness)
        self.silence = Silence(core, host, now_ns)
        self.reminders = Reminders(core)
        self.by_secret: dict[bytes, Session] = {}
        self._by_slot: dict[int, Session] = {}
        self.on_end: Callable[[Session], None] = lambda session: None
        self._beat_ns = NEVER
        self._core = core
        self._record_of = record_of
        self._host = host
        self._lease_ns = lease_ns
        self.idle_since_ns = now_ns  # since when there has been no client; NEVER while there is one
        for slot in core.live_slots():
            record = record_of(slot)
            process = Process(record.pid if record.pid_namespace == host.pid_namespace else 0, record.start_ticks)
            session = self._add(slot, process, record.lease_ns, now_ns)
            session.has_returned = False
            session.is_greeted = True
            self.ends.begin(session, now_ns)

    def __len__(self) -> int:
        return len(self._by_slot)

    def __iter__(self) -> Iterator[Session]:
        return iter(self._by_slot.values())

    @property
    def due_ns(self) -> int:
        """When the next heartbeat, reminder or end is due."""
        due_ns = min(self._beat_ns, self.reminders.due_ns)
        return min(due_ns, self.ends.due_ns) if self.ends.ending else due_ns  # asked three times a turn

    def at(self, slot: int) -> Session | None:
        """The session of a slot."""
        return self._by_slot.get(slot)

    def named(self, session: Session) -> str:
        """The session's client, as the log names it."""
        record = self._record_of(session.slot)
        return client_name(session.slot, record.name[: record.name_length], session.maker_pid or session.process.pid)

    def find(self, secret: bytes) -> Session | None:
        """The session of that secret, even if an earlier daemon made the session."""
        session = self.by_secret.get(secret)
        if session is None and secret != NO_SESSION:
            session = self._by_slot.get(self._core.find_session(session_hash(secret)))
            if session is not None:
                self._bind(session, secret)
        return session

    def knows(self, secret: bytes) -> bool:
        """Whether the session is that of a client, of a dead client that is being cleared away, or of a tombstone."""
        if secret == NO_SESSION or self.find(secret) is not None:
            return secret != NO_SESSION
        known = session_hash(secret)
        return self._core.is_dying(known) or self._core.find_tombstone(known) >= 0

    def hello(self, hello: Hello, shown: bytes, *, pid: int, uid: int, now_ns: int, wall_ns: int) -> Session | None:
        """The session of a client that says hello and shows a session (zero: none).

        `pid` is the process that has sent the hello, as the kernel says; 0 = not known. A new client is charged to it.
        `uid` is its user, who pays for the client's operations of groups when the client has ended.

        None: the hello is not answered, because what the client held when it died is still being cleared away. The
        client says hello again. Raises SessionGoneError (the client must come back as a new incarnation),
        ArenaFullError (all slots, or all groups, are in use), QuotaExceededError (its process has used up its share of
        slots or groups), NotAMemberError, and ResourceLimitError (its process cannot be looked up).
        """
        core = self._core
        slot = core.find_incarnation(hello.incarnation)
        session = self.find(shown)
        if session is not None and session.slot == slot:
            self.silence.came(session, now_ns)
            return session
        if slot >= 0:
            if core.last_command(slot):
                raise SessionGoneError("that incarnation belongs to another session: connect as a new one")
            known = self._by_slot[slot]
            if known.secret != NO_SESSION:
                self.silence.came(known, now_ns, shows_session=False)
                return known
            # An earlier daemon made the session, and only its hash is left: the client gets a new slot and session.
            self.close(known, now_ns, goodbye=True)
        elif shown != NO_SESSION:
            if core.is_dying(session_hash(shown)):
                return None
            slot = core.find_tombstone(session_hash(shown))
            if slot >= 0 and _incarnation_of(self._record_of(slot)) == hello.incarnation:
                return self._take_in(hello, shown, slot, pid, uid, now_ns, wall_ns)
            raise SessionGoneError("that session is not known any more: connect as a new incarnation")
        return self._take_in(hello, secrets.token_bytes(len(NO_SESSION)), None, pid, uid, now_ns, wall_ns)

    def _take_in(
        self, hello: Hello, secret: bytes, tombstone: int | None, pid: int, uid: int, now_ns: int, wall_ns: int
    ) -> Session:
        """Take in a new client, or a client that comes back to its tombstone and goes on with its numbering."""
        core = self._core
        # A pid of another namespace names another process here. With other start ticks, the pid was used again.
        process = Process(hello.pid if hello.pid_namespace == self._host.pid_namespace else 0, hello.start_ticks)
        if self._host.has_ended(process):
            process = Process(0, 0)
        maker = self._host.maker(pid)
        fields: dict[str, Any] = {
            "name": hello.name,
            "pid": process.pid,
            "start_ticks": process.start_ticks,
            "pid_namespace": hello.pid_namespace,
            "orphans": hello.orphans,
            "lease_ns": self._lease_ns,
            "takeover_ms": hello.takeover_ms,
            "now_ns": now_ns,
            "wall_ns": wall_ns,
            "group": core.group(hello.group, *maker, uid) if hello.group else 0,
            "listens": hello.listens,
            "maker_pid": maker.pid,
            "maker_start_ticks": maker.start_ticks,
            "uid": uid,
        }
        if tombstone is None:
            slot = core.open_client(hello.incarnation, session_hash(secret), **fields)
        else:
            slot = tombstone
            core.resume_client(slot, **fields)
            core.count(TOMBSTONES_RESUMED)
        session = self._add(slot, process, self._lease_ns, now_ns)
        if tombstone is not None:
            session.gone = core.last_command(slot)
        # Until a frame shows the session, a process that cannot be seen may have ended while its hello waited.
        session.has_returned = process.pid != 0
        self._bind(session, secret)
        self.ends.begin(session, now_ns)
        return session

    def shares_clock(self, hello: Hello) -> bool:
        """Whether the client's CLOCK_MONOTONIC is the daemon's."""
        return (hello.boot_id, hello.time_namespace) == (self._host.boot_id, self._host.time_namespace)

    def close(self, session: Session, now_ns: int, *, goodbye: bool) -> None:
        """Close a session; the client's operations follow its orphans policy. A `goodbye` leaves no tombstone."""
        self._core.close_client(session.slot, now_ns, goodbye=goodbye)
        self.ends.forget(session)
        self.reminders.forget(session)
        self.silence.keepers.forget(session)
        self.by_secret.pop(session.secret, None)
        del self._by_slot[session.slot]
        self.on_end(session)
        if not self._by_slot:
            self._beat_ns = NEVER
            self.reminders.rest()
            self.idle_since_ns = now_ns

    def beat(self, now_ns: int) -> list[Session] | None:
        """On the beat: the sessions that are due a heartbeat. None between beats."""
        if now_ns < self._beat_ns:
            return None
        self._beat_ns = now_ns + BEAT_NS
        self.ends.look_up(self._by_slot, now_ns)
        return [s for s in self._by_slot.values() if s.subscribed and now_ns - s.published_ns >= BEAT_NS]

    def make_leases_whole(self, now_ns: int) -> None:
        """After a gap: no client was read, so none was silent."""
        self.silence.make_leases_whole(self._by_slot.values(), now_ns)

    def count_silence(self, until_ns: int, now_ns: int) -> Lapses:
        """The clients whose silence was too long, counted up to the last turn that read the sockets dry."""
        return self.silence.count(self._by_slot.values(), until_ns, now_ns)

    def _add(self, slot: int, process: Process, lease_ns: int, now_ns: int) -> Session:
        session = Session(slot, self._core.topic(slot), process, lease_ns, now_ns)
        record = self._record_of(slot)
        session.maker_pid, session.takeover_ns = record.maker_pid, record.takeover_ms * 1_000_000
        self._by_slot[slot] = session
        self.idle_since_ns = NEVER
        if self._beat_ns == NEVER:
            self._beat_ns = now_ns + BEAT_NS
        return session

    def _bind(self, session: Session, secret: bytes) -> None:
        self.by_secret.pop(session.secret, None)
        session.secret = secret
        self.by_secret[secret] = session


def _incarnation_of(record: ClientRecord) -> bytes:
    return record.incarnation_low.to_bytes(8, "little") + record.incarnation_high.to_bytes(8, "little")
