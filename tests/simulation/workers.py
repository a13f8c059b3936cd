"""The real protocol of the client with the real conductor, on the network in memory of support/fakes/networks.py.

worker = Worker(World()).listen()
delivered = worker.take(worker.inbox.outcomes)        # what the caller of `outcomes()` would get
worker.do(worker.calls.begin("job"))             # the steps that begin a schedule, without a thread
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import nullcontext, suppress
from itertools import count
from types import SimpleNamespace
from typing import Any, cast

from support.fakes.networks import HERE, Lifelines, World
from timerd_client.groups.carrier import Carrier
from timerd_client.groups.duties import Duties
from timerd_client.groups.outcome import acknowledge, issue
from timerd_client.groups.registry import Job
from timerd_client.groups.schedule import Schedule
from timerd_client.groups.steps import NOT_ACKNOWLEDGED, Acknowledge, Ask, Call, Pause, Run, Step, Steps
from timerd_client.link.link import Link
from timerd_client.link.promise import Reply
from timerd_client.protocol.inbox import DeliveredOutcome
from timerd_client.protocol.protocol import Protocol
from timerd_client.protocol.session import Identity
from timerd_client.protocol.state import LinkState
from timerd_shm.declare.errors import TimerdError
from timerd_shm.declare.states import Orphans
from timerd_wire.refusals import NO_SUBJECT, Subject


class Failed(Exception):
    """An error that a test's handler raises on purpose."""


class Answer:
    """The receiver of an answer."""

    def __init__(self) -> None:
        self.come = False
        self.value: Any = None
        self.error: TimerdError | None = None

    def notify(self) -> None:
        """No thread waits."""

    def subject(self, command: int) -> Subject:
        return NO_SUBJECT

    def answer(self, value: Any, error: TimerdError | None = None) -> bool:
        self.come, self.value, self.error = True, value, error
        return False


