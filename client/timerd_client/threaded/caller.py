"""A waiting caller receives by itself: it takes the seat (seat.py), sleeps at the sockets, and takes its outcome.

    outcome --> libzmq's thread --> the caller                            if nobody else waits, and there is no callback
    outcome --> libzmq's thread --> the link's thread --> the caller      otherwise

The caller takes only plain reports. It leaves everything else to the link's thread: callbacks and handlers, other
frames, sending, a lost daemon. An interrupt (KeyboardInterrupt, a signal handler that raises) loses nothing. If the
processing of a frame was interrupted, the frame is kept, and the link's thread processes it again from its beginning.
"""

from __future__ import annotations

import threading
import time
from time import monotonic_ns
from typing import Final

from timerd_client.link.base import LinkBase
from timerd_client.link.connection import Connection
from timerd_client.link.promise import Promise
from timerd_client.protocol.state import LIVE
from timerd_client.transport.sockets import FRAMES_MAX
from timerd_client.waits.condition import Condition
from timerd_client.waits.gate import Gate
from timerd_client.waits.slices import SLICE_S, is_main_thread

from .seat import Seat
from .sender import ThreadedSender

SLEEP_NS_MAX: Final = 60_000_000_000
SLICE_NS: Final = int(SLICE_S * 1e9)
SENDERS_MAX: Final = 4  # if more callers wait, they do not send: the thread sends fewer and larger frames
NEGLECT_NS: Final = 100_000_000  # after this time without a frame, the thread checks whether a caller still receives
LEFT_S: Final = 0.001  # how often a link that ends checks whether a caller has left the seat


class CallerGate(Gate):
    """The gate of a caller that receives by itself, if it can."""

    def __init__(self, callers: Callers) -> None:
        super().__init__()
        self.thread = threading.get_ident()  # the thread of the caller
        self.is_open = False
        self._callers = callers

    def open(self, promise: object = None) -> None:
        self.is_open = True
        super().open()
        self._callers.wake(self)

    def wait(self, seconds: float | None) -> bool:
        end_ns = None if seconds is None else monotonic_ns() + int(min(max(seconds, 0), threading.TIMEOUT_MAX) * 1e9)
        self._callers.waiting += 1
        try:
            self._callers.receive_for(self, end_ns)
            return self.is_open or super().wait(None if end_ns is None else (end_ns - monotonic_ns()) / 1e9)
        finally:
            self._callers.waiting -= 1


