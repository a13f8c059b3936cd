"""The command line of `timerd`: a flag for each knob, made from `Config`, and --version, --config and --show-config."""

from __future__ import annotations

import argparse
import difflib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from timerd_shm.host.places import RUNTIME_DIR_VARIABLE
from timerd_shm.host.version import Version

from .config import KNOBS, Config, dashed
from .settings import Settings
from .sources import CONFIG_VARIABLE, NEAR, read_file, settle, variable

EXIT_STATUSES = """\
exit status:
  0  ended by SIGTERM or SIGINT (the arena is kept), or idle (--ephemeral)
  1  a bug in timerd: please report what it printed
  2  a flag, variable or key is wrong; the message names it, its limits and
     the remedy
  3  a daemon of this instance is running
  4  the machine does not give what was asked: shared memory, permissions,
     a path for the sockets
  5  the existing arena is damaged, or has another layout, size or tick;
     `timerctl destroy` removes it, with its operations
"""


class Invocation(NamedTuple):
    """A command line, read."""

    settings: Settings
    show_config: bool
    json: bool


def read_command_line(arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> Invocation:
    """Read `timerd ARGUMENTS`. Raises InvalidConfigError; --help and wrong usage raise SystemExit."""
    command_line = parser()
    read, unknown = command_line.parse_known_args(arguments)
    if unknown:
        known = [f"--{dashed(name)}" for name in KNOBS]
        near = difflib.get_close_matches(unknown[0].partition("=")[0], known, n=1, cutoff=NEAR)
        command_line.error(f"unknown argument {unknown[0]!r}" + (f"; did you mean {near[0]}?" if near else ""))
    given = vars(read)
    path = given["config"] or environment.get(CONFIG_VARIABLE)
    flags = {name: given[name] for name in KNOBS if given[name] is not None}
    return Invocation(
        settle(read_file(Path(path)) if path else {}, environment, flags, path), given["show_config"], given["json"]
    )


def parser() -> argparse.ArgumentParser:
    """The command line, made from `Config`."""
    made = argparse.ArgumentParser(
        prog="timerd",
        usage="timerd [--version | --show-config] [--config FILE] [--KNOB VALUE ...]",
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Keeps the waits of other processes in shared memory: operations that complete\n"
        "by an event on a key, or expire at their deadline. Runs in the foreground\n"
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
/run/timerd, /run/user/UID/timerd and /tmp/timerd-UID. Clients look there too,
or in ${RUNTIME_DIR_VARIABLE} alone if that is set.

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
