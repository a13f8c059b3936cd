"""The threaded producer, with a real daemon: the cases that real time and threads add to test_kip_91."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import as_completed
from typing import Any

import pytest

import timerd as td
from support.real.daemons import Daemon
from support.real.endpoint import Endpoint, post
from support.real.patience import PATIENCE_S, eventually
from timerd_client.delivery import (
    Delivery,
    DeliveryOutcome,
    DeliveryTimeoutTooShortError,
    Producer,
    RetriableError,
    aio,
)

DELIVERED, FAILED, EXPIRED = DeliveryOutcome


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint() as made:
        yield made


def nothing(lane: Any, records: Sequence[Any]) -> None:
    """A send that succeeds at once."""


def test_each_record_is_delivered_once_and_each_lane_in_order(client: td.Client, endpoint: Endpoint) -> None:
    called: list[Any] = []
    with Producer(client, lambda lane, records: post(endpoint.url, records), linger=0.001) as producer:
        futures = [
            producer.send(number, lane=number % 3, on_delivery=lambda delivery: called.append(delivery.record))
            for number in range(500)
        ]
        assert {future.result(PATIENCE_S).outcome for future in as_completed(futures)} == {DELIVERED}
    assert sorted(endpoint.taken()) == sorted(called) == list(range(500))
    for lane in range(3):
        assert [n for n in called if n % 3 == lane] == [n for n in endpoint.taken() if n % 3 == lane]
        assert [n for n in called if n % 3 == lane] == list(range(lane, 500, 3))


def test_send_gets_the_lane_and_the_records(client: td.Client) -> None:
    seen: list[tuple[Any, list[Any]]] = []

    def send(lane: Any, records: Sequence[Any]) -> None:
        seen.append((lane, list(records)))
        if len(seen) == 1:
            raise RetriableError("once more")

    with Producer(client, send, retry_backoff=0.01) as producer:
        delivery = producer.send({"n": 1}, lane=("a", 1)).result(PATIENCE_S)
        assert delivery == Delivery({"n": 1}, DELIVERED, 2, delivery.latency_ns, None)
        producer.send("free").result(PATIENCE_S)
    assert seen == [(("a", 1), [{"n": 1}])] * 2 + [(None, ["free"])]


def test_a_send_that_is_stuck_ends_at_delivery_timeout(client: td.Client) -> None:
    go_on = threading.Event()
    with Producer(
        client, lambda lane, records: go_on.wait(PATIENCE_S), linger=0, request_timeout=0.2, delivery_timeout=0.4
    ) as producer:
        delivery = producer.send("a").result(PATIENCE_S)
        assert delivery.outcome is EXPIRED and delivery.latency_ns >= 0.4e9
        go_on.set()


def test_a_full_buffer_blocks_send_until_a_record_has_settled(client: td.Client) -> None:
    go_on = threading.Event()
    with Producer(client, lambda lane, records: go_on.wait(PATIENCE_S), linger=0, buffer_records=1) as producer:
        producer.send("a")
        sender = threading.Thread(target=producer.send, args=("b",))
        sender.start()
        sender.join(0.1)
        assert sender.is_alive()
        go_on.set()
        sender.join(PATIENCE_S)
        assert not sender.is_alive()


def test_a_full_buffer_is_backpressure_after_max_block(client: td.Client) -> None:
    go_on = threading.Event()
    with Producer(
        client, lambda lane, records: go_on.wait(PATIENCE_S), linger=0, buffer_records=1, max_block=0.05
    ) as producer:
        producer.send("a")
        begun = time.monotonic()
        with pytest.raises(td.BackpressureError, match=r"max_block=0\.05 s, and the buffer is full: 1 records"):
            producer.send("b")
        assert time.monotonic() - begun >= 0.05
        go_on.set()


def test_a_lane_that_is_not_known_blocks_send_until_wake(client: td.Client) -> None:
    known: dict[str, bool] = {}
    with Producer(client, nothing, ready=known.get, max_block=PATIENCE_S) as producer:
        sender = threading.Thread(target=lambda: producer.send("a", lane="new").result(PATIENCE_S))
        sender.start()
        sender.join(0.05)
        assert sender.is_alive()
        known["new"] = True
        producer.wake()
        sender.join(PATIENCE_S)
        assert not sender.is_alive()


def test_ready_may_call_wake(client: td.Client) -> None:
    asked = 0

    def ready(lane: Any) -> bool:
        nonlocal asked
        asked += 1
        producer.wake()
        return asked > 3

    with Producer(client, nothing, ready=ready, linger=0) as producer:
        assert producer.send("a", lane=1).result(PATIENCE_S).outcome is DELIVERED


def test_many_threads_may_send(client: td.Client) -> None:
    taken: list[Any] = []
    lock = threading.Lock()

    def send(lane: Any, records: Sequence[Any]) -> None:
        with lock:
            taken.extend(records)

    with Producer(client, send, buffer_records=50) as producer:

        def work(thread: int) -> None:
            for number in range(200):
                producer.send((thread, number), lane=thread)

        threads = [threading.Thread(target=work, args=(thread,)) for thread in range(4)]
        for one in threads:
            one.start()
        for one in threads:
            one.join(PATIENCE_S)
        assert producer.flush(timeout=PATIENCE_S)
    assert sorted(taken) == [(thread, number) for thread in range(4) for number in range(200)]
    for thread in range(4):
        assert [record[1] for record in taken if record[0] == thread] == list(range(200))


def test_a_callback_may_send_and_its_send_does_not_wait(client: td.Client) -> None:
    second: list[Any] = []
    full: list[BaseException] = []

    def again(delivery: Delivery) -> None:
        try:
            for number in range(3):
                second.append(producer.send(number))
        except td.BackpressureError as error:
            full.append(error)

    with Producer(client, nothing, linger=0, buffer_records=2, max_block=PATIENCE_S * 10) as producer:
        producer.send("a", on_delivery=again)
        assert producer.flush(timeout=PATIENCE_S)
        assert len(second) == 2 and len(full) == 1
        assert [future.result(PATIENCE_S).outcome for future in second] == [DELIVERED] * 2


def test_flush_and_close_in_a_callback_are_refused(client: td.Client) -> None:
    errors: list[BaseException] = []

    def waits(delivery: Delivery) -> None:
        for wait in (producer.flush, producer.close):
            try:
                wait()
            except RuntimeError as error:
                errors.append(error)

    with Producer(client, nothing, linger=0) as producer:
        producer.send("a", on_delivery=waits)
        eventually(lambda: len(errors) == 2)
    assert "in a callback of the same producer" in str(errors[0])


def test_the_future_cannot_be_cancelled(client: td.Client) -> None:
    with Producer(client, nothing) as producer:
        future = producer.send("a")
        assert not future.cancel()
        assert future.result(PATIENCE_S).outcome is DELIVERED


def test_close_gives_up_after_its_timeout_and_leaves_no_operation(client: td.Client, daemon: Daemon) -> None:
    go_on = threading.Event()
    called: list[Delivery] = []
    producer = Producer(client, lambda lane, records: go_on.wait(PATIENCE_S), linger=0)
    future = producer.send("a", lane=1, on_delivery=called.append)
    producer.send("b", lane=1)
    eventually(lambda: daemon.stats()["counters"]["pending"] == 2)
    assert not producer.close(timeout=0.05)
    assert future.result(0).error == "close() gave it up after its timeout" and future.result(0).outcome is FAILED
    assert called == [future.result(0)]
    with pytest.raises(td.ClosedError, match="make another one"):
        producer.send("c")
    eventually(lambda: daemon.stats()["counters"]["pending"] == 0)
    go_on.set()


def test_close_may_be_called_twice(client: td.Client) -> None:
    producer = Producer(client, nothing)
    producer.send("a")
    assert producer.close() and producer.close()


def test_a_producer_that_has_ended_by_an_error_fails_its_records_and_names_the_error(client: td.Client) -> None:
    go_on = threading.Event()
    producer = Producer(client, lambda lane, records: go_on.wait(PATIENCE_S), linger=0)
    futures = [producer.send(number, lane=number % 2) for number in range(4)]

    def broken(now_ns: int) -> None:
        raise RuntimeError("broken")

    producer._courier._work.put(broken)
    assert {future.result(PATIENCE_S).error for future in futures} == {"RuntimeError: broken"}
    with pytest.raises(td.ClosedError, match="RuntimeError: broken"):
        producer.send("more")
    go_on.set()
    producer.close()


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError])
def test_records_behind_a_callback_that_raises_settle(
    client: td.Client, caplog: pytest.LogCaptureFixture, kind: type[BaseException]
) -> None:
    def raises(delivery: Any) -> None:
        raise kind

    producer = Producer(client, nothing)
    futures = [producer.send(text, lane=1, on_delivery=raises if text == "b" else None) for text in "abcd"]
    assert [future.result(PATIENCE_S).outcome for future in futures] == [DELIVERED] * 4
    assert producer.send("after").result(PATIENCE_S).outcome is DELIVERED
    assert producer.close(timeout=PATIENCE_S)
    assert "on_delivery=" in caplog.text


def test_in_a_loop_records_behind_a_callback_that_raises_settle(daemon: Daemon) -> None:
    called: list[str] = []

    async def program(kind: type[BaseException]) -> None:
        async def sends(lane: Any, records: Sequence[Any]) -> None:
            await asyncio.sleep(0)

        def raises(delivery: Any) -> None:
            called.append(delivery.record)
            raise kind

        async with await td.aio.connect() as client, aio.Producer(client, sends) as producer:
            for text in "abcd":
                on_delivery = raises if text == "b" else lambda delivery: called.append(delivery.record)
                await producer.send(text, lane=1, on_delivery=on_delivery)
            await asyncio.sleep(PATIENCE_S if kind is SystemExit else 0)  # SystemExit ends the loop
            assert await producer.close(timeout=PATIENCE_S)

    for kind in (asyncio.CancelledError, GeneratorExit):
        asyncio.run(program(kind))
        assert called == [*"abcd"]
        called.clear()
    with pytest.raises(SystemExit):
        asyncio.run(program(SystemExit))
    assert called == [*"abcd"]


def test_a_closed_client_leaves_the_deadlines_to_the_clock(daemon: Daemon) -> None:
    client = td.connect()
    with Producer(
        client,
        lambda lane, records: None,
        ready=lambda lane: lane != "never",
        delivery_timeout=0.3,
        request_timeout=0.2,
    ) as producer:
        held = producer.send("held", lane="never")
        client.close()
        assert producer.send("later").result(PATIENCE_S).outcome is DELIVERED
        assert held.result(PATIENCE_S).outcome is EXPIRED


@pytest.mark.parametrize("ends", [signal.SIGKILL, signal.SIGSTOP])
def test_while_the_daemon_is_away_each_record_settles_in_time(
    client: td.Client, daemon: Daemon, ends: signal.Signals
) -> None:
    with Producer(
        client, nothing, linger=0, ready=lambda lane: lane is None, delivery_timeout=0.5, request_timeout=0.3
    ) as producer:
        client.flush()
        if ends is signal.SIGKILL:
            daemon.kill()
        else:
            os.kill(daemon.pid, ends)
        begun = time.monotonic()
        futures = [producer.send(number, lane=number % 2 or None) for number in range(10)]
        outcomes = [future.result(PATIENCE_S) for future in futures]
        assert time.monotonic() - begun >= 0.5
        assert [delivery.outcome for delivery in outcomes] == [DELIVERED, EXPIRED] * 5
        if ends is signal.SIGSTOP:
            os.kill(daemon.pid, signal.SIGCONT)
        else:
            daemon.start()
        assert producer.send("after").result(PATIENCE_S).outcome is DELIVERED


def test_a_forked_child_gets_an_error_that_says_to_make_its_own(client: td.Client) -> None:
    with Producer(client, nothing) as producer:
        producer.send("a").result(PATIENCE_S)
        if (pid := os.fork()) == 0:
            try:
                for call in (lambda: producer.send("b"), producer.flush):
                    with pytest.raises(td.ClosedError, match="make a new producer here"):
                        call()
                assert producer.close() and producer.close(timeout=1), "the parent delivers what is left"
                os._exit(7)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7


def test_ctrl_c_within_send_leaves_a_producer_that_goes_on(client: td.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[Any] = []
    with Producer(client, nothing, linger=0) as producer:
        with monkeypatch.context() as patch:

            def interrupted(item: Any) -> None:
                raise KeyboardInterrupt

            patch.setattr(producer._items, "add", interrupted)
            for lane in (None, 1):
                with pytest.raises(KeyboardInterrupt):
                    producer.send("a", lane=lane, on_delivery=lambda delivery: called.append(delivery.record))
        assert producer.send("b", lane=1).result(PATIENCE_S).outcome is DELIVERED
        eventually(lambda: called == ["a", "a"])
        assert producer.flush(timeout=PATIENCE_S)


def test_a_wrong_argument_is_named(client: td.Client) -> None:
    with pytest.raises(DeliveryTimeoutTooShortError):
        Producer(client, nothing, delivery_timeout=1)
    with pytest.raises(td.InvalidValueError, match="send='post'"):
        Producer(client, "post")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="lingr"):
        Producer(client, nothing, lingr=1)  # type: ignore[call-arg]

    async def later(*_: object) -> None: ...

    with pytest.raises(td.InvalidValueError, match=r"delivery\.aio\.Producer"):
        Producer(client, later)
    with Producer(client, nothing) as producer:
        with pytest.raises(td.InvalidValueError, match="coroutine function"):
            producer.send("a", on_delivery=later)
        with pytest.raises(TypeError):
            producer.send("a", lane=[])  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="make a producer in each process"):
            copy.copy(producer)
        assert repr(producer) == "<Producer, 0 records under way>"


def test_a_lane_whose_attempts_are_stuck_leaves_room_to_the_others(client: td.Client) -> None:
    go_on = threading.Event()

    def sends(lane: Any, records: Sequence[Any]) -> None:
        if lane == "hung":
            go_on.wait(PATIENCE_S)

    with Producer(
        client, sends, delivery_timeout=0.5, request_timeout=0.05, linger=0, retry_backoff=0.01, max_in_flight=2
    ) as producer:
        hung = []
        for _ in range(3):
            hung.append(producer.send("lost", lane="hung"))
            time.sleep(0.1)  # for attempts to get stuck
            assert producer.send("sent", lane="good").result(PATIENCE_S).outcome is DELIVERED
        errors = [future.result(PATIENCE_S).error or "" for future in hung]
        assert "the last error: attempt 2 took longer than request_timeout=0.05 s" in errors[0]
        assert "after 0 attempts: 2 attempts of its lane go on after request_timeout" in errors[2]
        go_on.set()
        eventually(lambda: producer.send("again", lane="hung").result(PATIENCE_S).outcome is DELIVERED)


def test_in_a_loop_a_lane_whose_attempts_are_stuck_leaves_room_to_the_others(daemon: Daemon) -> None:
    async def program() -> None:
        go_on = asyncio.Event()

        async def sends(lane: Any, records: Sequence[Any]) -> None:
            while lane == "hung" and not go_on.is_set():
                with contextlib.suppress(asyncio.CancelledError):  # bad code: it swallows its cancellation
                    await go_on.wait()

        async with (
            await td.aio.connect() as client,
            aio.Producer(
                client, sends, delivery_timeout=0.5, request_timeout=0.05, linger=0, retry_backoff=0.01, max_in_flight=2
            ) as producer,
        ):
            hung = []
            for _ in range(3):
                hung.append(await producer.send("lost", lane="hung"))
                await asyncio.sleep(0.1)
                assert (await (await producer.send("sent", lane="good"))).outcome is DELIVERED
            assert "2 attempts of its lane go on" in ((await hung[2]).error or "")
            go_on.set()
            await asyncio.sleep(0)
            while (await (await producer.send("again", lane="hung"))).outcome is not DELIVERED:
                pass

    asyncio.run(program())


def test_an_expired_record_says_what_it_was_waiting_for(client: td.Client) -> None:
    go_on = threading.Event()
    with Producer(
        client,
        lambda lane, records: go_on.wait(PATIENCE_S),
        ready=lambda lane: lane != "never",
        delivery_timeout=0.3,
        request_timeout=0.3,
        linger=0,
        max_in_flight=1,
    ) as producer:
        never = producer.send("a", lane="never").result(PATIENCE_S)
        assert never.error == "delivery_timeout=0.3 s is over after 0 attempts: its lane was not ready"
        producer.send("b", lane=1)
        waits = producer.send("c", lane=2).result(PATIENCE_S)
        said = "delivery_timeout=0.3 s is over after 0 attempts: all attempts of max_in_flight=1 were in use"
        assert waits.error in (said, said.partition(":")[0]), "the other attempt ends at the same time"
        go_on.set()


def test_a_producer_needs_a_client_of_its_face(client: td.Client) -> None:
    with pytest.raises(td.InvalidValueError, match="client=None: give a client, such as"):
        Producer(None, nothing)  # type: ignore[arg-type]

    async def program() -> None:
        async with await td.aio.connect() as looped:
            with pytest.raises(td.InvalidValueError, match=r"is of asyncio: give it to timerd_client.delivery.aio.P"):
                Producer(looped, nothing)  # type: ignore[arg-type]
            with pytest.raises(td.InvalidValueError, match=r"is threaded: give it to timerd_client.delivery.Producer"):
                aio.Producer(client, lambda lane, records: asyncio.sleep(0))

    asyncio.run(program())
