"""The data of a group that outlive its broker: its committed offsets, and its last generation. Each group has a file.

Records are appended, each by one write. There is no fsync: written data survive the end of the process, but not a crash
of the machine. A broker that is killed may leave a part of the last record, which is dropped.
"""

from __future__ import annotations

import hashlib
import logging
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import msgpack
from timerd_kafka.groups.offsets import Offsets, offsets_of, record_of

GROUP, OFFSETS, GENERATION = 0, 1, 2  # kinds of records
SIZE = struct.Struct(">I")  # before each record: the number of its bytes, which are msgpack
REWRITE_MIN = 256 << 10  # bytes: a shorter file is not rewritten while the broker runs
REWRITE_TIMES = 4  # a file is rewritten when it is this many times as long as after the last rewrite

log = logging.getLogger("timerd_kafka.groups")


class Remembered:
    """The file of one group, and its content. The file is made when there is something to keep."""

    def __init__(self, directory: Path, group: str) -> None:
        self.group = group
        self.path = directory / hashlib.sha256(group.encode()).hexdigest()
        self.offsets: Offsets = {}
        self.generation: list[Any] | None = None  # a record that Group.record() made
        self._size = self._rewritten = 0

    @classmethod
    def all_of(cls, directory: Path, is_meant: Callable[[str], bool]) -> Iterator[Remembered]:
        """The stored data of the groups in the folder for whose names `is_meant` returns True."""
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        for path in sorted(directory.iterdir()):
            if path.suffix:
                continue  # the draft of a killed broker
            records = _records(path)
            kind, group, _ = next(records, (None, None, 0))
            if kind != GROUP or not isinstance(group, str):
                log.warning("%s is no file of a group", path)
            elif is_meant(group):
                remembered = cls(directory, group)
                for kind, value, end in records:
                    remembered._take(kind, value)
                    remembered._size = end
                os.truncate(path, remembered._size)
                yield remembered

    def _take(self, kind: int, value: Any) -> None:
        if kind == OFFSETS:
            self.offsets.update(offsets_of(value))
        elif kind == GENERATION:
            self.generation = value

    # writing ----------------------------------------------------------------------------------------------------------

    def commit(self, offsets: Offsets) -> None:
        """Keep offsets. If this raises OSError, none of them is kept."""
        self._append(OFFSETS, record_of(offsets))
        self.offsets.update(offsets)
        self._rewrite_if_long()

    def keep(self, generation: list[Any]) -> None:
        """Keep a generation. Raises OSError."""
        self._append(GENERATION, generation)
        self.generation = generation
        self._rewrite_if_long()

    def drop_topics(self, is_known: Callable[[UUID], bool]) -> None:
        """Forget the offsets of deleted topics."""
        gone = {topic for topic in {place.topic for place in self.offsets} if not is_known(topic)}
        if gone:
            self.offsets = {place: one for place, one in self.offsets.items() if place.topic not in gone}

    def rewrite(self) -> None:
        """Write the file anew, without outdated records. If that fails, the file stays as it was."""
        parts = [_packed(GROUP, self.group), _packed(OFFSETS, record_of(self.offsets))]
        if self.generation is not None:
            parts.append(_packed(GENERATION, self.generation))
        data = b"".join(parts)
        draft = self.path.with_suffix(".draft")  # an old draft is overwritten: a group has one broker
        try:
            draft.write_bytes(data)
            draft.replace(self.path)
        except OSError:
            log.warning("%s cannot be rewritten", self.path, exc_info=True)
            self._rewritten = self._size  # try again when the file is REWRITE_TIMES as long as now
        else:
            self._size = self._rewritten = len(data)

    def remove(self) -> None:
        """Remove the file, and forget its content."""
        self.path.unlink(missing_ok=True)
        self.offsets, self.generation = {}, None
        self._size = self._rewritten = 0

    def _append(self, kind: int, value: Any) -> None:
        data = _packed(kind, value)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        if not self._size:
            data = _packed(GROUP, self.group) + data
            flags |= os.O_TRUNC
        # No descriptor is kept open: there may be more groups than a process may have descriptors.
        descriptor = os.open(self.path, flags, 0o600)
        try:
            if os.write(descriptor, data) < len(data):
                os.ftruncate(descriptor, self._size)
                raise OSError(f"{self.path}: a record of {len(data)} bytes was cut")
        finally:
            os.close(descriptor)
        self._size += len(data)

    def _rewrite_if_long(self) -> None:
        if self._size > max(REWRITE_MIN, REWRITE_TIMES * self._rewritten):
            self.rewrite()


def _packed(kind: int, value: Any) -> bytes:
    data: bytes = msgpack.packb([kind, value])
    return SIZE.pack(len(data)) + data


def _records(path: Path) -> Iterator[tuple[int, Any, int]]:
    """The complete records of a file: for each its kind, its value, and the position of its end."""
    data, end = path.read_bytes(), 0
    while end + SIZE.size <= len(data):
        begin = end + SIZE.size
        end = begin + SIZE.unpack_from(data, begin - SIZE.size)[0]
        if end > len(data):
            return
        try:
            kind, value = msgpack.unpackb(data[begin:end])
        except (ValueError, TypeError, msgpack.UnpackException):
            log.warning("%s is damaged: the records after the damage are lost", path)
            return
        yield kind, value, end
