"""Columns in, columns out: `register_many` and `fire_many` need no object and no lock for each operation.

hot/ encodes commands and takes outcomes, row by row. A column that does not fit into the window is sent in parts of
CHUNK rows. Each part waits for room as a single call does.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from timerd_client.arguments import U64_MAX, column, each, mark_of, payload_bytes, timeout_ns, unsigned
from timerd_client.conditions import When
from timerd_client.hot import (
    Rows,
    Watches,
    amounts_of,
    are_bodies,
    durations_of,
    issue_events,
    issue_registrations,
    plain_keys,
)
from timerd_client.hot.commands import deadline_after
from timerd_client.hot.python import Head
from timerd_client.mark import Mark
from timerd_client.outcome import Outcome, State, state_of
from timerd_client.types import Key, Keys, Payload, Timeout
from timerd_client.waiter import RawSettlement, local
from timerd_shm.declare.errors import TimerdError
from timerd_shm.declare.wire import RegisterFlag
from timerd_wire.refusals import Subject

from .link import Link
from .promise import Promise
from .surface import OperationT, Surface

CHUNK = 4_096
_STATES = {int(state.value): state for state in State}
_COMPLETED = int(State.COMPLETED.value)


class Batch(Rows, Promise):
    """Many operations that were registered at once. All columns that it gives have the order of the registrations.

    It derives from Rows: settled rows notify the batch, and two objects would refer to each other for that.
    """

    __slots__ = ("_durations_ns", "_keys", "_payloads", "_registered_ns")

    def __init__(
        self,
        link: Link,
        keys: Sequence[Key | tuple[Key, ...]],
        payloads: Sequence[bytes] | bytes,
        registered_ns: int,
        durations_ns: Sequence[int] | int,
    ) -> None:
        super().__init__(link, len(keys))
        self._keys = keys
        self._payloads = payloads
        self._registered_ns = registered_ns
        self._durations_ns = durations_ns

    def subject(self, command: int) -> Subject:
        row = self.row_of(command)
        return Subject(payload_size=len(self._payload(row)) if row >= 0 else 0)

    def due_ns(self, command: int) -> int:
        """The deadline of one of its operations, for the protocol."""
        durations_ns, row = self._durations_ns, self.row_of(command)
        assert row >= 0, f"command {command} is in none of the parts"
        return deadline_after(self._registered_ns, durations_ns if isinstance(durations_ns, int) else durations_ns[row])

    def _payload(self, row: int) -> bytes:
        return self._payloads if isinstance(self._payloads, bytes) else self._payloads[row]

    def _abandon(self, error: TimerdError) -> None:
        self.settle_rest(local(error))

    def __len__(self) -> int:
        return len(self._keys)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.settled()} of {len(self)} settled>"

    def _column(self) -> list[RawSettlement]:
        return list(map(self.settlement, range(len(self))))  # type: ignore[arg-type]  # all are set when it is done

    def _outcomes(self) -> list[Outcome]:
        return [
            Outcome(_names(keys), self._payload(row), settlement)
            for row, (keys, settlement) in enumerate(zip(self._keys, self._column(), strict=True))
        ]

    def _states(self) -> list[State]:
        states = self.states_in_records()
        return [_STATES[state] if state else self._state_of(row) for row, state in enumerate(states)]

    def _state_of(self, row: int) -> State:
        settlement = self.settlement(row)
        assert settlement is not None
        return state_of(settlement)

    def _completed(self) -> int:
        return self.states_in_records().count(_COMPLETED)

    @property
    def registered_ns(self) -> int:
        """When register_many() was called (CLOCK_MONOTONIC, ns). All deadlines count from then."""
        return self._registered_ns

    def settled(self) -> int:
        """How many have settled so far."""
        return len(self._keys) - self.left


class ThreadedBatch(Batch):
    """The batch of a threaded client. Its methods wait until all operations have settled, `timeout` seconds at most."""

    __slots__ = ()

    def _all(self, timeout: float | None) -> None:
        if not self.wait(timeout):
            raise TimeoutError(f"{self.left} of {len(self)} operations have not settled within {timeout:g} s")

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
        return self.values_in_records()

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
    if are_bodies(given):
        return given
    return each(f"{what}s", given, lambda payload: payload_bytes(payload, what))


def register_many(
    surface: Surface[OperationT],
    batch: type[Batch],
    keys: Sequence[Keys],
    timeout: Timeout | Sequence[Timeout],
    payloads: Sequence[Payload] | Payload,
    when: When,
    since: Mark | None,
) -> Batch:
    """See `Purgatory.register_many`."""
    registered_ns = surface._link.now_ns()
    names = column("key", keys)
    rows = len(names)
    payload_column = _payload_column(payloads, rows, "payload")
    durations_ns: Sequence[int] | int
    if isinstance(timeout, Sequence) and not isinstance(timeout, (str, bytes)):
        durations_ns = durations_of(column("timeout", timeout, rows))
    else:
        durations_ns = timeout_ns(timeout)  # type: ignore[arg-type]
    watches = Watches(names, when)
    if since is not None:
        mark_of(since)
    link = surface._link
    made = batch(link, watches.names, payload_column, registered_ns, durations_ns)
    try:
        _issue(surface, made, watches, registered_ns, since)
    except BaseException:  # the caller gets no handle, so what was registered is withdrawn
        with link.lock:
            orphans = [number for number in made.commands() if link.protocol.ledger.pending.get(number) is made]
        link.abandon(orphans)
        raise
    return made


def _issue(
    surface: Surface[OperationT],
    made: Batch,
    watches: Watches,
    registered_ns: int,
    since: Mark | None,
) -> None:
    """Issue a registration for each row, part by part. All parts have the given mark, or the mark of the call."""
    rows, start = len(made), 0
    link, ledger, session = surface._link, surface._ledger, surface._link.protocol.session
    with link.lock:
        if link.sealed:
            link.refuse_closed()
        maker, mark = ledger.incarnation, since or session.mark()
    while start < rows:
        with link.lock:
            link.ready_locked()
            room = min(rows - start, CHUNK, link.protocol.outgoing.room)
            flags, sequence, command = mark.on_wire(ledger.arena, ledger.incarnation)
            if since is None and ledger.incarnation != maker:  # the daemon does not know the mark of the call any more
                flags, command = RegisterFlag.MARK_OF_OTHER_ARENA, 0
            head = Head(
                surface._indices[surface.name],
                flags,
                registered_ns,
                sequence,
                command,
            )
            first = issue_registrations(ledger, head, watches, made._payloads, made._durations_ns, start, room)
            made.add_part(first, start, room)
            ledger.pending.add_all(first, room, made)
            link.wake_if_due(ledger.issued)
        start += room


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
    amount_column: Sequence[int] | int
    if isinstance(amounts, Sequence) and not isinstance(amounts, (str, bytes)):
        amount_column = amounts_of(column("amount", amounts, rows))
    else:
        amount_column = unsigned("amount", amounts, U64_MAX, 1)
    link = surface._link
    ledger = surface._ledger
    start = 0
    while start < rows:
        with link.lock:
            try:
                link.ready_locked()
            except TimerdError as error:
                error.add_note(f"{start} of {rows} events had been sent")
                raise
            room = min(rows - start, CHUNK, link.protocol.outgoing.room)
            index = surface._indices[surface.name]
            issue_events(ledger, index, encoded, value_column, amount_column, start, room)
            link.wake_if_due(ledger.issued)
        start += room
