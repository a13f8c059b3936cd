"""The records of a bucket, in segments that are written once: found by hash or by time, and decoded only if found.

    store = Store(manifest, fetch)
    found = store.take(hashes, until_ns)      # the records with one of these hashes, and those that are due
    store.put(records)
    changes = store.commit()                  # segments to write and to remove, and the next manifest

A record is bytes, some hashes and a time. The hashes of a record are those of its keys, so a record may be found for
another key with the same hash. A segment never changes: a record that was taken is marked in the manifest, and a merge
leaves it out. So a batch writes as much as it changes, whatever the number of records is, and a process may keep
segments that it has read.

As in a log-structured merge tree (O'Neil et al. 1996), a new segment takes in the smaller ones: a record is written
again only when the number of records has doubled. Arrays have a value for each record of the segment.
"""

from __future__ import annotations

import secrets
import struct
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple
from zlib import crc32

import msgpack

from .rows import NEVER

if TYPE_CHECKING:
    import numpy as np

SEGMENT_MAX: Final = 512 << 10  # bytes: below the 1 MB that a value in the state may have, whatever the last record is
SMALL: Final = 64  # records: a segment with fewer is merged whatever the number of new records is
CACHE_MAX: Final = 256 << 20  # bytes of segments that a process keeps
_HEADER = struct.Struct("<4sIII")  # magic, records, index entries, bytes of the bodies
_MAGIC: Final = b"TDB1"

Fetch = Callable[[int], bytes]  # the bytes of the segment with this id


def hash_of(name: str) -> int:
    """The hash by which the records of a name are found: 32 bits, CRC-32 of ISO 3309."""
    return crc32(name.encode())


class Record(NamedTuple):
    """A record: when it is due (ns; NEVER), its hashes, and its bytes."""

    due_ns: int
    hashes: tuple[int, ...]
    body: bytes


class Changes(NamedTuple):
    """The changes of a batch: the segments to write, by id, those to remove, and the manifest."""

    written: dict[int, bytes]
    removed: list[int]
    manifest: bytes


