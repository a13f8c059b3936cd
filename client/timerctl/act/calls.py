"""timerctl calls retry, drop, cancel: commands about calls of groups and their dead letters."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from timerctl.exits import Exit, UsageError
from timerctl.instance import command_line, connected, open_arena, paths_of
from timerctl.listing import Row, declare_act, hint, print_hints
from timerctl.look.find import Found, meant
from timerctl.look.instead import of_name, of_number
from timerctl.show.text import U64_MAX, key_of, print_json, whole, word
from timerd_client.groups.listing import CallInfo, listed
from timerd_client.protocol.session import CALLS
from timerd_shm.declare.errors import TimerdError
from timerd_shm.read.text import plain

if TYPE_CHECKING:
    from timerd_client import Client

RETRY_EPILOG = """\
The new call begins with its first attempt. It gets the former id of the dead
letter, unless another call has that id by now.

example:
  timerctl calls retry 7
"""
DROP_EPILOG = """\
example:
  timerctl calls drop 7 8
"""
CANCEL_EPILOG = """\
A running call is not interrupted. The id of a schedule is its name: the
schedule's next call is cancelled, and the schedule begins anew when a worker
that serves it starts. Exit status 1 when no call of the id waits. Then hints
are printed: if ID is the name of calls, they give the ids of these calls.

examples:
  timerctl calls cancel user-9
  timerctl calls cancel cleanup --group web
"""


def add(calls: Any, common: argparse.ArgumentParser) -> None:
    """Declare the commands, below `timerctl calls`."""
    numbers = argparse.ArgumentParser(add_help=False, parents=[common])
    about = "the number of a dead letter: `timerctl calls --failed`"
    numbers.add_argument("numbers", metavar="NUMBER", type=whole(1, U64_MAX), nargs="+", help=about)
    missing = "Exit status 1 when a NUMBER is not, or no longer, a dead letter."
    retry = declare_act(calls, [numbers], "retry", "make a call of a dead letter, due at once", missing, RETRY_EPILOG)
    retry.set_defaults(run=run_retry)
    drop = declare_act(calls, [numbers], "drop", "drop a dead letter", missing, DROP_EPILOG)
    drop.set_defaults(run=run_drop)
    known = argparse.ArgumentParser(add_help=False, parents=[common])
    known.add_argument("id", metavar="ID", type=key_of, help="the id of the call")
    about = "the group of the call, if calls of several groups have this id"
    # A default of None would overwrite the first --group of `timerctl calls --group web cancel user-9`.
    known.add_argument("--group", metavar="NAME", default=argparse.SUPPRESS, help=about)
    cancel = declare_act(calls, [known], "cancel", "cancel the call of an id, unless it runs", "", CANCEL_EPILOG)
    cancel.set_defaults(run=run_cancel)


def run_retry(arguments: argparse.Namespace) -> int:
    """Retry these dead letters."""
    return _each(arguments, "retried", lambda client, number: client.retry_call_wait(number))


def run_drop(arguments: argparse.Namespace) -> int:
    """Drop these dead letters."""
    return _each(arguments, "dropped", lambda client, number: client.drop_call_wait(number))


def run_cancel(arguments: argparse.Namespace) -> int:
    """Cancel the call of an id."""
    shown = plain(arguments.id)
    found = {call.group for call in _listed(arguments, failed=False) if key_of(call.id) == arguments.id}
    given = arguments.group
    if given is not None:
        found = {given}
    if len(found) > 1:
        raise UsageError(f"groups {', '.join(sorted(found))} have a call {word(shown)}: give one of them as --group")
    row: Row = {"id": shown, "group": next(iter(found), None), "done": False, "hints": []}
    with suppress(UnicodeDecodeError):  # the id of a call is text, so no call has this id
        wanted = arguments.id.decode()
        for group in found:
            with connected(arguments, group) as client:
                row["done"] = client.cancel_call_wait(wanted)
    if not row["done"]:
        row["hints"] = list(_meant(arguments))
    if arguments.json:
        print_json(row)
    elif row["done"]:
        print(f"Call {word(shown)} of group {row['group']} was cancelled.")
    else:
        print(f"No call {word(shown)} waits: it runs, is over, or was never made.")
        print_hints(row["hints"])
    return Exit.OK if row["done"] else Exit.PROBLEM


def _meant(arguments: argparse.Namespace) -> Iterator[Row]:
    """Hints for an id that no waiting call has: a call that runs, calls of this name, an operation."""
    with suppress(OSError, TimerdError), open_arena(paths_of(arguments)) as reader:
        text: bytes = arguments.id
        runs = [call for call in listed(reader) if key_of(call.id) == text and call.state in ("runs", "late")]
        for call in runs:
            runs_in = f"call {word(call.shown_id)} runs in pid {call.pid or '?'}"
            text_of = f"{runs_in}, and a call that runs cannot be cancelled"
            yield hint("runs", text_of, command_line(arguments, "explain", text))
        yield from of_name(reader, arguments, text)
        if (number := of_number(reader, arguments, "calls cancel", text)) is not None:
            yield hint("number", number["error"], None)
            yield from number["hints"]
        if any(b"%d" % call.number == text for call in listed(reader, failed=True)):
            line = command_line(arguments, "calls drop", text)
            yield hint("letter", f"a dead letter has the number {plain(text)}", line)
        for each in meant(reader, text, "id", None):
            if isinstance(each, Found) and (name := reader.purgatory_name(each.op.purgatory)) != CALLS:
                line = command_line(arguments, "cancel", text, purgatory=name)
                yield hint("operation", f"an operation of purgatory {name} has this id, and no call", line)


def _each(arguments: argparse.Namespace, done_to_it: str, act: Callable[[Client, int], bool]) -> int:
    groups = {call.number: call.group for call in _listed(arguments, failed=True)}
    rows: list[Row] = []
    try:
        for number in arguments.numbers:
            done = False
            if number in groups:
                with connected(arguments, groups[number]) as client:
                    done = act(client, number)
            rows.append({"number": number, "group": groups.get(number), "done": done})
            if not arguments.json:
                missing = f"There is no dead letter {number}: see `timerctl calls --failed`."
                print(f"Dead letter {number} of group {groups[number]} was {done_to_it}." if done else missing)
    finally:
        if arguments.json and rows:  # after an error, too: what was done before it is reported
            print_json({"rows": rows})
    return Exit.OK if all(row["done"] for row in rows) else Exit.PROBLEM


def _listed(arguments: argparse.Namespace, *, failed: bool) -> list[CallInfo]:
    with open_arena(paths_of(arguments)) as reader:
        return list(listed(reader, failed=failed))
