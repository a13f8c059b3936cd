"""Queries over random rows in files, and what the rules make of the same rows."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark.purgatory.buckets import END_NS, MS, State, program
from spark.purgatory.feeds import Grouped, Said, said, streams, wanted
from timerd_shm.declare.states import EventKind
from timerd_spark.purgatory.bucket import Settings
from timerd_spark.purgatory.purgatory import purgatory
from timerd_spark.purgatory.queries import start
from timerd_spark.purgatory.rows import Event, Registration

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DELAY_NS = 20 * MS
SETTINGS = Settings(ordered=True, marks_ns=10_000 * MS, ids_ns=50 * MS)
OPTIONS: dict[str, Any] = {"delay": 0.02, "marks": 10, "settled_ids": 0.05, "buckets": 4, "idle_after": None}
T0_NS = 1_790_000_000_000 * MS


def later(row: Registration | Event) -> Registration | Event:
    """The row at a time that Spark takes for one of our days."""
    row = row._replace(at_ns=row.at_ns + T0_NS)
    if isinstance(row, Event):
        return row
    mark = None if row.mark is None else (row.mark[0] + T0_NS, row.mark[1])
    return row._replace(deadline_ns=row.deadline_ns + T0_NS, mark=mark)


def rows_of(rng: random.Random, groups: str, length: int, *, limits: bool) -> tuple[list[Grouped], list[Said]]:
    """Programs of groups that share keys and ids, and what the rules make of each."""
    rows: list[Grouped] = []
    outcomes: list[Said] = []
    for group in groups:
        own = [later(row) for row in program(rng, length)]
        if not limits:
            own = [row._replace(limit=None) if isinstance(row, Event) else row for row in own]
        rows += [(group, row) for row in own]
        outcomes += [wanted(group, each) for each in State(SETTINGS).run(own, T0_NS + END_NS)]
    return rows, sorted(outcomes, key=repr)


def in_files(rng: random.Random, rows: list[Grouped], count: int) -> Iterator[list[Grouped]]:
    """The rows as they arrive, at most DELAY_NS out of order, and at last an event after all deadlines."""
    arrivals = sorted(rows, key=lambda one: one[1].at_ns + rng.randrange(DELAY_NS))
    cuts = [0, *sorted(rng.sample(range(len(arrivals)), count - 2)), len(arrivals)]
    for begin, end in pairwise(cuts):
        yield arrivals[begin:end]
    last_ns = max(row.deadline_ns for _, row in rows if isinstance(row, Registration))
    yield [("", Event(max(last_ns, arrivals[-1][1].at_ns) + 1_000 * MS, 0, EventKind.FIRE, "the end"))]


def compare(found: list[Said], outcomes: list[Said], seed: int) -> None:
    one, other = Counter(found), Counter(outcomes)
    only = list((one - other).elements()), list((other - one).elements())
    text = f"seed={seed}: {len(only[0])} only on Spark, {len(only[1])} only by the rules: {only[0][:3]}, {only[1][:3]}"
    assert found == outcomes, text


def without_group(outcomes: list[Said]) -> list[Said]:
    return sorted((one[1:] for one in outcomes), key=repr)


class Query:
    """A query over files in a directory."""

    def __init__(self, spark: SparkSession, directory: Path, **options: Any) -> None:
        self.spark, self.directory, self.options = spark, directory, {**OPTIONS, **options}

    def run(self) -> None:
        query = start(
            self.outcomes(), str(self.directory / "checkpoint"), path=str(self.directory / "out"), available_now=True
        )
        query.awaitTermination()

    def outcomes(self) -> DataFrame:
        registrations, events = streams(self.spark, self.directory)
        if "by" in self.options:
            return purgatory(registrations, events, **self.options)
        return purgatory(registrations.drop("group"), events.drop("group", "limit"), **self.options)

    def said(self) -> list[Said]:
        return said(self.spark.read.parquet(str(self.directory / "out")))
