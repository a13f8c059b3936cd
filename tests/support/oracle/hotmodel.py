"""What every request goes through, in Python, for where compiled/ was not built. Tests compare compiled/ with it.

This room is a leaf: it knows arguments, waiters and the bytes of commands, but no protocol and no link.
`takes_register` and `takes_fire` decorate a method. The compiled form takes the calls of the fast path itself, and
gives all others to the method. Here the method takes every call. The lock of the line is held wherever a ledger or a
`Pending` is changed.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar

from timerd_client.arguments import U64_MAX, each, key_bytes, timeout_ns, unsigned, watch
from timerd_client.conditions import When
from timerd_client.types import Key
from timerd_client.waiter import Notified, RawSettlement, Waiter, value_and_codes
from timerd_shm.declare.fields import fields, offset_of, size_of
from timerd_shm.declare.limits import KEY_SIZE_MAX, PAYLOAD_SIZE_MAX
from timerd_shm.declare.wire import CommandKind, OutcomeFlag, OutcomeRecord, ReportHeader
from timerd_wire import native

from .commands import (
    KEY_COMMAND_SIZE,
    PURGATORY_AT,
    REGISTER_SIZE,
    in_purgatory,
    pack_key,
    pack_register,
    with_first_mark,
)
from .ids import Ids

Method = TypeVar("Method", bound=Callable[..., Any])

ISSUED_MAX: Final = (1 << 63) - 1  # the largest number of a command
_HEADER_SIZE: Final = size_of(ReportHeader)
_OUTCOME_SIZE: Final = size_of(OutcomeRecord)
_FLAGS_AT: Final = offset_of(OutcomeRecord, "flags")
_FAILED_AT: Final = offset_of(OutcomeRecord, "failed")
_HAS_FAILURES: Final = int(OutcomeFlag.HAS_FAILURES)
_GRANTED: Final = int(OutcomeFlag.GRANTED)
_NUMBER_AT: Final = offset_of(OutcomeRecord, "number")
_CODE_SIZE: Final = 4  # of the code of a failed key
_STATE_AT: Final = offset_of(OutcomeRecord, "state")
_DROPPED_AT_ONCE: Final = 1_024  # else each acknowledgement would move the list
_REGISTER: Final = int(CommandKind.REGISTER)
_FIRE: Final = int(CommandKind.FIRE)
_AMOUNT: Final = partial(unsigned, "amount", largest=U64_MAX, smallest=1)


def columns_of(record: type[Any], *names: str) -> struct.Struct:
    """A struct that reads only the named fields of a record, in the record's order."""
    codes = (field.storage.code if field.name in names else f"{field.storage.size}x" for field in fields(record))
    return struct.Struct("<" + "".join(codes))


_OUTCOMES = columns_of(OutcomeRecord, "command", "heap_offset", "value_length")


if TYPE_CHECKING:
    from collections import UserDict as Numbered  # mypyc would take it for a dict, which the compiled one is not
else:
    Numbered = dict


class Pending(Numbered[int, Waiter]):
    """Pending operations: who waits for which command number. Iterates in the order of the numbers."""

    def add_all(self, first: int, rows: int, waiter: Waiter) -> None:
        """Add `rows` numbers from `first` on, all with the same waiter."""
        self.update(dict.fromkeys(range(first, first + rows), waiter))


class Line:
    """What a call needs of its link: the clock, the lock, and whether another thread is about to send.

    Link derives from it (client/DESIGN.md, "What a request costs its client").
    """

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self.now_ns = now_ns
        self.lock = native.lock()
        self.closed = False
        self.sealed = False  # no more commands are issued: the link is closed, or is being closed
        self.idle = False  # whether no thread or loop is about to send
        self.alarm = ISSUED_MAX  # see wake_if_due

    def wake(self) -> None:
        """Have all that is to be sent sent. Called with the lock held."""
        raise NotImplementedError

    def wake_if_due(self, issued: int) -> None:
        """After each command or question, with the lock held: wake the sender, unless it sends in time by itself.

        `issued` is the number of the last command. While a sender is about to send (`idle` is false), a caller wakes
        it only from the number `alarm` on: so many commands have piled up then that the sender would be too late.
        """
        if self.idle or issued >= self.alarm:
            self.wake()


