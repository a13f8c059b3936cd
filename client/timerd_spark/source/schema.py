"""The columns of a journal in Spark: of the views TERMINAL and EVENTS.

TERMINAL has a row for each settled operation. EVENTS has a row for each row of the journal except texts and padding,
and a row for each stretch of rows that was left out (left_out.py).

TERMINAL, and the first columns of EVENTS, are declared here. The other columns of EVENTS are made from the fields of
the journal's rows, which shm_layout/timerd_shm/declare/journal.py declares. Source, Parquet export, reports and load
test all use these columns. Times have two forms. `at`, `..._at` and `deadline` are for searches: timestamps of the wall
clock, in microseconds, UTC. `..._ns` are for computation, because the wall clock may be set between two times. In
TERMINAL they are differences of CLOCK_MONOTONIC in nanoseconds; in EVENTS they are the times of the journal's rows.

Spark is imported at the first call of spark_schema(), not with this module.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from timerd_shm.declare.fields import Field, fields
from timerd_shm.declare.journal import ROWS, RowKind, TextKind, is_shown

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType

STRING, INT, LONG, BOOLEAN, TIMESTAMP, BINARY = "string", "int", "bigint", "boolean", "timestamp", "binary"


LEFT_OUT = "left_out"  # the kind of a row of the events view that no file has: see left_out.py


class Column(NamedTuple):
    """A column. `type` is in Spark's words, and `unit` is "" for values without a unit."""

    name: str
    type: str
    unit: str
    meaning: str
    nullable: bool = True


TERMINAL: tuple[Column, ...] = (
    Column(
        "op_id", STRING, "", "arena's incarnation and op id in hexadecimal: unique across hosts and restarts", False
    ),
    Column("host", STRING, "", "host name of the daemon", False),
    Column("instance", STRING, "", "the daemon's instance", False),
    Column("purgatory", STRING, "", "the operation's purgatory; null if the name was in a damaged block"),
    Column(
        "owner", STRING, "", "name of the client that gets the outcome; null if there is none, or if `group` is set"
    ),
    Column("group", STRING, "", "name of the owning group, while no member holds the operation; else null"),
    Column("id", STRING, "", "128-bit hash of the id that the user gave, in hexadecimal; null = none"),
    Column(
        "key", STRING, "", "the key that settled the operation, else the first key; null if it was in a damaged block"
    ),
    Column("outcome", STRING, "", "completed, expired, cancelled or failed", False),
    Column("error", LONG, "", "for a failed operation: the code that fail() was given"),
    Column("settled_key", INT, "", "position, from 0, of the key that settled the operation; null = no key did"),
    Column("registered_at", TIMESTAMP, "us", "when register() was called", False),
    Column("deadline", TIMESTAMP, "us", "the operation's deadline; null = none"),
    Column("settled_at", TIMESTAMP, "us", "when the operation settled", False),
    Column("timeout_ns", LONG, "ns", "deadline - registered; null = no deadline"),
    Column("wait_ns", LONG, "ns", "settled - registered; 0 if it settled in a turn that began before the call", False),
    Column("lateness_ns", LONG, "ns", "for an expired operation: settled - deadline; never negative"),
    Column(
        "flags",
        INT,
        "",
        "RowFlag: 1 granted by a limited event, 2 redelivered, 4 its value was dropped, 8 settled at its registration",
        False,
    ),
)

# The first columns of the events view: the position of a row in the journal.
_POSITION: tuple[Column, ...] = (
    Column("host", STRING, "", "host name of the daemon", False),
    Column("instance", STRING, "", "the daemon's instance", False),
    Column(
        "incarnation", STRING, "", "of the arena, in hexadecimal: compare row numbers and op ids only within one", False
    ),
    Column("row", LONG, "", "number within the incarnation, in the order in which the daemon applied commands", False),
    Column("segment", LONG, "", "number of the segment in its directory", False),
    Column("record", LONG, "", "position in the segment, from 0", False),
    Column("kind", STRING, "", f"RowKind, in small letters; or {LEFT_OUT}: rows from this one on were left out", False),
    Column("bytes", BINARY, "", "the row as it stands in the file: 64 bytes (docs/reference/journal.md)", False),
    Column("at", TIMESTAMP, "us", "the row's time by the wall clock; null if the row has no time"),
    Column("op_id", STRING, "", "the row's operation, as in the terminal view; null if the row has none"),
)

