"""timerctl explain: one operation: why it is pending, what would settle it, and how to cancel it."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterator
from typing import Any

from timerctl.exits import Exit, UsageError
from timerctl.instance import command_line, note_if_dead, open_arena, paths_of
from timerctl.listing import Row, declare
from timerctl.show.table import Column, Table, terminal_width
from timerctl.show.text import key_of, print_json, span, whole
from timerd_shm.declare.limits import PAYLOAD_SIZE_MAX
from timerd_shm.declare.states import IdState, Outcome
from timerd_shm.host.paths import InstancePaths
from timerd_shm.read.alive import is_alive, now_ns
from timerd_shm.read.reader import ArenaReader
from timerd_shm.read.text import plain

from .facts import Facts
from .find import Found, Gone, Meant, Remembered, meant

BYTES_SHOWN = 200
NAME_WIDTH = 11
EPILOG = """\
An operation is named by the id that its caller gave, or by its number: the
first column of `timerctl ops` (7.1), or `op` of `timerctl ops --json`. A text
that is an id is taken for the id, although it looks like a number; if another
operation has that number, --by says which one is meant. An id of several
purgatories needs --purgatory. A call is named by its id, a schedule by its
name.

The arena has only a hash of an id: the id itself is shown if it was given here.
Events on the keys are looked for among the newest 65,536 in the ring. Payloads
and values may be secrets. All who may read the arena may read them; --bytes 0
shows none. Bytes that a terminal must not get are escaped.

An operation that has settled is shown until its owner has acknowledged its
outcome. After that an id is known for an hour with its outcome, and a number
not at all: the journal has both (timerd --journal). Exit status 1: there is no
such operation, as far as the arena knows.

examples:
  timerctl explain session/9           by its id
  timerctl explain 7.1                 by its number
  timerctl ops --due-within 5s         ... which is shown there
  timerctl explain 7.1 --bytes 0       without payload and value
  timerctl explain 7.1 --json | jq '.keys[] | select(.state == "missing")'
