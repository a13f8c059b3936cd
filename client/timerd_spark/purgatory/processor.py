"""Buckets in Spark's state: a value with the manifest of each bucket, a map with its segments, and one timer.

Spark calls the processor with the packs of a bucket, or when the bucket's timer is due. (transformWithState of Spark
4.2 and later; its Row form.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

from .bucket import Bucket, Settings
from .outcomes import said
from .packs import PACKED, names_of, packs_of
from .rows import NEVER
from .store import SegmentCache, Store
from .two_stages import Joined, Legs

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.streaming import StatefulProcessorHandle

NS_PER_MS: Final = 1_000_000
SAID: Final = "said binary"  # what a bucket says: outcomes, as an Arrow stream
HITS: Final = f"{PACKED}, time timestamp"
_SAID, _HITS = Row(*names_of(SAID)), Row(*names_of(HITS))
_CACHE = SegmentCache()  # of this Python worker


class Purgatories(StatefulProcessor):
    """The buckets of a query with one stage."""

    kind: type[Bucket] = Bucket

    def __init__(self, settings: Settings, *, event_time: bool, idle_ns: int = 0) -> None:
        self._settings, self._event_time, self._idle_ns = settings, event_time, idle_ns

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Spark has made the state."""
        self._handle = handle
        self._manifest = handle.getValueState("manifest", "manifest binary")
        self._segments = handle.getMapState("segments", "id bigint", "segment binary")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Any]:
        """The packs of a bucket, and heartbeats."""
        packs: list[tuple[int, bytes]] = []
        beat_ns = -1
        for bucket, onward, first_ns, newest_ns, pack, *_ in rows:
            if pack is None:
                beat_ns = max(beat_ns, newest_ns)
            if onward:
                yield self.onward(timerValues, bucket, first_ns, newest_ns, pack)
            elif pack is not None:
                packs.append((first_ns, pack))
        yield from self._run(packs, timerValues, beat_ns)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        """The timer of a bucket is due."""
        yield from self._run([], timerValues, -1)

    def close(self) -> None:
        """Nothing is open."""

    def results(self, bucket: Bucket, times: Any) -> Iterable[Any]:
        """The rows that the bucket gives."""
        return map(_SAID, said(bucket.outcomes))

    def onward(self, times: Any, bucket: int, first_ns: int, newest_ns: int, pack: bytes | None) -> Any:
        """The row that hands something on to a bucket of the second stage."""
        raise NotImplementedError

    def _now_ms(self, times: Any) -> int:
        found = times.getCurrentWatermarkInMs() if self._event_time else times.getCurrentProcessingTimeInMs()
        return int(found)

    def _run(self, packs: Sequence[tuple[int, bytes]], times: Any, beat_ns: int) -> Iterable[Any]:
        before = self._manifest.get()
        if before is None and not packs:
            return ()
        now_ms = self._now_ms(times)
        store = Store(b"" if before is None else bytes(before[0]), self._fetch, _CACHE)
        bucket = self.kind(store, self._settings)
        noted, until_ns = bucket.note, self._until_ns(bucket, now_ms * NS_PER_MS, beat_ns)
        if not packs and bucket.note == noted and until_ns < store.first_due_ns and now_ms < noted.timer_ms:
            return ()  # a heartbeat that changes nothing
        bucket.run((), until_ns, packs)
        self._plan(bucket, store, now_ms)
        changes = store.commit()
        for id_, data in changes.written.items():
            self._segments.updateValue((id_,), (data,))
        for id_ in changes.removed:
            self._segments.removeKey((id_,))
        if len(store) or bucket.note.has_counted:
            self._manifest.update((changes.manifest,))
        else:
            self._manifest.clear()
        return self.results(bucket, times)

    def _until_ns(self, bucket: Bucket, watermark_ns: int, beat_ns: int) -> int:
        """Up to when rows are ripe: the watermark; or the clock, if the watermark has not moved for `idle_ns`."""
        note = bucket.note
        if beat_ns < 0:
            return watermark_ns
        if note.watermark_ns != watermark_ns or note.beat_ns < 0:
            bucket.note = note._replace(watermark_ns=watermark_ns, beat_ns=beat_ns)
        elif beat_ns - note.beat_ns >= self._idle_ns:
            return max(watermark_ns, beat_ns - self._idle_ns)
        return watermark_ns

    def _fetch(self, id: int) -> bytes:
        return bytes(self._segments.getValue((id,))[0])

    def _plan(self, bucket: Bucket, store: Store, now_ms: int) -> None:
        """Set the timer for the first record that is due, unless an earlier timer will come before it."""
        due_ns, planned = store.first_due_ns, bucket.note.timer_ms
        due_ms = -(-due_ns // NS_PER_MS)
        if due_ns != NEVER and (planned <= now_ms or due_ms < planned):
            self._handle.registerTimer(due_ms)
            bucket.note = bucket.note._replace(timer_ms=due_ms)
            store.note = tuple(bucket.note)


class FirstStage(Purgatories):
    """The legs of operations, by key. Its rows are packs of hits."""

    kind = Legs

    def results(self, bucket: Bucket, times: Any) -> Iterable[Any]:
        """Packs for buckets of the second stage."""
        assert isinstance(bucket, Legs)
        for second, hits in bucket.hits.items():
            for each in packs_of(hits):
                yield self.onward(times, second, *each)

    def onward(self, times: Any, bucket: int, first_ns: int, newest_ns: int, pack: bytes | None) -> Any:
        """A row for the second stage. Its time is after the watermark, as Spark demands of a first stage."""
        from datetime import datetime

        time = datetime.fromtimestamp((self._now_ms(times) + 1) / 1e3, UTC) if self._event_time else None
        return _HITS(bucket, False, first_ns, newest_ns, pack, time)


class SecondStage(Purgatories):
    """The operations, by their ids."""

    kind = Joined


# in a batch query -----------------------------------------------------------------------------------------------------


def run_at_once(kind: type[Bucket], settings: Settings, table: pa.Table) -> pa.Table:
    """The outcomes of a bucket that gets all its rows at once. (For applyInArrow.)"""
    import pyarrow as pa

    bucket = _at_once(kind, settings, table)
    return pa.table({"said": pa.array(list(said(bucket.outcomes)), pa.binary())})


def run_legs_at_once(settings: Settings, table: pa.Table) -> pa.Table:
    """The same of a bucket of the first stage: packs for the second one."""
    import pyarrow as pa
    import pyarrow.compute as pc

    onward = table.column("onward")
    legs = _at_once(Legs, settings, table.filter(pc.invert(onward)))
    assert isinstance(legs, Legs)
    rows = [(second, False, *each) for second, hits in legs.hits.items() for each in packs_of(hits)]
    columns = zip(*rows, strict=True) if rows else [()] * table.num_columns
    arrays = [pa.array(column, field.type) for column, field in zip(columns, table.schema, strict=True)]
    return pa.concat_tables([table.filter(onward), pa.Table.from_arrays(arrays, schema=table.schema)])


def _at_once(kind: type[Bucket], settings: Settings, table: pa.Table) -> Bucket:
    packs = zip(table.column("first_ns").to_pylist(), table.column("pack").to_pylist(), strict=True)
    bucket = kind(Store(b"", _nothing, SegmentCache()), settings)
    bucket.run((), NEVER - 1, packs)
    return bucket


def _nothing(id: int) -> bytes:
    raise KeyError(id)
