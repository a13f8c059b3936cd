"""The daemon's knobs, each declared once: `Config` gives flags, environment, TOML keys, checks and --show-config.

A value comes from the first of: flag (`--ring-events 1024`), environment (`TIMERD_RING_EVENTS=1024`), file
(`ring-events = 1024`), default. An unknown key of the file is an error that names its nearest neighbour; an unknown
variable is a warning, because an environment is shared: TIMERD_ may also begin a name that an application, or
Kubernetes for a service called timerd, has chosen.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_type_hints

from timerd_shm.declare.errors import InvalidConfigError
from timerd_shm.declare.journal import BUFFER_ROWS_MIN, ROW_SIZE, SEGMENT_SIZE_MAX, SEGMENT_SIZE_MIN, JournalLevel
from timerd_shm.declare.limits import (
    ANSWERS_PER_CLIENT_MAX,
    CAPACITY_DEFAULT,
    CAPACITY_MAX,
    CAPACITY_MIN,
    CLIENTS_MAX,
    GROUP_KEPT_NS,
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
from timerd_shm.declare.records import BLOCK_DATA
from timerd_shm.host.paths import INSTANCE_DEFAULT, RUNTIME_DIR_VARIABLE
from timerd_shm.host.quantity import DURATIONS, SIZES, byte_count, duration_ns
from timerd_shm.host.version import Version

PREFIX = "TIMERD_"
CONFIG_VARIABLE = f"{PREFIX}CONFIG"
NEAR = 0.8  # how alike two names are when one may be meant for the other (difflib's ratio)
JOURNAL_LEVELS = tuple(level.name.lower() for level in JournalLevel if level)
LOG_LEVELS = ("debug", "info", "warning", "error")
EXIT_STATUSES = """\
exit status:
  0  ended by SIGTERM or SIGINT (the arena is kept), or idle (--ephemeral)
  1  a mistake of ours: please report what it said
  2  a flag, variable or key is wrong; the message names it, its limits and
     the remedy
  3  a daemon of this instance is running
  4  the machine does not give what was asked: shared memory, permissions,
     a path for the sockets
  5  the arena that is there is of another layout, size or tick, or damaged;
     `timerctl destroy` removes it, with its operations
