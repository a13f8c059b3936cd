"""timerctl explain: one operation: why it is pending, what would settle it, and how to cancel it."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterator
from typing import Any

from timerctl.exits import Exit, UsageError
from timerctl.instance import command_line, life_of, open_arena, paths_of
from timerctl.known import of_key
from timerctl.listing import Row, add_bytes, declare, hint
from timerctl.show.table import Column, Table, terminal_width
from timerctl.show.text import key_of, print_json, span, word
from timerd_client.protocol.session import CALLS
from timerd_shm.declare.records import OpRecord
from timerd_shm.declare.states import IdState, OpFlag, Outcome
from timerd_shm.host.paths import InstancePaths
from timerd_shm.read.alive import now_ns
from timerd_shm.read.reader import ArenaReader
from timerd_shm.read.text import plain

from .facts import Facts
from .find import Found, Gone, Meant, Remembered, meant
from .instead import meant_instead
from .journal_lines import JournalLines

NAME_WIDTH = 11
# Fields with lists. A row of an operation that does not stand in the arena has them, too, so that programs find them.
LISTS = ("keys", "events_on_near_keys", "events_in_other_purgatories", "settles", "cancel")
EPILOG = """\
An operation is named by the id that its caller gave, or by its number: the
first column of `timerctl ops` (7.1), or `op` of `timerctl ops --json`. A key is
no id: `timerctl ops --key KEY` lists the operations that watch the key. A text
that is an id is taken for the id, even if it looks like a number. If it is the
id of one operation and the number of another, give --by. An id that several
purgatories have needs --purgatory. A call is named by its id, a schedule by its
name.

The arena has only a hash of an id: the id itself is shown if it was given here.
Events on the keys are looked for among the newest 65,536 in the ring. Payloads
and values may be secrets. All who may read the arena may read them; --bytes 0
shows none. Bytes that a terminal must not get are escaped.

An operation that has settled is shown until its owner has acknowledged its
outcome. After that the outcome is shown by the id for an hour, and by the
number until another operation gets the record. A journal has both for longer
(timerd --journal). The id of a call that is over is known for an hour, too, but
not whether the call ran, failed or was cancelled: a journal of level events has
that. The arena has the name of a client until another client has its slot. Exit
status 1: there is no such operation, as far as the arena knows.

examples:
  timerctl explain login-9             by its id, which is not a key
  timerctl explain 7.1                 by its number
  timerctl ops --due-within 5s         shows such numbers
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
    command.add_argument("--by", choices=("id", "number"), help="whether ID|NUMBER is an id or a number")
    command.add_argument("--purgatory", metavar="NAME", help="only of this purgatory")
    add_bytes(command, "payload and value")


def run(arguments: argparse.Namespace) -> int:
    """Explain the operation, or say what is known of it."""
    paths = paths_of(arguments)
    with open_arena(paths) as reader:
        header = reader.header()
        rows, is_known = explained(reader, paths, arguments)
    life = life_of(paths, header)
    if arguments.json:
        # others: two calls may have one id, while one of them runs and the other waits; or former calls of the id have
        # left dead letters
        print_json(life.row() | rows[0] | {"others": rows[1:]})
    else:
        if note := life.note():
            print(note)
        for row in rows:
            print("\n".join(lines_of(row)))
    return Exit.OK if is_known else Exit.PROBLEM


def explained(reader: ArenaReader, paths: InstancePaths, arguments: argparse.Namespace) -> tuple[list[Row], bool]:
    """Rows about the operation, at least one; and whether the arena knows the operation."""
    found, facts = reader.between_turns(lambda: look_for(reader, arguments))
    several = {each.purgatory for each in facts}
    if len(several) > 1:
        raise UsageError(
            f"purgatories {', '.join(sorted(several))} have an operation {plain(arguments.what)!r:.60}: give one "
            "of them as --purgatory"
        )
    journal = JournalLines(arguments, paths, reader.header())
    rows = [each.row() for each in facts]
    rows = [row | {"journal": journal.of_standing(row)} for row in rows] or [
        absent(reader, arguments, journal, found[0] if found else None)
    ]
    return rows, any(isinstance(each, Found | Remembered) or each.op is not None for each in found)


def look_for(reader: ArenaReader, arguments: argparse.Namespace) -> tuple[list[Meant], list[Facts]]:
    """The possible meanings of the command line, and facts of those operations that stand in the arena."""
    found = meant(reader, arguments.what, arguments.by, arguments.purgatory)
    return found, [Facts(reader, arguments, each) for each in found if isinstance(each, Found)]


