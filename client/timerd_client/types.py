"""The types of arguments. For example, the arguments of `register("inbox/7", timeout=30)` are a Key and a Timeout.

arguments.py checks the values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Literal, TypeAlias

Key: TypeAlias = str | bytes
"""A watch key or an id, of 1 to 255 bytes; a text stands for its bytes in UTF-8."""

Keys: TypeAlias = Key | Iterable[Key] | Mapping[Key, int | None]
"""One key, several, or each with the watermark that it has to reach."""

Timeout: TypeAlias = float | timedelta | None
"""The time until an operation expires, in seconds or as a timedelta; None = no deadline."""

Patience: TypeAlias = float | timedelta | None
"""How long a caller waits, in seconds or as a timedelta; None, or inf = without end. A negative time is 0."""

Payload: TypeAlias = bytes | bytearray | memoryview
"""Bytes that stay with an operation or a call, 65,536 at most."""

IfExists: TypeAlias = Literal["error", "keep", "replace", "replace_cancelled"]
"""The choices of a registration when an operation with its id exists."""

CallExists: TypeAlias = Literal["error", "keep", "replace", "again"]
"""The choices of `call_later` when a call with its id is pending or running."""

OrphanPolicy: TypeAlias = Literal["cancel", "keep", "group"]
"""The policy for an operation when its owner's process dies."""

WhenLost: TypeAlias = Literal["raise", "poll"]
"""The choices of `wait_for` while the daemon is lost."""

Until: TypeAlias = Literal["first", "all"]
"""When `wait` returns: after the first operation has settled, or after all have."""
