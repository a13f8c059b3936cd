"""timerctl calls retry, drop, cancel: commands about calls of groups and their dead letters."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from timerctl.exits import Exit, UsageError
from timerctl.instance import connected, open_arena, paths_of
from timerctl.listing import declare_act
from timerctl.show.text import U64_MAX, whole
from timerd_client.groups.listing import CallInfo, listed

if TYPE_CHECKING:
    from timerd_client import Client

RETRY_EPILOG = """\
The call begins with its first attempt. It has its old id, unless another call
has that id.

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
that serves it starts. Exit status 1 when no call of the id waits.

examples:
  timerctl calls cancel user-9
  timerctl calls cancel cleanup --group web
"""


def add(calls: Any, common: argparse.ArgumentParser) -> None:
    """Declare the commands, below `timerctl calls`."""
    numbers = argparse.ArgumentParser(add_help=False, parents=[common])
    numbers.add_argument("numbers", metavar="NUMBER", type=whole(1, U64_MAX), nargs="+")
    missing = "Exit status 1 when a NUMBER is not, or no longer, a dead letter."
    retry = declare_act(calls, [numbers], "retry", "make a call of a dead letter, due at once", missing, RETRY_EPILOG)
    retry.set_defaults(run=run_retry)
    drop = declare_act(calls, [numbers], "drop", "drop a dead letter", missing, DROP_EPILOG)
    drop.set_defaults(run=run_drop)
    known = argparse.ArgumentParser(add_help=False, parents=[common])
    known.add_argument("id", metavar="ID")
    known.add_argument("--group", metavar="NAME", help="the group of the call, if calls of several groups have this id")
    cancel = declare_act(calls, [known], "cancel", "cancel the call of an id, unless it runs", "", CANCEL_EPILOG)
    cancel.set_defaults(run=run_cancel)


def run_retry(arguments: argparse.Namespace) -> int:
    """Retry these dead letters."""
    return _each(arguments, lambda client, number: client.retry_call_wait(number))


def run_drop(arguments: argparse.Namespace) -> int:
    """Drop these dead letters."""
    return _each(arguments, lambda client, number: client.drop_call_wait(number))


def run_cancel(arguments: argparse.Namespace) -> int:
    """Cancel the call of an id."""
    found = {call.group for call in _listed(arguments, failed=False) if call.id == arguments.id}
    if arguments.group is not None:
        found = {arguments.group}
    if len(found) > 1:
        raise UsageError(f"groups {', '.join(sorted(found))} have a call {arguments.id!r}: give one of them as --group")
    for group in found:
        with connected(arguments, group) as client:
            if client.cancel_call_wait(arguments.id):
                return Exit.OK
    print(f"No call {arguments.id!r} waits: it runs, is over, or was never made.")
    return Exit.PROBLEM


def _each(arguments: argparse.Namespace, act: Callable[[Client, int], bool]) -> int:
    groups = {call.number: call.group for call in _listed(arguments, failed=True)}
    status = Exit.OK
    for number in arguments.numbers:
        done = False
        if number in groups:
            with connected(arguments, groups[number]) as client:
                done = act(client, number)
        if not done:
            print(f"There is no dead letter {number}: see `timerctl calls --failed`.")
            status = Exit.PROBLEM
    return status


def _listed(arguments: argparse.Namespace, *, failed: bool) -> list[CallInfo]:
    with open_arena(paths_of(arguments)) as reader:
        return list(listed(reader, failed=failed))
