"""Plans: one seed gives one plan, with the load test's distribution. A real daemon settles a plan as planned."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow
import pytest

from support.real.daemons import SMALL, Daemon
from timerd_client.workload import expected_share
from timerd_shm.declare.errors import InvalidValueError
from timerd_shm.host.places import RUNTIME_DIR_VARIABLE
from timerd_spark import loadtest, report, workload
from timerd_spark.pipeline.loadtest import part_of
from timerd_spark.pipeline.plans import BLOCK, block_of, draws, due_of, planned_lives, shape_of
from timerd_spark.source.schema import TERMINAL, spark_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MakeDaemon = Callable[..., Daemon]


def test_a_row_draws_the_same_numbers_in_any_partition() -> None:
    whole = draws(7, 1, 0, 4096)
    assert (draws(7, 1, 1024, 100) == whole[1024:1124]).all()
    assert not (draws(7, 0, 0, 100) == whole[:100]).any() and not (draws(8, 1, 0, 100) == whole[:100]).any()


def test_arrivals_are_a_poisson_process_and_delays_those_of_the_load_test() -> None:
    shape = shape_of("seed", ops=2 * BLOCK, rate=10_000.0, seed=3, timeout=None)
    first, second = (block_of(shape, block) for block in range(2))
    due = np.concatenate([first["due_ns"].to_numpy(), second["due_ns"].to_numpy()])
    gaps = np.diff(due) / 1e9
    assert (gaps >= 0).all() and gaps.mean() == pytest.approx(1e-4, rel=0.01)
    assert gaps.std() == pytest.approx(1e-4, rel=0.03), "exponential: the standard deviation is the mean"
    delay = first["delay_ns"].to_numpy()
    assert np.quantile(delay, [0.5, 0.75]) / 1e6 == pytest.approx([20, 60], rel=0.03)
    assert (delay > shape.timeout_ns).mean() == pytest.approx(expected_share(shape), abs=0.005)


def test_a_plan_does_not_depend_on_its_partitions_and_can_be_continued(spark: SparkSession) -> None:
    whole = {row.op: row for row in workload(spark, ops=BLOCK + 500, seed=9, partitions=3).collect()}
    assert sorted(whole) == list(range(BLOCK + 500))
    rest = workload(spark, ops=700, seed=9, partitions=1, first=BLOCK - 200).collect()
    assert len(rest) == 700 and all(whole[row.op] == row for row in rest)


@pytest.mark.parametrize("rate", [3.7, 10_000.0])
@pytest.mark.parametrize("first", [0, BLOCK, 510_000])
def test_no_operation_of_a_part_is_due_before_its_first_one(first: int, rate: float) -> None:
    shape = shape_of("seed", ops=first + 10, rate=rate, seed=1, timeout=None)
    due = block_of(shape, first // BLOCK, first)["due_ns"].to_pylist()
    assert due_of(shape, first) == due[0] == min(due)


@pytest.mark.long
def test_planned_lives_are_a_terminal_view(spark: SparkSession) -> None:
    lives = planned_lives(workload(spark, ops=3_000, seed=2), 1_800_000_000_000_000)
    assert [(f.name, f.dataType) for f in lives.schema] == [(f.name, f.dataType) for f in spark_schema(TERMINAL)]
    (row,) = report(lives).collect()
    assert row.n == 3_000 and row.timeout_ratio == pytest.approx(0.079, abs=0.02)
    assert row.latency_max_ms <= 200 and row.lateness_max_ms == 0


@pytest.mark.long  # its short forms are the plans above; `timerctl load` plays such plans in tests/cli
def test_a_played_plan_settles_as_it_was_planned(
    spark: SparkSession, make_daemon: MakeDaemon, runtime_dir: Path, sidecar_dir: Path
) -> None:
    def environment(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        for _ in batches:
            yield pyarrow.record_batch({"value": [os.environ.get(RUNTIME_DIR_VARIABLE)]})

    make_daemon(*SMALL)
    plan = workload(spark, ops=400, rate=800.0, seed=4)
    played = loadtest(spark, plan, players=2, runtime_dir=str(runtime_dir), run="t/").cache()
    planned = {row.op: row for row in plan.collect()}
    rows = {int(row.op_id.rsplit("-", 1)[1], 16): row for row in played.collect()}
    assert sorted(rows) == sorted(planned)
    for op, row in rows.items():
        plain = planned[op]
        # A busy machine registers late, and a late registration waits less for its event.
        if plain.delay_ns - row.behind_ns > plain.timeout_ns + 50_000_000:
            assert row.outcome == "expired"
        assert row.wait_ns > min(plain.delay_ns, plain.timeout_ns) - 5_000_000, (
            "the wait is counted from the intended time"
        )
        assert row.behind_ns >= 0 and row.key == f"t/{plain.key}"
        assert row.added_ns == max(row.wait_ns - min(plain.delay_ns, plain.timeout_ns), 0)
        assert (row.lateness_ns is not None) == (row.outcome == "expired")
    assert report(played).first().n == 400, "a report takes played operations, too"
    left = spark.range(0, 2, 1, 2).mapInArrow(environment, "value string").collect()
    assert {row.value for row in left} == {str(sidecar_dir)}, "workers keep their environment for other tasks"


def test_a_player_may_have_nothing_to_play() -> None:
    part = part_of([], "run")
    assert len(part.op) == len(part.keys) == 0


def test_senseless_arguments_are_refused_at_the_call(spark: SparkSession) -> None:
    calls: list[tuple[Callable[[], object], str]] = [
        (lambda: workload(spark, "steady"), "profile='steady': give seed or slow"),
        (lambda: workload(spark, ops=0), "ops=0"),
        (lambda: workload(spark, partitions=0), "partitions=0"),
        (lambda: workload(spark, timeout="later"), "timeout='later' is no duration"),
        (lambda: workload(spark, rate=-1.0), "rate=-1"),
        (lambda: loadtest(spark, spark.range(3)), "needs the column 'op'"),
        (lambda: loadtest(spark, workload(spark, ops=10), players=0), "players=0"),
    ]
    for call, said in calls:
        with pytest.raises(InvalidValueError, match=said):
            call()
