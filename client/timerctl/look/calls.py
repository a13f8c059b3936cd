"""timerctl calls: the named calls of an instance: when they come next, why they wait, where they run; dead letters.

All of this comes from the arena (timerd_client/groups/listing.py). A new column needs three things: a value in `row_of`
(which is also the JSON), a head in CALLS_TABLE or LETTERS_TABLE, and a text in `cells_of` or `letter_of`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any

from timerctl.instance import NS, open_arena, paths_of
from timerctl.known import of_near_names
from timerctl.listing import Row, add_bytes, add_limit, declare, show
from timerctl.show.table import Column, Table
from timerctl.show.text import begun, key_of, span
from timerd_client.groups.listing import CallInfo, listed
from timerd_shm.read.reader import ArenaReader
from timerd_shm.read.text import label, plain

from .clocks import Clocks
from .handlers import Handlers

NOTES_MAX = 8  # hints below the table
NOT_SHOWN = ("payload", "time_limit", "name_bytes")  # fields of a call that its row has in another form, or not at all
WORDS = {
    "deserted": "the group has no member",
    "unhandled": "no handler of this name",
    "silent": "its members are silent",
    "busy": "its members are busy",
    "waits": "waits for another call",
    "delivered": "is about to run",
}
EPILOG = """\
now: when the call is due, or why it waits; hints below the table say what
helps. For a running call: its process, its running time and its deliveries.
"pauses": an attempt failed or its process ended, and the call comes again.
"late": the call runs for longer than its time_limit. "waits for another call":
the call has to run alone, or another call of its id runs. "silent": all members
that handle the call have sent nothing for as long as their lease. last run,
last error: a retried call shows its last attempt, and a schedule its last
point. The id of a schedule is its name. for: the time that the call was planned
for, such as the night of a nightly call; a retry keeps it. Payloads may be
secrets: --bytes 0 shows none.

A dead letter is a call that is over: it was given up, its last attempt failed,
or nobody served it. A group keeps the newest ones (--dead-letters of timerd).

examples:
  timerctl calls                      what comes next, in order of time
  timerctl calls --match 'mail/*'     calls of these names
  timerctl calls --failed             the dead letters
  timerctl calls retry 7              make a call of dead letter 7, due at once
  timerctl calls drop 7 8             drop two of them
  timerctl calls cancel user-9        cancel the call of an id, unless it runs
