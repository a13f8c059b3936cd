"""The journal's files: segments in a directory, appended to in blocks, sealed when they are full, removed when old.

A directory is written by one daemon, which holds its lock. A start finds out from the newest segment, and from the
arena's header, which rows stand in files.

Rows of a block that is not full yet stay in the buffer, so that a torn block can be written again as a whole.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import socket
import stat
import zlib
from pathlib import Path
from typing import NamedTuple

from timerd.clock import Clock
from timerd.host.group import give_to_group
from timerd_shm.declare.errors import InstanceRunningError, ResourceLimitError
from timerd_shm.declare.fields import struct_of, unpack
from timerd_shm.declare.journal import (
    BLOCK_ROWS,
    BLOCK_SIZE,
    BUFFER_HEADER_SIZE,
    BUFFER_ROWS_MIN,
    JOURNAL_MAGIC,
    JOURNAL_VERSION,
    ROW_SIZE,
    BufferHeader,
    JournalLevel,
    RowKind,
    SegmentHeader,
    journal_fingerprint,
)
from timerd_shm.declare.records import ArenaHeader
from timerd_shm.host.access import as_word, other_owner
from timerd_shm.host.plain_file import NotPlainError, open_plain
from timerd_shm.host.process import process_start_ticks
from timerd_shm.host.trust import distrust
from timerd_shm.read.holds import HOLDS, holds_of
from timerd_shm.read.segment import (
    HEADER_CRC,
    LOCK_NAME,
    SEGMENT_LAST,
    JournalError,
    Segment,
    headers_of,
    is_unfinished,
    segment_path,
    segments_of,
)

from .blocks import write_blocks

OTHER_DIRECTORY = "choose another directory (--journal)"


class JournalPlan(NamedTuple):
    """The plan of a journal's files."""

    directory: Path
    level: JournalLevel
    segment_size: int  # bytes of a file, its header block among them
    keep: int  # bytes of all files
    hold_limit: int  # bytes beyond `keep`, for consumers that hold segments
    group_id: int | None
    instance: str

    @property
    def segment_rows(self) -> int:
        """Rows of a segment."""
        return (self.segment_size // BLOCK_SIZE - 1) * BLOCK_ROWS


class JournalFiles:
    """The segments in a directory, and how many rows stand in them. One daemon holds them, by a lock.

    `written` counts the rows that stand in full blocks. One thread calls append(); another may read `written` and
    `notes`.
    """

    def __init__(self, plan: JournalPlan, clock: Clock, boot: bytes) -> None:
        """Raises InstanceRunningError if another daemon writes there, and ResourceLimitError."""
        self.plan = plan
        self.written = 0
        self.notes: list[str] = []  # errors for the conductor to log; taken by list.pop(0)
        self.failures = 0
        self.renew = False  # the present segment is lost: the core must begin another segment
        self._clock = clock
        self._boot = boot
        self._buffer = memoryview(b"")
        self._incarnation = 0
        self._descriptor = -1
        self._sequence = 0
        self._segment = 0  # first row of the present segment
        self._shown = 0  # rows that can be read
        try:
            self._make_directory()
            self._lock = self._take_lock()
        except OSError as error:
            if isinstance(error, ResourceLimitError):
                raise
            raise ResourceLimitError(
                f"the journal's directory {plan.directory}: {error.strerror}: "
                "choose one that this user may write (--journal)"
            ) from None

    def attach(self, buffer: memoryview, header: ArenaHeader, buffered: bool) -> int:
        """Find out which rows of this arena stand in files. Returns `written`, for the core.

        `buffered`: the buffer holds the newest rows. Else the buffer is new, and rows that stand in no file are lost.
        """
        self._buffer = buffer
        self._incarnation = header.incarnation
        self._segment = header.journal_segment
        self.written = header.journal_written
        rows = header.journal_rows
        oldest = rows  # the oldest row that the buffer holds
        if buffered:
            # A killed daemon may have begun rows after the last one, and so overwritten the oldest rows.
            capacity = unpack(BufferHeader, buffer).rows
            oldest = min(header.journal_written, max(0, rows - capacity + BUFFER_ROWS_MIN))
        self._go_on(header)
        if self._descriptor < 0:
            if oldest <= self.written < rows and self._begins_segment(self.written):
                # The last daemon was killed before it made this segment's file: the buffer holds several segments.
                self._segment = self.written
            # No file of the present segment can be continued. A new file takes no rows from before the segment.
            oldest = max(oldest, self._segment)
        if not oldest <= self.written <= rows:
            self._seal(self._next())
            self._segment = header.journal_segment
            start = min(-(-max(oldest, self._segment) // BLOCK_ROWS) * BLOCK_ROWS, rows)
            lost = f"rows {self.written} to {start - 1}" if self.written < start else f"rows from {start} on"
            self.notes.append(f"{lost} of the journal are lost: neither a file nor the buffer holds them")
            self.written = start
        self._shown = self.written
        self._look_for_others()
        return self.written

    def append(self, rows: int) -> None:
        """Write all rows before row number `rows`. Raises OSError; then the next call writes the missing ones."""
        self._look_for_removal()
        at = self._next()
        while at < rows and rows > self._shown:
            if self._begins_segment(at):
                self._seal(at)
                self._segment = at
            if self._descriptor < 0:
                self._begin_file(at)
            end = write_blocks(self._buffer, at, rows, self._descriptor, self._segment, self._sequence)
            self._shown = end
            at = end // BLOCK_ROWS * BLOCK_ROWS
            self.written = at
            if end == rows:
                break

    def close(self) -> None:
        """Release the lock, for another daemon. The present file stays as it is, and the next daemon continues it."""
        self._close()
        os.close(self._lock)

    def _look_for_others(self) -> None:
        """Note if the directory has rows of another instance or level: an audit may need each in its own directory."""
        plan = self.plan
        for header in headers_of(plan.directory):
            instance = header.instance.rstrip(b"\0").decode("utf-8", "replace")
            if instance != plan.instance:
                what = f"instance {instance!r}"
            elif header.level != plan.level:
                what = f"another level than {plan.level.name.lower()}"
            else:
                continue
            path = segment_path(plan.directory, header.sequence)
            self.notes.append(f"{path} is of {what}: give each instance and level a --journal directory of its own")
            return

    def _look_for_removal(self) -> None:
        """If the present file was removed, begin another; the removed rows are lost. Make a removed directory again."""
        if self._descriptor >= 0 and os.fstat(self._descriptor).st_nlink == 0:
            self._close()
            self.renew = True
            self.notes.append(f"segment {self._sequence} of the journal was removed while it was written")
        if os.fstat(self._lock).st_nlink == 0:
            self._make_directory()
            try:
                lock = self._take_lock()
            except InstanceRunningError:
                raise OSError(errno.EBUSY, "another daemon writes there by now") from None
            os.close(self._lock)
            self._lock = lock

    def _next(self) -> int:
        """The first row to write: the first row of a block. After a start, `written` may lie in the block before."""
        return -(-self.written // BLOCK_ROWS) * BLOCK_ROWS

    def _begins_segment(self, row: int) -> bool:
        capacity = (len(self._buffer) - BUFFER_HEADER_SIZE) // ROW_SIZE
        return row != self._segment and self._buffer[BUFFER_HEADER_SIZE + row % capacity * ROW_SIZE] == RowKind.SEGMENT

    # files ------------------------------------------------------------------------------------------------------------

    def _go_on(self, header: ArenaHeader) -> None:
        """If the newest segment is of this arena, open it and find the block to go on with.

        If it is another arena's, or begins after the present segment, cut its file to the length of its blocks.
        """
        plan = self.plan
        for sequence in reversed(segments_of(plan.directory)):
            path = segment_path(plan.directory, sequence)
            try:
                if is_unfinished(plan.directory, sequence):
                    path.unlink()  # a daemon was killed while it made the file
                    continue
            except OSError:
                pass  # for example, it is no plain file: Segment() raises the error for that
            self._sequence = sequence
            break
        else:
            return
        if sequence >= SEGMENT_LAST:
            raise ResourceLimitError(f"{path} has the last number that a segment may have: move it away")
        try:
            segment = Segment(plan.directory, sequence)
            descriptor = open_plain(path, os.O_WRONLY)
        except (JournalError, OSError) as error:
            why = error if isinstance(error, JournalError) else f"{path} cannot be written: {error.strerror}"
            self.notes.append(f"the journal goes on after segment {sequence}: {why}")
            return
        try:
            found = segment.header
            if found.incarnation != header.incarnation or found.first_row > header.journal_segment:
                os.ftruncate(descriptor, BLOCK_SIZE + segment.blocks() * BLOCK_SIZE)
                return
            if found.first_row + found.first_block * BLOCK_ROWS > header.journal_rows:
                self.notes.append(
                    f"the journal goes on after segment {sequence}: that segment begins after the arena's rows"
                )
                return
            # Go on from the last block that was known to be full, or from the first block if that is no longer full.
            block = max((header.journal_written - found.first_row) // BLOCK_ROWS - 1, found.first_block)
            if segment.good(block, 1)[1] != BLOCK_ROWS:
                block = found.first_block
            while (full := segment.good(block, 64)[1] // BLOCK_ROWS) > 0:
                block += full
            self.written = found.first_row + block * BLOCK_ROWS
            self._segment = found.first_row
            self._descriptor, descriptor = descriptor, -1
        finally:
            segment.close()
            if descriptor >= 0:
                os.close(descriptor)

    def _begin_file(self, row: int) -> None:
        """Make the present segment's file, for the block of `row` and later ones. If that fails, no file is left."""
        plan = self.plan
        sequence = max(self._sequence, *segments_of(plan.directory), 0) + 1  # others may have taken a number meanwhile
        if sequence > SEGMENT_LAST:
            raise OSError(errno.EEXIST, f"no number is left after segment {SEGMENT_LAST}: move it away")
        path = segment_path(plan.directory, sequence)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            if plan.group_id is not None:
                give_to_group(descriptor, plan.group_id)
            os.posix_fallocate(descriptor, 0, plan.segment_size)
            os.pwrite(descriptor, self._header(sequence, row), 0)
        except BaseException:
            os.close(descriptor)
            path.unlink(missing_ok=True)
            raise
        self._descriptor, self._sequence = descriptor, sequence
        self._retain()

    def _header(self, sequence: int, row: int) -> bytes:
        header = SegmentHeader(
            magic=JOURNAL_MAGIC,
            crc=0,
            version=JOURNAL_VERSION,
            fingerprint=journal_fingerprint(),
            level=self.plan.level,
            sequence=sequence,
            first_row=self._segment,
            incarnation=self._incarnation,
            boot_id=self._boot,
            monotonic_ns=self._clock.now_ns(),
            wall_ns=self._clock.wall_ns(),
            first_block=(row - self._segment) // BLOCK_ROWS,
            pid=os.getpid(),
            instance=self.plan.instance.encode(),
            host=socket.gethostname().encode()[:64],
        )
        pack = struct_of(SegmentHeader).pack
        return pack(*header._replace(crc=zlib.crc32(pack(*header)[HEADER_CRC:])))

    def _seal(self, row: int) -> None:
        """The present segment ends before `row`: cut its file to its length."""
        if self._descriptor >= 0:
            os.truncate(self._descriptor, BLOCK_SIZE + (row - self._segment) // BLOCK_ROWS * BLOCK_SIZE)
            self._close()

    def _close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _retain(self) -> None:
        """Remove the oldest segments beyond `keep`. Segments that a consumer holds may take `hold_limit` bytes more."""
        plan = self.plan
        held = holds_of(plan.directory)
        least = min(held.values(), default=self._sequence)
        sizes: dict[int, int] = {}
        for number in segments_of(plan.directory):
            with contextlib.suppress(FileNotFoundError):
                status = segment_path(plan.directory, number).lstat()
                if stat.S_ISREG(status.st_mode):  # anything else there is not the journal's, and does not count
                    sizes[number] = status.st_size
        total = sum(sizes.values())
        for number, size in sizes.items():
            if total <= plan.keep or number == self._sequence:
                return
            if number >= least:
                if total <= plan.keep + plan.hold_limit:
                    return
                names = ", ".join(sorted(name for name, first in held.items() if first <= number))
                self.notes.append(
                    f"segments of the journal were removed although {names} in holds/ holds them: there are more than "
                    "--journal-hold-limit allows"
                )
            segment_path(plan.directory, number).unlink(missing_ok=True)
            total -= size

    def _make_directory(self) -> None:
        directory = self.plan.directory
        with contextlib.suppress(FileNotFoundError):
            if why := distrust(directory, remedy=OTHER_DIRECTORY):
                raise ResourceLimitError(f"the journal's directory {directory}: {why}")
        for path, mode in ((directory, 0o750), (directory / HOLDS, 0o770)):
            try:
                path.mkdir(mode=0o700)
            except FileExistsError:
                continue
            if self.plan.group_id is not None:
                os.chown(path, -1, self.plan.group_id)
                path.chmod(mode)

    def _held_by(self, lock: Path, holder: str) -> str:
        """The message for a lock that is held. `holder`: the daemon that the lock names, which may have ended."""
        remedy = "give this daemon another --journal directory"
        named = re.search(r"pid (\d+)$", holder)
        if named is not None and process_start_ticks(int(named[1])) is not None:
            return f"the journal in {self.plan.directory} is written by another daemon ({holder}): {remedy}"
        ended = f"The daemon that it names has ended, or runs in another container ({holder}). " if holder else ""
        return f"some process holds {lock} (`fuser {as_word(lock)}` says which). {ended}End that process, or {remedy}"

    def _take_lock(self) -> int:
        path = self.plan.directory / LOCK_NAME
        try:
            descriptor = open_plain(path, os.O_RDWR | os.O_CREAT, owners={os.geteuid()})
        except NotPlainError as error:
            why = other_owner(path) or f"{error.strerror}: remove it"
            raise ResourceLimitError(f"the journal's lock {path} cannot be opened: {why}") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 96, 0).decode("ascii", "replace").strip()
            os.close(descriptor)
            raise InstanceRunningError(self._held_by(path, holder)) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"instance {self.plan.instance}, pid {os.getpid()}\n".encode(), 0)
        return descriptor
