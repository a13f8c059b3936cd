"""A manual clock skips times in which daemon and clients only exchange heartbeats. Otherwise nothing changes."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

import timerd as td
from timerd.testing import Manual
from timerd_client import aio

STEPS_PER_POINT = 40  # turns of the daemon for one call: delivery, answers, acknowledgements, two heartbeats
HOUR_S = 3_600


def count_turns(manual: Manual) -> list[int]:
    """Counts the turns of the daemon from now on."""
    turns, turn = [0], manual._driver.daemon.turn

    def counted() -> None:
        turns[0] += 1
        turn()

    manual._driver.daemon.turn = counted  # type: ignore[method-assign]
    return turns


@pytest.mark.long
@pytest.mark.parametrize(
    ("schedule", "duration", "points"),
    [
        ({"cron": "0 3 * * *"}, timedelta(hours=60), 3),
        ({"cron": "0 * * * *"}, timedelta(days=3), 72),
        ({"seconds": 60}, timedelta(hours=2), 120),
    ],
    ids=["nightly", "hourly", "each minute"],
)
def test_a_schedule_takes_as_many_turns_as_it_has_points(
    manual: Manual, schedule: dict[str, object], duration: timedelta, points: int
) -> None:
    calls = td.Calls()
    ran: list[float] = []
    calls.every("job", **schedule)(lambda call: ran.append(manual.now))  # type: ignore[arg-type]
    manual.set_wall_clock(datetime(2026, 1, 1, 2, 59, tzinfo=UTC))
    with td.connect(group="web") as worker, td.connect(group="web") as second:
        worker.serve(calls)
        second.serve(calls)
        manual.advance(1)
        turns = count_turns(manual)
        manual.advance(duration)
    assert len(ran) == points
    assert turns[0] < STEPS_PER_POINT * (points + 1)


def test_days_in_which_nothing_happens_take_a_few_turns(manual: Manual) -> None:
    with td.connect() as client, td.connect(group="web", transport="unix") as member:
        subscription = client.subscribe("prices")
        waits = member.register("inbox/7", timeout=timedelta(days=30))
        manual.advance(1)
        turns = count_turns(manual)
        manual.advance(timedelta(days=29))
        assert turns[0] < 10 * STEPS_PER_POINT and not waits.done()
        assert client.connected and member.connected
        member.fire("prices", value=b"good")
        item = subscription.next()
        assert isinstance(item, td.Event) and item.value == b"good"
        manual.advance(timedelta(days=1))
        assert waits.result().lateness_ns < 10**9


def test_a_loop_that_sleeps_for_days_takes_a_few_turns(manual: Manual) -> None:
    turns = count_turns(manual)

    async def main() -> td.Outcome:
        async with aio.connect() as client:
            waits = client.register("inbox/7", timeout=timedelta(hours=60))
            await asyncio.sleep(59 * HOUR_S)
            return await waits

    assert manual.run(main()).lateness_ns == 0
    assert manual.now == pytest.approx(60 * HOUR_S, abs=0.1)
    assert turns[0] < 10 * STEPS_PER_POINT


def test_a_wait_moves_the_clock_to_a_deadline_that_is_days_away(manual: Manual) -> None:
    with manual.autojump():
        assert td.client().register("inbox/7", timeout=timedelta(days=3)).result().state is td.State.EXPIRED
        assert manual.now == 3 * 86_400
        td.client().close()


def test_a_coroutine_waits_for_a_call_that_is_days_away(manual: Manual) -> None:
    calls = td.Calls()

    async def main() -> None:
        done = asyncio.Event()

        @calls.handler("remind")
        async def remind(call: td.Call) -> None:
            done.set()

        async with aio.connect(group="web") as client:
            client.serve(calls)
            client.call_later("remind", 60 * HOUR_S)
            await done.wait()

    manual.run(main())
    assert manual.now == pytest.approx(60 * HOUR_S, abs=0.1)


def test_a_daemon_that_stops_after_a_rest_is_noticed_as_quickly_as_usual(manual: Manual) -> None:
    with td.connect() as client:
        manual.advance(timedelta(days=2))
        manual.stop()
        manual.advance(1)
        assert client.connected
        manual.advance(2)
        assert not client.connected
        manual.start()
        manual.advance(2)
        assert client.connected and client.fire_wait("inbox/7") == 0


def test_a_member_that_rests_is_not_silent(manual: Manual, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="timerd")
    with td.connect(group="web") as member:
        outcomes = member.outcomes()
        member.register("inbox/7", timeout=None, group=True)
        with manual.autojump():
            assert next(member.outcomes(timeout=timedelta(days=2)), None) is None
        member.fire("inbox/7", value=b"hello")
        assert next(outcomes).value == b"hello"
    assert "is silent" not in caplog.text


def test_a_client_of_a_loop_that_was_closed_by_hand_holds_up_no_clock(manual: Manual) -> None:
    client = aio.Client()
    loop = asyncio.new_event_loop()
    assert loop.run_until_complete(client.fire_wait("inbox/7")) == 0
    loop.close()  # without shutdown_asyncgens(): the client could not end
    manual.advance(10)
    assert manual.now == 10


def program(seed: int, *, rests: bool) -> list[tuple[object, ...]]:
    """Run a program of random choices. Returns what happened and when, without the order within a millisecond."""
    rng, happened = random.Random(seed), list[tuple[object, ...]]()
    with Manual() as manual:
        if not rests:
            manual._driver._rests_until_ns = lambda: 0  # type: ignore[method-assign]

        def note(*what: object) -> None:
            happened.append((round(manual.now * 1e3), *map(repr, what)))

        calls = td.Calls(group="web")
        attempts = [0]

        @calls.every("cron", cron=rng.choice(["0 * * * *", "*/7 * * * *"]), timezone="Europe/Berlin")
        def cron(call: td.Call) -> None:
            note("cron", call.due, call.missed)

        @calls.every("period", seconds=rng.choice([45, 600]))
        def period(call: td.Call) -> None:
            note("period", call.missed)

        @calls.handler("mail", retries=3, backoff=rng.choice([1, 30, 400]))
        def mail(call: td.Call) -> None:
            attempts[0] += 1
            note("mail", call.payload, call.attempt)
            if attempts[0] % 3:
                raise ConnectionError

        def settled(number: int) -> Callable[[td.Operation], None]:
            return lambda operation: note("settled", number, operation.result().state, operation.result().lateness_ns)

        def registers() -> None:
            operation = client.register(
                f"k{rng.randrange(3)}", timeout=rng.choice([0.5, 3, 100, 7_000]), id=f"i{rng.randrange(3)}",
                if_exists="replace",
            )  # fmt: skip
            operation.add_done_callback(settled(number))

        def restarts() -> None:
            manual.stop()
            manual.advance(rng.choice([1, 5, 60]))
            manual.start()

        def serves() -> None:
            workers.append(td.connect(group="web"))
            workers[-1].serve(calls)
            manual.advance(0)  # else the worker's thread might begin before the next step, or after it

        def changes_worker() -> None:
            workers.pop().close()
            manual.advance(rng.choice([10, 1_000]))
            serves()

        manual.set_wall_clock(datetime(2026, 3, 28, rng.randrange(24), rng.randrange(60), tzinfo=UTC))
        client, workers = td.connect(), list[td.Client]()
        serves()
        steps: list[Callable[[], object]] = [
            registers,
            registers,
            lambda: client.fire(f"k{rng.randrange(3)}"),
            lambda: workers[0].call_later("mail", rng.choice([0, 1, 500]), b"%d" % number),
            lambda: manual.set_wall_clock(datetime(2026, 3, rng.randrange(28, 31), rng.randrange(24), tzinfo=UTC)),
            restarts,
            changes_worker,
        ]
        for number in range(12):  # noqa: B007 - the steps read it
            rng.choice(steps)()
            manual.advance(rng.choice([0.1, 1, 2.5, 30, 300]))
        workers[0].close()
        client.close()
    return sorted(happened, key=repr)


@pytest.mark.long
def test_a_clock_that_skips_heartbeats_changes_nothing_that_happens_nor_its_time(seed: int) -> None:
    assert program(seed, rests=True) == program(seed, rests=False), f"program({seed})"
