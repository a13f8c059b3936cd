"""The numbers of a run that several parts of its page show.

Each is read once, so all parts show the same. Where the rows of operations are kept, percentiles are those of the rows.
"""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from timerd_client.workload import Workload

from .plans import shape_of
from .plots import Gaps
from .results import PLANNED, Results
from .verdicts import Row

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Numbers:
    """The numbers of a run whose steps are done."""

    def __init__(self, run: Results) -> None:
        self.run = run
        # Times as numbers: datetimes of Python would be in the time zone of this process.
        at = ("unix_micros(start) / 1e6D AS start_at", "unix_micros(`end`) / 1e6D AS end_at")
        rows = [row.asDict() for row in run.stored("report").selectExpr("*", *at).collect()]
        self.planned: Row | None = next((row for row in rows if row["what"] == PLANNED), None)
        real = next((row for row in rows if row["what"] != PLANNED), None)
        *self.purgatories, self.every = self._rows("purgatories") or [{}]
        # The report has percentiles from histograms. The rows are there, so theirs take the place.
        self.real: Row | None = real and real | {name: at for name, at in self.every.items() if name.endswith("_ms")}
        *self.rounds, self.seen = (self._rows("rounds") if run.options.journal is None else []) or [{}]

    def _rows(self, name: str) -> list[dict[str, Any]]:
        return [row.asDict() for row in self.run.stored(name).collect()]

    @cached_property
    def asked(self) -> list[Row]:
        """The rows of what_if() for the timeouts that the page compares."""
        return [*self._rows("what_if")]

    @property
    def window(self) -> str:
        return str(self.run.state["steps"]["rollup"].get("window", self.run.options.window))

    @property
    def plan(self) -> Workload | None:
        """The workload of a load test."""
        o = self.run.options
        return None if o.journal else shape_of(o.profile, ops=o.ops, rate=o.rate, seed=o.seed, timeout=None)

    @property
    def gaps(self) -> Gaps:
        """The times between the rounds of a load test."""
        return [
            (one["end_us"], other["start_us"], f"between rounds {at} and {at + 1}")
            for at, (one, other) in enumerate(pairwise(self.rounds), 1)
        ]

    def lives(self, name: str, what: str = "") -> DataFrame:
        """A result without planned operations, or only with those that are `what`."""
        found = self.run.stored(name)
        return found.where(found["what"] == what if what else found["what"] != PLANNED)