"""


def add(commands: Any, common: argparse.ArgumentParser) -> Any:
    """Declare the command; returns the place where the commands about calls are declared."""
    command = declare(
        commands,
        common,
        "calls",
        run,
        help="named calls: next run, last run, last error; dead letters",
        description="The named calls of an instance, in order of their next runs.",
        epilog=EPILOG,
    )
    command.add_argument("--group", metavar="NAME", help="only of this group")
    command.add_argument("--match", metavar="PATTERN", help="only names that match (*, ?, [...])")
    command.add_argument("--failed", action="store_true", help="the dead letters, the oldest first")
    add_bytes(command, "payloads")
    add_limit(command)
    return command.add_subparsers(metavar="ACTION")


def run(arguments: argparse.Namespace) -> int:
    """Print the calls, or the dead letters."""
    paths, failed = paths_of(arguments), arguments.failed
    with open_arena(paths) as reader:
        header = reader.header()
        clocks = Clocks(header)
        found = [
            call
            for call in listed(reader, arguments.group, failed=failed, clocks=clocks.of_calls)
            if arguments.match is None or fnmatchcase(call.name, arguments.match)
        ]
        nothing, hints = ("", []) if found else absence(reader, arguments)
        found.sort(key=lambda call: call.number if failed else call.due)
        handlers, now = Handlers(reader), clocks.now
        rows = [
            row_of(call, now, arguments.bytes) | {"hints": list(handlers.why(call, arguments))}
            for call in islice(found, arguments.limit)
        ]
    more = f"There are more: raise --limit ({arguments.limit})." if len(found) > len(rows) else ""
    if failed:
        return show(arguments, paths, header, rows, LETTERS_TABLE, letter_of, nothing, more, hints=hints)
    return show(arguments, paths, header, rows, CALLS_TABLE, cells_of, nothing, more, list(notes_of(rows)), hints=hints)


def absence(reader: ArenaReader, arguments: argparse.Namespace) -> tuple[str, list[Row]]:
    """A sentence for a listing without rows, and hints at names that are near those of the filters."""
    what, verb = ("dead letters", "calls --failed") if arguments.failed else ("calls", "calls")
    groups = [label(group.name[: group.name_length]) for group in reader.groups if group.state]
    if arguments.group is not None and arguments.group not in groups:
        near = of_near_names(arguments, "group", arguments.group, groups, verb, "--group")
        return f"No {what}: there is no group {arguments.group!r:.40} now.", list(near)
    if arguments.match is None:
        return f"No {what}.", []
    names = {call.name for call in listed(reader, arguments.group, failed=arguments.failed)}
    return f"No {what}.", list(of_near_names(arguments, "call", arguments.match, names, verb, "--match"))


def notes_of(rows: list[Row]) -> Iterator[str]:
    """The hints of all rows, each once: a sentence, and below it its command line."""
    hints = {hint["text"]: hint["command"] for row in rows for hint in row["hints"]}
    for text, command in islice(hints.items(), NOTES_MAX):
        yield f"{text[0].upper()}{text[1:]}{'' if text.endswith('?') else '.'}"
        if command:
            yield f"  {command}"


def row_of(call: CallInfo, now: datetime, most: int) -> Row:
    """A call as a row. Its times are in ISO 8601. Except for `point`, they also count from now: in ns and as text."""
    row: Row = {name: value for name, value in call._asdict().items() if name not in NOT_SHOWN}
    row["point"] = None if call.point is None else iso(call.point)
    for name in ("due", "since", "last_run"):
        at = row.pop(name)
        to_come = name == "due"
        ns = None if at is None else round((at - now if to_come else now - at) / timedelta(microseconds=1)) * 1_000
        row[name] = None if at is None else iso(at)
        row[f"{name}_in_ns" if to_come else f"{name}_ago_ns"] = ns
        row[f"{name}_in" if to_come else f"{name}_ago"] = None if ns is None else span(ns)
    row["time_limit_ns"] = None if call.time_limit is None else round(call.time_limit * NS)
    row["last_error"] = plain(call.last_error.encode())
    row["reason"] = plain(call.reason.encode())
    row["payload"] = begun(call.payload, most)
    return row


def _ago(row: Row) -> str:
    return "-" if row["last_run_ago"] is None else f"{row['last_run_ago']} ago"


def iso(at: datetime) -> str:
    """A time of UTC, as JSON has it."""
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _for(row: Row) -> str:
    return "-" if row["point"] is None else datetime.fromisoformat(row["point"]).strftime("%Y-%m-%d %H:%M:%SZ")


def now_of(row: Row) -> str:
    """The column "now": that the call runs, or when it is due, or why it waits."""
    if row["state"] in ("runs", "late"):
        late = ", late" if row["state"] == "late" else ""
        return f"runs in pid {row['pid']} for {row['since_ago']}{late} (delivery {row['deliveries']})"
    if row["state"] in ("pending", "paused"):
        return f"{'pauses, ' if row['state'] == 'paused' else ''}in {row['due_in']}"
    return WORDS[row["state"]]


CALLS_TABLE = Table(
    Column("name", flexible=True),
    Column("id", flexible=True),
    Column("now", flexible=True),
    Column("last run", right=True),
    Column("attempt", right=True),
    Column("last error", flexible=True),
    Column("ended", right=True, optional=True),
    Column("for", optional=True),
    Column("group", flexible=True, optional=True),
)
LETTERS_TABLE = Table(
    Column("number", right=True),
    Column("name", flexible=True),
    Column("for"),
    Column("last run", right=True),
    Column("attempt", right=True),
    Column("reason", flexible=True, wraps=True),
    Column("payload", flexible=True, optional=True),
    Column("group", flexible=True, optional=True),
)


def cells_of(row: Row) -> tuple[object, ...]:
    return (
        row["name"],
        "-" if (id := plain(key_of(row["id"]))) == row["name"] else id,
        now_of(row),
        _ago(row),
        row["attempt"],
        row["last_error"] or "-",
        row["ended"],
        _for(row),
        row["group"],
    )


def letter_of(row: Row) -> tuple[object, ...]:
    return (
        row["number"],
        row["name"],
        _for(row),
        _ago(row),
        row["attempt"],
        row["reason"],
        payload_text(row["payload"]),
        row["group"],
    )


def payload_text(payload: Row) -> str:
    return f"{payload['text']}{'...' if payload['cut'] else ''}" or "-"
