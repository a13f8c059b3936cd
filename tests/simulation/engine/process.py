"""A process with one client. The client is the real one, but it has no I/O thread: the schedule makes its passes.

In a pass, the client receives and sends until nothing is left to do.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

from support.fakes.networks import HERE, PROCESSES, STOPPED
from timerd_client.link import link as link_module
from timerd_client.link.connection import Connection
from timerd_client.link.link import Wall
from timerd_client.protocol.deadlines import NEVER
from timerd_client.protocol.protocol import Protocol
from timerd_client.protocol.session import Identity
from timerd_client.threaded.client import Client
from timerd_client.threaded.io_thread import IoThread
from timerd_client.threaded.link import ThreadedLink
from timerd_client.threaded.sender import Bell, ThreadedSender
from timerd_client.threaded.waiters import ThreadedWaiters
from timerd_shm.declare.limits import TAKEOVER_MS
from timerd_shm.declare.states import Orphans

from .daemon import Daemon
from .network import Lifeline, Sockets
from .schedule import Act, Caller, Condition, Gate, Schedule
from .unix import PATHS, PacketEnd, PacketSockets

if TYPE_CHECKING:
    from .books import Books

GROUP = "workers"


class Process:
    """A process that may be killed, stopped and continued; it holds one client."""

    made = 0

    def __init__(
        self,
        daemon: Daemon,
        rng: Random,
        books: Books,
        *,
        name: str,
        window: int,
        maps: bool,
        shares_clock: bool = True,
        is_member: bool,
        orphans: Orphans = Orphans.CANCEL,
        transport: str = "zeromq",
        takeover_ms: int = TAKEOVER_MS,
    ) -> None:
        self.name = name
        self.schedule: Schedule = daemon.schedule
        self.daemon = daemon
        self.rng = rng
        self.books = books
        self.alive = True
        self.shares_clock = shares_clock
        self.stopped = False
        self.closing = False
        self.takeover_ms = takeover_ms
        self.refused: set[tuple[bytes, int]] = set()
        self._held: list[Act] = []
        self.callers: list[Caller] = []
        self.pid = 1 + len(PROCESSES) + rng.randrange(1 << 20)
        while self.pid in PROCESSES:
            self.pid += 1
        PROCESSES[self.pid] = rng.getrandbits(32)
        self.lifeline: Lifeline | PacketEnd
        self.sockets: Sockets | PacketSockets
        if transport == "unix":
            self.sockets = PacketSockets(daemon.kernel, daemon.end_connection, lambda: daemon.memory if maps else None)
            self.lifeline = self.sockets.packet_end
        else:
            self.lifeline = Lifeline(self.schedule, lambda: daemon.lifelines, daemon.look)
            self.sockets = Sockets(
                daemon.network, self.lifeline, lambda: daemon.memory if maps else None, process=-self.pid
            )
        self.link, self.client = self.connect(orphans, GROUP if is_member else None, window)

    def connect(self, orphans: Orphans, group: str | None, window: int) -> tuple[Any, Any]:
        """A link, and a threaded client on it."""
        link = PumpedLink(self, orphans, group, window)
        return link, Client._over(link)

    def identity(self, orphans: Orphans, group: str | None) -> Identity:
        """The identity that its client shows in a hello."""
        return Identity(
            self.name,
            self.pid,
            PROCESSES[self.pid],
            HERE.pid_namespace,
            HERE.time_namespace if self.shares_clock else 0,
            HERE.boot_id,
            orphans,
            group,
            self.takeover_ms,
        )

    def protocol(self, orphans: Orphans, group: str | None, window: int) -> Protocol:
        """The protocol of its client. The first incarnation is not drawn: the link draws one after its first wake-up.

        So the draws keep the order that they had when the tests' seeds were chosen.
        """
        draws = iter([bytes])
        return Protocol(
            self.identity(orphans, group),
            self.schedule.now_ns,
            lambda size: next(draws, self.rng.randbytes)(size),
            window,
        )

    def has(self, session: bytes) -> bool:
        """Whether the process lives, and its client is not closed and has this session."""
        return self.alive and not self.link.closed and bool(self.link.protocol.session.secret == session)

    def begin(self, body: Callable[[], None]) -> Caller:
        """Start another thread of this process."""
        caller = Caller(self.schedule, body, self.hold)
        self.callers.append(caller)
        caller.start()
        return caller

    def handler(self, handler: Callable[..., None]) -> Callable[..., Any]:
        """A handler, or an on_failure, as its client takes it."""
        return handler

    def hold(self, act: Act) -> bool:
        """Whether `act` must not happen now. A dead process never does it, a stopped one does it when it goes on."""
        if self.stopped and self.alive:
            self._held.append(act)
        return self.stopped or not self.alive

    def stop(self) -> None:
        """SIGSTOP."""
        self.stopped = True
        STOPPED.add(self.pid)

    def stall(self) -> None:
        """Something keeps the GIL: the process does nothing, although the kernel shows it as running."""
        self.stopped = True

    def stop_if_stalled(self) -> None:
        """SIGSTOP, if it is still stalled."""
        if self.stopped and self.alive:
            self.stop()

    def go_on(self) -> None:
        """SIGCONT, or the GIL is free again."""
        self.stopped = False
        STOPPED.discard(self.pid)
        held, self._held = self._held, []
        for act in held:
            self.schedule.at(self.schedule.now_ns, act)

    def wall_clock_set(self) -> None:
        """Somebody has set the wall clock: the kernel wakes the process."""
        if not self.hold(self.wall_clock_set) and not self.link.closed:
            self.link.wall.was_set()

    def kill(self) -> None:
        """SIGKILL: its descriptors are closed, and its threads end."""
        if not self.alive:
            return
        self.alive = False
        del PROCESSES[self.pid]
        STOPPED.discard(self.pid)
        self.sockets.close(linger=False)
        self.lifeline.let_go()
        link_module.links.discard(self.link)
        for caller in self.callers:
            caller.kill()
        self.books.died(self)


class PumpBell(Bell):
    """A bell that brings the next pass forward."""

    pump: Pump

    def open(self) -> int:
        self.ring()
        return -1

    def ring(self) -> None:
        self.pump.wake_at(0)


class PumpedSender(ThreadedSender):
    """A sender whose bell wakes a Pump."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.bell: PumpBell = PumpBell()

    def ring(self) -> None:
        self.bell.ring()


