"""The conductor: everything the daemon does, as a function of (state, now, messages).

A turn takes the time once, checks whether the wall clock was set, and does, in this order, a bounded amount of each:

    subscriptions, commands     an event counts for deadlines after its effective time, which is the turn's clock
    ends                        connections of clients, and processes, that have ended
    resume                      long events, acknowledgements, new plans and orphans that a bound has cut
    wheel                       expiries, sweeps; not during a gap
    reports, duties             outcomes out; announcements, heartbeats, silence
    journal, snapshots          rows to the journal's thread; a copy of the arena begins here, when it is at rest

In a *gap* (gap.py) the sockets are read until they are dry, before the wheel moves and before the daemon acts upon the
end of a client. After it every lease begins anew. Frames of a gap have the effective time of the last turn before it.

One thread calls this. Time, network, core and snapshots are passed in; nothing here blocks, and nothing that comes from
a client makes do_work() raise.
"""

from __future__ import annotations

import logging

from timerd.clients.liveness import Liveness
from timerd.clients.sessions import Sessions
from timerd.clock import Clock
from timerd.core import NEVER, Core
from timerd.journal.writer import Journal
from timerd.snapshots import Files, Snapshots
from timerd_shm.declare.counters import DAEMON_COUNTERS, index_of
from timerd_shm.declare.limits import GAP_NS
from timerd_shm.host.wall_clock import WallWatch

from .bounds import RECORDS_PER_STEP, Bounds
from .deferred import Deferred
from .departures import Departures
from .error_log import ErrorLog
from .gap import Gap
from .hello import Greeter
from .inbox import Inbox
from .outbox import Outbox
from .queries import Queries
from .subscriptions import Subscriptions
from .transport import Transport

JOURNAL_AGAIN_NS = 5_000_000  # the pause when the journal has more rows to write than its buffer takes at once
CLOCKS_NS = 10_000_000  # turns compare the clocks at this interval, and at once after a signal of the kernel

GAPS = index_of(DAEMON_COUNTERS, "gaps")
FRAMES_OUT = index_of(DAEMON_COUNTERS, "frames_out")
EMPTY_WAKEUPS = index_of(DAEMON_COUNTERS, "empty_wakeups")
TURNS_CUT = index_of(DAEMON_COUNTERS, "turns_cut")
TURN_NS_MAX = index_of(DAEMON_COUNTERS, "turn_ns_max")
BUSY_NS = index_of(DAEMON_COUNTERS, "busy_ns")

log = logging.getLogger("timerd")


