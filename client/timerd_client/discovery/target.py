"""Which daemon a client is for, and what the client says of itself there: the arguments of `Client()`, checked."""

from __future__ import annotations

from typing import NamedTuple

from timerd_client.arguments import group_of, label_of, orphans_of, takeover_ms_of, transport_of
from timerd_client.types import Patience
from timerd_shm.declare.states import Orphans
from timerd_shm.host.paths import instance_name
from timerd_wire.transports import Transport


class Target(NamedTuple):
    """What a client needs for each connection that it makes, in this process and in forked children."""

    instance: str | None  # None = $TIMERD_INSTANCE, else "default"
    runtime_dir: str | None  # None = $TIMERD_RUNTIME_DIR, else the standard places
    autostart: bool
    group: str | None
    orphans: Orphans
    label: str
    transport: Transport
    takeover_ms: int


def target_of(
    instance: str | None,
    runtime_dir: str | None,
    autostart: bool,
    group: str | None,
    orphans: str,
    name: str,
    transport: Transport | None,
    takeover: Patience | None = None,
) -> Target:
    """Check the arguments. Raises InvalidNameError, InvalidValueError, NotAMemberError, TimeoutOutOfRangeError."""
    instance_name(instance)
    member_of = group_of(group)
    return Target(
        instance,
        runtime_dir,
        bool(autostart),
        member_of,
        orphans_of(orphans, member_of),
        label_of(name),
        transport_of(transport),
        takeover_ms_of(takeover),
    )
