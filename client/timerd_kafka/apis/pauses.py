"""A large answer takes seconds to make. So it is made some parts at a time, and others are served in between.

    groups = await Pauses().each(described, names)    # each result is a part of the answer
    await pauses.made()                               # in a loop that makes one part after the other

The topics, groups and members may change in a pause. frames.py writes large answers in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

AT_ONCE = 100  # parts of an answer that are made before others are served: 2 ms
TOPICS_AT_ONCE = 8  # topics with all their configurations: 10 ms

T = TypeVar("T")


class Pauses:
    """The pauses in the making of one answer."""

    def __init__(self, at_once: int | None = None) -> None:
        """`at_once`: how many parts are made before others are served. Large parts need a small number."""
        self._at_once, self._made = at_once or AT_ONCE, 0

    def needed(self, parts: int) -> bool:
        """Whether there is a pause while this number of parts is made."""
        return self._made + parts >= self._at_once

    async def made(self) -> None:
        """Note that a part was made. Pause if it is time for that."""
        self._made += 1
        if self._made >= self._at_once:
            self._made = 0
            await asyncio.sleep(0)

    async def each(self, make: Callable[[Any], Any], asked: Iterable[Any]) -> tuple[Any, ...]:
        """The results of `make` for all that is asked, as parts. `asked` is read at once, and may change in a pause."""
        results = []
        for one in tuple(asked):
            results.append(make(one))
            await self.made()
        return tuple(results)


async def to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Do some work to its end. If the request is cancelled meanwhile, as its client has left, it ends after the work.

    Until then, the request's memory counts as that of its connection.
    """
    task, is_cancelled = asyncio.create_task(work), False
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            is_cancelled = True
        except Exception:
            break  # it is raised below, unless the request was cancelled
    if is_cancelled:
        raise asyncio.CancelledError
    return task.result()
