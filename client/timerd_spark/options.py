"""Common to the options of reading and of writing: names in upper or lower case, and values of a list."""

from __future__ import annotations

from collections.abc import Mapping

from timerd_shm.declare.errors import InvalidConfigError


def known_options(options: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    """The options by their proper names, whatever case they came in. Raises InvalidConfigError for an unknown one."""
    proper = {name.lower(): name for name in names}
    found = {}
    for name, value in options.items():
        if name.lower() not in proper:
            raise InvalidConfigError(f"format timerd has no option {name!r}: it has {', '.join(names)}")
        found[proper[name.lower()]] = value
    return found


def one_of(given: Mapping[str, str], name: str, values: tuple[str, ...]) -> str:
    """The value of an option that has one of `values`; the first is the default. Raises InvalidConfigError."""
    value = given.get(name, values[0]).lower()
    if value not in values:
        raise InvalidConfigError(f"option {name}={given[name]!r}: give {' or '.join(values)}")
    return value
