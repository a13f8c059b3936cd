"""The options of reading a journal, checked when load() is called."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import NamedTuple, Self

from timerd_shm.declare.errors import InvalidConfigError
from timerd_spark.options import known_options, local_path, one_of

from .schema import VIEWS, Column

CONSUMER = re.compile(r"[A-Za-z0-9_-]{1,64}")
READ_OPTIONS = ("path", "paths", "view", "columns", "onDamage", "consumer", "maxRowsPerTrigger")


class ReadOptions(NamedTuple):
    """Options of reading a journal."""

    path: str
    view: str
    columns: tuple[Column, ...]
    skip: bool  # whether damaged parts are left out; else they are an error
    consumer: str | None  # the name under which files are held
    rows_per_trigger: int | None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Self:
        """The options of a user. Raises InvalidConfigError."""
        given = known_options(options, READ_OPTIONS)
        view = one_of(given, "view", tuple(VIEWS))
        return cls(
            path_of(given),
            view,
            columns_named(given.get("columns"), view),
            one_of(given, "onDamage", ("fail", "skip")) == "skip",
            consumer_of(given.get("consumer")),
            positive(given, "maxRowsPerTrigger"),
        )


def positive(given: Mapping[str, str], name: str) -> int | None:
    """An option that is a whole number of at least 1; None if it is not given. Raises InvalidConfigError."""
    text = given.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal()) or not int(text[:19]) >= 1 or len(text) > 18:
        raise InvalidConfigError(f"option {name}={text!r}: give a whole number from 1 on")
    return int(text)


def path_of(given: Mapping[str, str]) -> str:
    """The one path of load(). Raises InvalidConfigError for none, for several, and for another file system."""
    paths = json.loads(given["paths"]) if "paths" in given else []
    if "path" in given:
        paths.append(given["path"])
    if len(paths) != 1:
        raise InvalidConfigError(
            f"load() was given {len(paths)} paths: give a journal, a directory with one for each host, or a pattern"
        )
    path = local_path(str(paths[0]))
    if path is None:
        raise InvalidConfigError(f"path={paths[0]!r}: a journal is read from a mounted file system: give a path of one")
    return path


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
