"""timerctl subscribe: the events on keys, as they come."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from timerctl.exits import Exit
from timerctl.instance import NS, add_purgatory, connected, open_arena, paths_of, purgatory_of
from timerctl.known import of_silent_keys
from timerctl.listing import add_bytes, declare, print_hints
from timerctl.show.text import begun, duration_ns, key_of, whole, word
from timerd_client import Event, Gap
from timerd_shm.declare.errors import TimerdError
from timerd_shm.read.text import plain

EPILOG = """\
A line has the time, the kind of the event, the key, its number (the amount of a
fire, the watermark of an advance, the code of a fail) and the beginning of its
value. A line says where events may be missing, and why. Values may be secrets:
--bytes 0 shows none.

Exit status 1 if --timeout passes without an event. If no event came at all,
standard error names keys that are spelt nearly alike.

examples:
  timerctl subscribe orders/7
  timerctl subscribe r1 r2 r3 --count 1 --timeout 30s
  timerctl subscribe orders/7 --json | jq -r .value.text
"""


GAPS = {
    "overwritten": "the ring has newer events in their place",
    "arena": "the daemon has a new arena",
    "buffer": "this command was too slow",
}


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Declare the command."""
    command = declare(
        commands,
        common,
        "subscribe",
        run,
        help="events on keys, as they come",
        description="Print each event on the keys when it comes, until Ctrl-C. It settles nothing.",
        epilog=EPILOG,
        json="print one JSON object on each line",
    )
    command.add_argument("keys", metavar="KEY", nargs="+", type=key_of, help="the keys")
    command.add_argument("--count", metavar="N", type=whole(1, 1_000_000_000), help="end after N events")
    command.add_argument("--timeout", metavar="TIME", type=duration_ns, help="end after this time without an event")
    add_bytes(command, "values")
    add_purgatory(command)


def run(arguments: argparse.Namespace) -> int:
    """Print events until Ctrl-C, until there were --count, or until --timeout."""
    patience = None if arguments.timeout is None else arguments.timeout / NS
    left, came = arguments.count, False
    with (
        connected(arguments) as client,
        purgatory_of(client, arguments).subscribe(arguments.keys, timeout=patience) as events,
    ):
        for item in events:
            print(json.dumps(row_of(item, arguments.bytes)) if arguments.json else line_of(item, arguments.bytes))
            sys.stdout.flush()
            came = came or isinstance(item, Event)
            if isinstance(item, Event) and left is not None:
                left -= 1
                if left == 0:
                    return Exit.OK
    if not came:
        with suppress(OSError, TimerdError), open_arena(paths_of(arguments)) as reader:
            print_hints(list(of_silent_keys(reader, arguments)), sys.stderr)
    return Exit.PROBLEM


def row_of(item: Event | Gap, most: int) -> dict[str, Any]:
    """An event, or what was missed, for programs."""
    at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if isinstance(item, Gap):
        return {"at": at, "kind": "gap", "reason": item.reason}
    key = item.key if isinstance(item.key, bytes) else item.key.encode()
    return {"at": at, "kind": item.kind, "key": plain(key), "number": item.number, "value": begun(item.value, most)}


def line_of(item: Event | Gap, most: int) -> str:
    """The same for people."""
    row = row_of(item, most)
    if isinstance(item, Gap):
        return f"{row['at'][11:23]}  {'gap':8}  events may be missing here: {GAPS[item.reason]}"
    value = f"  {row['value']['text']}{'...' if row['value']['cut'] else ''}" if row["value"]["text"] else ""
    return f"{row['at'][11:23]}  {item.kind:8}  {word(row['key'])}  {item.number}{value}"
