"""One seed: a daemon, some processes, a workload and faults; then calm, time, and the final checks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from unittest.mock import patch

from support.fakes.networks import PROCESSES, STOPPED
from timerd.testing.manual.clock import JumpingClock
from timerd_client.audit.journal import audit_journal
from timerd_client.groups.commands import CallCommands
from timerd_client.hot import Pending
from timerd_client.protocol.inbox import DeliveredOutcome
from timerd_shm.declare.errors import ArenaFullError, TimerdError
from timerd_shm.declare.fields import size_of, struct_of
from timerd_shm.declare.layout import Region
from timerd_shm.declare.states import CallPhase, ClientState, Orphans
from timerd_shm.declare.wire import PROTOCOL_VERSION, CommandHeader, UpKind
from timerd_shm.read.segment import segments_of

from .books import Books, is_expected
from .daemon import LEASE_NS, Daemon
from .drawn import drawn_from
from .kernel import Kernel
from .letters import letters_of, look_for_leaks
from .network import CALM, MS, Weather
from .process import GROUP, Process
from .schedule import Schedule
from .workload import (
    ACTS,
    GROUP_ACTS,
    KEYS,
    MARKS,
    ONCE,
    PERIODIC,
    PLANS,
    PURGATORIES,
    TOKENS,
    Worker,
    handle_calls,
    take_group_outcomes,
)

SECOND = 1_000 * MS
HOUR = 3_600 * SECOND
START_NS = 1_000 * SECOND
STEPS = 3_000
PROCESSES_MIN, PROCESSES_MAX = 2, 6
JOURNALED = 3  # one seed in three writes a journal
TRANSPORTS = ("zeromq", "unix", "mixed")  # of all clients of a seed; mixed: drawn for each client


class Failure(AssertionError):
    """Something does not hold. `short` says what, and how to repeat it. The error's text is the trace, then `short`."""

    def __init__(
        self, what: str, seed: int = 0, steps: int = 0, step: int = 0, transports: str = "", trace: Iterable[str] = ()
    ) -> None:
        again = f"python tests/support/run.py simulation.engine --seed {seed} --steps {steps} --trace"
        self.short = f"seed {seed}, step {step}, {transports}: {what}\n    again: {again}"
        super().__init__("\n".join((*trace, self.short)))


