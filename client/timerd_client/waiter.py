"""Waiters as protocol/ sees them: the interfaces that it calls, and the settlement that it gives to a waiter.

    protocol --settle(command, settlement)--> Waiter    the outcome of a registration
    protocol --answer(value, error)---------> Answerable  the answer to a command or a question

`settle` and `answer` are called with the link's lock held. If one of them returns True, the protocol puts the waiter
into `ready`, and the link calls `notify()` once the lock is free. Nothing here knows a link, a thread or a loop.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, TypeAlias
from typing import Protocol as Interface

from timerd_shm.declare.errors import TimerdError
from timerd_shm.declare.fields import offset_of
from timerd_shm.declare.wire import OutcomeFlag, OutcomeRecord
from timerd_wire.refusals import Subject


class Settlement(NamedTuple):
    """The settlement of an operation: the daemon's record (bytes of an OutcomeRecord), or an error without a record."""

    record: bytes | None
    value: bytes
    arena: int  # incarnation of the arena, for marks
    error: TimerdError | None


RawSettlement: TypeAlias = tuple[bytes | None, bytes, int, TimerdError | None]
"""A Settlement as the hot path makes it: a plain tuple is made in a quarter of the time of a named one."""


_FLAGS_AT: Final = offset_of(OutcomeRecord, "flags")
_LENGTH_AT: Final = offset_of(OutcomeRecord, "value_length")
_HAS_FAILURES: Final = int(OutcomeFlag.HAS_FAILURES)


def value_and_codes(settlement: RawSettlement) -> tuple[bytes, bytes]:
    """The value of a settlement, and the codes of the failed keys: a u32 each, which follow the value."""
    record, value = settlement[0], settlement[1]
    if record is None or not record[_FLAGS_AT] & _HAS_FAILURES:
        return value, b""
    length = int.from_bytes(record[_LENGTH_AT : _LENGTH_AT + 4], "little")
    return value[:length], value[length:]


def local(error: TimerdError) -> Settlement:
    """The settlement of an operation without a record: a refusal of the daemon, or an error of the client."""
    return Settlement(None, b"", 0, error)


class Notified(Interface):
    """Something to notify when the lock is free."""

    def notify(self) -> None:
        """Wake those who wait, and run their callbacks."""


class Waiter(Notified, Interface):
    """Something that waits for the outcomes of registrations."""

    def subject(self, command: int) -> Subject:
        """The subject of that command, for the message of a refusal."""

    def settle(self, command: int, settlement: RawSettlement) -> bool:
        """Take the settlement. Returns whether to call `notify` when the lock is free."""

    def _has_settled(self) -> bool:
        """Whether all operations of this waiter have settled."""

    def due_ns(self, command: int) -> int:
        """The deadline of the operation with that command number; NO_DEADLINE or more = none."""


class Looker(Notified, Interface):
    """Something that evaluates the condition of an operation when an event has come."""

    def look(self, command: int, sequence: int) -> bool:
        """The event with this sequence has come. Returns whether to call `notify` when the lock is free."""


class Answerable(Notified, Interface):
    """Something that waits for the answer to a question."""

    def answer(self, value: Any, error: TimerdError | None = None) -> bool:
        """Take the answer, or the reason why there is none. Returns whether to call `notify` when the lock is free."""


class Asker(Answerable, Interface):
    """Something that waits for the answer to a command."""

    def subject(self, command: int) -> Subject:
        """The subject of that command, for the message of a refusal."""