class Ledger:
    """What a client has issued: unacknowledged commands, numbered one by one; pending operations; the newest event."""

    def __init__(self, window: int) -> None:
        self.window = window
        self.issued = 0
        self.applied = 0
        self.pending = Pending()
        self.ids = Ids()
        self.incarnation = b""
        self.arena = 0
        self._commands: list[bytes] = []  # `_commands[i]` is the command with the number `_base + i`
        self._base = 1
        self._words: Sequence[int] = (0,)
        self._newest_at = 0

    @property
    def kept(self) -> int:
        """How many commands are kept."""
        return self.issued - self.applied

    def issue(self, command: bytes) -> int:
        """Add a command; its number. The caller has checked that the window has room."""
        self.issued += 1
        self._commands.append(command)
        return self.issued

    def issue_all(self, commands: Sequence[bytes]) -> int:
        """Add several commands at once; the number of the first."""
        first = self.issued + 1
        self.issued += len(commands)
        self._commands += commands
        return first

    def command(self, number: int) -> bytes:
        """The command of that number, which is kept."""
        return self._commands[number - self._base]

    def replace(self, number: int, command: bytes) -> None:
        """Replace a command that is kept."""
        self._commands[number - self._base] = command

    def fit(self, first: int, count: int, size: int) -> int:
        """How many commands from `first` on fit into `size` bytes: `count`, or else half, a quarter, and so on."""
        start = first - self._base
        commands = self._commands[start : start + count]
        while sum(map(len, commands)) > size:
            commands = commands[: (len(commands) + 1) // 2]
        return len(commands)

    def join(self, header: bytes, first: int, count: int) -> bytes:
        """A frame: the header, then `count` commands from `first` on."""
        start = first - self._base
        return header + b"".join(self._commands[start : start + count])

    def drop(self, applied: int) -> None:
        """Commands up to this one are applied: forget them."""
        self.applied = applied
        drop = applied + 1 - self._base
        if drop >= _DROPPED_AT_ONCE or drop == len(self._commands):
            del self._commands[:drop]
            self._base += drop

    def begin_after(self, number: int) -> None:
        """Forget all commands; the next one has the number after this one."""
        self._commands.clear()
        self.ids.clear()
        self._base, self.issued, self.applied = number + 1, number, number

    def move_purgatories(self, moved: dict[int, int]) -> None:
        """Change the purgatory in all commands that are kept: {old index: new index}. The arena is another one."""
        self._commands = [
            in_purgatory(command, moved.get(command[PURGATORY_AT], command[PURGATORY_AT])) for command in self._commands
        ]

    def count_from_first(self) -> None:
        """The arena is another than callers have seen: registrations that are kept count from its first event."""
        self._commands = [with_first_mark(command) for command in self._commands]

    def newest(self) -> int:
        """Sequence of the newest event that this client can see."""
        return self._words[self._newest_at]

    def use_arena(self, words: Sequence[int], index: int) -> None:
        """Read the sequence of the newest event from `words[index]`: a list, or an arena that stays mapped."""
        self._words, self._newest_at = words, index


class Promised:
    """Something that is settled once, and the callbacks of those that wait.

    Operation, Batch and Reply derive from it, so that each is one object (client/DESIGN.md). It has no slots: each of
    the three has its own, because an operation needs fewer bytes than the others.
    """

    if TYPE_CHECKING:
        __slots__ = ("_callbacks", "_link", "_settlement")
    else:
        __slots__ = ()
    _link: Any  # for derived classes; nothing here uses it
    _settlement: Any
    _unseen: Any = False
    _callbacks: list[Callable[[Any], object]] | None

    def done(self) -> bool:
        """Whether it has settled. A caller that is told so has looked at it."""
        return self._settlement is not None

    def _has_settled(self) -> bool:
        """The same, and nobody has looked at it."""
        return self._settlement is not None

    def settle(self, command: int, settlement: RawSettlement) -> bool:
        """Called by the protocol, with the lock held. The first settlement counts. Whether to call `notify` later."""
        if self._settlement is not None:
            return False
        self._settlement = settlement
        return self._callbacks is not None


class Handle(Promised):
    """An operation, as `register` makes it.

    Operation derives from it: a second object for each request would cost a third of the instructions of `register`.
    """

    __slots__ = ("_callbacks", "_id", "_link", "_names", "_settlement", "_unseen", "command", "deadline_ns", "payload")
    _id: tuple[Key, str, str] | None  # its id, purgatory and if_exists

    def __init__(self, link: Any, command: int, names: Key | tuple[Key, ...], payload: bytes, deadline_ns: int) -> None:
        self._link = link
        self._settlement = self._callbacks = self._id = None
        self._unseen = False  # a grant has completed it, and no caller has looked at it
        self._names = names
        self.command = command  # the command number of its registration; 0 = it was never sent
        self.payload = payload
        self.deadline_ns = deadline_ns  # CLOCK_MONOTONIC, as far as this client knows; NO_DEADLINE = none

    @property
    def _taken(self) -> Any:
        """The settlement, for a caller: from now on it has been looked at. None = it is pending.

        To read an attribute is one step: no handler of a signal runs between it and the `return` behind it. So a caller
        that a handler interrupts has either looked at the outcome and got it, or neither.
        """
        self._unseen = False
        return self._settlement

    def done(self) -> bool:
        return self._taken is not None

    def settle(self, command: int, settlement: RawSettlement) -> bool:
        if self._settlement is not None:
            return False
        # No call from here on: so no other thread comes in between.
        record = settlement[0]
        self._unseen = record is not None and record[_FLAGS_AT] & _GRANTED != 0
        self._settlement = settlement
        return self._callbacks is not None

    def revoke(self, command: int, settlement: RawSettlement) -> None:
        """No caller has looked at its outcome, and that goes to another: whoever looks now finds this."""
        self._unseen, self._settlement = False, settlement


Made = TypeVar("Made", bound=type[Handle])


def without_collector(made: Made) -> Made:
    """Decorates a class of operations. In the compiled form its objects have no header of the garbage collector."""
    return made


class Rows(Promised):
    """Operations that were registered together. They settle row by row; the whole is done when all have settled."""

    __slots__ = ("_callbacks", "_link", "_parts", "_settlement", "_settlements", "_unseen", "left", "listed")

    def __init__(self, link: Any, rows: int) -> None:
        self._link = link
        self._settlement = self._callbacks = None
        self._unseen: set[int] = set()  # the rows that a grant has completed, and at which no caller has looked
        self.left = rows
        self.listed = 0  # of its rows so many are in `grants` of settle_all
        self._settlements: list[RawSettlement | None] = [None] * rows
        self._parts: list[tuple[int, int, int]] = []  # (first command, first row, rows) of each part
        if not rows:
            self._settlement = ()

    def done(self) -> bool:
        if self._settlement is None:
            return False
        self._unseen.clear()
        return True

    def add_part(self, first: int, row: int, rows: int) -> None:
        """The rows from `row` on have the command numbers from `first` on. Called with the lock held."""
        if self._parts and self._parts[-1][0] + self._parts[-1][2] == first:
            before = self._parts.pop()
            first, row, rows = before[0], before[1], before[2] + rows
        self._parts.append((first, row, rows))

    def row_of(self, command: int) -> int:
        """The row of a command number; -1 = it is in no part."""
        for first, row, rows in reversed(self._parts):  # the last part first: numbers begin anew with a new session
            if first <= command < first + rows:
                return row + command - first
        return -1

    def commands(self) -> Iterator[int]:
        """The command numbers of all rows that were registered."""
        for first, _, rows in self._parts:
            yield from range(first, first + rows)

    def settle(self, command: int, settlement: RawSettlement) -> bool:
        if not self.left:
            return False
        row = self.row_of(command)
        if row >= 0:
            if self._settlements[row] is not None:  # an interrupt came in between, and now it is done again
                return False
            record = settlement[0]
            if record is not None and record[_FLAGS_AT] & _GRANTED:
                self._unseen.add(row)
            self._settlements[row] = settlement
        self.left -= 1
        if self.left:
            return False
        self._settlement = ()
        return self._callbacks is not None

    def revoke(self, command: int, settlement: RawSettlement) -> None:
        """See Handle.revoke."""
        row = self.row_of(command)
        self._unseen.discard(row)
        self._settlements[row] = settlement

    def settle_rest(self, settlement: RawSettlement) -> None:
        """Settle all rows that are pending. Called with the lock held."""
        self._settlements = [settlement if one is None else one for one in self._settlements]
        self.left = 0
        self._settlement = ()

    def settlement(self, row: int) -> RawSettlement | None:
        """The settlement of a row; None = it is pending."""
        return self._settlements[row]

    def copy_records(self, into: bytearray, at: int) -> bool:
        """Copy the records of all rows, one after another, to byte `at` of a buffer. False if a row has no record."""
        return copy_records_in(self._settlements, into, at)

    def states_in_records(self) -> bytes:
        """The state of each row in its record; 0 where a row has no record."""
        return bytes(0 if one is None or one[0] is None else one[0][_STATE_AT] for one in self._settlements)

    def values_in_records(self) -> list[bytes]:
        """The value of each row; empty where there is none."""
        return [b"" if one is None else value_and_codes(one)[0] for one in self._settlements]


Grant: TypeAlias = tuple[int, "Handle | Rows"]
"""A registration that a limited event has completed: its command number, and who waits for it."""


def copy_records_in(settlements: Sequence[RawSettlement | None], into: bytearray, at: int) -> bool:
    """See copy_records. Raises IndexError, and copies nothing, if the records do not fit."""
    size = _OUTCOME_SIZE * len(settlements)
    if not 0 <= at <= len(into) - size:
        raise IndexError(f"{size} bytes from {at} on, in {len(into)}")
    records = [one[0] for one in settlements if one is not None and one[0] is not None]
    if len(records) < len(settlements):
        return False
    into[at : at + size] = b"".join(records)
    return True


def copy_records(handles: Sequence[Handle], into: bytearray, at: int) -> bool:
    """Copy the records of operations, one after another, to byte `at` of a buffer. False if one has no record."""
    return copy_records_in([handle._settlement for handle in handles], into, at)


class Caller:
    """What `register` and `fire` of a purgatory need. `indices` are those of all purgatories, by name.

    Surface derives from it: the look-up of a part would cost 11 % of `register` and 17 % of `fire`.
    """

    def __init__(self, line: Line, ledger: Ledger, indices: dict[str, int], name: str, operation: type[Any]) -> None:
        self._name = name
        self._link = line
        self._ledger = ledger
        self._indices = indices
        self._operation = operation


def takes_register(method: Method) -> Method:
    """Decorates `register` of a Caller: the compiled form takes the calls of the fast path before the method."""
    return method


def takes_fire(method: Method) -> Method:
    """Decorates `fire` of a Caller, like takes_register."""
    return method


# columns ----------------------------------------------------------------------------------------------------------


class Head(NamedTuple):
    """What the registrations of a column have in common."""

    purgatory: int
    flags: int
    registered_ns: int
    mark_sequence: int
    mark_command: int


def are_bodies(column: list[Any]) -> bool:
    """Whether each is bytes of a length that a payload or value may have."""
    return all(body.__class__ is bytes and len(body) <= PAYLOAD_SIZE_MAX for body in column)


def durations_of(timeouts: list[Any]) -> list[int]:
    """A column of timeouts in ns; raises TimeoutOutOfRangeError."""
    return each("timeout", timeouts, timeout_ns)


def amounts_of(amounts: list[Any]) -> list[int]:
    """A column of amounts, checked; raises InvalidValueError."""
    return each("amounts", amounts, _AMOUNT)


def plain_keys(keys: list[Key]) -> Sequence[Key]:
    """A column of keys, checked, for issue_events. Raises InvalidKeyError, KeyTooLongError."""
    try:
        encoded = [key.encode() if key.__class__ is str else key for key in keys]
        sizes = set(map(len, encoded))
    except (AttributeError, TypeError, UnicodeEncodeError):
        return each("keys", keys, key_bytes)
    if (sizes and (min(sizes) == 0 or max(sizes) > KEY_SIZE_MAX)) or not all(key.__class__ is bytes for key in encoded):
        return each("keys", keys, key_bytes)
    return encoded


class Watches:
    """The keys of a column of registrations, checked and encoded for issue_registrations.

    Raises what a registration with wrong keys raises, and says of which row.
    """

    def __init__(self, keys: list[Any], when: When) -> None:
        self.rows = each("keys", keys, lambda one: watch(one, when))
        # As an operation has them: one key, or a tuple.
        self.names = [
            one if one.__class__ is str or one.__class__ is bytes else row.names
            for one, row in zip(keys, self.rows, strict=True)
        ]


def issue_registrations(
    ledger: Ledger,
    head: Head,
    watches: Watches,
    payloads: Sequence[bytes] | bytes,
    durations_ns: Sequence[int] | int,
    start: int,
    rows: int,
) -> int:
    """Issue `rows` registrations, from row `start` of the columns on; the command number of the first."""
    heads: dict[tuple[int, int, int, int, int], bytes] = {}
    commands: list[bytes] = []
    size = len(payloads) if isinstance(payloads, bytes) else 0
    for row in range(start, start + rows):
        names, tail, condition, needed, total = watches.rows[row]
        payload = payloads if isinstance(payloads, bytes) else payloads[row]
        size = len(payload)
        duration_ns = durations_ns if isinstance(durations_ns, int) else durations_ns[row]
        kind = (len(tail), size, duration_ns, needed, len(names))
        packed = heads.get(kind)
        if packed is None:
            packed = heads[kind] = pack_register(
                _REGISTER,
                head.purgatory,
                head.flags,
                REGISTER_SIZE + len(tail) + size,
                condition,
                needed,
                len(names),
                0,
                size,
                head.registered_ns,
                duration_ns,
                head.mark_sequence,
                head.mark_command,
                total,
            )
        commands.append(packed + tail + payload)
    return ledger.issue_all(commands)


def issue_events(
    ledger: Ledger,
    purgatory: int,
    keys: Sequence[Any],
    values: Sequence[bytes] | bytes,
    amounts: Sequence[int] | int,
    start: int,
    rows: int,
) -> None:
    """Fire `rows` events, from row `start` of the columns on. `keys` come from plain_keys."""
    heads: dict[tuple[int, int, int], bytes] = {}
    commands: list[bytes] = []
    for row in range(start, start + rows):
        key = keys[row]
        value = values if isinstance(values, bytes) else values[row]
        kind = (len(key), len(value), amounts if isinstance(amounts, int) else amounts[row])
        packed = heads.get(kind)
        if packed is None:
            length = KEY_COMMAND_SIZE + kind[0] + kind[1]
            packed = heads[kind] = pack_key(_FIRE, purgatory, 0, kind[0], length, kind[2], kind[1], 0)
        commands.append(packed + key + value)
    ledger.issue_all(commands)


# outcomes ---------------------------------------------------------------------------------------------------------


def settle_all(
    pending: Pending,
    ready: list[Notified],
    frame: bytes,
    outcomes: int,
    behind: int,
    arena: int,
    unclaimed: Callable[[int, bytes, bytes, int], None],
    grants: dict[int, Grant],
) -> None:
    """Settle the operations of a report. Each keeps a copy of its record and value, but not the frame.

    `behind` is how many bytes of answers and looks lie between the outcomes and the heap.
    Waiters to notify go into `ready`. A record that nobody waits for goes to `unclaimed`, with its command number, the
    frame, and the offset of the frame's heap. What a limited event has completed goes into `grants`, by the number of
    the outcome. Raises ValueError for a frame that is too short. A value that would lie beyond the end of the frame is
    cut.
    """
    size = _OUTCOME_SIZE
    end = _HEADER_SIZE + outcomes * size
    heap = end + behind
    if heap > len(frame):
        raise ValueError(f"{outcomes} outcomes and {behind} bytes of answers and looks do not fit")
    take = pending.pop
    notify = ready.append
    offset = _HEADER_SIZE
    for command, heap_offset, value_length in _OUTCOMES.iter_unpack(memoryview(frame)[offset:end]):
        waiter = take(command, None)
        if waiter is not None:
            if frame[offset + _FLAGS_AT] & _HAS_FAILURES:  # their codes stand behind the value
                failed = int.from_bytes(frame[offset + _FAILED_AT : offset + _FAILED_AT + 8], "little")
                value_length += _CODE_SIZE * failed.bit_count()
            value = frame[heap + heap_offset : heap + heap_offset + value_length] if value_length else b""
            if frame[offset + _FLAGS_AT] & _GRANTED and isinstance(waiter, (Handle, Rows)):
                grants[int.from_bytes(frame[offset + _NUMBER_AT : offset + _NUMBER_AT + 8], "little")] = command, waiter
                if isinstance(waiter, Rows):
                    waiter.listed += 1
            if waiter.settle(command, (frame[offset : offset + size], value, arena, None)):
                notify(waiter)
        else:
            unclaimed(command, frame[offset : offset + size], frame, heap)
        offset += size


# grants -----------------------------------------------------------------------------------------------------------


def _references(grant: Grant) -> int:
    return sys.getrefcount(grant[1])


_OWN: Final = _references((0, Handle(None, 0, "", b"", 0)))  # of a waiter to which only the grant refers


def is_held(_pending: Pending, grant: Grant) -> bool:
    """Whether anybody refers to the operation of a grant, or to its whole batch, but the tables of this client.

    Who waits for it refers to it. So does `ready`, while a callback is about to be called.
    """
    others = _references(grant) - _OWN
    waiter = grant[1]
    if isinstance(waiter, Rows):  # each row that is pending, or among the grants, has a reference of its own
        settled = len(waiter._settlements) - waiter.left
        others -= sum(rows for _, _, rows in waiter._parts) - settled + waiter.listed - 1
    return others > 0