def absent(reader: ArenaReader, arguments: argparse.Namespace, journal: JournalLines, found: Meant | None) -> Row:
    """The little that is known of an operation that does not stand in the arena, and where to find more."""
    header, what = reader.header(), word(plain(arguments.what))
    row: Row = {"op": None, "id": None, "state": "unknown", "settled": None, "purgatory": arguments.purgatory}
    row |= {"kind": None, "call": None, "journal": None, "hints": []} | {name: [] for name in LISTS}
    if isinstance(found, Remembered):
        record = found.record
        ago = max(now_ns(header) - record.settled_ns, 0)
        name = Outcome(record.outcome).name.lower() if record.outcome in list(Outcome) else "in a way unknown here"
        is_call = found.purgatory == CALLS
        row |= {
            "id": plain(arguments.what),
            "state": "over" if is_call else name,
            "purgatory": found.purgatory,
            "settled": {"ago_ns": ago},
        }
        known = f"The id is known for {span(header.ids_kept_ns)} after that."
        if record.state != IdState.SETTLED:
            text = f"The operation of id {what} has just settled: ask again."
        elif is_call:
            text = (
                f"The call of id {what} is over. It ran, or was cancelled, or failed and its dead letter was dropped: "
                f"the arena does not say which. {span(ago)} ago it came due, or was cancelled. {known}"
            )
        else:
            by = ""
            if record.outcome == Outcome.CANCELLED:
                by = " Its owner has cancelled it, or somebody by its id or a key, or its owner has ended."
            text = (
                f"The operation of id {what} in purgatory {found.purgatory} has settled: {name}, {span(ago)} ago.{by} "
                f"Its outcome was acknowledged, or nobody owned it, so its record is gone. {known}"
            )
        row["journal"] = journal.of_id(record, is_call=is_call)
    elif isinstance(found, Gone):
        row["op"] = found.number
        text = f"No operation {what} stands in the arena, and none ever did: numbers are of one arena alone."
        if found.used:
            how = "How it settled is not known any more."
            if found.op is not None:
                row |= settlement(found.op, now_ns(header))
                how = (
                    f"It {state_text(row['state'])} {span(row['settled']['ago_ns'])} ago. This is known until another "
                    "operation gets its record."
                )
            text = f"Operation {what} has settled, and its outcome was acknowledged, or nobody owned it. {how}"
            row["journal"] = journal.of_operation(found.number)
    else:
        row["id"] = plain(arguments.what)
        where = f" in purgatory {arguments.purgatory}" if arguments.purgatory else ""
        keys = list(of_key(reader, arguments, arguments.what))
        text = (
            f"No operation of id {what} is known{where}: {what} is a key."
            if keys
            else f"No operation of id {what} is known{where}. It was never registered, or has settled: an id is known "
            f"for {span(header.ids_kept_ns)} after that, but one that settled more than "
            f"{span(max(now_ns(header) - header.ids_floor_ns, 0))} ago may have been forgotten earlier."
            if header.ids_floor_ns
            else f"No operation of id {what} is known{where}. It was never registered."
        )
        row["hints"] = [
            *keys,
            *meant_instead(reader, arguments),
            hint(
                "all",
                "ids are looked up by their exact bytes; this command lists all operations",
                command_line(arguments, "ops", options=["--state", "all"]),
            ),
        ]
    row["text"] = text
    return row


def settlement(op: OpRecord, now: int) -> Row:
    """How and when an operation settled whose record is free. Whether a call ran or failed is not in its record."""
    known = op.outcome in list(Outcome) and not (op.flags & OpFlag.CALL and op.outcome != Outcome.CANCELLED)
    state = "over" if op.flags & OpFlag.CALL else "unknown"
    return {
        "state": Outcome(op.outcome).name.lower() if known else state,
        "settled": {"ago_ns": max(now - op.settled_ns, 0)},
    }


def state_text(state: str) -> str:
    """The state of an operation that has settled, as a predicate."""
    return {"over": "was due", "unknown": "settled", "cancelled": "was cancelled"}.get(state, state)


# for people -----------------------------------------------------------------------------------------------------------

KEYS_TABLE = Table(
    Column("key", flexible=True),
    Column("state"),
    Column("waits for", flexible=True),
    Column("newest events on it", flexible=True, wraps=True),
)


def lines_of(row: Row) -> Iterator[str]:
    """An operation, or what is known of one that is gone, as lines."""
    if "text" in row:  # of one that is gone
        yield from wrapped(row["text"])
        yield from hint_lines([*filter(None, [row["journal"]]), *row["hints"]])
        return
    yield from wrapped(title_of(row))
    yield ""
    for name, value in pairs_of(row):
        yield from wrapped(value, f"{name:{NAME_WIDTH}} ")
    if row["keys"] and row["call"] is None:
        yield ""
        yield from KEYS_TABLE.lines([cells_of(key) for key in row["keys"]])
    for event in row["events_on_near_keys"]:
        yield from wrapped(
            f"Spelt nearly alike, but no key of this operation: {word(event['key'])}, {event_text(event)}."
        )
    for event in row["events_in_other_purgatories"]:
        yield from wrapped(
            f"In another purgatory, {event['purgatory'] or '?'}: {word(event['key'])}, {event_text(event)}. Events of "
            "one purgatory mean nothing in another one."
        )
    if row["hints"] or row["journal"]:
        yield ""
        yield from hint_lines([*row["hints"], *filter(None, [row["journal"]])])
    for title, lines in (("To settle it", row["settles"]), ("To cancel it", row["cancel"])):
        if lines:
            yield ""
            yield title
            for line in lines:
                yield from wrapped(line["text"], "  ") if line["text"] else ()
                yield from (f"    {command}" for command in line["commands"])


