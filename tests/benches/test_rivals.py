"""The rivals of the core at a tiny size: they keep and end their timers, and missing rivals are named."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import pytest

from bench.rivals.timers import MAKERS, TIMERD, Asyncio, Heap, Listed, Sorted, measure
from bench.suites.rivals import CONTESTANTS, MANY, Contestant, of_runs, repeats_all, unfit


def test_every_contestant_can_be_made() -> None:
    assert set(CONTESTANTS) == {TIMERD, *MAKERS}


@pytest.mark.parametrize("name", MAKERS)
def test_a_measurement_ends_every_timer_and_has_every_figure(name: str, seed: int) -> None:
    if importlib.util.find_spec(CONTESTANTS[name].module) is None:
        pytest.skip(f"{name} is not installed")
    found = measure(name, 300, seed, work=40)
    steps = ("insert", "cancel", "complete", "reschedule", "cancel_any", "complete_any", "reschedule_any", "expire")
    assert set(found) == {*(f"{step}_ns" for step in steps), "bytes_per_op", "worst_tick_ms", "huge_share"}
    del found["bytes_per_op"]  # of some rivals the growth of the process: it may take memory that others have freed
    assert all(figure is None or figure >= 0 for figure in found.values()), found
    assert (found["worst_tick_ms"] is None) == (name == "uvloop"), "uvloop's clock cannot be moved"


@pytest.mark.parametrize("make", [Heap, Sorted, Asyncio])
def test_a_rival_in_python_expires_due_timers_and_no_others(make: Callable[[], Listed]) -> None:
    if make is Sorted:
        pytest.importorskip("sortedcontainers")
    timers = make()
    timers.fill(range(5), [10, 20, 30, 40, 50])
    numbers = [5, 6]
    timers.insert(timers.names(numbers), timers.times([20, 60]))
    timers.cancel(timers.names([0]), timers.handles([0]))
    timers.complete(timers.names([1]))
    timers.reschedule(timers.names([2]), timers.handles([2]), timers.times([70]))
    assert timers.pending() == 5
    expired, spent = timers.expire([15, 20, 40])
    assert expired == 2 and len(spent) >= 3
    assert set(timers.by_name) == set(timers.names([2, 4, 6]))


def test_a_rival_that_is_not_installed_or_does_not_fit_is_named_with_the_remedy() -> None:
    assert unfit(CONTESTANTS["heapq"], 10_000) is None
    assert unfit(Contestant("", "no_such_module", 1), 1) == "not installed: pip install no_such_module"
    told = unfit(Contestant("", "heapq", 1 << 40), 10_000)
    assert told is not None and told.startswith("not run: it needs ") and told.endswith(" are available")


def test_beside_many_timers_only_quick_contestants_are_repeated() -> None:
    repeated = {name for name, contestant in CONTESTANTS.items() if repeats_all(contestant, MANY)}
    assert repeated == {TIMERD, "wheel of 20", "bare"}
    assert all(repeats_all(contestant, MANY // 10) for contestant in CONTESTANTS.values())
    assert not any(repeats_all(contestant, 4 * MANY) for contestant in CONTESTANTS.values())


def test_a_row_has_the_median_of_each_figure_and_the_least_of_the_worst_ticks() -> None:
    runs: list[dict[str, float | None]] = [
        {"insert_ns": 3.0, "worst_tick_ms": 9.0},
        {"insert_ns": 1.0, "worst_tick_ms": None},
        {"insert_ns": 2.0, "worst_tick_ms": 7.0},
    ]
    assert of_runs("insert_ns", runs) == 2.0 and of_runs("worst_tick_ms", runs) == 7.0
    assert of_runs("expire_ns", runs) is None