"""


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Declare the command."""
    command = declare(
        commands,
        common,
        "explain",
        run,
        help="one operation: why it is pending, what would settle it",
        description="Explain one operation: its owner, its keys and which of them are missing, what\n"
        "would settle it, and how to cancel it. It needs no daemon.",
        epilog=EPILOG,
    )
    command.add_argument("what", metavar="ID|NUMBER", type=key_of, help="the id of an operation, or its number")
    command.add_argument("--by", choices=("id", "number"), help="what it is, where it could be both")
    command.add_argument("--purgatory", metavar="NAME", help="only of this purgatory")
    command.add_argument(
        "--bytes",
        metavar="N",
        type=whole(0, PAYLOAD_SIZE_MAX),
        default=BYTES_SHOWN,
        help=f"show N bytes of payload and value (default {BYTES_SHOWN}; 0: none)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Explain the operation, or say what is known of it."""
    paths = paths_of(arguments)
    with open_arena(paths) as reader:
        header = reader.header()
        found, facts = reader.between_turns(lambda: look_for(reader, arguments))
        several = {each.purgatory for each in facts}
        if len(several) > 1:
            raise UsageError(
                f"purgatories {', '.join(sorted(several))} have an operation {plain(arguments.what)!r:.60}: give one "
                "of them as --purgatory"
            )
        rows = [each.row() for each in facts] or [absent(reader, arguments, paths, found[0] if found else None)]
    if arguments.json:
        print_json(rows[0] | {"others": rows[1:]})  # others: a call waits while another call of its id runs
    else:
        if note := note_if_dead(paths, is_alive(paths, header)):
            print(note)
        for row in rows:
            print("\n".join(lines_of(row)))
    return Exit.OK if any(isinstance(each, Found | Remembered) for each in found) else Exit.PROBLEM


def look_for(reader: ArenaReader, arguments: argparse.Namespace) -> tuple[list[Meant], list[Facts]]:
    """The meanings of the command line, and the operations of them that stand in the arena."""
    found = meant(reader, arguments.what, arguments.by, arguments.purgatory)
    return found, [Facts(reader, arguments, each) for each in found if isinstance(each, Found)]


def absent(reader: ArenaReader, arguments: argparse.Namespace, paths: InstancePaths, found: Meant | None) -> Row:
    """The little that is known of an operation that does not stand in the arena, and where to find more."""
    header, what = reader.header(), plain(arguments.what)
    journal = f"timerctl{' --instance ' + arguments.instance if arguments.instance else ''} journal export"
    row: Row = {"op": None, "id": None, "state": "unknown", "settled": None, "purgatory": arguments.purgatory}
    search = ""
    if isinstance(found, Remembered):
        record = found.record
        name = Outcome(record.outcome).name.lower() if record.outcome in list(Outcome) else "in a way unknown here"
        ago = max(now_ns(header) - record.settled_ns, 0)
        row |= {"id": what, "state": name, "purgatory": found.purgatory, "settled": {"ago_ns": ago}}
        hashed = record.hash_low.to_bytes(8, "little") + record.hash_high.to_bytes(8, "little")
        search = f'select(.id == "{hashed.hex()}")'
        text = (
            f"The operation of id {what} in purgatory {found.purgatory} has settled: {name}, {span(ago)} ago. Its "
            "outcome was acknowledged, or nobody owned it, so its record is gone. The id is known for "
            f"{span(header.ids_kept_ns)} after that."
        )
        if record.state != IdState.SETTLED:
            text = f"The operation of id {what} has just settled: ask again."
    elif isinstance(found, Gone):
        row["op"] = found.number
        search = f"select(.operation == {found.number})" if found.used else ""
        text = f"No operation {what} stands in the arena, and none ever did: numbers are of one arena alone."
        if found.used:
            text = (
                f"Operation {what} has settled, and its outcome was acknowledged, or nobody owned it. How it settled "
                "is not known any more."
            )
    else:
        row["id"] = what
        where = f" in purgatory {arguments.purgatory}" if arguments.purgatory else ""
        text = (
            f"No operation of id {what} is known{where}. It was never registered, or has settled: an id is known for "
            f"{span(header.ids_kept_ns)} after that, and ids were forgotten up to "
            f"{span(max(now_ns(header) - header.ids_floor_ns, 0))} ago."
            if header.ids_floor_ns
            else f"No operation of id {what} is known{where}. It was never registered."
        )
    row["text"] = text
    if search and paths.journal.is_symlink():
        row["journal"] = f"{journal} | jq '{search}'"
    else:
        row["journal"] = None
        if search:
            row["text"] += " The daemon writes no journal, which would know more (timerd --journal DIR)."
    if found is None:
        row["similar"] = command_line(arguments, "ops", options=["--state", "all"])
    return row


# for people -----------------------------------------------------------------------------------------------------------

KEYS_TABLE = Table(
    Column("key", flexible=True),
    Column("state"),
    Column("waits for", flexible=True),
    Column("last event on it", flexible=True, wraps=True),
)


def lines_of(row: Row) -> Iterator[str]:
    """An operation, or what is known of one that is gone, as lines."""
    if "keys" not in row:
        yield from wrapped(row["text"])
        if row["journal"]:
            yield f"  {row['journal']}"
        if row.get("similar"):
            yield "Ids are looked up by their exact bytes. All operations are in:"
            yield f"  {row['similar']}"
        return
    yield from wrapped(title_of(row))
    yield ""
    for name, value in pairs_of(row):
        yield from wrapped(value, f"{name:{NAME_WIDTH}} ")
    if row["keys"] and row["call"] is None:
        yield ""
        yield from KEYS_TABLE.lines([cells_of(key) for key in row["keys"]])
    for event in row["events_on_near_keys"]:
        yield from wrapped(f"Spelt nearly alike, but no key of this operation: {event['key']}, {event_text(event)}.")
    for title, lines in (("To settle it", row["settles"]), ("To cancel it", row["cancel"])):
        if lines:
            yield ""
            yield title
            for line in lines:
                yield from wrapped(line["text"], "  ") if line["text"] else ()
                yield from (f"    {command}" for command in line["commands"])


def wrapped(text: str, first: str = "") -> list[str]:
    """A text as lines of the terminal's width."""
    return textwrap.wrap(
        text,
        min(terminal_width(), 100),
        initial_indent=first,
        subsequent_indent=" " * len(first),
        break_on_hyphens=False,
    ) or [first.rstrip()]


def title_of(row: Row) -> str:
    kind = row["kind"]
    beginning = f"{kind[0].upper()}{kind[1:]} {row['number']}"
    if row["settled"] is not None:
        settled = row["settled"]
        key = f", by {settled['key']}" if settled["key"] is not None else ""
        if row["call"] is not None:
            return f"{beginning} was due {span(settled['ago_ns'])} ago: {call_text(row['call'])}."
        code = f", code {settled['code']}" if settled["code"] is not None else ""
        return (
            f"{beginning} has settled: {row['state']}, {span(settled['ago_ns'])} ago{key}{code}. Its outcome is not "
            "acknowledged."
        )
    return f"{beginning} has been pending for {span(row['waiting_ns'])}."


def call_text(call: Row) -> str:
    states = {
        "unhandled": "no member of its group handles its name",
        "busy": "all members that handle it are busy",
        "waits": "it waits for another call, or to run alone",
        "delivered": "a member has it, and is about to run it",
        "runs": "it runs",
        "late": "it runs, for longer than its time_limit",
        "failed": f"it has failed: {call['reason']}",
        "paused": "it pauses after a failed attempt or an ended process",
        "pending": "it is pending",
    }
    return states[call["state"]]


def pairs_of(row: Row) -> Iterator[tuple[str, str]]:
    if row["id"] is not None:
        yield "id", row["id"]
    elif row["id_hash"] is not None:
        yield "id", f"it has one; the arena knows only its hash, {row['id_hash']}"
    else:
        yield "id", "none"
    if row["call"] is not None:
        call = row["call"]
        yield "call", f"{call['name']}, attempt {call['attempt']}: {call_text(call)}"
        if call["last_error"]:
            yield "last error", call["last_error"]
    yield "owner", owner_text(row)
    yield "purgatory", row["purgatory"]
    if row["call"] is None:
        yield "condition", condition_text(row)
    if row["deadline_ns"] is None:
        yield "deadline", "none"
    else:
        at = f" ({row['deadline']})" if row["deadline"] else ""
        overdue = row["due"].startswith("-")
        yield "deadline", (f"{row['due'][1:]} ago" if overdue else f"in {row['due']}") + at
    if row["registered"]:
        yield "registered", f"{row['registered']}, command {row['command']} of the client that did it"
    yield "payload", bytes_text(row["payload"])
    if row["settled"] is not None:
        yield "value", bytes_text(row["settled"]["value"])


def owner_text(row: Row) -> str:
    client, group = row["owner"]["client"], row["owner"]["group"]
    parts = []
    if group is not None:
        parts.append(f"group {group['name']}, {group['members']} member{'' if group['members'] == 1 else 's'}")
    if client is not None:
        name = f" {client['name']}" if client["name"] else ""
        pid = f", pid {client['pid']}" if client["pid"] else ", pid not known"
        life = "its process has ended" if client["ended"] else f"last frame {span(client['heard_ns_ago'])} ago"
        state = f"{client['state']}, {life}"
        held = "held by " if group is not None else ""
        parts.append(f"{held}client {client['slot']}{name}{pid} ({state})")
        if client["command"]:
            parts.append(plain(client["command"].encode("utf-8", "surrogateescape")))
    elif group is None:
        parts.append("none: its client has ended, and it was kept")
    return "; ".join(parts)


def condition_text(row: Row) -> str:
    parts = [row["condition"]]
    states = [key["state"] for key in row["keys"]]
    if "missing" in states or "satisfied" in states or "failed" in states:
        counts = [f"{states.count(state)} {state}" for state in ("satisfied", "failed", "missing") if state in states]
        parts.append(f"{row['key_count']} key{'' if row['key_count'] == 1 else 's'}: {', '.join(counts)}")
    elif not row["keys"]:
        parts.append(f"{row['key_count']} key{'' if row['key_count'] == 1 else 's'}, whose names left with its outcome")
    if (look := row["look"]) is not None:
        due = "the owner has not looked yet" if look["due"] else "the owner has looked, and no look is due"
        parts.append(f"its owner evaluates it: {due}")
    return "; ".join(parts)


def bytes_text(part: Row) -> str:
    if not part["bytes"]:
        return "none"
    many = f"{part['bytes']} byte{'' if part['bytes'] == 1 else 's'}"
    if not part["text"]:
        return many
    return f"{part['text']}{'...' if part['cut'] else ''} ({many})"


def cells_of(key: Row) -> tuple[str, ...]:
    waits = "an event"
    if key["kind"] == "watermark":
        now = "none now" if key["watermark"] is None else f"{key['watermark']} now"
        waits = f"watermark {key['target']} ({now})" if key["target"] is not None else "a watermark"
    elif key["kind"] == "observe":
        waits = "any event"
    state = key["state"] + (f", code {key['code']}" if key["code"] is not None else "")
    last = "-" if key["last_event"] is None else event_text(key["last_event"])
    if key["state"] not in ("missing", "watched"):
        waits = "-"
    return key["key"], state, waits, last


def event_text(event: Row) -> str:
    what = {"advance": f"advance to {event['amount']}", "fail": f"fail, code {event['amount']}"}
    text = f"{what.get(event['kind'], 'fire')} {span(event['ago_ns'])} ago"
    if event["client_name"]:
        text += f" by {event['client_name']}"
    return text + (", before it was registered" if event["before_registration"] else "")
