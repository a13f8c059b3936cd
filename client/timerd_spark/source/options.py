"""The options of reading a journal, checked when load() is called."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, Self

from timerd_shm.declare.errors import InvalidConfigError
from timerd_shm.declare.journal import BLOCK_ROWS, BLOCK_SIZE
from timerd_spark.options import known_options, local_path, one_of

from .positions import EARLIEST, LATEST, Start
from .schema import VIEWS, Column

MS_MIN = 10_000_000_000  # April 1970: a smaller number must be in seconds
CONSUMER = re.compile(r"[A-Za-z0-9_-]{1,64}")
READ_OPTIONS = (
    "path", "paths", "view", "columns", "startingOffsets", "startingTimestamp", "endingOffsets", "failOnDataLoss",
    "maxOffsetsPerTrigger", "maxBytesPerTrigger", "consumer",
)  # fmt: skip
# Names of options in other sources, and this source's names for them.
OTHER_NAMES = {
    "ignoremissingfiles": "failOnDataLoss=false", "maxfilespertrigger": "maxBytesPerTrigger",
    "startingversion": "startingOffsets", "startingoffsetsbytimestamp": "startingTimestamp",
    "endingoffsetsbytimestamp": "endingOffsets, or a condition on settled_at", "endingtimestamp": "endingOffsets, or a "
    "condition on settled_at", "kafka.bootstrap.servers": "a path", "subscribe": "a path",
}  # fmt: skip
SIZE = re.compile(r"(\d{1,18})\s*(b|k|kb|kib|m|mb|mib|g|gb|gib|t|tb|tib)?", re.IGNORECASE | re.ASCII)
POWERS = {"b": 0, "k": 10, "m": 20, "g": 30, "t": 40}
EXAMPLE = """'{"web1": {"segment": 17, "row": 40960}}'"""


class ReadOptions(NamedTuple):
    """The options of reading a journal."""

    paths: tuple[str, ...]
    view: str
    columns: tuple[Column, ...]
    start: Start | Mapping[str, Start]  # for all journals, or for each journal
    start_us: int | None  # rows are read from this time on, in microseconds since 1970
    end: Mapping[str, Start] | None  # for each journal; None: up to the present end
    skip: bool  # whether damaged parts are left out; else they are an error
    consumer: str | None  # the name under which files are held
    rows_per_trigger: int | None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Self:
        """The options that a user has given, checked. Raises InvalidConfigError."""
        for name in options:
            if other := OTHER_NAMES.get(name.lower()):
                raise InvalidConfigError(f"format timerd has no option {name!r}: give {other}")
        given = known_options(options, READ_OPTIONS)
        view = one_of(given, "view", tuple(VIEWS))
        if "startingOffsets" in given and "startingTimestamp" in given:
            raise InvalidConfigError("startingOffsets and startingTimestamp were given: give one of them")
        rows, size = positive(given, "maxOffsetsPerTrigger"), size_of(given, "maxBytesPerTrigger")
        limits = [limit for limit in (rows, size and max(size * BLOCK_ROWS // BLOCK_SIZE, 1)) if limit is not None]
        end = offsets_of(given, "endingOffsets", LATEST)
        if end == EARLIEST:
            raise InvalidConfigError("option endingOffsets='earliest': give latest, or offsets")
        return cls(
            paths_of(given),
            view,
            columns_named(given.get("columns"), view),
            offsets_of(given, "startingOffsets", EARLIEST),
            time_of(given, "startingTimestamp"),
            None if isinstance(end, str) else end,
            one_of(given, "failOnDataLoss", ("true", "false")) == "false",
            consumer_of(given.get("consumer")),
            min(limits, default=None),
        )


def positive(given: Mapping[str, str], name: str) -> int | None:
    """An option that is a whole number of at least 1; None if it is not given. Raises InvalidConfigError."""
    text = given.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal()) or not int(text[:19]) >= 1 or len(text) > 18:
        raise InvalidConfigError(f"option {name}={text!r}: give a whole number from 1 on")
    return int(text)


def size_of(given: Mapping[str, str], name: str) -> int | None:
    """An option that is a number of bytes; None if it is not given. Raises InvalidConfigError."""
    text = given.get(name)
    if text is None:
        return None
    found = SIZE.fullmatch(text.strip())
    if found is None or not int(found[1]):
        raise InvalidConfigError(f"option {name}={text!r}: give a number of bytes, such as 64m or 1g")
    return int(found[1]) << POWERS[(found[2] or "b")[0].lower()]


def time_of(given: Mapping[str, str], name: str) -> int | None:
    """An option that is a time, in microseconds since 1970; None if it is not given. Raises InvalidConfigError."""
    text = given.get(name)
    if text is None:
        return None
    if text.isascii() and text.isdecimal() and len(text) <= 15:
        if 0 < int(text) < MS_MIN:
            raise InvalidConfigError(f"option {name}={text!r}: give milliseconds since 1970, not seconds")
        return int(text) * 1_000
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        time = datetime.min
    if time.tzinfo is None:
        raise InvalidConfigError(
            f"option {name}={text!r}: give a time with its zone, such as 2026-11-28T09:30:00Z, or milliseconds since "
            "1970"
        )
    return (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def offsets_of(given: Mapping[str, str], name: str, default: str) -> Start | Mapping[str, Start]:
    """An option that is earliest, latest, or offsets in JSON. Raises InvalidConfigError."""
    text = given.get(name, default)
    if text.lower() in (EARLIEST, LATEST):
        return text.lower()
    wrong = f"option {name}={text!r}: give earliest, latest, or a position for each journal, such as {EXAMPLE}"
    try:
        found = json.loads(text)
    except ValueError:
        raise InvalidConfigError(wrong) from None
    if not isinstance(found, dict) or not all(is_start(place) for place in found.values()):
        raise InvalidConfigError(wrong)
    return found


def is_start(place: object) -> bool:
    """Whether `place` is a position of a journal, or a word for one."""
    if not isinstance(place, dict):
        return place in (EARLIEST, LATEST)
    numbers = [place.get(name) for name in ("segment", "row")]
    return all(isinstance(number, int) and not isinstance(number, bool) and number >= 0 for number in numbers)


def paths_of(given: Mapping[str, str]) -> tuple[str, ...]:
    """The paths of load(). Raises InvalidConfigError if there is no path, or for a path in another file system."""
    try:
        paths = json.loads(given["paths"]) if "paths" in given else []
    except ValueError:
        paths = None
    if not isinstance(paths, list):
        raise InvalidConfigError(
            f'option paths={given["paths"]!r}: give a list in JSON, such as \'["/mnt/a", "/mnt/b"]\''
        )
    if "path" in given:
        paths.append(given["path"])
    if not paths:
        raise InvalidConfigError("load() was given no path: give a journal, a directory with journals, or a pattern")
    found = []
    for given_path in map(str, paths):
        path = local_path(given_path)
        if path is None:
            raise InvalidConfigError(
                f"path={given_path!r}: a journal is read from a mounted file system: give a path there"
            )
        found.append(path)
    return tuple(dict.fromkeys(found))


def columns_named(text: str | None, view: str) -> tuple[Column, ...]:
    """The columns that the option names, in the option's order; without the option, all of the view."""
    if text is None:
        return VIEWS[view]
    declared = {column.name: column for column in VIEWS[view]}
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in declared:
            raise InvalidConfigError(f"option columns: the {view} view has no {name!r}: it has {', '.join(declared)}")
    if len(set(names)) < len(names):
        raise InvalidConfigError(f"option columns={text!r} names a column twice")
    return tuple(declared[name] for name in names)


def consumer_of(text: str | None) -> str | None:
    if text is not None and CONSUMER.fullmatch(text) is None:
        raise InvalidConfigError(f"option consumer={text!r}: give 1 to 64 letters, digits, - or _")
    return text
