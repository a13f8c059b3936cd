"""Sockets for a link that nothing is sent over: they say nothing and take nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from timerd_client.protocol.deadlines import NEVER
from timerd_client.transport.sockets import Sockets
from timerd_shm.declare.limits import FRAME_SIZE_MAX


def no_sockets(**methods: Any) -> Sockets:
    """Sockets that have only these methods, and no lifeline."""
    lifeline = SimpleNamespace(fileno=lambda: -1)
    found: dict[str, Any] = {"lifeline": lifeline, "frame_size_max": FRAME_SIZE_MAX, "due_ns": NEVER}
    found |= {"forked": lambda: None, "filenos": list, "trouble": str}
    return cast(Sockets, SimpleNamespace(**found, **methods))