HIDDEN_KINDS = (RowKind.PAD, RowKind.TEXT, RowKind.CONTINUED)


def shown_kinds() -> list[RowKind]:
    """The kinds of rows that the events view has."""
    return [kind for kind in ROWS if kind not in HIDDEN_KINDS]


def shown_fields(kind: RowKind) -> list[Field]:
    """The fields of this kind of row that are columns of the events view."""
    return [field for field in fields(ROWS[kind]) if is_shown(field) and field.name != "incarnation"]


# Columns that are numbers in the journal and strings here: a text, the name of an enumeration's member, hexadecimal.
_SHOWN = {field.name: field.shown for kind in shown_kinds() for field in shown_fields(kind)}
TEXTS = tuple(name for name, shown in _SHOWN.items() if isinstance(shown, TextKind))
ENUM_TYPES: dict[str, type[IntEnum]] = {
    name: shown for name, shown in _SHOWN.items() if isinstance(shown, type) and issubclass(shown, IntEnum)
}
HEXADECIMAL = ("incarnation_low", "incarnation_high")


@cache
def _events() -> tuple[Column, ...]:
    """The events view's columns: one for each name of a field, which is null in rows whose kind has no such field."""
    meanings: dict[str, list[str]] = {}
    types: dict[str, str] = {}
    for kind in shown_kinds():
        for field in shown_fields(kind):
            meanings.setdefault(field.name, []).append(f"{kind.name}: {field.about}")
            if field.name == "owner" and kind in (RowKind.OUTCOME, RowKind.REGISTERED):
                meanings.setdefault("group", []).append(f"{kind.name}: its group, where `owner` is null")
            types[field.name] = STRING if field.name in (*TEXTS, *ENUM_TYPES, *HEXADECIMAL) else LONG
    columns = [
        Column(name, types[name], "ns" if name.endswith("_ns") else "", "; ".join(dict.fromkeys(about)))
        for name, about in meanings.items()
    ]
    return (*_POSITION, *columns)


EVENTS: tuple[Column, ...] = _events()
VIEWS: dict[str, tuple[Column, ...]] = {"terminal": TERMINAL, "events": EVENTS}


def ddl(columns: Iterable[Column]) -> str:
    """The columns in Spark's DDL, such as "`op_id` string NOT NULL, `wait_ns` bigint"."""
    return ", ".join(f"`{column.name}` {column.type}{'' if column.nullable else ' NOT NULL'}" for column in columns)


def spark_schema(columns: Iterable[Column]) -> StructType:
    """The columns as Spark's type. The comments, which DESCRIBE TABLE shows, are the columns' meanings."""
    from pyspark.sql import types

    kinds = {
        STRING: types.StringType(),
        INT: types.IntegerType(),
        LONG: types.LongType(),
        BOOLEAN: types.BooleanType(),
        TIMESTAMP: types.TimestampType(),
        BINARY: types.BinaryType(),
    }
    return types.StructType(
        [
            types.StructField(name, kinds[kind], nullable, {"comment": f"{meaning} ({unit})" if unit else meaning})
            for name, kind, unit, meaning, nullable in columns
        ]
    )


def arrow_schema(columns: Sequence[Column]) -> pyarrow.Schema:
    """The columns as the Arrow schema that Spark expects from a Python data source."""
    import pyarrow

    kinds = {
        STRING: pyarrow.string(),
        INT: pyarrow.int32(),
        LONG: pyarrow.int64(),
        BOOLEAN: pyarrow.bool_(),
        TIMESTAMP: pyarrow.timestamp("us", tz="UTC"),
        BINARY: pyarrow.binary(),
    }
    return pyarrow.schema([pyarrow.field(name, kinds[kind], nullable) for name, kind, _, _, nullable in columns])
