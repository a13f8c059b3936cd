"""What stands in the path of every request, in Python: for where compiled.pyx could not be built, and as its measure.

This room is a leaf: it knows arguments, waiters and the bytes of commands, and neither a protocol nor a link.
`takes_register` and `takes_fire` take the usual calls themselves, and give any other call to the method that they
replace; here that is every call. The lock of the line is held wherever a ledger or a `Pending` is changed.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from timerd_client.arguments import EVENT_PREFIX, U64_MAX, each, key_bytes, timeout_ns, unsigned
from timerd_client.types import Key
from timerd_client.waiter import Notified, RawSettlement, Waiter
from timerd_shm.declare.fields import fields, offset_of, size_of
from timerd_shm.declare.limits import KEY_SIZE_MAX, PAYLOAD_SIZE_MAX
from timerd_shm.declare.wire import CommandKind, KeyCommand, OutcomeRecord, ReportHeader, WireAnswer

from .commands import KEY_COMMAND_SIZE, REGISTER_SIZE, pack_key, pack_register

Method = TypeVar("Method", bound=Callable[..., Any])

ISSUED_MAX: Final = (1 << 63) - 1  # of a command's number
_HEADER_SIZE: Final = size_of(ReportHeader)
_OUTCOME_SIZE: Final = size_of(OutcomeRecord)
_ANSWER_SIZE: Final = size_of(WireAnswer)
_STATE_AT: Final = offset_of(OutcomeRecord, "state")
_PURGATORY_AT: Final = offset_of(KeyCommand, "purgatory")  # the same in every command
_DROPPED_AT_ONCE: Final = 1_024  # else the list would be moved for each acknowledgement
_REGISTER: Final = int(CommandKind.REGISTER)
_FIRE: Final = int(CommandKind.FIRE)
_AMOUNT: Final = partial(unsigned, "amount", largest=U64_MAX, smallest=1)


def columns_of(record: type[Any], *names: str) -> struct.Struct:
    """Reads only the named fields of consecutive records, in the record's order."""
    codes = (field.storage.code if field.name in names else f"{field.storage.size}x" for field in fields(record))
    return struct.Struct("<" + "".join(codes))


_OUTCOMES = columns_of(OutcomeRecord, "command", "heap_offset", "value_length")


class Pending(dict[int, Waiter]):
    """Who waits for the outcome of which registration, by its command number; iterates in the order of the numbers."""

    def add_all(self, first: int, rows: int, waiter: Waiter) -> None:
        """One waits for many."""
        self.update(dict.fromkeys(range(first, first + rows), waiter))


