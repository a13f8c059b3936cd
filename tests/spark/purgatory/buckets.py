"""Buckets without Spark: random rows, the batches in which they come, and the state between batches."""

from __future__ import annotations

import random
from collections.abc import Iterator

from timerd_shm.declare.states import Condition, EventKind
from timerd_spark.purgatory.bucket import Bucket, Settings
from timerd_spark.purgatory.packs import packs_of
from timerd_spark.purgatory.rows import Event, Key, Registration, Settled
from timerd_spark.purgatory.store import Changes, SegmentCache, Store

MS = 1_000_000
KEYS = ("alpha", "beta", "gamma", "delta")
NEVER_RIPE = -1
END_NS = 1 << 60


class State:
    """The values that Spark's state would have: a manifest and segments. A new cache is a new Python worker."""

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
    rng: random.Random,
    rows: list[Registration | Event],
    delay_ns: int,
    end_ns: int = END_NS,
    sizes: tuple[int, ...] = (1, 2, 5, 20, 60),
) -> Iterator[tuple[list[Registration | Event], int]]:
    """The rows as a stream brings them, at most `delay_ns` out of order, with the watermark of each batch.

    The last watermark is `end_ns`.
    """
    arrivals = sorted(rows, key=lambda row: row.at_ns + rng.randrange(delay_ns))
    at, newest = 0, 0
    while at < len(arrivals):
        some = arrivals[at : at + rng.choice(sizes)]
        at += len(some)
        yield some, max(NEVER_RIPE, newest - delay_ns)
        newest = max(newest, *(row.at_ns for row in some))
    yield [], newest - delay_ns
    yield [], end_ns


def place(settled: Settled) -> tuple[int, int, int]:
    return settled.row.at_ns, settled.row.seq, settled.copy
