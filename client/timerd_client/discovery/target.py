"""The checked arguments of `Client()`: the daemon that the client is for, and what it sends to the daemon in HELLO."""

from __future__ import annotations

from typing import NamedTuple

from timerd_client.arguments import group_of, label_of, orphans_of, takeover_ms_of, transport_of
from timerd_client.declared import CLIENT, ClientArguments
from timerd_shm.declare.states import Orphans
from timerd_shm.host.paths import instance_name
from timerd_shm.host.trust import daemon_user_of
from timerd_wire.transports import Transport


class Target(NamedTuple):
    """The arguments of each connection that a client makes, in this process and in forked children."""

    instance: str | None  # None = $TIMERD_INSTANCE, else "default"
    runtime_dir: str | None  # None = $TIMERD_RUNTIME_DIR, else the user's places
    daemon_user: str | int | None  # None = $TIMERD_DAEMON_USER, else nobody
    autostart: bool
    group: str | None
    orphans: Orphans
    label: str
    transport: Transport
    takeover_ms: int


def target_of(call: str, instance: str | None, given: ClientArguments) -> Target:
    """Check the arguments of a call. InvalidNameError, InvalidValueError, NotAMemberError, TimeoutOutOfRangeError."""
    arguments = CLIENT.of(call, given)
    instance_name(instance)
    daemon_user_of(arguments["daemon_user"])
    group = group_of(arguments["group"])
    return Target(
        instance,
        arguments["runtime_dir"],
        arguments["daemon_user"],
        bool(arguments["autostart"]),
        group,
        orphans_of(arguments["orphans"], group),
        label_of(arguments["name"]),
        transport_of(arguments["transport"]),
        takeover_ms_of(arguments["takeover"]),
    )
