"""A flush: what it waits for, and how messages count what is left."""

from __future__ import annotations

from typing import NamedTuple


class Flush(NamedTuple):
    """What a flush waits for."""

    command: int  # until this command is applied, and all answers up to it were received
    maker: bytes  # incarnation of the client: with another one the flush is over
    reported: int  # so many of `commands_unknown` were raised by earlier flushes


def unacknowledged(commands: int) -> str:
    """How many commands are unacknowledged, for messages."""
    return "1 command is unacknowledged" if commands == 1 else f"{commands} commands are unacknowledged"