"""


class Knob(NamedTuple):
    """What a knob holds: its unit (which says how a text is read), its limits (inclusive) and a sentence."""

    unit: Literal["count", "duration", "bytes", "flag", "text", "name", "path", "level"]
    about: str
    low: int = 0
    high: int = 0
    derived: str = ""  # what the default is, where it is None and no number
    choices: tuple[str, ...] = ()

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
                return duration_ns(text)
            case "bytes":
                return byte_count(text)
        return text

    def accept(self, given: object) -> int | str | bool:
        """The checked value of something given by a file, variable or flag; raises ValueError as `read` does."""
        if self.unit == "flag" and isinstance(given, bool):
            return given
        if self.unit in ("count", "bytes") and type(given) is int:
            value: int | str | bool = given
        elif isinstance(given, str) or (self.unit == "duration" and type(given) in (int, float)):
            value = self.read(str(given))
        else:
            raise ValueError(f"{type(given).__name__} is not a {self.unit}")
        if type(value) is int and not self.low <= value <= self.high:
            bare = self.unit == "duration" and not str(given).strip()[-1:].isalpha()
            remedy = f'; a number without a unit is seconds: write "{str(given).strip()}ms" for milliseconds'
            raise ValueError(f"the limits are {self.limits()}" + (remedy if bare else ""))
        if self.unit == "name" and not NAME_PATTERN.fullmatch(str(value)):
            raise ValueError(f"a name has the form {NAME_PATTERN.pattern}")
        if self.choices and value not in self.choices:
            raise ValueError(f"write one of {', '.join(self.choices)}")
        if self.unit in ("path", "text") and (not value or "\0" in str(value)):
            raise ValueError("it is empty, or holds a zero byte")
        return value

    def limits(self) -> str:
        """The smallest and the largest value."""
        return f"{self.show(self.low)} to {self.show(self.high)}"

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


class Formula(NamedTuple):
    """What a number is made from where it is not given."""

    text: str
    of: Callable[[Config], int]


class Config(NamedTuple):
    """Everything that can be set, with its default. None: made from other knobs when the arena is planned."""

    instance: Annotated[str, Knob("name", "the instance: daemons of several names run side by side")] = INSTANCE_DEFAULT
    runtime_dir: Annotated[
        str | None, Knob("path", "directory of sockets, lock and NAME.arena", derived="the first that may be written")
    ] = None
    capacity: Annotated[
        int,
        Knob(
            "count",
            "operations the arena holds, pending or unacknowledged: 450 bytes of memory for each, from the start",
            CAPACITY_MIN,
            CAPACITY_MAX,
        ),
    ] = CAPACITY_DEFAULT
    nodes: Annotated[
        int | None,
        Knob(
            "count",
            "watch nodes: one for each key of each operation",
            1,
            RECORDS_MAX,
        ),
    ] = None
    keys: Annotated[
        int | None,
        Knob(
            "count",
            "keys that are watched or have a watermark",
            1,
            RECORDS_MAX,
        ),
    ] = None
    blocks: Annotated[
        int | None,
        Knob(
            "count",
            f"pieces of {BLOCK_DATA} bytes for payloads, values and long keys",
            1,
            RECORDS_MAX,
        ),
    ] = None
    ids: Annotated[
        int | None,
        Knob(
            "count",
            "ids of operations, pending or remembered",
            1,
            RECORDS_MAX,
        ),
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
        int | None,
        Knob(
            "count",
            "operations a client may hold",
            1,
            CAPACITY_MAX,
        ),
    ] = None
    quota_bytes: Annotated[
        int | None,
        Knob(
            "bytes",
            "payload and value bytes a client may hold",
            1,
            1 << 40,
        ),
    ] = None
    quota_watermarks: Annotated[
        int | None,
        Knob(
            "count",
            "watermarks a client may set",
            1,
            RECORDS_MAX,
        ),
    ] = None
    quota_nodes: Annotated[
        int | None,
        Knob(
            "count",
            "watch nodes a client may hold: keys of its operations",
            1,
            RECORDS_MAX,
        ),
    ] = None
    quota_keys: Annotated[
        int | None,
        Knob(
            "count",
            "keys that may be there because of one client",
            1,
            RECORDS_MAX,
        ),
    ] = None
    quota_outcomes: Annotated[int, Knob("count", "unacknowledged outcomes a client may have", 1, CAPACITY_MAX)] = (
        OUTCOMES_PER_CLIENT_MAX
    )
    quota_answers: Annotated[
        int, Knob("count", "unacknowledged refusals and answers a client may have", 1, ANSWERS_PER_CLIENT_MAX)
    ] = ANSWERS_PER_CLIENT_MAX
    lease: Annotated[
        int, Knob("duration", "how long a client may say nothing before it is silent", 2 * HEARTBEAT_NS, YEAR_NS)
    ] = LEASE_NS
    group_retention: Annotated[
        int, Knob("duration", "how long a group's outcomes are kept while it has no member", DURATIONS["s"], YEAR_NS)
    ] = GROUP_KEPT_NS
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
    log_level: Annotated[
        str, Knob("level", f"least level of what is logged to stderr: {', '.join(LOG_LEVELS)}", choices=LOG_LEVELS)
    ] = "info"
    journal: Annotated[
        str | None, Knob("path", "write how operations settle into this directory", derived="no journal")
    ] = None
    journal_level: Annotated[
        str, Knob("level", "outcomes, or events: registrations and events as well", choices=JOURNAL_LEVELS)
    ] = "outcomes"
    journal_segment_size: Annotated[
        int, Knob("bytes", "bytes of a file of the journal", SEGMENT_SIZE_MIN, SEGMENT_SIZE_MAX)
    ] = 64 << 20
    journal_keep: Annotated[
        int, Knob("bytes", "bytes of the journal; beyond it the oldest files are removed", SEGMENT_SIZE_MIN, 1 << 50)
    ] = 1 << 30
    journal_hold_limit: Annotated[
        int, Knob("bytes", "bytes beyond that, of files that a consumer holds", 0, 1 << 50)
    ] = 4 << 30
    journal_buffer: Annotated[
        int | None,
        Knob(
            "bytes",
            "shared memory for rows that are not written yet; rounded up to a power of two",
            BUFFER_ROWS_MIN * ROW_SIZE,
            1 << 30,
            derived="at most 16MiB, as fits",
        ),
    ] = None


def share_of_client(config: Config, records: int) -> int:
    """What one client may hold of the records: half, or as large a part as it may hold of the operations."""
    return max(records // 2, records * min(config.quota_operations or 0, config.capacity) // config.capacity)


# In an order in which each needs only those before it.
FORMULAS = {
    "nodes": Formula("1.5 x capacity", lambda config: 3 * config.capacity // 2),
    "keys": Formula("capacity", lambda config: config.capacity),
    "blocks": Formula("0.75 x capacity", lambda config: 3 * config.capacity // 4),
    "ids": Formula("0.5 x capacity", lambda config: config.capacity // 2),
    "quota_operations": Formula("half of capacity", lambda config: config.capacity // 2),
    "quota_bytes": Formula("half of what blocks hold", lambda config: (config.blocks or 0) * BLOCK_DATA // 2),
    "quota_watermarks": Formula("half of keys", lambda config: (config.keys or 0) // 2),
    "quota_nodes": Formula("half of nodes, or more", lambda config: share_of_client(config, config.nodes or 0)),
    "quota_keys": Formula("half of keys, or more", lambda config: share_of_client(config, config.keys or 0)),
}


class Sizes(NamedTuple):
    """The numbers of a configuration that are made from others where they are not given."""

    nodes: int
    keys: int
    blocks: int
    ids: int
    quota_operations: int
    quota_bytes: int
    quota_watermarks: int
    quota_nodes: int
    quota_keys: int


def sizes_of(config: Config) -> Sizes:
    """What the configuration says, or its formulas."""
    for name, formula in FORMULAS.items():
        if getattr(config, name) is None:
            made: dict[str, Any] = {name: max(formula.of(config), 1)}
            config = config._replace(**made)
    return Sizes(**{name: getattr(config, name) for name in Sizes._fields})


class Settings(NamedTuple):
    """A configuration, where each value comes from, and what is odd about it."""

    config: Config
    sources: dict[str, str]
    warnings: tuple[str, ...] = ()

    def rows(self) -> list[tuple[str, str, str]]:
        """(knob, value with what it was made from, source) of each knob, as text."""
        sizes = sizes_of(self.config)._asdict()
        rows = []
        for name, knob in KNOBS.items():
            given = getattr(self.config, name)
            text = knob.show(sizes.get(name, given))
            if given is None and name in FORMULAS:
                text += f" ({FORMULAS[name].text})"
            rows.append((dashed(name), text, self.sources[name]))
        return rows

    def table(self) -> str:
        """What `--show-config` prints."""
        rows = [("knob", "value", "source"), *self.rows()]
        widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
        return "\n".join(f"{row[0]:<{widths[0]}}  {row[1]:<{widths[1]}}  {row[2]}" for row in rows)

    def as_json(self) -> str:
        """What `--show-config --json` prints; durations are in nanoseconds, sizes in bytes."""
        effective = self.config._asdict() | sizes_of(self.config)._asdict()
        values = {}
        for name in KNOBS:
            values[dashed(name)] = {"value": effective[name], "source": self.sources[name]}
            if name in FORMULAS and getattr(self.config, name) is None:
                values[dashed(name)]["formula"] = FORMULAS[name].text
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
    return f"{PREFIX}{name.upper()}"


def read_command_line(arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> Invocation:
    """What `timerd ARGUMENTS` is asked to do. Raises InvalidConfigError; --help and wrong usage raise SystemExit."""
    command_line = parser()
    read, unknown = command_line.parse_known_args(arguments)
    if unknown:
        known = [f"--{dashed(name)}" for name in KNOBS]
        near = difflib.get_close_matches(unknown[0].partition("=")[0], known, n=1, cutoff=NEAR)
        command_line.error(f"unknown argument {unknown[0]!r}" + (f"; did you mean {near[0]}?" if near else ""))
    given = vars(read)
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
    _check(config, sources)
    return Settings(config, sources, _odd_variables(environment))


def _check(config: Config, sources: Mapping[str, str]) -> None:
    """Whether the values fit each other. Raises InvalidConfigError."""
    if config.ring_events & (config.ring_events - 1):
        below = 1 << (config.ring_events.bit_length() - 1)
        raise InvalidConfigError(
            f"ring-events = {config.ring_events} ({sources['ring_events']}): "
            f"it is a power of two; the nearest are {below} and {2 * below}"
        )
    if config.nodes is not None and config.nodes < config.capacity:
        raise InvalidConfigError(
            f"nodes = {config.nodes} ({sources['nodes']}) is below capacity = {config.capacity}: "
            "an operation has at least one watch node"
        )


def _odd_variables(environment: Mapping[str, str]) -> tuple[str, ...]:
    """A sentence for each variable that begins as ours do, and is none."""
    known = [CONFIG_VARIABLE, *map(variable, KNOBS)]
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
                f"configuration {path}: [{key}] is a table, and keys stand at the top level: "
                f"write `{inside} = ...` above or without it"
            )
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.0)[0]
            raise InvalidConfigError(f"configuration {path}: unknown key {key!r}; did you mean {near!r}?")
    return found


def parser() -> argparse.ArgumentParser:
    """The command line, made from `Config`."""
    made = argparse.ArgumentParser(
        prog="timerd",
        usage="timerd [--version | --show-config] [--config FILE] [--KNOB VALUE ...]",
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Waits for other processes: operations that complete by an event on a key,\n"
        "or expire at their deadline, kept in shared memory. Runs in the foreground\n"
        "until SIGTERM; the arena outlives it.",
        epilog=f"""\
