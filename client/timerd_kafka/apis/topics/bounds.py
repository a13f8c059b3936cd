"""The bounds of one request: the broker serves no other request while it answers."""

from __future__ import annotations

from collections.abc import Sized

from timerd_kafka.cluster.settings import PARTITIONS_MAX, WORKERS_MAX
from timerd_kafka.wire.codec import BadFrame

NAMED_MAX = PARTITIONS_MAX + WORKERS_MAX  # topics and brokers of a cluster, at most


def refuse_too_many(named: Sized) -> None:
    """Raise BadFrame, which ends the connection, if a request names more topics or brokers than a cluster can have."""
    if len(named) > NAMED_MAX:
        raise BadFrame(f"a request that names {len(named)}: {NAMED_MAX} at most")
