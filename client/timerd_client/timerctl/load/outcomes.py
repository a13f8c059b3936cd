"""Outcomes of millions of operations: of each nothing but bytes is kept during a run, and columns are made after it.

The records of many outcomes are joined, and a column is every twelfth word of that.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Final, NamedTuple

from timerd_shm.fields import offset_of, size_of
from timerd_shm.wire import OutcomeRecord

from ...outcome import Outcome, State
from ...settlement import RawSettlement

RECORD_SIZE: Final = size_of(OutcomeRecord)
STAMP_SIZE: Final = 8
PAGE_SIZE: Final = 4_096
COMMAND: Final = offset_of(OutcomeRecord, "command")
SETTLED: Final = offset_of(OutcomeRecord, "settled_ns")
DEADLINE: Final = offset_of(OutcomeRecord, "deadline_ns")
STATE_AT: Final = offset_of(OutcomeRecord, "state")
VALUE_LENGTH: Final = offset_of(OutcomeRecord, "value_length")
FAILED: Final = int(State.FAILED.value)


class Columns(NamedTuple):
    """A row for each outcome, in no order that means something."""

    command: array[int]
    state: array[int]
    settled_ns: array[int]
    deadline_ns: array[int]
    fired_ns: array[int]  # the stamp that is the event's value; 0 = it has none
    told_ns: array[int]  # 0 = nobody looked at the clock


class Outcomes:
    """What one client was told."""

    def __init__(self, rows: int) -> None:
        """There is room for so many without new memory from the system, whose pages would be a run's to clear."""
        self._records = bytearray(RECORD_SIZE * rows)
        pages = range(0, len(self._records), PAGE_SIZE)
        self._records[:: pages.step] = bytes(len(pages))  # a page is given when it is written
        self._used = 0  # bytes of them
        self._stamps = bytearray()  # of those that have a value
        self._told_ns = array("q")
        self._refused: list[tuple[int, int]] = []  # that the daemon never took: (command, when it was told)
        self.errors: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._told_ns) + len(self._refused)

    def add(self, commands: Iterable[int], settlements: Sequence[RawSettlement], told_ns: Sequence[int] | None) -> None:
        """Take some; `told_ns` is None where nobody looked at the clock."""
        times = repeat(0) if told_ns is None else told_ns
        for command, settlement, at_ns in zip(commands, settlements, times, strict=False):
            if settlement[0] is None:
                self._refuse(command, settlement, at_ns)
            else:
                self.add_records(settlement[0], (settlement[1],), (at_ns,))

    def add_records(self, joined: bytes, values: Sequence[bytes], told_ns: Sequence[int] | None) -> None:
        """Take those of these records, one behind the other."""
        end = self._used + len(joined)
        self._records[self._used : end] = joined
        self._used = end
        self._stamps += b"".join(values)
        if told_ns is None:
            self._told_ns.frombytes(bytes(STAMP_SIZE * len(values)))
        else:
            self._told_ns.extend(told_ns)

    def columns(self) -> Columns:
        """All of them."""
        lengths = self._every(VALUE_LENGTH, "I")
        if len(self._stamps) % STAMP_SIZE or not set(lengths) <= {0, STAMP_SIZE}:
            self.errors["values of events that are no stamps"] = 1
            self._stamps.clear()
        stamps = iter(array("q", bytes(self._stamps)))
        rest = [0] * len(self._refused)
        return Columns(
            self._every(COMMAND, "Q") + array("Q", [command for command, _ in self._refused]),
            self._every(STATE_AT, "B") + array("B", [FAILED] * len(rest)),
            self._every(SETTLED, "q") + array("q", rest),
            self._every(DEADLINE, "q") + array("q", rest),
            array("q", [next(stamps, 0) if length else 0 for length in lengths]) + array("q", rest),
            self._told_ns + array("q", [at_ns for _, at_ns in self._refused]),
        )

    def _every(self, offset: int, code: str) -> array[int]:
        """A field of all records."""
        column = array(code)
        at, step = offset // column.itemsize, RECORD_SIZE // column.itemsize
        fields = memoryview(self._records)[: self._used].cast(code)  # type: ignore[call-overload]
        column.frombytes(fields[at::step].tobytes())
        return column

    def _refuse(self, command: int, settlement: RawSettlement, told_ns: int) -> None:
        """One that the daemon never took: there is no record of it."""
        outcome = Outcome((), b"", settlement)
        text = f"{type(outcome.error).__name__}: {outcome.error}"
        self.errors[text] = self.errors.get(text, 0) + 1
        self._refused.append((command, told_ns))
