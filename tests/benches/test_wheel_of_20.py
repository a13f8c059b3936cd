"""The article's timing wheels, which the suite `rivals` measures, behave like Kafka's wheels and a simple model.

Comments have the codes of tests/core/test_kafka.py, such as T2.
"""

from __future__ import annotations

import random
from array import array
from collections import Counter

import pytest

from bench.rivals.wheel_of_20 import WheelOf20


def names(numbers: list[int]) -> bytes:
    return b"".join(b"key/%08x" % number for number in numbers)


def times(*values: int) -> array[int]:
    return array("q", values)


def wheel(capacity: int = 1_000, now_ms: int = 0) -> WheelOf20:
    return WheelOf20(capacity, 12, now_ms, bytearray(WheelOf20.size(capacity)))


def run_all(w: WheelOf20) -> list[tuple[int, int]]:
    """The (time, handle) of all tasks that expire, going from bucket to bucket."""
    told = []
    while (at := w.next_ms) is not None:
        told += [(at, handle) for handle in w.advance(at)]
    return told


def test_a_task_that_is_already_due_is_not_stored() -> None:  # T2
    w = wheel(now_ms=100)
    handles = w.insert(names([0, 1, 2, 3, 4]), times(95, 96, 97, 98, 100))
    assert w.pending == 0 and list(w.advance(100)) == list(handles)


def test_every_task_runs_once_at_its_time_whatever_its_wheel() -> None:  # T4, W2, W4
    delays = [
        *range(1, 5),
        *(at for at in range(10, 100) for _ in range(2)),
        *range(100, 500),
        7_999,
        8_000,
        10**6,
        10**9,
    ]
    w = wheel()
    handles = w.insert(names(list(range(len(delays)))), times(*delays))
    due = dict(zip(handles, delays, strict=True))
    told = run_all(w)
    assert Counter(handle for _, handle in told) == Counter(handles)
    assert all(at == due[handle] for handle, at in ((handle, at) for at, handle in told))
    assert w.pending == 0 and w.wheels == 7, "20^7 ms is the first power that reaches 10^9 ms"
    assert w.counters()["reinserted"] > 0


def test_wheels_are_made_on_demand() -> None:  # W2
    w = wheel()
    made = []
    for number, deadline in enumerate((19, 20, 399, 400, 7_999, 8_000)):
        w.insert(names([number]), times(deadline))
        made.append(w.wheels)
    assert made == [1, 2, 2, 3, 3, 4]


def test_a_bucket_whose_tasks_were_cancelled_costs_one_empty_visit() -> None:  # T8, W6
    w = wheel()
    handles = w.insert(names([1, 2, 3]), times(5, 5, 7))
    assert w.cancel(handles[:2]) == 2 and w.cancel(handles[:2]) == 0 and w.cancel(array("I", [0, 99])) == 0
    assert w.next_ms == 5 and not w.advance(6)
    assert w.counters() == {"visits": 1, "empty_visits": 1, "reinserted": 0}
    assert list(w.advance(7)) == list(handles[2:]) and w.next_ms is None


def test_a_task_is_found_by_its_name_and_moved_by_a_new_deadline() -> None:  # T5
    w = wheel()
    handles = w.insert(names([1, 2, 3]), times(50, 50, 50))
    assert w.complete(names([2])) == 1 and w.complete(names([2, 9])) == 0
    assert w.reschedule(handles[:2], times(10, 10)) == 1 and w.pending == 2
    assert run_all(w) == [(10, handles[0]), (50, handles[2])]


def test_tasks_beyond_the_capacity_are_refused_as_a_whole() -> None:
    w = wheel(capacity=2)
    with pytest.raises(ValueError, match="0 of 2 tasks are in use: 3 more"):
        w.insert(names([1, 2, 3]), times(5, 5, 5))
    assert w.pending == 0
    for wrong in ((b"short", times(5)), (names([1]), times(5, 6))):
        with pytest.raises(ValueError):
            w.insert(*wrong)


def test_it_behaves_like_a_simple_model(seed: int) -> None:
    rng = random.Random(seed)
    w, now_ms, next_number = wheel(capacity=5_000), 0, 0
    deadlines: dict[int, int] = {}  # by handle
    numbers: dict[int, int] = {}
    for _ in range(3_000):
        match rng.randrange(6):
            case 0 | 1:
                fresh = list(range(next_number, next_number + rng.randint(1, 3)))
                next_number = fresh[-1] + 1
                due = [now_ms + rng.choice([1, 10, 500, 10_000, 400_000]) * rng.randint(1, 5) for _ in fresh]
                for handle, deadline, number in zip(w.insert(names(fresh), times(*due)), due, fresh, strict=True):
                    deadlines[handle], numbers[handle] = deadline, number
            case 2 | 3 | 4 if deadlines:
                handle = rng.choice(list(deadlines))
                what = rng.randrange(3)
                if what == 2:
                    deadlines[handle] = now_ms + rng.randint(1, 50_000)
                    assert w.reschedule(array("I", [handle]), times(deadlines[handle])) == 1
                else:
                    done = w.cancel(array("I", [handle])) if what else w.complete(names([numbers[handle]]))
                    assert done == 1
                    del deadlines[handle]
            case _:
                now_ms += rng.choice([0, 1, 7, 300, 9_000])
                told = list(w.advance(now_ms))
                assert sorted(told) == sorted(handle for handle, deadline in deadlines.items() if deadline <= now_ms)
                assert [deadlines[handle] for handle in told] == sorted(deadlines[handle] for handle in told)
                for handle in told:
                    del deadlines[handle]
        assert w.pending == len(deadlines)
    assert sorted(handle for _, handle in run_all(w)) == sorted(deadlines)
