"""A schedule whose plan changes keeps a call that was due before, and a call that pauses: nothing vanishes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import timerd as td
from timerd.testing import Manual

NOON = datetime(2026, 5, 24, 12, tzinfo=UTC)
CHANGES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"cron": "30 2 * * *"}, {"cron": "30 2 * * 1-7"}),
    ({"cron": "30 2 * * *"}, {"cron": "30 6 * * *"}),
    ({"cron": "30 2 * * *"}, {"seconds": 86_400}),
    ({"seconds": 50_000}, {"seconds": 50_001}),
    ({"seconds": 50_000}, {"cron": "30 6 * * *"}),
]
changes = pytest.mark.parametrize(("old", "new"), CHANGES)
Seen = list[tuple[datetime | None, int, int]]


def schedule(seen: Seen, fails: Callable[[], bool] = lambda: False, **plan: Any) -> td.Calls:
    calls = td.Calls()

    @calls.every("nightly", **plan)
    def nightly(call: td.Call) -> None:
        seen.append((call.due, call.attempt, call.deliveries))
        if fails():
            raise ConnectionError("no database")

    return calls


def serve(manual: Manual, calls: td.Calls, for_: timedelta) -> None:
    with td.connect(group="web") as worker:
        worker.serve(calls)
        manual.advance(for_)


def first_point(manual: Manual, plan: dict[str, Any]) -> datetime:
    """When the pending call of the schedule is due."""
    seen: Seen = []
    with td.connect(group="web") as worker:
        worker.serve(schedule(seen, **plan))
        manual.advance(0)
        (call,) = worker.calls()
        assert call.point is not None and call.scheduled
        return call.point


@changes
def test_a_point_that_was_missed_before_the_change_is_one_call_at_once(
    manual: Manual, old: dict[str, Any], new: dict[str, Any]
) -> None:
    manual.set_wall_clock(NOON)
    point = first_point(manual, old)
    manual.advance(timedelta(days=3))
    seen: Seen = []
    with td.connect(group="web") as worker:
        worker.serve(schedule(seen, **new))
        manual.advance(1)
        assert seen == [(point, 1, 1)]
        manual.advance(timedelta(days=2))
        assert len(seen) >= 2 and {attempt for _, attempt, _ in seen} == {1}
        assert not worker.dead_letters() and len(worker.calls()) == 1


@changes
def test_a_call_that_pauses_for_its_next_attempt_keeps_it(
    manual: Manual, old: dict[str, Any], new: dict[str, Any]
) -> None:
    manual.set_wall_clock(NOON)
    seen: Seen = []
    point = first_point(manual, old)
    settings = {"retries": 5, "backoff": 3600}
    serve(manual, schedule(seen, lambda: True, **old, **settings), point - NOON + timedelta(minutes=10))
    assert seen == [(point, 1, 1)]
    fails = [True, False]
    with td.connect(group="web") as worker:
        worker.serve(schedule(seen, lambda: fails.pop(0) if fails else False, **new, **settings))
        manual.advance(1)
        (paused,) = worker.calls()
        assert (paused.state, paused.attempt, paused.point) == ("paused", 2, point)
        assert paused.last_error == "ConnectionError: no database"
        manual.advance(timedelta(minutes=40))
        assert len(seen) == 1, "the call comes when its pause has ended, and not before"
        manual.advance(timedelta(minutes=15))
        assert seen[1:] == [(point, 2, 1)]
        manual.advance(timedelta(hours=2, minutes=1))
        assert (point, 3, 1) in seen
        manual.advance(timedelta(days=2))
        assert seen[-1][:2] != (point, 3) and seen[-1][1] == 1, "then the new schedule goes on"


@pytest.mark.parametrize(("old", "new"), CHANGES[1:])  # the first change leaves the next point as it is
def test_a_point_that_is_still_to_come_gives_way_to_the_new_schedule(
    manual: Manual, old: dict[str, Any], new: dict[str, Any]
) -> None:
    manual.set_wall_clock(NOON)
    point = first_point(manual, old)
    seen: Seen = []
    with td.connect(group="web") as worker:
        worker.serve(schedule(seen, **new))
        manual.advance(1)
        (call,) = worker.calls()
        assert call.point != point and not seen


def test_a_call_with_the_schedules_id_is_kept_and_then_the_schedule_begins(manual: Manual) -> None:
    seen: Seen = []
    tonight: list[bytes] = []
    calls = schedule(seen, seconds=600)

    @calls.handler("tonight")
    def run_tonight(call: td.Call) -> None:
        tonight.append(call.payload)

    with td.connect(group="web") as caller:
        caller.call_later_wait("tonight", 3000, b"by hand", id="nightly")
    with td.connect(group="web") as worker:
        worker.serve(calls)
        manual.advance(3001)
        assert tonight == [b"by hand"]
        manual.advance(600)
        assert len(seen) == 1


def test_a_failed_call_goes_on_though_a_caller_has_used_its_id(manual: Manual) -> None:
    """Its next attempt has an id of its own. With the schedule's id it would vanish if another call had this id."""
    seen: Seen = []
    calls = td.Calls()

    @calls.every("nightly", seconds=600, retries=2, backoff=50)
    def nightly(call: td.Call) -> None:
        seen.append((call.due, call.attempt, call.deliveries))
        if call.attempt == 1 and call.payload == b"" and len(seen) == 1:
            worker.call_later_wait("nightly", 3600, b"by hand", id="nightly", if_exists="again")
            raise ConnectionError("no database")

    with td.connect(group="web") as worker:
        worker.serve(calls)
        manual.advance(201)
        assert len(seen) == 1 and len(worker.calls()) == 2
        manual.advance(51)
        assert [attempt for _, attempt, _ in seen] == [1, 2] and seen[0][0] == seen[1][0]


def test_a_retried_call_at_keeps_its_due_time(manual: Manual) -> None:
    calls, seen = td.Calls(), []
    manual.set_wall_clock(NOON)

    @calls.handler("mail", retries=1, backoff=60)
    def mail(call: td.Call) -> None:
        seen.append((call.due, call.attempt))
        raise ConnectionError("no mail server")

    with td.connect(group="web") as worker:
        worker.serve(calls)
        worker.call_at(mail, NOON + timedelta(seconds=10))
        manual.advance(100)
        due = NOON + timedelta(seconds=10)
        assert seen == [(due, 1), (due, 2)]
        (letter,) = worker.dead_letters()
        assert letter.point == due
        worker.retry_call_wait(letter.number)
        manual.advance(1)
        assert seen[2:] == [(due, 1)]
