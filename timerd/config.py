"""The daemon's knobs, each declared once: `Config` gives flags, environment, TOML keys, checks and --show-config.

A value comes from the first of: flag (`--ring-events 1024`), environment (`TIMERD_RING_EVENTS=1024`), file
(`ring-events = 1024`), default. An unknown key of the file is an error that names its nearest neighbour.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_type_hints

from timerd_shm.errors import InvalidConfigError
from timerd_shm.limits import (
    ANSWERS_PER_CLIENT_MAX,
    CAPACITY_DEFAULT,
    CAPACITY_MAX,
    CAPACITY_MIN,
    CLIENTS_MAX,
    HEARTBEAT_NS,
    LEASE_NS,
    NAME_PATTERN,
    OUTCOMES_PER_CLIENT_MAX,
    RING_EVENTS_DEFAULT,
    RING_EVENTS_MAX,
    RING_EVENTS_MIN,
    RING_VALUE_BYTES,
    SETTLED_IDS_KEPT_NS,
    TICK_NS_DEFAULT,
    TICK_NS_MAX,
    TICK_NS_MIN,
)
from timerd_shm.rundir import INSTANCE_DEFAULT, RUNTIME_DIR_VARIABLE

CONFIG_VARIABLE = "TIMERD_CONFIG"
LOG_LEVELS = ("debug", "info", "warning", "error")
DURATIONS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9, "d": 86_400 * 10**9}
SIZES = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
QUANTITY = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")
EXIT_STATUSES = """\
exit status:
  0  ended by SIGTERM or SIGINT (the arena is kept), or idle (--ephemeral)
  1  a mistake of ours: please report what it said
  2  a flag, variable or key is wrong; the message names it, its limits and the remedy
  3  a daemon of this instance is running
  4  the machine does not give what was asked: shared memory, permissions, a path for the sockets
  5  the arena that is there is of another layout, size or tick, or damaged; `timerctl destroy` removes it
