"""A purgatory of a threaded client: a named set of watchers whose events, watermarks and ids are its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from timerd_client.conditions import ANY, When
from timerd_client.link import flows
from timerd_client.link.batch import ThreadedBatch, fire_many, register_many
from timerd_client.link.operation import ThreadedOperation
from timerd_client.link.polling import POLL_S, RAISE
from timerd_client.link.promise import Reply
from timerd_client.link.surface import Surface
from timerd_client.link.use import Use
from timerd_client.mark import Mark
from timerd_client.operations.delayed import Delayed
from timerd_client.types import Key, Keys, Payload, Timeout
from timerd_shm.declare.limits import CLOSE_TIMEOUT_S
from timerd_shm.declare.wire import CommandFlag, CommandKind

from .link import ThreadedLink, drive

Value = TypeVar("Value")


class Purgatory(Surface[ThreadedOperation]):
    """`client.purgatory(name)`; the client itself is its purgatory "default"."""

    def __init__(self, link: ThreadedLink, name: str) -> None:
        self._threaded = link
        self._use: Use | None = None  # its client's
        super().__init__(link, name, ThreadedOperation)

    def _registered(self, operation: ThreadedOperation) -> None:
        try:
            operation.accepted()
        except BaseException:
            self._link.abandon([operation.command])  # the caller gets no handle
            raise

    def _answer(self, reply: Reply, timeout: float) -> Any:
        if not reply.wait(timeout):
            raise self._link.unavailable(timeout)
        return reply.get()

    def fire_wait(
        self,
        key: Key,
        *,
        value: Payload = b"",
        amount: int = 1,
        limit: int | None = None,
        wait: float = CLOSE_TIMEOUT_S,
    ) -> int:
        """`fire`, and the number of operations that it completed; raises TimerdUnavailableError after `wait` s.

        After the error it may still be applied, like every call while the daemon is lost. So do not fire it again.
        0 does not mean that it completes none: it also completes registrations that were called before and reach the
        daemon after it, and these are not counted.
        """
        reply = self._ask(self._fire_command(key, value, amount, limit, CommandFlag.WANTS_ANSWER))
        return int(self._answer(reply, wait))

    def cancel_for_key_wait(self, key: Key, *, wait: float = CLOSE_TIMEOUT_S) -> int:
        """`cancel_for_key`, and the number of operations that it cancelled."""
        command = self._key_command(CommandKind.CANCEL_FOR_KEY, key, flags=CommandFlag.WANTS_ANSWER)
        return int(self._answer(self._ask(command), wait))

    def reschedule(self, id: Key, timeout: Timeout, *, wait: float = CLOSE_TIMEOUT_S) -> bool:
        """Give the operation of that id a new deadline, from any process; raises UnknownOperationError."""
        return bool(self._answer(self._ask_reschedule(id, timeout), wait))

    def cancel(self, id: Key, *, wait: float = CLOSE_TIMEOUT_S) -> bool:
        """Cancel the operation of that id, from any process; raises UnknownOperationError."""
        return bool(self._answer(self._ask(self._cancel_id_command(id), id), wait))

    def register_many(
        self,
        keys: Sequence[Keys],
        *,
        timeout: Timeout | Sequence[Timeout],
        payloads: Sequence[Payload] | Payload = b"",
        when: When = ANY,
        since: Mark | None = None,
    ) -> ThreadedBatch:
        """Register an operation for each of `keys`. Timeouts and payloads are one for each, or one for all.

        The batch gives outcomes, states and values in the order of `keys`. `since` is the mark from which events count
        for all of them (default: now).
        """
        batch = register_many(self, ThreadedBatch, keys, timeout, payloads, when, since)
        assert isinstance(batch, ThreadedBatch)
        return batch

    def fire_many(
        self, keys: Sequence[Key], *, values: Sequence[Payload] | Payload = b"", amounts: Sequence[int] | int = 1
    ) -> None:
        """Fire each of `keys`, in order. Values and amounts are one for each, or one for all. Returns at once."""
        fire_many(self, keys, values, amounts)

    def wait_for(
        self,
        predicate: Callable[[], Value],
        keys: Keys,
        timeout: Timeout,
        *,
        when: When = ANY,
        unavailable: str = RAISE,
        poll_interval: float = POLL_S,
    ) -> Value:
        """A condition variable across processes: until `predicate()` is true, or `timeout` s are over; its last value.

        The predicate is evaluated here, first at once and then after each event on `keys`; no event is missed in
        between. After `timeout` it is evaluated once more. Raises TimerdUnavailableError if it is false then, and no
        frame of the daemon comes for a second more: events are unknown.

        With `unavailable="poll"` a lost daemon is no error. While it is lost, the predicate is evaluated at intervals
        that grow from `poll_interval` s to 1 s. When it is back, events are waited for again.
        """
        found: Value = drive(flows.wait_for(self, predicate, keys, timeout, when, unavailable, poll_interval))
        return found

    def try_complete_else_watch(
        self,
        try_complete: Callable[[], bool],
        keys: Keys,
        *,
        timeout: Timeout,
        on_done: Callable[[Delayed], object] | None = None,
    ) -> Delayed:
        """Kafka's tryCompleteElseWatch: the owner evaluates the condition itself.

        `try_complete()` is called now, and after each event on `keys` in the client's thread, until it returns true
        (completed) or `timeout` is over (expired). It must not block. `on_done` is called exactly once.
        """
        delayed = Delayed(self, try_complete, keys, timeout, on_done)
        delayed.start()
        return delayed

    def check_and_complete(self, key: Key) -> int:
        """Kafka's checkAndComplete: the watchers of `key` look again, in all processes; how many they are."""
        return self.fire_wait(key)
