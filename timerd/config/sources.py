"""The source of a knob's value: the first of flag, environment, file and default that has one.

    flag          --ring-events 1024
    environment   TIMERD_RING_EVENTS=1024
    file          ring-events = 1024
    default       the one in `Config`

An unknown key of the file is an error that names the nearest knob. An unknown variable is a warning, because an
environment is shared: an application, or Kubernetes for a service called timerd, may have chosen a name that begins
with TIMERD_.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from timerd_shm.declare.errors import InvalidConfigError
from timerd_wire.transports import TRANSPORT_VARIABLE

from .config import KNOBS, Config, dashed
from .settings import Settings

PREFIX = "TIMERD_"
CONFIG_VARIABLE = f"{PREFIX}CONFIG"
# TRANSPORT_VARIABLE is no knob: clients read it.
NEAR = 0.8  # names at least this alike (difflib's ratio) are suggested for each other


def variable(name: str) -> str:
    """A knob's name in the environment."""
    return f"{PREFIX}{name.upper()}"


def settle(
    file: Mapping[str, object],
    environment: Mapping[str, str],
    flags: Mapping[str, object],
    path: str | None = None,
) -> Settings:
    """The value of each knob by precedence. Raises InvalidConfigError, which names value, limits and remedy."""
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for name, knob in KNOBS.items():
        given: object
        if name in flags:
            source, given = f"flag --{dashed(name)}", flags[name]
        elif environment.get(variable(name)):
            source, given = f"environment {variable(name)}", environment[variable(name)]
        elif dashed(name) in file:
            source, given = f"file {path}", file[dashed(name)]
        else:
            values[name], sources[name] = Config._field_defaults[name], "default"
            continue
        try:
            values[name] = knob.accept(given)
        except ValueError as error:
            raise InvalidConfigError(f"{dashed(name)} = {given!r} ({source}): {error}") from None
        sources[name] = source
    config = Config(**values)
    _check(config, sources)
    return Settings(config, sources, _odd_variables(environment))


def _check(config: Config, sources: Mapping[str, str]) -> None:
    """Check that the values fit each other. Raises InvalidConfigError."""
    if config.ring_events & (config.ring_events - 1):
        below = 1 << (config.ring_events.bit_length() - 1)
        raise InvalidConfigError(
            f"ring-events = {config.ring_events} ({sources['ring_events']}): "
            f"write a power of two; the nearest are {below} and {2 * below}"
        )


def _odd_variables(environment: Mapping[str, str]) -> tuple[str, ...]:
    """A sentence for each variable whose name begins with TIMERD_, but which belongs to no knob."""
    known = [CONFIG_VARIABLE, TRANSPORT_VARIABLE, *map(variable, KNOBS)]
    odd = []
    for name in sorted(environment):
        if name.startswith(PREFIX) and name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=NEAR)
            odd.append(f"variable {name} is ignored" + (f": did you mean {near[0]}?" if near else ": it is no knob"))
    return tuple(odd)


def read_file(path: Path) -> dict[str, object]:
    """The keys of a TOML file. Raises InvalidConfigError for what is not TOML and for a key that is no knob."""
    try:
        with open(path, "rb") as file:
            found = tomllib.load(file)
    except OSError as error:
        raise InvalidConfigError(f"configuration {path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidConfigError(f"configuration {path} is not TOML: {error}") from None
    known = [dashed(name) for name in KNOBS]
    for key, value in found.items():
        if isinstance(value, (dict, list)):
            inside = next(iter(value if isinstance(value, dict) else ()), "capacity")
            raise InvalidConfigError(
                f"configuration {path}: [{key}] is a table, but all keys belong at the top level: "
                f"write `{inside} = ...` without a table's header"
            )
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.0)[0]
            raise InvalidConfigError(f"configuration {path}: unknown key {key!r}; did you mean {near!r}?")
    return found
