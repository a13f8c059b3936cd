"""A client of either face, called in the same way: what holds for both is said by one test.

    @pytest.fixture(params=FACES)
    def client(request): ...        # faces.client_of(request.param, ...)

The asyncio client lives in a loop of its own thread. Every call runs there, and its caller waits for what it returns.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import timerd as td
from patience import PATIENCE_S
from timerd_client import aio
from timerd_client.link.surface import Surface

FACES = ("threaded", "asyncio")


class InLoop:
    """An object of the asyncio face, for a thread outside of its loop."""

    def __init__(self, loop: LoopThread, target: Any) -> None:
        self._loop = loop
        self._target = target

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        return self._loop.calls(value) if callable(value) else value

    def register(self, *args: Any, wait: bool = False, **more: Any) -> Any:
        """With `wait` as the threaded client has it: the refusal is raised here."""
        operation = self._loop.call(self._target.register, *args, wait=wait, **more)
        if wait:
            operation.accepted()
        return operation

    def __repr__(self) -> str:
        return repr(self._target)


class LoopThread:
    """A thread with a loop."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._known: dict[int, InLoop] = {}  # the same operation is the same object here as well
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()

    def call(self, function: Callable[..., Any], *args: Any, **more: Any) -> Any:
        """What the function, or the coroutine function, returns or raises in the loop."""

        async def run() -> Any:
            value = function(*args, **more)
            return await value if inspect.iscoroutine(value) else value

        return self.outside(asyncio.run_coroutine_threadsafe(run(), self.loop).result(2 * PATIENCE_S))

    def calls(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, called in the loop."""
        return lambda *args, **more: self.call(function, *args, **more)

    def outside(self, value: Any) -> Any:
        """The value, for a thread outside of the loop."""
        if isinstance(value, (aio.Operation, aio.Batch, Surface)):
            return self._known.setdefault(id(value), InLoop(self, value))
        return value

    def end(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(PATIENCE_S)
        self.loop.close()


@contextmanager
def client_of(face: str, **settings: Any) -> Iterator[Any]:
    """A client of that face, which is closed at the end."""
    if face == "threaded":
        with td.connect(**settings) as client:
            yield client
        return
    loop = LoopThread()
    try:
        client = loop.call(aio.connect, **settings)
        yield client
        client.close()
    finally:
        loop.end()
