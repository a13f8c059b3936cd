"""Columns in, columns out: `register_many` and `fire_many` without an object or a lock per operation.

Commands are encoded in one loop over columns; heads that are equal but for their lengths are packed once. A column
that does not fit into the window goes out in parts of CHUNK, each of which waits for room as a single call does.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from functools import partial
from typing import Any

from timerd_shm.errors import TimerdError
from timerd_shm.fields import offset_of
from timerd_shm.limits import PAYLOAD_SIZE_MAX
from timerd_shm.wire import CommandKind, OutcomeRecord, RegisterFlag

from .arguments import (
    EVENT_PREFIX,
    U64_MAX,
    Key,
    Keys,
    Payload,
    Timeout,
    column,
    each,
    payload_bytes,
    timeout_ns,
    unsigned,
    watch,
)
from .commands import KEY_COMMAND_SIZE, REGISTER_SIZE, pack_key, pack_register
from .conditions import ANY, When
from .errors import Subject
from .link import Link
from .outcome import Outcome, State, state_of
from .promise import Promise, RawSettlement, local
from .surface import OperationT, Surface, plain_keys

CHUNK = 4_096
_REGISTER = int(CommandKind.REGISTER)
_FIRE = int(CommandKind.FIRE)
_STATE_AT = offset_of(OutcomeRecord, "state")
_COMPLETED = int(State.COMPLETED.value)


class Batch(Promise):
    """Many operations that were registered at once; everything it gives is in their order."""

    __slots__ = ("_durations_ns", "_first", "_keys", "_left", "_payloads", "_registered_ns", "_settlements")

    def __init__(
        self,
        link: Link,
        keys: Sequence[Key | tuple[Key, ...]],
        payloads: Sequence[bytes] | bytes,
        registered_ns: int,
        durations_ns: Sequence[int],
    ) -> None:
        super().__init__(link)
        self._keys = keys
        self._payloads = payloads
        self._registered_ns = registered_ns
        self._durations_ns = durations_ns
        self._left = len(keys)
        self._settlements: list[RawSettlement | None] = [None] * len(keys)
        self._first: list[tuple[int, int, int]] = []  # (first command, first row, rows) of each part
        if not keys:
            self._settlement: Any = ()

    def subject(self, command: int) -> Subject:
        if isinstance(self._payloads, bytes):
            return Subject(payload_size=len(self._payloads))
        rows = [row + command - first for first, row, rows in self._first if first <= command < first + rows]
        return Subject(payload_size=len(self._payloads[rows[-1]]) if rows else 0)

    def settle(self, command: int, settlement: RawSettlement) -> bool:
        for first, row, rows in reversed(self._first):  # numbers begin anew with a new session
            if first <= command < first + rows:
                self._settlements[row + command - first] = settlement
                break
        self._left -= 1
        if self._left:
            return False
        self._settlement = ()
        return self._callbacks is not None

    def due_ns(self, command: int) -> int:
        """Deadline of one of its operations, for the protocol."""
        for first, row, rows in reversed(self._first):
            if first <= command < first + rows:
                return self._registered_ns + self._durations_ns[row + command - first]
        raise AssertionError(f"command {command} is in none of the parts {self._first}")

    def add_part(self, first: int, row: int, rows: int) -> None:
        """Rows `row`.. have the command numbers `first`..; called with the lock held."""
        if self._first and self._first[-1][0] + self._first[-1][2] == first:
            before = self._first.pop()
            first, row, rows = before[0], before[1], before[2] + rows
        self._first.append((first, row, rows))

    def commands(self) -> Iterator[int]:
        """Command numbers of what was registered."""
        for first, _, rows in self._first:
            yield from range(first, first + rows)

    def _abandon(self, error: TimerdError) -> None:
        gone = local(error)
        self._settlements = [gone if settlement is None else settlement for settlement in self._settlements]
        self._left = 0
        self._settlement = ()

    def __len__(self) -> int:
        return len(self._keys)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.settled()} of {len(self)} settled>"

    def _column(self) -> list[RawSettlement]:
        return self._settlements  # type: ignore[return-value]  # all are set when it is done

    def _outcomes(self) -> list[Outcome]:
        shared = self._payloads if isinstance(self._payloads, bytes) else None
        return [
            Outcome(_names(keys), shared if shared is not None else self._payloads[row], settlement)  # type: ignore[arg-type]
            for row, (keys, settlement) in enumerate(zip(self._keys, self._column(), strict=True))
        ]

    def _states(self) -> list[State]:
        by_number = {int(state.value): state for state in State}
        return [
            by_number[settlement[0][_STATE_AT]] if settlement[0] is not None else state_of(settlement)
            for settlement in self._column()
        ]

    def _completed(self) -> int:
        return sum(1 for row in self._column() if row[0] is not None and row[0][_STATE_AT] == _COMPLETED)

    def settled(self) -> int:
        """How many have settled so far."""
        return len(self._keys) - self._left


class ThreadedBatch(Batch):
    """The batch of a threaded client: its methods wait until all have settled, `timeout` seconds at most."""

    __slots__ = ()

    def _all(self, timeout: float | None) -> None:
        if not self.wait(timeout):
            raise TimeoutError(f"{self._left} of {len(self)} operations have not settled within {timeout:g} s")

    def outcomes(self, timeout: float | None = None) -> list[Outcome]:
        """The outcomes, in input order; raises TimeoutError."""
        self._all(timeout)
        return self._outcomes()

    def states(self, timeout: float | None = None) -> list[State]:
        """The states alone, in input order; raises TimeoutError."""
        self._all(timeout)
        return self._states()

    def values(self, timeout: float | None = None) -> list[bytes]:
        """The values of the events that settled them, in input order; raises TimeoutError."""
        self._all(timeout)
        return [settlement[1] for settlement in self._column()]

    def completed(self, timeout: float | None = None) -> int:
        """How many completed; raises TimeoutError."""
        self._all(timeout)
        return self._completed()

    def __await__(self) -> Generator[Any, None, list[Outcome]]:
        yield from self._wait_in_loop()
        return self._outcomes()


def _names(keys: Key | tuple[Key, ...]) -> tuple[Key, ...]:
    return keys if isinstance(keys, tuple) else (keys,)


def _payload_column(payloads: Sequence[Payload] | Payload, rows: int, what: str) -> list[bytes] | bytes:
    if isinstance(payloads, (str, bytes, bytearray, memoryview)):
        return payload_bytes(payloads, what)
    given = column(what, payloads, rows)
    if all(value.__class__ is bytes for value in given) and max(map(len, given), default=0) <= PAYLOAD_SIZE_MAX:
        return given
    return each(f"{what}s", given, lambda payload: payload_bytes(payload, what))


def register_many(
    surface: Surface[OperationT],
    batch: type[Batch],
    keys: Sequence[Keys],
    timeout: Timeout | Sequence[Timeout],
    payloads: Sequence[Payload] | Payload,
    when: When,
) -> Batch:
    """See `Purgatory.register_many`."""
    registered_ns = surface._link.now_ns()
    names = column("key", keys)
    rows = len(names)
    payload_column = _payload_column(payloads, rows, "payload")
    if isinstance(timeout, Sequence) and not isinstance(timeout, (str, bytes)):
        durations = each("timeout", column("timeout", timeout, rows), timeout_ns)
    else:
        durations = [timeout_ns(timeout)] * rows  # type: ignore[arg-type]
    if when is ANY and all(name.__class__ is str or name.__class__ is bytes for name in names):
        needed_and_count = [(1, 1)] * rows
        tails = [EVENT_PREFIX[len(key)] + key for key in plain_keys(names)]
    else:
        watches = each("keys", names, lambda one: watch(one, when))
        names = [one.names for one in watches]
        needed_and_count = [(one.needed, len(one.names)) for one in watches]
        tails = [one.encoded for one in watches]

    link = surface._link
    made = batch(link, names, payload_column, registered_ns, durations)
    try:
        _issue_registrations(surface, made, tails, payload_column, durations, needed_and_count, when, registered_ns)
    except BaseException:  # the caller gets no handle of what has been registered
        with link.lock:
            orphans = [number for number in made.commands() if link.protocol.waiting.get(number) is made]
        link.abandon(orphans)
        raise
    return made


def _issue_registrations(
    surface: Surface[OperationT],
    made: Batch,
    tails: Sequence[bytes],
    payload_column: Sequence[bytes] | bytes,
    durations: Sequence[int],
    needed_and_count: Sequence[tuple[int, int]],
    when: When,
    registered_ns: int,
) -> None:
    """Issue a registration for each row, part by part; every part has the mark of the call."""
    rows = len(tails)
    shared = payload_column if isinstance(payload_column, bytes) else None
    condition, total = int(when.kind), when.total
    link, protocol = surface._link, surface._protocol
    with link.lock:
        if link.closed:
            link.refuse_closed()
        maker, sequence, issued = protocol.incarnation, protocol.newest(), protocol.issued
    for start in range(0, rows, CHUNK):
        end = min(rows, start + CHUNK)
        with link.lock:
            while True:
                link.ready_locked()
                room = min(end - start, protocol.room)
                same = protocol.incarnation == maker  # else the mark means nothing to the daemon
                part = range(start, start + room)
                heads: dict[tuple[int, int, int, tuple[int, int]], bytes] = {}
                commands: list[bytes] = []
                index = surface._indices[surface.name]
                for row in part:
                    tail = tails[row]
                    payload = shared if shared is not None else payload_column[row]
                    kind = (len(tail), len(payload), durations[row], needed_and_count[row])  # type: ignore[arg-type]
                    head = heads.get(kind)
                    if head is None:
                        needed, count = needed_and_count[row]
                        size = len(payload)  # type: ignore[arg-type]
                        length = REGISTER_SIZE + len(tail) + size
                        head = heads[kind] = pack_register(
                            _REGISTER,
                            index,
                            0 if same else RegisterFlag.MARK_OF_OTHER_ARENA,
                            length,
                            condition,
                            needed,
                            count,
                            0,
                            size,
                            registered_ns,
                            durations[row],
                            sequence,
                            issued if same else 0,
                            total,
                        )
                    commands.append(head + tail + payload)  # type: ignore[operator]
                first = protocol.issue_all(commands)
                made.add_part(first, start, room)
                protocol.waiting.update(dict.fromkeys(range(first, first + room), made))
                if link.idle:
                    link.wake()
                start += room
                if start >= end:
                    break


def fire_many(
    surface: Surface[OperationT],
    keys: Sequence[Key],
    values: Sequence[Payload] | Payload,
    amounts: Sequence[int] | int,
) -> None:
    """See `Purgatory.fire_many`."""
    encoded = plain_keys(column("key", keys))
    rows = len(encoded)
    value_column = _payload_column(values, rows, "value")
    shared = value_column if isinstance(value_column, bytes) else None
    if isinstance(amounts, Sequence) and not isinstance(amounts, (str, bytes)):
        read = partial(unsigned, "amount", largest=U64_MAX, smallest=1)
        amount_column = each("amounts", column("amount", amounts, rows), read)
    else:
        amount_column = [unsigned("amount", amounts, U64_MAX, 1)] * rows
    heads: dict[tuple[int, int, int], bytes] = {}
    index = surface._indices[surface.name]
    commands: list[bytes] = []
    for row, key in enumerate(encoded):
        value = shared if shared is not None else value_column[row]
        kind = (len(key), len(value), amount_column[row])  # type: ignore[arg-type]
        head = heads.get(kind)
        if head is None:
            length = KEY_COMMAND_SIZE + kind[0] + kind[1]
            head = heads[kind] = pack_key(_FIRE, index, 0, kind[0], length, kind[2], kind[1], 0)
        commands.append(head + key + value)  # type: ignore[operator]
    link = surface._link
    protocol = link.protocol
    start = 0
    while start < rows:
        with link.lock:
            try:
                link.ready_locked()
            except TimerdError as error:
                error.add_note(f"{start} of {rows} events had been sent")
                raise
            room = min(rows - start, CHUNK, protocol.room)
            protocol.issue_all(commands[start : start + room])
            if link.idle:
                link.wake()
        start += room
