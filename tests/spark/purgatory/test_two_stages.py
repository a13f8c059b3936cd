"""Two stages give the outcomes of one purgatory that has all keys."""

from __future__ import annotations

import random
from zlib import crc32

import pytest

from spark.purgatory.buckets import END_NS, MS, State, in_batches, place, program
from timerd_spark.purgatory.bucket import Bucket, Settings
from timerd_spark.purgatory.packs import leg_of, packs_of
from timerd_spark.purgatory.rows import Event, Registration, Settled
from timerd_spark.purgatory.store import Store
from timerd_spark.purgatory.two_stages import Joined, Legs

BUCKETS = 3


class Stage:
    """The buckets of a stage."""

    def __init__(self, kind: type[Bucket], settings: Settings) -> None:
        self.kind = kind
        self.states = [State(settings) for _ in range(BUCKETS)]

    def run(self, rows: list[tuple[str, Registration | Event]], until_ns: int) -> list[Bucket]:
        found = []
        for number, state in enumerate(self.states):
            mine = [row for group, row in rows if crc32(group.encode()) % BUCKETS == number]
            store = Store(state.manifest, state.fetch, state.cache)
            bucket = self.kind(store, state.settings)
            bucket.run((), until_ns, [(first_ns, pack) for first_ns, _, pack in packs_of(mine)])
            state.take(store.commit())
            found.append(bucket)
        return found


class TwoStages:
    def __init__(self, settings: Settings) -> None:
        self.first, self.second = Stage(Legs, settings), Stage(Joined, settings)

    def run(self, rows: list[Registration | Event], until_ns: int) -> list[Settled]:
        legs: list[tuple[str, Registration | Event]] = []
        joined: list[tuple[str, Registration | Event]] = []
        for row in rows:
            if isinstance(row, Registration):
                row = row._replace(id=row.id or f"row {row.at_ns}.{row.seq}")
                legs += [(key.name, leg_of(row._replace(keys=(key,)), ordinal)) for ordinal, key in enumerate(row.keys)]
                joined.append((row.id or "", row))
            elif row.id is not None:
                joined.append((row.id, row))
            else:
                legs.append((row.key, row))
        for bucket in self.first.run(legs, until_ns):
            assert isinstance(bucket, Legs)
            joined += [(hit.id or "", hit) for hits in bucket.hits.values() for hit in hits]
        return [each for bucket in self.second.run(joined, until_ns) for each in bucket.outcomes]


@pytest.mark.parametrize("number", range(6))
def test_two_stages_agree_with_one(seed: int, number: int) -> None:
    rng = random.Random(seed * 100 + number)
    settings = Settings(ordered=True, marks_ns=10_000 * MS, ids_ns=50 * MS)
    rows = [row._replace(limit=None) if isinstance(row, Event) else row for row in program(rng, 1_500)]
    wanted = [
        each._replace(row=each.row._replace(id=each.row.id or f"row {each.row.at_ns}.{each.row.seq}"))
        for each in State(settings).run(rows, END_NS)
    ]
    stages, found = TwoStages(settings), []
    for some, until_ns in in_batches(rng, rows, 20 * MS):
        found += stages.run(some, until_ns)
    assert sorted(found, key=place) == sorted(wanted, key=place), f"seed={seed}"
