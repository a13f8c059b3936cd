"""Awaits a function when asyncio.run() ends its loop, for objects of the loop that nobody has closed."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable


def at_loop_end(end: Callable[[], Awaitable[object]]) -> AsyncGenerator[None, None]:
    """Await `end()` when asyncio.run() ends the running loop, which closes its generators. Keep the returned one."""
    guard = _guard(end)
    with contextlib.suppress(StopIteration):
        guard.__anext__().send(None)  # run the generator up to its `yield`
    return guard


async def _guard(end: Callable[[], Awaitable[object]]) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        await end()
