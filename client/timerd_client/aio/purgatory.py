"""A purgatory of an asyncio client. `timerd_client.aio` says how it is used."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import timedelta
from typing import TypeVar, Unpack

from timerd_client.conditions import ANY, When
from timerd_client.declared import BATCH, DELAYED, REGISTRATION, BatchArguments, DelayedArguments, RegistrationArguments
from timerd_client.delayed.operation import DelayedDriver, delayed_of
from timerd_client.events.subscription import BUFFER
from timerd_client.link import flows
from timerd_client.link.batch import fire_many, register_many
from timerd_client.link.promise import Reply
from timerd_client.link.surface import Surface
from timerd_client.mark import Mark
from timerd_client.types import Key, Keys, Patience, Payload, Timeout, WhenLost
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

    Calls that return at once may come from any thread. An awaited call belongs to the client's loop.
    """

    IN_LOOP = True

    @REGISTRATION.shown
    async def register_wait(self, keys: Keys, **arguments: Unpack[RegistrationArguments]) -> AioOperation:
        reply = Reply(self._live())
        operation = self._register(keys, "register_wait", arguments, reply)
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
        return int(await answer_of(self._ask_fire(key, value, amount, limit), timeout))

    async def cancel_for_key_wait(self, key: Key, *, timeout: Patience = CLOSE_TIMEOUT_S) -> int:
        return int(await answer_of(self._ask_cancel_for_key(key), timeout))

    async def cancel_wait(self, id: Key, *, timeout: Patience = CLOSE_TIMEOUT_S) -> bool:
        return bool(await answer_of(self._ask_cancel(id), timeout))

    async def reschedule_wait(self, id: Key, delay: Timeout, *, timeout: Patience = CLOSE_TIMEOUT_S) -> bool:
        return bool(await answer_of(self._ask_reschedule(id, delay), timeout))

    async def watermark(self, key: Key, *, timeout: Patience = CLOSE_TIMEOUT_S) -> int | None:
        return await drive(flows.watermark(self, key, timeout))

    @BATCH.shown
    def register_many(self, keys: Sequence[Keys], **arguments: Unpack[BatchArguments]) -> AioBatch:
        return register_many(self, AioBatch, keys, "register_many", arguments)

    @BATCH.shown
    async def register_many_wait(
        self, keys: Sequence[Keys], *, receipt_timeout: Patience = CLOSE_TIMEOUT_S, **arguments: Unpack[BatchArguments]
    ) -> AioBatch:
        batch = register_many(self, AioBatch, keys, "register_many_wait", arguments)
        await drive(flows.received(self._link, batch.last_command(), receipt_timeout))
        return batch

    def subscribe(
        self, keys: Keys, *, since: Mark | None = None, buffer: int = BUFFER, timeout: Patience = None
    ) -> Subscription:
        return Subscription(self, keys, since, buffer, timeout)

    def fire_many(
        self, keys: Sequence[Key], *, values: Sequence[Payload] | Payload = b"", amounts: Sequence[int] | int = 1
    ) -> None:
        fire_many(self, keys, values, amounts)

    async def wait_for(
        self,
        predicate: Callable[[], Value | Awaitable[Value]],
        keys: Keys,
        *,
        timeout: Patience,
        when: When = ANY,
        unavailable: WhenLost = "raise",
        poll_interval: float | timedelta = POLL_S,
    ) -> Value:
        found: Value = await drive(flows.wait_for(self, predicate, keys, timeout, when, unavailable, poll_interval))
        return found

    @DELAYED.shown
    async def try_complete_else_watch(
        self,
        operation: DelayedOperation | Callable[[], bool | Awaitable[bool]],
        keys: Key | Iterable[Key],
        **arguments: Unpack[DelayedArguments],
    ) -> DelayedOperation:
        delayed = delayed_of(DelayedOperation, operation)
        await DelayedDriver.of(delayed).start(self, keys, DELAYED.of("try_complete_else_watch", arguments))
        return delayed

    async def check_and_complete(self, key: Key, *, timeout: Patience = CHECK_TIMEOUT_S) -> int:
        return await drive(flows.check(self, key, timeout))
