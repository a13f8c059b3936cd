"""Shared by all suites of the benches: arguments, facts of the machine, Ctrl-C, and the JSON document of a run.

    def play(suite: Suite) -> None:
        suite.say("100,000/s")                                   # progress, on stderr
        suite.add("points", rate=100_000, p99_ms=1.2)            # a row of a table
        suite.check("right", wrong == 0, "no outcome was wrong") # a claim; the exit status is 1 when one does not hold

    if __name__ == "__main__":
        sys.exit(run_suite(Parser("ladder", __doc__), play))

Every suite writes the same kind of document. "partial" is true if the run was interrupted, or failed; the tables then
have the rows so far:

    {"suite", "about", "command", "machine": {...}, "started", "seconds", "short", "partial", "seed",
     "tables": {name: [{column: value}, ...]}, "checks": {name: {"held", "says"}}}

The exit status is 0; 1 if a check does not hold or a started program failed; 2 for refused arguments; 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TypeVar

import psutil
import zmq

from timerctl.load.report import machine as load_machine
from timerctl.show.table import Column, Table
from timerctl.show.text import size
from timerd.arena.pages import has_huge_pages
from timerd_shm.declare.errors import TimerdError
from timerd_shm.host.paths import SHM_DIRECTORY

ROOT = Path(__file__).resolve().parents[2]
COMPILER = re.compile(rb"GCC: \([^\0]+|clang version [^\0(]+")
REDIS = re.compile(r"\bv=([\d.]+)")
PACKAGES = {"redis-py": "redis", "gunicorn": "gunicorn", "gevent": "gevent", "uvloop": "uvloop"}
NUMBER = re.compile(r"(\d+(?:\.\d+)?)([kM]?)")
CHILD_END_S = 60.0  # after SIGINT a child has this time to show its results so far
MEMORY_SPARE = 256 << 20
INTERRUPTED = 130

Row = dict[str, Any]
T = TypeVar("T")


class Refused(Exception):
    """The arguments make no sense on this machine. The text has the value, the limit and the remedy."""


class Failed(Exception):
    """Something that a suite had started has failed."""


class Suite:
    """The arguments of a suite, and its tables and checks so far."""

    def __init__(self, name: str, about: str, args: argparse.Namespace) -> None:
        self.name = name
        self.about = about  # what is measured, for readers of the results
        self.args = args
        self.short: bool = args.short
        self.seed: int = args.seed
        self.tables: dict[str, list[Row]] = {}
        self.checks: dict[str, Row] = {}
        self.machine = machine()  # before the run, so that the load of the run does not count
        self._started = datetime.now(UTC).isoformat(timespec="seconds")
        self._began = time.monotonic()

    def say(self, text: str) -> None:
        """Print progress, on stderr."""
        print(f"{self.name}: {self.seconds:4.0f} s  {text}", file=sys.stderr, flush=True)

    def add(self, table: str, **row: Any) -> Row:
        """Add a row to a table: column = number, text, bool, or None where nothing was measured."""
        self.tables.setdefault(table, []).append(row)
        return row

    def check(self, name: str, held: bool, says: str) -> None:
        """Make a claim. A claim that is made several times holds only if it holds each time."""
        before = self.checks.get(name)
        if before is None or before["held"]:
            self.checks[name] = {"held": held, "says": says}

    @property
    def seconds(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self._began

    def document(self, partial: bool) -> dict[str, Any]:
        """The JSON document."""
        return {
            "suite": self.name,
            "about": self.about,
            "command": shlex.join(["python", os.path.relpath(sys.argv[0], ROOT), *without_json(sys.argv[1:])]),
            "machine": self.machine,
            "started": self._started,
            "seconds": round(self.seconds, 1),
            "short": self.short,
            "partial": partial,
            "seed": self.seed,
            "tables": self.tables,
            "checks": self.checks,
        }

    def show(self) -> None:
        """Print the tables and checks, for people."""
        for name, rows in self.tables.items():
            print(f"\n{self.name}, {name.replace('_', ' ')}")
            columns = columns_of(rows)
            Table(*(Column(column.replace("_", " "), right=is_number(rows, column)) for column in columns)).print(
                [[shown(row.get(column)) for column in columns] for row in rows]
            )
        for name, check in self.checks.items():
            print(f"{'holds' if check['held'] else 'DOES NOT HOLD'}: {name.replace('_', ' ')}: {check['says']}")


def about(description: str) -> str:
    """A module's docstring without its indented blocks."""
    return "\n\n".join(block for block in description.strip().split("\n\n") if not block.startswith(" "))


