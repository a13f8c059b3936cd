"""Filters that Spark pushes down, evaluated before rows are made: simple comparisons of one column."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from .schema import STRING, TIMESTAMP, VIEWS

if TYPE_CHECKING:
    from pyarrow import Array


class Comparison(NamedTuple):
    """A comparison: its name, its column, what it compares with, and whether it is negated."""

    name: str
    column: str
    value: Any
    negated: bool


NAMES = {
    "EqualTo": "equal",
    "GreaterThan": "greater",
    "GreaterThanOrEqual": "greater_equal",
    "LessThan": "less",
    "LessThanOrEqual": "less_equal",
    "In": "is_in",
    "IsNull": "is_null",
    "IsNotNull": "is_valid",
    "StringStartsWith": "starts_with",
    "StringEndsWith": "ends_with",
    "StringContains": "match_substring",
}
VALUELESS = ("is_null", "is_valid")


def taken(one: Any, view: str) -> Comparison | None:
    """The test that a filter of pyspark is, each kind with attributes of its own; None where Spark has to do it."""
    kind = type(one).__name__
    if kind == "Not":
        inner = taken(one.child, view)
        return None if inner is None else inner._replace(negated=not inner.negated)
    if kind not in NAMES or len(one.attribute) != 1:
        return None
    column = {column.name: column for column in VIEWS[view]}.get(one.attribute[0])
    if column is None or column.type == TIMESTAMP:  # what zone a timestamp's text is of, Spark knows
        return None
    value = getattr(one, "value", None)
    if NAMES[kind] not in VALUELESS:
        wanted = str if column.type == STRING else int
        values = value if isinstance(value, (tuple, list)) else (value,)
        if any(type(part) is not wanted for part in values):
            return None
    return Comparison(NAMES[kind], column.name, value, False)


def where_of(tests: Sequence[Comparison]) -> Callable[[Callable[[str], Array]], Array]:
    """All of these at once, on a batch's columns; null is not true."""

    def where(column: Callable[[str], Array]) -> Array:
        from functools import reduce

        from pyarrow import compute

        return reduce(compute.and_kleene, (result(test, column(test.column)) for test in tests))

    return where


def result(test: Comparison, values: Array) -> Array:
    """What a test says of each value: true, false or null."""
    from pyarrow import array, compute, scalar

    if test.name in VALUELESS:
        said = getattr(compute, test.name)(values)
    elif test.name == "is_in":
        said = compute.is_in(values, value_set=array(test.value, values.type))
        said = compute.if_else(compute.is_valid(values), said, scalar(None, said.type))
    elif test.name in ("starts_with", "ends_with", "match_substring"):
        said = getattr(compute, test.name)(values, test.value)
    else:
        said = getattr(compute, test.name)(values, scalar(test.value))
    return compute.invert(said) if test.negated else said
