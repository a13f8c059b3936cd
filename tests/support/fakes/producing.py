"""A producer on a manual clock, its attempts to send, and the outcomes of its records."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

import timerd as td
from timerd.testing import Manual
from timerd_client.delivery import Delivery, RetriableError, aio


class Scene:
    """A producer with short timeouts, in a coroutine on the manual clock. Times are seconds of this clock."""

    def __init__(self, manual: Manual) -> None:
        self.manual = manual
        self.sent: list[tuple[float, Any, list[Any]]] = []  # when, lane, records
        self.ends: list[tuple[float, Any, str, int]] = []  # when, record, outcome, attempts
        self.attempt: Callable[[Any, Sequence[Any]], Awaitable[object]] = self.succeed
        self.settings: dict[str, Any] = {"linger": 0.01, "request_timeout": 1, "delivery_timeout": 3}

    async def succeed(self, lane: Any, records: Sequence[Any]) -> None:
        """An attempt that is answered at once."""

    async def hang(self, lane: Any, records: Sequence[Any]) -> None:
        """An attempt that is never answered."""
        await asyncio.get_running_loop().create_future()

    async def busy(self, lane: Any, records: Sequence[Any]) -> None:
        """An attempt whose answer is an error that a retry may cure."""
        raise RetriableError("busy")

    def now(self) -> float:
        return round(self.manual.now, 6)

    def note(self, delivery: Delivery) -> None:
        self.ends.append((self.now(), delivery.record, delivery.outcome.value, delivery.attempts))

    async def send(self, producer: aio.Producer, *records: Any, lane: Any = None) -> list[asyncio.Future[Delivery]]:
        return [await producer.send(record, lane=lane, on_delivery=self.note) for record in records]

    def play(self, act: Callable[[aio.Producer], Coroutine[Any, Any, None]], **settings: Any) -> None:
        """Run `act` with a producer of these settings, then close the producer, so that all its records settle."""

        async def post(lane: Any, records: Sequence[Any]) -> None:
            self.sent.append((self.now(), lane, list(records)))
            await self.attempt(lane, records)

        async def main() -> None:
            async with td.aio.client() as client, aio.Producer(client, post, **{**self.settings, **settings}) as made:
                await act(made)

        self.manual.run(main())
