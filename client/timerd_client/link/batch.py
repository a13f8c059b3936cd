"""Columns in, columns out: `register_many` and `fire_many` need no object and no lock for each operation.

hot/ encodes commands and takes outcomes, row by row. Columns are sent in parts of up to CHUNK rows, as far as the
window has room. Each part waits for room like a single call. Rows with ids or an orphans policy are encoded one by one.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeVar, overload

from timerd_client.arguments import (
    U64_MAX,
    column,
    each,
    if_exists_of,
    mark_of,
    payload_bytes,
    timeout_ns,
    unsigned,
    within,
)
from timerd_client.declared import BATCH, REGISTRATION, BatchArguments
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
from timerd_client.hot.commands import Head, deadline_after
from timerd_client.mark import Mark
from timerd_client.one_process import OneProcess, public_name
from timerd_client.outcome import OF_DAEMON, Outcome, State, state_of
from timerd_client.scope import current_scope, goes_on_from
from timerd_client.types import IfExists, Key, Keys, Patience, Payload, Timeout
from timerd_client.waiter import RawSettlement, local
from timerd_shm.declare.errors import TimerdError, TimerdUnavailableError
from timerd_shm.declare.limits import CLOSE_TIMEOUT_S
from timerd_shm.declare.wire import RegisterFlag
from timerd_wire.refusals import Subject

from .link import Link
from .promise import Promise
from .registration import Registration, registration
from .surface import Surface
from .withdrawals import abandon, end_wait, withdraw

CHUNK = 4_096
_COLUMNS: Final = {"timeout", "payloads", "when", "since", "if_exists"}  # rows with another argument are encoded singly
_singly: Final = itemgetter(*(name for name in BATCH.defaults if name not in _COLUMNS))
_NOT_SINGLY: Final = _singly(BATCH.defaults)
_COMPLETED = int(State.COMPLETED.value)
_CANCELLED = int(State.CANCELLED.value)


class Row:
    """One operation of a batch: `batch[3]`. Callbacks and `await` are for the whole batch."""

    __slots__ = ("_batch", "index")

    def __init__(self, batch: Batch, index: int) -> None:
        self._batch = batch
        self.index = index

    @property
    def keys(self) -> tuple[Key, ...]:
        """The watch keys, as they were given."""
        return _names(self._batch._keys[self.index])

    @property
    def payload(self) -> bytes:
        """The payload of the registration."""
        return self._batch._payload(self.index)

    @property
    def id(self) -> Key | None:
        """The id that was given, or None."""
        ids = self._batch._ids
        return None if ids is None else ids.ids[self.index]

    def done(self) -> bool:
        """Whether the operation has settled."""
        return self._taken() is not None

    def outcome(self) -> Outcome | None:
        """The outcome if it has settled, else None."""
        settlement = self._taken()
        return None if settlement is None else Outcome(self.keys, self.payload, settlement)

    def _taken(self) -> RawSettlement | None:
        """The settlement, for a caller: this counts as a look at the outcome."""
        if self._batch.settlement(self.index) is None:
            return None
        self._batch._unseen.discard(self.index)
        return self._batch.settlement(self.index)  # read again: before the look, close() may have revoked it

    def cancel(self) -> None:
        """Cancel the operation, unless it has settled. Returns at once."""
        self._batch._cancel([self.index])

    def __repr__(self) -> str:
        settlement = self._batch.settlement(self.index)
        return f"<Row {self.index} {'PENDING' if settlement is None else state_of(settlement).name}>"


class Named(NamedTuple):
    """The ids of a batch, by row."""

    ids: Sequence[Key | None]
    purgatory: str
    if_exists: IfExists


class Batch(OneProcess, Rows, Promise):
    """Many operations that were registered at once. All results are columns in the order of the registrations.

    A batch is a sequence of `Row`. It belongs to the process that has registered it, any thread may use it, and it
    cannot be pickled. Dropping it leaves the operations pending. A limited event that completes one of them after that
    goes to another operation.

    Batch derives from Rows, because settled rows notify the batch: two objects would refer to each other.
    """

    __slots__ = ("_durations_ns", "_ids", "_keys", "_payloads", "_registered_ns")
    IN_PLACE = "give the outcomes, or register with ids= and give the ids"
    _link: Link

    def __init__(
        self,
        link: Link,
        keys: Sequence[Key | tuple[Key, ...]],
        payloads: Sequence[bytes] | bytes,
        registered_ns: int,
        durations_ns: Sequence[int] | int,
        ids: Named | None = None,
    ) -> None:
        super().__init__(link, len(keys))
        self._ids = ids
        self._keys = keys
        self._payloads = payloads
        self._registered_ns = registered_ns
        self._durations_ns = durations_ns

    def subject(self, command: int) -> Subject:
        row = self.row_of(command)
        if row < 0:
            return Subject()
        if self._ids is None:
            return Subject(payload_size=len(self._payload(row)))
        ids, purgatory, if_exists = self._ids
        return Subject(ids[row], purgatory, len(self._payload(row)), keeps=if_exists == "keep")

    def due_ns(self, command: int) -> int:
        """The deadline of one operation of the batch, for the protocol."""
        durations_ns, row = self._durations_ns, self.row_of(command)
        assert row >= 0, f"command {command} is in none of the parts"
        return deadline_after(self._registered_ns, durations_ns if isinstance(durations_ns, int) else durations_ns[row])

    def _payload(self, row: int) -> bytes:
        return self._payloads if isinstance(self._payloads, bytes) else self._payloads[row]

    def _abandon(self, error: TimerdError) -> None:
        self.settle_rest(local(error))

    def __len__(self) -> int:
        return len(self._keys)

    @overload
    def __getitem__(self, at: int) -> Row: ...
    @overload
    def __getitem__(self, at: slice) -> list[Row]: ...
    def __getitem__(self, at: int | slice) -> Row | list[Row]:
        try:
            rows = range(len(self))[at]
        except IndexError:
            raise IndexError(f"no row {at} in a batch of {len(self)}") from None
        return Row(self, rows) if isinstance(rows, int) else [Row(self, row) for row in rows]

    def __iter__(self) -> Iterator[Row]:
        return (Row(self, row) for row in range(len(self)))

    def __repr__(self) -> str:
        return f"<{public_name(self)} {self.settled()} of {len(self)} settled>"

    def last_command(self) -> int:
        """The largest command number of the registrations; 0 = the batch is empty."""
        return max(self.commands(), default=0)

    def cancel(self) -> None:
        """Cancel all pending operations of the batch. Returns at once. Raises ClosedError."""
        self._cancel(range(len(self)))

    def refused(self) -> list[Row]:
        """The rows that the daemon has refused so far, also KEPT rows. After `register_many_wait` none is added."""
        states = self.states_in_records()
        return [row for row in self if not states[row.index] and _is_refused(row)]

    def _cancel(self, rows: Sequence[int]) -> None:
        """Cancel the pending operations among these rows."""
        numbers = list(self.commands())
        withdraw(self._link, [numbers[row] for row in rows if row < len(numbers) and self.settlement(row) is None])

    _scope = staticmethod(current_scope)

    def _end_wait(self) -> bool:
        return end_wait(self._link, self._pending_commands())

    def _give_back(self) -> None:
        abandon(self._link, self._pending_commands())

    def _pending_commands(self) -> list[int]:
        pending = self._link.protocol.ledger.pending
        return [number for number in self.commands() if pending.get(number) is self]

    def _column(self) -> list[RawSettlement]:
        self._unseen.clear()
        return list(map(self.settlement, range(len(self))))  # type: ignore[arg-type]  # all are set when it is done

    def _outcomes(self) -> list[Outcome]:
        return [
            Outcome(_names(keys), self._payload(row), settlement)
            for row, (keys, settlement) in enumerate(zip(self._keys, self._column(), strict=True))
        ]

    def _states(self) -> list[State]:
        self._unseen.clear()
        states = self.states_in_records()
        return [OF_DAEMON.get(state) or self._state_of(row) for row, state in enumerate(states)]

    def _state_of(self, row: int) -> State:
        settlement = self.settlement(row)
        assert settlement is not None
        return state_of(settlement)

    def _values(self) -> list[bytes]:
        self._unseen.clear()
        return self.values_in_records()

    def _completed(self) -> int:
        self._unseen.clear()
        return self.states_in_records().count(_COMPLETED)

    def _cancelled(self) -> int:
        return self.states_in_records().count(_CANCELLED)

    @property
    def registered_ns(self) -> int:
        """When register_many() was called (CLOCK_MONOTONIC, ns). All deadlines count from this time."""
        return self._registered_ns

    def settled(self) -> int:
        """How many operations have settled so far."""
        return len(self._keys) - self.left

    # threaded/ and aio/ override these calls without docstrings: help() and editors show the docstrings below.

    def outcomes(self, *given: Any, **named: Any) -> object:
        """The outcomes, in input order; raises TimeoutError."""

    def states(self, *given: Any, **named: Any) -> object:
        """The states alone, in input order; raises TimeoutError."""

    def values(self, *given: Any, **named: Any) -> object:
        """The values of the events that settled the operations, in input order; raises TimeoutError."""

    def completed(self, *given: Any, **named: Any) -> object:
        """How many operations completed; raises TimeoutError."""

    def cancel_wait(self, *given: Any, **named: Any) -> object:
        """Cancel all pending operations, and wait for their outcomes. Returns how many of the batch were cancelled.

        Raises TimerdUnavailableError after `timeout` seconds.
        """


class ThreadedBatch(Batch):
    """The batch of a threaded client. Its methods wait until all operations have settled, `timeout` seconds at most."""

    __slots__ = ()

    def _all(self, timeout: Patience) -> None:
        if not self._wait(timeout):
            left, held_up = f"{self.left} of {len(self)} operations", self._link.connection.held_up()
            raise TimeoutError(f"{left} have not settled {within(timeout)}{held_up}")

    def outcomes(self, timeout: Patience = None) -> list[Outcome]:
        self._all(timeout)
        return self._outcomes()

    def states(self, timeout: Patience = None) -> list[State]:
        self._all(timeout)
        return self._states()

    def values(self, timeout: Patience = None) -> list[bytes]:
        self._all(timeout)
        return self._values()

    def completed(self, timeout: Patience = None) -> int:
        self._all(timeout)
        return self._completed()

    def cancel_wait(self, *, timeout: Patience = CLOSE_TIMEOUT_S) -> int:
        self.cancel()
        if not self._wait(timeout):
            raise self._link.connection.unavailable(timeout)
        return self._cancelled()

    def __await__(self) -> Generator[Any, None, list[Outcome]]:
        yield from self._wait_in_loop()
        return self._outcomes()


BatchT = TypeVar("BatchT", bound=Batch)


def _is_refused(row: Row) -> bool:
    settlement = row._batch.settlement(row.index)
    return settlement is not None and not isinstance(settlement[3], TimerdUnavailableError)


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
    surface: Surface[Any, Any], batch: type[BatchT], keys: Sequence[Keys], call: str, given: BatchArguments
) -> BatchT:
    """See `Purgatory.register_many`. `call` is the name of the call that got the arguments."""
    arguments = BATCH.of(call, given)
    link = surface._live()
    registered_ns = link.now_ns()
    names = column("key", keys)
    rows = len(names)
    timeout, when, since = arguments["timeout"], arguments["when"], arguments["since"]
    payload_column = _payload_column(arguments["payloads"], rows, "payload")
    durations_ns: Sequence[int] | int
    if isinstance(timeout, Sequence) and not isinstance(timeout, (str, bytes)):
        durations_ns = durations_of(column("timeout", timeout, rows))
    else:
        durations_ns = timeout_ns(timeout)  # type: ignore[arg-type]
    if since is not None:
        goes_on_from(mark_of(since))
    id_column = arguments["ids"] = None if arguments["ids"] is None else column("id", arguments["ids"], rows)
    if_exists_of(arguments["if_exists"], None if id_column is None else "given")
    singly = _singly(arguments) != _NOT_SINGLY
    if singly:
        timeouts = timeout if isinstance(timeout, Sequence) else [timeout] * rows
        asked = _asked(surface, names, call, arguments, timeouts, payload_column)
        watched: Sequence[Any] = [one.names for one in asked]
    else:
        watches = Watches(names, when)
        watched = watches.names
    named = None if id_column is None else Named(id_column, surface._name, arguments["if_exists"])
    link.sender.check_room(rows)
    made = batch(link, watched, payload_column, registered_ns, durations_ns, named)
    try:
        if singly:
            _issue_singly(surface, made, asked, registered_ns, arguments)
        else:
            _issue(surface, made, watches, registered_ns, since)
    except BaseException as error:  # the caller gets no handle, so its operations are withdrawn
        if isinstance(error, TimerdError):
            error.in_doubt = bool(made.last_command())
        with link.lock:
            issued = [number for number in made.commands() if link.protocol.ledger.pending.get(number) is made]
        abandon(link, issued)
        raise
    return made


def _asked(
    surface: Surface[Any, Any],
    keys: Sequence[Keys],
    call: str,
    arguments: BatchArguments,
    timeouts: Sequence[Timeout],
    payloads: Sequence[bytes] | bytes,
) -> list[Registration]:
    """Check and encode all rows, one by one. Returns their registrations."""
    group = surface._protocol.session.identity.group
    ids, if_exists = arguments["ids"], arguments["if_exists"]
    shared: Any = {name: value for name, value in arguments.items() if name in REGISTRATION.defaults}
    given = REGISTRATION.of(call, shared)
    given["since"] = None  # the mark was checked before, and goes into each command later

    def row(at: int) -> Registration:
        id = None if ids is None else ids[at]
        given["timeout"], given["id"] = timeouts[at], id
        given["payload"] = payloads if isinstance(payloads, bytes) else payloads[at]
        given["if_exists"] = "error" if id is None else if_exists
        return registration(keys[at], given, group)

    return each("keys", range(len(keys)), row)


def _issue_singly(
    surface: Surface[Any, Any], made: Batch, asked: list[Registration], registered_ns: int, arguments: BatchArguments
) -> None:
    """Issue rows that have ids or an orphans policy."""
    link, ledger, since = surface._link, surface._ledger, arguments["since"]
    with link.lock:
        link.check_open()
        maker, mark = ledger.incarnation, since or link.protocol.session.mark()
    for row, one in enumerate(asked):
        with link.lock:
            link.sender.ready_locked()
            flags, sequence, command = _mark_on_wire(ledger, mark, maker, since)
            number = ledger.issue(one.command(surface._indices[surface._name], flags, registered_ns, sequence, command))
            made.add_part(number, row, 1)
            ledger.pending[number] = made
            if one.id_hash:
                holder = ledger.ids.find(ledger.pending, surface._name, one.id_hash)
                if holder is None or arguments["if_exists"] == "replace":  # otherwise the daemon will refuse it
                    ledger.ids.add(ledger.pending, surface._name, one.id_hash, number)
            link.wake_if_due(ledger.issued)


def _mark_on_wire(ledger: Any, mark: Mark, maker: bytes, since: Mark | None) -> tuple[int, int, int]:
    """(flags, sequence, command) of a part that is issued now, for the mark that was read at the call."""
    flags, sequence, command = mark.on_wire(ledger.arena, ledger.incarnation)
    if since is None and ledger.incarnation != maker:  # the daemon no longer knows the mark of the call
        return int(RegisterFlag.MARK_OF_OTHER_ARENA), sequence, 0
    return flags, sequence, command


def _issue(
    surface: Surface[Any, Any],
    made: Batch,
    watches: Watches,
    registered_ns: int,
    since: Mark | None,
) -> None:
    """Issue a registration for each row, part by part. All parts have the given mark, or the mark of the call."""
    rows, start = len(made), 0
    link, ledger, session = surface._link, surface._ledger, surface._link.protocol.session
    with link.lock:
        link.check_open()
        maker, mark = ledger.incarnation, since or session.mark()
    while start < rows:
        with link.lock:
            link.sender.ready_locked()
            room = min(rows - start, CHUNK, link.protocol.outgoing.room)
            flags, sequence, command = _mark_on_wire(ledger, mark, maker, since)
            head = Head(
                surface._indices[surface._name],
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
    surface: Surface[Any, Any],
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
    link = surface._live()
    ledger = surface._ledger
    link.sender.check_room(rows)
    start = 0
    while start < rows:
        with link.lock:
            try:
                link.sender.ready_locked()
            except TimerdError as error:
                error.add_note(f"{start} of {rows} events had been sent")
                error.in_doubt = start > 0
                raise
            room = min(rows - start, CHUNK, link.protocol.outgoing.room)
            index = surface._indices[surface._name]
            issue_events(ledger, index, encoded, value_column, amount_column, start, room)
            link.wake_if_due(ledger.issued)
        start += room
