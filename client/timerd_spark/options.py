"""Common to the options of reading and of writing: names in any case, and words of a list."""

from __future__ import annotations

from collections.abc import Mapping

from timerd_shm.declare.errors import InvalidConfigError


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
