"""A core that writes a journal: a Rig whose rows go through a buffer into files, without a thread."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.rig.arenas import SEED
from support.rig.commands import Key, Register
from support.rig.harness import MS, Client, Rig, S, fire
from timerd.journal.files import JournalFiles, JournalPlan
from timerd.journal.writer import Journal
from timerd_client.audit.audited import Audited
from timerd_client.audit.journal import audit_journal
from timerd_shm.declare.fields import struct_of
from timerd_shm.declare.journal import (
    BLOCK_ROWS,
    BLOCK_SIZE,
    BUFFER_HEADER_SIZE,
    BUFFER_MAGIC,
    ROW_SIZE,
    BufferHeader,
    JournalLevel,
    RowKind,
    journal_fingerprint,
)
from timerd_shm.read.journal_reader import JournalReader, Row

BUFFER_ROWS = 1024
SEGMENT_SIZE = 64 << 10
SEGMENT_ROWS = (SEGMENT_SIZE // BLOCK_SIZE - 1) * BLOCK_ROWS
WALL_NS = 1_700_000_000_000_000_000
BOOT = b"b" * 16


def empty_buffer(incarnation: int, rows: int = BUFFER_ROWS) -> bytearray:
    """A journal's buffer with nothing in it."""
    buffer = bytearray(BUFFER_HEADER_SIZE + rows * ROW_SIZE)
    struct_of(BufferHeader).pack_into(buffer, 0, BUFFER_MAGIC, journal_fingerprint(), rows, incarnation)
    return buffer


class JournaledRig(Rig):
    """A Rig with a journal in `directory`. The files are written at the end of each turn."""

    def __init__(
        self,
        directory: Path,
        *,
        level: JournalLevel = JournalLevel.EVENTS,
        buffer_rows: int = BUFFER_ROWS,
        segment_size: int = SEGMENT_SIZE,
        keep: int = 1 << 30,
        hold_limit: int = 1 << 30,
        **knobs: Any,
    ) -> None:
        super().__init__(**knobs)
        self.plan = JournalPlan(directory, level, segment_size, keep, hold_limit, None, "test")
        self.buffer = empty_buffer(self.arena.header.incarnation, buffer_rows)
        self.open_journal()

    def wall_ns(self) -> int:
        return WALL_NS + self.now_ns

    def open_journal(self, buffered: bool = True) -> None:
        """Begin to write, as a daemon's start does."""
        self.files = JournalFiles(self.plan, RigClock(self), BOOT)
        self.journal = Journal(self.core, self.files, self.buffer, self.arena.header, RigClock(self), buffered=buffered)

    def drop_journal(self) -> None:
        """Close the files, as if the process that writes them had ended."""
        self.files.close()
        self.files._buffer.release()

    def end(self) -> None:
        """End as a daemon that is stopped does: write what is left, then close the files."""
        self.journal.close()
        self.files._buffer.release()

    def turn(self, *arguments: Any, **more: Any) -> int:
        touched = super().turn(*arguments, **more)
        self.tend()
        return touched

    def tend(self) -> None:
        while self.journal.tend(self.now_ns) and not self.core.journal_dropped:
            pass

    def restart(self, memory: bytes | None = None) -> None:
        """Start a new daemon on a copy of arena and buffer, as after SIGKILL, or on the copy `memory` of both."""
        self.drop_journal()
        if memory is None:
            self.buffer = bytearray(self.buffer)
            super().restart()
        else:
            self.buffer = bytearray(memory[len(self.memory) :])
            super().restart(memory[: len(self.memory)])
        self.open_journal()
        self.tend()

    def clone(self, memory: bytes, directory: Path | None = None) -> JournaledRig:
        """A new daemon on a copy of arena and buffer, beside this rig's daemon.

        The new daemon goes on writing in `directory`, a copy of the files. Without one, its rows stay in the buffer.
        """
        rig = object.__new__(JournaledRig)
        size = len(self.memory)
        rig.buffer = bytearray(memory[size:] or self.buffer)
        rig.plan, rig.module, rig.now_ns, rig.memory = self.plan, self.module, self.now_ns, bytearray(memory[:size])
        rig.core, rig.clients, rig.opened = self.module.Core(rig.memory, self.advanced_ns, SEED), [], self.opened
        rig.budget, rig.advanced_ns = self.budget, self.advanced_ns
        if directory is not None:
            rig.plan = self.plan._replace(directory=directory)
            rig.open_journal()
            return rig
        rows, level = self.plan.segment_rows, self.plan.level
        rig.core.open_journal(rig.buffer, level, rows, rig.arena.header.journal_written, self.now_ns)
        return rig

    def audit(self, directory: Path | None = None) -> Audited:
        """The audit of the rig's files, or of a copy of them, together with the rig's arena."""
        return audit_journal(directory or self.plan.directory, arena=self.arena.header)

    def rows(self) -> list[Row]:
        """All rows in the files, which are undamaged."""
        with JournalReader(self.plan.directory) as reader:
            rows = list(reader.rows())
        assert not reader.damage, reader.damage
        return rows


class RigClock:
    """The rig's clock, in the form that the journal asks for."""

    def __init__(self, rig: JournaledRig) -> None:
        self.rig = rig

    def now_ns(self) -> int:
        return self.rig.now_ns

    def wall_ns(self) -> int:
        return self.rig.wall_ns()

    def cpu_ns(self) -> int:
        return 0


def outcomes(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row.record.kind == RowKind.OUTCOME]


def kinds(rows: list[Row]) -> list[RowKind]:
    return [RowKind(row.record.kind) for row in rows]


def settle(rig: JournaledRig, client: Client, *keys: bytes) -> None:
    """For each key, register an operation and fire the key, in one turn. Acknowledge everything."""
    for key in keys:
        client.issue(Register((Key(key),), timeout_ns=S))
        client.issue(fire(key))
    rig.turn(rig.now_ns + MS)
    rig.acknowledge(client)


def numbered(first: int, count: int) -> list[bytes]:
    return [b"key %d" % number for number in range(first, first + count)]