class Pump(IoThread):
    """Stands for the link's I/O thread: the schedule makes its passes."""

    def __init__(self, link: PumpedLink, *others: Any) -> None:
        super().__init__(link, *others)
        link.sender.bell.pump = self
        self._process = link.process
        self._at_ns = NEVER
        self._gate: Gate | None = None
        self.over = False

    def start(self) -> None:
        self._sender.bell.open()

    def is_current(self) -> bool:
        return self._process.schedule.current is None

    def _join(self, timeout: float | None) -> bool:
        if not self.over:
            self._gate = Gate(self._process.schedule)
            self._gate.acquire()
            self._gate.acquire(timeout=-1 if timeout is None else timeout)
        return self.over

    def watch(self, descriptor: int) -> None:
        """Do nothing: each pass looks whether the connection to the daemon (the lifeline) has ended."""

    def unwatch(self, descriptor: int) -> None:
        """Do nothing: each pass looks whether the connection to the daemon (the lifeline) has ended."""

    def wake_at(self, at_ns: int) -> None:
        """Make a pass at that time, if none is due before."""
        process = self._process
        at_ns = max(at_ns, process.schedule.now_ns) + process.rng.randrange(50_000)
        if at_ns < self._at_ns and not self.over:
            self._at_ns = at_ns
            process.schedule.at(at_ns, lambda: self._on_time(at_ns))

    def _on_time(self, at_ns: int) -> None:
        if at_ns == self._at_ns and not self._process.hold(lambda: self._on_time(at_ns)):
            self._at_ns = NEVER
            self._pass()

    def _pass(self) -> None:
        process = self._process
        self._link.idle = False
        process.lifeline.look()
        if self.exchange():
            process.sockets.passed()
            self.wake_at(self._sender.due_ns())
            return
        self.end_passes()
        self.over = True
        if self._gate is not None:
            self._gate.release()


class PumpedWaiters(ThreadedWaiters):
    """Callers wait on the schedule."""

    def __init__(self, link: PumpedLink) -> None:
        self._process = link.process
        super().__init__(link)

    def _condition(self) -> Any:
        return Condition(self._process.schedule, self._link.lock)

    def gate(self) -> Any:
        return Gate(self._process.schedule, closed=True)

    def new_thread(self, run: Callable[[], None], name: str) -> Any:
        caller = Caller(self._process.schedule, run, self._process.hold)
        self._process.callers.append(caller)
        return caller


class SimulatedConnection(Connection):
    """Each complaint goes into the books: complaints name the commands that were refused."""

    def received(self) -> None:
        complaints, self._protocol.incoming.complaints = self._protocol.incoming.complaints, []
        for complaint in complaints:
            self._link.complain(complaint)
        super().received()


class SimulatedWall(Wall):
    """The simulated wall clock. The fault that sets it calls `was_set`."""

    def __init__(self, link: Any) -> None:
        super().__init__(link)
        self._clock = link.process.schedule.clock

    def now_ns(self) -> int:
        return int(self._clock.wall_ns())

    def watch(self) -> None:
        """Do nothing."""


class PumpedLink(ThreadedLink):
    """A threaded link whose I/O thread is a Pump, and whose callers wait on the schedule."""

    CONNECTION = SimulatedConnection
    SENDER = PumpedSender
    WAITERS = PumpedWaiters
    THREAD = Pump
    WALL = SimulatedWall
    sender: PumpedSender
    thread: Pump

    def __init__(self, process: Process, orphans: Orphans, group: str | None, window: int) -> None:
        self.process = process
        schedule = process.schedule
        protocol = process.protocol(orphans, group, window)
        super().__init__(PATHS, protocol, process.sockets, lambda: schedule.now_ns)
        protocol.session.change_incarnation()
        process.sockets.on_input = self.sender.bell.ring
        process.lifeline.on_end = self.connection.lifeline_ended

    def complain(self, what: str, error: BaseException | None = None, *, often: bool = False) -> None:
        self.process.books.complaint(self.process, what, error)
