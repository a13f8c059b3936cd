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


class Pauses:
    """The pauses in the making of a long answer, in which the broker serves others."""

    def __init__(self, at_once: int) -> None:
        """`at_once`: how many parts of the answer are made before others are served."""
        self._at_once, self._made = at_once, 0

    async def made_one(self) -> None:
        """Note that a part was made. Pause if it is time for that."""
        self._made += 1
        if self._made >= self._at_once:
            self._made = 0
            await asyncio.sleep(0)


async def in_slices(make: Callable[[Any], Any], asked: Iterable[Any]) -> tuple[Any, ...]:
    """The results of `make` for the parts of a request. The broker serves others in between."""
    made, pauses = [], Pauses(AT_ONCE)
    for one in asked:
        made.append(make(one))
        await pauses.made_one()
    return tuple(made)


def refuse_too_many_partitions(topics: Sequence[Any], partitions: str = "partitions") -> None:
    """Raise BadFrame if a request names too many topics, or too many partitions. `partitions`: the field of a topic."""
    refuse_too_many(topics)
    refuse_too_many([one for topic in topics for one in getattr(topic, partitions)])
