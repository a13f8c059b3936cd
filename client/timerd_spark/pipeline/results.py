"""The results of a run so far, as the page sees them.

The pipeline implements this interface. The page imports the interface and not the pipeline, so no import is circular.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from .options import Options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# The kinds of lives in a run: values of the column `what` of each result.
PLAYED: Final = "played, from the daemon's journal"
SEEN: Final = "played, from the intended time"
PLANNED: Final = "planned, not played"
RECORDED: Final = "recorded in the journal"


class Results(Protocol):
    """A run whose steps are done: options, state and stored results."""

    options: Options
    state: dict[str, Any]  # the content of state.json: each step with its seconds, and the peak of the memory in bytes

    @property
    def seconds(self) -> float:
        """The seconds of all finished steps, over all runs in the directory."""

    def stored(self, name: str) -> DataFrame:
        """The result of a step, as a DataFrame."""
