"""A bucket over many batches gives the outcomes that the rules give for all rows at once."""

from __future__ import annotations

import random

import pytest

from spark.purgatory.buckets import END_NS, KEYS, MS, State, in_batches, place, program
from timerd_shm.declare.states import EventKind, Outcome
from timerd_spark.purgatory.bucket import Settings
from timerd_spark.purgatory.rows import Event, Key, Registration
from timerd_spark.purgatory.store import Record, Segment, SegmentCache, Store


@pytest.mark.parametrize("number", range(6))
def test_outcomes_do_not_depend_on_batches_and_order(seed: int, number: int) -> None:
    rng = random.Random(seed * 100 + number)
    settings = Settings(ordered=True, marks_ns=10_000 * MS, ids_ns=50 * MS)
    rows = list(program(rng, 1_500))
    wanted = State(settings).run(rows, END_NS)
    assert {each.outcome for each in wanted} == {Outcome.COMPLETED, Outcome.EXPIRED, Outcome.CANCELLED, Outcome.FAILED}
    state, found = State(settings), []
    for some, until_ns in in_batches(rng, rows, 20 * MS):
        found += state.run(some, until_ns)
        if rng.random() < 0.2:
            state.cache = SegmentCache()  # another worker
    assert sorted(found, key=place) == sorted(wanted, key=place), f"seed={seed}"
    assert len(state) <= len(KEYS), "only watermarks are left"


def test_a_batch_reads_and_writes_what_it_concerns() -> None:
    settings = Settings(ordered=True, marks_ns=0, ids_ns=0)
    state = State(settings)
    count, at_ns = 20_000, 1_790_000_000 * 1_000 * MS
    state.run([Registration(at_ns, n, None, (Key(f"k{n}"),), 2 * at_ns) for n in range(count)], at_ns)
    assert len(state) == count
    size = sum(map(len, state.segments.values())) + len(state.manifest)
    print(f"{size / count:.1f} bytes an operation")
    assert size <= 100 * count
    assert max(map(len, state.segments.values())) < 1_000_000
    state.written = state.fetched = 0
    for n in range(100):
        state.run([Event(at_ns + 2 + n, 0, EventKind.FIRE, f"k{n}")], at_ns + 2 + n)
    assert len(state) == count - 100
    assert state.written == 0, "operations that settle are not written again, nor are their neighbours"
    assert state.fetched == 0, "this worker has read all segments"


def test_nothing_is_left_at_the_end() -> None:
    settings = Settings(ordered=True, marks_ns=100, ids_ns=1_000)
    state = State(settings)
    state.run([Registration(1, 1, "id", (Key("k"),), 50), Event(3, 2, EventKind.FIRE, "k")], 10)
    assert len(state) == 2  # the event and the id
    state.run([], 103)
    assert len(state) == 1
    state.run([], 1_003)
    assert len(state) == 0 and not state.segments


def test_a_segment_finds_records_by_hash_and_by_time() -> None:
    records = [Record(n % 7, (n % 11, n % 13), b"%d" % n) for n in range(1_000)]
    store = Store(b"", lambda _: b"", SegmentCache())
    store.put(records)
    data = store.commit().written
    assert len(data) == 1
    segment = Segment(*data.values())
    import numpy as np

    found = set(segment.with_hash(np.array([3, 12], np.uint32)).tolist())
    assert found == {n for n, record in enumerate(records) if {3, 12} & set(record.hashes)}
    again = segment.records(np.arange(1_000))
    assert [each._replace(hashes=tuple(sorted(each.hashes))) for each in again] == [
        each._replace(hashes=tuple(sorted(each.hashes))) for each in records
    ]
