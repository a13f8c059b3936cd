"""Figures of bench/results by name, and the pages in which they stand.

A page has a figure between two comments, which readers do not see:

    An outcome arrives after <!--=quiet/latency/timerd unix/p50_us-->145<!--/--> us.

The name is the place: suite, table, cells of the row, column. Exactly one row must have all these cells. `rate=100`
stands for the cell of one column. A column may have a unit after a colon: `p50_us:ms` are milliseconds. `max p50_ms`
is the largest value of several rows, `min p50_ms` the least, and `count` is the number of rows. A function of DERIVED
computes `derived/...`.

`python bench/lib/report.py` writes the figures into the pages. With --check it fails if a page has another one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.lib.common import ROOT, Row, rows_with, shown

Documents = Mapping[str, Mapping[str, Any]]  # by suite
MARKED = re.compile(r"<!--=([^>\n]+)-->(.*?)<!--/-->")
BROKEN = re.compile(r"<!--=|<!--/-->")  # what is left of a marker that is not whole
AT_START = re.compile(r"^[ >]*(?:[-*+] |\d+\. )?\s*<!--[=/]", re.MULTILINE)
IN_SENTENCE = re.compile(r"\{([^{}]+)\}")
PER = {("ns", "us"): 1e3, ("us", "ms"): 1e3, ("ms", "s"): 1e3, ("ns", "ms"): 1e6, ("bytes", "KB"): 1e3}
MANY = {"max": max, "min": min}
PLACES = ("docs", "timerd", "client", "shm_layout", "examples", "bench")


class NotMeasuredError(Exception):
    """The results lack a figure. The text is the suite that measures it."""


class WrongNameError(Exception):
    """A page names a figure in a way that no results can satisfy."""


def is_cell(row: Row, word: str) -> bool:
    """Whether a row has this cell: a value of any column, or `column=value`."""
    column, is_named, value = word.partition("=")
    if is_named and column in row:
        return value in texts_of(row[column])
    return any(word in texts_of(cell) for cell in row.values())


def texts_of(cell: Any) -> tuple[str, str]:
    """The ways in which a name may spell a cell, such as 100000 and 100,000."""
    return str(cell), shown(cell)


def rows_of(documents: Documents, name: str) -> tuple[list[Row], str]:
    """The rows that a name means, and its last part. Raises NotMeasuredError if there are none."""
    parts = name.split("/")
    if len(parts) < 3:
        raise WrongNameError(f"{name!r} is no name of a figure: SUITE/TABLE/CELLS/COLUMN")
    suite, table, *words, column = parts
    rows = documents.get(suite, {}).get("tables", {}).get(table, [])
    found = [row for row in rows if all(is_cell(row, word) for word in words)]
    if not found:
        raise NotMeasuredError(suite)
    return found, column


def value_of(documents: Documents, name: str) -> Any:
    """The value of a figure. Raises NotMeasuredError or WrongNameError."""
    if name.startswith("derived/"):
        find = DERIVED.get(name.removeprefix("derived/"))
        if find is None:
            raise WrongNameError(f"{name!r} is none of DERIVED in bench/lib/figures.py")
        return find(documents)
    rows, column = rows_of(documents, name)
    if column == "count":
        return len(rows)
    how, _, rest = column.rpartition(" ")
    column, _, unit = rest.partition(":")
    if how not in ("", *MANY):
        raise WrongNameError(f"{name!r}: {how!r} is none of max, min, count")
    values = [row[column] for row in rows if row.get(column) is not None]
    if not values:
        raise NotMeasuredError(name.partition("/")[0])
    if len(rows) > 1 and not how:
        raise WrongNameError(f"{name!r} means {len(rows)} rows: name more cells")
    value = MANY[how](values) if how else values[0]
    if unit:
        of = column.rpartition("_")[2]
        if (of, unit) not in PER:
            raise WrongNameError(f"{name!r}: {of!r} is not changed into {unit!r}")
        value = value / PER[of, unit]
    return value


def figure(documents: Documents, name: str) -> str:
    """The text of a figure: three digits."""
    return shown(value_of(documents, name))


def sentence(documents: Documents, text: str) -> str:
    """A text whose figures stand as {NAME}."""
    return IN_SENTENCE.sub(lambda name: figure(documents, name[1]), text)


# computed figures ----------------------------------------------------------------------------------------------------


def crossover(documents: Documents, *, first_of_zeromq: bool) -> int:
    """By single calls with one key: the last rate at which `unix` costs less CPU, or the first at which ZeroMQ does."""
    tables = documents.get("cost", {}).get("tables", {})
    rows = rows_with([*tables.get("runs", ()), *tables.get("predictions", ())], {"api": "per-op", "keys": 1})
    cpu: dict[tuple[int, str], float] = {(row["rate"], row["transport"]): row["cpu_us"] for row in rows}
    rates = sorted({rate for rate, _ in cpu if (rate, "zeromq") in cpu and (rate, "unix") in cpu})
    for before, rate in zip([0, *rates], rates, strict=False):
        if cpu[rate, "zeromq"] < cpu[rate, "unix"]:
            return rate if first_of_zeromq else before
    raise NotMeasuredError("cost")


def over_bare(documents: Documents) -> float:
    """The core's time for an insert divided by a bare loop's, on pages of 2 MiB, beside a million pending timers."""
    name = "rivals/recent_on_huge_pages/pending=1000000/contestant={}/insert_ns"
    core, bare = (float(value_of(documents, name.format(contestant))) for contestant in ("timerd", "bare"))
    return core / bare


def versions_of(document: Mapping[str, Any]) -> str:
    """The versions of the programs that a run compared with timerd, or had beside it; empty if it did not note them."""
    return ", ".join(f"{name} {version}" for name, version in document["machine"].get("versions", {}).items())


def redis_of(documents: Documents, suite: str) -> str:
    """The Redis that a suite was measured with."""
    if suite not in documents:
        raise NotMeasuredError(suite)
    return versions_of(documents[suite]) or "a Redis whose version the run did not note"


DERIVED: dict[str, Callable[[Documents], Any]] = {
    "last rate of unix": lambda documents: crossover(documents, first_of_zeromq=False),
    "first rate of zeromq": lambda documents: crossover(documents, first_of_zeromq=True),
    "insert over bare": over_bare,
    "versions of longpolls": lambda documents: redis_of(documents, "longpolls"),
}


# pages ---------------------------------------------------------------------------------------------------------------


def pages() -> Iterator[Path]:
    """The pages that may have figures: all pages of the tree, except those that are made as a whole."""
    yield from sorted(ROOT.glob("*.md"))
    for place in PLACES:
        for path in sorted((ROOT / place).rglob("*.md")):
            if "tables" not in path.parts and path.name != "RESULTS.md":
                yield path


def filled(text: str, documents: Documents, page: str) -> str:
    """A page with the figures of these documents. Raises WrongNameError if a marker is not right.

    A figure that was not measured stays as it is.
    """

    def fill(found: re.Match[str]) -> str:
        try:
            return f"<!--={found[1]}-->{figure(documents, found[1])}<!--/-->"
        except NotMeasuredError:
            return found[0]
        except WrongNameError as error:
            raise WrongNameError(f"{page}: {error}") from None

    if AT_START.search(text):
        raise WrongNameError(
            f"{page}: a line begins with a figure, and Markdown would take it for a block: wrap it anew"
        )
    if BROKEN.search(MARKED.sub("", text)):
        raise WrongNameError(f"{page}: a figure lacks its begin or its end: <!--=NAME-->...<!--/-->, in one line")
    return MARKED.sub(fill, text)
