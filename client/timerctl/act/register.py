"""timerctl register: registers one operation, waits for its outcome and prints it."""

from __future__ import annotations

import argparse
import re
from types import FunctionType
from typing import TYPE_CHECKING, Any

from timerctl.exits import Exit, UsageError
from timerctl.instance import add_purgatory, connected, purgatory_of
from timerctl.listing import declare
from timerctl.show.text import U64_MAX, begun, duration_ns, key_of, print_json, span, whole
from timerd_shm.declare.errors import InvalidConditionError
from timerd_shm.declare.limits import PAYLOAD_SIZE_MAX
from timerd_shm.declare.states import CONDITION_NAMES
from timerd_shm.read.text import plain

if TYPE_CHECKING:
    from timerd_client import Outcome
    from timerd_client.conditions import When

# ALL_SETTLED is all-settled here, at_least(k) is at-least:K.
_WHENS = [re.sub(r"\((\w)\)", lambda n: f":{n[1].upper()}", name.lower()).replace("_", "-") for name in CONDITION_NAMES]
WHENS = f"{', '.join(_WHENS[:-1])} or {_WHENS[-1]}"
EPILOG = f"""\
WHEN is {WHENS}; any is the default.
An event (`timerctl fire`) satisfies a key. A key with --reach is satisfied by
its watermark (`timerctl advance`).

Exit status 0 when the operation was completed, 1 when it expired, was
cancelled or failed.

examples:
  timerctl register inbox/7 --timeout 30s
  timerctl register r1 r2 r3 --timeout 5s --when at-least:2
  timerctl register --reach p0=812 --reach p1=455 --timeout 5s --when all
  timerctl register topic/p0 --timeout 500ms --when total:65536
  timerctl register session/9 --timeout 15m --id login-9 --if-exists replace
"""


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Declare the command."""
    command = declare(
        commands,
        common,
        "register",
        run,
        help="register an operation and wait for its outcome",
        description="Register an operation, wait for its outcome and print it.\nCtrl-C cancels the operation.",
        epilog=EPILOG,
    )
    command.add_argument("keys", metavar="KEY", nargs="*", type=key_of, help="watch keys")
    command.add_argument(
        "--reach",
        metavar="KEY=OFFSET",
        action="append",
        default=[],
        type=reach,
        help="a key and the watermark to reach",
    )
    command.add_argument("--timeout", metavar="TIME", type=timeout, required=True, help="30s, 200ms, 2h, or none")
    command.add_argument("--when", metavar="WHEN", type=condition, default="any", help="what completes it (see below)")
    command.add_argument("--payload", metavar="TEXT", default="", help="a text that comes back with the outcome")
    command.add_argument("--id", metavar="ID", type=key_of, help="makes the registration idempotent")
    command.add_argument(
        "--if-exists", choices=("error", "keep", "replace"), default="error", help="what to do if ID exists"
    )
    add_purgatory(command)


def run(arguments: argparse.Namespace) -> int:
    """Register, wait, print."""
    keys: dict[str | bytes, int | None] = {}
    for key, offset in [*((key, None) for key in arguments.keys), *arguments.reach]:
        if key in keys:
            raise UsageError(f"key {plain(key)!r} is given twice")
        keys[key] = offset
    with connected(arguments) as client:
        operation = purgatory_of(client, arguments).register(
            keys,
            timeout=None if arguments.timeout is None else arguments.timeout / 1e9,
            when=arguments.when,
            payload=key_of(arguments.payload),
            id=arguments.id,
            if_exists=arguments.if_exists,
        )
        try:
            outcome = operation.result()
        except KeyboardInterrupt:
            operation.cancel_wait()
            raise
    if arguments.json:
        print_json(row_of(outcome))
    else:
        print(line_of(outcome))
    return Exit.OK if outcome else Exit.PROBLEM


def row_of(outcome: Outcome) -> dict[str, Any]:
    return {
        "state": outcome.state.name.lower(),
        "key": None if outcome.key is None else written(outcome.key),
        "value": begun(outcome.value, PAYLOAD_SIZE_MAX),
        "satisfied": [written(key) for key in outcome.satisfied],
        "missing": [written(key) for key in outcome.missing],
        "payload": begun(outcome.payload, PAYLOAD_SIZE_MAX),
        "error": None if outcome.error is None else str(outcome.error),
        "wait_ns": outcome.wait_ns,
        "lateness_ns": outcome.lateness_ns,
    }


def line_of(outcome: Outcome) -> str:
    """The outcome in a line."""
    row = row_of(outcome)
    parts = [f"{row['state']} after {span(row['wait_ns'])}"]
    if row["key"] is not None:
        parts.append(f"by {row['key']}")
    if outcome.value:
        parts.append(f"value {row['value']['text']}")
    if row["error"]:
        parts.append(row["error"])
    if row["missing"] and not outcome:
        parts.append(f"missing {' '.join(row['missing'])}")
    return ", ".join(parts)


def written(key: str | bytes) -> str:
    return plain(key if isinstance(key, bytes) else key.encode())


def timeout(text: str) -> int | None:
    """Type of --timeout: ns, or None."""
    return None if text == "none" else duration_ns(text)


def reach(text: str) -> tuple[bytes, int]:
    """Type of --reach: a key and its watermark, divided by the last =."""
    key, _, offset = text.rpartition("=")
    if not key:
        raise argparse.ArgumentTypeError(f"{text!r:.40} is not KEY=OFFSET")
    return key_of(key), whole(0, U64_MAX)(offset)


def condition(text: str) -> When:
    """Type of --when."""
    from timerd_client import conditions

    found = {name.lower().replace("_", "-"): getattr(conditions, name) for name in conditions.__all__}
    name, colon, number = text.partition(":")
    made = found.get(name)
    if isinstance(made, conditions.When) and not colon:
        return made
    if isinstance(made, FunctionType) and number.isdecimal():
        try:
            reached: When = made(int(number))
        except InvalidConditionError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        return reached
    raise argparse.ArgumentTypeError(f"{text!r} is not {WHENS}")
