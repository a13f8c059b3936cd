"""Runs the conductor on the machine: sleeps until a socket, a timer or a signal calls for a turn.

After a quiet time a frame, the timer or a signal starts a turn at once. Under load there is one turn in each
TURN_INTERVAL_NS, and it takes all that has come meanwhile. Each client then gets one frame, instead of one for each
frame that came in.

With nothing due and nothing coming the process sleeps without limit. The timerfd is armed for what is due next; the
timeout of epoll is not used, because it has whole milliseconds only.
"""

from __future__ import annotations

import select
import signal
import socket
import time
from collections.abc import Callable
from types import FrameType

from timerd.clock import Clock
from timerd.core import NEVER
from timerd.host.selector import Selector
from timerd.host.timer import Timer
from timerd.sd_notify import WATCHDOG, notify
from timerd_shm.host.wall_clock import WallAlarm
from timerd_wire.poller import sharpen
from timerd_wire.spacing import Spacing

from .transport import SocketTransport
from .turn import Conductor

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
TURN_INTERVAL_NS = 100_000  # from turn to turn under load, at least
TURN_INTERVAL_NS_MAX = 1_000_000  # and at most
TURN_BURST = 4  # turns that may follow each other at once after a quiet time
TURN_REST = 1  # see timerd_wire/spacing.py. At 2, callers who wait for each other would wait while a processor is idle


class Loop:
    """The main thread's loop. `watchdog_ns`: how long the service manager waits for a sign of life; 0 = for ever."""

    def __init__(
        self,
        conductor: Conductor,
        transport: SocketTransport,
        selector: Selector,
        clock: Clock,
        *,
        watchdog_ns: int = 0,
    ) -> None:
        self._conductor = conductor
        self._transport = transport
        self._selector = selector
        self._clock = clock
        self._timer = Timer()
        self._ping_ns = watchdog_ns // 2
        self._stopped_by = 0
        self._armed_ns = NEVER  # when the timer fires
        self._bell, self._button = socket.socketpair()
        self._sleeps = False
        selector.register(self._timer.fileno(), select.EPOLLIN, self._on_timer)
        selector.register(self._bell.fileno(), select.EPOLLIN, self._on_bell)
        self._wall = WallAlarm()
        if self._wall.fileno() >= 0:
            selector.register(self._wall.fileno(), select.EPOLLIN, self._on_wall)
        # Here, not in run(): a signal that comes as soon as the daemon has said that it is ready must end it cleanly.
        for each in (self._bell, self._button):
            each.setblocking(False)
        self._wakeup_before = signal.set_wakeup_fd(self._button.fileno(), warn_on_full_buffer=False)
        self._handlers_before = {number: signal.signal(number, self._stop) for number in STOP_SIGNALS}

    def run(self, is_over: Callable[[int], int]) -> str:
        """Do turns until a stop signal comes, or until `is_over(now_ns)` returns 0. Returns the reason, for the log.

        Otherwise `is_over` returns when to ask it again (NEVER: only after an event).
        """
        conductor, transport, now = self._conductor, self._transport, self._clock.now_ns
        sharpen()
        ping_at_ns = now() if self._ping_ns else NEVER
        spacing = Spacing(TURN_INTERVAL_NS, TURN_INTERVAL_NS_MAX, TURN_BURST, rest=TURN_REST)
        self._poll(0)
        while not self._stopped_by:
            now_ns = now()
            if now_ns < spacing.due_ns:
                time.sleep((spacing.due_ns - now_ns) / 1e9)
                self._poll(0)
                now_ns = now()
            conductor.do_work(now_ns)
            spacing.done(now_ns, now() - now_ns)
            if now_ns >= ping_at_ns:
                notify(WATCHDOG)
                ping_at_ns = now_ns + self._ping_ns
            over_ns = is_over(now_ns)
            if not over_ns:
                return "idle"
            due_ns = min(conductor.due_ns, ping_at_ns, over_ns)
            if due_ns <= now_ns or transport.has_input():
                self._poll(0)
                continue
            if due_ns != self._armed_ns:
                self._timer.arm(due_ns)
                self._armed_ns = due_ns
            self._poll(-1)
        return signal.Signals(self._stopped_by).name

    def close(self) -> None:
        """Close the descriptors of this loop, and restore the handlers of signals."""
        for number, handler in self._handlers_before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup_before)
        self._selector.forget(self._timer.fileno())
        self._selector.forget(self._bell.fileno())
        if self._wall.fileno() >= 0:
            self._selector.forget(self._wall.fileno())
        self._timer.close()
        self._wall.close()
        self._bell.close()
        self._button.close()

    def _poll(self, timeout: int) -> None:
        """Have the selector report ready descriptors: those that are ready now (0), or after a wait for one (-1)."""
        self._sleeps = timeout != 0
        self._selector.poll(timeout)

    def _on_timer(self, descriptor: int, events: int) -> None:
        self._timer.read()
        self._armed_ns = NEVER

    def _on_wall(self, descriptor: int, events: int) -> None:
        self._wall.read()
        self._conductor.wall_clock_set()

    def _on_bell(self, descriptor: int, events: int) -> None:
        if self._sleeps:  # otherwise the byte stays there, to end the next sleep
            self._bell.recv(64)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._stopped_by = number
