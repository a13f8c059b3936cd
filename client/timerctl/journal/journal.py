"""timerctl journal tail, export: the rows of a journal, while it is written and long after."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import IntEnum, IntFlag
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, TextIO

from timerctl.exits import Exit, NoInstanceError
from timerctl.instance import NS, paths_of
from timerctl.show.table import terminal_width
from timerctl.show.text import columns_of, plain, span, whole
from timerd_shm.declare.errors import InvalidConfigError
from timerd_shm.declare.journal import TIMES, GroupStep, JournalLevel, RowFlag, RowKind, TextKind
from timerd_shm.declare.layout import (
    ClientFlag,
    ClientState,
    Condition,
    EventFlag,
    EventKind,
    KeyKind,
    Orphans,
    Outcome,
)
from timerd_shm.declare.limits import NO_DEADLINE
from timerd_shm.declare.wire import CommandFlag, CommandKind, RegisterFlag
from timerd_shm.read.journal_reader import SEGMENT_SUFFIX, Damage, JournalError, JournalReader, Offset, Row, segments_of

EPILOG = """\
The directory is --directory, else that of the instance's daemon. Rows name a
place in the journal, SEGMENT:RECORD; the place behind the last row of an export
is printed to standard error, and --from it goes on there later.

examples:
  timerctl journal tail -f
  timerctl journal export --from 17:40960 --output outcomes.jsonl
"""
TAIL_EPILOG = """\
examples:
  timerctl journal tail -n 100
  timerctl journal tail -f --json | jq 'select(.outcome == "EXPIRED")'
  timerctl journal tail --directory /var/lib/timerd/journal --from 17:0
"""
EXPORT_EPILOG = """\
examples:
  timerctl journal export --from 17:40960 --output outcomes.jsonl
  timerctl journal export --format parquet --output /var/lib/timerd/parquet
