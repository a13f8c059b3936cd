"""timerctl fire, advance, fail, cancel-for-key, forget: commands that act by key."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from timerctl.exits import Exit
from timerctl.instance import PURGATORY, add_purgatory, connected, purgatory_of
from timerctl.listing import declare_act, print_hints
from timerctl.show.text import U32_MAX, U64_MAX, key_of, print_json, whole
from timerd_shm.read.text import plain

from .watched import hints, operations, sentence, watched

if TYPE_CHECKING:
    from timerd_client import Client, Purgatory

MET = """\
The command prints what watched the key, and if nothing did, what may have been
meant: an advance, another purgatory, or a key that is spelt nearly alike. The
watchers are counted in the arena just before the event. A registration or an
outcome between the count and the event is not seen. The search for a key that
is spelt nearly alike takes a few seconds among a million keys.
"""
FIRE_EPILOG = f"""\
{MET}
The daemon itself counts the operations that the event completes when it is
applied. With --wait only this number is printed, hints go to standard error,
and the exit status is 1 when the event completed no operation. An event stays
in the ring, so a registration with an older mark (since=) that arrives later
gets it, too.

examples:
  timerctl fire inbox/7 --value hello
  timerctl fire jobs --limit 1 --wait       grant it to the first watcher
  timerctl fire topic/p0 --amount 4096
  timerctl fire inbox/7 --json | jq '.hints[].command'
"""
REFUSED = "The command returns when the daemon has applied the event. Exit status 1 when\nthe event was refused."
ADVANCE_EPILOG = f"""\
{MET}
examples:
  timerctl advance p0 812                   completes waits for 812 or less
  timerctl keys --match 'p*'                shows the watermarks
"""
FAIL_EPILOG = f"""\
An operation that waits for several keys fails when its condition can no longer
hold.

{MET}
examples:
  timerctl fail r1 --code 6 --value "not leader"
"""
CANCEL_EPILOG = f"""\
The owners of the cancelled operations get the outcome CANCELLED.

{MET}
examples:
  timerctl ops --key inbox/7                the operations that watch it
  timerctl cancel-for-key inbox/7
"""
FORGET_EPILOG = """\
No operation settles. A watermark that is not forgotten stays as long as the
arena exists.

examples:
  timerctl forget p0
"""


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Declare the commands."""
    key = argparse.ArgumentParser(add_help=False, parents=[common])
    key.add_argument("key", metavar="KEY", type=key_of, help="the key")
    add_purgatory(key)
    value = argparse.ArgumentParser(add_help=False)
    value.add_argument("--value", metavar="TEXT", default="", help="a text for the owners of the operations")

    def declare(name: str, parents: list[argparse.ArgumentParser], about: str, epilog: str) -> argparse.ArgumentParser:
        return declare_act(commands, parents, name, about, REFUSED, epilog)

    fire = declare("fire", [key, value], "fire an event on a key", FIRE_EPILOG)
    fire.add_argument(
        "--amount", metavar="N", type=whole(1, U64_MAX), default=1, help="what the event adds to a `total` (default 1)"
    )
    fire.add_argument("--limit", metavar="N", type=whole(1, U32_MAX), help="complete at most N operations")
    fire.add_argument("--wait", action="store_true", help="print only how many operations it completed")
    fire.set_defaults(run=run_fire)

    advance = declare("advance", [key], "raise a key's watermark", ADVANCE_EPILOG)
    advance.add_argument("offset", metavar="OFFSET", type=whole(0, U64_MAX), help="the new watermark")
    advance.set_defaults(run=run_advance)

    fail = declare("fail", [key, value], "settle a key as failed", FAIL_EPILOG)
    fail.add_argument(
        "--code", metavar="N", type=whole(0, U32_MAX), default=0, help="the error code that the owners get (default 0)"
    )
    fail.set_defaults(run=run_fail)

    cancel = declare("cancel-for-key", [key], "cancel every operation that watches a key", CANCEL_EPILOG)
    cancel.set_defaults(run=run_cancel)

    forget = declare("forget", [key], "forget a key's watermark", FORGET_EPILOG)
    forget.set_defaults(run=run_forget)


@contextmanager
def acting(arguments: argparse.Namespace) -> Iterator[Client]:
    """A client whose close() raises refusals. While it is open, refusals are not also logged as warnings."""
    log = logging.getLogger("timerd_client")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with connected(arguments) as client:
            yield client
    finally:
        log.setLevel(level)


def run_fire(arguments: argparse.Namespace) -> int:
    """Fire. With --wait, print only the number of completed operations."""
    with applied(arguments, "fire", "completed") as (purgatory, met):
        met.count = purgatory.fire_wait(
            arguments.key, value=key_of(arguments.value), amount=arguments.amount, limit=arguments.limit
        )
    return Exit.PROBLEM if arguments.wait and not met.count else Exit.OK


def run_advance(arguments: argparse.Namespace) -> int:
    """Raise a watermark."""
    with applied(arguments, "advance") as (purgatory, _):
        purgatory.advance(arguments.key, arguments.offset)
    return Exit.OK


def run_fail(arguments: argparse.Namespace) -> int:
    """Settle a key as failed."""
    with applied(arguments, "fail") as (purgatory, _):
        purgatory.fail(arguments.key, code=arguments.code, value=key_of(arguments.value))
    return Exit.OK


def run_cancel(arguments: argparse.Namespace) -> int:
    """Cancel the operations that watch a key."""
    with applied(arguments, "cancel-for-key", "cancelled") as (purgatory, met):
        met.count = purgatory.cancel_for_key_wait(arguments.key)
    return Exit.OK


def run_forget(arguments: argparse.Namespace) -> int:
    """Forget a watermark."""
    with applied(arguments, "forget") as (purgatory, _):
        purgatory.forget(arguments.key)
    return Exit.OK


class Met:
    """The number of operations that a command has settled, by the daemon's answer; None if it does not count them."""

    count: int | None = None


@contextmanager
def applied(arguments: argparse.Namespace, verb: str, settled: str = "") -> Iterator[tuple[Purgatory, Met]]:
    """Give the purgatory in which to act. When the daemon has applied the event, print what the event met.

    `settled` says what became of the operations that the daemon counts, such as "completed".
    """
    met = Met()
    with acting(arguments) as client:
        purgatory = purgatory_of(client, arguments)
        seen = watched(arguments)
        yield purgatory, met
    found = [] if seen is None or met.count else list(hints(arguments, verb, seen))
    if arguments.json:
        row: dict[str, Any] = {"key": plain(arguments.key), "purgatory": arguments.purgatory or PURGATORY}
        row |= {settled: met.count} if settled else {}
        print_json(row | {"just_before": None if seen is None else seen.row(), "hints": found})
        return
    alone = getattr(arguments, "wait", False)
    if alone:
        print(met.count)
    else:
        count = f"{operations(met.count).capitalize()} {settled}. " if met.count is not None else ""
        print(count + sentence(arguments, verb, seen))
    print_hints(found, sys.stderr if alone else None)
