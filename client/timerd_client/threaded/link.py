"""The link of a threaded client. Its I/O thread receives, and sends under load; otherwise callers send themselves.

A caller writes its command down with the lock held. When it was quiet, the caller sends it as well, which is quicker
than waking a thread. Under load the thread sends what has piled up, every SEND_INTERVAL_NS, until nothing piles up any
more: so a call costs no system call. Callbacks run in the thread and must not block.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import threading
import time
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from time import monotonic, monotonic_ns
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from timerd_client.link.flows import Do, Evaluate, Finish, Flow, Settles, Sleep, Step, Until
from timerd_client.link.link import Link
from timerd_client.link.use import Use, Users
from timerd_client.main_thread import main_has_ended
from timerd_client.protocol.deadlines import NEVER
from timerd_client.transport.sockets import Sockets
from timerd_client.waits.gate import Gate
from timerd_client.waits.green import GreenCallback, GreenGate
from timerd_client.waits.scope import noted
from timerd_client.waits.slices import DrivenQueue
from timerd_shm.declare.errors import BackpressureError, InvalidValueError
from timerd_shm.declare.limits import BACKPRESSURE_TIMEOUT_S, CLOSE_TIMEOUT_S, TAKEOVER_MS
from timerd_shm.declare.states import Orphans
from timerd_shm.host.paths import InstancePaths
from timerd_wire import native
from timerd_wire.poller import Poller, sharpen
from timerd_wire.spacing import Spacing

from .caller import CallerGate, Callers
from .no_thread import DrivenGate, NoThread
from .seat import Seat

if TYPE_CHECKING:
    import asyncio

Value = TypeVar("Value")
POLL_NS_MAX = 60_000_000_000
SEND_INTERVAL_NS = 100_000  # under load: the least time from one frame of commands to the next
SEND_INTERVAL_NS_MAX = 1_000_000  # and the longest
SEND_COMMANDS = 512  # if so many pile up, the thread does not get the GIL: callers then send again
SEND_BURST = 4  # so many frames may follow each other at once when it was quiet
SEND_REST = 3  # intervals for each pass: while the thread works, the callers do not have the GIL


class Waiter(NamedTuple):
    """A caller that waits at a Condition."""

    gate: Gate
    condition: Callable[[], bool]
    one_of: object | None  # callers that wait for the same, and of whom one is enough


class Condition:
    """A condition at which callers wait with a lock held. Afterwards they hold it, even if a signal handler has raised.

    With threading.Condition they may not hold it then, and leaving `with lock` would release it for another thread, as
    the client's own. A signal handler runs between calls of Python. So one call of C, `extend`, acquires the lock and
    notes that: it has done both, or neither. A second handler that raises before the first error was handled is not
    provided for.
    """

    def __init__(self, lock: threading.Lock, gate: Callable[[], Gate]) -> None:
        self._lock = lock
        self._gate = gate
        self._waiting: list[Waiter] = []

    def notify_all(self) -> None:
        """With the lock held: wake all callers that wait, so that they look at their conditions."""
        for waiter in list(self._waiting):
            self._wake(waiter)

    def notify(self) -> None:
        """With the lock held: as notify_all(), but of callers that wait for the same wake one, if its condition holds.

        For example, 32 threads wait for calls, and a call comes: then one thread wakes.
        """
        looked_at: set[object] = set()
        for waiter in list(self._waiting):
            if waiter.one_of is None or (waiter.one_of not in looked_at and waiter.condition()):
                self._wake(waiter)
            looked_at.add(waiter.one_of)

    def _wake(self, waiter: Waiter) -> None:
        """In this order: a signal handler that raises here leaves the other waiters in the list."""
        waiter.gate.open()
        self._waiting.remove(waiter)

    def wait_for(self, condition: Callable[[], bool], timeout: float | None, one_of: object | None = None) -> bool:
        """With the lock held: until the condition holds, `timeout` seconds at most; whether it does."""
        end = None if timeout is None else monotonic() + timeout
        while not condition():
            left = -1 if end is None else end - monotonic()
            if end is not None and left <= 0:
                return False
            self._wait(min(left, threading.TIMEOUT_MAX), condition, one_of)
        return True

    def _wait(self, seconds: float, condition: Callable[[], bool], one_of: object | None) -> None:
        waiter = Waiter(self._gate(), condition, one_of)
        gate = waiter.gate
        self._waiting.append(waiter)
        acquired: list[bool] = []
        raised: BaseException | None = None
        try:
            self._lock.release()
            gate.wait(None if seconds < 0 else seconds)
        except BaseException as error:
            raised = error
        while not acquired:
            try:
                acquired.extend(map(self._lock.acquire, (True,)))
            except BaseException as error:
                raised = error
        if waiter in self._waiting:
            self._waiting.remove(waiter)
        elif raised is not None and one_of is not None:
            self.notify()  # this caller was woken, and will not look: another one does
        if raised is not None:
            try:
                raise raised
            finally:
                raised = None  # else its traceback, and all that its frames hold, would wait for the collector


class ThreadedLink(Link):
    """A link whose sockets belong to a thread.

    The thread keeps the link, and so its descriptors, for as long as somebody uses it: a client or a purgatory that
    the caller still has, a pending operation, a grant that nobody has looked at, a command that is not acknowledged, or
    a handler of named calls. A client that was dropped without close() ends soon after that, as if it had been closed.
    """

    def __init__(
        self,
        paths: InstancePaths,
        name: str,
        orphans: Orphans,
        group: str | None,
        sockets: Sockets,
        now_ns: Callable[[], int] = monotonic_ns,
        purgatories: Sequence[str] | None = None,
        takeover_ms: int = TAKEOVER_MS,
    ) -> None:
        self._green = native.is_green()
        self._bell = -1
        self.before_stop: list[Callable[[float], None]] = []  # what must end before the connection
        self._poller = Poller()
        self._spacing = Spacing(SEND_INTERVAL_NS, SEND_INTERVAL_NS_MAX, SEND_BURST, rest=SEND_REST)
        self._woke_ns = 0  # when the present pass of the thread began
        self._next_frame_ns = NEVER  # under load: when the thread sends next
        self._callers = Callers(self)
        self._seat: Seat | None = None
        self.planned_ns = 0  # when the thread wakes next by itself
        super().__init__(paths, name, orphans, group, sockets, now_ns, purgatories, takeover_ms)
        self._moved = self.condition()  # notified when commands were applied or the state has changed
        self.movers = 0  # callers that wait until the link makes progress
        self._stopping = False
        self._users = Users()
        self._thread: native.Thread | NoThread = NoThread(self) if main_has_ended() else self.io_thread()
        try:
            self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            self._seat = Seat(sockets.filenos()) if sockets.filenos() else None
            self._begin()
        except BaseException:  # no file can be opened, or no thread be started
            self.sealed = self.closed = True
            self.close_own()
            raise

    def _begin(self) -> None:
        """Watch the descriptors, and start the thread, if the interpreter begins any still."""
        self._poller.register(self._bell)
        try:
            self._thread.start()
        except RuntimeError as error:
            if "interpreter shutdown" not in str(error):
                raise
            self._thread = NoThread(self)
        self.has_no_thread = isinstance(self._thread, NoThread)
        if self.has_no_thread and self._seat is not None:
            self._take_seat(self._seat)

    def io_thread(self) -> native.Thread:
        """The thread of the sockets; the caller starts it."""
        return native.Thread(self._run, "timerd-client")

    def thread(self, run: Callable[[], None], name: str) -> threading.Thread:
        """A thread of this client, or with gevent a greenlet; the caller starts it."""
        return threading.Thread(target=run, name=name, daemon=True)

    def use(self) -> Use:
        """The caller keeps what is returned for as long as it uses this link."""
        return self._users.begin()

    def _is_abandoned(self) -> bool:
        """Whether nobody uses this link, and nothing is pending. With the lock held."""
        return self._users.are_gone and not (self.protocol.incoming.has_pending() or self.before_stop or self.movers)

    def in_own_thread(self) -> bool:
        """Whether the caller is a callback, which runs in the thread of the sockets."""
        return self._thread.is_current()

    def must_not_wait(self) -> bool:
        """So it is for the thread of the sockets, and for a caller that has the seat."""
        return self.in_own_thread() or self._callers.is_seated()

    def condition(self) -> Condition:
        """A condition at which callers wait with the lock held."""
        return Condition(self.lock, self._plain_gate)

    def wake(self) -> None:
        protocol = self.protocol
        self.alarm = self._next_alarm()
        if not protocol.wants_to_send():
            return
        now_ns = self.now_ns()
        if now_ns >= self._spacing.due_ns and self.send_locked(now_ns):
            self._spacing.done(now_ns)
            # Sending may have used up the edge that would have woken the thread for an answer.
            if not protocol.wants_to_send() and not self.sockets.has_answer():
                return
        if self.idle or self._unsent is not None:
            self.idle = False
            self.wake_thread()

    def _next_alarm(self) -> int:
        """The command that wakes the thread, though it is about to send; at the end of the process each one."""
        return 0 if self.ends_with_process else self.protocol.ledger.issued + SEND_COMMANDS

    def send_for_caller(self) -> None:
        """A caller is about to wait, so it writes nothing more down: send what is there, however lately a frame was.

        With the lock held.
        """
        now_ns = self.now_ns()
        while self.protocol.wants_to_send() and self.send_locked(now_ns):
            pass
        if self._unsent is not None or self.sockets.has_answer():
            self.wake_thread()  # it sends when there is room; and sending may have used up the edge of the answer

    def wake_thread(self) -> None:
        """Wake the thread for a pass."""
        os.eventfd_write(self._bell, 1)

    def gate(self) -> Gate:
        return self._plain_gate() if self._green or self.has_no_thread else CallerGate(self._callers)

    def _plain_gate(self) -> Gate:
        """The gate of a caller that does not receive itself."""
        if self.has_no_thread:
            return DrivenGate(self)
        return GreenGate() if self._green else Gate()

    def queue(self) -> SimpleQueue[Any]:
        return DrivenQueue(self.drive) if self.has_no_thread else super().queue()

    def callback(self, callback: Callable[[Any], object]) -> Callable[[Any], object]:
        if not self._green or isinstance(getattr(callback, "__self__", None), Gate):
            return callback
        return GreenCallback(callback, self.complain)

    def needs_its_thread(self) -> bool:
        """Whether there is something that only the thread does. With the lock held."""
        return bool(
            self.movers
            or self._chores
            or self.closed
            or self._unsent is not None  # a caller with the seat would be woken by the room, and not send
            or self.protocol.session.arena != self._mapped
        )

    def may_block(self) -> None:
        if self.in_own_thread():
            raise RuntimeError(
                "a callback of the client's own thread must not wait for the client: it would wait for itself"
            )

    def make_room(self) -> None:
        outgoing = self.protocol.outgoing
        in_callback = self.in_own_thread()
        self.confirm_locked()
        patience_s = 0.0 if self.ends_with_process else BACKPRESSURE_TIMEOUT_S  # then each call has waited before
        if in_callback or not self.wait_locked(lambda: outgoing.room > 0 or self.sealed, patience_s):
            late = "" if in_callback else f", and none was acknowledged within {patience_s:g} s"
            raise noted(BackpressureError(f"{self.fullness()}{late} ({self.plight()}); {self.relief()}"))
        if self.sealed:
            self.refuse_closed()

    def ring(self) -> None:
        """Wake the thread for a pass. Needs no lock."""
        if self.idle and not self.closed:
            with contextlib.suppress(OSError):  # the thread ends
                self.wake_thread()

    def notify_locked(self) -> None:
        """With the lock held: wake those who wait, so that they look at their conditions."""
        self._moved.notify_all()

    def progressed_locked(self) -> None:
        """With the lock held: reports were taken. Wake those who wait; of callers that wait for the same, one."""
        self._moved.notify()

    def wait_locked(self, condition: Callable[[], bool], timeout: float | None, one_of: object | None = None) -> bool:
        """With the lock held: wait until the condition holds, `timeout` seconds at most. Returns whether it holds.

        Of callers with the same `one_of`, which wait for the same, one is woken at a time (Condition.notify).
        """
        self.movers += 1
        try:
            return self._moved.wait_for(condition, timeout, one_of)
        finally:
            self.movers -= 1

    def received(self) -> None:
        super().received()
        if self.movers:
            with self.lock:
                self._moved.notify()

    def watch(self, descriptor: int) -> None:
        self._poller.register(descriptor)

    def unwatch(self, descriptor: int) -> None:
        self._poller.unregister(descriptor)

    def call_in_loop(self, loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(call)

    def finish(self, timeout: float) -> None:
        """Start no more handlers, and wait until those that run have returned, `timeout` seconds at most."""
        for stop in self.before_stop:
            stop(timeout)

    def end_handlers(self, timeout: float) -> None:
        self.finish(timeout)

    def drive(self, seconds: float) -> None:
        if isinstance(self._thread, NoThread):
            self._thread.go_on(seconds)
        else:
            super().drive(seconds)

    def stop(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """End the thread, which closes the sockets. Waits `timeout` seconds at most."""
        with self.lock:
            if self._stopping:
                return
            self.sealed = self._stopping = True
            self.wake_thread()
        if not self.in_own_thread() and not self._thread.join(timeout):
            self.complain("its thread still runs a callback: it ends after that")

    def _run(self) -> None:
        sharpen()
        if self._seat is not None:
            self._take_seat(self._seat)
        try:
            while self.exchange():
                self.sleep(POLL_NS_MAX)
        finally:
            self.end_passes()

    def end_passes(self) -> None:
        """After the last pass: close all."""
        self._callers.end()
        self.end()
        self.close_own()

    def _take_seat(self, seat: Seat) -> None:
        if not self.has_no_thread:
            self._callers.begin(seat)
        self._poller.register(seat.fileno())

    def watch_sockets(self) -> None:
        self._seat = Seat(self.sockets.filenos())
        self._take_seat(self._seat)

    def close_own(self) -> None:
        """Close the descriptors that are not the sockets'."""
        with self.lock:
            bell, self._bell = self._bell, -1
        if bell >= 0:
            os.close(bell)
        if self._seat is not None:
            self._seat.close()

    def exchange(self) -> bool:
        """One pass: take what came in, do and send what is due. False if the thread is to end."""
        sockets, answers = self.sockets, False
        self._woke_ns = self.now_ns()
        while True:
            with self.lock:
                receives = self._callers.begin_pass()
            # Else a caller receives; but a send may have used up the edge of an answer.
            self.receive_some(outcomes=receives, answers=answers or not receives)
            now_ns = self.now_ns()
            self.tick(now_ns)
            with self.lock:
                has_subscribed = receives and self._subscribe()
                if receives:
                    self._callers.end_pass()
                if self._stopping:
                    return False
                if self._is_abandoned():
                    self.sealed = self._stopping = True
                    return False
                if has_subscribed:
                    continue  # sending may have used up the edge of something that came in
                self._send_due(now_ns)
                answers = sockets.has_answer()  # the same; but here it is checked
                if not answers and (self._unsent is None or not sockets.has_room()):
                    self.idle = self._next_frame_ns == NEVER and self._unsent is None
                    self.planned_ns = self.due_ns()
                    return True

    def _subscribe(self) -> bool:
        """Connect for outcomes, if that is due; whether it was. With the lock and the seat."""
        subscriptions = self.protocol.session.subscriptions
        if self._stopping or not subscriptions:
            return False
        self.sockets.subscribe(subscriptions.popleft())
        return True

    def _send_due(self, now_ns: int) -> None:
        """Send frames without commands at once, and commands if they are due. With the lock held."""
        protocol, spacing = self.protocol, self._spacing
        while (protocol.has_messages or self._unsent is not None) and self.send_locked(now_ns):
            pass
        if self._unsent is not None:  # the socket is full; its descriptor becomes readable when there is room
            self._next_frame_ns = NEVER
        elif protocol.has_commands:
            at_ns = min(self._next_frame_ns, max(spacing.due_ns, now_ns))
            # The thread is awake, so commands that are due within half an interval need no wake-up of their own.
            if now_ns < at_ns - spacing.interval_ns // 2:
                self._next_frame_ns = at_ns
                return
            while self.send_locked(now_ns):
                pass
            spacing.done(now_ns, self.now_ns() - self._woke_ns + self.sockets.wake_ns)
            self.alarm = self._next_alarm()
            self._next_frame_ns = now_ns + spacing.interval_ns
        elif now_ns >= self._next_frame_ns:
            self._next_frame_ns = NEVER

    def due_ns(self) -> int:
        """When the next pass is due, unless something wakes the thread before."""
        return min(self.protocol.poll_deadline(), self._next_frame_ns, self.sockets.due_ns)

    def sleep(self, most_ns: int) -> None:
        """Sleep until a descriptor or the clock wakes the thread, so many ns at most."""
        readable = self._poller.poll(min(max(0, self.planned_ns - self.now_ns()), most_ns))
        self.idle = False
        if self._bell in readable:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._bell)
        for descriptor in readable:
            self.readable(descriptor)

    def end(self) -> None:
        """Send BYE and close the sockets."""
        self.protocol.close(self.now_ns())
        while self.send_some(self.now_ns()):
            pass
        self.close_sockets()
        with self.lock:
            self.idle = False
            self._moved.notify_all()