"""


class Knob(NamedTuple):
    """What a knob holds: its unit (which says how a text is read), its limits (inclusive) and a sentence."""

    unit: Literal["count", "duration", "bytes", "flag", "text", "name", "path", "level"]
    about: str
    low: int = 0
    high: int = 0
    derived: str = ""  # what the default is made from, where it is None

    def read(self, text: str) -> int | str | bool:
        """The value that a flag or a variable says; raises ValueError with what is wrong and what to write instead."""
        match self.unit:
            case "flag":
                if text.lower() not in ("1", "true", "yes", "on", "0", "false", "no", "off"):
                    raise ValueError("write true or false")
                return text.lower() in ("1", "true", "yes", "on")
            case "count":
                try:
                    return int(text.replace("_", ""))
                except ValueError:
                    raise ValueError("write a whole number") from None
            case "duration":
                return _quantity(text, DURATIONS, 'write a number and a unit of ns, us, ms, s, m, h, d, as in "1ms"')
            case "bytes":
                return _quantity(text, SIZES, 'write a number of bytes, or one with KiB, MiB or GiB, as in "16MiB"')
        return text

    def accept(self, given: object) -> int | str | bool:
        """The checked value of something given by a file, variable or flag; raises ValueError as `read` does."""
        if self.unit == "flag" and isinstance(given, bool):
            return given
        if self.unit in ("count", "bytes") and type(given) is int:
            value: int | str | bool = given
        elif isinstance(given, str):
            value = self.read(given)
        else:
            raise ValueError(f"{type(given).__name__} is not a {self.unit}")
        if type(value) is int and not self.low <= value <= self.high:
            raise ValueError(f"the limits are {self.show(self.low)} to {self.show(self.high)}")
        if self.unit == "name" and not NAME_PATTERN.fullmatch(str(value)):
            raise ValueError(f"a name has the form {NAME_PATTERN.pattern}")
        if self.unit == "level" and value not in LOG_LEVELS:
            raise ValueError(f"write one of {', '.join(LOG_LEVELS)}")
        if self.unit in ("path", "text") and (not value or "\0" in str(value)):
            raise ValueError("it is empty, or holds a zero byte")
        return value

    def show(self, value: object) -> str:
        """A value as `read` takes it."""
        if value is None:
            return f"({self.derived})"
        if self.unit == "flag":
            return str(value).lower()
        if self.unit not in ("duration", "bytes") or not isinstance(value, int):
            return str(value)
        units = DURATIONS if self.unit == "duration" else SIZES
        if value == 0:
            return "0s" if self.unit == "duration" else "0"
        name, size = next(item for item in reversed(units.items()) if value % item[1] == 0)
        return f"{value // size}{name}" if name != "B" else str(value)


YEAR_NS = 366 * DURATIONS["d"]
RECORDS_MAX = 4 * CAPACITY_MAX


class Config(NamedTuple):
    """Everything that can be set, with its default. None: made from other knobs when the arena is planned."""

    instance: Annotated[str, Knob("name", "the instance: daemons of several names run side by side")] = INSTANCE_DEFAULT
    runtime_dir: Annotated[
        str | None, Knob("path", "directory of sockets, lock and NAME.arena", derived="the first that may be written")
    ] = None
    capacity: Annotated[
        int, Knob("count", "operations the arena holds, pending or unacknowledged", CAPACITY_MIN, CAPACITY_MAX)
    ] = CAPACITY_DEFAULT
    nodes: Annotated[
        int | None, Knob("count", "watch nodes: one for each key of each operation", 1, RECORDS_MAX, "1.5 x capacity")
    ] = None
    keys: Annotated[
        int | None, Knob("count", "keys that are watched or have a watermark", 1, RECORDS_MAX, "capacity")
    ] = None
    blocks: Annotated[
        int | None,
        Knob("count", "pieces of 112 bytes for payloads, values and long keys", 1, RECORDS_MAX, "0.75 x capacity"),
    ] = None
    ids: Annotated[
        int | None, Knob("count", "ids of operations, pending or remembered", 1, RECORDS_MAX, "0.5 x capacity")
    ] = None
    tick: Annotated[
        int, Knob("duration", "width of the wheel's finest bucket: how late is normal", TICK_NS_MIN, TICK_NS_MAX)
    ] = TICK_NS_DEFAULT
    ring_events: Annotated[
        int, Knob("count", "events remembered for late registrations; a power of two", RING_EVENTS_MIN, RING_EVENTS_MAX)
    ] = RING_EVENTS_DEFAULT
    ring_bytes: Annotated[int, Knob("bytes", "bytes of values that those events may hold", 0, 1 << 40)] = (
        RING_VALUE_BYTES
    )
    clients: Annotated[int, Knob("count", "connected clients at most", 1, 4096)] = CLIENTS_MAX
    quota_operations: Annotated[
        int | None, Knob("count", "operations a client may hold", 1, CAPACITY_MAX, "half of capacity")
    ] = None
    quota_bytes: Annotated[
        int | None, Knob("bytes", "payload and value bytes a client may hold", 1, 1 << 40, "half of what blocks hold")
    ] = None
    quota_watermarks: Annotated[
        int | None, Knob("count", "watermarks a client may set", 1, RECORDS_MAX, "half of keys")
    ] = None
    quota_outcomes: Annotated[int, Knob("count", "unacknowledged outcomes a client may have", 1, CAPACITY_MAX)] = (
        OUTCOMES_PER_CLIENT_MAX
    )
    quota_answers: Annotated[
        int, Knob("count", "unacknowledged refusals and answers a client may have", 1, ANSWERS_PER_CLIENT_MAX)
    ] = ANSWERS_PER_CLIENT_MAX
    lease: Annotated[
        int, Knob("duration", "how long a client may be silent before it is suspected", HEARTBEAT_NS, YEAR_NS)
    ] = LEASE_NS
    settled_ids_kept: Annotated[
        int, Knob("duration", "how long the id of a settled operation is remembered", DURATIONS["s"], YEAR_NS)
    ] = SETTLED_IDS_KEPT_NS
    arena_file: Annotated[str | None, Knob("path", "keep the arena in this file", derived="POSIX shared memory")] = None
    unix_group: Annotated[
        str | None, Knob("text", "members of this group may connect and look", derived="this user alone")
    ] = None
    ephemeral: Annotated[bool, Knob("flag", "remove the arena at the end, and end when idle")] = False
    idle_exit: Annotated[
        int, Knob("duration", "with --ephemeral: end this long after the last client left", 0, YEAR_NS)
    ] = 10 * DURATIONS["s"]
    log_level: Annotated[str, Knob("level", f"least level of what is logged to stderr: {', '.join(LOG_LEVELS)}")] = (
        "info"
    )
    journal: Annotated[str | None, Knob("path", "directory of the journal (not built yet)", derived="no journal")] = (
        None
    )


class Settings(NamedTuple):
    """A configuration, and where each value comes from."""

    config: Config
    sources: dict[str, str]

    def rows(self) -> list[tuple[str, str, str]]:
        """(knob, value, source) of each knob, as text."""
        return [
            (dashed(name), knob.show(getattr(self.config, name)), self.sources[name]) for name, knob in KNOBS.items()
        ]

    def table(self) -> str:
        """What `--show-config` prints."""
        rows = [("knob", "value", "source"), *self.rows()]
        widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
        return "\n".join(f"{row[0]:<{widths[0]}}  {row[1]:<{widths[1]}}  {row[2]}" for row in rows)

    def as_json(self) -> str:
        """What `--show-config --json` prints; durations are in nanoseconds, sizes in bytes."""
        values = {dashed(name): {"value": getattr(self.config, name), "source": self.sources[name]} for name in KNOBS}
        return json.dumps(values, indent=2)


class Invocation(NamedTuple):
    """A command line, read."""

    settings: Settings
    show_config: bool
    json: bool


def dashed(name: str) -> str:
    """A knob's name in files and on the command line."""
    return name.replace("_", "-")


