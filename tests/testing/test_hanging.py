"""A handler or a callback that hangs on a manual clock: an error names it, and neither `close()` nor the test hangs."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from typing import Any

import pytest

import timerd as td
from timerd.testing import HangsError, Manual

BOUND_S = 0.05


class Release(threading.Event):
    """A hanging handler waits for this event."""

    @property
    def hangs(self) -> bool:
        """Whether a handler waits, or is about to: on one line it sets the attribute `is_awaited`, and waits."""
        return "is_awaited" in vars(self)


@pytest.fixture
def released() -> Iterator[Release]:
    """An event for handlers that hang. It is set at the end of the test, so that no thread is left."""
    event = Release()
    yield event
    event.set()


def hanging(released: Release, **settings: Any) -> td.Calls:
    calls = td.Calls()

    @calls.handler("hangs", **settings)
    def hangs(call: td.Call) -> None:
        (vars(released).setdefault("is_awaited", True), released.wait())  # here it hangs

    return calls


def bound(manual: Manual, released: Release) -> None:
    """Count a handler as hanging as soon as it waits for the event, and not before, however slow the machine is.

    Other threads of clients come to rest first, and never count as hanging: on a slow machine they otherwise would.
    """
    threads = manual._driver.threads

    def monotonic() -> float:
        return 1e6 if released.hangs and not threads._hanging and len(threads._running) <= 1 else 0.0

    manual.handler_timeout = BOUND_S
    threads.monotonic = monotonic


def line_of(text: str) -> int:
    with open(__file__) as file:
        return next(number for number, line in enumerate(file, 1) if text in line and "line_of" not in line)


def test_a_handler_that_hangs_is_named_with_its_line_and_then_not_waited_for(released: Release) -> None:
    with Manual() as manual, td.connect(group="web") as worker:
        bound(manual, released)
        worker.serve(hanging(released, time_limit=60))
        worker.call_later("hangs", 1)
        with pytest.raises(HangsError) as raised:
            manual.advance(3600)
        assert str(raised.value) == (
            f"the handler of 'hangs' hangs in hangs() at {__file__}:{line_of('# here it hangs')}: still there after "
            "0.05 s of real time. The clock stands still until the handler returns or waits for timerd, so its "
            "time_limit never comes. Replace what it waits for by something that returns, end its worker by "
            "timerd_manual.kill(client), or increase timerd_manual.handler_timeout"
        )
        manual.handler_timeout = 3600  # nothing below waits for the handler
        manual.advance(30)
        assert [call.state for call in worker.calls()] == ["runs"]


def test_a_handler_that_goes_on_after_the_error_is_waited_for_again(manual: Manual, released: Release) -> None:
    bound(manual, released)
    with td.connect(group="web") as worker:
        worker.serve(hanging(released))
        worker.call_later("hangs", 1)
        with pytest.raises(HangsError):
            manual.advance(1)
        released.set()
        end = time.monotonic() + 60
        while worker.calls() and time.monotonic() < end:
            manual.advance(0)
        assert not worker.calls() and worker.stats().calls_done == 1


def test_any_wait_raises_for_a_handler_that_hangs_and_then_a_close_ends(released: Release) -> None:
    with Manual() as manual:
        bound(manual, released)
        worker = td.connect(group="web")
        worker.serve(hanging(released))
        worker.call_later("hangs", 0)
        with pytest.raises(HangsError, match="the handler of 'hangs' hangs"):
            worker.flush()
        manual.handler_timeout = 3600
        worker.close()


def test_after_ctrl_c_nothing_waits_for_the_handler(released: Release) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    def press() -> None:
        """Interrupt the test as soon as it waits for the handler."""
        waits = ""
        while not (released.hangs and "until_helpers_rest" in waits):
            waits = "".join(traceback.format_stack(sys._current_frames()[me]))
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGALRM)

    me = threading.get_ident()
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt), Manual() as manual, td.connect(group="web") as worker:
            manual.handler_timeout = 3600
            worker.serve(hanging(released))
            worker.call_later("hangs", 0)
            threading.Thread(target=press).start()
            manual.advance(1)
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_handler_that_uses_timerd_again_and_again_may_run_for_any_time(manual: Manual) -> None:
    calls, now = td.Calls(), [0.0]

    @calls.handler("slow")
    def slow(call: td.Call) -> None:
        for _ in range(10):
            now[0] += manual.handler_timeout * 0.9
            worker.fire("progress")
            worker.flush()

    manual._driver.threads.monotonic = lambda: now[0]
    with td.connect(group="web") as worker:
        worker.serve(calls)
        worker.call_later(slow, 0)
        manual.advance(1)
        assert worker.stats().calls_done == 1 and now[0] > 8 * manual.handler_timeout


def test_a_time_limit_counts_the_time_that_a_handler_waits_on_the_clock(manual: Manual) -> None:
    calls = td.Calls()

    @calls.handler("slow", time_limit=60)
    def slow(call: td.Call) -> None:
        worker.register("nobody/fires", timeout=100).result()

    with td.connect(group="web") as worker:
        worker.serve(calls)
        worker.call_later(slow, 0)
        manual.advance(61)
        assert [call.state for call in worker.calls()] == ["late"]
        manual.advance(40)
        assert (worker.stats().calls_late, worker.stats().calls_done) == (1, 1)


def test_a_callback_that_hangs_in_another_thread_is_named(manual: Manual, released: Release) -> None:
    began = threading.Event()

    def hangs(_: object) -> None:
        began.set()
        released.wait()  # the callback hangs here

    def program() -> None:
        client.register("inbox/7", timeout=60).add_done_callback(hangs)
        client.fire("inbox/7")
        client.flush()

    with td.connect() as client:
        thread = threading.Thread(target=program, name="program")
        thread.start()
        assert began.wait(60)
        manual.handler_timeout = BOUND_S
        with pytest.raises(
            HangsError, match=r"^the thread 'program' does the pending work .* a callback has stood in hangs"
        ):
            manual.advance(1)
        released.set()
        thread.join()
        manual.handler_timeout = 60
        manual.advance(1)


def test_a_function_in_a_thread_of_a_loop_that_hangs_is_named(manual: Manual, released: Release) -> None:
    def hangs() -> None:
        (vars(released).setdefault("is_awaited", True), released.wait())

    async def main() -> None:
        hanging = asyncio.create_task(asyncio.to_thread(hangs))
        while not released.hangs:
            await asyncio.sleep(0)
        manual.handler_timeout = BOUND_S
        await hanging

    with pytest.raises(HangsError, match=r"^a function of asyncio.to_thread\(\) hangs in hangs\(\) at .*test_hanging"):
        manual.run(main())


@pytest.mark.parametrize("seconds", [0, -1, None, "1", True, float("nan")])
def test_a_handler_timeout_is_a_time(manual: Manual, seconds: Any) -> None:
    with pytest.raises(ValueError, match=r"^handler_timeout=.*: give seconds of real time, above 0$"):
        manual.handler_timeout = seconds
    assert manual.handler_timeout == 10
