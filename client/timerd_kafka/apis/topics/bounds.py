"""The bounds of one request: for how many topics or brokers it may ask, and how many are answered at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence, Sized
from typing import Any

from timerd_kafka.cluster.settings import PARTITIONS_MAX, WORKERS_MAX
from timerd_kafka.wire.codec import BadFrame

NAMED_MAX = PARTITIONS_MAX + WORKERS_MAX  # topics and brokers of a cluster, at most
AT_ONCE = 8  # parts of an answer that are made before others are served: with all configurations, 10 ms


def refuse_too_many(named: Sized) -> None:
    """Raise BadFrame, which ends the connection, if a request names more topics or brokers than a cluster can have."""
    if len(named) > NAMED_MAX:
        raise BadFrame(f"a request that names {len(named)}: {NAMED_MAX} at most")


async def in_slices(make: Callable[[Any], Any], asked: Iterable[Any]) -> tuple[Any, ...]:
    """The results of `make` for the parts of a request. The broker serves others in between."""
    made = []
    for number, one in enumerate(asked, 1):
        made.append(make(one))
        if number % AT_ONCE == 0:
            await asyncio.sleep(0)
    return tuple(made)


def refuse_too_many_partitions(topics: Sequence[Any], partitions: str = "partitions") -> None:
    """Raise BadFrame if a request names too many topics, or too many partitions. `partitions`: the field of a topic."""
    refuse_too_many(topics)
    refuse_too_many([one for topic in topics for one in getattr(topic, partitions)])
