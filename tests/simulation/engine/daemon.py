"""A daemon in memory: the real conductor, sessions and core. It may be killed at any store, and started again.

The arena is one bytearray until it is destroyed. Clients that map it go on reading after a kill, because the state that
a kill leaves is written back into the bytearray. For a kill at a store, the core's build for tests copies the arena and
the journal's buffer at that ordering point, and the next daemon goes on from the copy. The frames that the killed turn
has sent are lost, and also the rows that it would have written to the journal's files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from support.fakes.networks import DAEMON_PID, Lifelines, is_running
from support.oracle.copies import SteppedCopy, random_step
from support.rig.arenas import Memory
from support.rig.journals import empty_buffer
from timerd.arena.copier import CopyOverrunError
from timerd.arena.format import format_arena
from timerd.arena.plan import plan_arena
from timerd.clients.session import Session
from timerd.clients.sessions import Sessions
from timerd.clients.silence import Lapses
from timerd.conductor.turn import Conductor
from timerd.core import NEVER
from timerd.journal.files import JournalFiles, JournalPlan
from timerd.journal.writer import Journal
from timerd.snapshots import CopyGivenUpError
from timerd.testing.manual.daemon import attached
from timerd_shm.check.check import check
from timerd_shm.declare.journal import JournalLevel
from timerd_shm.declare.layout import Region
from timerd_shm.declare.records import ClientRecord

from .kernel import Kernel
from .network import MS, Network
from .schedule import Schedule
from .unix import PATHS, Transports

core_faults = pytest.importorskip("timerd.core_faults", reason="the build for tests was not made (TIMERD_FAULTS)")

LEASE_NS = 15_000 * MS
POINTS_MAX = 150  # a kill at a store comes at one of the first 150 stores of a turn
BUFFER_ROWS = 2_048
SEGMENT_SIZE = 1 << 20


class WatchedSessions(Sessions):
    """Sessions that note the incarnations of clients that ever lost what they held, because they were silent or dead.

    A silent client keeps what it holds as long as its process runs and its takeover has not passed, and no longer.
    """

    away: set[bytes]
    silent: set[bytes]

    def count_silence(self, until_ns: int, now_ns: int) -> Lapses:
        counted_ns = self.silence._counted_ns
        lapses = super().count_silence(until_ns, now_ns)
        for session in lapses.silent:
            self.silent.add(self._incarnation_of(session))
        for session in (*lapses.silent, *lapses.lost):
            if not session.keeps and self._core.holds(session.slot):
                assert not may_keep(session), f"client {session.slot} has lost what it held, and its process runs"
                self.away.add(self._incarnation_of(session))
        for session in self if until_ns > counted_ns else ():
            assert may_keep(session) or not session.keeps, f"client {session.slot} keeps what it holds for too long"
        return lapses

    def close(self, session: Session, now_ns: int, *, goodbye: bool) -> None:
        self.away.add(self._incarnation_of(session))
        super().close(session, now_ns, goodbye=goodbye)

    def _incarnation_of(self, session: Session) -> bytes:
        record = self._record_of(session.slot)
        low, high = record.incarnation_low, record.incarnation_high
        return low.to_bytes(8, "little") + high.to_bytes(8, "little")


def may_keep(session: Session) -> bool:
    """Whether a silent client may keep what it holds."""
    return is_running(*session.process) and session.silent_ns < session.takeover_ns


class HeldJournal(Journal):
    """A journal that writes nothing into its files while it is held."""

    held = False

    def _append(self) -> bool:
        return self.held or super()._append()


class SteppedCopies:
    """Copies of the arena. Each time the daemon asks, a part is copied. A complete copy is compared with the arena.

    Some copies have a log that is too small. There is no file at the path of a copy.
    """

    def __init__(self, core: Any, memory: bytearray, rng: Random, faults: Counter[str]) -> None:
        self._core = core
        self._memory = memory
        self._rng = rng
        self._faults = faults
        self._copy: SteppedCopy | None = None
        self._number = 0
        self.cpu_ns = 0
        self.is_free = True

    def begin(self) -> None:
        self._copy = SteppedCopy(self._core, self._memory, self._rng.choice((20, 1 << 20)))

    def made(self) -> str | None:
        copy = self._copy
        assert copy is not None, "no copy was begun"
        try:
            for _ in range(self._rng.randrange(4)):
                if not copy.step(random_step(self._rng, len(self._memory))):
                    copy.compare()
                    self.remove()
                    self._number += 1
                    self._faults["copies compared"] += 1
                    return str(PATHS.directory / f"{PATHS.instance}.snapshot.{self._number}")
        except CopyOverrunError as error:
            self._faults["copies given up"] += 1
            raise CopyGivenUpError(str(error)) from None
        return None

    def remove(self) -> None:
        if self._copy is not None:
            self._copy.close()
            self._copy = None


class Daemon:
    """One instance: its arena, and the process that serves it, if there is one."""

    def __init__(
        self,
        schedule: Schedule,
        rng: Random,
        faults: Counter[str],
        kernel: Kernel,
        directory: Path | None,
        **knobs: Any,
    ) -> None:
        """`directory`: the folder of its journals. None: the daemon writes no journal."""
        self.schedule = schedule
        self.kernel = kernel
        self.network = Network(schedule, rng, faults, self._on_input)
        self.on_kill: Callable[[], None] = lambda: None
        self.transports: Transports | None = None
        self._adopted: dict[int, bytes] = {}  # watch -> the session that a connection of packets has shown
        self.lifelines: Lifelines | None = None
        # Whether a living client, which is not closed, has this session.
        self.is_living: Callable[[bytes], bool] = lambda session: False
        self.away: set[bytes] = set()  # incarnations of clients that ever lost what they held of their group
        self.silent: set[bytes] = set()  # incarnations of clients that were ever silent
        self.memory = bytearray()
        self.stopped = False
        self._doomed = False
        self._rng = rng
        self._faults = faults
        self._records = knobs.pop("records_per_step")
        self._pidfds = knobs.pop("pidfds")
        self._knobs = knobs
        self._core: Any = None
        self._conductor: Conductor | None = None
        self._woken_at = NEVER
        self.directories: list[Path] = []  # the journals' directories, one for each arena
        self._directory = directory
        self._buffer = bytearray()
        self._files: JournalFiles | None = None
        self._journal: HeldJournal | None = None
        self.new_arena()

    @property
    def is_up(self) -> bool:
        return self._conductor is not None

    @property
    def arena(self) -> Memory:
        return Memory(self.memory)

    def new_arena(self) -> None:
        """Make another arena, as after `timerctl destroy`. The daemon must be down."""
        assert not self.is_up
        plan = plan_arena(**self._knobs)
        self.memory = bytearray(plan.size)
        format_arena(memoryview(self.memory), plan, incarnation=self._rng.getrandbits(63) + 1)
        self._seed = self._rng.getrandbits(64).to_bytes(16, "little")
        self._buffer = bytearray()
        if self._directory is not None:
            self.directories.append(self._directory / str(len(self.directories)))

    def start(self) -> None:
        """Attach to the arena, and serve. The daemon may also be killed during recovery."""
        assert not self.is_up
        now_ns = self.schedule.now_ns
        while self._rng.random() < 0.2:
            core_faults.record(1 + self._rng.randrange(60))
            core = core_faults.Core(self.memory, now_ns, self._seed)
            core.release()
            copies = core_faults.snapshots()
            if copies:
                self._faults["killed in recovery"] += 1
                self.memory[:] = copies[-1]
        self._core = core_faults.Core(self.memory, now_ns, self._seed)
        if self._core.redo_replayed:
            self._faults["transactions finished by a start"] += 1
        self.check("after a start")
        self.lifelines = Lifelines(self._pidfds)
        self.transports = Transports(self.network, self.kernel, self, self._on_input)
        WatchedSessions.away, WatchedSessions.silent = self.away, self.silent
        steps = Random(repr(self._rng.getstate()))  # what copies draw does not change the other draws of the run
        self._copies = SteppedCopies(self._core, self.memory, steps, self._faults)
        _, self._conductor = attached(
            self._core,
            self.transports,
            self.schedule.clock,
            self.lifelines,
            self._record,
            self.lifelines.host(),
            lease_ns=LEASE_NS,
            pid=DAEMON_PID,
            records_per_step=self._records,
            copies=self._copies,
            kind=WatchedSessions,
            journal=self._begin_journal(),
        )
        self.stopped = False
        self.network.bind()
        self._wake(now_ns)

    def _begin_journal(self) -> HeldJournal | None:
        if not self.directories:
            return None
        header, buffered = self.arena.header, bool(self._buffer)
        if not buffered:
            self._buffer = empty_buffer(header.incarnation, BUFFER_ROWS)
        plan = JournalPlan(self.directories[-1], JournalLevel.EVENTS, SEGMENT_SIZE, 1 << 40, 1 << 40, None, "simulated")
        self._files = JournalFiles(plan, self.schedule.clock, header.boot_id)
        self._journal = HeldJournal(
            self._core, self._files, self._buffer, header, self.schedule.clock, buffered=buffered
        )
        return self._journal

    def _drop_journal(self) -> None:
        if self._files is not None:
            self._files.close()
            self._files._buffer.release()
            self._files = self._journal = None

    def _record(self, slot: int) -> ClientRecord:
        record: ClientRecord = self.arena.record(Region.CLIENTS, slot)
        return record

    def kill(self) -> None:
        """SIGKILL between two turns."""
        if self._conductor is not None:
            self._conductor = None
            self._doomed = False
            self._woken_at = NEVER
            self._drop_journal()
            self._copies.remove()
            self._core.release()
            self.lifelines = self.transports = None
            self.kernel.kill_daemon()
            self.network.holds_back = None
            self.network.unbind()

    def kill_at_a_store(self) -> None:
        """SIGKILL in the next turn: after one of its stores, or at its end if it has none. Then calls `on_kill`."""
        self._doomed = True

    def _turn_that_is_cut(self) -> None:
        core_faults.record(POINTS_MAX)
        self.network.holds_back = []
        self.kernel.drops_what_the_daemon_sends = True
        if self._journal is not None:
            self._journal.held = True
        self._turn()
        copies = core_faults.snapshots()
        self.kill()
        if copies:
            self._faults["killed at a store"] += 1
            copy = self._rng.choice(copies)
            assert len(copy) == len(self.memory) + len(self._buffer), "the copy lacks the journal's buffer"
            self.memory[:] = copy[: len(self.memory)]
            self._buffer[:] = copy[len(self.memory) :]
        self.on_kill()

    def end_connection(self, descriptor: int) -> None:
        """End a connection of packets. The daemon may not have accepted it yet."""
        if self.transports is None or not self.transports.end(descriptor):
            self.kernel.close(descriptor)

    def end_a_connection(self) -> bool:
        """End a connection of packets, as the daemon does if there are too many. Returns False if there is none."""
        return self.transports is not None and self.transports.end_some(self._rng.randrange)

    def adopt(self, session: bytes) -> int:
        """A connection of packets has shown this session."""
        assert self.lifelines is not None
        watch = self.lifelines.adopt(session)
        self._adopted[watch] = session
        return watch

    def adopted_ended(self, watch: int, *, is_client: bool) -> None:
        """The connection of this watch has ended. With `is_client`, its client must have ended, too."""
        assert self.lifelines is not None
        session = self._adopted.pop(watch)
        assert not (is_client and self.is_living(session)), "a client lives, and the daemon takes it for ended"
        self.lifelines.adopted_ended(watch, is_client=is_client)

    def intrude(self, frame: bytes) -> None:
        """A frame comes from a stranger, over each transport."""
        self.network.intrude(frame)
        self.kernel.intrude(PATHS.packets, frame)

    def stop(self) -> None:
        """SIGSTOP."""
        self.stopped = True

    def go_on(self) -> None:
        """SIGCONT."""
        self.stopped = False
        self._wake(self.schedule.now_ns)

    def check(self, when: str) -> None:
        """Assert that check() finds nothing."""
        found = check(memoryview(self.memory), seed=self._seed)
        assert not found, f"{when}: check() finds " + "; ".join(found[:5])

    def _on_input(self) -> None:
        self._wake(self.schedule.now_ns + self._rng.randrange(100_000))

    def _wake(self, at_ns: int) -> None:
        if at_ns < self._woken_at and self.is_up:
            self._woken_at = at_ns
            self.schedule.at(at_ns, lambda: self._on_wake(at_ns))

    def _on_wake(self, at_ns: int) -> None:
        if at_ns != self._woken_at or not self.is_up:
            return
        self._woken_at = NEVER
        if self.stopped:
            return
        if self._doomed:
            self._turn_that_is_cut()
        else:
            self._turn()
            conductor, now_ns = self._conductor, self.schedule.now_ns
            assert conductor is not None and self.transports is not None
            if self.transports.has_input() or (self.lifelines is not None and self.lifelines.pending()):
                self._wake(now_ns + 1_000)
            elif conductor.due_ns != NEVER:
                self._wake(max(conductor.due_ns, now_ns + 1_000) + self._rng.randrange(50_000))

    def _turn(self) -> None:
        assert self._conductor is not None and self.transports is not None
        self.transports.look()
        self._conductor.do_work(self.schedule.now_ns)

    def wall_clock_set(self) -> None:
        """The system wakes the daemon: somebody has set the wall clock."""
        if self._conductor is not None:
            self._conductor.wall_clock_set()
        self._on_input()

    def look(self) -> None:
        """Wake the daemon if one of its lifelines has an event, as the kernel would."""
        if self.is_up and self.lifelines is not None and self.lifelines.pending():
            self._on_input()
