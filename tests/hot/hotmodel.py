"""The behaviour of timerd_client.hot in Python: the model of the compiled code.

Random programs run over both (clientprogram.py, modelprogram.py). The .pyi files of hot/ explain the names.
`takes_register` and `takes_fire` decorate a method. The compiled decorators handle the calls of the fast path
themselves, and pass all other calls to the method. Here the method handles every call.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias, TypeVar

from timerd_client.arguments import U64_MAX, each, key_bytes, timeout_ns, unsigned, watch
from timerd_client.conditions import When
from timerd_client.hot.commands import (
    KEY_COMMAND_SIZE,
    PURGATORY_AT,
    REGISTER_SIZE,
    Head,
    in_purgatory,
    pack_key,
    pack_register,
    with_first_mark,
)
from timerd_client.hot.ids import Ids
from timerd_client.types import Key
from timerd_client.waiter import Notified, RawSettlement, Waiter, value_and_codes
from timerd_shm.declare.fields import offset_of, size_of, unpack
from timerd_shm.declare.limits import PAYLOAD_SIZE_MAX
from timerd_shm.declare.wire import CommandKind, OutcomeFlag, OutcomeRecord, ReportHeader
from timerd_wire import native

Method = TypeVar("Method", bound=Callable[..., Any])

ISSUED_MAX = (1 << 63) - 1  # the largest number of a command
HEADER_SIZE = size_of(ReportHeader)
OUTCOME_SIZE = size_of(OutcomeRecord)
FLAGS_AT = offset_of(OutcomeRecord, "flags")
STATE_AT = offset_of(OutcomeRecord, "state")
CODE_SIZE = 4  # bytes of the code of a failed key
DROPPED_AT_ONCE = 1_024  # commands at least, or all: if each acknowledgement cut the list, each would move the rest


class Pending(dict[int, Waiter]):
    def add_all(self, first: int, rows: int, waiter: Waiter) -> None:
        self.update(dict.fromkeys(range(first, first + rows), waiter))


class Line:
    def __init__(self, now_ns: Callable[[], int]) -> None:
        self.now_ns = now_ns
        self.lock = native.lock()
        self.closed = False
        self.sealed = False  # no more commands are issued: the link is closed, or is being closed
        self.idle = False  # whether no thread or loop is about to send
        self.alarm = ISSUED_MAX  # see wake_if_due

    def wake(self) -> None:
        raise NotImplementedError

    def wake_if_due(self, issued: int) -> None:
        if self.idle or issued >= self.alarm:
            self.wake()


class Ledger:
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
        return self.issued - self.applied

    def issue(self, command: bytes) -> int:
        self.issued += 1
        self._commands.append(command)
        return self.issued

    def issue_all(self, commands: Sequence[bytes]) -> int:
        first = self.issued + 1
        self.issued += len(commands)
        self._commands += commands
        return first

    def command(self, number: int) -> bytes:
        return self._commands[number - self._base]

    def replace(self, number: int, command: bytes) -> None:
        self._commands[number - self._base] = command

    def fit(self, first: int, count: int, size: int) -> int:
        start = first - self._base
        commands = self._commands[start : start + count]
        while sum(map(len, commands)) > size:
            commands = commands[: (len(commands) + 1) // 2]
        return len(commands)

    def join(self, header: bytes, first: int, count: int) -> bytes:
        start = first - self._base
        return header + b"".join(self._commands[start : start + count])

    def drop(self, applied: int) -> None:
        self.applied = applied
        drop = applied + 1 - self._base
        if drop >= DROPPED_AT_ONCE or drop == len(self._commands):
            del self._commands[:drop]
            self._base += drop

    def begin_after(self, number: int) -> None:
        self._commands.clear()
        self.ids.clear()
        self._base, self.issued, self.applied = number + 1, number, number

    def move_purgatories(self, moved: dict[int, int]) -> None:
        self._commands = [
            in_purgatory(command, moved.get(command[PURGATORY_AT], command[PURGATORY_AT])) for command in self._commands
        ]

    def count_from_first(self) -> None:
        self._commands = [with_first_mark(command) for command in self._commands]

    def newest(self) -> int:
        return self._words[self._newest_at]

    def use_arena(self, words: Sequence[int], index: int) -> None:
        self._words, self._newest_at = words, index


class Promised:
    __slots__ = ()
    _link: Any  # for derived classes; nothing here uses it
    _settlement: Any
    _unseen: Any = False
    _callbacks: list[Callable[[Any], object]] | None

    def done(self) -> bool:
        return self._settlement is not None

    def _has_settled(self) -> bool:
        return self._settlement is not None

    def settle(self, command: int, settlement: RawSettlement) -> bool:
        if self._settlement is not None:
            return False
        self._settlement = settlement
        return self._callbacks is not None


class Handle(Promised):
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
        self._unseen = False
        return self._settlement

    def done(self) -> bool:
        return self._taken is not None

    def settle(self, command: int, settlement: RawSettlement) -> bool:
        if self._settlement is not None:
            return False
        # The lines from here on call nothing, so no other thread comes in between.
        record = settlement[0]
        self._unseen = record is not None and record[FLAGS_AT] & OutcomeFlag.GRANTED != 0
        self._settlement = settlement
        return self._callbacks is not None

    def revoke(self, command: int, settlement: RawSettlement) -> None:
        self._unseen, self._settlement = False, settlement


Made = TypeVar("Made", bound=type[Handle])


def without_collector(made: Made) -> Made:
    return made


class Rows(Promised):
    __slots__ = ("_callbacks", "_link", "_parts", "_settlement", "_settlements", "_unseen", "left", "listed")

    def __init__(self, link: Any, rows: int) -> None:
        self._link = link
        self._settlement = self._callbacks = None
        self._unseen: set[int] = set()  # the rows that a grant has completed, and at which no caller has looked
        self.left = rows
        self.listed = 0  # the number of its rows in `grants` of settle_all
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
        if self._parts and self._parts[-1][0] + self._parts[-1][2] == first:
            before = self._parts.pop()
            first, row, rows = before[0], before[1], before[2] + rows
        self._parts.append((first, row, rows))

    def row_of(self, command: int) -> int:
        for first, row, rows in reversed(self._parts):  # the last part first: numbers begin anew with a new session
            if first <= command < first + rows:
                return row + command - first
        return -1

    def commands(self) -> Iterator[int]:
        for first, _, rows in self._parts:
            yield from range(first, first + rows)

    def settle(self, command: int, settlement: RawSettlement) -> bool:
        if not self.left:
            return False
        row = self.row_of(command)
        if row >= 0:
            if self._settlements[row] is not None:  # an interrupt came in between, and now the row is settled again
                return False
            record = settlement[0]
            if record is not None and record[FLAGS_AT] & OutcomeFlag.GRANTED:
                self._unseen.add(row)
            self._settlements[row] = settlement
        self.left -= 1
        if self.left:
            return False
        self._settlement = ()
        return self._callbacks is not None

    def revoke(self, command: int, settlement: RawSettlement) -> None:
        row = self.row_of(command)
        self._unseen.discard(row)
        self._settlements[row] = settlement

    def settle_rest(self, settlement: RawSettlement) -> None:
        self._settlements = [settlement if one is None else one for one in self._settlements]
        self.left = 0
        self._settlement = ()

    def settlement(self, row: int) -> RawSettlement | None:
        return self._settlements[row]

    def copy_records(self, into: bytearray, at: int) -> bool:
        return copy_records_in(self._settlements, into, at)

    def states_in_records(self) -> bytes:
        return bytes(0 if one is None or one[0] is None else one[0][STATE_AT] for one in self._settlements)

    def values_in_records(self) -> list[bytes]:
        return [b"" if one is None else value_and_codes(one)[0] for one in self._settlements]


Grant: TypeAlias = tuple[int, "Handle | Rows"]
"""A registration that a limited event has completed: its command number, and its waiter."""


def copy_records_in(settlements: Sequence[RawSettlement | None], into: bytearray, at: int) -> bool:
    size = OUTCOME_SIZE * len(settlements)
    if not 0 <= at <= len(into) - size:
        raise IndexError(f"{size} bytes from {at} on, in {len(into)}")
    records = [one[0] for one in settlements if one is not None and one[0] is not None]
    if len(records) < len(settlements):
        return False
    into[at : at + size] = b"".join(records)
    return True


def copy_records(handles: Sequence[Handle], into: bytearray, at: int) -> bool:
    return copy_records_in([handle._settlement for handle in handles], into, at)


class Caller:
    def __init__(self, line: Line, ledger: Ledger, indices: dict[str, int], name: str, operation: type[Any]) -> None:
        self._name = name
        self._link = line
        self._ledger = ledger
        self._indices = indices
        self._operation = operation


def takes_register(method: Method) -> Method:
    return method


def takes_fire(method: Method) -> Method:
    return method


# columns ----------------------------------------------------------------------------------------------------------


def are_bodies(column: list[Any]) -> bool:
    return all(body.__class__ is bytes and len(body) <= PAYLOAD_SIZE_MAX for body in column)


def durations_of(timeouts: list[Any]) -> list[int]:
    return each("timeout", timeouts, timeout_ns)


def amounts_of(amounts: list[Any]) -> list[int]:
    return each("amounts", amounts, partial(unsigned, "amount", largest=U64_MAX, smallest=1))


def plain_keys(keys: list[Key]) -> Sequence[Key]:
    return each("keys", keys, key_bytes)


class Watches:
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
    commands: list[bytes] = []
    for row in range(start, start + rows):
        names, tail, condition, needed, total = watches.rows[row]
        payload = payloads if isinstance(payloads, bytes) else payloads[row]
        packed = pack_register(
            CommandKind.REGISTER,
            head.purgatory,
            head.flags,
            REGISTER_SIZE + len(tail) + len(payload),
            condition,
            needed,
            len(names),
            0,
            len(payload),
            head.registered_ns,
            durations_ns if isinstance(durations_ns, int) else durations_ns[row],
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
    commands: list[bytes] = []
    for row in range(start, start + rows):
        key = keys[row]
        value = values if isinstance(values, bytes) else values[row]
        amount = amounts if isinstance(amounts, int) else amounts[row]
        length = KEY_COMMAND_SIZE + len(key) + len(value)
        packed = pack_key(CommandKind.FIRE, purgatory, 0, len(key), length, amount, len(value), 0)
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
    end = HEADER_SIZE + outcomes * OUTCOME_SIZE
    heap = end + behind
    if heap > len(frame):
        raise ValueError(f"{outcomes} outcomes and {behind} bytes of answers and looks do not fit")
    for offset in range(HEADER_SIZE, end, OUTCOME_SIZE):
        record, packed = unpack(OutcomeRecord, frame, offset), frame[offset : offset + OUTCOME_SIZE]
        waiter = pending.pop(record.command, None)
        if waiter is None:
            unclaimed(record.command, packed, frame, heap)
            continue
        length = record.value_length
        if record.flags & OutcomeFlag.HAS_FAILURES:  # their codes follow the value
            length += CODE_SIZE * record.failed.bit_count()
        value = frame[heap + record.heap_offset : heap + record.heap_offset + length]
        if record.flags & OutcomeFlag.GRANTED and isinstance(waiter, (Handle, Rows)):
            grants[record.number] = record.command, waiter
            if isinstance(waiter, Rows):
                waiter.listed += 1
        if waiter.settle(record.command, (packed, value, arena, None)):
            ready.append(waiter)


# grants -----------------------------------------------------------------------------------------------------------


def references(grant: Grant) -> int:
    return sys.getrefcount(grant[1])


OWN = references((0, Handle(None, 0, "", b"", 0)))  # the references to a waiter to which only a grant refers


def is_held(pending: Pending, grant: Grant) -> bool:
    others = references(grant) - OWN
    waiter = grant[1]
    if isinstance(waiter, Rows):  # each row that is pending, or among the grants, has a reference of its own
        settled = len(waiter._settlements) - waiter.left
        others -= sum(rows for _, _, rows in waiter._parts) - settled + waiter.listed - 1
    return others > 0