def variable(name: str) -> str:
    """A knob's name in the environment."""
    return f"TIMERD_{name.upper()}"


def read_command_line(arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> Invocation:
    """What `timerd ARGUMENTS` is asked to do. Raises InvalidConfigError; --help and wrong usage raise SystemExit."""
    given = vars(parser().parse_args(arguments))
    path = given["config"] or environment.get(CONFIG_VARIABLE)
    flags = {name: given[name] for name in KNOBS if given[name] is not None}
    return Invocation(settle(read_file(Path(path)) if path else {}, environment, flags, path), *_modes(given))


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
    if config.ring_events & (config.ring_events - 1):
        below = 1 << (config.ring_events.bit_length() - 1)
        raise InvalidConfigError(
            f"ring-events = {config.ring_events} ({sources['ring_events']}): "
            f"it is a power of two; the nearest are {below} and {2 * below}"
        )
    return Settings(config, sources)


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
    for key in found:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.0)[0]
            raise InvalidConfigError(f"configuration {path}: unknown key {key!r}; did you mean {near!r}?")
    return found


def parser() -> argparse.ArgumentParser:
    """The command line, made from `Config`."""
    made = argparse.ArgumentParser(
        prog="timerd",
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Waits for other processes: operations that complete by an event on a key, or expire at their\n"
        "deadline, kept in shared memory. Runs in the foreground until SIGTERM; the arena outlives it.",
        epilog=f"""\
examples:
  timerd                                      the instance "default", 131,072 operations, 1 ms ticks
  timerd --instance jobs --capacity 1048576   another one beside it, for a million operations
  timerd --show-config                        each knob's value, and where it comes from
  timerctl stats                              look at it, from another terminal

A knob's value is the flag's, else the variable's ({variable("ring_events")}), else the file's (ring-events = 1024),
else the default. Files are TOML. Durations have a unit (100us, 1ms, 15s, 1h), sizes may (64KiB, 16MiB).
The runtime directory is ${RUNTIME_DIR_VARIABLE}, /run/timerd, $XDG_RUNTIME_DIR/timerd, or one under the temporary
directory: the first that may be written.

{EXIT_STATUSES}""",
    )
    made.add_argument("--config", metavar="FILE", help=f"TOML file with knobs (variable {CONFIG_VARIABLE})")
    made.add_argument("--show-config", action="store_true", help="print each knob's value and source, and exit")
    made.add_argument("--json", action="store_true", help="with --show-config: print JSON")
    knobs = made.add_argument_group("knobs")
    for name, knob in KNOBS.items():
        flag = f"--{dashed(name)}"
        default = knob.show(Config._field_defaults[name]).strip("()")
        about = f"{knob.about} [{default}]".replace("%", "%%")
        if knob.unit == "flag":
            knobs.add_argument(flag, dest=name, action=argparse.BooleanOptionalAction, default=None, help=about)
        else:
            knobs.add_argument(flag, dest=name, metavar=knob.unit.upper(), help=about)
    return made


def _modes(given: Mapping[str, Any]) -> tuple[bool, bool]:
    return given["show_config"], given["json"]


def _quantity(text: str, units: Mapping[str, int], remedy: str) -> int:
    match = QUANTITY.fullmatch(text.strip())
    if match is None or match[2] not in units:
        raise ValueError(remedy)
    whole, _, fraction = match[1].partition(".")
    scale = 10 ** len(fraction)
    value, rest = divmod(int(whole + fraction) * units[match[2]], int(scale))
    if rest:
        raise ValueError(f"it is not a whole number of {next(iter(units)) or 'bytes'}")
    return value


def _knobs() -> dict[str, Knob]:
    hints = get_type_hints(Config, include_extras=True)
    return {name: next(mark for mark in hint.__metadata__ if isinstance(mark, Knob)) for name, hint in hints.items()}


KNOBS: dict[str, Knob] = _knobs()
