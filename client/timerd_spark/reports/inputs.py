"""Checks of the reports' arguments (columns, types, names). They run on the driver, when a report is called."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from timerd_shm.declare.errors import InvalidValueError
from timerd_spark.source.schema import EVENTS, TERMINAL, Column

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

VIEW_OF = {"terminal": TERMINAL, "events": EVENTS}


def types_of(df: DataFrame) -> dict[str, str]:
    """The columns of a DataFrame, with their types as Spark writes them: {"wait_ns": "bigint"}."""
    return {field.name: field.dataType.simpleString() for field in df.schema.fields}


def need_view(df: DataFrame, view: str, names: Iterable[str], what: str) -> None:
    """Raise InvalidValueError if a column of `names` is missing, or has another type than in the view."""
    declared: Mapping[str, Column] = {column.name: column for column in VIEW_OF[view]}
    there = types_of(df)
    wanted = list(names)
    if missing := [name for name in wanted if name not in there]:
        other = 'option("view", "events")' if view == "events" else "the terminal view, which is the default"
        raise InvalidValueError(
            f"{what} needs the column{'s' * (len(missing) > 1)} {', '.join(map(repr, missing))} of the {view} view, "
            f'and there are {", ".join(there) or "none"}: read it with spark.read.format("timerd") and {other}, and '
            'with all of these if you give option("columns")'
        )
    for name in wanted:
        kind, found = declared[name].type, there[name]
        if found != kind and not (found == "timestamp_ntz" and kind == "timestamp"):
            raise InvalidValueError(f"{what}: column {name!r} is of type {found}, and should be {kind}")


def names_of(by: str | Sequence[str], df: DataFrame, what: str, taken: Iterable[str] = ()) -> list[str]:
    """The columns to group by, from one name or several.

    Raises InvalidValueError for a name that is no column, that Spark reads as a path ("a.b"), that occurs twice, or
    that is in `taken`.
    """
    names = [by] if isinstance(by, str) else list(by)
    for name in names:
        if name not in df.columns:
            raise InvalidValueError(f"{what}: by={name!r} is no column; there are {', '.join(df.columns)}")
        if "." in name or "`" in name:
            raise InvalidValueError(
                f"{what}: Spark reads by={name!r} as a path in a column: rename it, without . and `"
            )
    if len({name.lower() for name in names}) < len(names):
        raise InvalidValueError(f"{what}: by={names} names a column twice")
    if clash := sorted({name for name in names if name.lower() in set(taken)}):
        raise InvalidValueError(f"{what}: by={clash[0]!r} is also a column that {what} uses: rename yours")
    return names
