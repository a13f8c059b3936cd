"""A bucket over many batches gives the outcomes that the rules give for all rows at once."""

from __future__ import annotations

import random

import pytest

import msgpack
from spark.purgatory.buckets import END_NS, KEYS, MS, State, in_batches, place, program
from timerd_shm.declare.errors import InvalidValueError
from timerd_shm.declare.states import EventKind, Outcome
from timerd_spark.purgatory.bucket import VERSION, Bucket, Settings
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


def test_late_events_are_counted_and_late_registrations_settle_at_once() -> None:
    state = State(Settings(ordered=True, marks_ns=100, ids_ns=0))
    assert not state.run([Event(50, 1, EventKind.FIRE, "key")], 90)
    rows: list[Registration | Event] = [
        Event(60, 2, EventKind.FIRE, "key"),
        Registration(40, 3, "before the event", (Key("key"),), 200),
        Registration(55, 4, "after the event", (Key("key"),), 80),
        Registration(56, 5, "waits", (Key("key"),), 200),
    ]
    found = {each.row.id: (each.outcome, each.settled_ns) for each in state.run(rows, 95)}
    assert found == {"before the event": (Outcome.COMPLETED, 50), "after the event": (Outcome.EXPIRED, 80)}
    note = Bucket(Store(state.manifest, state.fetch, state.cache), state.settings).note
    assert (note.late_events, note.late_registrations) == (1, 3)


def test_out_of_order_an_operation_expires_by_the_clock_alone() -> None:
    state = State(Settings(ordered=False, marks_ns=100, ids_ns=0))
    rows: list[Registration | Event] = [
        Registration(10, 1, "op", (Key("key"),), 50),
        Event(60, 2, EventKind.FIRE, "key"),
    ]
    assert not state.run(rows, 20), "an earlier event may come yet"
    assert [each.outcome for each in state.run([Event(30, 3, EventKind.FIRE, "key")], 40)] == [Outcome.COMPLETED]
    assert not state.run([Registration(45, 4, "op", (Key("other"),), 100)], 99)
    assert [each.outcome for each in state.run([], 100)] == [Outcome.EXPIRED]


def test_a_state_of_other_buckets_or_of_another_version_is_refused_by_name() -> None:
    settings = Settings(ordered=True, marks_ns=0, ids_ns=0, buckets=8)
    state = State(settings)
    state.run([Registration(1, 1, None, (Key("key"),), 50)], 10)
    state.settings = settings._replace(buckets=16)
    with pytest.raises(InvalidValueError, match="this checkpoint has 8 buckets, and the query buckets=16"):
        state.run([], 20)
    state.settings = settings._replace(grouped=True)
    with pytest.raises(InvalidValueError, match="another layout"):
        state.run([], 20)
    note, parts = msgpack.unpackb(state.manifest)
    state.settings, state.manifest = settings, msgpack.packb(([VERSION + 1, *note[1:]], parts))
    with pytest.raises(InvalidValueError, match=f"has version {VERSION + 1}, and this timerd reads {VERSION}"):
        state.run([], 20)


def test_many_watchers_of_a_key_settle_and_no_value_is_large() -> None:
    """A short form with 10,000. 100,000 took 4 s of CPU time, and the largest value had 524,296 bytes."""
    state = State(Settings(ordered=True, marks_ns=0, ids_ns=0))
    count = 10_000
    state.run([Registration(n + 1, n, None, (Key("key"),), END_NS) for n in range(count)], count)
    assert max(map(len, state.segments.values())) < 1_000_000
    assert len(state.run([Event(count + 1, 0, EventKind.FIRE, "key")], count + 1)) == count
    assert len(state) == 0
