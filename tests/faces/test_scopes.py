"""A request ends while its view waits: each wait raises RequestEnded, and the operations are withdrawn."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

import timerd as td
from support.real.daemons import Daemon
from support.real.faces import THREADED
from support.real.patience import PATIENCE_S, eventually
from support.web.pending import pending
from timerd_client import aio
from timerd_client.scope import Scope, current_scope


def waits_of(client: td.Client) -> dict[str, Callable[[], Any]]:
    """Each way to wait for an event of the key "k"."""
    return {
        "result": lambda: client.register("k", timeout=PATIENCE_S).result(),
        "outcomes": lambda: client.register_many(["k", "l"], timeout=PATIENCE_S).outcomes(),
        "wait_for": lambda: client.wait_for(lambda: False, "k", timeout=PATIENCE_S),
        "wait all": lambda: td.wait([client.register("k", timeout=PATIENCE_S), client.register("l", timeout=None)]),
        "wait first": lambda: td.wait(
            [client.register("k", timeout=PATIENCE_S), client.register("l", timeout=None)], until="first"
        ),
        "as_completed": lambda: list(td.as_completed([client.register(key, timeout=None) for key in "kl"])),
    }


def awaits_of(client: aio.Client) -> dict[str, Callable[[], Any]]:
    """Each way to await an event of the key "k"."""

    async def awaited(operation: Any) -> Any:
        return await operation

    async def completed() -> list[Any]:
        return [one async for one in aio.as_completed([client.register(key, timeout=None) for key in "kl"])]

    return {
        "await": lambda: awaited(client.register("k", timeout=PATIENCE_S)),
        "result": lambda: client.register("k", timeout=PATIENCE_S).result(),
        "batch": lambda: awaited(client.register_many(["k", "l"], timeout=PATIENCE_S)),
        "wait_for": lambda: client.wait_for(lambda: False, "k", timeout=PATIENCE_S),
        "wait all": lambda: aio.wait([client.register("k", timeout=PATIENCE_S), client.register("l", timeout=None)]),
        "wait first": lambda: aio.wait(
            [client.register("k", timeout=PATIENCE_S), client.register("l", timeout=None)], until="first"
        ),
        "as_completed": completed,
    }


WAITS = ("result", "outcomes", "wait_for", "wait all", "wait first", "as_completed")
AWAITS = ("await", "result", "batch", "wait_for", "wait all", "wait first", "as_completed")


@pytest.mark.parametrize("way", WAITS)
def test_a_wait_in_a_thread_ends_with_its_request_and_is_withdrawn(daemon: Daemon, way: str) -> None:
    ended: list[td.RequestEnded] = []
    with td.connect() as client:
        scope = Scope()

        def view() -> None:
            with scope.entered(), pytest.raises(td.RequestEnded, match="drain") as raised:
                waits_of(client)[way]()
            ended.append(raised.value)

        thread = threading.Thread(target=view)
        thread.start()
        eventually(lambda: pending(daemon))
        scope.end("drain")
        thread.join(PATIENCE_S)
        assert [error.reason for error in ended] == ["drain"]
        client.flush()
        assert pending(daemon) == 0
        assert current_scope() is None
        assert not scope._enders


@pytest.mark.parametrize("way", AWAITS)
def test_an_await_ends_with_its_request_and_is_withdrawn(daemon: Daemon, way: str) -> None:
    async def main() -> None:
        async with aio.connect() as client:
            scope = Scope()

            async def view() -> str:
                with scope.entered():
                    try:
                        await awaits_of(client)[way]()
                    except td.RequestEnded as error:
                        return str(error.reason)
                return "went on"

            task = asyncio.ensure_future(view())
            await asyncio.to_thread(eventually, lambda: pending(daemon))
            await asyncio.to_thread(scope.end, "disconnect")  # any thread may end it
            assert await task == "disconnect"
            await client.flush()
            assert pending(daemon) == 0
            assert not scope._enders

    asyncio.run(main())


@THREADED
@pytest.mark.parametrize("way", WAITS)
def test_a_wait_that_begins_in_an_ended_request_ends_at_once(client: td.Client, daemon: Daemon, way: str) -> None:
    scope = Scope()
    scope.end("drain")
    scope.end("disconnect")
    with scope.entered(), pytest.raises(td.RequestEnded) as raised:
        waits_of(client)[way]()
    assert raised.value.reason == "drain", "a request ends once, with its first reason"
    client.flush()
    assert pending(daemon) == 0


@THREADED
def test_questions_to_the_daemon_are_answered_in_an_ended_request(client: td.Client) -> None:
    """A question sends its commands at once. If it then raised, its caller would repeat it, and send them twice."""
    scope = Scope()
    scope.end("drain")
    watch = client.register("k", timeout=PATIENCE_S)
    with scope.entered():
        assert client.fire_wait("k", value=b"once") == 1
        client.flush()
        assert watch.result().value == b"once", "the result of a settled operation is no wait"
        assert client.register_wait("k", timeout=0)
        assert client.ping() > 0


def test_a_limited_event_on_its_way_to_an_ended_request_goes_to_another(daemon: Daemon) -> None:
    """The event and the end of the request race, again and again. Exactly one waiter gets the event each time."""
    with td.connect() as waiter, td.connect() as other:
        for round_ in range(200):
            scope, entered = Scope(), threading.Event()
            got: list[bytes] = []
            first = waiter.register_wait("job", timeout=PATIENCE_S)

            def view(
                first: td.Operation = first, scope: Scope = scope, got: list[bytes] = got, entered: Any = entered
            ) -> None:
                with scope.entered():
                    entered.set()
                    with suppress(td.RequestEnded):
                        got.append(first.result().value)

            thread = threading.Thread(target=view)
            thread.start()
            entered.wait(PATIENCE_S)
            second = other.register_wait("job", timeout=PATIENCE_S)
            other.fire("job", value=b"%d" % round_, limit=1)
            scope.end("disconnect")
            thread.join(PATIENCE_S)
            if got:
                second.cancel_wait()
                assert got == [b"%d" % round_] and not second.outcome()
            else:
                assert second.result(PATIENCE_S).value == b"%d" % round_


@pytest.mark.long
def test_a_limited_event_of_an_ended_await_goes_to_another(daemon: Daemon) -> None:
    async def main() -> None:
        async with aio.connect() as client:
            for round_ in range(200):
                scope = Scope()
                first = await client.register_wait("job", timeout=PATIENCE_S)
                second = await client.register_wait("job", timeout=PATIENCE_S)

                async def view(first: Any = first, scope: Scope = scope) -> bytes:
                    with scope.entered():
                        try:
                            return bytes((await first).value)
                        except td.RequestEnded:
                            return b""

                task = asyncio.ensure_future(view())
                await asyncio.sleep(0)
                client.fire("job", value=b"%d" % round_, limit=1)
                await asyncio.sleep(0.0005 * (round_ % 3))
                scope.end("disconnect")
                if await task:
                    assert await second.cancel_wait()
                else:
                    assert (await second.result(PATIENCE_S)).value == b"%d" % round_

    asyncio.run(main())


@pytest.fixture
def at_signal() -> Iterator[Callable[[Callable[[], object]], None]]:
    """Installs a handler for SIGUSR1, until the end of the test."""
    before = signal.getsignal(signal.SIGUSR1)

    def install(handler: Callable[[], object]) -> None:
        signal.signal(signal.SIGUSR1, lambda *_: handler())

    yield install
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("wakes", [True, False], ids=["wakes", "wakes nobody"])
@pytest.mark.parametrize("way", WAITS)
def test_a_signal_handler_ends_the_wait_of_the_thread_in_which_it_runs(
    daemon: Daemon, way: str, wakes: bool, at_signal: Callable[[Callable[[], object]], None]
) -> None:
    """In gunicorn's sync worker, the view waits in the thread in which the handler of SIGTERM runs.

    The system may deliver a signal to any thread. If it chooses another thread, the signal does not wake the view.
    """
    with td.connect() as client:
        scope = Scope()
        at_signal(lambda: scope.end("drain"))
        main = threading.main_thread().ident
        assert main is not None

        def interrupt() -> None:
            eventually(lambda: pending(daemon))
            signal.pthread_kill(main if wakes else threading.get_ident(), signal.SIGUSR1)

        thread = threading.Thread(target=interrupt)
        thread.start()
        with scope.entered(), pytest.raises(td.RequestEnded):
            waits_of(client)[way]()
        thread.join()
        client.flush()
        assert pending(daemon) == 0


@pytest.mark.parametrize("error", [RuntimeError("Event loop is closed"), td.ClosedError("closed"), ValueError("mine")])
def test_a_wait_that_cannot_be_ended_does_not_keep_other_waits_from_ending(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    scope, ended = Scope(), []

    def fail() -> None:
        raise error

    for ender in (fail, lambda: ended.append(1), fail, lambda: ended.append(2)):
        assert scope.add(ender)
    scope.end("drain")
    assert ended == [1, 2]
    assert caplog.text.count("ValueError: mine") == (2 if isinstance(error, ValueError) else 0)


def test_a_request_remembers_that_the_daemon_was_not_there() -> None:
    scope = Scope()
    client = td.Client("nowhere")
    with scope.entered(), pytest.raises(td.TimerdUnavailableError) as raised:
        client.fire_wait("k", timeout=0.05)
    assert scope.trouble is raised.value
    with scope.entered():
        scope.trouble = None
        outcome = client.register("k", timeout=0.01).result(PATIENCE_S)
    assert outcome.state is td.State.UNAVAILABLE and isinstance(scope.trouble, td.TimerdUnavailableError)
    with suppress(td.TimerdUnavailableError):
        client.close(timeout=0)


@THREADED
def test_the_end_of_a_request_ends_no_wait_outside_of_it(client: td.Client) -> None:
    scope = Scope()
    with scope.entered():
        pass
    scope.end("drain")
    operation = client.register("k", timeout=PATIENCE_S)
    client.fire("k")
    assert operation.result(PATIENCE_S)


@pytest.mark.long
def test_a_wait_with_a_lost_daemon_ends_with_its_request(daemon: Daemon) -> None:
    with td.connect() as client:
        scope, looked = Scope(), threading.Event()
        daemon.kill()
        eventually(lambda: not client.connected)

        def view() -> None:
            with scope.entered(), pytest.raises(td.RequestEnded):
                client.wait_for(looked.set, "k", timeout=None, unavailable="poll", poll_interval=60)

        thread = threading.Thread(target=view)
        thread.start()
        assert looked.wait(PATIENCE_S)
        scope.end("drain")
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
        daemon.start()
