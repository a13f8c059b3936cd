"""timerctl fire, advance, fail, cancel-for-key, forget: what acts by key, for a person at a shell."""

from __future__ import annotations

import argparse
from typing import Any

from .exits import Exit
from .instance import add_place, connected, place_of
from .text import U32_MAX, U64_MAX, key_of, whole

FIRE_EPILOG = """\
Without --wait it returns when the daemon has applied it. With --wait it prints
how many operations it completed, and the exit status is 1 when it was none.

examples:
  timerctl fire inbox/7 --value hello
  timerctl fire jobs --limit 1 --wait       hand it to the first waiter
  timerctl fire topic/p0 --amount 4096
"""


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Declare the commands."""
    key = argparse.ArgumentParser(add_help=False, parents=[common])
    key.add_argument("key", metavar="KEY", type=key_of)
    add_place(key)
    value = argparse.ArgumentParser(add_help=False)
    value.add_argument("--value", metavar="TEXT", default="", help="goes to whom it settles")

    fire = commands.add_parser(
        "fire",
        parents=[key, value],
        help="fire an event on a key",
        description="Fire an event on a key.",
        epilog=FIRE_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    fire.add_argument(
        "--amount", metavar="N", type=whole(1, U64_MAX), default=1, help="counts under `total` (default 1)"
    )
    fire.add_argument("--limit", metavar="N", type=whole(1, U32_MAX), help="complete at most so many operations")
    fire.add_argument("--wait", action="store_true", help="print how many it completed")
    fire.set_defaults(run=run_fire)

    advance = commands.add_parser("advance", parents=[key], help="raise a key's watermark")
    advance.add_argument("offset", metavar="OFFSET", type=whole(0, U64_MAX))
    advance.set_defaults(run=run_advance)

    fail = commands.add_parser("fail", parents=[key, value], help="settle a key as failed")
    fail.add_argument(
        "--code", metavar="N", type=whole(0, U32_MAX), default=0, help="goes to whom it fails (default 0)"
    )
    fail.set_defaults(run=run_fail)

    cancel = commands.add_parser("cancel-for-key", parents=[key], help="cancel every operation that watches a key")
    cancel.set_defaults(run=run_cancel)

    forget = commands.add_parser("forget", parents=[key], help="forget a key's watermark")
    forget.set_defaults(run=run_forget)


def run_fire(arguments: argparse.Namespace) -> int:
    """Fire; the number of completed operations with --wait."""
    with connected(arguments) as client:
        place = place_of(client, arguments)
        knobs = {"value": key_of(arguments.value), "amount": arguments.amount, "limit": arguments.limit}
        if not arguments.wait:
            place.fire(arguments.key, **knobs)
            return Exit.OK
        completed = place.fire_wait(arguments.key, **knobs)
    print(completed)
    return Exit.OK if completed else Exit.PROBLEM


def run_advance(arguments: argparse.Namespace) -> int:
    """Raise a watermark."""
    with connected(arguments) as client:
        place_of(client, arguments).advance(arguments.key, arguments.offset)
    return Exit.OK


def run_fail(arguments: argparse.Namespace) -> int:
    """Settle a key as failed."""
    with connected(arguments) as client:
        place_of(client, arguments).fail(arguments.key, code=arguments.code, value=key_of(arguments.value))
    return Exit.OK


def run_cancel(arguments: argparse.Namespace) -> int:
    """Cancel the operations that watch a key."""
    with connected(arguments) as client:
        place_of(client, arguments).cancel_for_key(arguments.key)
    return Exit.OK


def run_forget(arguments: argparse.Namespace) -> int:
    """Forget a watermark."""
    with connected(arguments) as client:
        place_of(client, arguments).forget(arguments.key)
    return Exit.OK
