"""The producer for asyncio: like the threaded producer, but driven by the client's loop.

async def post(lane, records): (await session.post(URL, json=records)).raise_for_status()

async with Producer(td.aio.client(), post) as producer:
    delivery = await (await producer.send({"user": 7}, lane="user-7"))
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Any, Final, Self, Unpack
from uuid import uuid4

from timerd_client.arguments import callback_of, function_of, patience_s
from timerd_client.link.surface import Surface
from timerd_client.one_process import OneProcess
from timerd_client.types import Patience
from timerd_client.waits.loop_end import at_loop_end
from timerd_shm.declare.errors import BackpressureError, ClosedError

from .accumulator import Accumulator
from .batch import Attempt, Batch, Delivery, DeliveryOutcome
from .deadlines import TimerdDeadlines
from .errors import CLOSED, GIVEN_UP, Retriable, buffer_full, is_retriable, judged, lane_unknown
from .options import NEVER, S
from .records import Item, OnDelivery, UnderWay
from .senders import Ready, Stuck, guarded
from .settings import Settings, client_of, settings_of

CANCEL_S: Final = 1.0  # how long stop() waits for the ends of cancelled attempts


class Tasks:
    """A transport with a task for each attempt. It cancels a task after request_timeout.

    A task that does not end although it was cancelled takes up room.
    """

    def __init__(
        self,
        send: Callable[[Attempt], Awaitable[object]],
        tasks: int,
        finished: Callable[[Attempt, BaseException | None], object],
        ready: Ready,
    ) -> None:
        """`finished` is called in the loop."""
        self._send = send
        self._limit = 2 * tasks
        self._finished = finished
        self._stuck = Stuck(ready)
        self.ready, self.why, self.returned = self._stuck.ready, self._stuck.why, self._stuck.returned
        self._running: dict[Attempt, asyncio.Task[None]] = {}

    def room(self) -> int:
        return self._limit - len(self._running)

    def send(self, attempt: Attempt) -> None:
        self._running[attempt] = asyncio.get_running_loop().create_task(self._run(attempt), name="timerd-attempt")

    def abandon(self, attempt: Attempt) -> None:
        if (task := self._running.get(attempt)) is not None:
            self._stuck.abandon(attempt)
            task.cancel()

    async def stop(self) -> None:
        """Cancel all tasks, and wait up to CANCEL_S for their ends."""
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CANCEL_S)

    async def _run(self, attempt: Attempt) -> None:
        error: BaseException | None = None
        try:
            await self._send(attempt)
        except BaseException as raised:  # also CancelledError: the attempt must be reported
            error = raised
        finally:
            del self._running[attempt]
            self._finished(attempt, error)


class Producer(OneProcess):
    """Sends records in batches, in one loop. The arguments are those of the threaded Producer; see its docstring.

    `send(lane, records)` is a coroutine function; at `request_timeout` it is cancelled. `ready`, `retriable` and
    `on_delivery` are plain functions, called in the loop.
    """

    IN_PLACE = "make a producer in each process"

    def __init__(
        self,
        client: Surface[Any, Any],
        send: Callable[[Any, Sequence[Any]], Awaitable[object]],
        *,
        ready: Callable[[Any], bool | None] | None = None,
        retriable: Retriable = is_retriable,
        **settings: Unpack[Settings],
    ) -> None:
        """Call this in the loop. Raises DeliveryTimeoutTooShortError, and InvalidValueError with the setting's name."""
        client_of(client, in_loop=True)
        self._send = function_of("send", send, "of a lane and its records")
        self._ready = ready if ready is None else function_of("ready", ready, "of a lane")
        self._retriable = function_of("retriable", retriable, "of an error")
        options, self._max_block_s = settings_of(settings)
        link = client._live()
        self._loop = asyncio.get_running_loop()
        self._now_ns = link.now_ns
        self._complain = link.complain
        self._items = UnderWay[asyncio.Future[Delivery]](self._complain)
        self._tasks = Tasks(self._attempt, options.max_in_flight, self._sent, guarded(self._ready, self._complain))
        deadlines = TimerdDeadlines(client, f"producer/{uuid4().hex}", self._settled)
        self._accumulator = Accumulator(options, self._tasks, deadlines)
        self._closed = False
        self._stopped = False
        self._woken = False
        self._waiters: set[asyncio.Future[None]] = set()
        self._turn: asyncio.Handle | None = None  # the next turn, if it is in the next iteration of the loop
        self._timer: asyncio.TimerHandle | None = None
        self._guard = at_loop_end(self._stop)

    async def send(
        self, record: Any, *, lane: Hashable = None, on_delivery: OnDelivery | None = None, size: int = 0
    ) -> asyncio.Future[Delivery]:
        """Take a record in. Returns a future of the record's Delivery. Waits for room, `max_block` at most.

        Cancelling the future changes nothing for the record. Raises BackpressureError, PayloadTooLargeError,
        ClosedError.
        """
        if on_delivery is not None:
            callback_of(on_delivery, "on_delivery")
        item = Item(record, lane, on_delivery, self._loop.create_future())
        end = self._loop.time() + self._max_block_s
        while True:
            if self._closed:
                raise ClosedError(CLOSED)
            is_known = self._ready is None or self._ready(lane) is not None
            if is_known and self._take_in(item, size):
                return item.future
            if self._loop.time() >= end:
                if not is_known:
                    raise BackpressureError(lane_unknown(self._max_block_s, lane))
                raise BackpressureError(buffer_full(self._max_block_s, self._items.count))
            await self._change(end - self._loop.time())

    def _take_in(self, item: Item[asyncio.Future[Delivery]], size: int) -> bool:
        """Take the item in, if there is room. Returns whether there was room."""
        try:
            self._accumulator.append(item, self._now_ns(), lane=item.lane, size=size)
        except BackpressureError:
            return False
        else:
            self._items.add(item)
            return True
        finally:
            self._turn_soon()

    def wake(self) -> None:
        """Lanes may have become ready: call `ready` again for each lane that waits."""
        self._woken = True
        self._turn_soon()
        self._notify()

    async def flush(self, *, timeout: Patience = None) -> bool:
        """Send all without lingering, and wait for all settlements and callbacks. Returns False after `timeout` s."""
        self._accumulator.flush()
        self._turn_soon()
        return await self._until_settled(patience_s(timeout))

    async def close(self, *, timeout: Patience = None) -> bool:
        """Take no more records, and wait until all have settled. Returns False if some had to be given up.

        Records that have not settled after `timeout` s are given up: they fail, but an attempt that is under way may
        still arrive. With timeout=None, delivery_timeout bounds the wait.
        """
        self._closed = True
        self._accumulator.close()
        self._turn_soon()
        self._notify()
        settled = await self._until_settled(patience_s(timeout))
        await self._stop()
        return settled

    async def _stop(self) -> None:
        """Give up the remaining records, and stop."""
        self._closed = self._stopped = True
        for handle in (self._turn, self._timer):
            if handle is not None:
                handle.cancel()
        self._accumulator.give_up(GIVEN_UP, self._now_ns())
        self._call_back()
        await self._tasks.stop()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<Producer, {self._items.count} records under way{', closed' if self._closed else ''}>"

    async def _until_settled(self, seconds: float | None) -> bool:
        end = None if seconds is None else self._loop.time() + seconds
        while self._items.count and (end is None or self._loop.time() < end):
            await self._change(None if end is None else end - self._loop.time())
        return not self._items.count

    async def _change(self, seconds: float | None) -> None:
        """Wait until records have settled, or a lane may have become ready; `seconds` at most."""
        waiter = self._loop.create_future()
        self._waiters.add(waiter)
        try:
            await asyncio.wait([waiter], timeout=seconds)
        finally:
            self._waiters.discard(waiter)

    def _notify(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    # turns of the accumulator -----------------------------------------------------------------------------------------

    def _turn_soon(self) -> None:
        if self._turn is None and not self._stopped:
            self._turn = self._loop.call_soon(self._take_turn)

    def _take_turn(self) -> None:
        self._turn = None
        if self._timer is not None:
            self._timer.cancel()
        if self._woken:
            self._woken = False
            self._accumulator.wake()
        now_ns = self._now_ns()
        self._accumulator.poll(now_ns)
        self._call_back()
        due_ns = self._accumulator.due_ns()
        self._timer = None
        if due_ns < NEVER:
            self._timer = self._loop.call_later(max(0, due_ns - now_ns) / S, self._turn_soon)

    def _call_back(self) -> None:
        deliveries = self._accumulator.take()
        ends: BaseException | None = None
        for delivery in deliveries:
            for item in self._items.settle(delivery):
                error = self._items.call_back(item)
                ends = error if isinstance(error, (SystemExit, KeyboardInterrupt)) else ends
                self._items.called_back([item])
        if deliveries:
            self._notify()
        if ends is not None:  # the loop ends, as it does when any callback raises SystemExit
            self._turn_soon()
            raise ends

    async def _attempt(self, attempt: Attempt) -> None:
        await self._send(attempt.batch.key, [item.record for item in attempt.records])

    def _sent(self, attempt: Attempt, error: BaseException | None) -> None:
        text, retriable = judged(error, self._retriable)
        if self._tasks.returned(attempt):
            self._accumulator.wake()
        self._accumulator.finished(attempt, self._now_ns(), text, retriable=retriable)
        self._turn_soon()

    def _settled(self, batch: Batch, outcome: DeliveryOutcome | None) -> None:
        self._loop.call_soon(self._decided, batch, outcome)

    def _decided(self, batch: Batch, outcome: DeliveryOutcome | None) -> None:
        self._accumulator.settled(batch, outcome, self._now_ns())
        self._turn_soon()
