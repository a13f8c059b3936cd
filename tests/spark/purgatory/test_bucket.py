"""A bucket over many batches gives the outcomes that the rules give for all rows at once."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from timerd_shm.declare.states import Condition, EventKind, Outcome
from timerd_spark.purgatory.bucket import Bucket, Settings
from timerd_spark.purgatory.packs import packs_of
from timerd_spark.purgatory.rows import Event, Key, Registration, Settled
from timerd_spark.purgatory.store import Changes, Record, Segment, SegmentCache, Store

MS = 1_000_000
KEYS = ("alpha", "beta", "gamma", "delta")
NEVER_RIPE = -1
END_NS = 1 << 60


class State:
    """What Spark's state would have: a manifest and segments. A new cache is a new Python worker."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.manifest = settings, b""
        self.segments: dict[int, bytes] = {}
        self.cache = SegmentCache()
        self.fetched = self.written = 0

    def fetch(self, id: int) -> bytes:
        self.fetched += 1
        return self.segments[id]

    def run(self, rows: list[Registration | Event], until_ns: int) -> list[Settled]:
        store = Store(self.manifest, self.fetch, self.cache)
        packs = [(first_ns, pack) for first_ns, _, pack in packs_of(rows)]
        outcomes = Bucket(store, self.settings).run((), until_ns, packs)
        self.take(store.commit())
        return outcomes

    def take(self, changes: Changes) -> None:
        self.segments |= changes.written
        self.written += sum(map(len, changes.written.values()))
        for id_ in changes.removed:
            del self.segments[id_]
        self.manifest = changes.manifest

    def __len__(self) -> int:
        return len(Store(self.manifest, self.fetch, SegmentCache()))


def program(rng: random.Random, length: int) -> Iterator[Registration | Event]:
    """Registrations and events whose times rise, each with its own number."""
    at_ns = 1_000 * MS
    for seq in range(1, length + 1):
        at_ns += rng.choice((0, 0, 1, 300, MS, 5 * MS))
        if rng.random() < 0.5:
            names = rng.sample(KEYS, rng.choice((1, 1, 1, 2, 3)))
            condition = rng.choice((Condition.AT_LEAST, Condition.AT_LEAST, Condition.ALL_SETTLED, Condition.TOTAL))
            watermarks = condition != Condition.TOTAL
            keys = tuple(
                Key(name, rng.randrange(1, 30) if watermarks and rng.random() < 0.2 else None) for name in names
            )
            mark = None
            if rng.random() < 0.3:
                mark = (at_ns - rng.randrange(20 * MS), rng.randrange(seq))
            yield Registration(
                at_ns,
                seq,
                rng.choice((None, None, f"id {rng.randrange(8)}")),
                keys,
                at_ns + rng.choice((0, 1, 3 * MS, rng.randrange(40 * MS), rng.randrange(400 * MS))),
                condition,
                rng.randint(1, len(keys)) if condition == Condition.AT_LEAST else 0,
                rng.randrange(1, 6) if condition == Condition.TOTAL else 0,
                b"%d" % seq,
                mark,
            )
        else:
            kinds = (EventKind.FIRE, EventKind.ADVANCE, EventKind.FAIL, EventKind.CANCEL_FOR_KEY, EventKind.FORGET)
            kind = rng.choices(kinds, (12, 6, 3, 1, 1))[0]
            limit = rng.choice((None, None, 1, 2)) if kind == EventKind.FIRE else None
            amount = rng.randrange(1, 30) if kind == EventKind.ADVANCE else rng.randrange(1, 4)
            if rng.random() < 0.03:
                yield Event(at_ns, seq, EventKind.CANCEL_FOR_KEY, "", id=f"id {rng.randrange(8)}")
            else:
                yield Event(at_ns, seq, kind, rng.choice(KEYS), amount, limit, b"v%d" % seq)


def in_batches(
    rng: random.Random, rows: list[Registration | Event], delay_ns: int, end_ns: int = END_NS
) -> Iterator[tuple[list[Registration | Event], int]]:
    """The rows as a stream brings them, at most `delay_ns` out of order, with the watermark of each batch.

    The last watermark is `end_ns`.
    """
    arrivals = sorted(rows, key=lambda row: row.at_ns + rng.randrange(delay_ns))
    at, newest = 0, 0
    while at < len(arrivals):
        some = arrivals[at : at + rng.choice((1, 2, 5, 20, 60))]
        at += len(some)
        yield some, max(NEVER_RIPE, newest - delay_ns)
        newest = max(newest, *(row.at_ns for row in some))
    yield [], newest - delay_ns
    yield [], end_ns


def place(settled: Settled) -> tuple[int, int, int]:
    return settled.row.at_ns, settled.row.seq, settled.copy


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
