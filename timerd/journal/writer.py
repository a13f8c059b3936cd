"""The journal's files: a thread takes rows from the core's buffer and writes them; a turn only rings a bell.

    core  --rows-->  buffer (shared memory)  --JournalFiles.append-->  DIR/000000000017.segment

The buffer and the arena's header say what there is to write, and they outlive the daemon: what a killed one had not
written, the next one writes, once. Only the machine's end costs the tail of the journal, because files are not synced.

A disk that is full, or a directory that is gone, stops nothing: rows wait in the buffer, then the core drops and counts
them; writing is tried again after a pause, and a GAP row tells what is missing. `timerctl errors` says why.

Rows of the block that is not full yet stay in the buffer, so that a torn one can be written again as a whole.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import mmap
import os
import socket
import threading
import zlib
from pathlib import Path
from typing import NamedTuple

from timerd.arena.arena import Arena
from timerd.arena.plan import power_of_two
from timerd.clock import Clock
from timerd.config.config import Config
from timerd.core import Core
from timerd_shm.declare.counters import DAEMON_COUNTERS, index_of
from timerd_shm.declare.errors import ErrorCode, InstanceRunningError, ResourceLimitError
from timerd_shm.declare.fields import size_of, struct_of, unpack
from timerd_shm.declare.journal import (
    BLOCK_ROWS,
    BLOCK_SIZE,
    BUFFER_HEADER_SIZE,
    BUFFER_MAGIC,
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
from timerd_shm.host.paths import InstancePaths
from timerd_shm.read.holds import HOLDS, holds_of
from timerd_shm.read.segment import HEADER_CRC, JournalError, Segment, segment_path, segments_of

from .blocks import write_blocks

JOURNAL_FAILURES = index_of(DAEMON_COUNTERS, "journal_failures")
ANCHOR_NS = 10_000_000_000  # between two rows with both clocks, while there are rows
PAUSE_S = 0.001  # rows of so much time are written at once
RETRY_FIRST_S = 0.25
RETRY_LAST_S = 10.0
BUFFER_SIZE_MOST = 16 << 20
BUFFER_SIZE_LEAST = 1 << 20
END_TIMEOUT_S = 5.0  # for the last rows; what stays in the buffer, the next start writes

log = logging.getLogger("timerd")


class JournalPlan(NamedTuple):
    """What the files of a journal are to be."""

    directory: Path
    level: JournalLevel
    segment_size: int  # bytes of a file, its header block among them
    keep: int  # bytes of all files
    hold_limit: int  # bytes beyond that, for consumers that hold segments
    group_id: int | None
    instance: str

    @property
    def segment_rows(self) -> int:
        """Rows of a segment."""
        return (self.segment_size // BLOCK_SIZE - 1) * BLOCK_ROWS


class JournalFiles:
    """The segments in a directory, and how far they have come. Held by one daemon, by a lock.

    `written` counts the rows that stand in them in full blocks. append() is one thread's; `written` and `notes` may be
    read by another.
    """

    def __init__(self, plan: JournalPlan, clock: Clock, boot: bytes) -> None:
        """Raises InstanceRunningError when another daemon writes there, ResourceLimitError."""
        self.plan = plan
        self.written = 0
        self.notes: list[str] = []  # what the conductor is to log as errors; taken by list.pop(0)
        self.failures = 0
        self.renew = False  # the present segment is lost: the core is to begin another
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
            raise ResourceLimitError(f"the journal's directory {plan.directory}: {error.strerror}") from None

    def attach(self, buffer: memoryview, header: ArenaHeader, buffered: bool) -> int:
        """Find out how far the files have come with the rows of this arena; `written`, for the core.

        `buffered`: the buffer holds the newest rows; else it is new, and what no file has is lost.
        """
        self._buffer = buffer
        self._incarnation = header.incarnation
        self._segment = header.journal_segment
        self.written = header.journal_written
        rows = header.journal_rows
        oldest = rows  # of those that the buffer holds
        if buffered:
            # What a killed daemon had begun to put behind the last row lies on the oldest ones.
            capacity = unpack(BufferHeader, buffer).rows
            oldest = min(header.journal_written, max(0, rows - capacity + BUFFER_ROWS_MIN))
        self._go_on(header)
        if self._descriptor < 0:
            if oldest <= self.written < rows and self._begins_segment(self.written):
                self._segment = self.written  # killed again before the first file: the buffer holds several segments
            # In a directory without the present segment: what is before it has nowhere to stand.
            oldest = max(oldest, self._segment)
        if not oldest <= self.written <= rows:
            self._seal(self._next())
            self._segment = header.journal_segment
            start = min(-(-max(oldest, self._segment) // BLOCK_ROWS) * BLOCK_ROWS, rows)
            lost = f"rows {self.written} to {start - 1}" if self.written < start else f"rows from {start} on"
            self.notes.append(f"{lost} of the journal are lost: their file, and the buffer before that, are gone")
            self.written = start
        self._shown = self.written
        return self.written

    def append(self, rows: int) -> None:
        """Write what there is up to row `rows`. Raises OSError; then what is missing is written by the next call."""
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
        """Let another daemon in. The present file stays as it is: the next daemon goes on in it."""
        self._close()
        os.close(self._lock)

    def _look_for_removal(self) -> None:
        """A file that was removed takes what is written to it with it: make another, and the directory too."""
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
        """The first row to write: the first of the block that is not full. A start may have to begin behind it."""
        return -(-self.written // BLOCK_ROWS) * BLOCK_ROWS

    def _begins_segment(self, row: int) -> bool:
        capacity = (len(self._buffer) - BUFFER_HEADER_SIZE) // ROW_SIZE
        return row != self._segment and self._buffer[BUFFER_HEADER_SIZE + row % capacity * ROW_SIZE] == RowKind.SEGMENT

    # files ------------------------------------------------------------------------------------------------------------

    def _go_on(self, header: ArenaHeader) -> None:
        """Open the newest segment if it is of this arena, and find the block to go on with. Cut it if it is not."""
        plan = self.plan
        for sequence in reversed(segments_of(plan.directory)):
            path = segment_path(plan.directory, sequence)
            with open(path, "rb") as file:
                if not file.read(BLOCK_SIZE).strip(b"\0"):
                    path.unlink()  # its daemon was killed while it made the file
                    continue
            self._sequence = sequence
            break
        else:
            return
        try:
            segment = Segment(plan.directory, sequence)
        except JournalError as error:
            self.notes.append(f"the journal goes on behind segment {sequence}: {error}")
            return
        try:
            found = segment.header
            if found.incarnation != header.incarnation or found.first_row > header.journal_segment:
                os.truncate(path, BLOCK_SIZE + segment.blocks() * BLOCK_SIZE)
                return
            # From the block that was known to be full, or from the first one if that is not so any more.
            block = max((header.journal_written - found.first_row) // BLOCK_ROWS - 1, found.first_block)
            if segment.good(block, 1)[1] != BLOCK_ROWS:
                block = found.first_block
            while (full := segment.good(block, 64)[1] // BLOCK_ROWS) > 0:
                block += full
            self.written = found.first_row + block * BLOCK_ROWS
            self._segment = found.first_row
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        finally:
            segment.close()

    def _begin_file(self, row: int) -> None:
        """Make the present segment's file, for blocks from that of `row` on. Raises OSError, and leaves nothing."""
        plan = self.plan
        sequence = self._sequence + 1
        path = segment_path(plan.directory, sequence)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            _give_to_group(descriptor, plan.group_id, 0o640)
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
        """The present segment ends before `row`: cut its file to what it holds."""
        if self._descriptor >= 0:
            os.truncate(self._descriptor, BLOCK_SIZE + (row - self._segment) // BLOCK_ROWS * BLOCK_SIZE)
            self._close()

    def _close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _retain(self) -> None:
        """Remove the oldest segments beyond `keep`; those that somebody holds only beyond the limit of that."""
        plan = self.plan
        held = holds_of(plan.directory)
        least = min(held.values(), default=self._sequence)
        sizes = {number: segment_path(plan.directory, number).stat().st_size for number in segments_of(plan.directory)}
        total = sum(sizes.values())
        for number, size in sizes.items():
            if total <= plan.keep or number == self._sequence:
                return
            if number >= least:
                if total <= plan.keep + plan.hold_limit:
                    return
                names = ", ".join(sorted(name for name, first in held.items() if first <= number))
                self.notes.append(f"segment {number} of the journal was removed although {names} holds it")
            segment_path(plan.directory, number).unlink(missing_ok=True)
            total -= size

    def _make_directory(self) -> None:
        directory = self.plan.directory
        for path, mode in ((directory, 0o750), (directory / HOLDS, 0o770)):
            try:
                path.mkdir(mode=0o700)
            except FileExistsError:
                continue
            if self.plan.group_id is not None:
                os.chown(path, -1, self.plan.group_id)
                path.chmod(mode)

    def _take_lock(self) -> int:
        path = self.plan.directory / "lock"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 64, 0).decode("ascii", "replace").strip() or "not known"
            os.close(descriptor)
            raise InstanceRunningError(
                f"the journal in {self.plan.directory} is written by another daemon ({holder}): "
                "give this one another --journal directory"
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"instance {self.plan.instance}, pid {os.getpid()}\n".encode(), 0)
        return descriptor


