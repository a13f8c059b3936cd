"""Waiting for a descriptor, whatever its number."""

from __future__ import annotations

import select


def is_ready(descriptor: int, seconds: float = 0.0) -> bool:
    """Whether there is something to read, or an end, within `seconds`.

    Not by select(), which takes no descriptor above 1,023: a process with many sockets has higher ones.
    """
    asked = select.poll()
    asked.register(descriptor, select.POLLIN)
    return bool(asked.poll(max(0.0, seconds) * 1_000))
