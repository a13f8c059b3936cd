"""What a coroutine waits for: the operations, batches and answers of an asyncio client."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Generator
from typing import Any

from timerd_client.arguments import wait_s
from timerd_client.hot import without_collector
from timerd_client.link.batch import Batch
from timerd_client.link.operation import Operation
from timerd_client.link.promise import Promise, Reply
from timerd_client.outcome import Outcome, State
from timerd_client.types import Timeout
from timerd_shm.declare.errors import ClosedError
from timerd_shm.declare.limits import CLOSE_TIMEOUT_S


@without_collector
class AioOperation(Operation):
    """The operation of an asyncio client: `await` it for its outcome."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, Outcome]:
        try:
            yield from self._wait_in_loop()
        except asyncio.CancelledError:
            with contextlib.suppress(ClosedError):
                self._send_cancel()
            raise
        return self._outcome()

    async def result(self, timeout: float | None = None) -> Outcome:
        """The outcome. Raises TimeoutError after `timeout` seconds; the operation then stays pending."""
        await settled(self, timeout)
        return self._outcome()

    async def cancel(self, timeout: float = CLOSE_TIMEOUT_S) -> bool:
        """Cancel it and wait for its outcome; True if it was cancelled. Raises TimerdUnavailableError."""
        self._send_cancel()
        await settled_in_time(self, timeout)
        return self._withdrawn()

    async def reschedule(self, timeout: Timeout, *, wait: bool = False) -> bool:
        """Give it a new deadline, `timeout` seconds from now; False if it had settled."""
        reply = Reply(self._link) if wait else None
        sent = self._send_reschedule(timeout, reply)
        return sent if reply is None or not sent else bool(await answer_of(reply, CLOSE_TIMEOUT_S))

    async def accepted(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Wait until the daemon has accepted it, after `register(wait=True)`. Raises the daemon's refusal."""
        self._accepted_error()
        assert self._reply is not None
        await answer_of(self._reply, timeout)


class AioBatch(Batch):
    """The batch of an asyncio client."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, list[Outcome]]:
        yield from self._wait_in_loop()
        return self._outcomes()

    async def outcomes(self, timeout: float | None = None) -> list[Outcome]:
        """The outcomes, in input order; raises TimeoutError."""
        await settled(self, timeout)
        return self._outcomes()

    async def states(self, timeout: float | None = None) -> list[State]:
        """The states alone, in input order; raises TimeoutError."""
        await settled(self, timeout)
        return self._states()

    async def values(self, timeout: float | None = None) -> list[bytes]:
        """The values of the events that settled them, in input order; raises TimeoutError."""
        await settled(self, timeout)
        return [settlement[1] for settlement in self._column()]

    async def completed(self, timeout: float | None = None) -> int:
        """How many completed; raises TimeoutError."""
        await settled(self, timeout)
        return self._completed()


async def settled(promise: Promise, timeout: float | None) -> None:
    """Wait until it has settled, without cancelling it. Raises TimeoutError."""
    wait_s(timeout)
    if promise.done():
        return
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake(_: object) -> None:
        if not future.done():
            future.set_result(None)

    promise.add_done_callback(wake)
    try:
        await asyncio.wait_for(future, timeout)
    except TimeoutError:
        raise TimeoutError(f"not settled within {timeout:g} s: {promise!r}") from None
    finally:
        promise._remove(wake)


async def settles(promise: Promise, timeout: float | None) -> bool:
    """Whether it settles within `timeout` seconds."""
    try:
        await settled(promise, timeout)
    except TimeoutError:
        return False
    return True


async def settled_in_time(promise: Promise, timeout: float) -> None:
    """Wait until it has settled. Raises TimerdUnavailableError after `timeout` seconds."""
    if not await settles(promise, timeout):
        raise promise._link.unavailable(timeout)


async def answer_of(reply: Reply, timeout: float) -> Any:
    await settled_in_time(reply, timeout)
    return reply.get()
