"""A purgatory of a threaded client: a named set of watchers whose events, watermarks and ids are its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import TypeVar, Unpack

from timerd_client.conditions import ANY, When
from timerd_client.declared import BATCH, DELAYED, REGISTRATION, BatchArguments, DelayedArguments, RegistrationArguments
from timerd_client.delayed.operation import DelayedDriver, delayed_of
from timerd_client.events.subscription import BUFFER
from timerd_client.link import flows
from timerd_client.link.batch import ThreadedBatch, fire_many, register_many
from timerd_client.link.operation import ThreadedOperation
from timerd_client.link.promise import Reply
from timerd_client.link.surface import Surface
from timerd_client.link.withdrawals import abandon
from timerd_client.mark import Mark
from timerd_client.types import Key, Keys, Patience, Payload, Timeout, WhenLost
from timerd_client.waits.polling import POLL_S
from timerd_shm.declare.errors import OperationExistsError
from timerd_shm.declare.limits import CHECK_TIMEOUT_S, CLOSE_TIMEOUT_S

from .delayed import DelayedOperation
from .link import ThreadedLink, drive
from .subscription import Subscription

Value = TypeVar("Value")


class Purgatory(Surface[ThreadedOperation, ThreadedLink]):
    """`client.purgatory(name)`; the client itself is its purgatory "default".

    Any thread may use it. It works in forked children, too, as its client does. It cannot be pickled.
    """

    IN_LOOP = False

    @REGISTRATION.shown
    def register_wait(self, keys: Keys, **arguments: Unpack[RegistrationArguments]) -> ThreadedOperation:
        reply = Reply(self._live())
        operation = self._register(keys, "register_wait", arguments, reply)
        try:
            reply.answer_in_time(CLOSE_TIMEOUT_S)
        except OperationExistsError as error:
            if not error.kept:
                raise
        except BaseException:
            abandon(self._link, [operation.command])  # the caller gets no handle
            raise
        return operation

    def fire_wait(
        self,
        key: Key,
        *,
        value: Payload = b"",
        amount: int = 1,
        limit: int | None = None,
        timeout: Patience = CLOSE_TIMEOUT_S,
    ) -> int:
        return int(self._ask_fire(key, value, amount, limit).answer_in_time(timeout))

    def cancel_for_key_wait(self, key: Key, *, timeout: Patience = CLOSE_TIMEOUT_S) -> int:
        return int(self._ask_cancel_for_key(key).answer_in_time(timeout))

    def cancel_wait(self, id: Key, *, timeout: Patience = CLOSE_TIMEOUT_S) -> bool:
        return bool(self._ask_cancel(id).answer_in_time(timeout))

    def reschedule_wait(self, id: Key, delay: Timeout, *, timeout: Patience = CLOSE_TIMEOUT_S) -> bool:
        return bool(self._ask_reschedule(id, delay).answer_in_time(timeout))

    def watermark(self, key: Key, *, timeout: Patience = CLOSE_TIMEOUT_S) -> int | None:
        return drive(flows.watermark(self, key, timeout))

    @BATCH.shown
    def register_many(self, keys: Sequence[Keys], **arguments: Unpack[BatchArguments]) -> ThreadedBatch:
        return register_many(self, ThreadedBatch, keys, "register_many", arguments)

    @BATCH.shown
    def register_many_wait(
        self, keys: Sequence[Keys], *, receipt_timeout: Patience = CLOSE_TIMEOUT_S, **arguments: Unpack[BatchArguments]
    ) -> ThreadedBatch:
        batch = register_many(self, ThreadedBatch, keys, "register_many_wait", arguments)
        drive(flows.received(self._link, batch.last_command(), receipt_timeout))
        return batch

    def subscribe(
        self, keys: Keys, *, since: Mark | None = None, buffer: int = BUFFER, timeout: Patience = None
    ) -> Subscription:
        return Subscription(self, keys, since, buffer, timeout)

    def fire_many(
        self, keys: Sequence[Key], *, values: Sequence[Payload] | Payload = b"", amounts: Sequence[int] | int = 1
    ) -> None:
        fire_many(self, keys, values, amounts)

    def wait_for(
        self,
        predicate: Callable[[], Value],
        keys: Keys,
        *,
        timeout: Patience,
        when: When = ANY,
        unavailable: WhenLost = "raise",
        poll_interval: float | timedelta = POLL_S,
    ) -> Value:
        found: Value = drive(flows.wait_for(self, predicate, keys, timeout, when, unavailable, poll_interval))
        return found

    @DELAYED.shown
    def try_complete_else_watch(
        self,
        operation: DelayedOperation | Callable[[], bool],
        keys: Key | Iterable[Key],
        **arguments: Unpack[DelayedArguments],
    ) -> DelayedOperation:
        delayed = delayed_of(DelayedOperation, operation)
        DelayedDriver.of(delayed).start(self, keys, DELAYED.of("try_complete_else_watch", arguments))
        return delayed

    def check_and_complete(self, key: Key, *, timeout: Patience = CHECK_TIMEOUT_S) -> int:
        return drive(flows.check(self, key, timeout))
