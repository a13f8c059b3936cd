"""The transports by name: how the sockets of a link are made.

All transports are imported before a process forks, with one exception: libzmq, if $TIMERD_TRANSPORT is "unix".
"""

from __future__ import annotations

import os
import sys

from timerd_shm.host.paths import InstancePaths
from timerd_wire.transports import TRANSPORT_VARIABLE, Transport

from .sockets import Sockets
from .unix_sockets import UnixSockets

if os.environ.get(TRANSPORT_VARIABLE) != "unix":
    from . import zmq_sockets as _zmq_sockets  # noqa: F401


def make_sockets(transport: Transport, paths: InstancePaths) -> Sockets:
    """Make the sockets of this transport. They begin to connect."""
    if transport == "unix":
        return UnixSockets(paths)
    from .zmq_sockets import ZmqSockets

    return ZmqSockets(paths)


def end_transports() -> None:
    """At the process end, without open sockets: wait until closed sockets have sent their frames, 0.2 s at most."""
    loaded = sys.modules.get(f"{__package__}.zmq_sockets")
    if loaded is not None:
        loaded.end_context()
