"""Checks the options of reading and of writing: names in upper or lower case, values from a list, and paths."""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches

from timerd_shm.declare.errors import InvalidConfigError

# Spark adds to the options of `CREATE TABLE ... USING timerd` these properties of the table, and each option once more
# with the prefix AGAIN.
OF_TABLES = frozenset(
    ("owner", "provider", "location", "comment", "collation", "external", "is_managed_location", "serialization.format")
)
AGAIN = "option."
URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?://([^/]*))?(/.*)?", re.DOTALL)


def local_path(path: str) -> str | None:
    """The local path of a path or URL that Spark takes; None if the URL is of another host or scheme, such as s3a.

    "file:/mnt/journals", "file:///mnt/journals" and "/mnt/journals" are the same path.
    """
    url = URL.fullmatch(path)
    if url is None or not (url[2] is not None or url[3]):  # a path, in which a name may have a colon
        return path
    is_local = url[1].lower() == "file" and url[2] in (None, "", "localhost")
    return (url[3] or "/") if is_local else None


def known_options(options: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    """The options by their proper names; they may be given in upper or lower case.

    Raises InvalidConfigError for an unknown option.
    """
    proper = {name.lower(): name for name in names}
    found = {}
    for name, value in options.items():
        if name.lower() in OF_TABLES or name.lower().startswith(AGAIN):
            continue
        if name.lower() not in proper:
            near = get_close_matches(name.lower(), proper, 1, cutoff=0.7)
            hint = f"did you mean {proper[near[0]]}? It has" if near else "it has"
            raise InvalidConfigError(f"format timerd has no option {name!r}: {hint} {', '.join(names)}")
        found[proper[name.lower()]] = value
    return found


def one_of(given: Mapping[str, str], name: str, values: tuple[str, ...]) -> str:
    """The value of an option, which must be in `values`; the first is the default. Raises InvalidConfigError."""
    value = given.get(name, values[0]).lower()
    if value not in values:
        raise InvalidConfigError(f"option {name}={given[name]!r}: give {' or '.join(values)}")
    return value
