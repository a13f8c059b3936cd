"""The journal's buffer: shared memory beside the arena, for rows that stand in no file yet.

The buffer outlives the daemon, as the arena does: the next daemon writes, once, the rows that a killed daemon has not
written. A buffer of another arena is replaced. So is one that is smaller or larger than the configuration allows: its
unwritten rows go to the new buffer.
"""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path

from timerd_shm.declare.errors import ResourceLimitError
from timerd_shm.declare.fields import size_of, struct_of, unpack
from timerd_shm.declare.journal import BUFFER_HEADER_SIZE, BUFFER_MAGIC, ROW_SIZE, BufferHeader, journal_fingerprint
from timerd_shm.declare.records import ArenaHeader
from timerd_shm.host.access import other_owner
from timerd_shm.host.plain_file import NotPlainError, open_plain


def open_buffer(path: Path, rows: int, header: ArenaHeader, least: int) -> tuple[mmap.mmap, bool]:
    """The buffer beside an arena, old or new, and whether it may hold rows that stand in no file.

    An old buffer of `least` to `rows` rows stays. Else a new one is made, with `rows` rows: if there is too little
    room, the number is halved until it fits, down to `least`. The unwritten rows of the old buffer go to the new one.
    If they do not fit, the old buffer stays. Raises ResourceLimitError.
    """
    try:
        old = _map_buffer(path, header)
        if old is None:
            path.unlink(missing_ok=True)  # another arena's buffer: its room may be needed
        while True:
            if old is not None:
                there = unpack(BufferHeader, old[:BUFFER_HEADER_SIZE]).rows
                if least <= there <= rows or header.journal_rows - header.journal_written > rows:
                    return old, True
            try:
                return _make_buffer(path, rows, header, old), old is not None
            except OSError as error:
                if error.errno != errno.ENOSPC or rows // 2 < least:
                    raise
            rows //= 2
    except OSError as error:
        if isinstance(error, ResourceLimitError):
            raise
        for laid in (path, _fresh(path)):
            if why := other_owner(laid):
                raise ResourceLimitError(f"the journal's buffer {laid} cannot be made: {why}") from None
        raise ResourceLimitError(
            f"the journal's buffer {path} of {rows * ROW_SIZE} bytes cannot be made ({error.strerror}): "
            "lower --journal-buffer or --capacity"
        ) from None


def _map_buffer(path: Path, header: ArenaHeader) -> mmap.mmap | None:
    """The existing buffer, if it is of this arena."""
    try:
        descriptor = open_plain(path, os.O_RDWR)
    except FileNotFoundError:
        return None
    except NotPlainError as error:
        raise ResourceLimitError(f"the journal's buffer {path} cannot be made: {error.strerror}: remove it") from None
    try:
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid():
            raise ResourceLimitError(f"the journal's buffer {path} cannot be made: {other_owner(path)}")
        found = os.pread(descriptor, size_of(BufferHeader), 0)
        if len(found) < size_of(BufferHeader):
            return None
        there = unpack(BufferHeader, found)
        wanted = BufferHeader(BUFFER_MAGIC, journal_fingerprint(), there.rows, header.incarnation)
        if there != wanted or status.st_size != BUFFER_HEADER_SIZE + there.rows * ROW_SIZE:
            return None
        return mmap.mmap(descriptor, status.st_size)
    finally:
        os.close(descriptor)


def _fresh(path: Path) -> Path:
    """The name of a buffer until it is complete."""
    return path.with_name(f"{path.name}.new")


def _make_buffer(path: Path, rows: int, header: ArenaHeader, old: mmap.mmap | None) -> mmap.mmap:
    """A new buffer, with the unwritten rows of the old one. It takes the old buffer's name once it is complete."""
    size = BUFFER_HEADER_SIZE + rows * ROW_SIZE
    fresh = _fresh(path)
    fresh.unlink(missing_ok=True)  # a daemon was killed while it made this file
    descriptor = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, size)
        buffer = mmap.mmap(descriptor, size)
        buffer[: size_of(BufferHeader)] = struct_of(BufferHeader).pack(
            BUFFER_MAGIC, journal_fingerprint(), rows, header.incarnation
        )
        if old is not None:
            there = unpack(BufferHeader, old[:BUFFER_HEADER_SIZE]).rows
            for number in range(header.journal_written, header.journal_rows):
                source = BUFFER_HEADER_SIZE + number % there * ROW_SIZE
                target = BUFFER_HEADER_SIZE + number % rows * ROW_SIZE
                buffer[target : target + ROW_SIZE] = old[source : source + ROW_SIZE]
        os.rename(fresh, path)
        return buffer
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)