examples:
  timerd                     instance "default", 131,072 operations, 1 ms ticks
  timerd --instance jobs --capacity 1048576
                             another beside it, for a million operations
  timerd --show-config       each knob's value, and where it comes from
  timerctl stats             look at it, from another terminal

A knob's value is the flag's, else the variable's ({variable("ring_events")}=1024),
else the file's (ring-events = 1024), else the default. Files are TOML, without
tables. Durations are seconds, or have a unit (100us, 1ms, 15s, 1h); sizes are
bytes, or have a unit (64KiB, 16MiB).

The runtime directory is --runtime-dir, else the first that may be written of
/run/timerd, $XDG_RUNTIME_DIR/timerd, and one under the temporary directory.
Clients look there too, or in ${RUNTIME_DIR_VARIABLE} alone if that is set.

{EXIT_STATUSES}""",
    )
    made.add_argument("--version", action=Version, nargs=0, help="print the version, and exit")
    made.add_argument("--config", metavar="FILE", help=f"TOML file with knobs (variable {CONFIG_VARIABLE})")
    made.add_argument("--show-config", action="store_true", help="print each knob's value and source, and exit")
    made.add_argument("--json", action="store_true", help="with --show-config: print JSON")
    knobs = made.add_argument_group("knobs")
    for name, knob in KNOBS.items():
        flag = f"--{dashed(name)}"
        default = knob.show(Config._field_defaults[name]).strip("()")
        limits = f"{knob.limits()}; " if knob.high else ""
        about = f"{knob.about} [{limits}default: {default}]".replace("%", "%%")
        if knob.unit == "flag":
            knobs.add_argument(flag, dest=name, action=argparse.BooleanOptionalAction, default=None, help=about)
        else:
            knobs.add_argument(flag, dest=name, metavar=knob.unit.upper(), help=about)
    return made


def _modes(given: Mapping[str, Any]) -> tuple[bool, bool]:
    return given["show_config"], given["json"]


def _knobs() -> dict[str, Knob]:
    hints = get_type_hints(Config, include_extras=True)
    knobs = {name: next(mark for mark in hint.__metadata__ if isinstance(mark, Knob)) for name, hint in hints.items()}
    return knobs | {name: knobs[name]._replace(derived=formula.text) for name, formula in FORMULAS.items()}


KNOBS: dict[str, Knob] = _knobs()