def without_json(words: Iterable[str]) -> Iterator[str]:
    """Arguments, without --json and its file."""
    given = iter(words)
    for word in given:
        if word == "--json":
            next(given, None)
        elif not word.startswith("--json="):
            yield word


class Parser(argparse.ArgumentParser):
    """A suite's parser, with the arguments that all suites have."""

    def __init__(self, suite: str, about: str | None) -> None:
        """`about` is the module's docstring."""
        super().__init__(prog=f"{suite}.py", description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
        self.suite = suite
        self._lengths: dict[str, tuple[Any, Any]] = {}
        self.add_argument("--short", action="store_true", help="a quick look: smaller runs, in a few seconds")
        self.add_argument("--json", type=Path, metavar="FILE", help="also write the results to FILE, as one document")
        self.add_argument("--seed", type=amount(0, 1 << 32), default=1, metavar="N", help="seed of what is random (1)")

    def size(self, flag: str, read: Callable[[str], Any], full: str, short: str, help: str) -> None:
        """Add an argument that has one default for a full run, and a smaller one for a short run."""
        action = self.add_argument(flag, type=read, metavar="N", help=f"{help} ({full}; short: {short})")
        self._lengths[action.dest] = (read(full), read(short))

    def parse(self) -> argparse.Namespace:
        """The arguments of the command line."""
        args = self.parse_args()
        for name, lengths in self._lengths.items():
            if getattr(args, name) is None:
                setattr(args, name, lengths[args.short])
        if args.json is not None and not args.json.resolve().parent.is_dir():
            self.error(f"--json {args.json}: there is no directory {args.json.resolve().parent}; make it first")
        return args


def run_suite(parser: Parser, play: Callable[[Suite], None]) -> int:
    """Parse the arguments, play, print, write. Returns the exit status."""
    args = parser.parse()
    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    suite = Suite(parser.suite, about(parser.description or ""), args)
    partial, accepted = True, True
    try:
        play(suite)
        partial = False
    except KeyboardInterrupt:
        print(f"{suite.name}: interrupted; these are the results so far", file=sys.stderr)
    except (Failed, TimerdError) as error:
        print(f"{suite.name}: {error}", file=sys.stderr)
        return 1
    except Refused as refusal:
        accepted = False
        parser.error(str(refusal))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if args.json is not None and accepted:
            write_json(args.json, suite.document(partial))
    print("  ".join(str(suite.machine[name]) for name in ("cpu", "cores", "kernel", "python")))
    suite.show()
    if partial:
        return INTERRUPTED
    return 0 if all(check["held"] for check in suite.checks.values()) else 1


def interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """Handler of Ctrl-C and SIGTERM: the first one ends the run, later ones do not disturb the clean-up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write the document whole or not at all."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(json.dumps(document, indent=1, default=sorted) + "\n")
    draft.replace(path)


# processes -----------------------------------------------------------------------------------------------------------


@contextmanager
def child(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    """Run a program in a session of its own, which Ctrl-C does not reach. When the block ends, so does the program."""
    process = subprocess.Popen(
        list(command),
        env=None if environment is None else {**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            try:
                process.communicate(timeout=CHILD_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()


def run_child(command: Sequence[str], environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program to its end."""
    with child(command, environment) as process:
        out, err = process.communicate()
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)


# the machine ---------------------------------------------------------------------------------------------------------


def machine() -> dict[str, Any]:
    """The machine and the versions, and how busy the machine is before the run."""
    found = load_machine()
    return {
        "cpu": found["model"],
        "cores": found["cpus"],
        "memory_bytes": found["memory_bytes"],
        "kernel": found["kernel"],
        "python": f"{platform.python_implementation()} {found['python']}",
        "libzmq": zmq.zmq_version(),
        "pyzmq": zmq.pyzmq_version(),
        "compiler": compiler(),
        "versions": versions(),
        "huge_pages": gives_huge_pages(SHM_DIRECTORY),
        "commit": commit(),
        "load_average": [round(value, 2) for value in found["load_average"]],
    }


