"""A daemon in this process: the real core and conductor, on an arena in memory and a clock that is moved by hand."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from timerd.arena.format import format_arena
from timerd.arena.plan import plan_arena
from timerd.clients.liveness import Liveness
from timerd.clients.process import Host
from timerd.clients.sessions import Sessions
from timerd.clock import Clock, ManualClock
from timerd.conductor.bounds import RECORDS_PER_STEP
from timerd.conductor.transport import Transport
from timerd.conductor.turn import Conductor
from timerd.core import NEVER, Core
from timerd.journal.writer import Journal
from timerd.snapshots import Files
from timerd_shm.declare.layout import REGION_RECORDS, Region
from timerd_shm.declare.limits import HEARTBEAT_NS, NO_DEADLINE
from timerd_shm.declare.records import ClientRecord
from timerd_shm.declare.states import OpState
from timerd_shm.read.reader import ArenaReader, Table

from .ends import Lifelines
from .network import Network

LEASE_NS = 15_000_000_000
CAPACITY, RING_EVENTS, CLIENTS = 1_024, 1_024, 64


def attached(
    core: Core,
    transport: Transport,
    clock: Clock,
    liveness: Liveness,
    client_record: Callable[[int], ClientRecord],
    host: Host,
    *,
    lease_ns: int,
    copies: Files,
    pid: int,
    records_per_step: int = RECORDS_PER_STEP,
    kind: type[Sessions] = Sessions,
    journal: Journal | None = None,
) -> tuple[Sessions, Conductor]:
    """The sessions and the conductor of a core that has attached to its arena, as a daemon's start makes them."""
    now_ns = clock.now_ns()
    sessions = kind(core, client_record, host, liveness, lease_ns=lease_ns, now_ns=now_ns)
    conductor = Conductor(
        core,
        transport,
        clock,
        sessions,
        liveness,
        copies=copies,
        pid=pid,
        now_ns=now_ns,
        records_per_step=records_per_step,
        journal=journal,
    )
    return sessions, conductor


class NoCopies:
    """Stands for the copies of the arena in files. A daemon on a manual clock makes none."""

    cpu_ns: int | None = 0
    is_free = True

    def begin(self) -> None:
        raise OSError(errno.ENOTSUP, "a daemon on a manual clock copies no arena: use the fixture timerd_daemon")

    def made(self) -> str | None:
        return None

    def remove(self) -> None:
        """Nothing to do."""


class ManualDaemon:
    """An arena, and a conductor that serves it while it is started."""

    def __init__(self, clock: ManualClock) -> None:
        self.network = Network()
        self.lifelines: Lifelines | None = None
        self._clock = clock
        plan = plan_arena(CAPACITY, ring_events=RING_EVENTS, clients=CLIENTS)
        self.tick_ns = plan.tick_ns
        self._memory = bytearray(plan.size)
        self._seed = os.urandom(16)
        format_arena(memoryview(self._memory), plan, incarnation=int.from_bytes(os.urandom(7), "little") + 1)
        self._core: Core | None = None
        self._sessions: Sessions | None = None
        self._conductor: Conductor | None = None
        self._is_woken = False

    @property
    def serves(self) -> bool:
        """Whether the daemon runs."""
        return self._conductor is not None

    def start(self) -> None:
        """Serve the arena."""
        assert not self.serves
        self._core = Core(self._memory, self._clock.now_ns(), self._seed)
        self.lifelines = Lifelines()
        clients: Table[ClientRecord] = Table(memoryview(self._memory), Region.CLIENTS, REGION_RECORDS[Region.CLIENTS])
        self._sessions, self._conductor = attached(
            self._core,
            self.network,
            self._clock,
            self.lifelines,
            clients.__getitem__,
            Host.here(),
            lease_ns=LEASE_NS,
            copies=NoCopies(),
            pid=os.getpid(),
        )
        self.network.open()

    def stop(self) -> None:
        """End between two turns, as by SIGKILL. The arena stays."""
        if self._core is not None:
            self._core.release()
            self._core = self._sessions = self._conductor = self.lifelines = None
            self.network.shut()

    def map_arena(self) -> ArenaReader:
        """The arena, for a client to read."""
        return ArenaReader(memoryview(self._memory).toreadonly())

    @property
    def due_ns(self) -> int:
        """When the next turn is due, if no frame comes before it; NEVER if the daemon is stopped."""
        return NEVER if self._conductor is None else self._conductor.due_ns

    @property
    def wake_ns(self) -> int:
        """The next time at which the core has work, if no frame comes; NEVER if no work will ever be due."""
        return NEVER if self._core is None else self._core.next_wake_ns()

    def rests_until_ns(self) -> int:
        """The next time at which something other than a heartbeat is due, if no frame comes.

        0: the daemon must not rest. It is stopped or in a gap, or a turn is due now, or a client has sent nothing for
        HEARTBEAT_NS.
        """
        core, sessions, conductor = self._core, self._sessions, self._conductor
        if core is None or sessions is None or conductor is None or conductor.in_gap or self.wants_turn():
            return 0
        heard_ns = self._clock.now_ns() - HEARTBEAT_NS
        if any(session.last_frame_ns < heard_ns for session in sessions):
            return 0
        return min(core.next_wake_ns(), core.reports_due_ns, sessions.reminders.due_ns, sessions.ends.due_ns)

    def rest_until(self, until_ns: int) -> None:
        """Make no turn before `until_ns`. A conductor that planned an earlier turn would take the pause for a gap."""
        assert self._conductor is not None
        self._conductor.due_ns = until_ns

    def deadlines_ns(self) -> list[int]:
        """The deadlines of pending operations, also of named calls."""
        pending = (record for record in self.map_arena().ops.used() if record.state == OpState.PENDING)
        return [record.deadline_ns for record in pending if record.deadline_ns < NO_DEADLINE]

    def wants_turn(self) -> bool:
        """Whether a turn is due now."""
        if self._conductor is None or self.lifelines is None:
            return False
        due = self._is_woken or self._conductor.due_ns <= self._clock.now_ns()
        return due or self.network.has_input() or self.lifelines.pending()

    def wall_clock_set(self) -> None:
        """Let a turn be due, because the kernel wakes a daemon when the wall clock was set."""
        self._is_woken = True
        if self._conductor is not None:
            self._conductor.wall_clock_set()

    def turn(self) -> None:
        """Make one turn."""
        assert self._conductor is not None
        self._is_woken = False
        self._conductor.do_work(self._clock.now_ns())
