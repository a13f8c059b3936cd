"""The columns of registrations and events, checked, and in the form that buckets take (processor.INPUT)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from timerd_shm.declare.errors import InvalidValueError

from .packs import COLUMNS
from .packs import EVENTS as EVENTS_PACK
from .packs import REGISTRATIONS as REGISTRATIONS_PACK
from .rows import CONDITIONS, EVENT_KINDS, NEVER, SEPARATOR

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

UNKNOWN: Final = 99  # the code of an unknown word: such a row is refused
_SEPARATOR: Final = f"chr({ord(SEPARATOR)})"
TIME: Final = ("timestamp", "timestamp_ntz", "bigint")
# The columns that a frame may have, with their types. The first ones are needed.
REGISTRATIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "at": TIME,
    "keys": ("array<string>", "string"),
    "id": ("string",),
    "deadline": TIME,
    "timeout": ("double", "float", "int", "bigint", "interval day to second"),
    "when": ("string",),
    "needed": ("int", "bigint"),
    "total": ("int", "bigint"),
    "targets": ("array<bigint>", "array<int>"),
    "payload": ("binary", "string"),
    "mark": TIME,
    "mark_seq": ("int", "bigint"),
    "seq": ("int", "bigint"),
    "sender": ("string",),
    "command": ("int", "bigint"),
}
EVENTS: Final[Mapping[str, tuple[str, ...]]] = {
    "at": TIME,
    "key": ("string",),
    "kind": ("string",),
    "amount": ("int", "bigint"),
    "limit": ("int", "bigint"),
    "value": ("binary", "string"),
    "id": ("string",),
    "seq": ("int", "bigint"),
    "sender": ("string",),
    "command": ("int", "bigint"),
}
NEEDED: Final = {"registrations": ("at", "keys"), "events": ("at", "key")}


def checked(df: DataFrame, what: str, by: str | None) -> set[str]:
    """The columns of a frame. Raises InvalidValueError for a missing one, an unknown one, or one of another type."""
    known = REGISTRATIONS if what == "registrations" else EVENTS
    there = {field.name: field.dataType.simpleString() for field in df.schema.fields}
    wanted = [*NEEDED[what], *([by] if by is not None else [])]
    if missing := [name for name in wanted if name not in there]:
        raise InvalidValueError(f"purgatory(): {what} lack the column {missing[0]!r}: they have {', '.join(there)}")
    if unknown := sorted(name for name in there if name not in known and name != by):
        raise InvalidValueError(
            f"purgatory(): {what} have a column {unknown[0]!r}, and it would be lost: put it into "
            f"{'payload' if known is REGISTRATIONS else 'value'}, or leave it out. Known are {', '.join(known)}"
        )
    for name, kind in there.items():
        if name in known and kind not in known[name]:
            raise InvalidValueError(
                f"purgatory(): column {name!r} of {what} is of type {kind}, and should be {' or '.join(known[name])}"
            )
    return set(there)


def types_of(df: DataFrame) -> dict[str, str]:
    """The columns of a frame with their types."""
    return {field.name: field.dataType.simpleString() for field in df.schema.fields}


def ns_of(name: str, kind: str) -> str:
    """A time as an expression in ns."""
    if kind == "bigint":
        return f"`{name}`"
    return f"unix_micros(cast(`{name}` AS timestamp)) * 1000"


def duration_ns_of(name: str, kind: str) -> str:
    """A duration as an expression in ns; a number is in seconds."""
    if kind == "interval day to second":
        return (
            f"cast(extract(SECOND FROM `{name}`) * 1e9 AS bigint) + extract(MINUTE FROM `{name}`) * 60000000000 + "
            f"extract(HOUR FROM `{name}`) * 3600000000000 + extract(DAY FROM `{name}`) * 86400000000000"
        )
    return f"cast(`{name}` * 1e9D AS bigint)"


def registrations_of(df: DataFrame, by: str | None, max_wait_ns: int | None, buckets: int) -> DataFrame:
    """Registrations in the form of packs, with their buckets: of `by`, or of their first key."""
    there, types = checked(df, "registrations", by), types_of(df)
    if max_wait_ns is None and not {"deadline", "timeout"} & there:
        raise InvalidValueError(
            "purgatory(): registrations have no column 'deadline' or 'timeout', and there is no max_wait: an operation "
            'that never settles stays in the state for ever. Give one of them, such as max_wait="1h"'
        )
    at = ns_of("at", types["at"])
    ends = []
    if "deadline" in there:
        ends.append(ns_of("deadline", types["deadline"]))
    if "timeout" in there:
        ends.append(f"{at} + {duration_ns_of('timeout', types['timeout'])}")
    ends.append(f"{at} + {max_wait_ns}L" if max_wait_ns is not None else f"{NEVER}L")
    keys = "keys" if types["keys"] != "string" else "array(keys)"
    if by is not None:
        keys = f"transform({keys}, each -> {_in_group(by, 'each')})"
    when = "lower(`when`)" if "when" in there else "'any'"
    codes = " ".join(f"WHEN '{name}' THEN {int(code)}" for name, code in CONDITIONS.items())
    needed = f"CAST({_or('needed', there, '0')} AS int)"
    of = {
        "bucket": bucket_of(group_of(by) if by is not None else f"{keys}[0]", buckets),
        "at_ns": at,
        "seq": _or("seq", there, "0L"),
        "id": _id(by, there),
        "keys": keys,
        "targets": _or("targets", there, "NULL"),
        "deadline_ns": f"coalesce({', '.join(ends)})",
        "condition": f"CASE {when} {codes} ELSE {UNKNOWN} END",
        "needed": (
            f"CASE {when} WHEN 'any' THEN 1 WHEN 'all' THEN size({keys}) WHEN 'at_least' THEN {needed} ELSE 0 END"
        ),
        "total": f"CASE {when} WHEN 'total' THEN {_or('total', there, '0L')} ELSE 0L END",
        "body": _or("payload", there, "NULL"),
        "mark_ns": ns_of("mark", types["mark"]) if "mark" in there else "NULL",
        "mark_seq": _or("mark_seq", there, "0L"),
        "sender": _or("sender", there, "NULL"),
        "command": _or("command", there, "NULL"),
    }
    return _as_columns(df, of, REGISTRATIONS_PACK)


def events_of(df: DataFrame, by: str | None, buckets: int) -> DataFrame:
    """Events in the form of packs, with their buckets: of `by`, or of their key."""
    there, types = checked(df, "events", by), types_of(df)
    kind = "lower(kind)" if "kind" in there else "'fire'"
    codes = " ".join(f"WHEN '{name}' THEN {int(code)}" for name, code in EVENT_KINDS.items())
    of = {
        "bucket": bucket_of(group_of(by) if by is not None else "key", buckets),
        "at_ns": ns_of("at", types["at"]),
        "seq": _or("seq", there, "0L"),
        "kind": f"CASE {kind} {codes} ELSE {UNKNOWN} END",
        "key": _in_group(by, "key") if by is not None else "key",
        "amount": f"coalesce({_or('amount', there, '1L')}, 1L)",
        "limit": _or("limit", there, "NULL"),
        "body": _or("value", there, "NULL"),
        "id": _id(by, there),
        "sender": _or("sender", there, "NULL"),
        "command": f"coalesce({_or('command', there, '0L')}, 0L)",
    }
    return _as_columns(df, of, EVENTS_PACK)


def group_of(by: str) -> str:
    """The name of a row's group."""
    return f"replace(coalesce(CAST(`{by}` AS string), ''), {_SEPARATOR}, '')"


def _in_group(by: str, name: str) -> str:
    """A key or an id with the name of its group before it, because groups may share names, and a bucket."""
    return f"{group_of(by)} || {_SEPARATOR} || {name}"


def _id(by: str | None, there: set[str]) -> str:
    if "id" not in there:
        return "NULL"
    return "id" if by is None else _in_group(by, "id")


def bucket_of(what: str, buckets: int) -> str:
    """The bucket of a value: CRC-32 of its text, so that Python finds the same one."""
    return f"CAST(pmod(crc32(CAST(coalesce(CAST({what} AS string), '') AS binary)), {buckets}L) AS int)"


def _as_columns(df: DataFrame, of: dict[str, str], kind: int) -> DataFrame:
    types = dict(part.replace("`", "").split() for part in COLUMNS[kind].split(", "))
    return df.selectExpr(
        f"{of.pop('bucket')} AS bucket", *[f"CAST({value} AS {types[name]}) AS `{name}`" for name, value in of.items()]
    )


def _or(name: str, there: set[str], missing: str) -> str:
    return f"`{name}`" if name in there else missing
