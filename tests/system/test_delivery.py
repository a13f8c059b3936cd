"""Deliveries with a real daemon, real threads and a real HTTP endpoint."""

from __future__ import annotations

import select
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from http.client import InvalidURL
from io import UnsupportedOperation
from typing import Any
from urllib.error import HTTPError, URLError

import pytest

import timerd_client as td
from support.real.daemons import Daemon
from support.real.endpoint import Endpoint, post
from support.real.patience import PATIENCE_S, eventually
from timerd_client.delivery.batch import Delivery, DeliveryOutcome
from timerd_client.delivery.courier import Courier
from timerd_client.delivery.errors import RetriableError, is_retriable
from timerd_client.delivery.options import MS, DeliveryOptions, S

DELIVERED, FAILED, EXPIRED = DeliveryOutcome
MakeCourier = Callable[..., Courier]


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint() as made:
        yield made


@pytest.fixture
def make_courier(client: td.Client) -> Iterator[MakeCourier]:
    """Makes couriers for the client of the fixture `client`, with short timeouts."""
    made: list[Courier] = []

    def make(send: Callable[[Sequence[Any]], object], **given: Any) -> Courier:
        short = {"delivery_timeout_ns": 20 * S, "request_timeout_ns": 1 * S, "linger_ns": 1 * MS}
        options = DeliveryOptions(**{**short, "retry_backoff_ns": 10 * MS, **given})
        made.append(Courier(client, lambda attempt: send(attempt.records), options, prefix=f"deliver/{len(made)}"))
        return made[-1]

    yield make
    for courier in made:
        courier.stop()


def ends(courier: Courier, count: int) -> dict[Any, Delivery]:
    """The next `count` deliveries that end, by record."""
    found: dict[Any, Delivery] = {}
    end = time.monotonic() + PATIENCE_S
    while len(found) < count:
        assert time.monotonic() < end, f"{len(found)} of {count} have ended"
        found |= {delivery.record: delivery for delivery in courier.take(0.1)}
    return found


def counters(daemon: Daemon) -> dict[str, int]:
    """The daemon's counters of operations. Here, each operation is a batch."""
    found: dict[str, int] = daemon.stats()["purgatories"]["default"]["counters"]
    return found


@pytest.mark.long
def test_an_endpoint_that_fails_stalls_and_recovers_gets_every_record(
    make_courier: MakeCourier, endpoint: Endpoint, daemon: Daemon
) -> None:
    courier = make_courier(
        lambda ids: post(endpoint.url, list(ids), timeout=0.3), batch_size=10, retry_backoff_max_ns=200 * MS
    )
    assert courier.offer(range(0, 100)) == 100
    first = ends(courier, 100)
    endpoint.mode("fail")
    courier.offer(range(100, 150))
    time.sleep(0.05)
    endpoint.mode("stall")
    courier.offer(range(150, 200))
    time.sleep(0.35)  # longer than the timeout of a request
    endpoint.mode("ok")
    rest = ends(courier, 100)
    assert {delivery.outcome for delivery in (*first.values(), *rest.values())} == {DELIVERED}
    assert min(delivery.attempts for delivery in first.values()) == 1  # on a busy machine, some may need two attempts
    assert max(delivery.attempts for delivery in rest.values()) > 1
    assert set(endpoint.taken()) == set(range(200))
    assert counters(daemon)["completed"] == 20 and counters(daemon)["expired"] == 0


def test_a_refused_record_fails_at_once_and_a_stalled_record_expires(
    make_courier: MakeCourier, endpoint: Endpoint
) -> None:
    def send(ids: Sequence[Any]) -> None:
        post(endpoint.url, list(ids))

    courier = make_courier(send)  # the timeouts are long, so an answer comes in time on a slow machine, too
    endpoint.mode("refuse")
    courier.offer(["refused"])
    (refused,) = ends(courier, 1).values()
    assert refused.outcome is FAILED and refused.attempts == 1 and refused.error is not None
    assert refused.error.startswith("HTTPError: HTTP Error 400")
    courier = make_courier(send, delivery_timeout_ns=400 * MS, request_timeout_ns=300 * MS)
    endpoint.mode("stall")
    courier.offer(["stalled"])
    (stalled,) = ends(courier, 1).values()
    assert stalled.outcome is EXPIRED and stalled.attempts >= 1
    assert stalled.latency_ns >= 400 * MS
    endpoint.mode("ok")


