"""A face: the threaded client or the asyncio client, called in the same way. One test runs for both faces.

    def test_an_event_completes(client: Any) -> None:        # runs twice: [threaded] and [aio]
        operation = client.register("k", timeout=1)
        client.fire("k")
        assert operation.result(1)

    def test_connect_raises_without_a_daemon(face: Face) -> None:            # where a test makes its clients itself
        with pytest.raises(td.TimerdUnavailableError):
            face.connect("absent")

    @THREADED                                                # where only one face has a behaviour
    def test_threads_share_a_client(client: td.Client) -> None: ...

The threaded face is the library as it is. The asyncio face has a loop in its own thread. Each method runs in this loop;
if it is a coroutine, the caller waits for the result. Callbacks and predicates run in the loop. They may call methods
that return at once. A handler of named calls runs in a thread beside the loop, and may call every method.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import pytest

import timerd as td
from support.real.patience import PATIENCE_S
from timerd_client import aio
from timerd_client.aio.waiting import Waited
from timerd_client.link.surface import Surface

FACES = ("threaded", "aio")
INSIDE = (aio.Operation, aio.Batch)  # awaitable, but a test calls their methods instead
THREADED = pytest.mark.parametrize("face", ["threaded"], indirect=True)


class Face:
    """The threaded client."""

    name = "threaded"
    waits_for_room = True  # a call in a full window waits by itself
    Operation: type[Any] = td.Operation

    def connect(self, *args: Any, **settings: Any) -> Any:
        """A client, with the arguments and errors of `td.connect`."""
        return td.connect(*args, **settings)

    def make(self, *args: Any, **settings: Any) -> Any:
        """A client that was not used yet, with the arguments of `td.Client`."""
        return td.Client(*args, **settings)

    def run(self, function: Callable[[], Any]) -> Any:
        """Call the function where clients of this face may be used: in the loop, or in the calling thread."""
        return function()

    def wait(self, operations: Iterable[Any], timeout: float | None = None) -> Any:
        """`td.wait`."""
        return td.wait(operations, timeout)

    def as_completed(self, operations: Iterable[Any], timeout: float | None = None) -> Iterator[Any]:
        """`td.as_completed`."""
        return td.as_completed(operations, timeout)

    def drop(self, client: Any) -> None:
        """End a client, without waiting for its daemon."""
        client._link.stop()

    def end(self) -> None:
        """End what the face itself has started."""


class LoopedFace(Face):
    """The asyncio client, in a loop of its own thread."""

    name = "aio"
    waits_for_room = False
    Operation = aio.Operation

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._known: dict[int, InLoop] = {}  # id() of an object of the loop -> its one form for other threads
        self._thread = threading.Thread(target=self._loop.run_forever, name="loop")
        self._thread.start()

    def connect(self, *args: Any, **settings: Any) -> Any:
        return self.call(aio.connect, *args, **settings)

    def make(self, *args: Any, **settings: Any) -> Any:
        return self.call(aio.Client, *args, **settings)

    def run(self, function: Callable[[], Any]) -> Any:
        return self.call(function)

    def wait(self, operations: Iterable[Any], timeout: float | None = None) -> Any:
        done, pending = self.call(aio.wait, operations, timeout)
        return Waited([self.outside(one) for one in done], [self.outside(one) for one in pending])

    def as_completed(self, operations: Iterable[Any], timeout: float | None = None) -> Iterator[Any]:
        settling = aio.as_completed([self.inside(one) for one in operations], timeout)

        async def following() -> Any:
            return await anext(settling, None)

        while (operation := self.call(following)) is not None:
            yield operation

    def drop(self, client: Any) -> None:
        self.call(client._link.stop)

    def end(self) -> None:
        self.call(self._cancel_tasks)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()

    async def _cancel_tasks(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._loop.shutdown_default_executor()

    def call(self, function: Callable[..., Any], *args: Any, **more: Any) -> Any:
        """Call the function, or the coroutine function, in the loop. Returns or raises what the function does."""
        given = [self.inside(one) for one in args]
        if threading.current_thread() is self._thread:  # a callback
            value = function(*given, **more)
            if inspect.iscoroutine(value):
                value.close()
                raise AssertionError(f"a callback called {function!r}, which it would have to await")
            return self.outside(value)

        async def run() -> Any:
            value = function(*given, **more)
            return await value if inspect.isawaitable(value) and not isinstance(value, INSIDE) else value

        return self.outside(asyncio.run_coroutine_threadsafe(run(), self._loop).result(2 * PATIENCE_S))

    def outside(self, value: Any) -> Any:
        """The value, for a thread outside of the loop."""
        if isinstance(value, (*INSIDE, Surface, aio.Subscription)):
            return self._known.setdefault(id(value), InLoop(self, value))
        return value

    def inside(self, value: Any) -> Any:
        """The value, for the loop."""
        if isinstance(value, InLoop):
            return value._target
        return [self.inside(one) for one in value] if isinstance(value, list) else value


class InLoop:
    """An object of the asyncio face, for a thread outside of its loop."""

    def __init__(self, face: LoopedFace, target: Any) -> None:
        self._face = face
        self._target = target

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        return (lambda *args, **more: self._face.call(value, *args, **more)) if callable(value) else value

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """The callback gets the operation in its form for threads outside of the loop."""
        self._face.call(self._target.add_done_callback, lambda promise: callback(self._face.outside(promise)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: Any) -> None:
        self._face.call(self._target.__aexit__, *raised)

    def __iter__(self) -> Iterator[Any]:
        async def following() -> Any:
            return await anext(self._target, None)

        while (item := self._face.call(following)) is not None:
            yield item

    def __repr__(self) -> str:
        return repr(self._target)


@contextmanager
def face_of(name: str) -> Iterator[Face]:
    """The face of that name, until the end of the block."""
    face = LoopedFace() if name == LoopedFace.name else Face()
    try:
        yield face
    finally:
        face.end()
