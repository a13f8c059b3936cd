"""The bounds of one request: the broker serves no other request while it answers."""

from __future__ import annotations

from collections.abc import Sized

from timerd_kafka.cluster.settings import PARTITIONS_MAX, WORKERS_MAX
from timerd_kafka.wire.codec import BadFrame

NAMED_MAX = PARTITIONS_MAX + WORKERS_MAX  # a cluster has no more topics and brokers than these


def refuse_too_many(named: Sized) -> None:
    """Raises BadFrame, which ends the connection, for more topics or resources than a cluster may have."""
    if len(named) > NAMED_MAX:
        raise BadFrame(f"a request that names {len(named)}: {NAMED_MAX} at most")