class Simulation:
    """Everything that a seed decides."""

    def __init__(self, seed: int, steps: int, transports: str | None = None) -> None:
        """`transports`: one of TRANSPORTS. None: the seed decides."""
        self.seed = seed
        self.steps = steps
        self.undo = ExitStack()
        journals = Path(self.undo.enter_context(TemporaryDirectory())) if seed % JOURNALED == 0 else None
        self.step = 0
        self.rng = rng = Random(seed)
        self.faults: Counter[str] = Counter()
        self.clock = JumpingClock(START_NS)
        self.schedule = Schedule(self.clock, Random(rng.getrandbits(64)))
        self.books = Books(self.schedule)
        # Drawn apart from the rest, so that a seed takes the steps that it took before there were two transports.
        self.ways = Random(f"transports {seed}")
        drawn = self.ways.choice(TRANSPORTS)
        self.transports = transports or drawn
        self.stalls = Random(f"stalls {seed}")  # drawn apart, too: a seed's other steps stay as they were
        calls = Random(f"calls {seed}")  # likewise
        self.kernel = Kernel(self.schedule, Random(f"kernel {seed}"), self.faults)
        PROCESSES.clear()
        STOPPED.clear()
        self.capacity = rng.choice((16, 32, 64))
        self.daemon = Daemon(
            self.schedule,
            Random(rng.getrandbits(64)),
            self.faults,
            self.kernel,
            journals,
            capacity=self.capacity,
            nodes=rng.choice((2, 4)) * self.capacity,
            blocks=rng.choice((2, 8)) * self.capacity,
            ids=self.capacity,
            answers=rng.choice((4, 64)),
            ring_events=rng.choice((16, 32, 256)),
            clients=rng.choice((8, 12, 24)),
            groups=2,
            purgatories=3,
            errors=2,
            tick=rng.choice((100_000, MS, 10 * MS)),
            schedule_retention=2 * HOUR,  # it passes before the end, which comes after three hours without a worker
            quota_operations=rng.choice((self.capacity // 2, self.capacity)),
            quota_outcomes=rng.choice((8, 65_536)),
            quota_answers=rng.choice((2, 16, 1_024)),
            records_per_step=rng.choice((8, 100, 65_536)),
            pidfds=rng.random() < 0.8,
            dead_letters=calls.choice((0, 2, 256, 256)),
        )
        self.plans = rng.sample(PLANS, 1 if rng.random() < 0.7 else 2)
        self.books.points_may_repeat = len(self.plans) > 1
        self.daemon.on_kill = self._start_daemon_later
        self.books.evicted = lambda: self.daemon.arena.count("group_outcomes_evicted")
        self.books.has_forgotten_ids = lambda: bool(self.daemon.arena.header.ids_floor_ns)
        self.books.has_lost = self.daemon.away.__contains__
        self.books.was_silent = self.daemon.silent.__contains__
        self.books.end_process = self._end_process
        self.daemon.is_living = lambda session: any(process.has(session) for process in self.processes)
        self.processes: list[Process] = []
        self.workers: list[Worker] = []
        self.made = 0
        self.calm = False
        acts = rng.sample(ACTS, rng.randint(len(ACTS) // 2, len(ACTS)))
        self.acts = {name: rng.random() for name in ACTS if name in acts}
        self.pause_ns = int(MS * 2 ** (rng.random() * 9))
        self.maps = rng.random() < 0.8
        self.members = rng.random() < 0.7
        if rng.random() < 0.2:  # almost only groups and their calls
            self.members = True
            self.acts = {name: rng.random() for name in GROUP_ACTS}
        self.only_calls = calls.random() < 0.15  # then many calls end the processes that run them
        if self.only_calls:
            self.members = True
            self.acts = {"call_later": 1.0, "cancel_call": calls.random()}
            self.pause_ns = calls.choice((200, 1_000)) * MS
        self.window = rng.choice((8, 64, 65_536))
        self.chaos_steps = 2 ** (5 + rng.random() * 5)  # events from one fault to the next, on average
        self.chaos: dict[Callable[[], None], float] = {
            act: rng.random() * weight
            for act, weight in (
                (self.kill_daemon, 1.5),
                (self.stop_daemon, 1.0),
                (self.destroy_arena, 0.1),
                (self.kill_process, 1.0),
                (self.stop_process, 1.0),
                (self.close_process, 1.0),
                (self.cut_off, 1.0),
                (self.change_weather, 2.0),
                (self.jump_wall, 0.2),
                (self.knock, 0.5),
            )
            if rng.random() < 0.7
        }
        self.chaos[self.spawn] = 1.0
        if self.transports != "zeromq" and self.ways.random() < 0.7:
            self.chaos[self.end_connection] = self.ways.random()
        if self.stalls.random() < 0.7:
            self.chaos[self.stall_process] = self.stalls.random()
        self.stormy = rng.random() < 0.8

    # a run --------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run the seed to its end. Raises Failure."""
        with drawn_from(Random(self.rng.getrandbits(64)), self.seed), self._announced(), self.kernel.in_charge():
            try:
                self._run()
            except Exception as error:
                raise self._failure(error) from error
            finally:
                for process in self.processes:
                    process.kill()
                    # The garbage collector sees neither the table nor its operations, whose callbacks may be in cycles.
                    for _, waiter in process.link.protocol.ledger.pending.items():
                        waiter._callbacks = None
                    process.link.protocol.ledger.pending = Pending()
                self.daemon.kill()
                self.schedule.end()
                self.undo.close()

    @contextmanager
    def _announced(self) -> Iterator[None]:
        """Note each announcement of a client that it is about to run a handler or on_failure."""
        begin_phase = CallCommands.begin_phase

        def announce(phase: CallPhase, told: DeliveredOutcome, limit_s: float | None = None) -> bytes:
            self.books.announce(phase, told)
            return begin_phase(phase, told, limit_s)

        with patch.object(CallCommands, "begin_phase", staticmethod(announce)):
            yield

    def _run(self) -> None:
        rng = self.rng
        self.daemon.start()
        for _ in range(3):
            self.spawn()
        fault_at = 0.0
        while self.step < self.steps:
            if self.step >= fault_at:
                self._break_something()
                fault_at = self.step + rng.expovariate(1 / self.chaos_steps)
            self._step()
        self._heal()
        self._reckon()

    def _step(self) -> bool:
        self.step += 1
        more = self.schedule.step()
        if self.books.failures:
            raise AssertionError(self.books.failures[0])
        return more

    def _pass(self, for_ns: int) -> None:
        """Let `for_ns` pass."""
        end: list[bool] = []
        self.schedule.after(for_ns, lambda: end.append(True))
        while not end:
            self._step()

    def _failure(self, error: Exception) -> Failure:
        what = str(error) if isinstance(error, AssertionError) else repr(error)
        clients = "clients of both transports" if self.transports == "mixed" else f"clients of {self.transports} alone"
        return Failure(what, self.seed, self.steps, self.step, clients, self.books.trace)

    # faults -------------------------------------------------------------------------------------------------------

    def _break_something(self) -> None:
        act = self.rng.choices(list(self.chaos), list(self.chaos.values()))[0]
        self.books.note(f"fault: {act.__name__}")
        act()

    @property
    def living(self) -> list[Process]:
        return [process for process in self.processes if process.alive]

    def kind_of_process(self) -> type[Process]:
        """The class of the next process: it has a threaded client, or an asyncio one."""
        return Process

    def transport_of_process(self) -> str:
        """The transport of the next process."""
        return self.transports if self.transports != "mixed" else self.ways.choice(("zeromq", "unix"))

    def acts_of(self, process: Process) -> dict[str, float]:
        """The acts of a process's workers, and their weights."""
        return self.acts

    def spawn(self) -> None:
        """Start a new process. A fork of a living process looks the same from outside."""
        if len(self.living) >= PROCESSES_MAX:
            return
        self.made += 1
        rng = Random(self.rng.getrandbits(64))
        process = self.kind_of_process()(
            self.daemon,
            rng,
            self.books,
            name=f"client-{self.made}",
            window=self.window,
            maps=self.maps,
            shares_clock=rng.random() < 0.9,
            is_member=self.members and (self.only_calls or rng.random() < 0.7),
            orphans=rng.choice((Orphans.CANCEL, Orphans.CANCEL, Orphans.KEEP)),
            transport=self.transport_of_process(),
            takeover_ms=self.stalls.choice((2_000, 30_000, 60_000)),
        )
        self.processes.append(process)
        self.books.living.append(process)
        for _ in range(rng.randint(1, 2)):
            worker = Worker(process, Random(rng.getrandbits(64)), self.acts_of(process), self.pause_ns)
            self.workers.append(worker)
            process.begin(worker.run)
        if process.client._protocol.session.identity.group != GROUP:
            return
        if rng.random() < 0.6:
            process.begin(lambda: take_group_outcomes(process, rng, lambda: self.calm, well=False))
        if self.only_calls or rng.random() < 0.6:
            names = [*ONCE] if self.only_calls else rng.sample((*ONCE, *PERIODIC), rng.randint(1, 5))
            process.begin(lambda: handle_calls(process, Random(rng.getrandbits(64)), names, self.plans))

    def kill_daemon(self) -> None:
        if not self.daemon.is_up:
            return
        self.faults["daemon killed"] += 1
        if self.rng.random() < 0.7:
            self.daemon.kill_at_a_store()
        else:
            self.daemon.kill()
            self._start_daemon_later()

    def _start_daemon_later(self) -> None:
        away_ns = self.rng.choice((1, 100 * MS, SECOND, 6 * SECOND))
        self.schedule.after(1 + self.rng.randrange(away_ns), self._start_daemon)

    def _start_daemon(self) -> None:
        if not self.daemon.is_up:
            self.daemon.start()

    def destroy_arena(self) -> None:
        if self.daemon.is_up:
            self.faults["arena destroyed"] += 1
            self.daemon.kill()
            self.daemon.new_arena()
            self.books.arena += 1
            self._start_daemon_later()

    def stop_daemon(self) -> None:
        if self.daemon.is_up and not self.daemon.stopped:
            self.faults["daemon stopped"] += 1
            self.daemon.stop()
            longest_ns = self.rng.choice((100 * MS, 2 * SECOND, 3 * LEASE_NS))
            self.schedule.after(self.rng.randrange(longest_ns), self.daemon.go_on)

    def _some(self) -> Process | None:
        living = self.living
        return self.rng.choice(living) if living else None

    def kill_process(self) -> None:
        if (process := self._some()) is not None:
            self.faults["process killed"] += 1
            process.kill()
            self._bury(process)

    def _bury(self, process: Process) -> None:
        self.books.living.remove(process)
        self.workers = [worker for worker in self.workers if worker.process is not process]
        if len(self.living) < PROCESSES_MIN and not self.calm:
            self.spawn()

    def stop_process(self) -> None:
        process = self._some()
        if process is not None and not process.stopped:
            self.faults["process stopped"] += 1
            process.stop()
            longest_ns = self.rng.choice((100 * MS, 4 * SECOND, 3 * LEASE_NS))
            self.schedule.after(self.rng.randrange(longest_ns), process.go_on)

    def stall_process(self) -> None:
        """A handler keeps the GIL, perhaps for longer than the takeover. Some of these processes are then stopped."""
        process, rng = self._some(), self.stalls
        if process is not None and not process.stopped:
            self.faults["process stalled"] += 1
            process.stall()
            longest_ns = rng.choice((4 * SECOND, 3 * LEASE_NS, 100 * SECOND))
            self.schedule.after(rng.randrange(longest_ns), process.go_on)
            if rng.random() < 0.2:
                self.schedule.after(rng.randrange(longest_ns), process.stop_if_stalled)

    def close_process(self) -> None:
        if (process := self._some()) is not None:
            self.faults["process closed"] += 1
            self._close(process, self.rng.choice((0.0, 1.0, 5.0)))

    def _close(self, process: Process, timeout: float) -> None:
        process.closing = True

        def body() -> None:
            try:
                process.client.close(timeout=timeout)
            except TimerdError as error:
                if not is_expected(error):
                    self.books.fail(f"{process.name}: close() raises {error!r}")
            if process.alive:
                self.schedule.at(self.schedule.now_ns, lambda: self._exit(process))

        process.begin(body)

    def _exit(self, process: Process) -> None:
        if process.alive:
            process.kill()
            self._bury(process)

    def _end_process(self, process: Process) -> None:
        """A handler ends its process, as a segmentation fault would. A supervisor starts another process."""

        def end() -> None:
            if process.alive:
                self.faults["process ended by a handler"] += 1
                self._exit(process)
                if not self.calm:
                    self.spawn()

        self.schedule.at(self.schedule.now_ns, end)

    def cut_off(self) -> None:
        """A connection breaks, and is made again."""
        if (process := self._some()) is not None:
            self.faults["connection broken"] += 1
            process.sockets.disconnected()

    def end_connection(self) -> None:
        """The daemon ends a connection of packets."""
        if self.daemon.end_a_connection():
            self.faults["connection ended by the daemon"] += 1

    def change_weather(self) -> None:
        rng = self.rng
        if not self.stormy or rng.random() < 0.4:
            self._have(CALM)
            return
        self.faults["weather changed"] += 1
        weather = Weather(
            drop=rng.choice((0, 0.01, 0.2)),
            double=rng.choice((0, 0.01, 0.2)),
            overtake=rng.choice((0, 0.01, 0.1)),
            delay_ns=rng.choice((100_000, 5 * MS, 50 * MS)),
            long_delay=rng.choice((0, 0.01, 0.1)),
            high_water=rng.choice((2, 20, 1_000)),
        )
        self._have(weather)

    def _have(self, weather: Weather) -> None:
        self.daemon.network.weather = self.kernel.weather = weather

    def knock(self) -> None:
        """Send a frame as a stranger that is no client."""
        self.faults["strange frames"] += 1
        rng, size = self.rng, size_of(CommandHeader)
        header = CommandHeader(PROTOCOL_VERSION, rng.choice(list(UpKind)), 0, 1, 0, rng.randbytes(16), 1, 0, 0)
        frame = bytearray(struct_of(CommandHeader).pack(*header) + rng.randbytes(rng.randrange(40)))
        if rng.random() < 0.5:
            frame[rng.randrange(size)] ^= 1 << rng.randrange(8)
        self.daemon.intrude(bytes(frame[: rng.choice((3, size, len(frame)))]))

    def jump_wall(self) -> None:
        self.faults["wall clock jumped"] += 1
        self._set_wall_clock(self.rng.randrange(-HOUR, HOUR))

    def _set_wall_clock(self, by_ns: int) -> None:
        if "cancel_call" in self.acts and any("cron" in plan for plan in self.plans):
            self.books.points_may_repeat = True  # when a call is cancelled, the daemon forgets which points have run
        self.clock.jump(by_ns)
        self.daemon.wall_clock_set()
        for process in self.living:
            if self.rng.random() < 0.8:  # the other processes notice it with their next frame
                self.schedule.after(self.rng.randrange(1, MS), process.wall_clock_set)

    # the end ------------------------------------------------------------------------------------------------------

    def _heal(self) -> None:
        """End all faults: everything runs, and workers end."""
        self.calm = True
        self.books.note("calm")
        self.books.hurry = True
        self._have(CALM)
        if not self.daemon.is_up:
            self.daemon.start()
        self.daemon.go_on()
        for process in self.living:
            if process.stopped:
                process.go_on()
        for worker in self.workers:
            worker.ending = True
        if (behind_ns := self.books.latest_wall_ns - self.clock.wall_ns()) > 0:
            self._set_wall_clock(behind_ns)  # otherwise some calls would not fall due before the end
        self._pass(70 * SECOND)  # longer than the longest timeout of a worker (60 s) and its grace

    def _reckon(self) -> None:
        books, daemon = self.books, self.daemon
        daemon.check("when all is calm")
        # Silent clients whose processes no daemon sees keep their slots for an hour: a living client may find no slot.
        while self.living and self._slots_are_full():
            self._close(self.living[0], 5.0)
            self._pass(10 * SECOND)
        last = Process(
            daemon,
            Random(self.seed),
            books,
            name="last",
            window=65_536,
            maps=True,
            is_member=True,
            transport=self.transport_of_process(),
        )
        self.processes.append(last)
        last.begin(lambda: self._cancel_everything(last))
        if self.members:
            over: list[bool] = []
            last.begin(lambda: take_group_outcomes(last, Random(self.seed), lambda: bool(over), well=True))
            self.schedule.after(55 * SECOND, lambda: over.append(True))
            last.begin(lambda: handle_calls(last, Random(self.seed), ONCE, ()))
        self._pass(60 * SECOND)
        books.settle_accounts()
        books.settle_watermarks(self._watermarks())
        self._settle_letters()
        self._raise()
        last.begin(lambda: self._forget_everything(last))
        self._pass(5 * SECOND)
        for process in self.living:
            self._close(process, 5.0) if process is not last else None
        self._pass(10 * SECOND)
        self._close_last(last)
        self._pass(3 * HOUR)
        self._raise()
        assert not self.living, f"{[process.name for process in self.living]} cannot be closed"
        daemon.check("at the end")
        self._settle_letters()
        self._raise()
        look_for_leaks(self.daemon.arena)
        self._audit()

    def _audit(self) -> None:
        """Audit the journals: every outcome follows from the rows before it."""
        for directory in self.daemon.directories:
            if directory.exists() and segments_of(directory):  # else its daemons were killed before they wrote any
                # Only the last arena still exists. A journal may end anywhere, because daemons were killed.
                last = directory == self.daemon.directories[-1]
                header = self.daemon.arena.header if last and self.daemon.is_up else None
                found = audit_journal(directory, arena=header, open_end=True)
                assert not found.wrong, f"the journal: {found.wrong[:3]}"
                self.faults["outcomes that a journal tells"] += found.outcomes

    def _raise(self) -> None:
        if self.books.failures:
            raise AssertionError(self.books.failures[0])

    def _close_last(self, last: Process) -> None:
        self.books.living.append(last)
        self._close(last, 5.0)

    def _cancel_everything(self, last: Process) -> None:
        """Cancel by every key, so that operations without a deadline settle as well."""
        last.client.ready(timeout=10)
        end_ns = self.schedule.now_ns + 40 * SECOND
        while True:
            try:
                for name in PURGATORIES:
                    purgatory = last.client.purgatory(name)
                    for key in (*KEYS, *TOKENS, *MARKS, *self.books.totals, *self.books.pair_keys):
                        purgatory.cancel_for_key(key)
                last.client.flush(timeout=5)
                return
            except ArenaFullError:  # there is room again after `last` has taken the group's outcomes
                if self.schedule.now_ns > end_ns:
                    raise
                self.schedule.sleep(SECOND)

    def _slots_are_full(self) -> bool:
        arena = self.daemon.arena
        states = [arena.record(Region.CLIENTS, slot).state for slot in range(arena.region(Region.CLIENTS).count)]
        return all(state in (ClientState.LIVE, ClientState.SILENT) for state in states)

    def _forget_everything(self, last: Process) -> None:
        for key in MARKS:
            last.client.forget(key)
        for name in PERIODIC if self.members else ():
            last.client.cancel_call(name)
        last.client.flush(timeout=5)

    def _watermarks(self) -> dict[str, int]:
        return {
            each.name[: each.name_length].decode(): each.watermark
            for each in self.daemon.arena.records(Region.WATERMARKS)
            if each.used
        }

    def _settle_letters(self) -> None:
        self.books.settle_letters(*letters_of(self.daemon.memory))


def simulate(seed: int, steps: int = STEPS, transports: str | None = None) -> Simulation:
    """Run a seed to its end; raises Failure."""
    simulation = Simulation(seed, steps, transports)
    simulation.run()
    return simulation
