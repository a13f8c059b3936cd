"""The sender of a threaded client: after a quiet time a caller sends its own frame; under load the thread sends."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

from timerd_client.link.base import LinkBase
from timerd_client.link.connection import Connection
from timerd_client.link.sender import Sender
from timerd_client.protocol.deadlines import NEVER
from timerd_client.scope import noted
from timerd_client.waits.condition import Condition
from timerd_shm.declare.errors import BackpressureError
from timerd_shm.declare.limits import BACKPRESSURE_TIMEOUT_S
from timerd_wire.spacing import Spacing

SEND_INTERVAL_NS = 100_000  # under load: the least time from one frame of commands to the next
SEND_INTERVAL_NS_MAX = 1_000_000  # and the longest
SEND_COMMANDS = 512  # if this many pile up, the thread does not get the GIL: then a caller sends, if a frame is due
SEND_BURST = 4  # frames that may follow each other at once after a quiet time
SEND_REST = 3  # an interval is this many times as long as the thread's last pass, in which callers lack the GIL


class EventFile:
    """An eventfd. It is closed when its last user drops it."""

    number = -1

    def __init__(self) -> None:
        self.number = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if self.number >= 0:
            close(self.number)


class Bell:
    """Wakes the thread of the sockets for a pass."""

    def __init__(self) -> None:
        self._file: EventFile | None = None

    def open(self) -> int:
        """The descriptor that the thread watches. Raises OSError."""
        self._file = EventFile()
        return self._file.number

    def ring(self) -> None:
        """Wake the thread. Does nothing if the bell is closed. Needs no lock."""
        file = self._file  # kept until it is written to: another thread may close the bell meanwhile
        if file is not None:
            os.eventfd_write(file.number, 1)

    def answer(self) -> None:
        """The thread is awake. Only this thread closes the bell."""
        if self._file is not None:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._file.number)

    def close(self) -> None:
        """Drop the descriptor."""
        self._file = None


class ThreadedSender(Sender):
    """A caller writes its command down with the lock held. After a quiet time the caller also sends it, which is
    quicker than waking a thread. Under load the thread sends every SEND_INTERVAL_NS, until no commands pile up any
    more: so a call costs no system call.
    """

    def __init__(
        self, link: LinkBase, connection: Connection, moved: Condition, is_own_thread: Callable[[], bool]
    ) -> None:
        """`moved` is notified when commands were applied. `is_own_thread`: whether the thread of the sockets calls."""
        super().__init__(link, connection)
        self._moved = moved
        self._is_own_thread = is_own_thread
        self.bell = Bell()
        self._spacing = Spacing(SEND_INTERVAL_NS, SEND_INTERVAL_NS_MAX, SEND_BURST, rest=SEND_REST)
        self._next_frame_ns = NEVER  # under load: when the thread sends next
        self.planned_ns = 0  # when the thread wakes next by itself

    def wake(self) -> None:
        """Have all unsent frames sent: now by the caller, or soon by the thread. Called with the lock held."""
        link, protocol = self._link, self._protocol
        link.alarm = self._next_alarm()
        if not protocol.wants_to_send():
            return
        now_ns = link.now_ns()
        if now_ns >= self._spacing.due_ns and self._connection.send_locked(now_ns):
            self._spacing.done(now_ns)
            # Sending may have used up the edge that would have woken the thread for an answer.
            if not protocol.wants_to_send() and not self._connection.sockets.has_answer():
                return
        if link.idle or self._connection.unsent is not None:
            link.idle = False
            self.bell.ring()

    def _next_alarm(self) -> int:
        """The command number from which callers call wake() even if the thread will soon send. 0: the process ends."""
        return 0 if self._link.ends_with_process else self._protocol.ledger.issued + SEND_COMMANDS

    def send_for_caller(self) -> None:
        """A caller is about to wait, so it issues nothing more: send all commands, even if the last frame is recent.

        Called with the lock held.
        """
        connection, now_ns = self._connection, self._link.now_ns()
        while self._protocol.wants_to_send() and connection.send_locked(now_ns):
            pass
        if connection.unsent is not None or connection.sockets.has_answer():
            self.bell.ring()  # the thread sends when there is room; and the send may have used up an answer's edge

    def send_due(self, now_ns: int, woke_ns: int) -> None:
        """In a pass that began at `woke_ns`: send frames without commands at once, and commands if they are due.

        Called with the lock held.
        """
        protocol, spacing, connection = self._protocol, self._spacing, self._connection
        while (protocol.has_messages or connection.unsent is not None) and connection.send_locked(now_ns):
            pass
        if connection.unsent is not None:  # the socket is full; its descriptor becomes readable when there is room
            self._next_frame_ns = NEVER
        elif protocol.has_commands:
            at_ns = min(self._next_frame_ns, max(spacing.due_ns, now_ns))
            # The thread is awake, so commands that are due within half an interval need no wake-up of their own.
            if now_ns < at_ns - spacing.interval_ns // 2:
                self._next_frame_ns = at_ns
                return
            while connection.send_locked(now_ns):
                pass
            spacing.done(now_ns, self._link.now_ns() - woke_ns + connection.sockets.wake_ns)
            self._link.alarm = self._next_alarm()
            self._next_frame_ns = now_ns + spacing.interval_ns
        elif now_ns >= self._next_frame_ns:
            self._next_frame_ns = NEVER

    def rest(self) -> None:
        """The thread is about to sleep, until the next pass is due. Called with the lock held."""
        self._link.idle = self._next_frame_ns == NEVER and self._connection.unsent is None
        self.planned_ns = self.due_ns()

    def due_ns(self) -> int:
        """When the next pass is due, unless something wakes the thread earlier."""
        return min(self._protocol.poll_deadline(), self._next_frame_ns, self._connection.sockets.due_ns)

    def ring(self) -> None:
        if self._link.idle and not self._link.closed:
            self.bell.ring()

    def make_room(self) -> None:
        outgoing, link = self._protocol.outgoing, self._link
        in_callback = self._is_own_thread()
        self.confirm_locked()
        # While the process ends, each call waits until its commands are applied (process_end.py). If the window is full
        # nevertheless, the daemon does not answer, and waiting would not help.
        patience_s = 0.0 if link.ends_with_process else BACKPRESSURE_TIMEOUT_S
        if in_callback or not self._moved.wait_for(lambda: outgoing.room > 0 or link.sealed, patience_s):
            late = "" if in_callback else f", and none was acknowledged within {patience_s:g} s"
            status, remedy = self._connection.status(), self._remedy()
            raise noted(BackpressureError(f"{self._fullness()}{late} ({status}); {remedy}{self._connection.held_up()}"))
        link.check_open()
