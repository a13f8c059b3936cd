"""What a run has found so far, as the page sees it.

The pipeline has this interface. The page knows the interface and not the pipeline, so no import goes in a circle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from .options import Options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# What the lives of a run are: the column `what` of each result.
PLAYED: Final = "played, from the daemon's journal"
SEEN: Final = "played, from the intended time"
PLANNED: Final = "planned, not played"
RECORDED: Final = "recorded in the journal"


class Results(Protocol):
    """The steps of a run that are done."""

    options: Options
    state: dict[str, Any]  # the content of state.json: each step with its seconds, and the most memory in bytes

    @property
    def seconds(self) -> float:
        """Of all steps, over all runs that it took."""

    def stored(self, name: str) -> DataFrame:
        """The result of a step."""