class Line:
    """What a call has to know of its link: the clock, the lock, and whether somebody is about to send."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self.now_ns = now_ns
        self.lock = threading.Lock()
        self.closed = False
        self.sealed = False  # nothing more is issued: it is being closed, or was
        self.idle = False  # whether nobody is about to send
        self.alarm = ISSUED_MAX  # see wake_if_due

    def wake(self) -> None:
        """See to it that what there is to be sent is sent; called with the lock held."""
        raise NotImplementedError

    def wake_if_due(self, issued: int) -> None:
        """With the lock held, after every command and question: have it sent, if nobody else does that in time.

        `issued` is the number of the last command. While somebody is about to send (`idle` is false), a caller sends
        only from the number `alarm` on: so much has piled up then that whoever is about to send comes too late.
        """
        if self.idle or issued >= self.alarm:
            self.wake()


class Ledger:
    """The commands of a client that are not acknowledged, numbered one by one; what it waits for; the newest event."""

    def __init__(self, window: int) -> None:
        self.window = window
        self.issued = 0
        self.applied = 0
        self.pending = Pending()
        self.incarnation = b""
        self.arena = 0
        self._commands: list[bytes] = []  # number `_base + i` is `_commands[i]`
        self._base = 1
        self._words: Sequence[int] = (0,)
        self._newest_at = 0

    @property
    def kept(self) -> int:
        """Commands that are kept."""
        return self.issued - self.applied

    def issue(self, command: bytes) -> int:
        """Take a command, whose number is returned. The caller has seen that there is room."""
        self.issued += 1
        self._commands.append(command)
        return self.issued

    def issue_all(self, commands: Sequence[bytes]) -> int:
        """Take several commands at once; the number of the first."""
        first = self.issued + 1
        self.issued += len(commands)
        self._commands += commands
        return first

    def command(self, number: int) -> bytes:
        """The command of that number, which is kept."""
        return self._commands[number - self._base]

    def replace(self, number: int, command: bytes) -> None:
        """Give a number that is kept to another command."""
        self._commands[number - self._base] = command

    def fit(self, first: int, count: int, size: int) -> int:
        """How many commands from `first` on make a frame: `count`, or half of that until they have `size` bytes."""
        start = first - self._base
        commands = self._commands[start : start + count]
        while sum(map(len, commands)) > size:
            commands = commands[: (len(commands) + 1) // 2]
        return len(commands)

    def join(self, header: bytes, first: int, count: int) -> bytes:
        """A frame: that header, and `count` commands from `first` on."""
        start = first - self._base
        return header + b"".join(self._commands[start : start + count])

    def drop(self, applied: int) -> None:
        """Commands up to this one are applied."""
        self.applied = applied
        drop = applied + 1 - self._base
        if drop >= _DROPPED_AT_ONCE or drop == len(self._commands):
            del self._commands[:drop]
            self._base += drop

    def begin_after(self, number: int) -> None:
        """Forget all commands; the next one has the number after this one."""
        self._commands.clear()
        self._base, self.issued, self.applied = number + 1, number, number

    def move_purgatories(self, moved: dict[int, int]) -> None:
        """Commands that were kept for another arena carry its indices: {old: new}."""
        at = _PURGATORY_AT
        self._commands = [
            command[:at] + bytes((moved.get(command[at], command[at]),)) + command[at + 1 :]
            for command in self._commands
        ]

    def newest(self) -> int:
        """Sequence of the newest event, as far as this client can see."""
        return self._words[self._newest_at]

    def use_arena(self, words: Sequence[int], index: int) -> None:
        """From now on `words[index]` is that sequence: of a list, or of the words of an arena that stays mapped."""
        self._words, self._newest_at = words, index


class Promised:
    """What is settled once, for whom a link's protocol settles it, and who wants to know."""

    __slots__ = ("__weakref__", "_callbacks", "_link", "_settlement")

    def __init__(self, link: Any) -> None:
        """`link` is kept for whoever derives from this; nothing here uses it."""
        self._link = link
        self._settlement: Any = None
        self._callbacks: list[Callable[[Any], object]] | None = None

    def done(self) -> bool:
        """Whether it has settled."""
        return self._settlement is not None

    def settle(self, command: int, settlement: RawSettlement) -> bool:
        """Called by the protocol, under the lock; whether somebody is to be told (`notify`). The first one counts."""
        if self._settlement is not None:
            return False
        self._settlement = settlement
        return self._callbacks is not None


class Handle(Promised):
    """An operation, as `register` makes it."""

    __slots__ = ("_id", "_names", "_reply", "command", "deadline_ns", "payload")
    _reply: Any  # who waits for the answer to register(wait=True)
    _id: tuple[Key, str] | None  # its id and purgatory

    def __init__(self, link: Any, command: int, names: Key | tuple[Key, ...], payload: bytes, deadline_ns: int) -> None:
        self._link = link
        self._settlement = self._callbacks = self._reply = self._id = None
        self._names = names
        self.command = command  # its number between client and daemon; 0 = it was never sent
        self.payload = payload
        self.deadline_ns = deadline_ns  # CLOCK_MONOTONIC, as far as this client knows; NO_DEADLINE = none