def versions() -> dict[str, str]:
    """The versions of the programs that suites compare with timerd, or run beside it, as far as they are installed."""
    found: dict[str, str] = {}
    if server := shutil.which("redis-server"):
        said = subprocess.run([server, "--version"], capture_output=True, text=True, check=False).stdout
        if number := REDIS.search(said):
            found["Redis"] = number[1]
    for name, package in PACKAGES.items():
        with suppress(PackageNotFoundError):
            found[name] = version(package)
    return found


def gives_huge_pages(directory: Path) -> bool:
    """Whether an arena in that directory would be on huge pages."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        return has_huge_pages(descriptor)
    finally:
        os.close(descriptor)


def compiler() -> str:
    """The compiler of the core, as the core's compiled file names it."""
    from timerd import core

    assert core.__file__ is not None
    found = COMPILER.search(Path(core.__file__).read_bytes())
    return found[0].decode().strip() if found else "unknown"


def commit() -> str | None:
    """The commit of the sources, with a plus if they were changed since; None outside of a repository."""
    try:
        found = subprocess.run(["git", "describe", "--always", "--dirty=+"], cwd=ROOT, capture_output=True, text=True)
    except FileNotFoundError:
        return None
    return found.stdout.strip() if found.returncode == 0 else None


def need_memory(count: int, what: str, remedy: str) -> None:
    """Raise Refused when `count` bytes are more than is available."""
    available = psutil.virtual_memory().available - MEMORY_SPARE
    if count > available:
        raise Refused(f"{what} need {size(count)} of memory, and {size(max(available, 0))} are available: {remedy}")


# arguments -----------------------------------------------------------------------------------------------------------


def amount(least: float, most: float, unit: str = "") -> Callable[[str], int]:
    """Type of an argument: 500, 20k, 1.5M, within these limits."""

    def read(text: str) -> int:
        match = NUMBER.fullmatch(text.replace("_", ""))
        limits = f"between {least:,} and {most:,} {unit}".rstrip()
        if match is None:
            raise argparse.ArgumentTypeError(f"{text!r:.40} is not a number such as 500, 10k or 1M: give one {limits}")
        value = round(float(match[1]) * {"": 1, "k": 1_000, "M": 1_000_000}[match[2]])
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text:.40} is not {limits}: ask for one that is")
        return value

    return read


def real(least: float, most: float, unit: str) -> Callable[[str], float]:
    """Type of an argument: 0.5, 20, within these limits."""

    def read(text: str) -> float:
        limits = f"between {least:g} and {most:g} {unit}".rstrip()
        try:
            value = float(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r:.40} is not a number: give one {limits}") from None
        if not least <= value <= most:  # also refuses NaN
            raise argparse.ArgumentTypeError(f"{text:.40} is not {limits}: ask for one that is")
        return value

    return read


def listed(read: Callable[[str], T]) -> Callable[[str], list[T]]:
    """Type of an argument: several values of another type, with commas between."""
    return lambda text: [read(each) for each in text.split(",")]


def chosen(names: Sequence[str]) -> Callable[[str], str]:
    """Type of an argument: one of these names."""

    def read(text: str) -> str:
        if text not in names:
            raise argparse.ArgumentTypeError(f"{text!r:.40} is none of {', '.join(names)}")
        return text

    return read


# rows ----------------------------------------------------------------------------------------------------------------


def columns_of(rows: Sequence[Row]) -> list[str]:
    """The columns of a table, in the order in which they first appear."""
    return list(dict.fromkeys(column for row in rows for column in row))


def rows_with(rows: Iterable[Row], values: Mapping[str, Any]) -> list[Row]:
    """The rows that have these values."""
    return [row for row in rows if all(row.get(name) == value for name, value in values.items())]


def is_number(rows: Sequence[Row], column: str) -> bool:
    """Whether a column holds numbers."""
    values = [row.get(column) for row in rows]
    return any(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def shown(value: Any) -> str:
    """A cell for people: three digits of a float (123, 12.3, 1.23), yes or no, and - where nothing was measured."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 3
            return f"{value:,.{digits}f}"
    return str(value)
