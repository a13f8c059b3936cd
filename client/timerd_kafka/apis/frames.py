"""The frame of an answer. A large answer takes seconds to write, so a thread writes it, and others are served."""

from __future__ import annotations

import asyncio
from dataclasses import fields
from functools import cache
from typing import Any

from kio.serial._introspect import EntityTupleField, classify_field

from timerd_kafka.wire.codec import Api

LARGE = 1_000  # parts of an answer: kio writes them in some 15 ms


async def frame_of(api: Api, correlation_id: int, answer: Any) -> bytes:
    """The frame of an answer, with its size in front."""
    if is_larger(answer, LARGE):
        return await asyncio.to_thread(api.write, correlation_id, answer)
    return api.write(correlation_id, answer)


def is_larger(answer: Any, most: int) -> bool:
    """Whether an answer has more than `most` parts: topics, partitions, groups, configurations."""
    seen, rest = 0, [answer]
    while rest and seen <= most:
        part = rest.pop()
        kind: Any = type(part)
        seen += 1
        for name in arrays_of(kind):
            rest.extend(getattr(part, name) or ())
    return seen > most


@cache
def arrays_of(kind: Any) -> list[str]:
    """The fields of a class of kio that have arrays of parts."""
    return [field.name for field in fields(kind) if isinstance(classify_field(field), EntityTupleField)]
