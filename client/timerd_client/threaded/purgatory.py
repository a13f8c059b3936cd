"""A purgatory of a threaded client: a named set of watchers whose events, watermarks and ids are its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from timerd_client.conditions import ANY, When
from timerd_client.delayed.operation import DelayedDriver, delayed_of
from timerd_client.events.subscription import BUFFER
from timerd_client.link import flows
from timerd_client.link.batch import ThreadedBatch, fire_many, register_many
from timerd_client.link.operation import ThreadedOperation
from timerd_client.link.promise import Reply
from timerd_client.link.surface import Surface
from timerd_client.link.withdrawals import abandon
from timerd_client.mark import Mark
from timerd_client.types import IfExists, Key, Keys, OrphanPolicy, Patience, Payload, Timeout, WhenLost
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

    @property
    def name(self) -> str:
        """The purgatory's name."""
        return str(self._name)

    def register_wait(
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
    ) -> ThreadedOperation:
        """`register`, and wait until the daemon has accepted it. Raises the daemon's refusal.

        Raises TimerdUnavailableError after 5 s, or at once if the daemon is lost; then nothing stays registered.
        """
        reply = Reply(self._live())
        operation = self._register(keys, timeout, when, payload, id, if_exists, since, orphans, reply)
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
        """`fire`, and the number of operations that it completed; raises TimerdUnavailableError after `timeout` s.

        After the error it may still be applied, like every call while the daemon is lost. So do not fire it again.
        0 does not mean that it completes none: it also completes registrations that were called before and reach the
        daemon after it, and these are not counted.
        """
        return int(self._ask_fire(key, value, amount, limit).answer_in_time(timeout))

    def cancel_for_key_wait(self, key: Key, *, timeout: Patience = CLOSE_TIMEOUT_S) -> int:
        """`cancel_for_key`, and the number of operations that it cancelled."""
        return int(self._ask_cancel_for_key(key).answer_in_time(timeout))

    def cancel_wait(self, id: Key, *, timeout: Patience = CLOSE_TIMEOUT_S) -> bool:
        """`cancel`, and whether it has cancelled it. Raises UnknownOperationError if none of that id is pending."""
        return bool(self._ask_cancel(id).answer_in_time(timeout))

    def reschedule_wait(self, id: Key, delay: Timeout, *, timeout: Patience = CLOSE_TIMEOUT_S) -> bool:
        """`reschedule`, and whether it was done. Raises UnknownOperationError if none of that id is pending."""
        return bool(self._ask_reschedule(id, delay).answer_in_time(timeout))

    def watermark(self, key: Key, *, timeout: Patience = CLOSE_TIMEOUT_S) -> int | None:
        """The watermark of a key, the highest offset that it was advanced to; None if it has none.

        The daemon is asked once where the key's record is; after that the value is read from shared memory, in about a
        microsecond. The daemon is asked again while the key has no watermark, when it was forgotten, in another arena,
        and where the arena cannot be mapped. Raises TimerdUnavailableError after `timeout` s.
        """
        return drive(flows.watermark(self, key, timeout))

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
    ) -> ThreadedBatch:
        """Register an operation for each of `keys`. Timeouts, payloads and ids are one for each, or one for all.

        The batch gives outcomes, states and values in the order of `keys`. `since` is the mark from which events count
        for all of them (default: now). `ids`, `if_exists` and `orphans` are as in `register`; with "keep" a row whose
        id is in use settles as KEPT.
        """
        batch = register_many(self, ThreadedBatch, keys, timeout, payloads, when, since, ids, if_exists, orphans)
        assert isinstance(batch, ThreadedBatch)
        return batch

    def register_many_wait(
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
    ) -> ThreadedBatch:
        """`register_many`, and wait until the daemon has answered for all. `batch.refused()` are those it refused.

        Raises TimerdUnavailableError after `receipt_timeout` s, or at once if the daemon is lost.
        """
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
        drive(flows.received(self._link, batch.last_command(), receipt_timeout))
        return batch

    def subscribe(
        self, keys: Keys, *, since: Mark | None = None, buffer: int = BUFFER, timeout: Patience | None = None
    ) -> Subscription:
        """Subscribe to all events on these keys. Returns at once: `for item in client.subscribe("inbox/7"): ...`

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
        """Fire each of `keys`, in order. Values and amounts are one for each, or one for all. Returns at once."""
        fire_many(self, keys, values, amounts)

    def wait_for(
        self,
        predicate: Callable[[], Value],
        keys: Keys,
        *,
        timeout: Patience | None,
        when: When = ANY,
        unavailable: WhenLost = "raise",
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
        operation: DelayedOperation | Callable[[], bool],
        keys: Key | Iterable[Key],
        *,
        timeout: Timeout,
        payload: Payload = b"",
        id: Key | None = None,
        if_exists: IfExists = "error",
        orphans: OrphanPolicy | None = None,
    ) -> DelayedOperation:
        """Kafka's tryCompleteElseWatch: its owner evaluates the condition; the operation itself is returned.

        `operation` is a DelayedOperation, or a function `try_complete`. It is called now, here. If it is false, the
        operation watches `keys` (10,000 at most) from the moment before that call on: each fire, advance, fail and
        check on one of them calls it again, in the client's thread. A limited event passes the operation by. Several
        events may be one call. Until it is true, the operation keeps its timer, its keys, its id and its orphans
        policy.

        With orphans="keep" or "group" nobody looks any more when this process has died: it runs to its deadline. While
        the daemon is lost nobody looks either; a second after its deadline it is UNAVAILABLE, and no callback runs.
        Raises what `try_complete` raises in this call, and what `register` raises.
        """
        delayed = delayed_of(DelayedOperation, operation)
        DelayedDriver.of(delayed).start(self, keys, timeout, payload, id, if_exists, orphans)
        return delayed

    def check_and_complete(self, key: Key, *, timeout: Patience = CHECK_TIMEOUT_S) -> int:
        """Kafka's checkAndComplete: the owners that watch `key` look, in all processes; how many they complete.

        Returns when every owner has looked. Raises CheckIncompleteError after `timeout` s; `completed` says how many
        are so far, and the others still look. An operation whose registration reaches the daemon after the check is
        looked at, and is neither waited for nor counted. In a callback of a delayed operation it raises RuntimeError.
        """
        return drive(flows.check(self, key, timeout))
