"""Outcomes of millions of operations: during a run only their bytes are kept, and columns are made after it.

The records of many outcomes stand one after the other. A record has twelve words, so every twelfth word of these bytes
belongs to the same column.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Final, NamedTuple

from timerd_client.hot import copy_records
from timerd_client.link.batch import ThreadedBatch
from timerd_client.link.operation import ThreadedOperation
from timerd_client.outcome import State
from timerd_client.waiter import RawSettlement
from timerd_shm.declare.fields import offset_of, size_of
from timerd_shm.declare.wire import OutcomeRecord

RECORD_SIZE: Final = size_of(OutcomeRecord)
STAMP_SIZE: Final = 8
PAGE_SIZE: Final = 4_096
COMMAND: Final = offset_of(OutcomeRecord, "command")
SETTLED: Final = offset_of(OutcomeRecord, "settled_ns")
DEADLINE: Final = offset_of(OutcomeRecord, "deadline_ns")
STATE_AT: Final = offset_of(OutcomeRecord, "state")
FAILED: Final = int(State.FAILED.value)


class Columns(NamedTuple):
    """A row for each outcome, in any order."""

    command: array[int]
    state: array[int]
    settled_ns: array[int]
    deadline_ns: array[int]
    fired_ns: array[int]  # the stamp that is the event's value; 0 = there is no value, or it was not looked at
    delivered_ns: array[int]  # 0 = the clock was not read


class Outcomes:
    """The outcomes that were delivered to one client."""

    def __init__(self, rows: int) -> None:
        """Make room for `rows` outcomes, so that the kernel does not have to clear new pages during the run."""
        self._records = bytearray(RECORD_SIZE * rows)
        pages = range(0, len(self._records), PAGE_SIZE)
        self._records[:: pages.step] = bytes(len(pages))  # the kernel gives a page when it is first written
        self._used = 0  # how many bytes of `_records` are in use
        self._seen = array("q")  # the rows whose times are in the next two columns
        self._fired_ns = array("q")
        self._delivered_ns = array("q")
        self._refused: list[tuple[int, int]] = []  # refused by the daemon: (command, when the refusal was delivered)
        self.errors: dict[str, int] = {}

    def __len__(self) -> int:
        return self._used // RECORD_SIZE + len(self._refused)

    def take(self, operations: Sequence[ThreadedOperation]) -> bool:
        """Take the outcomes of these operations without times, if all have a record. Returns whether it took them."""
        return self._took(len(operations), copy_records(operations, self._records, self._used))

    def take_batch(self, batch: ThreadedBatch) -> bool:
        """Take all outcomes of a batch, if all have a record. Returns whether they were taken."""
        return self._took(len(batch), batch.copy_records(self._records, self._used))

    def add(
        self, commands: Iterable[int], settlements: Sequence[RawSettlement], delivered_ns: Sequence[int] | None
    ) -> None:
        """Take these outcomes. `delivered_ns` is None if the clock was not read."""
        times = repeat(0) if delivered_ns is None else delivered_ns
        for command, settlement, at_ns in zip(commands, settlements, times, strict=False):
            if settlement[0] is None:
                self._refuse(command, settlement, at_ns)
                continue
            if at_ns:
                self._seen.append(self._used // RECORD_SIZE)
                self._fired_ns.append(self._stamp(settlement[1]))
                self._delivered_ns.append(at_ns)
            self._records[self._used : self._used + RECORD_SIZE] = settlement[0]
            self._used += RECORD_SIZE

    def columns(self) -> Columns:
        """The columns of all outcomes."""
        rest = [0] * len(self._refused)
        return Columns(
            self._every(COMMAND, "Q") + array("Q", [command for command, _ in self._refused]),
            self._every(STATE_AT, "B") + array("B", [FAILED] * len(rest)),
            self._every(SETTLED, "q") + array("q", rest),
            self._every(DEADLINE, "q") + array("q", rest),
            self._times(self._fired_ns) + array("q", rest),
            self._times(self._delivered_ns) + array("q", [at_ns for _, at_ns in self._refused]),
        )

    def _took(self, rows: int, took: bool) -> bool:
        self._used += took * rows * RECORD_SIZE
        return took

    def _stamp(self, value: bytes) -> int:
        """The time in an event's value: when it was fired; 0 = there is no value."""
        if len(value) not in (0, STAMP_SIZE):
            self.errors["a value that is no stamp"] = self.errors.get("a value that is no stamp", 0) + 1
            return 0
        return int.from_bytes(value, "little")

    def _times(self, times: array[int]) -> array[int]:
        """A column of times that are known only for the rows in `_seen`; 0 in all other rows."""
        column = array("q", bytes(STAMP_SIZE * (self._used // RECORD_SIZE)))
        for row, at_ns in zip(self._seen, times, strict=True):
            column[row] = at_ns
        return column

    def _every(self, offset: int, code: str) -> array[int]:
        """A field of all records."""
        column = array(code)
        at, step = offset // column.itemsize, RECORD_SIZE // column.itemsize
        fields = memoryview(self._records)[: self._used].cast(code)  # type: ignore[call-overload]
        column.frombytes(fields[at::step].tobytes())
        return column

    def _refuse(self, command: int, settlement: RawSettlement, delivered_ns: int) -> None:
        """Note a refused operation: it has no record."""
        text = f"refused: {type(settlement[3]).__name__}: {settlement[3]}"
        self.errors[text] = self.errors.get(text, 0) + 1
        self._refused.append((command, delivered_ns))
