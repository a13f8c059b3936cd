"""Chunks: bytes that wait to be sent keep their order, and are charged with the memory that they take."""

from __future__ import annotations

import os
import random
import tracemalloc

import pytest

from timerd.host.chunks import CHUNK_SIZE, OWN_SIZE, Chunks


def test_bytes_that_are_added_and_dropped_at_random_are_those_of_a_dumb_model(rng: random.Random) -> None:
    chunks, model = Chunks(), b""
    for _ in range(2_000):
        if rng.random() < 0.5:
            data = rng.randbytes(rng.choice((0, 1, 100, OWN_SIZE - 1, OWN_SIZE, CHUNK_SIZE)))
            chunks.add(data)
            model += data
        else:
            size = min(rng.randrange(2 * CHUNK_SIZE), len(model))
            chunks.drop(size)
            model = model[size:]
        first = b"".join(bytes(each) for each in chunks.first(3))
        assert model.startswith(first) and bool(first) == bool(model) == bool(chunks)
    chunks.drop(len(model))
    assert not chunks and chunks.memory == 0


@pytest.mark.parametrize("size", [10, 97, 1_000, OWN_SIZE, 100_000])
def test_messages_of_each_size_are_charged_with_what_they_take(size: int) -> None:
    tracemalloc.start(3)
    chunks = Chunks()
    for _ in range(200_000 // size):
        chunks.add(os.urandom(size))
    # Threads that earlier tests have left in this process may allocate, too: only what this file has called counts.
    own = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, __file__, all_frames=True)])
    tracemalloc.stop()
    assert 195_000 < sum(trace.size for trace in own.traces) < 1.02 * chunks.memory + 1_000
    assert chunks.memory < 1.2 * 200_000, "small messages cost little more than their bytes"


def test_a_message_that_was_sent_in_part_is_charged_as_a_whole() -> None:
    chunks = Chunks()
    chunks.add(bytes(1 << 20))
    whole = chunks.memory
    chunks.drop((1 << 20) - 1)
    assert chunks.memory == whole, "the memory of the whole message is still in use"
    chunks.drop(1)
    assert chunks.memory == 0


def test_all_chunks_are_few_objects() -> None:
    chunks = Chunks()
    for _ in range(30_000):
        chunks.add(bytes(100))
    taken = chunks.take_all()
    assert sum(map(len, taken)) == 3_000_000 and len(taken) < 100
    assert not chunks and chunks.memory == 0
