"""The awaitables of an asyncio client: operations, batches and answers."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from timerd_client.arguments import within
from timerd_client.hot import without_collector
from timerd_client.link.batch import Batch
from timerd_client.link.operation import Operation
from timerd_client.link.promise import Promise, Reply
from timerd_client.outcome import Outcome, State
from timerd_client.types import Patience, Timeout
from timerd_shm.declare.limits import CLOSE_TIMEOUT_S


@without_collector
class AioOperation(Operation):
    """The operation of an asyncio client: `await` it for its outcome.

    If the `await` is cancelled, the operation is withdrawn. A limited event that was on its way to this operation goes
    to another operation.
    """

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, Outcome]:
        yield from self._wait_in_loop()
        return self._outcome()

    async def result(self, timeout: Patience = None) -> Outcome:
        await settled_or_raise(self, timeout)
        return self._outcome()

    async def cancel_wait(self, *, timeout: Patience = CLOSE_TIMEOUT_S) -> bool:
        self.cancel()
        await settled_in_time(self, timeout)
        return self._withdrawn()

    async def reschedule_wait(self, delay: Timeout, *, timeout: Patience = CLOSE_TIMEOUT_S) -> bool:
        reply = Reply(self._link)
        return self._send_reschedule(delay, reply) and bool(await answer_of(reply, timeout))


class AioBatch(Batch):
    """The batch of an asyncio client. If an `await` of it is cancelled, its pending rows are withdrawn.

    Settled rows keep their outcomes. Limited events of rows at which nobody looks go to other operations.
    """

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, list[Outcome]]:
        yield from self._wait_in_loop()
        return self._outcomes()

    async def outcomes(self, timeout: Patience = None) -> list[Outcome]:
        await settled_or_raise(self, timeout)
        return self._outcomes()

    async def states(self, timeout: Patience = None) -> list[State]:
        await settled_or_raise(self, timeout)
        return self._states()

    async def values(self, timeout: Patience = None) -> list[bytes]:
        await settled_or_raise(self, timeout)
        return self._values()

    async def completed(self, timeout: Patience = None) -> int:
        await settled_or_raise(self, timeout)
        return self._completed()

    async def cancel_wait(self, *, timeout: Patience = CLOSE_TIMEOUT_S) -> int:
        self.cancel()
        await settled_in_time(self, timeout)
        return self._cancelled()


class _Settled:
    """An awaitable. Its result is whether a promise settles within the time."""

    def __init__(self, promise: Promise, timeout: Patience, *, gives_back: bool) -> None:
        self._promise = promise
        self._timeout = timeout
        self._gives_back = gives_back

    def __await__(self) -> Generator[Any, None, bool]:
        return self._promise._wait_in_loop(self._timeout, gives_back=self._gives_back)


async def settled(promise: Promise, timeout: Patience, *, gives_back: bool = True) -> bool:
    """Whether the promise settles within `timeout` seconds. With `gives_back`, a cancelled await withdraws it."""
    return await _Settled(promise, timeout, gives_back=gives_back)


async def settled_or_raise(promise: Promise, timeout: Patience) -> None:
    """Wait until the promise has settled. Raises TimeoutError after `timeout` seconds."""
    if not await settled(promise, timeout):
        raise TimeoutError(f"not settled {within(timeout)}: {promise!r}")


async def settled_in_time(promise: Promise, timeout: Patience) -> None:
    """Wait until the promise has settled. Raises TimerdUnavailableError after `timeout` seconds."""
    if not await settled(promise, timeout):
        raise promise._link.connection.unavailable(timeout)


async def answer_of(reply: Reply, timeout: Patience) -> Any:
    """The answer to a command. Raises the daemon's refusal, and TimerdUnavailableError after `timeout` seconds."""
    await settled_in_time(reply, timeout)
    return reply.get()