def _until(
    link: ThreadedLink,
    condition: Callable[[], bool],
    seconds: float | None,
    then: Callable[[], Any] | None,
    one_of: object | None = None,
) -> Any:
    with link.lock:
        holds = link.wait_locked(condition, seconds, one_of)
        return holds if then is None else then()


def drive(flow: Flow[Value]) -> Value:
    """Do the steps of a flow, and block for each. Returns what the flow returns, or raises its error."""
    done: Any = None
    try:
        while True:
            try:
                step = flow.send(done)
            except StopIteration as end:
                value: Value = end.value
                return value
            done = do(step)
    except BaseException:
        flow.close()  # its `finally` clauses run now, and not when a traceback is freed
        raise


def do(step: Step) -> Any:
    """Do one step, and block for it."""
    match step:
        case Until(link, condition, seconds, then, scope, one_of):
            assert isinstance(link, ThreadedLink)
            if scope is None:
                return _until(link, condition, seconds, then, one_of)

            def end() -> None:
                link.soon(link.notify_locked)

            scope.add(end)
            try:
                holds = _until(link, lambda: bool(scope.reason) or condition(), seconds, then)
            finally:
                scope.remove(end)
            if scope.reason and not condition():
                raise scope.error()
            return holds
        case Settles(promise, seconds):
            return promise._wait(seconds)
        case Evaluate(function):
            value = function()
            if inspect.iscoroutine(value):
                value.close()
                raise InvalidValueError(
                    f"{function!r} is a coroutine function, and a threaded client awaits nothing: use td.aio"
                )
            return value
        case Do(function):
            return function()
        case Finish(link, seconds):
            assert isinstance(link, ThreadedLink)
            link.may_block()
            link.finish(seconds)
        case Sleep(seconds):
            time.sleep(seconds)
    return None
