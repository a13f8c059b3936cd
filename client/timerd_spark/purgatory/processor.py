"""Buckets in Spark's state: a value with the manifest of each bucket, a map with its segments, and one timer.

Spark calls the processor with the rows of a bucket, or when the bucket's timer is due. (transformWithState of Spark 4.2
and later; its Row form.)
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.streaming import StatefulProcessor

from .bucket import Bucket, Settings
from .rows import NEVER, Event, Key, Registration, Settled
from .store import SegmentCache, Store

if TYPE_CHECKING:
    from pyspark.sql import Row
    from pyspark.sql.streaming import StatefulProcessorHandle

NS_PER_MS: Final = 1_000_000
HEARTBEAT: Final = -1  # the kind of a row that says what time it is, at `at_ns`
# The columns of a row that goes into a bucket. A registration has no kind.
INPUT: Final = (
    "bucket int, kind int, at_ns bigint, seq bigint, id string, keys array<string>, body binary, deadline_ns bigint, "
    "condition int, needed int, total bigint, targets array<bigint>, mark_ns bigint, mark_seq bigint, "
    "amount bigint, `limit` int, sender string, command bigint"
)
# The columns of a row that comes out: those of Settled, and what they are of.
OUTPUT: Final = (
    "op_id string, id string, key string, outcome int, error bigint, settled_key int, at_ns bigint, "
    "deadline_ns bigint, settled_ns bigint, flags int, value binary, payload binary, seq bigint"
)
_CACHE = SegmentCache()  # of this Python worker


class Purgatories(StatefulProcessor):
    """The buckets of one query."""

    def __init__(self, settings: Settings, *, event_time: bool, idle_ns: int = 0) -> None:
        self._settings, self._event_time, self._idle_ns = settings, event_time, idle_ns

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._manifest = handle.getValueState("manifest", "manifest binary")
        self._segments = handle.getMapState("segments", "id bigint", "segment binary")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """The rows of a bucket, and heartbeats."""
        found, beat_ns = [], -1
        for row in rows:
            if row[1] == HEARTBEAT:
                beat_ns = max(beat_ns, row[2])
            else:
                found.append(row_of(row))
        yield from self._run(found, timerValues, beat_ns)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        """The timer of a bucket is due."""
        yield from self._run([], timerValues, -1)

    def close(self) -> None:
        """Nothing is open."""

    def _run(self, rows: list[Registration | Event], times: Any, beat_ns: int) -> Iterator[Any]:
        before = self._manifest.get()
        if before is None and not rows:
            return iter(())
        now_ms = times.getCurrentWatermarkInMs() if self._event_time else times.getCurrentProcessingTimeInMs()
        store = Store(b"" if before is None else bytes(before[0]), self._fetch, _CACHE)
        bucket = Bucket(store, self._settings)
        outcomes = bucket.run(rows, self._until_ns(bucket, now_ms * NS_PER_MS, beat_ns))
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
        return map(output_of, outcomes)

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


def row_of(row: Row) -> Registration | Event:
    """The row of a bucket, from a row with the columns INPUT."""
    (_, kind, at_ns, seq, id_, keys, body, deadline_ns, condition, needed, total, targets, mark_ns, mark_seq) = row[:14]
    amount, limit, sender, command = row[14:]
    if kind is not None:
        key, value = keys[0] if keys else "", b"" if body is None else bytes(body)
        return Event(at_ns, seq, kind, key, amount, limit, value, id_, sender, command or 0)
    watched = tuple(map(Key, keys or ())) if targets is None else tuple(map(Key, keys, targets))
    mark = None if mark_ns is None else (mark_ns, mark_seq)
    payload = b"" if body is None else bytes(body)
    return Registration(
        at_ns, seq, id_, watched, deadline_ns, condition, needed, total, payload, mark, sender, command
    )


def output_of(settled: Settled) -> tuple[Any, ...]:
    """A row with the columns OUTPUT."""
    r = settled.row
    said = repr((r.at_ns, r.seq, r.id, r.keys, r.deadline_ns, r.payload, settled.copy))
    return (
        blake2b(said.encode(), digest_size=16).hexdigest(),
        r.id,
        r.keys[settled.settled_key or 0].name if r.keys else None,
        int(settled.outcome),
        None if settled.error is None else int(settled.error),
        settled.settled_key,
        r.at_ns,
        r.deadline_ns,
        settled.settled_ns,
        int(settled.flags),
        settled.value,
        r.payload,
        settled.seq,
    )
