"""Delayed operations of asyncio clients, on a manual clock: how they differ from those of threaded clients."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import timerd as td
from timerd.testing import Manual
from timerd_client import aio


def run(program: Callable[[Manual, aio.Client, aio.Client], Any]) -> None:
    async def main(manual: Manual) -> None:
        async with aio.connect() as one, aio.Client() as two:
            await asyncio.wait_for(program(manual, one, two), 60)

    with Manual() as manual:
        asyncio.run(main(manual))


class LoopDelayed(aio.DelayedOperation):
    def __init__(self, ready: bool = False, **more: Any) -> None:
        super().__init__(**more)
        self.ready, self.looks, self.ran = ready, 0, list[str]()

    async def try_complete(self) -> bool:
        self.looks += 1
        await asyncio.sleep(0)
        return self.ready

    async def on_complete(self) -> None:
        self.ran.append("complete")

    def on_expiration(self) -> None:
        self.ran.append("expiration")


def test_in_a_loop_delayed_operations_behave_as_in_threads() -> None:
    async def program(manual: Manual, one: aio.Client, two: aio.Client) -> None:
        four = [LoopDelayed() for _ in range(4)]
        for n, each in enumerate(four):
            assert await (one if n % 2 else two).try_complete_else_watch(each, "orders", timeout=30) is each
        assert [await two.check_and_complete("orders") for _ in range(3)] == [0, 0, 0]
        for each in four:
            each.ready = True
        assert await two.check_and_complete("orders") == 4
        for each in four:
            assert await each.settled(30)
        assert [(each.looks, each.ran) for each in four] == [(5, ["complete"])] * 4
        ready = LoopDelayed(ready=True)
        await one.try_complete_else_watch(ready, "k", timeout=30)
        assert ready.done() and ready.ran == ["complete"]
        plain = await one.try_complete_else_watch(lambda: False, [f"k{n}" for n in range(200)], timeout=30)
        assert await plain.force_complete_wait() and not await plain.force_complete_wait()
        assert await plain.settled(30) and plain.state is td.State.COMPLETED
        cancelled = await one.try_complete_else_watch(LoopDelayed(), "k", timeout=30)
        assert await cancelled.cancel_wait() and cancelled.state is td.State.CANCELLED
        expires = LoopDelayed()
        await one.try_complete_else_watch(expires, "k", timeout=5)
        manual.advance(6)
        assert await expires.settled(30) and expires.ran == ["complete", "expiration"]

    run(program)


def test_in_a_loop_a_check_in_a_callback_is_refused_and_another_check_waits() -> None:
    async def program(manual: Manual, one: aio.Client, two: aio.Client) -> None:
        errors: list[BaseException] = []

        async def checks() -> bool:
            try:
                await one.check_and_complete("k")
            except RuntimeError as error:
                errors.append(error)
            return len(errors) == 2

        delayed = await one.try_complete_else_watch(checks, "k", timeout=30)
        assert await two.check_and_complete("k", timeout=30) == 1
        assert await delayed.settled(30) and len(errors) == 2

    run(program)


def test_a_cancelled_error_in_what_a_function_awaits_is_an_error_like_any_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def program(manual: Manual, one: aio.Client, two: aio.Client) -> None:
        async def awaits_a_task_that_somebody_cancels() -> None:
            helper = asyncio.create_task(asyncio.sleep(30))
            asyncio.get_running_loop().call_soon(helper.cancel)
            await helper

        class Cancelled(LoopDelayed):
            async def try_complete(self) -> bool:
                self.looks += 1
                if self.looks == 2:
                    await awaits_a_task_that_somebody_cancels()
                return self.looks == 3

            async def on_complete(self) -> None:
                self.ran.append("complete")
                await awaits_a_task_that_somebody_cancels()

        completes, expires = Cancelled(), Cancelled()
        await one.try_complete_else_watch(completes, "k", timeout=5)
        await one.try_complete_else_watch(expires, "other", timeout=5)
        assert [await two.check_and_complete("k", timeout=30) for _ in range(2)] == [0, 1]
        manual.advance(6)
        assert await completes.settled(30) and await expires.settled(30)
        assert (completes.ran, expires.ran) == (["complete"], ["complete", "expiration"])

    run(program)
    assert "try_complete of <Cancelled" in caplog.text and "on_complete of <Cancelled" in caplog.text


def test_in_a_loop_an_operation_that_is_forced_before_it_is_started_completes_without_the_daemon() -> None:
    async def program() -> None:
        for waits in (False, True):
            delayed = LoopDelayed()
            if waits:
                assert await delayed.force_complete_wait() and delayed.ran == ["complete"]
            else:
                delayed.force_complete()
            assert await delayed.settled(30) and (delayed.state, delayed.ran) == (td.State.COMPLETED, ["complete"])
            assert not await delayed.force_complete_wait() and not await delayed.cancel_wait()

    asyncio.run(program())


def test_in_a_loop_an_operation_whose_client_is_closed_has_ended() -> None:
    async def program(manual: Manual, one: aio.Client, two: aio.Client) -> None:
        delayed = LoopDelayed()
        async with await aio.connect() as closed:
            await closed.try_complete_else_watch(delayed, "k", timeout=30)
        assert await delayed.settled(30) and delayed.state is td.State.FAILED
        assert not await delayed.cancel_wait() and not await delayed.force_complete_wait()

    run(program)


def test_an_operation_of_the_other_face_is_refused_by_name() -> None:
    async def program(manual: Manual, one: aio.Client, two: aio.Client) -> None:
        with pytest.raises(td.InvalidValueError, match=r"derives from td.DelayedOperation: .* td.aio.DelayedOperation"):
            await one.try_complete_else_watch(td.DelayedOperation(lambda: True), "k", timeout=30)  # type: ignore[arg-type]
        with td.connect() as threaded, pytest.raises(td.InvalidValueError, match=r"needs td.DelayedOperation"):
            threaded.try_complete_else_watch(LoopDelayed(), "k", timeout=30)  # type: ignore[arg-type]
        with pytest.raises(td.InvalidValueError, match=r"is a class: give an operation, LoopDelayed\(...\)"):
            await one.try_complete_else_watch(LoopDelayed, "k", timeout=30)  # type: ignore[arg-type]

    run(program)