"""
HIDDEN = (RowKind.TEXT, RowKind.CONTINUED)
TEXTS = ("key", "owner", "group", "purgatory", "id")
POLL_S = 0.2
INCARNATION_SIZE = 16
ENUMS: dict[str, type[IntEnum]] = {
    "outcome": Outcome,
    "condition": Condition,
    "key_kind": KeyKind,
    "event_kind": EventKind,
    "command_kind": CommandKind,
    "orphans": Orphans,
    "state": ClientState,
    "step": GroupStep,
    "level": JournalLevel,
}
FLAGS: dict[RowKind, type[IntFlag]] = {
    RowKind.EVENT: EventFlag,
    RowKind.ACTION: CommandFlag,
    RowKind.CLIENT: ClientFlag,
}


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Declare the commands."""
    journal = commands.add_parser(
        "journal",
        help="rows of the journal: tail, export",
        description="Read the journal that the daemon writes with --journal.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = journal.add_subparsers(title="actions", metavar="ACTION", required=True)
    place = argparse.ArgumentParser(add_help=False, parents=[common])
    place.add_argument("--directory", metavar="DIR", type=Path, help="the journal's directory")

    tail = actions.add_parser(
        "tail",
        parents=[place],
        help="the newest rows",
        description="Print the newest rows.",
        epilog=TAIL_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    tail.add_argument("-f", "--follow", action="store_true", help="go on with what comes, until Ctrl-C")
    tail.add_argument("-n", "--rows", metavar="N", type=whole(1, 100_000), default=10, help="so many rows (default 10)")
    tail.add_argument("--from", dest="start", metavar="OFFSET", type=offset, help="all rows from this place on")
    tail.add_argument("--json", action="store_true", help="print a JSON object a line")
    tail.set_defaults(run=run_tail)

    export = actions.add_parser(
        "export",
        parents=[place],
        help="rows as JSON lines, or finished files as Parquet",
        description="Print rows as JSON objects, one a line; or write the files that are finished\nas Parquet.",
        epilog=EXPORT_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    export.add_argument(
        "--format",
        choices=("json", "parquet"),
        default="json",
        help="parquet: below --output DIR, by date, hour (UTC) and host, each file once; needs timerd[spark]",
    )
    export.add_argument(
        "--view",
        choices=("terminal", "events"),
        default="terminal",
        help="of Parquet: a row for each operation that has settled (default), or all rows",
    )
    export.add_argument("--all", action="store_true", help="of Parquet: the file that is being written as well")
    export.add_argument("--from", dest="start", metavar="OFFSET", type=offset, help="from this place on (the oldest)")
    export.add_argument("--to", dest="end", metavar="OFFSET", type=offset, help="up to this place (the newest)")
    export.add_argument("--output", metavar="FILE", type=Path, help="append to this file; of Parquet, the directory")
    export.set_defaults(run=run_export)


def offset(text: str) -> Offset:
    """Type of an argument: SEGMENT:RECORD."""
    try:
        return Offset.parse(text)
    except JournalError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def run_tail(arguments: argparse.Namespace) -> int:
    """Print the last rows, and those that come."""
    start = arguments.start
    with opened(arguments, start) as reader:
        show = Teller(reader)
        if start is None:
            reader.position = before(reader, arguments.rows)
            for line in deque(lines(reader, show, arguments.json), arguments.rows):
                print(line)
        else:
            for line in lines(reader, show, arguments.json):
                print(line)
        while arguments.follow:
            sys.stdout.flush()
            time.sleep(POLL_S)
            for line in lines(reader, show, arguments.json):
                print(line)
    return Exit.OK


def run_export(arguments: argparse.Namespace) -> int:
    """Print them all, and where to go on."""
    if arguments.format != "json":
        return run_export_files(arguments)
    with opened(arguments, arguments.start) as reader:
        if arguments.output is None:
            export_rows(reader, arguments.end, sys.stdout)
        else:
            with arguments.output.open("a") as file:
                export_rows(reader, arguments.end, file)
        print(f"the journal goes on at: --from {reader.position}", file=sys.stderr)
    return Exit.OK


def run_export_files(arguments: argparse.Namespace) -> int:
    """Write the finished files in a format that another package brings. Raises JournalError, InvalidConfigError."""
    if arguments.output is None or arguments.start or arguments.end:
        raise InvalidConfigError("--format parquet needs --output DIR, and takes whole files: neither --from nor --to")
    (found,) = entry_points(group="timerd.journal_formats", name=arguments.format) or (None,)
    try:
        if found is None:
            raise ImportError("timerd was installed without its Spark package")
        export = found.load()
    except ImportError as error:
        raise InvalidConfigError(f"--format parquet needs pip install 'timerd[spark]': {error}") from None
    done = export(
        directory_of(arguments), arguments.output, view=arguments.view, all_segments=arguments.all, progress=print
    )
    print(f"{done.rows:,} rows of {done.segments} segments in {done.files} new files", file=sys.stderr)
    return Exit.OK


def export_rows(reader: JournalReader, end: Offset | None, out: TextIO) -> None:
    show = Teller(reader)
    for row in reader.rows(end):
        show.hear(row)
        if row.record.kind not in HIDDEN:
            out.write(json.dumps(show.fields(row)) + "\n")


def lines(reader: JournalReader, show: Teller, as_json: bool) -> Iterator[str]:
    """A line for each row that there is now and that tells something."""
    for row in reader.rows():
        show.hear(row)
        if row.record.kind in HIDDEN:
            continue
        if as_json:
            yield json.dumps(show.fields(row))
        elif line := show.line(row):
            yield line


@contextmanager
def opened(arguments: argparse.Namespace, start: Offset | None) -> Iterator[JournalReader]:
    """The journal that is meant. Raises NoInstanceError, JournalError."""
    directory = directory_of(arguments)
    with JournalReader(directory, start=start, on_damage=say) as reader:
        if not segments_of(directory):
            raise JournalError(f"there is no journal in {directory}: it holds no *{SEGMENT_SUFFIX}")
        yield reader


def directory_of(arguments: argparse.Namespace) -> Path:
    """The directory that is given, else that of the instance's daemon. Raises NoInstanceError."""
    if arguments.directory is not None:
        return Path(arguments.directory)
    paths = paths_of(arguments)
    if not paths.journal.exists():
        raise NoInstanceError(
            f"the daemon of {paths.instance!r} writes no journal: start it with --journal DIR, or give --directory"
        )
    return paths.journal.resolve()


def say(damage: Damage) -> None:
    print(f"timerctl: {damage.offset}: {damage.what}", file=sys.stderr)


def before(reader: JournalReader, rows: int) -> Offset:
    """A place so far before the end that the last `rows` rows that are shown are likely behind it."""
    end, back = reader.end(), 8 * rows + 64
    if end.record >= back or end.segment <= reader.position.segment:
        return max(Offset(end.segment, max(end.record - back, 0)), reader.position)
    return max(Offset(end.segment - 1, 0), reader.position)


class Teller:
    """Rows as people and programs read them: texts for numbers, names for codes, and the wall clock's time."""

    def __init__(self, reader: JournalReader) -> None:
        self._reader = reader
        self._segment = -1
        self._wall_ns = 0  # what the wall clock says at monotonic 0

    def hear(self, row: Row) -> None:
        """Follow the clocks; for every row."""
        if row.record.kind == RowKind.ANCHOR:
            self._wall_ns = row.record.wall_ns - row.record.monotonic_ns
        elif row.offset.segment != self._segment and (header := self._reader.header) is not None:
            self._wall_ns = header.wall_ns - header.monotonic_ns
        self._segment = row.offset.segment

    def when(self, at_ns: int) -> str:
        """Wall-clock time to the microsecond, UTC."""
        seconds, rest = divmod(at_ns + self._wall_ns, NS)
        try:
            return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S") + f".{rest // 1000:06}Z"
        except (ValueError, OverflowError, OSError):
            return "?"

    def fields(self, row: Row) -> dict[str, Any]:
        """A row as a JSON object."""
        record = row.record
        kind = RowKind(record.kind)
        said: dict[str, Any] = {"offset": str(row.offset), "kind": kind.name.lower()}
        if at := TIMES.get(kind):
            said["at"] = self.when(getattr(record, at))
        for name, value in record._asdict().items():
            if name == "kind" or name.startswith(("reserved", "rest")):
                continue
            if name in TEXTS:
                said.update(self._text(name, value))
            elif name in ENUMS:
                said[name] = member(ENUMS[name], value)
            elif name == "flags":
                said[name] = names(FLAGS.get(kind, RowFlag), value)
            elif name == "command_flags":
                said[name] = names(RegisterFlag, value)
            else:
                said[name] = None if name == "deadline_ns" and value == NO_DEADLINE else value
        if kind is RowKind.OUTCOME:
            said["wait_ns"] = record.settled_ns - record.registered_ns
            if record.outcome == Outcome.EXPIRED:
                said["lateness_ns"] = record.settled_ns - record.deadline_ns
        return said

    def line(self, row: Row) -> str:
        """A row as a line of the terminal's width; empty for what says nothing to people."""
        what = self._what(row)
        at = TIMES.get(RowKind(row.record.kind))
        if not what or at is None:
            return ""
        text = f"{self.when(getattr(row.record, at))[11:23]}  {what}"
        width = terminal_width()
        while columns_of(text) > width:
            text = text[: width - 3 - (columns_of(text) - len(text))] + "..."
        return text

    def _what(self, row: Row) -> str:
        record, text = row.record, self._plain
        match RowKind(record.kind):
            case RowKind.OUTCOME:
                said = f"{member(Outcome, record.outcome).lower():<10}  {text('key', record.key)}"
                said += f"  after {span(record.settled_ns - record.registered_ns)}"
                if record.outcome == Outcome.EXPIRED:
                    said += f", {span(record.settled_ns - record.deadline_ns)} late"
                return said + (f"  ({owner})" if (owner := text("owner", record.owner)) else "")
            case RowKind.KEY:
                return ""
            case RowKind.REGISTER:
                due = "no deadline"
                if record.deadline_ns != NO_DEADLINE:
                    due = f"within {span(record.deadline_ns - record.registered_ns)}"
                return f"{'register':<10}  operation {record.operation:#x}, keys: {record.keys}, {due}"
            case RowKind.EVENT:
                kind = member(EventKind, record.event_kind).lower()
                return f"{kind:<10}  {text('key', record.key)}  amount {record.amount}"
            case RowKind.ACTION:
                return f"{member(CommandKind, record.command_kind).lower():<10}  operation {record.operation:#x}"
            case RowKind.CLIENT:
                return f"{'client':<10}  {text('owner', record.owner)} is {member(ClientState, record.state).lower()}"
            case RowKind.GROUP:
                said = f"{member(GroupStep, record.step).lower():<10}  operation {record.operation:#x}"
                said += f" of {text('group', record.group)}"
                return said + (f"  ({owner})" if (owner := text("owner", record.owner)) else "")
            case RowKind.GAP:
                return f"{'gap':<10}  {record.rows} rows are missing here"
            case RowKind.WATERMARK:
                return f"{'watermark':<10}  {text('key', record.key)}  {record.watermark}"
            case RowKind.SEGMENT if record.flags & RowFlag.START:
                return f"{'start':<10}  a daemon writes the journal"
        return ""

    def _plain(self, name: str, number: int) -> str:
        return str(self._text(name, number)[name] or "")

    def _text(self, name: str, number: int) -> dict[str, Any]:
        found = self._reader.text(number)
        if name == "owner" and found is not None and self._reader.text_kind(number) == TextKind.CLIENT:
            return {"owner": plain(found[INCARNATION_SIZE:]), "owner_incarnation": found[:INCARNATION_SIZE].hex()}
        if name == "id" and found is not None:
            return {name: found.hex()}
        return {name: None if found is None else plain(found)}


def member(enum: type[IntEnum], value: int) -> str:
    """The name of a code; its number where a newer daemon has written it."""
    try:
        return enum(value).name
    except ValueError:
        return str(value)


def names(flags: type[IntFlag], value: int) -> list[str]:
    """The names of the flags that are set."""
    return [name for name, flag in flags.__members__.items() if value & flag]
