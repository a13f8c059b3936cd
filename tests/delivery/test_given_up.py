"""A call that was given up: what its handler sees, what its dead letter shows, and how its schedule goes on."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

import timerd as td
from timerd.testing import Manual
from timerd_client.groups.plan import WALL_NS_END, LastRun, last_run_of
from timerd_shm.declare.limits import CALL_REASON_SIZE_MAX

NOON = datetime(2026, 5, 24, 12, tzinfo=UTC)


@pytest.mark.parametrize("deliveries", [1, 2, 3, 5])
def test_the_point_after_a_given_up_call_begins_with_a_first_delivery(manual: Manual, deliveries: int) -> None:
    calls = td.Calls()
    seen: list[tuple[datetime | None, int, int]] = []
    kills = [True]
    gone: list[int] = []

    @calls.every(
        "tick", seconds=3600, deliveries=deliveries, on_failure=lambda call, error: gone.append(call.deliveries)
    )
    def tick(call: td.Call) -> None:
        seen.append((call.due, call.attempt, call.deliveries))
        if kills[0]:
            manual.kill(worker)

    worker = td.Client(group="web")
    for _ in range(3):
        seen.clear()
        gone.clear()
        kills[0] = True
        worker.serve(calls)
        manual.advance(3600)
        for _ in range(deliveries):
            worker.serve(calls)
            manual.advance(60)
        assert [number for _, _, number in seen] == list(range(1, deliveries + 1))
        assert gone == [deliveries], "on_failure sees how often the handler ran"
        kills[0] = False
        manual.advance(3600)
        assert seen[-1][1:] == (1, 1), "the next point has its first attempt, and its first delivery"
        letter = worker.dead_letters()[-1]
        assert (letter.ended, letter.deliveries, letter.attempt) == (deliveries, deliveries, 1)
        assert letter.point == seen[0][0] and "CallGivenUpError" in letter.last_error


def test_a_dead_letter_shows_its_last_run_and_not_the_run_before(manual: Manual) -> None:
    calls = td.Calls()
    manual.set_wall_clock(NOON)
    runs: list[int] = []

    @calls.every("nightly", cron="0 3 * * *", retries=2, backoff=60)
    def nightly(call: td.Call) -> None:
        runs.append(call.attempt)
        if call.due is not None and call.due.day == 26:
            raise ValueError(f"error {call.attempt}")

    with td.connect(group="web") as worker:
        worker.serve(calls)
        manual.advance(timedelta(hours=48))
        assert runs == [1, 1, 2, 3]
        (letter,) = worker.dead_letters()
        night = datetime(2026, 5, 26, 3, tzinfo=UTC)
        assert letter.point == night, "which night has failed"
        assert letter.last_run == night + timedelta(seconds=180), "the end of attempt 3"
        assert (letter.attempt, letter.last_error, letter.reason) == (3, "ValueError: error 3", "ValueError: error 3")
        assert (letter.deliveries, letter.ended) == (1, 0)
        worker.retry_call_wait(letter.number)
        manual.advance(1)
        (again,) = [call for call in worker.calls() if not call.scheduled]
        assert (again.state, again.attempt, again.point) == ("paused", 2, night)
        assert worker.dead_letters() == []


def test_a_dead_letter_of_a_single_attempt_has_a_last_run(manual: Manual) -> None:
    calls = td.Calls()
    manual.set_wall_clock(NOON)

    @calls.handler("mail")
    def mail(call: td.Call) -> None:
        raise ValueError("no such address")

    with td.connect(group="web") as worker:
        worker.serve(calls)
        worker.call_later(mail, 60)
        worker.call_later("nobody's", 60)
        manual.advance(63)
        (letter,) = worker.dead_letters()
        assert (letter.last_run, letter.point) == (NOON + timedelta(seconds=60), None)
        manual.advance(3600)
        unserved = worker.dead_letters()[-1]
        assert unserved.last_run is None and unserved.reason.startswith("no member of its group has served it")


def test_the_reason_of_a_dead_letter_is_read_as_it_was_written() -> None:
    for written in (LastRun("ValueError: no", 5, 6, 7), LastRun("", 0, 0, 0), LastRun("é" * 100, WALL_NS_END - 1, 255)):
        assert last_run_of(written.pack()) == written
    long = LastRun("é" * 5_000, WALL_NS_END - 1, 300, 255)
    assert len(long.pack()) <= CALL_REASON_SIZE_MAX
    found = last_run_of(long.pack())
    assert found[1:] == long[1:] and long.why.startswith(found.why) and len(found.why) > 400
    assert last_run_of(LastRun("a\0b", 1, 2, 3).pack()) == LastRun("a b", 1, 2, 3)
    for others in (
        b"",
        b"why",
        b"why\xff",
        b"why\x00",
        b"why\x001 2",
        b"why\x001 2 x",
        b"why\x001 -2 3",
        b"w\x00" + b"9" * 30,
    ):
        assert last_run_of(others)[1:] == (0, 0, 0), "another program's reason is a text alone"
    assert last_run_of(b"w\x00%d 1 1" % WALL_NS_END) == LastRun("w")
