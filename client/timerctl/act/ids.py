"""timerctl cancel, reschedule: commands that act on one operation by its id."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from timerctl.exits import Exit
from timerctl.instance import NS, PURGATORY, add_purgatory, open_arena, paths_of, purgatory_of
from timerctl.listing import Row, declare_act, print_hints
from timerctl.look.instead import of_another_kind, of_number
from timerctl.show.text import key_of, print_json, word
from timerd_shm.declare.errors import TimerdError, UnknownOperationError
from timerd_shm.read.text import plain

from .events import acting
from .register import timeout

if TYPE_CHECKING:
    from timerd_client import Purgatory

KNOWN = "Any process may have registered the operation. Exit status 1 when no operation\nof the id is pending."
CANCEL_EPILOG = """\
The operation's owner gets the outcome CANCELLED. A number of `timerctl ops` is
no id. If an operation has no id, its owner can cancel it. `timerctl
cancel-for-key` cancels all operations that watch a key.

examples:
  timerctl register session/9 --timeout 15m --id login-9
  timerctl cancel login-9
"""
RESCHEDULE_EPILOG = """\
TIME counts from now. The owner gets no notice of the new deadline.

examples:
  timerctl reschedule login-9 --timeout 15m
  timerctl reschedule login-9 --timeout none            no deadline any more
"""


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Declare the commands."""

    known = argparse.ArgumentParser(add_help=False, parents=[common])
    known.add_argument("id", metavar="ID", type=key_of, help="the id of the operation")
    add_purgatory(known)
    cancel = declare_act(commands, [known], "cancel", "cancel the operation of an id", KNOWN, CANCEL_EPILOG)
    cancel.set_defaults(run=run_cancel)
    about = "give the operation of an id a new deadline"
    reschedule = declare_act(commands, [known], "reschedule", about, KNOWN, RESCHEDULE_EPILOG)
    reschedule.add_argument("--timeout", metavar="TIME", type=timeout, required=True, help="30s, 200ms, 2h, or none")
    reschedule.set_defaults(run=run_reschedule)


def run_cancel(arguments: argparse.Namespace) -> int:
    """Cancel the operation."""
    return _act(arguments, "cancel", "cancelled", lambda purgatory: purgatory.cancel_wait(arguments.id))


def run_reschedule(arguments: argparse.Namespace) -> int:
    """Give the operation a new deadline."""
    seconds = None if arguments.timeout is None else arguments.timeout / NS
    return _act(
        arguments, "reschedule", "rescheduled", lambda purgatory: purgatory.reschedule_wait(arguments.id, seconds)
    )


def _act(arguments: argparse.Namespace, verb: str, done: str, act: Callable[[Purgatory], object]) -> int:
    """Act on the operation of an id. If there is none, say what may have been meant."""
    row: Row = {"id": plain(arguments.id), "purgatory": arguments.purgatory or PURGATORY, "done": True, "hints": []}
    with acting(arguments) as client:
        try:
            act(purgatory_of(client, arguments))
        except UnknownOperationError as error:
            row |= {"done": False, "error": str(error)} | _meant(arguments, verb)
    if arguments.json:
        print_json(row)
    elif row["done"]:
        print(f"Operation {word(row['id'])} of purgatory {row['purgatory']} was {done}.")
    else:
        print(f"timerctl: {row['error']}", file=sys.stderr)
        print_hints(row["hints"], sys.stderr)
    return Exit.OK if row["done"] else Exit.PROBLEM


def _meant(arguments: argparse.Namespace, verb: str) -> Row:
    """Hints at what was meant, and an error if the text is the number of an operation."""
    with suppress(OSError, TimerdError), open_arena(paths_of(arguments)) as reader:
        if (number := of_number(reader, arguments, verb, arguments.id)) is not None:
            return number
        return {"hints": list(of_another_kind(reader, arguments, verb, arguments.id))}
    return {"hints": []}
