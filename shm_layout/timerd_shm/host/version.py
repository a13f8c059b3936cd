"""The version, which is declared in pyproject.toml alone and read from what was installed."""

from __future__ import annotations

import argparse
import sys
from typing import Any, NoReturn


def version() -> str:
    """The installed version of timerd; "unknown" where timerd was not installed (for example: it runs from a zip)."""
    from importlib import metadata  # slow to load, and only needed here

    try:
        return metadata.version("timerd")
    except metadata.PackageNotFoundError:
        return "unknown"


class Version(argparse.Action):
    """--version of a command; the version is looked up when it is asked for, not when the parser is made."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        sys.stdout.write(f"{parser.prog} {version()}\n")
        parser.exit()
