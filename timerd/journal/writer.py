"""Writes the journal: a thread copies rows from the core's buffer to the files. A turn only wakes this thread.

    core  --rows-->  buffer (shared memory)  --JournalFiles.append-->  DIR/000000000017.segment

The buffer and the arena's header hold the rows that are to be written, and they outlive the daemon: the next daemon
writes, once, the rows that a killed daemon has not written. Only a crash of the machine costs the tail of the journal,
because files are not synced.

A disk that is full, or a directory that was removed, stops nothing: rows wait in the buffer. When the buffer is full,
the core drops further rows and counts them, and a GAP row has their number. Writing is tried again after a pause.
`timerctl errors` has the reason. The thread itself should never end. If it does, `timerctl stats` shows that.
"""

from __future__ import annotations

import logging
import mmap
import os
import threading
from pathlib import Path

from timerd.arena.arena import Arena
from timerd.arena.plan import power_of_two
from timerd.clock import Clock
from timerd.config.config import Config
from timerd.core import Core
from timerd_shm.declare.counters import DAEMON_COUNTERS, index_of
from timerd_shm.declare.errors import ErrorCode, ResourceLimitError
from timerd_shm.declare.journal import (
    BLOCK_SIZE,
    BUFFER_HEADER_SIZE,
    ROW_SIZE,
    JournalLevel,
)
from timerd_shm.declare.records import ArenaHeader
from timerd_shm.host.paths import InstancePaths

from .buffer import open_buffer
from .files import JournalFiles, JournalPlan

JOURNAL_FAILURES = index_of(DAEMON_COUNTERS, "journal_failures")
JOURNAL_THREAD_DEAD = index_of(DAEMON_COUNTERS, "journal_thread_dead")
ANCHOR_NS = 10_000_000_000  # between two rows with both clocks, while there are rows
PAUSE_S = 0.001  # the rows of this time are written together
RETRY_FIRST_S = 0.25
RETRY_LAST_S = 10.0
SAY_AGAIN_NS = 10_000_000_000  # between two lines in the log about missing rows
BUFFER_SIZE_MOST = 16 << 20
BUFFER_SIZE_LEAST = 1 << 20
END_TIMEOUT_S = 5.0  # for the last rows; the next start writes those that stay in the buffer

log = logging.getLogger("timerd")