class Conductor:
    """Has the parts of a turn, and calls them in order. `copies` writes copies of the arena, and removes them."""

    def __init__(
        self,
        core: Core,
        transport: Transport,
        clock: Clock,
        sessions: Sessions,
        liveness: Liveness,
        *,
        copies: Files,
        pid: int,
        now_ns: int,
        records_per_step: int = RECORDS_PER_STEP,
        journal: Journal | None = None,
    ) -> None:
        self._core = core
        self._clock = clock
        self._sessions = sessions
        self._liveness = liveness
        self._journal = journal
        self._bounds = bounds = Bounds(records_per_step)
        self._gap = gap = Gap(now_ns, core.last_turn_ns)
        self._errors = ErrorLog(core, clock)
        self._outbox = outbox = Outbox(core, transport, sessions, self._errors, bounds)
        self._subscriptions = Subscriptions(core, transport, sessions, outbox, self._errors, bounds)
        self._snapshots = Snapshots(copies, sessions, clock)
        self._queries = queries = Queries(core, sessions, self._snapshots, outbox)
        self._transport = transport
        greeter, deferred = Greeter(core, clock, sessions, outbox, pid=pid), Deferred(transport.hold, transport.defer)
        transport.on_shed(deferred.drop)
        self._inbox = Inbox(core, transport, sessions, greeter, queries, outbox, deferred, gap, bounds)
        self._departures = Departures(core, sessions, liveness, deferred, bounds)
        self._wall = WallWatch(clock.wall_ns, clock.now_ns)
        self._clocks_due_ns = 0
        self._journal_due_ns = NEVER
        self._cpu_ns = 0  # the CPU time at the end of the last turn
        self.due_ns = now_ns

    @property
    def in_gap(self) -> bool:
        """Whether the wheel still waits for the sockets to be dry."""
        return self._gap.is_open

    def do_work(self, now_ns: int) -> int:
        """One turn. Returns the amount of work (frames and records); `due_ns` says when the next one is due."""
        core, bounds, gap, outbox = self._core, self._bounds, self._gap, self._outbox
        due_ns, self.due_ns = self.due_ns, NEVER
        if due_ns != NEVER and now_ns - due_ns >= GAP_NS:
            core.count(GAPS)
            log.warning("gap: a turn began %d ms late; reading the sockets first", (now_ns - due_ns) // 1_000_000)
            gap.begin(now_ns, core.last_turn_ns)
            self._sessions.make_leases_whole(now_ns)
            self._transport.renew(now_ns)
        if not bounds.turns:
            self._cpu_ns = self._clock.cpu_ns()  # CPU time of the start does not count as a turn
        outbox.frames = 0
        bounds.is_cut = False
        bounds.turns += 1
        core.begin_turn(now_ns, gap.before_ns)
        if now_ns >= self._clocks_due_ns:
            self._compare_clocks(now_ns)
        work = self._subscriptions.accept(now_ns)
        frames = self._inbox.read(now_ns)
        self._transport.tend(now_ns)
        if frames:
            gap.received(now_ns)
        if gap.is_open:
            gap.end_if_dry(now_ns)
        work += self._departures.take_signs(now_ns)
        if not gap.is_open:
            work += self._departures.act_upon_ends(now_ns)
        if self._resume(now_ns):
            bounds.cut()
        if not gap.is_open and core.advance(now_ns, bounds.records):
            bounds.cut()
        if refusals := core.take_refusals():  # the log has them before their clients get them
            self._errors.note_refusals(refusals)
        outbox.publish_reports(now_ns)
        self._queries.answer_checks(now_ns)
        if now_ns >= self._sessions.due_ns:
            self._do_duties(now_ns)
        if self._journal is not None:
            self._journal_due_ns = now_ns + JOURNAL_AGAIN_NS if self._journal.tend(now_ns) else NEVER
        work += frames + outbox.frames + core.end_turn(now_ns)
        for session, number, answer in self._snapshots.tend(now_ns):
            self._queries.answer_snapshot(session, number, answer, now_ns)
        bounds.narrow(self._snapshots.is_copying)
        self._close_turn(now_ns, due_ns, work)
        return work

    def _resume(self, now_ns: int) -> bool:
        """Go on with work that a bound has cut. Returns whether some is left. Charges a long event to its process."""
        core = self._core
        if not core.is_delivering:
            return core.resume(now_ns, self._bounds.records)
        touched = core.touched
        is_left = core.resume(now_ns, self._bounds.records)
        self._inbox.charge_event(core.touched - touched)
        return is_left

    def wall_clock_set(self) -> None:
        """Have the next turn compare the clocks: the kernel has reported that the wall clock was set."""
        self._clocks_due_ns = 0

    def _compare_clocks(self, now_ns: int) -> None:
        self._clocks_due_ns = now_ns + CLOCKS_NS
        if self._wall.was_set() or self._bounds.turns == 1:
            self._core.set_wall_clock(self._wall.ahead_ns)

    def _do_duties(self, now_ns: int) -> None:
        """Announcements and heartbeats that are due. Silence is counted on the beat of the heartbeats."""
        self._outbox.announce_unacknowledged(now_ns)
        if self._outbox.beat(now_ns):
            self._departures.count_silence(self._gap.dry_ns, now_ns)

    def _close_turn(self, now_ns: int, due_ns: int, work: int) -> None:
        """Count the turn, and say when the next one is due."""
        core = self._core
        if self._outbox.frames:
            core.count(FRAMES_OUT, self._outbox.frames)
        if self._bounds.is_cut:
            core.count(TURNS_CUT)
            self.due_ns = now_ns
        elif self._gap.is_open:
            self.due_ns = self._gap.due_ns
        else:
            self.due_ns = min(core.next_wake_ns(), self._sessions.due_ns, self._liveness.due_ns, self._journal_due_ns)
        self.due_ns = min(self.due_ns, core.reports_due_ns, self._snapshots.due_ns, self._transport.due_ns)
        # Overdue work is due now. A time in the past would look like a gap.
        self.due_ns = max(self.due_ns, now_ns)
        if not work and now_ns >= due_ns:
            core.count(EMPTY_WAKEUPS)
        took_ns = self._clock.now_ns() - now_ns
        core.count(BUSY_NS, took_ns)
        core.count_max(TURN_NS_MAX, took_ns)
        # Measured from the end of one turn to the end of the next: one system call instead of two. The loop's work
        # between two turns counts, too.
        cpu_ns = self._clock.cpu_ns()
        core.note_turn_cpu(cpu_ns - self._cpu_ns)
        self._cpu_ns = cpu_ns
