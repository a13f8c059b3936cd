"""The types of arguments. As an example, `register("inbox/7", timeout=30)` has a Key and a Timeout.

arguments.py checks the values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import TypeAlias

Key: TypeAlias = str | bytes
Keys: TypeAlias = Key | Iterable[Key] | Mapping[Key, int | None]
"""One key, several, or each with the watermark that it has to reach."""

Timeout: TypeAlias = float | timedelta | None
"""Seconds, or a timedelta; None = no deadline."""

Payload: TypeAlias = bytes | bytearray | memoryview
