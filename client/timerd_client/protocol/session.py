"""The session of a client: its identity in HELLO, and the fields that the daemon gives it in WELCOME."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgpack
from timerd_client.hot import Ledger
from timerd_client.mark import Mark
from timerd_client.waiter import Answerable
from timerd_shm.declare.errors import MalformedError, TimerdError
from timerd_shm.declare.limits import PURGATORIES_MAX, TAKEOVER_MS, WAITS_MAX
from timerd_shm.declare.states import Orphans
from timerd_shm.declare.wire import PROTOCOL_VERSION
from timerd_wire.proof import PROOF_SIZE, incarnation_of

DEFAULT_PURGATORY: Final = "default"
CALLS: Final = "calls"  # the purgatory of named calls
NO_SESSION: Final = bytes(16)
NUMBER_MAX: Final = (1 << 63) - 1
CLOCK_NS_MAX: Final = 1 << 62  # of CLOCK_MONOTONIC: 146 years
LEASE_NS_MIN: Final = 10_000_000  # a third of it is the pause between two pings
LEASE_NS_MAX: Final = 366 * 86_400 * 1_000_000_000
LOST_SESSION: Final = (
    "the daemon no longer knows this client, or another process has used its session: how this settled is unknown. "
    "The client goes on as a new one; register again"
)
NEW_ARENA: Final = (
    "the daemon has a new arena, because the old one was destroyed or the host was rebooted: how this settled is "
    "unknown. Register again"
)
# A purgatory that the first HELLO names has this index until WELCOME gives the right index. The next such purgatory has
# one less, and so on: no daemon gives an index of PURGATORIES_MAX or more.
NOT_KNOWN_YET: Final = 0xFF


class Identity(NamedTuple):
    """The fields of HELLO that describe a client and its process."""

    name: str = ""
    pid: int = 0
    start_ticks: int = 0
    pid_namespace: int = 0
    time_namespace: int = 0
    boot_id: bytes = bytes(16)
    orphans: Orphans = Orphans.CANCEL
    group: str | None = None
    takeover_ms: int = TAKEOVER_MS


class Welcome(NamedTuple):
    """The fields of a WELCOME, checked: what a daemon sends is not trusted."""

    incarnation: bytes | None  # of the client that the daemon means; None: an older daemon does not say
    session: bytes
    slot: int
    topic: int
    applied: int
    newest: int
    lease_ns: int
    shared_clock: bool
    daemon_pid: int
    gone: int
    purgatories: dict[str, int]
    unknown: list[int]

    @classmethod
    def of(cls, found: dict[str, Any]) -> Welcome:
        """The fields of this map. Raises ValueError, which names the field and its value."""
        session = found.get("session")
        if not isinstance(session, bytes) or len(session) != len(NO_SESSION) or session == NO_SESSION:
            raise ValueError(f"session is {session!r:.60}, and not {len(NO_SESSION)} bytes")
        incarnation, purgatories = found.get("incarnation"), found.get("purgatories", {})
        if incarnation is not None and not isinstance(incarnation, bytes):
            raise ValueError(f"incarnation is {incarnation!r:.60}, and not bytes")
        if not isinstance(purgatories, dict) or not all(isinstance(name, str) for name in purgatories):
            raise ValueError(f"purgatories is {purgatories!r:.60}, and not a map of names")
        unknown = found.get("unknown", ())
        if not isinstance(unknown, list | tuple):
            raise ValueError(f"unknown is {unknown!r:.60}, and not a list of commands")
        return cls(
            incarnation,
            session,
            whole(found, "slot", 0, NUMBER_MAX),
            whole(found, "topic", 0, NUMBER_MAX),
            whole(found, "applied", 0, NUMBER_MAX),
            whole(found, "newest", 0, NUMBER_MAX),
            whole(found, "lease_ns", LEASE_NS_MIN, LEASE_NS_MAX),
            bool(found.get("shared_clock")),
            whole(found, "daemon_pid", 0, NUMBER_MAX, 0),
            whole(found, "gone", 0, NUMBER_MAX, 0),
            {name: whole(purgatories, name, 0, PURGATORIES_MAX - 1) for name in purgatories},
            [command for command in unknown if isinstance(command, int)],
        )


def whole(found: dict[str, Any], name: str, least: int, most: int, default: int | None = None) -> int:
    """A whole number in a map of the daemon. Raises ValueError, which names the field and its value."""
    value = found.get(name, default)
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{name} is {value!r:.60}, and not a number from {least} to {most}")
    return value


class Session:
    """The incarnation of a client, its secret at the daemon, and what is known of the daemon and its arena."""

    def __init__(self, ledger: Ledger, identity: Identity, random: Callable[[int], bytes]) -> None:
        self._ledger = ledger
        self.identity = identity
        self._random = random
        self._begin()
        self.arena = 0
        self.secret = NO_SESSION
        self.daemon_ns = 0  # the daemon's clock in the newest frame
        self._daemon_ahead_ns: int | None = None  # how far the daemon's clock is ahead of this client's, at least
        self.topic = 0
        self.daemon_pid = 0
        self.shared_clock = False
        self.purgatories: dict[str, int] = {DEFAULT_PURGATORY: 0}
        if identity.group is not None:
            self.purgatories[CALLS] = NOT_KNOWN_YET
        self.slot = 0
        self.subscriptions: deque[bytes] = deque()  # sessions to show, each over a new outlet
        # Sequence of the newest event, from frames: for a client that has not mapped the arena.
        self._newest_received = [0]
        ledger.use_arena(self._newest_received, 0)

    def _begin(self) -> None:
        """Become a client that no daemon knows."""
        self.proof = self._random(PROOF_SIZE)  # a secret: only the daemon gets it
        self._ledger.incarnation = incarnation_of(self.proof)

    @property
    def incarnation(self) -> bytes:
        """The 128 bits that name this client, until the daemon forgets it. The ledger has them, for marks."""
        incarnation: bytes = self._ledger.incarnation
        return incarnation

    @property
    def arena(self) -> int:
        """Incarnation of the daemon's arena; 0 = not known yet. The ledger has it, for marks."""
        return self._ledger.arena

    @arena.setter
    def arena(self, arena: int) -> None:
        self._ledger.arena = arena

    def mark(self) -> Mark:
        """A mark of this moment in the history of events. Called with the lock held."""
        return Mark(self.arena, self._ledger.newest(), self._ledger.issued, self.incarnation)

    def hello(self, now_ns: int, *, listens: bool) -> bytes:
        """The map of a HELLO."""
        identity, ledger = self.identity, self._ledger
        packed: bytes = msgpack.packb(
            {
                "protocol": PROTOCOL_VERSION,
                "proof": self.proof,
                "name": identity.name,
                "pid": identity.pid,
                "start_ticks": identity.start_ticks,
                "pid_namespace": identity.pid_namespace,
                "time_namespace": identity.time_namespace,
                "boot_id": identity.boot_id,
                "now_ns": now_ns,
                "orphans": int(identity.orphans),
                "group": identity.group,
                "listens": listens,
                "takeover_ms": identity.takeover_ms,
                "waits": [command for command in ledger.pending if command <= ledger.applied][:WAITS_MAX],
                "purgatories": list(self.purgatories),
            }
        )
        return packed

    def welcomed(self, welcome: Welcome) -> None:
        """Take the fields of a WELCOME."""
        self.secret = welcome.session
        self.slot = welcome.slot
        self.topic = welcome.topic
        self.daemon_pid = welcome.daemon_pid
        self.shared_clock = welcome.shared_clock
        self.name_purgatories(welcome.purgatories)
        self.note_newest(welcome.newest)

    def note_clock(self, daemon_ns: int, now_ns: int, *, anew: bool) -> None:
        """Take the daemon's clock from a frame that has just come. `anew`: it is the first frame of this daemon."""
        if daemon_ns > CLOCK_NS_MAX:
            return  # no clock has this time
        self.daemon_ns = daemon_ns
        ahead_ns = daemon_ns - now_ns  # too low by the time that the frame took
        if anew or self._daemon_ahead_ns is None or ahead_ns > self._daemon_ahead_ns:
            self._daemon_ahead_ns = ahead_ns

    def daemon_clock(self, now_ns: int) -> int:
        """The daemon's CLOCK_MONOTONIC, or a bit less if the daemon is in another time namespace."""
        return now_ns if self.shared_clock else now_ns + (self._daemon_ahead_ns or 0)

    def name_purgatories(self, indices: dict[str, Any]) -> None:
        """Take the daemon's indices. Commands that were kept for another arena get new indices. Raises ValueError."""
        if wrong := [one for one in indices.values() if type(one) is not int or one not in range(PURGATORIES_MAX)]:
            raise ValueError(f"the index of a purgatory is 0 to {PURGATORIES_MAX - 1}, not {wrong[0]!r:.60}")
        known = self.purgatories
        moved = {known[name]: index for name, index in indices.items() if known.get(name, index) != index}
        if moved:
            self._ledger.move_purgatories(moved)
        known.update(indices)

    def name_later(self, name: str) -> None:
        """Name a purgatory in the next HELLO. Until WELCOME the purgatory has an index that no daemon gives."""
        if name not in self.purgatories:
            unknown = [index for index in self.purgatories.values() if index >= PURGATORIES_MAX]
            self.purgatories[name] = min(unknown, default=NOT_KNOWN_YET + 1) - 1

    def are_named(self, indices: dict[str, Any]) -> bool:
        """Whether these are all the indices that this client waits for."""
        return all(index < PURGATORIES_MAX or name in indices for name, index in self.purgatories.items())

    def note_newest(self, sequence: int) -> None:
        """Take the sequence of the newest event from a frame."""
        if sequence > self._newest_received[0]:
            self._newest_received[0] = sequence

    def subscribe(self) -> None:
        """Connect the outlet. Also called again, if the daemon may have closed the outlet."""
        self.subscriptions.append(self.secret)

    def leave_arena(self) -> None:
        """Forget the newest event: sequences of the old arena have no meaning now."""
        self._newest_received = [0]
        self._ledger.use_arena(self._newest_received, 0)

    def change_incarnation(self) -> None:
        """The daemon does not know this client, so the client takes a new incarnation."""
        self.secret = NO_SESSION
        self.arena = 0
        self._begin()


class Naming:
    """Takes the answer to a question for a purgatory's index. The session gets the index before the asker gets it."""

    def __init__(self, session: Session, name: str, asker: Answerable) -> None:
        self._session = session
        self._name = name
        self._asker = asker

    def answer(self, value: Any, error: TimerdError | None = None) -> bool:
        """Give the index to the session, then the answer to the asker."""
        if error is None:
            try:
                self._session.name_purgatories({self._name: value.get("index")})
            except ValueError as wrong:
                error = MalformedError(f"the daemon named purgatory {self._name!r} wrongly: {wrong}; report it")
        return self._asker.answer(value, error)

    def notify(self) -> None:
        """Notify the asker."""
        self._asker.notify()
