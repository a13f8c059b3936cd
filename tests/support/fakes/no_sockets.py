"""Parts of a link for tests without a daemon: paths, a protocol, and sockets whose methods a test gives."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from timerd_client.discovery.identity import identity
from timerd_client.link.waiters import Waiters
from timerd_client.protocol.deadlines import NEVER
from timerd_client.protocol.protocol import Protocol
from timerd_client.transport.sockets import Sockets
from timerd_shm.declare.limits import FRAME_SIZE_MAX
from timerd_shm.declare.states import Orphans
from timerd_shm.host.paths import InstancePaths

NOWHERE = InstancePaths(Path("/nowhere"), "none")


def new_protocol(now_ns: int | None = None, group: str | None = None) -> Protocol:
    """The protocol of a new client, which knows no daemon."""
    return Protocol(identity("", Orphans.CANCEL, group), time.monotonic_ns() if now_ns is None else now_ns)


class NobodyWaits(Waiters):
    """Waiters of a link that wakes nobody."""

    def notify_locked(self) -> None:
        """Nobody waits."""


def no_sockets(**methods: Any) -> Sockets:
    """Sockets that have only `methods` and a few attributes, and hold no connection to NAME.live."""
    lifeline = SimpleNamespace(fileno=lambda: -1)
    found: dict[str, Any] = {"lifeline": lifeline, "frame_size_max": FRAME_SIZE_MAX, "due_ns": NEVER}
    found |= {"forked": lambda: None, "filenos": list, "trouble": str}
    return cast(Sockets, SimpleNamespace(**found, **methods))
