"""Frames of every API in every version, and the ways to damage them."""

from __future__ import annotations

import datetime
import random
import struct
import uuid
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from kio.serial._introspect import (
    EntityField,
    EntityTupleField,
    PrimitiveTupleField,
    classify_field,
    get_schema_field_type,
)

from support.kafka.rawkafka import batch
from timerd_kafka.apis.table import APIS
from timerd_kafka.wire.codec import Question, versions_of

EACH = 4  # valid frames of each version
ALL = [(key, version) for key, (name, _) in APIS.items() for version in versions_of(name)]
INTERESTING = (0, 1, 0x7F, 0x80, 0xFF)
SIZES = (-1, 0, 1, -(2**31), 2**31 - 1, 2**30, 100 << 20, (100 << 20) + 1)
CREATE_TOPICS, DELETE_TOPICS = 19, 20


class Frames:
    """Valid frames, and any number of damaged frames."""

    def __init__(self, rng: random.Random, topic: str, partitions: int, group: str) -> None:
        self._rng, self._topic, self._partitions, self._group = rng, topic, partitions, group
        self.valid = [self._valid(key, version) for key, version in ALL for _ in range(EACH)]
        self._ways: list[Callable[[bytearray], bytes]] = [
            self._bits,
            self._bits,
            self._bytes,
            self._numbers,
            self._lengths,
            self._cut,
            self._cut_short,
            self._longer,
            self._size,
            self._crc,
            self._unknown,
            self._noise,
        ]

    def damaged(self) -> tuple[str, bytes]:
        """The name of a random way to damage frames, and a frame that was damaged so: the bytes to send."""
        way = self._rng.choice(self._ways)
        return way.__name__[1:], way(bytearray(self._rng.choice(self.valid)))

    # valid ------------------------------------------------------------------------------------------------------------

    def _valid(self, key: int, version: int) -> bytes:
        question = Question(key, version)
        body = self._some(question.request, key)
        return question.write(self._rng.randrange(2**31), f"damaged-{self._rng.randrange(4)}", body)

    def _some(self, kind: Any, key: int) -> Any:
        return kind(**{field.name: self._field(field, key) for field in fields(kind)})

    def _field(self, field: Any, key: int) -> Any:
        kind = classify_field(field)
        if isinstance(kind, EntityField):
            return self._some(kind.type_, key)
        if isinstance(kind, EntityTupleField):
            if field.name == "assignments" and key == CREATE_TOPICS:
                return ()
            return tuple(self._some(kind.type_, key) for _ in range(self._rng.choice((0, 1, 1, 1, 2))))
        name = get_schema_field_type(field)
        count = self._rng.randrange(3) if isinstance(kind, PrimitiveTupleField) else None
        made = [self._value(field.name, name, key) for _ in range(1 if count is None else count)]
        return made[0] if count is None else tuple(made)

    def _value(self, field: str, name: str, key: int) -> Any:
        rng = self._rng
        match name:
            case "string":
                if field == "transactional_id":
                    return rng.choice((None, None, "tx"))
                if key == DELETE_TOPICS:
                    return "a topic that is not there"  # the topics of the cluster are needed until the end
                return rng.choice((self._topic, self._topic, self._group, "consumer", "range", "é" * 5, "x" * 100))
            case "bytes" | "records":
                return batch([rng.randbytes(rng.randrange(50)) for _ in range(rng.randrange(1, 4))])
            case "bool":
                return key == CREATE_TOPICS or rng.random() < 0.5  # a request to create topics only validates them
            case "uuid":
                return uuid.UUID(int=rng.getrandbits(128) | 1)
            case "int8":
                return rng.choice((0, 0, 0, 1, -1))
            case "int16":
                return rng.choice((-1, 0, 1, 3))
            case "timedelta_i32" | "timedelta_i64":
                return datetime.timedelta(milliseconds=rng.choice((0, 1, 50, 500, 6_000)))
            case _:
                return rng.choice((-1, 0, 0, rng.randrange(self._partitions), 1, 100, 1_000_000))

    # damaged ----------------------------------------------------------------------------------------------------------

    def _at(self, frame: bytearray) -> int:
        """A random place in the frame, mostly after its key and version: if damaged, these often name no API."""
        return self._rng.randrange(8 if self._rng.random() < 0.95 else 0, len(frame))

    def _bits(self, frame: bytearray) -> bytes:
        for _ in range(self._rng.randint(1, 3)):
            frame[self._at(frame)] ^= 1 << self._rng.randrange(8)
        return self._sized(frame)

    def _bytes(self, frame: bytearray) -> bytes:
        for _ in range(self._rng.randint(1, 5)):
            frame[self._at(frame)] = self._rng.choice(INTERESTING)
        return self._sized(frame)

    def _numbers(self, frame: bytearray) -> bytes:
        at = self._at(frame)
        frame[at : at + 4] = struct.pack(">i", self._rng.choice(SIZES))
        return self._sized(frame)

    def _lengths(self, frame: bytearray) -> bytes:
        at = self._at(frame)
        frame[at : at + 5] = b"\xff\xff\xff\xff\x0f"
        return self._sized(frame)

    def _cut(self, frame: bytearray) -> bytes:
        """Cut the frame, and state its new size."""
        return self._sized(frame[: self._rng.randrange(4, len(frame))])

    def _cut_short(self, frame: bytearray) -> bytes:
        """Cut the frame. In 2 % of calls it still states its old size: then the broker waits for the rest in vain."""
        return bytes(frame[: self._rng.randrange(1, len(frame))]) if self._rng.random() < 0.02 else self._cut(frame)

    def _longer(self, frame: bytearray) -> bytes:
        return self._sized(frame + self._rng.randbytes(self._rng.randrange(1, 200)))

    def _size(self, frame: bytearray) -> bytes:
        """State a size that is not valid, or the size of a frame that is never sent whole."""
        size = self._rng.choice(SIZES)
        if 0 < size <= 100 << 20 and self._rng.random() > 0.02:
            size = -size
        return struct.pack(">i", size) + bytes(frame[4:])

    def _crc(self, frame: bytearray) -> bytes:
        """Damage the end. There a produce request has its records, whose check sum is then mostly wrong."""
        for _ in range(2):
            frame[self._rng.randrange(max(8, len(frame) - 60), len(frame))] ^= 0x55
        return self._sized(frame)

    def _unknown(self, frame: bytearray) -> bytes:
        frame[4:8] = struct.pack(">hh", self._rng.randrange(-5, 100), self._rng.randrange(-5, 30))
        return self._sized(frame)

    def _noise(self, _: bytearray) -> bytes:
        noise = self._rng.randbytes(self._rng.randrange(1, 300))
        return (
            self._sized(bytearray(b"\0\0\0\0" + noise)) if self._rng.random() < 0.5 else b"GET / HTTP/1.1\r\n" + noise
        )

    @staticmethod
    def _sized(frame: bytearray) -> bytes:
        frame[:4] = (len(frame) - 4).to_bytes(4)
        return bytes(frame)