class Journal:
    """The journal for the conductor: tend() once a turn, close() at the end."""

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

        `buffered`: the buffer was there, and may hold rows that were not written yet.
        """
        self._core = core
        self._files = files
        self._clock = clock
        self._anchored_ns = clock.now_ns()
        self._anchored_rows = 0
        self._dropped = core.journal_dropped
        self._failures = 0
        self._said_ns = -SAY_AGAIN_NS
        self._rows = 0  # the core's rows at the last turn, which are to be written; the thread reads this number
        self._bell = threading.Event()
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._ended_by = ""  # the error that has ended the thread too early
        self._end_reported = False
        core.set_count(JOURNAL_THREAD_DEAD, 0)  # an earlier daemon may have set it
        written = files.attach(memoryview(buffer), header, buffered)
        rows = files.plan.segment_rows
        self.continues = core.open_journal(buffer, files.plan.level, rows, written, self._anchored_ns)

    def start(self) -> None:
        """Write in a thread from now on."""
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    def tend(self, now_ns: int) -> bool:
        """Ring the bell if the turn has made rows, and free written rows.

        Returns True if rows are still missing for what existed when the journal began: the next turns make them.
        """
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
        self._report()
        return left

    def close(self) -> None:
        """End in order: write the last rows, for END_TIMEOUT_S at most. The next start writes those that are left."""
        self._core.end_journal(self._clock.now_ns())
        if self._thread is not None:
            self._ending.set()
            self._bell.set()
            self._thread.join(END_TIMEOUT_S)
        self._rows = self._core.journal_rows
        if self._thread is None or not self._thread.is_alive():
            if not self._ended_by:  # an attempt after such an error would end in the same way
                self._append()
            self._core.tend_journal(self._files.written)
            self._files.close()
        self._report()

    def _report(self) -> None:
        """Enter the failures into the arena's log of errors."""
        core = self._core
        if self._files.failures != self._failures:
            core.count(JOURNAL_FAILURES, self._files.failures - self._failures)
            self._failures = self._files.failures
        if self._ended_by and not self._end_reported:
            self._end_reported = True
            core.set_count(JOURNAL_THREAD_DEAD, 1)
            self._files.notes.append(
                f"the thread that writes the journal has ended ({self._ended_by}): start the daemon again"
            )
        while self._files.notes:
            note = self._files.notes.pop(0)
            log.error("%s", note)
            core.log_error(ErrorCode.RESOURCE_LIMIT, note.encode(), self._clock.wall_ns())
        if core.journal_dropped != self._dropped:
            self._dropped = core.journal_dropped
            message = (
                "the journal lacks rows (journal_rows_dropped), and what follows them cannot be audited: rows came "
                "faster than the files were written. A larger --journal-buffer helps, or a faster disk"
            )
            if self._clock.now_ns() - self._said_ns >= SAY_AGAIN_NS:
                self._said_ns = self._clock.now_ns()
                log.error("%s", message)
            core.log_error(ErrorCode.RESOURCE_LIMIT, message.encode(), self._clock.wall_ns())

    def _append(self) -> bool:
        """Write the rows. If that fails, note the reason and return False."""
        try:
            self._files.append(self._rows)
        except OSError as error:
            self._note_failure(error.strerror or type(error).__name__)
            return False
        return True

    def _note_failure(self, why: str) -> None:
        self._files.notes.append(f"the journal in {self._files.plan.directory} is not written: {why}")
        self._files.failures += 1

    def _run(self) -> None:
        """The thread. If it ends before it should, for any reason, the next turn reports that."""
        try:
            self._write_until_the_end()
        except BaseException as error:
            self._ended_by = one_line(error)
            log.critical("the journal's thread has ended", exc_info=True)

    def _write_until_the_end(self) -> None:
        """Write when the bell rings, once in PAUSE_S at most; after failures with growing pauses."""
        retry_s = 0.0
        while not self._ending.is_set():
            if not retry_s:
                self._bell.wait()
                self._bell.clear()
            try:
                done = self._append()
            except Exception as error:  # a bug: the next rows may be written all the same
                log.error("the journal's thread goes on after a bug", exc_info=True)
                self._note_failure(one_line(error))
                done = False
            if done:
                retry_s = 0.0
                self._ending.wait(PAUSE_S)
            else:
                retry_s = min(2 * retry_s, RETRY_LAST_S) or RETRY_FIRST_S
                self._ending.wait(retry_s)


def one_line(error: BaseException) -> str:
    """An error's type and text, for a message."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:160].removesuffix(": ")


def open_journal(
    config: Config, paths: InstancePaths, arena: Arena, core: Core, clock: Clock, group_id: int | None
) -> Journal:
    """Open the journal that a configuration asks for, start its thread, and make the link NAME.journal.

    Raises InstanceRunningError if another daemon writes there, and ResourceLimitError.
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
    buffer, buffered = open_buffer(arena.location.journal_buffer, most, header, least)
    if len(buffer) < BUFFER_HEADER_SIZE + most * ROW_SIZE:
        log.info("the journal's buffer has %d bytes: no more was free, or an earlier start made it", len(buffer))
    try:
        journal = Journal(core, files, buffer, header, clock, buffered=buffered)
        paths.journal.symlink_to(plan.directory)
    except OSError as error:
        raise ResourceLimitError(f"the journal in {plan.directory} cannot be opened: {error}") from None
    log.info("journal: %s in %s, from row %d", config.journal_level, plan.directory, arena.header().journal_segment)
    journal.start()
    return journal
