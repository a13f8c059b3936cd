"""The options of format("timerd"), checked when load() or save() is called."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import NamedTuple, Self

from timerd_shm.declare.errors import InvalidConfigError, InvalidValueError
from timerd_shm.declare.limits import NAME_PATTERN, TIMEOUT_NS_MAX
from timerd_spark.source.schema import VIEWS, Column
from timerd_spark.tasks.task import Sidecar

from .durations import duration_ns

CONSUMER = re.compile(r"[A-Za-z0-9_-]{1,64}")
WRITE_OPTIONS = (
    "action",
    "opId",
    "key",
    "timeout",
    "timeoutColumn",
    "payload",
    "value",
    "purgatory",
    "orphans",
    "group",
    "instance",
    "runtimeDir",
    "autostart",
)
OF_SPARK = ("path", "checkpointLocation", "queryName", "outputMode")  # which it hands to every writer
AUTO = "auto"
REGISTER, FIRE = "register", "fire"
READ_OPTIONS = ("path", "paths", "view", "columns", "onDamage", "consumer", "maxRowsPerTrigger")


class ReadOptions(NamedTuple):
    """Options of reading a journal."""

    path: str
    view: str
    columns: tuple[Column, ...]
    skip: bool  # damaged parts, instead of failing
    consumer: str | None  # in whose name files are held
    rows_per_trigger: int | None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Self:
        """From what the user gave. Raises InvalidConfigError."""
        given = known(options, READ_OPTIONS)
        view = one_of(given, "view", tuple(VIEWS))
        return cls(
            path_of(given),
            view,
            columns_named(given.get("columns"), view),
            one_of(given, "onDamage", ("fail", "skip")) == "skip",
            consumer_of(given.get("consumer")),
            positive(given, "maxRowsPerTrigger"),
        )


def known(options: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    """The options by their proper names; Spark takes them in any case. Raises InvalidConfigError for another one."""
    proper = {name.lower(): name for name in names}
    found = {}
    for name, value in options.items():
        if name.lower() not in proper:
            raise InvalidConfigError(f"format timerd has no option {name!r}: it has {', '.join(names)}")
        found[proper[name.lower()]] = value
    return found


def one_of(given: Mapping[str, str], name: str, values: tuple[str, ...]) -> str:
    """An option that is one of these words; the first is its default."""
    value = given.get(name, values[0]).lower()
    if value not in values:
        raise InvalidConfigError(f"option {name}={given[name]!r}: give {' or '.join(values)}")
    return value


def positive(given: Mapping[str, str], name: str) -> int | None:
    """An option that is a number of at least 1."""
    text = given.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal()) or not int(text[:19]) >= 1 or len(text) > 18:
        raise InvalidConfigError(f"option {name}={text!r}: give a whole number from 1 on")
    return int(text)


def path_of(given: Mapping[str, str]) -> str:
    """The one path of load()."""
    paths = json.loads(given["paths"]) if "paths" in given else []
    if "path" in given:
        paths.append(given["path"])
    if len(paths) != 1:
        raise InvalidConfigError(
            f"load() was given {len(paths)} paths: give a journal, a directory with one for each host, or a pattern"
        )
    path = str(paths[0]).removeprefix("file://")
    if "://" in path:
        raise InvalidConfigError(f"a journal is read as files of a mounted file system, and {path!r} is none")
    return path


def columns_named(text: str | None, view: str) -> tuple[Column, ...]:
    """The columns of a view that an option names, in its order; without one, all of them."""
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


class WriteOptions(NamedTuple):
    """Options of registering operations, or firing events, for rows."""

    action: str
    op_id: str  # column, or AUTO
    key: str  # column
    timeout: float | None  # seconds; None where a column has it
    timeout_column: str | None
    body: str | None  # column of the payload, or of the event's value
    purgatory: str
    group: str | None  # whose operations they become when the task has ended
    sidecar: Sidecar

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Self:
        """From what the user gave. Raises InvalidConfigError."""
        given = known(options, (*WRITE_OPTIONS, *OF_SPARK))
        action = one_of(given, "action", (REGISTER, FIRE))
        if "opId" not in given:
            raise InvalidConfigError(
                'option opId is missing: name the column whose value makes a row idempotent, or "auto" where the '
                "plan is deterministic (SPARK.md)"
            )
        if "key" not in given:
            raise InvalidConfigError("option key is missing: name the column with the watch key")
        for name in {REGISTER: ("value",), FIRE: ("timeout", "timeoutColumn", "payload", "orphans", "group")}[action]:
            if name in given:
                raise InvalidConfigError(f"option {name} is not for action={action}")
        if action == REGISTER and ("timeout" in given) == ("timeoutColumn" in given):
            raise InvalidConfigError('give one of the options timeout ("30s") and timeoutColumn (a column of seconds)')
        orphans = one_of(given, "orphans", ("keep", "group"))
        if (orphans == "group") != ("group" in given):
            raise InvalidConfigError("orphans=group and group=NAME go together")
        return cls(
            action,
            given["opId"],
            given["key"],
            seconds(given["timeout"]) if "timeout" in given else None,
            given.get("timeoutColumn"),
            given.get("payload", given.get("value")),
            checked("purgatory", given.get("purgatory", "default")),
            checked("group", given["group"]) if "group" in given else None,
            Sidecar.of(
                checked("instance", given["instance"]) if "instance" in given else None,
                given.get("runtimeDir"),
                one_of(given, "autostart", ("false", "true")) == "true",
            ),
        )


def seconds(text: str) -> float:
    """An option that is a duration: "30s", "1 minute"."""
    try:
        ns = duration_ns("timeout", text)
    except InvalidValueError as error:
        raise InvalidConfigError(f"option {error}") from None
    if ns > TIMEOUT_NS_MAX:
        raise InvalidConfigError(f"option timeout={text!r} is longer than ten years")
    return ns / 1e9


def checked(what: str, name: str) -> str:
    if NAME_PATTERN.fullmatch(name) is None:
        raise InvalidConfigError(f"option {what}={name!r}: give 1 to 32 of a-z, 0-9, - and _")
    return name
