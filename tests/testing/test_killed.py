"""A client that is killed on a manual clock: to its daemon and its group it is like a process that has ended."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest

import timerd as td
from timerd.testing import Manual


def test_a_handler_that_kills_its_process_is_given_up_by_the_next_worker(
    manual: Manual, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = td.Calls()
    runs: list[int] = []
    gone: list[BaseException] = []

    @calls.handler("thumbnail", deliveries=3, on_failure=lambda call, error: gone.append(error))
    def thumbnail(call: td.Call) -> None:
        runs.append(call.deliveries)
        try:
            os._exit(9)
        except Exception:
            runs.append(-1)
        runs.append(-2)

    worker = td.Client(group="web")
    monkeypatch.setattr(os, "_exit", lambda status: manual.kill(worker))
    with td.connect(group="web") as caller:
        caller.call_later_wait(thumbnail, 0, b"cat.jpg")
    for _ in range(4):
        worker.serve(calls)  # as the worker's next process does
        manual.advance(10)
    assert runs == [1, 2, 3]
    assert [type(error) for error in gone] == [td.CallGivenUpError]
    (letter,) = worker.dead_letters()
    assert (letter.payload, letter.ended, letter.deliveries) == (b"cat.jpg", 3, 3)


def test_another_member_gets_the_calls_of_a_killed_member(manual: Manual) -> None:
    calls = td.Calls()
    runs: list[int] = []

    @calls.handler("import")
    def import_file(call: td.Call) -> None:
        runs.append(call.deliveries)
        if call.deliveries == 1:
            manual.kill(first)

    first = td.Client(group="web")
    first.serve(calls)
    first.call_later(import_file, 1)
    manual.advance(0)
    with td.connect(group="web") as second:
        manual.advance(1)
        second.serve(calls)
        manual.advance(1)
        assert runs == [1, 2]
        assert not second.calls() and not first.closed


def test_a_client_is_killed_from_outside_while_its_handler_hangs(manual: Manual) -> None:
    calls, began, released = td.Calls(), threading.Event(), threading.Event()

    @calls.handler("hangs")
    def hangs(call: td.Call) -> None:
        if call.deliveries == 1:
            began.set()
            released.wait()

    first = td.Client(group="web")
    first.serve(calls)
    first.call_later(hangs, 0)
    manual.handler_timeout = 0.05
    manual._driver.threads.monotonic = lambda: 1e6 if began.is_set() else 0.0
    with pytest.raises(AssertionError, match="the handler of 'hangs' hangs"):
        manual.advance(0)
    assert began.is_set()
    manual.handler_timeout = 60
    manual.kill(first)
    with td.connect(group="web") as second:
        second.serve(calls)
        manual.advance(1)
        assert not second.calls() and second.stats().calls_done == 1
        released.set()


def test_the_operations_of_a_killed_client_follow_its_orphans_policy(manual: Manual) -> None:
    mine, other = td.Client(), td.Client()
    operation = mine.register("inbox/7", timeout=60)
    mine.flush()
    manual.kill(mine)
    manual.advance(0.01)
    assert other.fire_wait("inbox/7") == 0
    assert operation.result().state is td.State.FAILED
    mine.register("inbox/7", timeout=60)
    mine.flush()
    assert other.fire_wait("inbox/7") == 1, "the client connects anew"


def test_what_a_killed_client_has_not_sent_is_lost(manual: Manual) -> None:
    """A callback's commands are sent when it has returned."""
    with td.connect() as other:
        waits = other.register("inbox/7", timeout=60)
        other.flush()
        mine = td.Client()
        operation = mine.register("go", timeout=60)
        mine.flush()

        def fire_and_die(_: object) -> None:
            mine.fire("inbox/7")
            manual.kill(mine)

        operation.add_done_callback(fire_and_die)
        other.fire("go")
        manual.advance(1)
        assert operation.done() and not waits.done()


def test_a_handler_of_an_asyncio_client_is_cancelled(manual: Manual) -> None:
    calls = td.Calls()
    runs: list[object] = []

    @calls.handler("thumbnail", deliveries=2)
    async def thumbnail(call: td.Call) -> None:
        runs.append(call.deliveries)
        manual.kill(worker)
        try:
            await asyncio.sleep(1)
        except asyncio.CancelledError:
            runs.append("cancelled")
            raise

    worker = td.aio.Client(group="web")

    async def main() -> None:
        worker.serve(calls)
        worker.call_later(thumbnail, 0)
        await asyncio.sleep(10)
        for _ in range(2):
            worker.serve(calls)
            await asyncio.sleep(10)
        assert [letter.ended for letter in worker.dead_letters()] == [2]
        await worker.close()

    manual.run(main())
    assert runs == [1, "cancelled", 2, "cancelled"]


def test_a_client_without_a_connection_is_not_killed(manual: Manual) -> None:
    with pytest.raises(ValueError, match=r"^kill\(<Client .*\): it has no connection in this test"):
        manual.kill(td.Client())
