"""The bounds of one request: how many topics, partitions or brokers it may name."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import Any

from timerd_kafka.cluster.settings import PARTITIONS_MAX, WORKERS_MAX
from timerd_kafka.wire.codec import BadFrame

NAMED_MAX = PARTITIONS_MAX + WORKERS_MAX  # topics and brokers of a cluster, at most


def refuse_too_many(named: Sized) -> None:
    """Raise BadFrame, which ends the connection, if a request names more topics or brokers than a cluster can have."""
    if len(named) > NAMED_MAX:
        raise BadFrame(f"a request that names {len(named)}: {NAMED_MAX} at most")


def refuse_too_many_partitions(topics: Sequence[Any], partitions: str = "partitions") -> None:
    """Raise BadFrame if a request names too many topics, or too many partitions. `partitions`: the field of a topic."""
    refuse_too_many(topics)
    refuse_too_many([one for topic in topics for one in getattr(topic, partitions)])
