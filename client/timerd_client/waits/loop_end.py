"""A function to await when asyncio.run() ends its loop, for objects of the loop that nobody has closed."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable


def at_loop_end(end: Callable[[], Awaitable[object]]) -> AsyncGenerator[None, None]:
    """Await `end()` when the running loop ends, while the generator is kept: a loop then closes all its generators."""
    guard = _guard(end)
    with contextlib.suppress(StopIteration):
        guard.__anext__().send(None)  # up to its `yield`, which waits for nothing
    return guard


async def _guard(end: Callable[[], Awaitable[object]]) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        await end()
