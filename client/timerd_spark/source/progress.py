"""The distance of a query from the ends of the journals that it reads, from Spark's report of the query."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from timerd_shm.declare.errors import InvalidValueError
from timerd_shm.declare.journal import BLOCK_ROWS, BLOCK_SIZE

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


class Behind(NamedTuple):
    """The distance of a query from the end of one journal, at the end of the query's newest batch."""

    journal: str  # its name in the offsets
    # Rows of the journal, rows of texts included. None: not known, because the arena is another one, or the journal is
    # away.
    rows: int | None
    bytes: int | None  # of these rows in the journal's files
    age: timedelta | None  # from the newest row that was read to the newest row of the journal
    read_until: datetime | None  # the time of the newest row that was read


def progress(query: StreamingQuery) -> list[Behind]:
    """How far a query is behind each of its journals: rows, bytes and time; [] before its first batch.

    The query may run anywhere, also behind Spark Connect: the function reads only Spark's report `query.lastProgress`.
    Spark makes a new report at the end of each batch, and every ten seconds while there is nothing new. Raises
    InvalidValueError for a query that reads no journal.
    """
    if not hasattr(query, "lastProgress"):
        raise InvalidValueError(
            f"progress({query!r}): give the query itself, as start() or spark.streams.get(id) has it"
        )
    last = query.lastProgress
    if last is None:
        return []
    found = [behind for source in last["sources"] for behind in behind_of(source)]
    if not found and not any(is_journal(source) for source in last["sources"]):
        names = ", ".join(source["description"] for source in last["sources"])
        raise InvalidValueError(f"progress(): the query reads no journal: its sources are {names}")
    return found


def is_journal(source: Mapping[str, Any]) -> bool:
    """Whether Spark's report of a source is of a journal. The report names no format, so the offsets decide."""
    places = places_in(source, "endOffset")
    return isinstance(places, dict) and all(
        isinstance(place, dict) and {"segment", "row"} <= place.keys() for place in places.values()
    )


def behind_of(source: Mapping[str, Any]) -> Iterator[Behind]:
    """How far one source is behind."""
    if not is_journal(source):
        return
    read, there = (places_in(source, name) for name in ("endOffset", "latestOffset"))
    for journal, newest in sorted({**read, **(there or {})}.items()):
        yield behind(journal, read.get(journal, {}), newest if there is None or journal in there else {})


def behind(journal: str, read: Mapping[str, Any], newest: Mapping[str, Any]) -> Behind:
    """How far a position is behind another one of the same journal."""
    rows = age = None
    if "number" in newest and read.get("incarnation", newest["incarnation"]) == newest["incarnation"]:
        rows = max(newest["number"] - read.get("number", 0), 0)
    if "at_us" in read and "at_us" in newest:
        age = timedelta(microseconds=max(newest["at_us"] - read["at_us"], 0))
    until = datetime.fromtimestamp(read["at_us"] / 1e6, UTC) if "at_us" in read else None
    return Behind(journal, rows, None if rows is None else -(-rows * BLOCK_SIZE // BLOCK_ROWS), age, until)


def places_in(source: Mapping[str, Any], name: str) -> Any:
    """An offset in Spark's report, which has it as JSON text or as an object."""
    found = source.get(name)
    return json.loads(found) if isinstance(found, str) else found
