"""The commands of `timerctl`, as its parser declares them: a sentence, an example, the usage and the arguments."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from .stand_in import stand_in
from .text import WIDTH, code, first_sentence, link, table, wrapped

EXAMPLE = re.compile(r"^  (timerctl .*?)(?: {2,}(?:# )?(.*))?$", re.MULTILINE)  # in a command's help, with a comment
LEFT_OUT = ("help", "instance")  # arguments that each command has
OPERATING = "../howto/operating.md"
# The page that teaches a command.
SEE = {
    "stats": "../howto/sizing.md#is-it-large-enough",
    "ping": f"{OPERATING}#health-checks",
    "check": "../troubleshooting.md",
    **dict.fromkeys(("ops", "explain", "keys", "clients", "errors", "fire"), f"{OPERATING}#what-is-stuck-and-why"),
    **dict.fromkeys(("advance", "fail", "cancel-for-key", "forget"), "api.md#events"),
    **dict.fromkeys(("register", "cancel", "reschedule"), "api.md#operations"),
    "worker": "../howto/calls.md",
    "calls": "../howto/calls.md",
    "calls cancel": "../howto/calls.md",
    **dict.fromkeys(("calls retry", "calls drop"), "../howto/calls.md#how-to-dead-letters"),
    "journal tail": f"{OPERATING}#the-journal",
    "journal export": f"{OPERATING}#the-journal",
    "journal audit": "audit.md",
    "destroy": f"{OPERATING}#sizes",
    "load": f"{OPERATING}#timerctl",
    "install-units": f"{OPERATING}#as-a-service",
}


class Command(NamedTuple):
    """A command that can be run."""

    name: str  # such as `calls retry`
    about: str
    usage: str
    arguments: tuple[tuple[str, str], ...]  # as in the usage, and what it is
    examples: tuple[tuple[str, str], ...]  # a command line of this command, and what it does; empty: nothing is said


@cache
def declared() -> tuple[Command, ...]:
    """All commands, in the order of `timerctl --help`."""
    with stand_in("timerd_client", "timerctl"):
        from timerctl import parser

        return tuple(_below(parser(), ()))


def _below(parser: argparse.ArgumentParser, words: tuple[str, ...]) -> Iterator[Command]:
    """The command of these words, if it can be run, and the commands below it."""
    # argparse has no public way to list the arguments of a parser.
    actions = [action for action in parser._actions if action.dest not in LEFT_OUT]  # noqa: SLF001
    if words and parser.get_default("run") is not None:
        name = " ".join(words)
        own = [action for action in actions if not isinstance(action, argparse._SubParsersAction)]  # noqa: SLF001
        shown = [(_in_usage(action), " ".join((action.help or "").replace("%%", "%").split())) for action in own]
        lines = EXAMPLE.findall(parser.epilog or "")
        yield Command(
            name,
            first_sentence(parser.description),
            " ".join(("timerctl", name, *(text for text, _ in shown))),
            tuple((_bare(text), about) for text, about in shown),
            tuple(line for line in lines if line[0] == f"timerctl {name}" or line[0].startswith(f"timerctl {name} ")),
        )
    for action in actions:
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for word, each in action.choices.items():
                yield from _below(each, (*words, word))


def _in_usage(action: argparse.Action) -> str:
    """An argument as a usage shows it: [--limit N], KEY, [KEY ...]."""
    value = str(action.metavar or ("{" + ",".join(map(str, action.choices)) + "}" if action.choices else ""))
    value = value or action.dest.upper()
    if action.nargs == "?":
        value = f"[{value}]"
    elif action.nargs in ("*", "+"):
        value = f"[{value} ...]" if action.nargs == "*" else f"{value} [{value} ...]"
    if not action.option_strings:
        return value if action.required or action.nargs in ("?", "*") else f"[{value}]"
    text = action.option_strings[-1] + ("" if action.nargs == 0 else f" {value}")
    return text if action.required else f"[{text}]"


def _bare(text: str) -> str:
    """An argument of a usage without the brackets around all of it."""
    return text[1:-1] if text.startswith("[") and text.endswith("]") else text


def commands() -> list[str]:
    """A section for each command."""
    lines: list[str] = []
    for command in declared():
        see = link(SEE.get(command.name, ""))
        lines += [*([""] if lines else []), f"## timerctl {command.name}", ""]
        lines += [*wrapped(f"{command.about} More: {see}." if see else command.about), ""]
        if command.examples:
            line, about = command.examples[0]
            lines += ["```sh", f"{line}    # {about}" if about else line, "```", ""]
        lines += [f"    {line}" for line in wrapped(command.usage, "    ", WIDTH - 8)]
        if command.arguments:
            rows = ((code(name), about) for name, about in command.arguments)
            lines += ["", *table(("argument", "what it is"), rows)]
    return lines


def statuses() -> list[str]:
    """The exit statuses that all commands share."""
    with stand_in("timerd_client", "timerctl"):
        from timerctl.exits import MEANINGS

        rows = [(str(int(status)), meaning) for status, meaning in MEANINGS.items()]
    return table(("status", "meaning"), rows)


PARTS = {"reference/timerctl.md": {"statuses": statuses, "commands": commands}}