class Rows(Promised):
    """Operations that were registered together: settled row by row, and done when all are."""

    __slots__ = ("_parts", "_settlements", "left")

    def __init__(self, link: Any, rows: int) -> None:
        super().__init__(link)
        self.left = rows
        self._settlements: list[RawSettlement | None] = [None] * rows
        self._parts: list[tuple[int, int, int]] = []  # (first command, first row, rows) of each part
        if not rows:
            self._settlement = ()

    def add_part(self, first: int, row: int, rows: int) -> None:
        """Rows `row`.. have the command numbers `first`..; called with the lock held."""
        if self._parts and self._parts[-1][0] + self._parts[-1][2] == first:
            before = self._parts.pop()
            first, row, rows = before[0], before[1], before[2] + rows
        self._parts.append((first, row, rows))

    def row_of(self, command: int) -> int:
        """The row of that command number; -1 = it is in no part."""
        for first, row, rows in reversed(self._parts):  # numbers begin anew with a new session
            if first <= command < first + rows:
                return row + command - first
        return -1

    def commands(self) -> Iterator[int]:
        """Command numbers of what was registered."""
        for first, _, rows in self._parts:
            yield from range(first, first + rows)

    def settle(self, command: int, settlement: RawSettlement) -> bool:
        if not self.left:
            return False
        row = self.row_of(command)
        if row >= 0:
            self._settlements[row] = settlement
        self.left -= 1
        if self.left:
            return False
        self._settlement = ()
        return self._callbacks is not None

    def settle_rest(self, settlement: RawSettlement) -> None:
        """Settle what nobody else will; with the lock held."""
        self._settlements = [settlement if one is None else one for one in self._settlements]
        self.left = 0
        self._settlement = ()

    def settlement(self, row: int) -> RawSettlement | None:
        """What settled that row, if anything has."""
        return self._settlements[row]

    def copy_records(self, into: bytearray, at: int) -> bool:
        """Copy the records of all rows, one behind the other, to byte `at` of a buffer; False if one has none (yet)."""
        return copy_records_in(self._settlements, into, at)

    def states_in_records(self) -> bytes:
        """The state of each row in its record; 0 where there is none (yet)."""
        return bytes(0 if one is None or one[0] is None else one[0][_STATE_AT] for one in self._settlements)

    def values_in_records(self) -> list[bytes]:
        """The value of each row; empty where there is none."""
        return [b"" if one is None else one[1] for one in self._settlements]


def copy_records_in(settlements: Sequence[RawSettlement | None], into: bytearray, at: int) -> bool:
    """See copy_records. Raises IndexError, and copies nothing, where there is no room for them."""
    size = _OUTCOME_SIZE * len(settlements)
    if not 0 <= at <= len(into) - size:
        raise IndexError(f"{size} bytes from {at} on, in {len(into)}")
    records = [one[0] for one in settlements if one is not None and one[0] is not None]
    if len(records) < len(settlements):
        return False
    into[at : at + size] = b"".join(records)
    return True


def copy_records(handles: Sequence[Handle], into: bytearray, at: int) -> bool:
    """Copy the records of operations, one behind the other, to byte `at` of a buffer; False if one has none (yet)."""
    return copy_records_in([handle._settlement for handle in handles], into, at)


class Caller:
    """What the calls of a purgatory have to know. `indices` are those of all purgatories, by their names."""

    def __init__(self, line: Line, ledger: Ledger, indices: dict[str, int], name: str, operation: type[Any]) -> None:
        self.name = name
        self._link = line
        self._ledger = ledger
        self._indices = indices
        self._operation = operation


def takes_register(method: Method) -> Method:
    """`register` of a Caller: what it does with the usual call."""
    return method


def takes_fire(method: Method) -> Method:
    """`fire` of a Caller."""
    return method


# columns ----------------------------------------------------------------------------------------------------------


class Head(NamedTuple):
    """What the registrations of a column have in common."""

    purgatory: int
    flags: int
    condition: int
    total: int
    registered_ns: int
    mark_sequence: int
    mark_command: int


def are_keys(column: list[Any]) -> bool:
    """Whether each is one key, str or bytes."""
    return all(key.__class__ is str or key.__class__ is bytes for key in column)


