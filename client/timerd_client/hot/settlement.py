"""What settled an operation, as the protocol hands it to whom it is for."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from timerd_shm.declare.errors import TimerdError


class Settlement(NamedTuple):
    """What settled an operation: the daemon's record (bytes of an OutcomeRecord), or a local error without one."""

    record: bytes | None
    value: bytes
    arena: int  # its incarnation, for marks
    error: TimerdError | None


RawSettlement: TypeAlias = tuple[bytes | None, bytes, int, TimerdError | None]
"""A Settlement as the hot path makes it: a plain tuple costs a quarter."""


def local(error: TimerdError) -> Settlement:
    """The settlement of what the daemon refused or does not know."""
    return Settlement(None, b"", 0, error)