def hint_lines(hints: list[Row]) -> Iterator[str]:
    """Hints as sentences, each with its command line below it."""
    for each in hints:
        text = each["text"][0].upper() + each["text"][1:]
        yield from wrapped(
            text + (":" if each["command"] and text[-1] not in "?:" else "" if text[-1] in "?." else ".")
        )
        if each["command"]:
            yield f"  {each['command']}"


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
            if number := row["call"]["number"]:
                beginning = f"Dead letter {number} (operation {row['number']})"
            return f"{beginning} was due {span(settled['ago_ns'])} ago: {call_text(row['call'])}."
        code = f", code {settled['code']}" if settled["code"] is not None else ""
        return (
            f"{beginning} has settled: {row['state']}, {span(settled['ago_ns'])} ago{key}{code}. Its outcome is not "
            "acknowledged."
        )
    return f"{beginning} has been pending for {span(row['waiting_ns'])}."


def call_text(call: Row) -> str:
    runs = f"runs in pid {call['pid'] or '?'} for {call['since_ago']}"
    limit = f", its time_limit is {span(call['time_limit_ns'])}" if call["time_limit_ns"] else ", without a time_limit"
    states = {
        "deserted": "its group has no member",
        "unhandled": "no member of its group handles its name",
        "silent": "all members that handle it are silent",
        "busy": "all members that handle it are busy",
        "waits": "it waits for another call, or to run alone",
        "delivered": "a member has it, and is about to run it",
        "runs": f"it {runs}{limit}",
        "late": f"it {runs}{limit}: it is late",
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
        at = f" ({row['due']})" if row["due"] else ""
        yield "deadline", (f"{row['due_in'][1:]} ago" if row["due_in_ns"] < 0 else f"in {row['due_in']}") + at
    if row["registered"]:
        yield "registered", f"{row['registered']}, command {row['command']} of the client that did it"
    yield "payload", bytes_text(row["payload"])
    if row["settled"] is not None:
        yield "value", bytes_text(row["settled"]["value"])


def owner_text(row: Row) -> str:
    client, group = row["owner"]["client"], row["owner"]["group"]
    parts = []
    if group is not None:
        members = f"{group['members']} member{'' if group['members'] == 1 else 's'}"
        takers = "" if row["call"] is not None else f" ({group['listeners']} of them iterate over outcomes())"
        parts.append(f"group {group['name']}, {members}{takers if group['members'] else ''}")
    if client is not None:
        name = f" {client['name']}" if client["name"] else ""
        pid = f", pid {client['pid']}" if client["pid"] else ", pid not known"
        life = "its process has ended" if client["ended"] else f"last frame {span(client['heard_ago_ns'])} ago"
        state = f"{client['state']}{', stopped' if client['stopped'] else ''}, {life}"
        held = "held by " if group is not None else ""
        parts.append(f"{held}client {client['slot']}{name}{pid} ({state})")
        if client["command"]:
            parts.append(plain(client["command"].encode("utf-8", "surrogateescape")))
    elif group is None:
        parts.append("none: the operation was kept when its client ended; the arena does not have the client's name")
    return "; ".join(parts)


def condition_text(row: Row) -> str:
    parts = [row["condition"]]
    states = [key["state"] for key in row["keys"]]
    if "missing" in states or "satisfied" in states or "failed" in states:
        counts = [f"{states.count(state)} {state}" for state in ("satisfied", "failed", "missing") if state in states]
        parts.append(f"{row['key_count']} key{'' if row['key_count'] == 1 else 's'}: {', '.join(counts)}")
    elif not row["keys"]:
        parts.append(
            f"{row['key_count']} key{'' if row['key_count'] == 1 else 's'}, whose names are gone since it settled"
        )
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
    last = "; before that ".join(map(event_text, key["events"])) or "-"
    if key["state"] not in ("missing", "watched"):
        waits = "-"
    return word(key["key"]), state, waits, last


def event_text(event: Row) -> str:
    what = {"advance": f"advance to {event['amount']}", "fail": f"fail, code {event['amount']}"}
    text = f"{what.get(event['kind'], 'fire')} {span(event['ago_ns'])} ago"
    if event["client_name"]:
        text += f" by {event['client_name']}"
    elif event["client"] is None:
        text += " by a client that has ended"
    return text + (", before it was registered" if event["before_registration"] else "")
