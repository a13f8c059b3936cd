"""The results of a run so far, as the page sees them.

The pipeline implements this interface. The page imports the interface and not the pipeline, so no import is circular.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from .options import Options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# The kinds of lives in a run: values of the column `what` of the results rollup, report, windows, what_if and curve.
PLAYED: Final = "played"  # played operations, from the daemon's journal
PLANNED: Final = "planned, not played"
RECORDED: Final = "recorded"  # operations of a given journal
# What the clients of a load test saw of each played operation: values of the column `what` of the result "seen".
SEEN: Final = "from the intended time"  # its wait, from the time at which the plan has its registration
PLAN: Final = "the plan"  # the wait that the plan has for it
ADDED: Final = "added to the plan"  # the difference of the two


class Results(Protocol):
    """A run whose steps are done: options, state and stored results."""

    options: Options
    # The content of state.json: the machine, each step with its seconds and the machine's load, the peak of the memory.
    state: dict[str, Any]

    @property
    def seconds(self) -> float:
        """The seconds of all finished steps, over all runs in the directory."""

    def stored(self, name: str) -> DataFrame:
        """The result of a step, as a DataFrame."""