class Journal:
    """What the conductor knows of the journal: tend() once a turn, close() at the end."""

    def __init__(
        self,
        core: Core,
        files: JournalFiles,
        buffer: mmap.mmap | bytearray,
        header: ArenaHeader,
        clock: Clock,
        *,
        buffered: bool,
    ) -> None:
        """Open the journal of a core on this buffer. Without start() the files are written by tend() itself.

        `buffered`: the buffer was there, and holds what was not written yet.
        """
        self._core = core
        self._files = files
        self._clock = clock
        self._anchored_ns = clock.now_ns()
        self._anchored_rows = 0
        self._dropped = core.journal_dropped
        self._failures = 0
        self._rows = 0  # to be written, as the thread is told
        self._bell = threading.Event()
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        written = files.attach(memoryview(buffer), header, buffered)
        rows = files.plan.segment_rows
        self.continues = core.open_journal(buffer, files.plan.level, rows, written, self._anchored_ns)

    def start(self) -> None:
        """Write in a thread from now on."""
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    def tend(self, now_ns: int) -> bool:
        """Hand over what the turn has put in the buffer, free what was written; True if the snapshot goes on."""
        core, files = self._core, self._files
        if files.renew:
            files.renew = False
            core.renew_journal()
        wall_ns = 0
        if now_ns - self._anchored_ns >= ANCHOR_NS and core.journal_rows != self._anchored_rows:
            wall_ns = self._clock.wall_ns()
        left = core.tend_journal(files.written, wall_ns)
        rows = core.journal_rows
        if wall_ns:
            self._anchored_ns, self._anchored_rows = now_ns, rows
        if self._thread is None:
            self._rows = rows
            self._append()
        elif rows != self._rows:
            self._rows = rows
            self._bell.set()
        self._say()
        return left

    def close(self) -> None:
        """Write what is left, for a while; the rest stays in the buffer for the next start."""
        if self._thread is not None:
            self._ending.set()
            self._bell.set()
            self._thread.join(END_TIMEOUT_S)
        self._rows = self._core.journal_rows
        if self._thread is None or not self._thread.is_alive():
            self._append()
            self._core.tend_journal(self._files.written)
            self._files.close()
        self._say()

    def _say(self) -> None:
        """Enter what has failed into the arena's errors."""
        core = self._core
        if self._files.failures != self._failures:
            core.count(JOURNAL_FAILURES, self._files.failures - self._failures)
            self._failures = self._files.failures
        while self._files.notes:
            note = self._files.notes.pop(0)
            log.error("%s", note)
            core.log_error(ErrorCode.RESOURCE_LIMIT, note.encode(), self._clock.wall_ns())
        if core.journal_dropped != self._dropped:
            self._dropped = core.journal_dropped
            message = "the journal lacks rows (journal_rows_dropped): they came faster than its files were written"
            core.log_error(ErrorCode.RESOURCE_LIMIT, message.encode(), self._clock.wall_ns())

    def _append(self) -> bool:
        """Write; False with a note when it failed."""
        try:
            self._files.append(self._rows)
        except OSError as error:
            self._files.notes.append(f"the journal in {self._files.plan.directory} is not written: {error.strerror}")
            self._files.failures += 1
            return False
        return True

    def _run(self) -> None:
        """The thread: what the bell calls for, not more often than each PAUSE_S; after a failure later and later."""
        retry_s = 0.0
        while not self._ending.is_set():
            if not retry_s:
                self._bell.wait()
                self._bell.clear()
            if self._append():
                retry_s = 0.0
                self._ending.wait(PAUSE_S)
            else:
                retry_s = min(2 * retry_s, RETRY_LAST_S) or RETRY_FIRST_S
                self._ending.wait(retry_s)


