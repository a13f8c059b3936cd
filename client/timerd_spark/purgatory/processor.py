"""Buckets in Spark's state: a value with the manifest of each bucket, a map with its segments, and one timer.

Spark calls the processor with the rows of a bucket, or when the bucket's timer is due. (transformWithState of Spark 4.2
and later; its Row form.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

from .bucket import Bucket, Settings
from .rows import NEVER, Event, Key, Registration, Settled
from .store import SegmentCache, Store
from .two_stages import Joined, Legs, leg_of

if TYPE_CHECKING:
    from pyspark.sql.streaming import StatefulProcessorHandle

NS_PER_MS: Final = 1_000_000
HEARTBEAT: Final = -1  # the kind of a row that says what time it is, at `at_ns`
# The columns of a row that goes into a bucket. A registration has no kind; a leg has an ordinal; a hit has the position
# of its operation in mark_ns and mark_seq, and the key's ordinal in `command`.
INPUT: Final = (
    "bucket int, kind int, at_ns bigint, seq bigint, id string, keys array<string>, body binary, deadline_ns bigint, "
    "condition int, needed int, total bigint, targets array<bigint>, mark_ns bigint, mark_seq bigint, "
    "amount bigint, `limit` int, sender string, command bigint, ordinal int"
)
# The columns of an outcome, and those of a hit.
OUTCOMES: Final = (
    "op_id string, id string, key string, outcome int, error bigint, settled_key int, at_ns bigint, "
    "deadline_ns bigint, settled_ns bigint, flags int, value binary, payload binary, seq bigint"
)
HITS: Final = (
    "kind int, at_ns bigint, seq bigint, id string, keys array<string>, body binary, mark_ns bigint, mark_seq bigint, "
    "amount bigint, command bigint, time timestamp"
)
_OUTCOME = Row(*[part.split()[0] for part in OUTCOMES.split(", ")])
_HIT = Row(*[part.split()[0] for part in HITS.split(", ")])
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
        """The rows of a bucket, and heartbeats."""
        found, beat_ns = [], -1
        for row in rows:
            if row[1] == HEARTBEAT:
                beat_ns = max(beat_ns, row[2])
            else:
                found.append(row_of(row))
        yield from self._run(found, timerValues, beat_ns)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        """The timer of a bucket is due."""
        yield from self._run([], timerValues, -1)

    def close(self) -> None:
        """Nothing is open."""

    def results(self, bucket: Bucket, now_ms: int) -> Iterable[Any]:
        """The rows that the bucket gives."""
        return map(output_of, bucket.outcomes)

    def _run(self, rows: list[Registration | Event], times: Any, beat_ns: int) -> Iterable[Any]:
        before = self._manifest.get()
        if before is None and not rows:
            return ()
        now_ms = times.getCurrentWatermarkInMs() if self._event_time else times.getCurrentProcessingTimeInMs()
        store = Store(b"" if before is None else bytes(before[0]), self._fetch, _CACHE)
        bucket = self.kind(store, self._settings)
        bucket.run(rows, self._until_ns(bucket, now_ms * NS_PER_MS, beat_ns))
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
        return self.results(bucket, now_ms)

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
    """The legs of operations, by key. Its rows are hits."""

    kind = Legs

    def results(self, bucket: Bucket, now_ms: int) -> Iterable[Any]:
        """A row for each hit. Its time is after the watermark, as Spark demands of a first stage."""
        from datetime import datetime, timezone

        assert isinstance(bucket, Legs)
        time = datetime.fromtimestamp((now_ms + 1) / 1e3, timezone.utc) if self._event_time else None
        for hit in bucket.hits:
            of = hit.of or (None, None)
            yield _HIT(
                int(hit.kind), hit.at_ns, hit.seq, hit.id, [hit.key], hit.value, *of, hit.amount, hit.command, time
            )


class SecondStage(Purgatories):
    """The operations, by their ids."""

    kind = Joined


def row_of(row: Row) -> Registration | Event:
    """The row of a bucket, from a row with the columns INPUT."""
    (_, kind, at_ns, seq, id_, keys, body, deadline_ns, condition, needed, total, targets, mark_ns, mark_seq) = row[:14]
    amount, limit, sender, command, ordinal = row[14:19]
    said = b"" if body is None else bytes(body)
    mark = None if mark_ns is None else (mark_ns, mark_seq)
    if kind is not None:
        key = keys[0] if keys and keys[0] is not None else ""
        return Event(at_ns, seq, kind, key, amount, limit, said, id_, sender, command or 0, mark)
    watched = tuple(map(Key, keys or ())) if targets is None else tuple(map(Key, keys, targets))
    made = Registration(at_ns, seq, id_, watched, deadline_ns, condition, needed, total, said, mark, sender, command)
    return made if ordinal is None else leg_of(made, ordinal, watched[0])


def output_of(settled: Settled) -> Row:
    """A row with the columns OUTCOMES."""
    r = settled.row
    said = repr((r.at_ns, r.seq, r.id, r.keys, r.deadline_ns, r.payload, settled.copy))
    return _OUTCOME(
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
