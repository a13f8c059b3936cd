"""A purgatory of an asyncio client. `timerd_client.aio` says how it is used."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

from timerd_client.conditions import ANY, When
from timerd_client.delayed.operation import DelayedDriver, delayed_of
from timerd_client.events.subscription import BUFFER
from timerd_client.link import flows
from timerd_client.link.batch import fire_many, register_many
from timerd_client.link.promise import Reply
from timerd_client.link.surface import Surface
from timerd_client.mark import Mark
from timerd_client.types import IfExists, Key, Keys, OrphanPolicy, Patience, Payload, Timeout, WhenLost
from timerd_client.waits.polling import POLL_S
from timerd_shm.declare.errors import OperationExistsError
from timerd_shm.declare.limits import CHECK_TIMEOUT_S, CLOSE_TIMEOUT_S

from .delayed import DelayedOperation
from .link import LoopLink, drive
from .operation import AioBatch, AioOperation, answer_of
from .subscription import Subscription

Value = TypeVar("Value")


class Purgatory(Surface[AioOperation, LoopLink]):
    """`await client.purgatory(name)`; the client itself is its purgatory "default".

    Calls that return at once may come from any thread. What is awaited belongs to the client's loop.
    """

    IN_LOOP = True

    @property
    def name(self) -> str:
        """The purgatory's name."""
        return str(self._name)

    async def register_wait(
        self,
        keys: Keys,
        *,
        timeout: Timeout,
        when: When = ANY,
        payload: Payload = b"",
        id: Key | None = None,
        if_exists: IfExists = "error",
        since: Mark | None = None,
        orphans: OrphanPolicy | None = None,
    ) -> AioOperation:
        """`register`, and wait until the daemon has accepted it; errors as the threaded client's."""
        reply = Reply(self._live())
        operation = self._register(keys, timeout, when, payload, id, if_exists, since, orphans, reply)
        try:
            await answer_of(reply, CLOSE_TIMEOUT_S)
        except OperationExistsError as error:
            if not error.kept:
                raise
        except BaseException:
            operation._give_back()  # the caller gets no handle
            raise
        return operation

    async def fire_wait(
        self,
        key: Key,
        *,
        value: Payload = b"",
        amount: int = 1,
        limit: int | None = None,
        timeout: Patience = CLOSE_TIMEOUT_S,
    ) -> int:
        """`fire`, and the number of operations that it completed; raises TimerdUnavailableError after `timeout` s.

        0 does not mean that it completes none: it also completes registrations that were called before and reach the
        daemon after it, and these are not counted.
        """
        return int(await answer_of(self._ask_fire(key, value, amount, limit), timeout))

    async def cancel_for_key_wait(self, key: Key, *, timeout: Patience = CLOSE_TIMEOUT_S) -> int:
        """`cancel_for_key`, and the number of operations that it cancelled."""
        return int(await answer_of(self._ask_cancel_for_key(key), timeout))

    async def cancel_wait(self, id: Key, *, timeout: Patience = CLOSE_TIMEOUT_S) -> bool:
        """`cancel`, and whether it has cancelled it. Raises UnknownOperationError if none of that id is pending."""
        return bool(await answer_of(self._ask_cancel(id), timeout))

    async def reschedule_wait(self, id: Key, delay: Timeout, *, timeout: Patience = CLOSE_TIMEOUT_S) -> bool:
        """`reschedule`, and whether it was done. Raises UnknownOperationError if none of that id is pending."""
        return bool(await answer_of(self._ask_reschedule(id, delay), timeout))

    async def watermark(self, key: Key, *, timeout: Patience = CLOSE_TIMEOUT_S) -> int | None:
        """The watermark of a key, the highest offset that it was advanced to; None if it has none.

        The daemon is asked once where the key's record is; after that the value is read from shared memory, in about a
        microsecond. The daemon is asked again while the key has no watermark, when it was forgotten, in another arena,
        and where the arena cannot be mapped. Raises TimerdUnavailableError after `timeout` s.
        """
        return await drive(flows.watermark(self, key, timeout))

    def register_many(
        self,
        keys: Sequence[Keys],
        *,
        timeout: Timeout | Sequence[Timeout],
        payloads: Sequence[Payload] | Payload = b"",
        when: When = ANY,
        since: Mark | None = None,
        ids: Sequence[Key | None] | None = None,
        if_exists: IfExists = "error",
        orphans: OrphanPolicy | None = None,
    ) -> AioBatch:
        """Register an operation for each of `keys`; `await` the batch for the outcomes in their order.

        Raises BackpressureError, and sends nothing, if the window has no room for all: `await client.room(n)` before.
        """
        batch = register_many(self, AioBatch, keys, timeout, payloads, when, since, ids, if_exists, orphans)
        assert isinstance(batch, AioBatch)
        return batch

    async def register_many_wait(
        self,
        keys: Sequence[Keys],
        *,
        timeout: Timeout | Sequence[Timeout],
        payloads: Sequence[Payload] | Payload = b"",
        when: When = ANY,
        since: Mark | None = None,
        ids: Sequence[Key | None] | None = None,
        if_exists: IfExists = "error",
        orphans: OrphanPolicy | None = None,
        receipt_timeout: Patience = CLOSE_TIMEOUT_S,
    ) -> AioBatch:
        """`register_many`, and wait until the daemon has answered for all; errors as the threaded client's."""
        batch = self.register_many(
            keys,
            timeout=timeout,
            payloads=payloads,
            when=when,
            since=since,
            ids=ids,
            if_exists=if_exists,
            orphans=orphans,
        )
        await drive(flows.received(self._link, batch.last_command(), receipt_timeout))
        return batch

    def subscribe(
        self, keys: Keys, *, since: Mark | None = None, buffer: int = BUFFER, timeout: Patience | None = None
    ) -> Subscription:
        """Subscribe to all events on these keys. Returns at once: `async for item in client.subscribe("inbox/7"): ...`

        A subscription sees each fire, advance and fail, and takes nothing: a limited event goes to those that wait for
        it. Events come in their order, over all of its keys. `since` is the mark from which they count (default: now).
        `buffer` is how many may wait until they are taken. The loop ends when none has come for `timeout` s.

        Where events may have been missed there is a Gap, and it goes on: the mark is too old, the daemon has another
        arena, or the buffer was full. While the daemon is lost, it waits. Raises the named error for a wrong argument,
        ClosedError. A refusal of the daemon (arena full, quota) is raised by the iteration.
        """
        return Subscription(self, keys, since, buffer, timeout)

    def fire_many(
        self, keys: Sequence[Key], *, values: Sequence[Payload] | Payload = b"", amounts: Sequence[int] | int = 1
    ) -> None:
        """Fire each of `keys`, in order; values and amounts are one for each, or one for all.

        Raises BackpressureError, and sends nothing, if the window has no room for all: `await client.room(n)` before.
        """
        fire_many(self, keys, values, amounts)

    async def wait_for(
        self,
        predicate: Callable[[], Value | Awaitable[Value]],
        keys: Keys,
        *,
        timeout: Patience | None,
        when: When = ANY,
        unavailable: WhenLost = "raise",
        poll_interval: float = POLL_S,
    ) -> Value:
        """A condition variable across processes: until the predicate (which may be a coroutine function) is true.

        Arguments and errors as the threaded client's.
        """
        found: Value = await drive(flows.wait_for(self, predicate, keys, timeout, when, unavailable, poll_interval))
        return found

    async def try_complete_else_watch(
        self,
        operation: DelayedOperation | Callable[[], bool | Awaitable[bool]],
        keys: Key | Iterable[Key],
        *,
        timeout: Timeout,
        payload: Payload = b"",
        id: Key | None = None,
        if_exists: IfExists = "error",
        orphans: OrphanPolicy | None = None,
    ) -> DelayedOperation:
        """Kafka's tryCompleteElseWatch: its owner evaluates the condition, in the loop; the operation is returned.

        `operation` is a DelayedOperation, or a function or coroutine function `try_complete`. The await ends when it
        was called once. Arguments and errors as the threaded client's.
        """
        delayed = delayed_of(DelayedOperation, operation)
        await DelayedDriver.of(delayed).start(self, keys, timeout, payload, id, if_exists, orphans)
        return delayed

    async def check_and_complete(self, key: Key, *, timeout: Patience = CHECK_TIMEOUT_S) -> int:
        """Kafka's checkAndComplete: the owners that watch `key` look, in all processes; how many they complete.

        Returns when every owner has looked. Raises CheckIncompleteError after `timeout` s; `completed` says how many
        are so far, and the others still look. An operation whose registration reaches the daemon after the check is
        looked at, and is neither waited for nor counted. In a callback of a delayed operation it raises RuntimeError.
        """
        return await drive(flows.check(self, key, timeout))
