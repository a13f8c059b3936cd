"""A process with the asyncio client. The schedule runs the client's event loop, on the simulated clock.

The workload and the books are those of threaded clients. The workload gets a `Blocking` client: when a method is a
coroutine function, the coroutine runs in the process's loop, and the caller waits on the schedule for its result.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Any

from timerd_client.aio.client import Client
from timerd_client.aio.link import LoopLink, open_links
from timerd_client.aio.operation import AioBatch, AioOperation
from timerd_client.aio.passes import LoopPasses
from timerd_client.groups.outcome import GroupOutcome
from timerd_client.link.surface import Surface
from timerd_client.protocol.deadlines import NEVER
from timerd_shm.declare.states import Orphans

from .books import PlannedFailure
from .process import Process, SimulatedConnection, SimulatedWall
from .schedule import Gate, Killed
from .unix import PATHS

if TYPE_CHECKING:
    from contextvars import Context

NOT_THERE = ("delayed", "snapshot")  # acts of a worker that the asyncio client lacks, or has in another form


class NoSelector:
    """A loop's selector without descriptors: the network calls the loop when there is input."""

    def select(self, timeout: float | None) -> list[Any]:
        return []


class Loop(asyncio.BaseEventLoop):
    """A loop that turns when the schedule runs it, and never waits."""

    _ready: Any
    _scheduled: Any
    _run_once: Callable[[], None]

    def __init__(self, process: LoopedProcess) -> None:
        super().__init__()
        self._process = process
        self._selector = NoSelector()
        self._clock_resolution = 1e-9
        self._at_ns = NEVER

    def time(self) -> float:
        return self._process.schedule.now_ns / 1e9

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = super().call_soon(callback, *args, context=context)
        self._turn_at(0)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]  # the threads of a simulation run one at a time

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = super().call_at(when, callback, *args, context=context)
        self._turn_at(math.ceil(when * 1e9))
        return handle

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self._process.alive:
            self._process.books.fail(f"{self._process.name}: its loop says {context}")

    def within(self, function: Callable[[], Any]) -> Any:
        """Call the function as if the loop were running."""
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        try:
            return function()
        finally:
            asyncio._set_running_loop(before)

    def _process_events(self, event_list: list[Any]) -> None:
        """Do nothing: there are no events."""

    def _turn_at(self, at_ns: int) -> None:
        """Turn at that time, if no turn is due before."""
        process = self._process
        at_ns = max(at_ns, process.schedule.now_ns) + process.rng.randrange(50_000)
        if at_ns < self._at_ns and process.alive:
            self._at_ns = at_ns
            process.schedule.at(at_ns, lambda: self._on_time(at_ns))

    def _on_time(self, at_ns: int) -> None:
        if at_ns != self._at_ns or self._process.hold(lambda: self._on_time(at_ns)):
            return
        self._at_ns = NEVER
        self.within(self._run_once)
        if self._ready:
            self._turn_at(0)
        elif self._scheduled:
            self._turn_at(math.ceil(self._scheduled[0].when() * 1e9))


class SimulatedPasses(LoopPasses):
    """Passes on the simulated network. In a pass, the client receives and sends until nothing is left to do."""

    _link: SimulatedLink

    def make(self) -> None:
        process = self._link.process
        process.lifeline.look()
        super().make()
        if not self._link.closed:
            process.sockets.passed()

    def watch(self, descriptor: int) -> None:
        """Do nothing: each pass looks whether the connection to the daemon (the lifeline) has ended."""

    def unwatch(self, descriptor: int) -> None:
        """Do nothing: each pass looks whether the connection to the daemon (the lifeline) has ended."""