@pytest.mark.long
def test_the_daemons_expiry_is_the_outcome_while_the_process_is_stuck(daemon: Daemon) -> None:
    # PyDLL keeps the GIL: no thread of the process runs until a byte comes. Then the send returns, as if all were well.
    script = """
        import ctypes
        import sys
        import timerd_client as td
        from timerd_client.delivery.courier import Courier
        from timerd_client.delivery.options import DeliveryOptions

        def stuck(records):
            client.flush()  # the daemon has the operation; from now on nothing of this process runs
            ctypes.PyDLL(None).read(sys.stdin.fileno(), ctypes.create_string_buffer(1), 1)

        client = td.connect()
        options = DeliveryOptions(
            delivery_timeout_ns=300_000_000, request_timeout_ns=200_000_000, linger_ns=0
        )
        courier = Courier(client, lambda records: stuck(records), options, prefix="stuck")
        courier.offer(["r"])
        (delivery,) = courier.take()
        print(delivery.outcome.value, delivery.attempts, flush=True)
        courier.stop()
        client.close()
    """
    program = [sys.executable, "-c", textwrap.dedent(script)]
    child = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin is not None and child.stdout is not None
    try:
        eventually(lambda: counters(daemon)["expired"] == 1, "the daemon waits for the process")
        assert not select.select([child.stdout], [], [], 0.1)[0], "the process is not stuck"
        child.stdin.write("x")
        child.stdin.flush()
        assert child.stdout.readline().split() == ["expired", "1"]
        assert counters(daemon)["completed"] == 0
    finally:
        child.kill()
        child.wait()
        child.stdin.close()
        child.stdout.close()


@pytest.mark.long
def test_without_a_daemon_the_clock_decides_a_little_later(make_courier: MakeCourier, daemon: Daemon) -> None:
    go_on = threading.Event()
    sent: list[Any] = []

    def send(records: Sequence[Any]) -> None:
        sent.extend(records)
        if records[0] == "slow":
            go_on.wait(PATIENCE_S)

    courier = make_courier(send, delivery_timeout_ns=600 * MS, request_timeout_ns=500 * MS, linger_ns=0, batch_size=1)
    courier.offer(["slow"])
    eventually(lambda: sent == ["slow"])
    daemon.kill()
    courier.offer(["quick"])
    found = ends(courier, 2)
    go_on.set()
    assert found["quick"].outcome is DELIVERED and found["slow"].outcome is EXPIRED
    assert found["quick"].latency_ns < 8 * S and 600 * MS <= found["slow"].latency_ns < 8 * S
    daemon.start()


def test_a_lane_is_sent_in_order_and_others_do_not_wait_for_it(make_courier: MakeCourier) -> None:
    failures = iter(range(3))
    sent: list[int] = []
    lock = threading.Lock()

    def send(records: Sequence[int]) -> None:
        with lock:
            if records[0] == 0 and next(failures, None) is not None:
                raise RetriableError("not yet")
            sent.extend(records)

    courier = make_courier(send, batch_size=2, max_in_flight=4)
    courier.offer(range(40), lanes=[number % 2 for number in range(40)])
    found = ends(courier, 40)
    assert {delivery.outcome for delivery in found.values()} == {DELIVERED}
    for lane in (0, 1):
        assert [number for number in sent if number % 2 == lane] == list(range(lane, 40, 2))
    assert found[0].attempts == 4 and found[1].attempts == 1


def test_stuck_threads_are_replaced_until_there_are_twice_as_many(make_courier: MakeCourier) -> None:
    go_on, begun = threading.Event(), threading.Semaphore(0)

    def send(records: Sequence[Any]) -> None:
        begun.release()
        go_on.wait(PATIENCE_S)

    courier = make_courier(
        send,
        delivery_timeout_ns=400 * MS,
        request_timeout_ns=50 * MS,
        retry_backoff_ns=1 * MS,
        retry_backoff_max_ns=1 * MS,
        linger_ns=0,
        batch_size=1,
        max_in_flight=2,
    )
    courier.offer(range(10))
    found = ends(courier, 10)
    assert {delivery.outcome for delivery in found.values()} == {EXPIRED}
    assert sum(delivery.attempts for delivery in found.values()) == 4
    assert all(begun.acquire(timeout=PATIENCE_S) for _ in range(4)) and not begun.acquire(blocking=False)
    go_on.set()
    courier.offer(["again"])
    assert ends(courier, 1)["again"].outcome is DELIVERED