def are_bodies(column: list[Any]) -> bool:
    """Whether each is bytes, and no longer than a payload or value may be."""
    return all(body.__class__ is bytes and len(body) <= PAYLOAD_SIZE_MAX for body in column)


def durations_of(timeouts: list[Any]) -> list[int]:
    """A column of timeouts in ns; raises TimeoutOutOfRangeError."""
    return each("timeout", timeouts, timeout_ns)


def amounts_of(amounts: list[Any]) -> list[int]:
    """A column of amounts, checked; raises InvalidValueError."""
    return each("amounts", amounts, _AMOUNT)


def plain_keys(keys: list[Key]) -> Sequence[Key]:
    """A column of keys, checked, for issue_registrations and issue_events. Raises InvalidKeyError, KeyTooLongError."""
    try:
        encoded = [key.encode() if key.__class__ is str else key for key in keys]
        sizes = set(map(len, encoded))
    except (AttributeError, TypeError, UnicodeEncodeError):
        return each("keys", keys, key_bytes)
    if (sizes and (min(sizes) == 0 or max(sizes) > KEY_SIZE_MAX)) or not all(key.__class__ is bytes for key in encoded):
        return each("keys", keys, key_bytes)
    return encoded


def issue_registrations(
    ledger: Ledger,
    head: Head,
    keys: Sequence[Any],
    watches: Sequence[tuple[int, int]] | None,
    payloads: Sequence[bytes] | bytes,
    durations_ns: Sequence[int] | int,
    start: int,
    rows: int,
) -> int:
    """Issue `rows` registrations from row `start` of the columns on; the command number of the first.

    `keys` are of plain_keys, or, if there are `watches` (needed, number of keys), encoded.
    """
    heads: dict[tuple[int, int, int, tuple[int, int]], bytes] = {}
    commands: list[bytes] = []
    size = len(payloads) if isinstance(payloads, bytes) else 0
    for row in range(start, start + rows):
        tail = keys[row] if watches is not None else EVENT_PREFIX[len(keys[row])] + keys[row]
        payload = payloads if isinstance(payloads, bytes) else payloads[row]
        size = len(payload)
        duration_ns = durations_ns if isinstance(durations_ns, int) else durations_ns[row]
        watch = watches[row] if watches is not None else (1, 1)
        kind = (len(tail), size, duration_ns, watch)
        packed = heads.get(kind)
        if packed is None:
            packed = heads[kind] = pack_register(
                _REGISTER,
                head.purgatory,
                head.flags,
                REGISTER_SIZE + len(tail) + size,
                head.condition,
                *watch,
                0,
                size,
                head.registered_ns,
                duration_ns,
                head.mark_sequence,
                head.mark_command,
                head.total,
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
    """Fire `rows` events from row `start` of the columns on; `keys` are of plain_keys."""
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
    answers: int,
    arena: int,
    unclaimed: Callable[[int, bytes, bytes, int], None],
) -> None:
    """Settle the operations of a report. Each keeps a copy of its record and value, never the frame.

    Waiters that are to be told go into `ready`. A record that nobody waits for goes to `unclaimed` (its command, the
    record, the frame, and where the frame's heap starts). Raises ValueError for a frame that is too short; a value that
    lies beyond the frame's end is cut.
    """
    size = _OUTCOME_SIZE
    end = _HEADER_SIZE + outcomes * size
    heap = end + answers * _ANSWER_SIZE
    if heap > len(frame):
        raise ValueError(f"{outcomes} outcomes and {answers} answers do not fit")
    take = pending.pop
    notify = ready.append
    offset = _HEADER_SIZE
    for command, heap_offset, value_length in _OUTCOMES.iter_unpack(memoryview(frame)[offset:end]):
        waiter = take(command, None)
        if waiter is not None:
            value = frame[heap + heap_offset : heap + heap_offset + value_length] if value_length else b""
            if waiter.settle(command, (frame[offset : offset + size], value, arena, None)):
                notify(waiter)
        else:
            unclaimed(command, frame[offset : offset + size], frame, heap)
        offset += size