class Segment:
    """Records that were written together."""

    __slots__ = ("bodies", "due", "ends", "hashes", "owners", "size")

    def __init__(self, data: bytes) -> None:
        import numpy as np

        magic, count, entries, length = _HEADER.unpack_from(data)
        self.size = len(data)
        at = _HEADER.size
        if magic != _MAGIC or self.size != at + 12 * count + 8 * entries + length:
            raise ValueError(f"a segment of the state is damaged: {self.size} bytes, beginning with {data[:16].hex()}")
        self.due = np.frombuffer(data, "<i8", count, at)
        self.ends = np.frombuffer(data, "<u4", count, at + 8 * count)
        at += 12 * count
        self.hashes = np.frombuffer(data, "<u4", entries, at)  # sorted
        self.owners = np.frombuffer(data, "<u4", entries, at + 4 * entries)  # the record of each hash
        self.bodies = memoryview(data)[at + 8 * entries :]

    def __len__(self) -> int:
        return len(self.due)

    @staticmethod
    def bytes_of(records: Sequence[Record]) -> bytes:
        """The bytes of a segment with these records."""
        import numpy as np

        due = np.fromiter((record.due_ns for record in records), "<i8", len(records))
        ends = np.cumsum(np.fromiter((len(record.body) for record in records), "<u4", len(records)), dtype="<u4")
        counts = np.fromiter((len(record.hashes) for record in records), np.int64, len(records))
        hashes = np.fromiter((hash_ for record in records for hash_ in record.hashes), "<u4", int(counts.sum()))
        owners = np.repeat(np.arange(len(records), dtype="<u4"), counts)
        order = np.argsort(hashes, kind="stable")
        bodies = b"".join([record.body for record in records])
        header = _HEADER.pack(_MAGIC, len(records), len(hashes), len(bodies))
        return b"".join(
            [header, due.tobytes(), ends.tobytes(), hashes[order].tobytes(), owners[order].tobytes(), bodies]
        )

    def with_hash(self, wanted: np.ndarray) -> np.ndarray:
        """The records with one of these hashes. A record may come twice."""
        import numpy as np

        begins = np.searchsorted(self.hashes, wanted, "left")
        counts = np.searchsorted(self.hashes, wanted, "right") - begins
        begins, counts = begins[counts > 0], counts[counts > 0]
        if not len(counts):
            return self.owners[:0]
        places = np.repeat(begins - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
        return self.owners[places]

    def body(self, record: int) -> bytes:
        """The bytes of a record."""
        return bytes(self.bodies[self.ends[record - 1] if record else 0 : self.ends[record]])

    def records(self, numbers: np.ndarray) -> list[Record]:
        """These records, whole."""
        import numpy as np

        order = np.argsort(self.owners, kind="stable")
        begins = np.searchsorted(self.owners[order], np.arange(len(self) + 1))
        hashes = self.hashes[order].tolist()
        due = self.due.tolist()
        return [Record(due[at], tuple(hashes[begins[at] : begins[at + 1]]), self.body(at)) for at in numbers.tolist()]


class Part:
    """A segment, as a manifest has it: its bytes, which of its records are left, when the first of these is due."""

    __slots__ = ("alive", "count", "first_due_ns", "id", "size")

    def __init__(self, id: int, count: int, size: int, first_due_ns: int, alive: np.ndarray) -> None:
        self.id, self.count, self.size, self.first_due_ns, self.alive = id, count, size, first_due_ns, alive

    def is_kept(self, left: int, new: int) -> bool:
        """Whether the segment stays as it is, beside a number of new records. `left`: how many records it still has."""
        if 2 * left < self.count:
            return False
        return 2 * self.size > SEGMENT_MAX or left > max(2 * new, SMALL)


class SegmentCache:
    """Segments that this process has read or written. The oldest go first when they have more than CACHE_MAX bytes."""

    def __init__(self, most: int = CACHE_MAX) -> None:
        self._found: OrderedDict[int, Segment] = OrderedDict()
        self._size, self._most = 0, most

    def get(self, id: int, fetch: Fetch) -> Segment:
        """The segment with this id, from here or from the state."""
        found = self._found.get(id)
        if found is None:
            found = self.add(id, fetch(id))
        else:
            self._found.move_to_end(id)
        return found

    def add(self, id: int, data: bytes) -> Segment:
        """Keep a segment."""
        segment = self._found[id] = Segment(data)
        self._size += segment.size
        while self._size > self._most and len(self._found) > 1:
            _, oldest = self._found.popitem(last=False)
            self._size -= oldest.size
        return segment

    def drop(self, id: int) -> None:
        """Forget a segment, which was removed."""
        if (segment := self._found.pop(id, None)) is not None:
            self._size -= segment.size


class Store:
    """The records of a bucket. `manifest` b"": there are none yet. `note` is the user's own part of the manifest."""

    def __init__(self, manifest: bytes, fetch: Fetch, cache: SegmentCache) -> None:
        import numpy as np

        self._fetch, self._cache = fetch, cache
        self._parts: list[Part] = []
        self._new: list[Record] = []
        self.note: object = None
        if manifest:
            self.note, parts = msgpack.unpackb(manifest)
            for id_, count, size, first_due_ns, alive in parts:
                bits = np.unpackbits(np.frombuffer(alive, np.uint8), count=count) if alive else np.ones(count, np.uint8)
                self._parts.append(Part(id_, count, size, first_due_ns, bits.astype(bool)))

    def __len__(self) -> int:
        return sum(int(part.alive.sum()) for part in self._parts) + len(self._new)

    @property
    def first_due_ns(self) -> int:
        """When the first record is due; NEVER if there is none."""
        due = [part.first_due_ns for part in self._parts]
        return min(due + [record.due_ns for record in self._new], default=NEVER)

    def take(self, hashes: Iterable[int], until_ns: int) -> list[bytes]:
        """Remove the records with one of these hashes, and those due at `until_ns` or before. Returns their bytes."""
        found: list[bytes] = []
        for part, segment, hit in self._hits(hashes, until_ns):
            found += [segment.body(at) for at in hit.nonzero()[0].tolist()]
            part.alive &= ~hit
            left = segment.due[part.alive]
            part.first_due_ns = int(left.min()) if len(left) else NEVER
        return found

    def find(self, hashes: Iterable[int]) -> list[bytes]:
        """The bytes of the records with one of these hashes. They stay."""
        hits = self._hits(hashes, -1)
        return [segment.body(at) for _, segment, hit in hits for at in hit.nonzero()[0].tolist()]

    def _hits(self, hashes: Iterable[int], until_ns: int) -> Iterator[tuple[Part, Segment, np.ndarray]]:
        """For each segment that has such records: which of its records they are."""
        import numpy as np

        wanted = np.unique(np.fromiter(hashes, np.uint32))
        for part in self._parts:
            if not len(wanted) and part.first_due_ns > until_ns:
                continue
            segment = self._cache.get(part.id, self._fetch)
            hit = np.zeros(part.count, bool)
            hit[segment.with_hash(wanted)] = True
            if part.first_due_ns <= until_ns:
                hit |= segment.due <= until_ns
            hit &= part.alive
            if hit.any():
                yield part, segment, hit

    def put(self, records: Iterable[Record]) -> None:
        """Add records."""
        self._new += records

    def all(self) -> list[bytes]:
        """The bytes of all records. None is removed."""
        import numpy as np

        found = [record.body for record in self._new]
        for part in self._parts:
            segment = self._cache.get(part.id, self._fetch)
            found += [segment.body(at) for at in np.flatnonzero(part.alive).tolist()]
        return found

    def commit(self) -> Changes:
        """Put the new records into segments, merge, and make the next manifest."""
        import numpy as np

        records, removed, kept = self._new, [], []
        for part in sorted(self._parts, key=lambda one: int(one.alive.sum())):
            left = int(part.alive.sum())
            if left and part.is_kept(left, len(records)):
                kept.append(part)
                continue
            removed.append(part.id)
            if left:
                records = self._cache.get(part.id, self._fetch).records(np.flatnonzero(part.alive)) + records
            self._cache.drop(part.id)
        written: dict[int, bytes] = {}
        for some in _in_pieces(records):
            id_ = secrets.randbits(63)
            data = written[id_] = Segment.bytes_of(some)
            self._cache.add(id_, data)
            first_due_ns = min(record.due_ns for record in some)
            kept.append(Part(id_, len(some), len(data), first_due_ns, np.ones(len(some), bool)))
        self._parts, self._new = kept, []
        parts = []
        for part in kept:
            alive = b"" if part.alive.all() else np.packbits(part.alive).tobytes()
            parts.append((part.id, part.count, part.size, part.first_due_ns, alive))
        return Changes(written, removed, msgpack.packb((self.note, parts)))


def _in_pieces(records: list[Record]) -> Iterable[list[Record]]:
    """The records in pieces of at most SEGMENT_MAX bytes, or of one record."""
    piece: list[Record] = []
    size = 0
    for record in records:
        own = 12 + 8 * len(record.hashes) + len(record.body)
        if piece and size + own > SEGMENT_MAX:
            yield piece
            piece, size = [], 0
        piece.append(record)
        size += own
    if piece:
        yield piece
