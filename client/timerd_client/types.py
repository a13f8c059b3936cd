"""The types of arguments. As an example, `register("inbox/7", timeout=30)` has a Key and a Timeout.

arguments.py checks the values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Literal, TypeAlias

Key: TypeAlias = str | bytes
Keys: TypeAlias = Key | Iterable[Key] | Mapping[Key, int | None]
"""One key, several, or each with the watermark that it has to reach."""

Timeout: TypeAlias = float | timedelta | None
"""The life of an operation, in seconds or as a timedelta; None = no deadline."""

Patience: TypeAlias = float | timedelta
"""How long a caller waits, in seconds or as a timedelta."""

Payload: TypeAlias = bytes | bytearray | memoryview

IfExists: TypeAlias = Literal["error", "keep", "replace", "replace_cancelled"]
"""What a registration with an id does when there is an operation of that id."""

CallExists: TypeAlias = Literal["error", "keep", "replace", "again"]
"""What `call_later` with an id does when a call of that id is pending or being done."""

OrphanPolicy: TypeAlias = Literal["cancel", "keep", "group"]
"""What becomes of an operation when its owner's process dies."""

WhenLost: TypeAlias = Literal["raise", "poll"]
"""What `wait_for` does while the daemon is lost."""

Until: TypeAlias = Literal["first", "all"]
"""When `wait` returns."""
