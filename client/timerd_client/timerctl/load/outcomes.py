"""Outcomes of millions of operations, as columns: nothing but bytes is kept of each.

The records of many outcomes are joined, and a column is every twelfth word of that: a few ns each, in C.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Final

from timerd_shm.fields import offset_of, size_of
from timerd_shm.wire import OutcomeRecord

from ...outcome import Outcome, State
from ...settlement import RawSettlement

RECORD_SIZE: Final = size_of(OutcomeRecord)
WORDS: Final = RECORD_SIZE // 8
COMMAND: Final = offset_of(OutcomeRecord, "command") // 8
SETTLED: Final = offset_of(OutcomeRecord, "settled_ns") // 8
DEADLINE: Final = offset_of(OutcomeRecord, "deadline_ns") // 8
STATE_AT: Final = offset_of(OutcomeRecord, "state")
NO_VALUE: Final = bytes(8)
assert RECORD_SIZE % 8 == 0 == offset_of(OutcomeRecord, "command") % 8


class Outcomes:
    """What one client was told, in the order in which it was told."""

    def __init__(self) -> None:
        self.command = array("Q")
        self.state = array("B")
        self.settled_ns = array("q")
        self.deadline_ns = array("q")
        self.fired_ns = array("q")
        self.told_ns = array("q")
        self.errors: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self.command)

    def add(self, commands: Iterable[int], settlements: Sequence[RawSettlement], told_ns: Sequence[int] | None) -> None:
        """Take some; `told_ns` is None where nobody looked at the clock."""
        records = [settlement[0] for settlement in settlements]
        if None in records:
            times = repeat(0) if told_ns is None else told_ns
            for command, settlement, at_ns in zip(commands, settlements, times, strict=False):
                if settlement[0] is None:
                    self._refuse(command, settlement, at_ns)
                else:
                    self.add((command,), (settlement,), (at_ns,))
            return
        joined = b"".join(records)  # type: ignore[arg-type]
        self.add_records(joined, [settlement[1] for settlement in settlements], told_ns)

    def add_records(self, joined: bytes, values: Sequence[bytes], told_ns: Sequence[int] | None) -> None:
        """Take those of these records, one behind the other."""
        words = memoryview(joined).cast("Q")
        self.command.frombytes(words[COMMAND::WORDS].tobytes())
        self.settled_ns.frombytes(words[SETTLED::WORDS].tobytes())
        self.deadline_ns.frombytes(words[DEADLINE::WORDS].tobytes())
        self.state.frombytes(joined[STATE_AT::RECORD_SIZE])
        self.fired_ns.frombytes(b"".join([value or NO_VALUE for value in values]))
        if told_ns is None:
            self.told_ns.frombytes(bytes(8 * len(values)))
        else:
            self.told_ns.extend(told_ns)

    def _refuse(self, command: int, settlement: RawSettlement, told_ns: int) -> None:
        """One that the daemon never took: there is no record of it."""
        outcome = Outcome((), b"", settlement)
        text = f"{type(outcome.error).__name__}: {outcome.error}"
        self.errors[text] = self.errors.get(text, 0) + 1
        self.command.append(command)
        self.state.append(int(State.FAILED.value))
        for column in (self.settled_ns, self.deadline_ns, self.fired_ns):
            column.append(0)
        self.told_ns.append(told_ns)