class Worker:
    """The client's real protocol on the network, with its inbox and its named calls. The test plays the caller."""

    made = 0

    def __init__(self, world: World, group: str | None = "web", orphans: Orphans = Orphans.CANCEL) -> None:
        Worker.made += 1
        self.world = world
        self.routing = 1_000_000 + Worker.made
        identity = Identity(
            f"w{Worker.made}",
            pid_namespace=HERE.pid_namespace,
            time_namespace=HERE.time_namespace,
            boot_id=HERE.boot_id,
            orphans=orphans,
            group=group,
        )
        self.protocol = Protocol(identity, self.now_ns)
        self.inbox = self.protocol.inbox
        self.complaints: list[str] = []
        self.calls = Carrier(
            self.protocol, lambda what, error: self.complaints.append(what), world.wall_ns, world.clock.now_ns
        )
        link = SimpleNamespace(
            lock=nullcontext(),
            check_open=lambda: None,
            wake_if_due=lambda issued: None,
            protocol=self.protocol,
            wall=SimpleNamespace(now_ns=world.wall_ns),
            now_ns=world.clock.now_ns,
        )
        self.link = cast(Link, link)
        self.duties = Duties(self.link, self.calls)
        self.paused: list[tuple[int, Steps]] = []
        self.steps: list[Step] = []  # the steps that were done
        self.lifeline = 0
        self._lifelines: Lifelines | None = None
        self.wait(lambda: self.protocol.state is LinkState.LIVE)

    @property
    def now_ns(self) -> int:
        return self.world.clock.now_ns()

    def pump(self) -> None:
        """Exchange frames with the daemon until neither side has any."""
        network, protocol = self.world.network, self.protocol
        for _ in range(100):
            if self.now_ns >= protocol.poll_deadline():
                protocol.tick(self.now_ns)
            frames = []
            while (frame := protocol.next_frame(self.now_ns)) is not None:
                frames.append((self.routing, frame))
            network.up += frames
            while protocol.session.subscriptions:
                network.asking.append((self.routing, protocol.session.subscriptions.popleft()))
            self.world.settle()
            if not self.receive() and not frames:
                if protocol.state is LinkState.LIVE and self._lifelines is not self.world.lifelines:
                    self._lifelines = self.world.lifelines  # after a restart: those of another daemon
                    self.lifeline = self._lifelines.connect(protocol.session.secret)
                    self.world.settle()
                return
        raise AssertionError("the daemon and the client never stop sending")

    def receive(self, *, published: bool = True) -> bool:
        """Take in the frames that have come. With `published` = False, leave the published frames."""
        network = self.world.network
        received = [(frame, True) for frame in (network.published.pop(self.routing, []) if published else [])]
        received += [(frame, False) for frame in network.answers.pop(self.routing, [])]
        for frame, was_published in received:
            self.protocol.receive(frame, self.now_ns, published=was_published)
        self.protocol.incoming.take_ready()
        return bool(received)

    def listen(self) -> Worker:
        self.inbox.listen(self.now_ns)
        self.pump()
        return self

    def add(self, name: str, handler: Callable[[Call], Any], schedule: Schedule | None = None, **more: Any) -> None:
        """Add a handler. `handle` registers it with the daemon."""
        self.calls.jobs[name] = Job(handler, schedule, **more)

    def handle(self, at_once: int = 1) -> Worker:
        """Begin to take the calls for which this worker has handlers."""
        self.inbox.handle(list(self.calls.jobs), at_once, self.now_ns)
        self.pump()
        return self

    def take(self, queue: deque[DeliveredOutcome]) -> DeliveredOutcome | None:
        """The outcome that a caller would get, after the queries that this needs."""
        self.pump()
        for _ in range(3):
            delivered = self.inbox.next(queue, self.now_ns)
            if delivered is not None:
                return delivered
            self.pump()
        return None

    def ask(self, step: Ask) -> tuple[Any, Any]:
        """(value, error) of the answer to a step's command."""
        answer = self.issue(*step)
        return answer.value, answer.error

    def issue(
        self, command: bytes, done: DeliveredOutcome | None = None, about: DeliveredOutcome | None = None
    ) -> Answer:
        """Issue a command that wants an answer, and wait for it."""
        answer = Answer()
        if not issue(self.link, command, done, cast(Reply, answer), about=about):
            answer.answer(*NOT_ACKNOWLEDGED)
        self.wait(lambda: answer.come)
        return answer

    def wait(self, condition: Callable[[], bool]) -> None:
        """Exchange frames with the daemon until the condition holds. Time passes only if it does not hold at once."""
        self.pump()
        for _ in range(200):
            if condition():
                return
            self.world.run(50_000_000)
            self.pump()
        raise AssertionError(f"the condition never holds; {self.protocol.status(self.now_ns)}")

    def ack(self, delivered: DeliveredOutcome) -> int:
        """Acknowledge an outcome. Returns 1 if this member still held the outcome, else 0."""
        answer = Answer()
        acknowledge(self.link, delivered, cast(Reply, answer))
        self.wait(lambda: answer.come)
        return int(answer.value)

    def holds(self, delivered: DeliveredOutcome) -> bool:
        """Whether this member holds the outcome, by the daemon's answer."""
        answer = Answer()
        self.protocol.query({"query": "held", "operations": [delivered.record.operation]}, answer, self.now_ns)
        self.wait(lambda: answer.come)
        return bool(answer.value["held"])

    def begin(self, name: str = "job") -> None:
        """Begin a schedule: do its steps up to the first pause."""
        steps = self.calls.begin(name)
        step = next(steps)
        assert isinstance(step, Ask)
        with suppress(StopIteration):
            assert isinstance(steps.send(self.ask(step)), Pause)

    def do(self, steps: Steps, cut: int | None = None) -> bool:
        """Do the steps. With `cut`, do only `cut` of them, and then die. Returns whether the worker lives."""
        value: Any = None
        for number in count():
            if number == cut:
                self.die()
                return False
            try:
                step = steps.send(value)
            except StopIteration:
                return True
            self.steps.append(step)
            value = None
            match step:
                case Ask():
                    value = self.ask(step)
                case Run():
                    value = self.error_of(step)
                case Acknowledge(command, done):
                    issue(self.link, command, done)
                    self.pump()
                case Pause(seconds):
                    self.world.run(round(seconds * 1e9))
        return False

    def do_all(self, cut: int | None = None) -> bool:
        """Carry out the calls that were delivered. Returns whether the worker lives."""
        while (delivered := self.take(self.inbox.calls)) is not None:
            if not self.do(self.calls.carry_out(delivered), cut):
                return False
        return True

    def serve(self) -> None:
        """Do what a runner would do now: begin schedules, carry out delivered calls, go on with steps after a pause."""
        while True:
            self.pump()
            due = [steps for at, steps in self.paused if at <= self.now_ns]
            self.paused = [(at, steps) for at, steps in self.paused if at > self.now_ns]
            duty = self.duties.next(self.now_ns)
            due += [] if duty is None else [duty.steps]
            for steps in due:
                self._go_on(steps)
            if not due and not self.duties.may_have():
                return

    def _go_on(self, steps: Steps) -> None:
        """Do the steps until they end, or pause."""
        value: Any = None
        with suppress(StopIteration):
            while True:
                step = steps.send(value)
                value = None
                match step:
                    case Ask():
                        value = self.ask(step)
                    case Run():
                        value = self.error_of(step)
                    case Acknowledge(command, done):
                        issue(self.link, command, done)
                    case Pause(seconds):
                        self.paused.append((self.now_ns + round(seconds * 1e9), steps))
                        return

    @staticmethod
    def error_of(step: Run) -> Exception | None:
        """Run a handler. Returns its error, or None."""
        try:
            step.function(*step.arguments)
        except Failed as error:  # other errors fail the test
            return error
        return None

    def die(self) -> None:
        """Die as after SIGKILL: end of file on the liveness connection, and nothing else."""
        if self._lifelines is self.world.lifelines:  # else the daemon was started after the last connection was made
            self._lifelines.cut(self.lifeline)
        self.world.network.leave(self.routing)
        self.world.settle()