class Callers:
    """The waiting callers of a link, the link's thread, and the seat, which one of them has."""

    def __init__(self, link: LinkBase, connection: Connection, sender: ThreadedSender, moved: Condition) -> None:
        self._link = link
        self._protocol = link.protocol
        self._connection = connection
        self._sender = sender
        self._moved = moved
        self._seat: Seat | None = None  # None if the link's thread does not run
        self._in_hand: tuple[bytes, bool] | None = None  # a frame in processing, and whether it was published
        self.waiting = 0  # callers that wait, including the holder of the seat

    # the link's thread ------------------------------------------------------------------------------------------------

    def begin(self, seat: Seat) -> None:
        """The link's thread begins to run, and watches the seat's descriptor."""
        with self._link.lock:
            self._seat = seat

    def begin_pass(self) -> bool:
        """Take the seat for a pass, and process a frame that a caller has left. False if a caller keeps the seat.

        Called with the lock held.
        """
        protocol = self._protocol
        if self._seat is None:
            return True
        if not self._seat.take_for_pass(self):
            if protocol.state is LIVE and not protocol.session.subscriptions and not self._is_neglected():
                return False
            if not self._seat.take_from_sleeper(self):
                self._seat.want()
                return False
        if self._in_hand is not None:
            (frame, published), self._in_hand = self._in_hand, None
            protocol.receive(frame, self._link.now_ns(), published=published)
        return True

    def _is_neglected(self) -> bool:
        """Whether a caller with the seat takes no frames, because a signal handler interrupts its sleep."""
        assert self._seat is not None
        silent_ns = self._link.now_ns() - self._protocol.silence.last_frame_ns
        return silent_ns > NEGLECT_NS and self._seat.is_neglected()

    def end_pass(self) -> None:
        """Leave the seat. Called with the lock held."""
        if self._seat is not None:
            self._seat.leave_pass()

    def end(self) -> None:
        """The link's thread ends: take the seat for good."""
        while (seat := self._seat) is not None:
            with self._link.lock:
                if seat.take_for_pass(self) or seat.take_from_sleeper(self):
                    self._seat = None
                    return
                seat.want()
            time.sleep(LEFT_S)

    # a caller's thread ------------------------------------------------------------------------------------------------

    def receive_for(self, gate: CallerGate, end_ns: int | None) -> None:
        """Receive until the gate is open, the time is over, or the thread is needed. If the seat is taken, return."""
        seat, link = self._seat, self._link
        if seat is None:
            return
        sleep_ns_max = SLICE_NS if is_main_thread() else SLEEP_NS_MAX
        raised: BaseException | None = None
        is_needed = False
        try:
            with link.lock:
                if self.waiting <= SENDERS_MAX:
                    self._sender.send_for_caller()
                if self._leaves_it_to_thread() or not seat.take(gate):
                    return
            while not gate.is_open and not seat.is_wanted:
                left_ns = sleep_ns_max if end_ns is None else min(end_ns - monotonic_ns(), sleep_ns_max)
                if left_ns <= 0:
                    break
                readable = self._sleep(seat, gate, left_ns)
                if seat.holder is not gate:
                    break
                if not self._receive(readable):
                    is_needed = True
                    break
                if not gate.is_open and not self._goes_on():
                    break
        except BaseException as error:
            raised = error
        while seat.holder is gate or seat.sleeper is gate:  # repeated if a second interrupt comes
            try:
                self._leave(seat, gate, is_needed=is_needed or raised is not None)
            except BaseException as error:
                raised = error
        if raised is not None:
            try:
                raise raised
            finally:
                raised = None  # otherwise the traceback, and the objects of its frames, would wait for the collector

    def is_seated(self) -> bool:
        """Whether the calling thread has the seat as a caller. Then no other thread would receive its outcome."""
        holder = None if self._seat is None else self._seat.holder
        return isinstance(holder, CallerGate) and holder.thread == threading.get_ident()

    def wake(self, gate: CallerGate) -> None:
        """The gate was opened: wake its caller, if the caller has the seat and sleeps, or is about to sleep.

        A signal handler may open the gate in the caller's own thread, during the sleep or just before it.
        """
        seat = self._seat
        if seat is None:
            return
        if seat.sleeper is gate or (seat.holder is gate and threading.get_ident() != gate.thread):
            seat.ring()

    def _sleep(self, seat: Seat, gate: CallerGate, left_ns: int) -> list[int]:
        """Sleep until a socket has something. Returns the readable descriptors. The seat may be lost afterwards."""
        seat.sleeper = gate
        readable = seat.sleep(0 if gate.is_open else left_ns)
        with self._link.lock:  # a thread needs the lock to take the seat from a sleeper
            if seat.holder is gate:
                seat.sleeper = None
        return readable

    def _receive(self, readable: list[int]) -> bool:
        """Receive the frames of these sockets, FRAMES_MAX at most. Returns False if the link's thread has to go on."""
        link, protocol, sockets = self._link, self._protocol, self._connection.sockets
        taken = 0
        for descriptor in readable:
            for published in sockets.sources(descriptor):
                while (frame := self._next(published=published)) is not None:
                    taken += 1
                    with link.lock:
                        self._in_hand = frame, published
                        if not protocol.take_report(frame, link.now_ns(), published=published):
                            return False
                        self._in_hand = None
                        if protocol.incoming.ready and not self._open_gates():
                            return False
                    if taken >= FRAMES_MAX:
                        return False
        return True

    def _goes_on(self) -> bool:
        """Whether the caller may sleep again. If the link's thread would sleep for too long, wake it first."""
        with self._link.lock:
            if self._sender.due_ns() < self._sender.planned_ns:
                self._sender.bell.ring()
            return not self._leaves_it_to_thread()

    def _next(self, *, published: bool) -> bytes | None:
        if published:
            return self._connection.sockets.receive(published=True)
        with self._link.lock:  # callers send over the socket from which this method receives
            return self._connection.sockets.receive(published=False)

    def _open_gates(self) -> bool:
        """Open the gates of settled promises. Called with the lock held.

        Promises with other callbacks are left to the thread. Returns whether there are no such promises.
        """
        ready = self._protocol.incoming.ready
        for promise in ready.copy():
            if not isinstance(promise, Promise):
                continue
            callbacks = promise._callbacks or ()
            if all(isinstance(getattr(callback, "__self__", None), Gate) for callback in callbacks):
                for callback in callbacks:
                    callback(promise)
                promise._callbacks = None
                ready.remove(promise)
        return not ready

    def _leaves_it_to_thread(self) -> bool:
        """Whether there is work that only the link's thread does. Called with the lock held."""
        protocol, connection = self._protocol, self._connection
        return bool(
            self._in_hand is not None
            or protocol.state is not LIVE
            or protocol.inbox.takes_something
            or protocol.incoming.ready
            or protocol.incoming.complaints
            or protocol.wants_to_send()
            or protocol.session.subscriptions
            or self._moved.callers
            or self._sender.chores
            or self._link.closed
            or connection.unsent is not None  # room would wake the caller with the seat, which does not send
            or protocol.session.arena != connection.mapped
        )

    def _leave(self, seat: Seat, gate: CallerGate, *, is_needed: bool) -> None:
        """Leave the seat. `is_needed`: the caller stopped before the last frame, and the thread must take the rest.

        Without `is_needed` this method could not know that. A pass of the thread, without the seat, may have done the
        work for which the caller stopped. Then no descriptor is readable, although frames still wait.
        """
        link, protocol = self._link, self._protocol
        with link.lock:
            seat.sleeper = None
            if seat.holder is not gate:
                if self._seat is not seat:
                    seat.close()
                return
            if self._moved.callers:
                self._moved.notify()
            if is_needed:
                is_due = False
            elif gate.is_open:
                # Only the caller's own reports can have left work: other callers wake the thread for their work.
                is_needed = self._in_hand is not None or self._moved.callers > 0 or protocol.has_messages
                is_needed = is_needed or protocol.incoming.has_left_something()
                # A few outcomes are acknowledged with the next frame, or when the daemon reminds; many, now.
                is_due = protocol.acknowledge_at <= link.now_ns()
            else:
                is_needed = self._leaves_it_to_thread()
                is_due = self._sender.due_ns() < self._sender.planned_ns
            if is_needed or is_due or seat.is_wanted:
                seat.is_wanted = seat.is_wanted or is_needed
                self._sender.bell.ring()
            seat.leave(gate)
