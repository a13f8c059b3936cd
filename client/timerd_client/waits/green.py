"""Waits and callbacks if gevent has replaced threads: greenlets wait in their hub, and callbacks run in greenlets.

    outcome --> the client's own thread --> a hub's waker --> the greenlet that waits, or a new one for a callback

The client's thread is a thread of the system (native.py), and must not switch greenlets. So it only posts functions to
a hub: the hub's loop opens gates, and begins greenlets for callbacks. gevent itself is imported only here, and only if
gevent has replaced the threads already.
"""

from __future__ import annotations

import importlib
import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from timerd_wire.native import ident

from .gate import Gate

SLICE_S: Final = 60.0  # each wait has a timer in the hub: otherwise an idle hub would raise LoopExit

_wakers: dict[int, Waker] = {}  # by the number of each thread that has a hub
os.register_at_fork(after_in_child=_wakers.clear)


class Waker:
    """Runs functions in a hub. Any thread may post them."""

    def __init__(self, hub: Any) -> None:
        self.hub = hub
        self._left: deque[Callable[[], object]] = deque()
        self._bell = hub.loop.async_(ref=False)  # the bell does not keep the program alive
        self._bell.start(self._run)

    def post(self, function: Callable[[], object]) -> None:
        """Run a function in the hub soon. The function must not switch greenlets. Any thread may call this."""
        self._left.append(function)
        with suppress(Exception):  # the hub has ended, with all its greenlets
            self._bell.send()

    def spawn(self, function: Callable[[Any], object], argument: object) -> None:
        """Begin a greenlet of the hub with this function. Any thread may call this."""
        self.post(lambda: self._spawn(function, argument))

    @staticmethod
    def _spawn(function: Callable[[Any], object], argument: object) -> None:
        _gevent().spawn(function, argument)

    def _run(self) -> None:
        while self._left:
            self._left.popleft()()


def _gevent() -> Any:
    return importlib.import_module("gevent")


def waker() -> Waker:
    """The waker of the calling thread's hub."""
    hub = _gevent().get_hub()
    known = _wakers.get(ident())
    if known is None or known.hub is not hub:
        known = _wakers[ident()] = Waker(hub)
    return known


class GreenGate(Gate):
    """A gate at which a greenlet waits, while other greenlets go on."""

    def __init__(self) -> None:
        self._event = importlib.import_module("gevent.event").Event()
        self._waker = waker()

    def open(self, promise: object = None) -> None:
        self._waker.post(self._event.set)

    def wait(self, seconds: float | None) -> bool:
        left = seconds
        while left is None or left > SLICE_S:
            if self._event.wait(SLICE_S):
                return True
            left = None if left is None else left - SLICE_S
        return bool(self._event.wait(max(left, 0.0)))


class GreenCallback:
    """A caller's callback. It runs in a new greenlet, in the hub of the thread that has added it.

    A GreenCallback equals its callback, so that the callback can be removed again.
    """

    def __init__(self, callback: Callable[[Any], object], on_error: Callable[[str, BaseException], None]) -> None:
        self.callback = callback
        self._on_error = on_error
        self._waker = waker()

    def __call__(self, promise: Any) -> None:
        self._waker.spawn(self._guarded, promise)

    def _guarded(self, promise: Any) -> None:
        try:
            self.callback(promise)
        except Exception as error:
            self._on_error(f"callback {self.callback!r} failed", error)

    def __eq__(self, other: object) -> bool:
        return self.callback == (other.callback if isinstance(other, GreenCallback) else other)

    def __hash__(self) -> int:
        return hash(self.callback)
