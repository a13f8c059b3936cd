"""timerctl cancel, reschedule: commands that act on one operation by its id."""

from __future__ import annotations

import argparse
from typing import Any

from timerctl.exits import Exit
from timerctl.instance import add_purgatory, purgatory_of
from timerctl.listing import declare_act
from timerctl.show.text import key_of

from .events import acting
from .register import timeout

KNOWN = "Any process may have registered it. Exit status 1 when no operation of the\nid is pending."
CANCEL_EPILOG = """\
Its owner gets the outcome CANCELLED.

examples:
  timerctl register session/9 --timeout 15m --id session/9
  timerctl cancel session/9
"""
RESCHEDULE_EPILOG = """\
TIME counts from now. The owner gets no notice of the new deadline.

examples:
  timerctl reschedule session/9 --timeout 15m
  timerctl reschedule session/9 --timeout none          no deadline any more
"""


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Declare the commands."""

    known = argparse.ArgumentParser(add_help=False, parents=[common])
    known.add_argument("id", metavar="ID", type=key_of)
    add_purgatory(known)
    cancel = declare_act(commands, [known], "cancel", "cancel the operation of an id", KNOWN, CANCEL_EPILOG)
    cancel.set_defaults(run=run_cancel)
    about = "give the operation of an id a new deadline"
    reschedule = declare_act(commands, [known], "reschedule", about, KNOWN, RESCHEDULE_EPILOG)
    reschedule.add_argument("--timeout", metavar="TIME", type=timeout, required=True, help="30s, 200ms, 2h, or none")
    reschedule.set_defaults(run=run_reschedule)


def run_cancel(arguments: argparse.Namespace) -> int:
    """Cancel the operation."""
    with acting(arguments) as client:
        purgatory_of(client, arguments).cancel_wait(arguments.id)
    return Exit.OK


def run_reschedule(arguments: argparse.Namespace) -> int:
    """Give the operation a new deadline."""
    with acting(arguments) as client:
        seconds = None if arguments.timeout is None else arguments.timeout / 1e9
        purgatory_of(client, arguments).reschedule_wait(arguments.id, seconds)
    return Exit.OK
