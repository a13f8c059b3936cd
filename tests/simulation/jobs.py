"""Handlers that note their calls, and workers with such handlers: the common parts of tests of named calls."""

from __future__ import annotations

from collections.abc import Callable

from simulation.workers import Worker
from support.fakes.networks import World
from support.rig.harness import S
from timerd.clients.messages import bare_header
from timerd_client.groups.commands import Made
from timerd_client.groups.schedule import Every
from timerd_client.groups.steps import Ask, Call, Run, Steps
from timerd_client.protocol.inbox import DeliveredOutcome
from timerd_client.types import CallExists
from timerd_shm.declare.errors import OperationExistsError, UnknownOperationError
from timerd_shm.declare.layout import Region
from timerd_shm.declare.states import OpState
from timerd_shm.declare.wire import CommandFlag, DownKind

PERIOD_NS = 10 * S


class Job:
    """A handler that notes its calls; `during` runs inside of it."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.during: Callable[[Call], None] = lambda call: None

    def __call__(self, call: Call) -> None:
        self.calls.append(call)
        self.during(call)

    def due(self) -> list[int]:
        """The points for which the handler was called, counted in periods from the first point."""
        points = [round(call.due.timestamp() * 1e9) // PERIOD_NS for call in self.calls if call.due is not None]
        return [point - points[0] for point in points]


def worker_of(
    world: World, job: Job, name: str = "job", *, periodic: bool = True, period_ns: int = PERIOD_NS
) -> Worker:
    """A worker that handles the job."""
    worker = Worker(world)
    worker.add(name, job, Every(period_ns) if periodic else None)
    return worker.handle()


def pending(world: World) -> int:
    """The number of pending operations."""
    return sum(record.state == OpState.PENDING for record in world.rig.arena.records(Region.OPS))


def later(
    worker: Worker, name: str = "job", delay: float = 1.0, payload: bytes = b"", if_exists: CallExists = "error"
) -> bool:
    """Make a call whose id is its name. Returns False if the id is taken."""
    return made(worker, worker.calls.commands.later(name, delay, payload, name, if_exists))


def made(worker: Worker, call: Made) -> bool:
    """Issue the command that makes a call. Returns whether the daemon has accepted the call."""
    answer = worker.issue(call.command)
    assert answer.error is None or isinstance(answer.error, OperationExistsError), answer.error
    return answer.error is None


def cancel(worker: Worker, id: str = "job") -> bool:
    answer = worker.issue(worker.calls.commands.cancel(id, CommandFlag.WANTS_ANSWER))
    assert answer.error is None or isinstance(answer.error, UnknownOperationError), answer.error
    return answer.error is None and bool(answer.value)


def run(world: World, workers: list[Worker], for_ns: int) -> None:
    """Let time pass. Each second, the workers carry out their calls."""
    for _ in range(for_ns // S):
        world.run(S)
        for worker in workers:
            worker.do_all()


def due_call(world: World, job: Job, *, periodic: bool = True) -> tuple[Worker, DeliveredOutcome]:
    """A worker, and a call that was just delivered to it: a call of its schedule, or one that it has made."""
    worker = worker_of(world, job, periodic=periodic)
    return worker, delivered(world, worker, [worker], periodic=periodic)[1]


def due_call_of_two(world: World, job: Job, *, periodic: bool = True) -> tuple[Worker, Worker, DeliveredOutcome]:
    """Two workers and a call: the worker to which the call was just delivered, the other worker, the call."""
    both = [worker_of(world, job, periodic=periodic) for _ in range(2)]
    holder, call = delivered(world, both[0], both, periodic=periodic)
    return holder, both[1] if holder is both[0] else both[0], call


def delivered(world: World, maker: Worker, workers: list[Worker], *, periodic: bool) -> tuple[Worker, DeliveredOutcome]:
    """`maker` begins its schedule, or makes a call. Returns the worker that gets the due call, and the call."""
    maker.begin() if periodic else later(maker, delay=0)
    world.run(PERIOD_NS if periodic else S)
    for worker in workers:
        if (call := worker.take(worker.inbox.calls)) is not None:
            return worker, call
    raise AssertionError("the call was delivered to no worker")


def begun(worker: Worker, delivered: DeliveredOutcome) -> tuple[Steps, Run]:
    """Carry a call out until just before its handler runs, and announce the run. Returns the steps, and the run."""
    steps = worker.calls.carry_out(delivered)
    step = next(steps)
    assert isinstance(step, Ask)
    run = steps.send(worker.ask(step))
    assert isinstance(run, Run)
    return steps, run


def through_handler(worker: Worker, delivered: DeliveredOutcome) -> Steps:
    """Carry a call out to the end of its handler. Returns the remaining steps."""
    steps, run = begun(worker, delivered)
    assert worker.error_of(run) is None
    return steps


def falls_silent(world: World, worker: Worker) -> None:
    """The daemon takes the worker for silent, and then gets frames from it again."""
    session = world.sessions.find(worker.protocol.session.secret)
    assert session is not None
    world.core.silence(session.slot, worker.now_ns)
    world.turn()
    world.core.revive(session.slot, worker.now_ns)
    world.settle()


def session_gone(worker: Worker) -> bytes:
    """Close the client's session in the daemon. Returns the frame that reports this to the client."""
    world = worker.world
    session = world.sessions.find(worker.protocol.session.secret)
    assert session is not None
    world.sessions.close(session, worker.now_ns, goodbye=True)
    return bare_header(DownKind.SESSION_GONE, world.core.incarnation, 0, worker.now_ns)


def registrations(world: World) -> int:
    return world.rig.arena.header.registrations
