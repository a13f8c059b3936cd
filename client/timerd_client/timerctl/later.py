"""Commands that have their place already, and come with later issues: they answer NotSupportedError."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from timerd_shm.errors import NotSupportedError

COMING = {
    "journal": "reading the journal of outcomes",
}


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Declare them."""
    for name, about in COMING.items():
        command = commands.add_parser(name, parents=[common], help=f"{about} (not supported yet)")
        command.add_argument("rest", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
        command.set_defaults(run=run, command=name)


def run(arguments: argparse.Namespace) -> NoReturn:
    """Say so."""
    raise NotSupportedError(f"{arguments.command}: {COMING[arguments.command]} is not supported by this version")
