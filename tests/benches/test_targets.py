"""The numbers to reach, and the ladder's series: a target finds its figure in the results, or None."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import pytest

from bench.lib.common import Row
from bench.lib.loads import load_command, memory_of, workload_of
from bench.lib.report import AT_LENGTH, BENCH, SUITES
from bench.lib.targets import GOALS, TARGETS, Target
from bench.suites.ladder import Series, series_of

M = 1_000_000


def reached(suite: str, table: str, rows: list[Row]) -> dict[Target, float]:
    """The targets for which these rows have figures, in the order of TARGETS."""
    found = {target: target.reached({suite: {"tables": {table: rows}}}) for target in TARGETS}
    return {target: figure for target, figure in found.items() if figure is not None}


def test_each_target_is_measured_by_a_suite_that_runs() -> None:
    assert {target.suite for target in TARGETS} <= set(SUITES)
    of_another_name = {"gate": "overload"}
    names = {of_another_name.get(name, name) for name in (*SUITES, *AT_LENGTH)} - {"kafka"}  # tests/kafka/acceptance
    assert not [name for name in names if not (BENCH / "suites" / f"{name}.py").exists()]
    assert len({target.what for target in TARGETS}) == len(TARGETS)


def test_targets_of_three_keys_come_first() -> None:
    three = ["three keys" in target.what for target in TARGETS]
    assert three == sorted(three, reverse=True) and 20 < sum(three) < len(three)


def test_the_highest_sustained_rate_with_three_keys_counts() -> None:
    row = {"keys": 3, "api": "bulk", "case": "low", "pending": 0, "transport": "zeromq"}
    rows = [
        row | {"rate": 300_000, "sustained": True},
        row | {"rate": 600_000, "sustained": True},
        row | {"rate": 1_000_000, "sustained": False},
        row | {"rate": 1_000_000, "sustained": True, "case": "high"},
        row | {"rate": 1_000_000, "sustained": True, "keys": 1},
        row | {"rate": 1_000_000, "sustained": True, "transport": "unix"},
    ]
    assert list(reached("ladder", "points", rows).values()) == [600_000]
    rows = [row | {"rate": 300_000, "sustained": False}]
    assert list(reached("ladder", "points", rows).values()) == [0], "0 and not None, because it was measured"
    del rows[0]["keys"]  # as in older results
    assert not reached("ladder", "points", rows)


@pytest.mark.parametrize("goal", GOALS, ids=lambda goal: "-".join(map(str, goal)))
def test_a_goal_of_the_ladder_is_reached_by_its_own_rate_alone(goal: Any) -> None:
    figures = {"sustained": True, "reached_rate": 0.995 * goal.rate, "misjudged_percent": 0.2, "cpu_us": 1.9}
    found = reached("ladder", "goals", [goal._asdict() | figures])
    assert [target.held(figure) for target, figure in found.items()][:3] == [True, True, False]
    assert all(f"{goal.rate:,}/s" in target.what and goal.api in target.what for target in found)
    assert not reached("ladder", "goals", [goal._asdict() | figures | {"keys": 2}])


def test_the_core_is_compared_with_the_bare_loop_of_the_same_run() -> None:
    bare = {"pending": M, "contestant": "bare", "insert_ns": 100.0, "cancel_ns": 50.0, "complete_ns": 50.0}
    core = {"pending": M, "contestant": "timerd", "insert_ns": 115.0, "cancel_ns": 70.0, "complete_ns": None}
    found = reached("rivals", "recent_on_huge_pages", [core, bare])
    assert list(found.values()) == [1.15, 1.4] and [*map(Target.held, found, found.values())] == [True, False]
    assert not reached("rivals", "recent_on_huge_pages", [core, bare | {"pending": 10_000}])
    assert not reached("rivals", "recent", [core, bare]), "the goals are for pages of 2 MiB"


def test_three_keys_are_compared_with_one_of_the_same_call_and_stage() -> None:
    rows: list[Row] = [
        {"call": "register", "keys": 3, "stage": "caller", "ns": 500},
        {"call": "register", "keys": 1, "stage": "caller", "ns": 200},
        {"call": "register", "keys": 3, "stage": "lifetime", "ns": 600},
        {"call": "register", "keys": 1, "stage": "lifetime", "ns": 400},
        {"call": "register_many", "keys": 3, "stage": "caller", "ns": 90},
    ]
    found = reached("client", "calls", rows)
    assert list(found.values()) == [2.5, 1.5] and [*map(Target.held, found, found.values())] == [False, True]


def test_the_core_keeps_up_with_the_article_where_no_rate_below_was_missed() -> None:
    low = {"case": "low", "design": "timerd", "saturates_after": M}
    rows: list[Row] = [low, {"case": "high", "design": "timerd", "saturates_after": None}]
    rows.append({"case": "high", "design": "Kafka, trunk of 2024", "saturates_after": 405_000})
    assert list(reached("article", "saturation", rows).values()) == [M, 0.0]


def test_the_main_series_has_all_rates_and_others_beside_it() -> None:
    given = Namespace(keys=[3, 1], pending=[0, M], cases=["low", "high"], apis=["per-op", "bulk"])
    series = dict(series_of(given))
    assert [each for each, full in series.items() if full] == [
        Series(3, "per-op", "low", 0),
        Series(3, "bulk", "low", 0),
    ]
    assert list(series)[:2] == [Series(3, "per-op", "low", 0), Series(3, "bulk", "low", 0)]
    assert {(each.keys, each.pending) for each in series} == {(3, 0), (3, M), (1, 0)} and len(series) == 14
    assert list(series)[-2:] == [Series(3, api, "low", 0, "unix") for api in ("per-op", "bulk")]


def test_each_operation_of_a_load_has_the_given_number_of_keys(seed: int) -> None:
    assert "--keys-per-op=3" in load_command(workload_of(1_000, 1, "low", seed, keys=3), "bulk")
    assert "--keys-per-op=1" in load_command(workload_of(1_000, 1, "low", seed), "bulk")
    assert memory_of(1_000, 1, 0, keys=3) > memory_of(1_000, 1, 0)