class SimulatedLink(LoopLink):
    """The asyncio client's link, on the simulated network and clock."""

    CONNECTION = SimulatedConnection
    PASSES = SimulatedPasses
    WALL = SimulatedWall

    def __init__(self, process: LoopedProcess, orphans: Orphans, group: str | None, window: int) -> None:
        self.process = process
        schedule = process.schedule
        protocol = process.protocol(orphans, group, window)
        super().__init__(PATHS, protocol, process.sockets, lambda: schedule.now_ns)
        protocol.session.change_incarnation()
        process.sockets.on_input = self._on_input
        process.lifeline.on_end = self.connection.lifeline_ended

    def _on_input(self) -> None:
        self.loop.call_soon(self.passes.make)

    def complain(self, what: str, error: BaseException | None = None, *, often: bool = False) -> None:
        self.process.books.complaint(self.process, what, error)


class Blocking:
    """An object of the asyncio client. Its coroutine functions become methods that block their caller."""

    def __init__(self, process: LoopedProcess, target: Any) -> None:
        self._blocking = process
        self._target = target

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        process = self._blocking
        if inspect.iscoroutinefunction(value):
            return lambda *args, **more: process.wait(lambda: value(*args, **more))
        if inspect.ismethod(value) or inspect.isbuiltin(value) or inspect.isfunction(value):
            return lambda *args, **more: process.blocking(value(*args, **more))
        return value

    def __repr__(self) -> str:
        return repr(self._target)


class LoopedProcess(Process):
    """A process with an asyncio client."""

    def connect(self, orphans: Orphans, group: str | None, window: int) -> tuple[Any, Any]:
        self.loop = Loop(self)
        self._made: dict[int, Blocking] = {}
        link = self.loop.within(lambda: SimulatedLink(self, orphans, group, window))
        return link, Blocking(self, self.loop.within(lambda: Client._over(link)))

    def wait(self, begin: Callable[[], Any]) -> Any:
        """The result of a coroutine, or its error. The caller waits while the loop runs it."""
        if not self.alive:
            raise Killed
        gate = Gate(self.schedule)
        gate.acquire()
        results: list[Any] = []
        errors: list[BaseException] = []

        async def run() -> None:
            try:
                results.append(await begin())
            except BaseException as error:
                errors.append(error)
            gate.release()

        task = self.loop.create_task(run())
        gate.acquire()
        assert task is not None and (results or errors)
        if errors:
            raise errors[0]
        return self.blocking(results[0])

    def blocking(self, value: Any) -> Any:
        """The value in a form that a thread may use."""
        if isinstance(value, AsyncIterator):
            return self._iterated(value)
        if isinstance(value, (AioOperation, AioBatch, GroupOutcome, Surface)):
            return self._made.setdefault(id(value), Blocking(self, value))
        return value

    def _iterated(self, outcomes: AsyncIterator[Any]) -> Iterator[Any]:
        try:
            while True:
                try:
                    yield self.wait(outcomes.__anext__)
                except StopAsyncIteration:
                    return
        finally:
            if self.alive:
                self.wait(outcomes.aclose)  # type: ignore[attr-defined]

    def handler(self, handler: Callable[..., None]) -> Callable[..., Any]:
        """The coroutine function that runs this handler, which is written for a thread."""

        async def handle(*given: Any) -> None:
            ended: asyncio.Future[None] = self.loop.create_future()

            def body() -> None:
                failed: Exception | None = None
                try:
                    handler(*given)
                except PlannedFailure as error:
                    failed = error
                finally:
                    if not ended.done():
                        ended.set_result(None) if failed is None else ended.set_exception(failed)

            caller = self.begin(body)
            try:
                await ended
            except asyncio.CancelledError:
                caller.kill()
                raise

        return handle

    def kill(self) -> None:
        if not self.alive:
            return
        try:
            super().kill()
        finally:
            self.link.sealed = self.link.closed = True  # the remaining coroutines do nothing
            open_links.discard(self.link)
            for task in asyncio.all_tasks(self.loop):
                coroutine = task.get_coro()
                if inspect.iscoroutine(coroutine):
                    coroutine.close()
