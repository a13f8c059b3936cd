"""Frames: valid frames pass, and others are refused before they cost memory."""

from __future__ import annotations

import datetime
import random
import struct
import tracemalloc
import uuid
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

import pytest
from kio.serial._introspect import (
    EntityField,
    EntityTupleField,
    PrimitiveTupleField,
    classify_field,
    get_schema_field_type,
)

from timerd_kafka.apis.table import APIS
from timerd_kafka.wire.codec import Api, BadFrame, Question, api_of, versions_of
from timerd_kafka.wire.guard import ELEMENTS_MAX

ALL = [(key, version) for key, (name, _) in APIS.items() for version in versions_of(name)]


def some(kind: Any, rng: random.Random) -> Any:
    """An object of the library kio with a random value in each of its fields."""
    return kind(**{field.name: some_field(field, rng) for field in fields(kind)})


def some_field(field: Any, rng: random.Random) -> Any:
    kind = classify_field(field)
    if isinstance(kind, EntityField):
        return some(kind.type_, rng)
    if isinstance(kind, EntityTupleField):
        return tuple(some(kind.type_, rng) for _ in range(rng.randrange(3)))
    values: dict[str, Callable[[], Any]] = {
        "string": lambda: "".join(rng.choices("abcdeé", k=rng.randrange(200))),
        "bytes": lambda: rng.randbytes(rng.randrange(300)),
        "records": lambda: rng.randbytes(rng.randrange(300)),
        "bool": lambda: rng.random() < 0.5,
        "uuid": lambda: uuid.UUID(int=rng.getrandbits(128) | 1),
        "int8": lambda: rng.randrange(-128, 128),
        "int16": lambda: rng.randrange(-(2**15), 2**15),
        "int32": lambda: rng.randrange(-(2**31), 2**31),
        "int64": lambda: rng.randrange(-(2**63), 2**63),
        "timedelta_i32": lambda: datetime.timedelta(milliseconds=rng.randrange(2**31)),
        "timedelta_i64": lambda: datetime.timedelta(milliseconds=rng.randrange(2**31)),
    }
    make = values[get_schema_field_type(field)]
    return tuple(make() for _ in range(rng.randrange(4))) if isinstance(kind, PrimitiveTupleField) else make()


def frame_of(key: int, version: int, rng: random.Random) -> tuple[Any, bytes]:
    question = Question(key, version)
    body = some(question.request, rng)
    return body, question.write(rng.randrange(2**31), "a client", body)[4:]


@pytest.mark.parametrize(("key", "version"), ALL)
def test_every_version_of_every_api_reads_what_a_client_has_written(key: int, version: int, rng: random.Random) -> None:
    for _ in range(5):
        body, frame = frame_of(key, version, rng)
        read = api_of(key, version).read(frame)
        assert (read.body, read.client_id) == (body, "a client")


def frames(rng: random.Random) -> Iterator[tuple[Api, bytearray]]:
    while True:
        key, version = rng.choice(ALL)
        yield api_of(key, version), bytearray(frame_of(key, version, rng)[1])


@pytest.mark.long
def test_damaged_frames_are_read_or_refused_and_cost_no_memory(rng: random.Random) -> None:
    """Many of these frames state arrays of billions of elements. Without wire/guard.py, kio would end the process."""
    tracemalloc.start()
    refused = 0
    for _, (api, frame) in zip(range(1_500), frames(rng), strict=False):
        for _ in range(rng.randint(1, 4)):
            match rng.randrange(4):
                case 0:
                    frame[rng.randrange(8, len(frame))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
                case 1:
                    at = rng.randrange(8, len(frame))
                    frame[at : at + 5] = b"\xff\xff\xff\xff\x0f"
                case 2:
                    at = rng.randrange(8, len(frame))
                    frame[at : at + 4] = struct.pack(">i", rng.choice((-(2**31), -2, 2**31 - 1, 10**6)))
                case 3:
                    del frame[rng.randrange(8, len(frame)) :]
            if len(frame) < 9:
                break
        try:
            api.read(bytes(frame))
        except BadFrame:
            refused += 1
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert refused > 400
    assert peak < 64 << 20


@pytest.mark.parametrize("version", [1, 12])
def test_an_array_that_cannot_be_in_its_frame_is_refused(version: int) -> None:
    head = struct.pack(">hhih", 3, version, 1, -1)
    lengths = {1: struct.pack(">i", 2**31 - 1), 12: b"\0" + b"\xff\xff\xff\xff\x0f"}
    with pytest.raises(BadFrame, match=r"Hostile: an array of \d+ elements in 0 bytes"):
        api_of(3, version).read(head + lengths[version])


@pytest.mark.parametrize(
    ("version", "null"), [(0, b"\xff\xff\xff\xff"), (1, b"\xff\xff\xff\xfe"), (1, b"\xff\xff\xff\xff")]
)
def test_an_array_is_null_only_where_it_may_be(version: int, null: bytes) -> None:
    """The topics of Metadata may be null since v1. kio takes null for any array, and the broker would fail later."""
    frame = struct.pack(">hhih", 3, version, 1, -1) + null
    if (version, null) == (1, b"\xff" * 4):
        assert api_of(3, version).read(frame).body.topics is None
    else:
        with pytest.raises(BadFrame, match=r"Hostile: an array of -\d elements"):
            api_of(3, version).read(frame)


def test_more_elements_than_any_client_sends_are_refused() -> None:
    frame = struct.pack(">hhihi", 3, 1, 1, -1, ELEMENTS_MAX + 1) + b"\0\0" * (ELEMENTS_MAX + 1)
    with pytest.raises(BadFrame, match="more than 200000 elements"):
        api_of(3, 1).read(frame)


def test_bytes_behind_a_request_are_ignored(rng: random.Random) -> None:
    body, frame = frame_of(3, 13, rng)  # librdkafka sends such a frame when it asks for all topics
    assert api_of(3, 13).read(frame + b"\0\0\0").body == body


def test_an_answer_leaves_out_what_its_version_does_not_have() -> None:
    api = api_of(3, 1)
    broker = api.make("MetadataResponseBroker", node_id=1, host="h", port=2, rack=None)
    made = api.make("MetadataResponse", brokers=(broker,), cluster_id="new", controller_id=0, topics=())
    assert not hasattr(made, "cluster_id")
    frame = api.write(7, made)
    assert int.from_bytes(frame[:4]) == len(frame) - 4 and frame[4:8] == struct.pack(">i", 7)
