"""The transports by name: how a client reaches its daemon."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

Transport: TypeAlias = Literal["zeromq", "unix"]
"""ZeroMQ's sockets, or packets over one Unix socket, which need none of libzmq's threads."""

TRANSPORTS: Final[tuple[Transport, ...]] = ("zeromq", "unix")  # the first one is the default
TRANSPORT_VARIABLE: Final = "TIMERD_TRANSPORT"
