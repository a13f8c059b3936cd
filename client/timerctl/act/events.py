"""timerctl fire, advance, fail, cancel-for-key, forget: commands that act by key."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from timerctl.exits import Exit
from timerctl.instance import add_purgatory, connected, purgatory_of
from timerctl.listing import declare_act
from timerctl.show.text import U32_MAX, U64_MAX, key_of, whole

if TYPE_CHECKING:
    from timerd_client import Client

FIRE_EPILOG = """\
With --wait it prints how many operations the event completed. The exit status
is 1 when it completed none.

examples:
  timerctl fire inbox/7 --value hello
  timerctl fire jobs --limit 1 --wait       grant it to the first watcher
  timerctl fire topic/p0 --amount 4096
"""
REFUSED = "It returns when the daemon has applied it. Exit status 1 when it was refused."
ADVANCE_EPILOG = """\
examples:
  timerctl advance p0 812                   completes waits for 812 or less
  timerctl keys --match 'p*'                shows the watermarks
"""
FAIL_EPILOG = """\
An operation that waits for several keys fails when its condition can no longer
hold.

examples:
  timerctl fail r1 --code 6 --value "not leader"
"""
CANCEL_EPILOG = """\
Their owners get the outcome CANCELLED.

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
    key.add_argument("key", metavar="KEY", type=key_of)
    add_purgatory(key)
    value = argparse.ArgumentParser(add_help=False)
    value.add_argument("--value", metavar="TEXT", default="", help="the owners of the operations get it")

    def declare(name: str, parents: list[argparse.ArgumentParser], about: str, epilog: str) -> argparse.ArgumentParser:
        return declare_act(commands, parents, name, about, REFUSED, epilog)

    fire = declare("fire", [key, value], "fire an event on a key", FIRE_EPILOG)
    fire.add_argument(
        "--amount", metavar="N", type=whole(1, U64_MAX), default=1, help="counts under `total` (default 1)"
    )
    fire.add_argument("--limit", metavar="N", type=whole(1, U32_MAX), help="complete at most N operations")
    fire.add_argument("--wait", action="store_true", help="print how many it completed")
    fire.set_defaults(run=run_fire)

    advance = declare("advance", [key], "raise a key's watermark", ADVANCE_EPILOG)
    advance.add_argument("offset", metavar="OFFSET", type=whole(0, U64_MAX))
    advance.set_defaults(run=run_advance)

    fail = declare("fail", [key, value], "settle a key as failed", FAIL_EPILOG)
    fail.add_argument(
        "--code", metavar="N", type=whole(0, U32_MAX), default=0, help="the owners get it as well (default 0)"
    )
    fail.set_defaults(run=run_fail)

    cancel = declare("cancel-for-key", [key], "cancel every operation that watches a key", CANCEL_EPILOG)
    cancel.set_defaults(run=run_cancel)

    forget = declare("forget", [key], "forget a key's watermark", FORGET_EPILOG)
    forget.set_defaults(run=run_forget)


@contextmanager
def acting(arguments: argparse.Namespace) -> Iterator[Client]:
    """A client whose close() raises refusals. They are not logged too."""
    log = logging.getLogger("timerd_client")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with connected(arguments) as client:
            yield client
    finally:
        log.setLevel(level)


def run_fire(arguments: argparse.Namespace) -> int:
    """Fire. With --wait, print the number of completed operations."""
    with acting(arguments) as client:
        purgatory = purgatory_of(client, arguments)
        knobs = {"value": key_of(arguments.value), "amount": arguments.amount, "limit": arguments.limit}
        if not arguments.wait:
            purgatory.fire(arguments.key, **knobs)
            return Exit.OK
        completed = purgatory.fire_wait(arguments.key, **knobs)
    print(completed)
    return Exit.OK if completed else Exit.PROBLEM


def run_advance(arguments: argparse.Namespace) -> int:
    """Raise a watermark."""
    with acting(arguments) as client:
        purgatory_of(client, arguments).advance(arguments.key, arguments.offset)
    return Exit.OK


def run_fail(arguments: argparse.Namespace) -> int:
    """Settle a key as failed."""
    with acting(arguments) as client:
        purgatory_of(client, arguments).fail(arguments.key, code=arguments.code, value=key_of(arguments.value))
    return Exit.OK


def run_cancel(arguments: argparse.Namespace) -> int:
    """Cancel the operations that watch a key."""
    with acting(arguments) as client:
        purgatory_of(client, arguments).cancel_for_key(arguments.key)
    return Exit.OK


def run_forget(arguments: argparse.Namespace) -> int:
    """Forget a watermark."""
    with acting(arguments) as client:
        purgatory_of(client, arguments).forget(arguments.key)
    return Exit.OK
