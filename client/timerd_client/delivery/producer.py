"""A producer takes records in. It delivers, fails or expires each record within delivery_timeout (KIP-91).

def post(lane, records): requests.post(URL, json=records, timeout=30).raise_for_status()

with Producer(td.client(), post) as producer:
    future = producer.send({"user": 7}, lane="user-7", on_delivery=print)
    future.result().outcome
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from time import monotonic
from typing import Any, Self, Unpack
from uuid import uuid4

from timerd_client.arguments import callback_of, function_of, is_coroutine_function, patience_s
from timerd_client.link.operation import ThreadedOperation
from timerd_client.link.surface import Surface
from timerd_client.one_process import OneProcess
from timerd_client.types import Patience
from timerd_client.waits.slices import slices
from timerd_shm.declare.errors import BackpressureError, ClosedError, InvalidValueError

from .batch import Attempt, Delivery, DeliveryOutcome
from .courier import Courier
from .errors import CLOSED, GIVEN_UP, OF_PARENT, Retriable, buffer_full, is_retriable, lane_unknown, text_of
from .records import Item, OnDelivery, UnderWay
from .senders import guarded
from .settings import Settings, client_of, settings_of


class Producer(OneProcess):
    """Sends records in batches. Any thread may use it. A forked child makes its own. `with` closes it at the end.

    `send(lane, records)` sends a batch, or raises an error. The producer calls it in its threads, and it should end
    within `request_timeout`. `retriable(error)` says whether a batch is sent again after this error.

    `ready(lane)` says whether a lane can be sent now. True: yes. False: no, and the lane's records wait, up to
    `delivery_timeout`. None: not known yet, as in Kafka without metadata, and `producer.send` waits. Several threads
    call `ready`. It must neither block nor send. Call `producer.wake()` after a change; otherwise the producer calls
    `ready` again after `retry_backoff`.

    `settings` have Kafka's names, with times in seconds: see `settings.Settings`. Deadlines are operations of timerd:
    they pass on time, even while this process is stuck. While the daemon is lost, they are up to 1.5 s late.

    Sources: KIP-91; KIP-19 and KIP-580. docs/howto/deliveries.md has the phases of a record.
    """

    IN_PLACE = "make a producer in each process"

    def __init__(
        self,
        client: Surface[ThreadedOperation, Any],
        send: Callable[[Any, Sequence[Any]], object],
        *,
        ready: Callable[[Any], bool | None] | None = None,
        retriable: Retriable = is_retriable,
        **settings: Unpack[Settings],
    ) -> None:
        """Raises DeliveryTimeoutTooShortError, and InvalidValueError with the setting's name."""
        client_of(client, in_loop=False)
        if is_coroutine_function(send):
            raise InvalidValueError(f"send={send!r} is a coroutine function: use timerd_client.delivery.aio.Producer")
        self._send = function_of("send", send, "of a lane and its records")
        self._ready = ready if ready is None else function_of("ready", ready, "of a lane")
        options, self._max_block_s = settings_of(settings)
        self._complain = client._live().complain
        self._changed = threading.Condition()  # guards the fields below; notified after settlements, and by wake()
        self._changes = 0
        self._items = UnderWay[Future[Delivery]](self._complain)
        self._pid = os.getpid()
        self._closed = False
        self._why_closed = CLOSED
        self._courier = Courier(
            client,
            self._attempt,
            options,
            prefix=f"producer/{uuid4().hex}",
            retriable=function_of("retriable", retriable, "of an error"),
            ready=guarded(self._ready, self._complain),
            settled=self._call_back,
        )

    def send(
        self, record: Any, *, lane: Hashable = None, on_delivery: OnDelivery | None = None, size: int = 0
    ) -> Future[Delivery]:
        """Take a record in. Returns a future of the record's Delivery. Waits for room, `max_block` at most.

        The records of a lane (Kafka's partition) are sent in order, and their callbacks come in order; records without
        a lane have no order. `size` is the bytes of the record. `on_delivery(delivery)` is called once, in a thread of
        the producer; it must not block. The future cannot be cancelled: the record is under way.

        Raises BackpressureError, PayloadTooLargeError, ClosedError. A send() in `on_delivery` does not wait for room.
        """
        if on_delivery is not None:
            callback_of(on_delivery, "on_delivery")
        if self._is_of_parent():
            raise ClosedError(OF_PARENT)
        future = Future[Delivery]()
        future.set_running_or_notify_cancel()
        item = Item(record, lane, on_delivery, future)
        end = monotonic() + (0.0 if self._courier.in_own_thread else self._max_block_s)
        while True:
            seen = self._changes
            is_known = self._ready is None or self._ready(lane) is not None  # no lock: `ready` is the user's code
            if is_known and self._take_in(item, size):
                return future
            if not self._wait(lambda seen=seen: self._changes != seen or self._closed, end - monotonic()):  # type: ignore[misc]
                if not is_known:
                    raise BackpressureError(lane_unknown(self._max_block_s, lane))
                raise BackpressureError(buffer_full(self._max_block_s, self._items.count))

    def _take_in(self, item: Item[Future[Delivery]], size: int) -> bool:
        """Take the item in, if there is room. Returns whether there was room."""
        with self._changed:
            if self._closed:
                raise ClosedError(self._why_closed)
            taken = self._courier.offer([item], [item.lane], [size])
            if taken:
                self._items.add(item)
            return bool(taken)

    def wake(self) -> None:
        """Lanes may have become ready: call `ready` again for each lane that waits. Returns at once."""
        self._courier.wake()

    def flush(self, *, timeout: Patience = None) -> bool:
        """Send all without lingering, and wait for all settlements and callbacks. Returns False after `timeout` s."""
        if self._is_of_parent():
            raise ClosedError(OF_PARENT)
        self._refuse_in_callback("flush")
        self._courier.flush()
        return self._wait(lambda: not self._items.count, patience_s(timeout))

    def close(self, *, timeout: Patience = None) -> bool:
        """Take no more records, and wait until all have settled. Returns False if some had to be given up.

        Records that have not settled after `timeout` s are given up: they fail, but an attempt that is under way may
        still arrive. With timeout=None, delivery_timeout bounds the wait. In a forked child close() does nothing: the
        parent delivers.
        """
        if self._is_of_parent():
            return True
        self._refuse_in_callback("close")
        with self._changed:
            self._closed = True
        self._notify()
        self._courier.close()
        settled = self._wait(lambda: not self._items.count, patience_s(timeout))
        if not settled:
            self._courier.give_up(GIVEN_UP)
            self._wait(lambda: not self._items.count, None)
        self._courier.stop()
        return settled

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Producer, {self._items.count} records under way{', closed' if self._closed else ''}>"

    def _is_of_parent(self) -> bool:
        """Whether this is a forked child, which has no threads of the producer."""
        return os.getpid() != self._pid

    def _wait(self, condition: Callable[[], bool], seconds: float | None) -> bool:
        """Wait until the condition holds, `seconds` at most. Returns whether it holds."""
        with self._changed:
            for sleep_s in slices(seconds):
                if self._changed.wait_for(condition, sleep_s):
                    return True
        return False

    def _notify(self) -> None:
        with self._changed:
            self._changes += 1
            self._changed.notify_all()

    def _refuse_in_callback(self, what: str) -> None:
        if self._courier.in_own_thread:
            raise RuntimeError(f"{what}() in a callback of the same producer would wait for itself; call it elsewhere")

    # in the courier's senders -----------------------------------------------------------------------------------------

    def _attempt(self, attempt: Attempt) -> None:
        self._send(attempt.batch.key, [item.record for item in attempt.records])

    # in the courier's thread ------------------------------------------------------------------------------------------

    def _call_back(self, deliveries: list[Delivery]) -> None:
        """Records have settled, the courier was woken, or an error has ended the courier."""
        if (error := self._courier.broken) is not None:
            text = text_of(error)
            self._closed, self._why_closed = True, f"an error has ended this producer: {text}. Make another one"
            deliveries = [
                Delivery(item, DeliveryOutcome.FAILED, 0, 0, text)
                for item in self._items.all()
                if item.delivery is None
            ]
        with self._changed:
            items = [item for delivery in deliveries for item in self._items.settle(delivery)]
        for item in items:
            self._items.call_back(item)
        with self._changed:
            self._items.called_back(items)
            self._changes += 1
            self._changed.notify_all()
