"""KIP-91, phase by phase and setting by setting, on a manual clock: times are exact."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

import timerd as td
from support.fakes.producing import Scene
from timerd_client.delivery import DeliveryTimeoutTooShortError, aio
from timerd_client.delivery.options import DeliveryOptions
from timerd_client.delivery.settings import Seconds, options_of
from timerd_shm.declare.errors import BackpressureError, ClosedError, InvalidValueError, PayloadTooLargeError

MS = 1_000_000
S = 1_000 * MS

# the phases of a record: blocked, lingering, ready but not sendable, in flight, retried, given up ------------------


def test_blocked_send_waits_max_block_while_the_buffer_is_full(scene: Scene) -> None:
    async def act(producer: aio.Producer) -> None:
        await scene.send(producer, "a")
        with pytest.raises(BackpressureError, match=r"max_block=0\.5 s, and the buffer is full: 1 records"):
            await producer.send("b")
        assert scene.now() == 0.5

    scene.attempt = scene.hang
    scene.play(act, buffer_records=1, max_block=0.5)
    assert scene.ends == [(3, "a", "expired", 3)]


def test_blocked_send_goes_on_when_a_record_has_settled(scene: Scene) -> None:
    async def act(producer: aio.Producer) -> None:
        await scene.send(producer, "a")
        await scene.send(producer, "b")
        assert scene.now() == 0.25

    async def slow(lane: Any, records: Sequence[Any]) -> None:
        await asyncio.sleep(0.25)

    scene.attempt = slow
    scene.play(act, buffer_records=1, linger=0)
    assert scene.ends == [(0.25, "a", "delivered", 1), (0.5, "b", "delivered", 1)]


def test_blocked_send_waits_max_block_for_a_lane_that_is_not_known(scene: Scene) -> None:
    async def act(producer: aio.Producer) -> None:
        with pytest.raises(BackpressureError, match=r"ready\('new'\) is still None"):
            await producer.send("a", lane="new")
        assert scene.now() == 0.5
        asyncio.get_running_loop().call_later(0.2, found)
        await scene.send(producer, "b", lane="new")
        assert scene.now() == pytest.approx(0.7)

    known: set[str] = set()

    def found() -> None:
        known.add("new")
        producers[0].wake()

    producers: list[aio.Producer] = []

    async def noting(producer: aio.Producer) -> None:
        producers.append(producer)
        await act(producer)

    scene.play(noting, ready=lambda lane: True if lane in known else None, max_block=0.5)
    assert [(record, outcome) for _, record, outcome, _ in scene.ends] == [("b", "delivered")]


def test_the_time_that_send_was_blocked_does_not_count(scene: Scene) -> None:
    async def act(producer: aio.Producer) -> None:
        await scene.send(producer, "a")
        await scene.send(producer, "b")  # it waits until "a" has expired
        assert scene.now() == 3

    scene.attempt = scene.hang
    scene.play(act, buffer_records=1)
    assert [(when, record) for when, record, _, _ in scene.ends] == [(3, "a"), (6, "b")]


def test_lingering_a_batch_takes_records_until_linger_is_over(scene: Scene) -> None:
    async def act(producer: aio.Producer) -> None:
        await scene.send(producer, "a", lane=1)
        await asyncio.sleep(0.1)
        await scene.send(producer, "b", lane=1)
        await asyncio.sleep(0.2)
        await scene.send(producer, "c", lane=1)

    scene.play(act, linger=0.2)
    assert scene.sent == [(0.2, 1, ["a", "b"]), (0.3, 1, ["c"])]  # close() does not linger


def test_ready_but_not_sendable_a_lane_that_is_never_ready_ends_at_delivery_timeout(scene: Scene) -> None:
    async def act(producer: aio.Producer) -> None:
        (future,) = await scene.send(producer, "a", lane=1)
        delivery = await future
        assert delivery.latency_ns == 3 * S, "to the nanosecond"
        assert delivery.error == "delivery_timeout=3 s is over after 0 attempts: its lane was not ready"

    scene.play(act, ready=lambda lane: False)
    assert scene.sent == [] and scene.ends == [(3, "a", "expired", 0)]


def test_ready_but_not_sendable_a_batch_goes_out_at_wake(scene: Scene) -> None:
    ready = False

    async def act(producer: aio.Producer) -> None:
        nonlocal ready
        await scene.send(producer, "a", lane=1)
        await asyncio.sleep(0.55)
        ready = True
        producer.wake()

    scene.play(act, ready=lambda lane: ready, retry_backoff=1)
    assert scene.ends == [(0.55, "a", "delivered", 1)]


def test_ready_but_not_sendable_a_lane_is_asked_again_after_retry_backoff_without_wake(scene: Scene) -> None:
    async def act(producer: aio.Producer) -> None:
        await scene.send(producer, "a", lane=1)

    scene.play(act, ready=lambda lane: scene.now() >= 0.55, linger=0, retry_backoff=0.1)
    assert scene.ends == [(0.6, "a", "delivered", 1)]


def test_a_lane_that_is_not_ready_does_not_hold_up_others(scene: Scene) -> None:
    async def act(producer: aio.Producer) -> None:
        for number in range(3):
            for lane in ("away", "there"):
                await scene.send(producer, number, lane=lane)

    scene.play(act, ready=lambda lane: lane == "there", max_in_flight=1, batch_size=1)
    assert [(lane, records) for _, lane, records in scene.sent] == [("there", [0]), ("there", [1]), ("there", [2])]
    assert [when for when, *_ in scene.ends] == [0] * 3 + [3] * 3


def test_in_flight_a_batch_expires_although_its_attempt_goes_on(scene: Scene) -> None:
    async def act(producer: aio.Producer) -> None:
        await scene.send(producer, "a", lane=1)

    scene.attempt = scene.hang
    scene.play(act, linger=0, request_timeout=2, retry_backoff=0.5, retry_backoff_max=0.5)
    assert scene.ends == [(3, "a", "expired", 2)]
    assert len(scene.sent) == 2


def test_in_flight_a_late_answer_changes_nothing(scene: Scene) -> None:
    async def late(lane: Any, records: Sequence[Any]) -> None:
        try:
            await asyncio.sleep(3.5)
        except asyncio.CancelledError:
            await asyncio.sleep(2.5)  # the request goes on, and arrives

    async def act(producer: aio.Producer) -> None:
        (future,) = await scene.send(producer, "a")
        await asyncio.sleep(6)
        assert (await future).outcome.value == "expired"

    scene.attempt = late
    scene.play(act, linger=0, request_timeout=3)
    assert scene.ends == [(3, "a", "expired", 1)]


def test_retried_until_it_is_delivered(scene: Scene) -> None:
    async def act(producer: aio.Producer) -> None:
        await scene.send(producer, "a", lane=1)

    async def third_time(lane: Any, records: Sequence[Any]) -> None:
        if len(scene.sent) < 3:
            await scene.busy(lane, records)

    scene.attempt = third_time
    scene.play(act)
    ((_, record, outcome, attempts),) = scene.ends
    assert (record, outcome, attempts) == ("a", "delivered", 3)


def test_retried_until_delivery_timeout_and_the_error_names_the_last_error(scene: Scene) -> None:
    async def act(producer: aio.Producer) -> None:
        (future,) = await scene.send(producer, "a", lane=1)
        delivery = await future
        assert delivery.latency_ns == 3 * S
        assert delivery.error is not None and delivery.error.endswith("the last error: RetriableError: busy")

    scene.attempt = scene.busy
    scene.play(act)
    assert [(when, outcome) for when, _, outcome, _ in scene.ends] == [(3, "expired")]


def test_given_up_at_an_error_that_no_retry_cures(scene: Scene) -> None:
    async def refuse(lane: Any, records: Sequence[Any]) -> None:
        raise ValueError("400")

    async def act(producer: aio.Producer) -> None:
        (future,) = await scene.send(producer, "a")
        assert (await future).error == "ValueError: 400"

    scene.attempt = refuse
    scene.play(act, linger=0)
    assert scene.ends == [(0, "a", "failed", 1)]


# the settings ---------------------------------------------------------------------------------------------------------


def options(**settings: Any) -> DeliveryOptions:
    return options_of(**settings)[0]


def test_delivery_timeout_is_120_s_if_it_is_not_given() -> None:
    assert options().delivery_timeout_ns == 120 * S


def test_delivery_timeout_that_is_not_given_is_raised_to_linger_and_request_timeout() -> None:
    assert options(linger=1, request_timeout=timedelta(minutes=5)).delivery_timeout_ns == 301 * S


def test_delivery_timeout_that_is_given_and_less_than_linger_and_request_timeout_is_an_error() -> None:
    with pytest.raises(
        DeliveryTimeoutTooShortError, match=r"delivery_timeout=2 s < linger=1\.5 s .* of 2\.5 s at least"
    ):
        options(delivery_timeout=2, linger=1.5, request_timeout=1)
    assert options(delivery_timeout=2.5, linger=1.5, request_timeout=1).delivery_timeout_ns == 2_500 * MS


def test_delivery_timeout_counts_from_the_first_record_of_a_batch(scene: Scene) -> None:
    """KIP-91: a record may expire earlier, if it is added to a batch whose deadline is earlier."""

    async def act(producer: aio.Producer) -> None:
        await scene.send(producer, "a", lane=1)
        await asyncio.sleep(0.1)
        await scene.send(producer, "b", lane=1)

    scene.play(act, linger=0.2, ready=lambda lane: False)
    assert scene.ends == [(3, "a", "expired", 0), (3, "b", "expired", 0)]


def test_request_timeout_bounds_an_attempt_and_not_the_record(scene: Scene) -> None:
    async def first_hangs(lane: Any, records: Sequence[Any]) -> None:
        if len(scene.sent) == 1:
            await scene.hang(lane, records)

    async def act(producer: aio.Producer) -> None:
        await scene.send(producer, "a")

    scene.attempt = first_hangs
    scene.play(act, linger=0, retry_backoff=0)
    assert scene.ends == [(1, "a", "delivered", 2)]


def test_linger_of_0_sends_at_once(scene: Scene) -> None:
    async def act(producer: aio.Producer) -> None:
        await scene.send(producer, "a")
        await asyncio.sleep(1)

    scene.play(act, linger=0)
    assert [when for when, *_ in scene.sent] == [0]


def test_retries_of_0_fail_at_the_first_error(scene: Scene) -> None:
    async def act(producer: aio.Producer) -> None:
        await scene.send(producer, "a")

    scene.attempt = scene.busy
    scene.play(act, retries=0, linger=0)
    assert scene.ends == [(0, "a", "failed", 1)]


def test_retries_count_attempts_that_take_too_long(scene: Scene) -> None:
    async def act(producer: aio.Producer) -> None:
        await scene.send(producer, "a")

    scene.attempt = scene.hang
    scene.play(act, retries=1, retry_backoff=0, linger=0)
    assert scene.ends == [(2, "a", "failed", 2)]


def test_max_block_of_0_does_not_wait(scene: Scene) -> None:
    async def act(producer: aio.Producer) -> None:
        await scene.send(producer, "a")
        with pytest.raises(BackpressureError):
            await producer.send("b")
        assert scene.now() == 0

    scene.play(act, max_block=0, buffer_records=1)


def test_batch_size_sends_a_full_batch_before_linger_is_over(scene: Scene) -> None:
    async def act(producer: aio.Producer) -> None:
        await scene.send(producer, *range(5), lane=1)
        await asyncio.sleep(2)

    scene.play(act, batch_size=2, linger=1)
    assert [(when, records) for when, _, records in scene.sent] == [(0, [0, 1]), (0, [2, 3]), (1, [4])]


def test_batch_bytes_sends_a_full_batch_before_linger_is_over(scene: Scene) -> None:
    async def act(producer: aio.Producer) -> None:
        for record in range(3):
            await producer.send(record, size=60)
        await asyncio.sleep(2)

    scene.play(act, batch_bytes=100, linger=1)
    assert [(when, records) for when, _, records in scene.sent] == [(0, [0]), (0, [1]), (1, [2])]


def test_buffer_bytes_count_records_that_have_not_settled(scene: Scene) -> None:
    async def act(producer: aio.Producer) -> None:
        with pytest.raises(PayloadTooLargeError, match="buffer_bytes=100"):
            await producer.send("huge", size=101)
        await producer.send("a", size=60)
        with pytest.raises(BackpressureError):
            await producer.send("b", size=60)
        await producer.flush()
        await producer.send("b", size=60)

    scene.play(act, buffer_bytes=100, max_block=0)


def test_max_in_flight_counts_attempts_over_all_lanes(scene: Scene) -> None:
    running = most = 0

    async def counted(lane: Any, records: Sequence[Any]) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.1)
        running -= 1

    async def act(producer: aio.Producer) -> None:
        for lane in range(9):
            await scene.send(producer, lane, lane=lane)

    scene.attempt = counted
    scene.play(act, max_in_flight=3, linger=0)
    assert most == 3 and [when for when, *_ in scene.sent] == [0] * 3 + [0.1] * 3 + [0.2] * 3


def test_with_one_in_flight_an_expired_batch_ends_before_a_later_one_is_sent(scene: Scene) -> None:
    async def only_b(lane: Any, records: Sequence[Any]) -> None:
        if list(records) == ["a"]:
            await scene.hang(lane, records)

    async def act(producer: aio.Producer) -> None:
        await scene.send(producer, "a", lane=1)
        await asyncio.sleep(2.6)
        await scene.send(producer, "b", lane=1)

    scene.attempt = only_b
    scene.play(act, max_in_flight=1, request_timeout=2.5, linger=0, retry_backoff=0)
    # The second attempt of "a" began at 2.5 s, and "a" expired at 3 s. "b" is sent when this attempt is over.
    assert scene.ends[0] == (3, "a", "expired", 2)
    assert scene.sent[-1][2] == ["b"] and scene.sent[-1][0] >= 3


def test_retry_backoff_doubles_up_to_retry_backoff_max(scene: Scene) -> None:
    async def act(producer: aio.Producer) -> None:
        await scene.send(producer, "a")

    scene.attempt = scene.busy
    scene.play(act, linger=0, retry_backoff=0.2, retry_backoff_max=0.8)
    times = [when for when, *_ in scene.sent]
    gaps = [after - before for before, after in pairwise(times)]
    assert all(
        0.8 * wanted <= gap <= 1.2 * wanted + 0.001 for gap, wanted in zip(gaps, (0.2, 0.4, 0.8, 0.8), strict=False)
    ), gaps


@pytest.mark.parametrize(
    ("setting", "wrong"),
    [
        ("delivery_timeout", -1),
        ("request_timeout", 0),
        ("linger", float("nan")),
        ("linger", "5 ms"),
        ("max_block", -0.1),
        ("max_block", float("inf")),
        ("retries", -1),
        ("retries", 1.5),
        ("retry_backoff", -1),
        ("batch_size", 0),
        ("batch_bytes", 0),
        ("max_in_flight", 0),
        ("buffer_records", 0),
        ("buffer_bytes", 0),
    ],
)
def test_a_setting_that_is_wrong_is_named(setting: str, wrong: Seconds) -> None:
    with pytest.raises(InvalidValueError, match=setting):
        options(**{setting: wrong})


# callbacks ------------------------------------------------------------------------------------------------------------


def test_callbacks_run_once_a_record_and_in_order_in_a_lane(scene: Scene, rng: random.Random) -> None:
    async def drawn(lane: Any, records: Sequence[Any]) -> None:
        fate = rng.random()
        if fate < 0.1:
            await scene.hang(lane, records)
        await asyncio.sleep(rng.random() * 0.3)
        if fate < 0.3:
            await scene.busy(lane, records)
        if fate < 0.4:
            raise ValueError("refused")

    async def act(producer: aio.Producer) -> None:
        for number in range(600):
            await scene.send(producer, number, lane=rng.randrange(4))
            await asyncio.sleep(rng.choice((0, 0, 0.01)))

    scene.attempt = drawn
    lanes: dict[int, int] = {}
    scene.play(act, batch_size=4)
    for _, lane, records in scene.sent:
        lanes.update(dict.fromkeys(records, lane))
    assert sorted(record for _, record, _, _ in scene.ends) == list(range(600))
    for lane in range(4):
        of_lane = [record for _, record, _, _ in scene.ends if lanes.get(record) == lane]
        assert of_lane == sorted(of_lane)
    assert len({outcome for _, _, outcome, _ in scene.ends}) >= 2


def test_an_error_in_a_callback_is_logged_and_the_next_runs(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    def bad(_: object) -> None:
        raise ZeroDivisionError

    async def act(producer: aio.Producer) -> None:
        await producer.send("a", lane=1, on_delivery=bad)
        await scene.send(producer, "b", lane=1)

    scene.play(act)
    assert [record for _, record, _, _ in scene.ends] == ["b"]
    assert "on_delivery" in caplog.text and "ZeroDivisionError" in caplog.text


def test_a_ready_that_raises_is_logged_and_its_lane_waits(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    calls = 0

    def ready(_: object) -> bool:
        nonlocal calls
        calls += 1
        if calls == 2:  # the first call is that of send()
            raise ZeroDivisionError
        return True

    async def act(producer: aio.Producer) -> None:
        await scene.send(producer, "a", lane=1)

    scene.play(act, ready=ready, linger=0, retry_backoff=0.1)
    assert scene.ends == [(0.1, "a", "delivered", 1)] and "ready(1) failed" in caplog.text


# flush and close ------------------------------------------------------------------------------------------------------


def test_flush_does_not_linger_and_waits_for_the_callbacks(scene: Scene) -> None:
    async def act(producer: aio.Producer) -> None:
        await scene.send(producer, "a", "b")
        assert await producer.flush()
        assert scene.ends == [(0, "a", "delivered", 1), (0, "b", "delivered", 1)]

    scene.play(act, linger=1)


def test_flush_returns_false_after_its_timeout(scene: Scene) -> None:
    async def act(producer: aio.Producer) -> None:
        await scene.send(producer, "a")
        assert not await producer.flush(timeout=0.5)
        assert scene.now() == 0.5

    scene.attempt = scene.hang
    scene.play(act)


def test_close_waits_for_all_records_and_refuses_new_ones(scene: Scene) -> None:
    async def act(producer: aio.Producer) -> None:
        await scene.send(producer, "a")
        assert await producer.close()
        with pytest.raises(ClosedError, match="make another one"):
            await producer.send("b")

    scene.play(act)
    assert scene.ends == [(0, "a", "delivered", 1)]


def test_close_gives_up_after_its_timeout_and_each_record_fails(scene: Scene) -> None:
    async def act(producer: aio.Producer) -> None:
        futures = await scene.send(producer, "a", "b", lane=1)
        await scene.send(producer, "c")
        assert not await producer.close(timeout=timedelta(seconds=0.5))
        assert (await futures[1]).error == "close() gave it up after its timeout"

    scene.attempt = scene.hang
    scene.play(act)
    assert sorted(scene.ends) == [(0.5, "a", "failed", 1), (0.5, "b", "failed", 1), (0.5, "c", "failed", 1)]


def test_close_ends_a_send_that_waits(scene: Scene) -> None:
    async def act(producer: aio.Producer) -> None:
        await scene.send(producer, "a")
        waiting = asyncio.ensure_future(producer.send("b"))
        await asyncio.sleep(0.1)
        await producer.close(timeout=0)
        with pytest.raises(ClosedError):
            await waiting

    scene.attempt = scene.hang
    scene.play(act, buffer_records=1)


def test_a_loop_that_ends_gives_up_the_records_of_a_producer(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    async def hang(lane: Any, records: Sequence[Any]) -> None:
        scene.sent.append((scene.now(), lane, list(records)))
        await scene.hang(lane, records)

    async def main(first_s: float) -> None:
        producer = aio.Producer(td.aio.client(), hang)
        await scene.send(producer, "a")
        await asyncio.sleep(first_s)

    for first_s, attempts in ((0, 0), (0.1, 1)):  # the loop ends while "a" lingers, then while it is in flight
        scene.manual.run(main(first_s))
        assert [(outcome, tried) for _, _, outcome, tried in scene.ends] == [("failed", attempts)]
        assert len(scene.sent) == attempts and not caplog.text
        scene.ends.clear()


# the daemon -----------------------------------------------------------------------------------------------------------


def test_while_the_daemon_is_lost_records_are_delivered_and_expire_by_the_clock(scene: Scene) -> None:
    async def act(producer: aio.Producer) -> None:
        await scene.send(producer, "before", lane="away")
        await asyncio.sleep(0.1)
        scene.manual.stop()
        await scene.send(producer, "meanwhile")
        await scene.send(producer, "never", lane="away")
        await producer.flush()
        scene.manual.start()

    scene.play(act, ready=lambda lane: lane is None, linger=0)
    ends = {record: (when, outcome) for when, record, outcome, _ in scene.ends}
    assert {record: outcome for record, (_, outcome) in ends.items()} == {
        "before": "expired",
        "meanwhile": "delivered",
        "never": "expired",
    }
    assert 3 <= ends["before"][0] <= 4.6 and 3.1 <= ends["never"][0] <= 4.7, f"1.5 s beyond delivery_timeout: {ends}"


def test_batches_go_to_no_group_and_are_cancelled_with_their_client(scene: Scene) -> None:
    async def main() -> None:
        async def post(lane: Any, records: Sequence[Any]) -> None:
            await scene.hang(lane, records)

        client = await td.aio.connect(group="workers", orphans="group")
        producer = aio.Producer(client, post, linger=0, request_timeout=1, delivery_timeout=3)
        await producer.send("a")
        await asyncio.sleep(0.1)
        async with await td.aio.connect(group="workers") as other:
            await client.close()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(aiter(other.outcomes())), 10)
        await producer.close(timeout=0)

    scene.manual.run(main())
