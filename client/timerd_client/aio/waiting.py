"""Waiting for many operations of asyncio clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Generic, NamedTuple, TypeVar

from timerd_client.arguments import until_of
from timerd_client.link.flows import unsettled
from timerd_client.link.promise import promises_of, withdrawing
from timerd_client.scope import current_scope
from timerd_client.types import Patience, Until
from timerd_client.waits.aside import Aside
from timerd_client.waits.polling import monotonic_deadline, seconds_left

from .operation import AioBatch, AioOperation, settled

Waitable = TypeVar("Waitable", bound=AioOperation | AioBatch)
KINDS = (AioOperation, AioBatch)
OTHER = "of a client with threads: await it, or give it to td.wait() or td.as_completed() in a thread"


class Waited(NamedTuple, Generic[Waitable]):
    """Operations that had settled when `wait` returned, and those that had not. Both keep the order given."""

    done: list[Waitable]
    pending: list[Waitable]


async def wait(operations: Iterable[Waitable], timeout: Patience = None, *, until: Until = "all") -> Waited[Waitable]:
    """As `timerd_client.wait`. No operation is cancelled, even if the `await` is cancelled."""
    waits_for_all = until_of(until) == "all"
    given = promises_of(operations, KINDS, OTHER)
    deadline = monotonic_deadline(timeout)
    if waits_for_all:
        with withdrawing(given):
            for operation in given:
                if not await settled(operation, seconds_left(deadline), gives_back=False):
                    break
    elif given:
        try:
            async for _ in as_completed(given, seconds_left(deadline)):
                break
        except TimeoutError:
            pass
    return Waited([one for one in given if one.done()], [one for one in given if not one.done()])


async def as_completed(operations: Iterable[Waitable], timeout: Patience = None) -> AsyncIterator[Waitable]:
    """As `timerd_client.as_completed`, for `async for`."""
    given = promises_of(operations, KINDS, OTHER)
    settling: asyncio.Queue[Waitable | None] = asyncio.Queue()
    scope, loop = current_scope(), asyncio.get_running_loop()

    def end() -> None:
        loop.call_soon_threadsafe(settling.put_nowait, None)

    for one in given:
        one._call_aside(settling.put_nowait)
    deadline = monotonic_deadline(timeout)
    try:
        with withdrawing(given):
            if scope is not None and not scope.add(end):
                raise scope.error()
            for left in range(len(given), 0, -1):
                if not settling.empty():  # a settled operation counts, also after the timeout
                    operation = settling.get_nowait()
                else:
                    try:
                        async with asyncio.timeout(seconds_left(deadline)):
                            operation = await settling.get()
                    except TimeoutError:
                        raise unsettled(left, len(given), timeout) from None
                if operation is None:
                    assert scope is not None, "only end() puts None there"
                    raise scope.error()
                operation.done()  # this counts as a look at the outcome
                yield operation
    finally:
        if scope is not None:
            scope.remove(end)
        for one in given:
            one._remove(Aside(settling.put_nowait))