@pytest.mark.parametrize("base", [OSError, SystemExit])
@pytest.mark.parametrize("worse", [ValueError, SystemExit])
def test_an_error_that_raises_when_shown_fails_its_records_and_ends_no_sender(
    make_courier: MakeCourier, base: type[BaseException], worse: type[BaseException]
) -> None:
    def __str__(self: BaseException) -> str:
        raise worse("no words")

    def send(records: Sequence[Any]) -> None:
        raise type("Unspeakable", (base,), {"__str__": __str__})

    courier = make_courier(send)
    for record in range(2):
        courier.offer([record])
        (delivery,) = ends(courier, 1).values()
        said = f"Unspeakable; judging this error raised {worse.__name__}"
        assert (delivery.outcome, delivery.error) == (FAILED, said)
    assert courier._senders._threads == 1


def test_an_error_with_an_undecodable_name_fails_its_records(make_courier: MakeCourier) -> None:
    def send(records: Sequence[Any]) -> None:
        raise ValueError("in \udcff.csv")

    courier = make_courier(send)
    courier.offer(["r"])
    (delivery,) = ends(courier, 1).values()
    assert (delivery.outcome, delivery.error) == (FAILED, "ValueError: in \\udcff.csv")


def test_a_call_with_a_record_that_is_too_large_adds_no_record(make_courier: MakeCourier) -> None:
    courier = make_courier(lambda records: None, buffer_bytes=10)
    with pytest.raises(td.PayloadTooLargeError, match="11 bytes; buffer_bytes=10"):
        courier.offer(["small", "large"], sizes=[1, 11])
    assert courier.pending == 0
    with pytest.raises(TypeError):  # the second lane is invalid; the record before it is sent without delay
        courier.offer(["first", "second"], lanes=["a", []])  # type: ignore[list-item]
    assert courier.pending == 1
    assert ends(courier, 1)["first"].outcome is DELIVERED


def test_finished_deliveries_are_returned_before_the_error_that_ended_the_courier(make_courier: MakeCourier) -> None:
    courier = make_courier(lambda records: None, linger_ns=0)
    courier.offer(["r"])
    eventually(lambda: not courier._deliveries.empty())

    def broken(now_ns: int) -> None:
        raise RuntimeError("broken")

    courier._work.put(broken)
    courier._thread.join(PATIENCE_S)
    assert [delivery.record for delivery in courier.take()] == ["r"]
    for _ in range(2):
        with pytest.raises(RuntimeError, match="broken"):
            courier.take()


def test_records_beyond_the_buffer_are_not_accepted(make_courier: MakeCourier) -> None:
    go_on = threading.Event()
    courier = make_courier(lambda records: go_on.wait(PATIENCE_S), buffer_records=5)
    assert courier.offer(range(8)) == 5
    assert courier.offer([9]) == 0
    go_on.set()
    assert len(ends(courier, 5)) == 5
    assert courier.offer([9]) == 1
    courier.close()
    assert ends(courier, 1)[9].outcome is DELIVERED


def test_errors_are_divided_into_retriable_and_final() -> None:
    def status(code: int) -> HTTPError:
        return HTTPError("http://x", code, "no", {}, None)  # type: ignore[arg-type]

    yes = [RetriableError("x"), ConnectionResetError(), TimeoutError(), URLError("x"), status(503), status(429)]
    no = [ValueError("x"), KeyError("x"), status(400), status(404), status(413)]
    no += [InvalidURL("a b"), UnsupportedOperation("both an OSError and a ValueError")]
    assert [is_retriable(error) for error in yes] == [True] * len(yes)
    assert [is_retriable(error) for error in no] == [False] * len(no)