def open_journal(
    config: Config, paths: InstancePaths, arena: Arena, core: Core, clock: Clock, group_id: int | None
) -> Journal:
    """The journal that a configuration asks for, writing, and NAME.journal, which leads to it.

    Raises InstanceRunningError when another daemon writes there, ResourceLimitError.
    """
    assert config.journal is not None
    plan = JournalPlan(
        directory=Path(os.path.abspath(config.journal)),
        level=JournalLevel[config.journal_level.upper()],
        segment_size=config.journal_segment_size // BLOCK_SIZE * BLOCK_SIZE,
        keep=config.journal_keep,
        hold_limit=config.journal_hold_limit,
        group_id=group_id,
        instance=paths.instance,
    )
    header = arena.header()
    files = JournalFiles(plan, clock, header.boot_id)
    most = power_of_two((config.journal_buffer or BUFFER_SIZE_MOST) // ROW_SIZE)
    least = power_of_two((config.journal_buffer or BUFFER_SIZE_LEAST) // ROW_SIZE)
    buffer, buffered = open_buffer(arena.place.journal_buffer, most, header, least)
    if len(buffer) < BUFFER_HEADER_SIZE + most * ROW_SIZE:
        log.info("the journal's buffer has %d bytes: no more was free, or it was there", len(buffer))
    try:
        journal = Journal(core, files, buffer, header, clock, buffered=buffered)
        paths.journal.symlink_to(plan.directory)
    except OSError as error:
        raise ResourceLimitError(f"the journal in {plan.directory} cannot be opened: {error}") from None
    log.info("journal: %s in %s, from row %d", config.journal_level, plan.directory, core.journal_rows)
    journal.start()
    return journal


def open_buffer(path: Path, rows: int, header: ArenaHeader, least: int) -> tuple[mmap.mmap, bool]:
    """The buffer beside an arena, and whether it holds what no file has: the one that is there, or a new one.

    It has `rows`, or, where there is no room, half as many, and so on, not less than `least`. What one of another size
    holds goes over to the new one; it stays if that is too much. Raises ResourceLimitError.
    """
    try:
        old = _map_buffer(path, header)
        if old is None:
            path.unlink(missing_ok=True)  # another arena's, whose room may be needed
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
        raise ResourceLimitError(
            f"the journal's buffer {path} of {rows * ROW_SIZE} bytes cannot be made ({error.strerror}): "
            "lower --journal-buffer or --capacity"
        ) from None


def _map_buffer(path: Path, header: ArenaHeader) -> mmap.mmap | None:
    """The buffer that is there, if it is of this arena."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid():
            raise ResourceLimitError(f"the journal's buffer {path} belongs to uid {status.st_uid}: remove it")
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


def _make_buffer(path: Path, rows: int, header: ArenaHeader, old: mmap.mmap | None) -> mmap.mmap:
    """A new buffer, with the rows of the old one that no file has. It takes the old one's name as a whole."""
    size = BUFFER_HEADER_SIZE + rows * ROW_SIZE
    fresh = path.with_name(f"{path.name}.new")
    descriptor = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
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


def _give_to_group(descriptor: int, group_id: int | None, mode: int) -> None:
    if group_id is not None:
        os.fchown(descriptor, -1, group_id)
        os.fchmod(descriptor, mode)
