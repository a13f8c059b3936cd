"""The plain operations of a journal, audited by numpy: no Python object is made for their rows.

An operation is plain if it has one key and no id, waits for a fire, and settles by a fire, by its deadline, or by a
cancel of its owner. Also, all events on its key must be fires without a limit. Other operations do not affect a plain
operation. So the check of a plain operation needs only two events of its key, the event before the registration and the
event after it. An as-of join finds both in the sorted events of all keys.

`accepted` accepts a row only if an Audit (timerd_client/audit/audit.py) would find nothing wrong with it. An Audit
judges all other rows, and words the findings. So each condition here is a condition of the Audit, or stricter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from timerd_shm.declare.journal import ROW_SIZE, RowKind, is_unused
from timerd_shm.declare.limits import CALL_AHEAD_NS_MAX, PAYLOAD_SIZE_MAX
from timerd_shm.declare.states import ClientState, Condition, EventFlag, EventKind, KeyKind, Orphans, Outcome
from timerd_shm.declare.wire import CommandFlag, CommandKind, RegisterFlag
from timerd_spark.source.decode import dtype_of

if TYPE_CHECKING:
    import pyarrow

PLAIN_REGISTER_FLAGS: Final = int(
    RegisterFlag.WANTS_ANSWER | RegisterFlag.MARK_BY_SEQUENCE | RegisterFlag.NO_MARK | RegisterFlag.ORPHANS_GIVEN
)
REGISTRATION_SIZE: Final = 3 * ROW_SIZE  # of a registration with one key
NOBODY: Final = -1
_LIVING: Final = (ClientState.LIVE, ClientState.SILENT)
_NEVER: Final = np.iinfo(np.int64).max

Mask: TypeAlias = np.ndarray  # of bools
Numbers: TypeAlias = np.ndarray  # of 64 bits


def accepted(part: pyarrow.Table) -> Mask:
    """The rows of an arena that need no Audit. `part` has packed rows, in order, and all rows of their keys."""
    found = np.zeros(part.num_rows, bool)
    rows = Rows(part)
    operations, events = Operations(rows), Events(rows)
    if rows.has_gap or not commands_rise(rows, operations, events):
        return found
    right = operations.right(events)
    found[operations.places[right]] = True
    for of, places in ((operations.outcome_of, operations.outcomes), (operations.action_of, operations.actions)):
        found[places[of[right & (of >= 0)]]] = True
    needed = np.isin(events.watches, np.union1d(events.watches[~events.fine], operations.watches[~right]))
    needed |= np.isin(events.purgatories, operations.purgatories_of_others)
    found[events.places[events.fine & ~needed]] = True
    return found


class Rows:
    """The rows of a part. A *place* is the number of a row in the part."""

    def __init__(self, part: pyarrow.Table) -> None:
        self.part = part
        self.kinds = part["kind"].to_numpy()
        self.purgatories, self.keys, self.owners = (self._codes(name) for name in ("purgatory", "key", "owner"))
        self.is_named = (self._lengths("purgatory") > 0) & (self._lengths("key") > 0)
        self.is_grouped, self.has_id = (~_nulls(part, name) for name in ("group", "id"))
        self.watches = self.purgatories * (int(self.keys.max(initial=0)) + 1) + self.keys
        self.has_gap = bool((self.kinds == RowKind.GAP).any())
        self._marks = np.flatnonzero(np.isin(self.kinds, [RowKind.TURN, RowKind.SEGMENT, RowKind.END]))
        self._load_turns()
        self._load_clients()

    def _codes(self, name: str) -> Numbers:
        """A number for each text; 0 for null. (A client may have an empty name, which is not null.)"""
        import pyarrow.compute as pc

        encoded = self.part[name].combine_chunks().dictionary_encode()
        return np.asarray(pc.fill_null(encoded.indices, -1)).astype(np.int64) + 1

    def _lengths(self, name: str) -> Numbers:
        """The length of each text; 0 for null."""
        import pyarrow.compute as pc

        return np.asarray(pc.fill_null(pc.binary_length(self.part[name].combine_chunks()), 0))

    def places(self, *kinds: RowKind) -> Numbers:
        """The places of the rows of these kinds."""
        return np.flatnonzero(np.isin(self.kinds, [int(kind) for kind in kinds]))

    def lines(self, places: Numbers, size: int = ROW_SIZE) -> np.ndarray:
        """The bytes of these rows, all of the same size."""
        import pyarrow as pa

        return lines_of(self.part["bytes"].combine_chunks().take(pa.array(places)), size)

    def heads(self, places: Numbers, at: int) -> np.ndarray:
        """Row number `at` within each of these registrations with several keys."""
        import pyarrow as pa
        import pyarrow.compute as pc

        data = self.part["bytes"].combine_chunks().take(pa.array(places))
        return lines_of(pc.binary_slice(data, at * ROW_SIZE, (at + 1) * ROW_SIZE))

    def records(self, kind: RowKind, places: Numbers) -> np.ndarray:
        """These rows as an array of numpy's records."""
        return as_records(kind, self.lines(places))

    # turns ------------------------------------------------------------------------------------------------------------

    def _load_turns(self) -> None:
        marks = self._marks
        is_turn = self.kinds[marks] == RowKind.TURN
        turns = self.records(RowKind.TURN, marks[is_turn])
        self._now, self._effective = np.full(len(marks), -1), np.full(len(marks), -1)
        self._now[is_turn], self._effective[is_turn] = turns["now_ns"], turns["effective_ns"]

    def turns_of(self, places: Numbers) -> tuple[Numbers, Numbers]:
        """(now_ns, effective_ns) of the turns of these rows; both are -1 for a row before the first turn."""
        at = np.searchsorted(self._marks, places) - 1
        return taken(self._now, at, -1), taken(self._effective, at, -1)

    # clients ----------------------------------------------------------------------------------------------------------

    def _load_clients(self) -> None:
        places = self.places(RowKind.CLIENT)
        rows = self.records(RowKind.CLIENT, places)
        self._names, of = np.unique(clients_of(rows), return_inverse=True)
        count, is_living = len(self._names), np.isin(rows["state"], _LIVING)
        self._begun, self._died = np.full(count, _NEVER), np.full(count, _NEVER)
        np.minimum.at(self._begun, of, places)
        np.minimum.at(self._died, of[~is_living], places[~is_living])
        self._owners, self._orphans = np.zeros(count, np.int64), np.zeros(count, np.int64)
        self._owners[of], self._orphans[of] = self.owners[places], rows["orphans"]
        is_same = (self._owners[of] == self.owners[places]) & (self._orphans[of] == rows["orphans"])
        self._owners[of[~is_same]] = NOBODY  # the client has changed, so none of its operations is plain

    def client(self, clients: Numbers, places: Numbers) -> tuple[Mask, Numbers]:
        """Whether each row is its client's and lies within the client's life; and the clients' policies for orphans."""
        at = found_in(self._names, clients)
        owner = taken(self.owners, places, 0)
        is_its = (taken(self._owners, at, NOBODY) == owner) & (owner > 0)
        is_its &= (taken(self._begun, at, _NEVER) < places) & (places < taken(self._died, at, 0))
        return is_its, taken(self._orphans, at, 0)

    def never_died(self, clients: Numbers) -> Mask:
        """Whether each of these clients lives at the end of the part."""
        at = found_in(self._names, clients)
        lives: Mask = taken(self._died, at, 0) == _NEVER
        return lives


class Events:
    """The events of a part, and the watermarks at the journal's beginning. `fine`: an Audit would accept the event."""

    def __init__(self, rows: Rows) -> None:
        self.places = places = rows.places(RowKind.EVENT, RowKind.WATERMARK)
        self.watches, self.purgatories = rows.watches[places], rows.purgatories[places]
        e = rows.records(RowKind.EVENT, places)
        self.sequences, self.effective, self.clients = _signed(e["sequence"]), _signed(e["effective_ns"]), clients_of(e)
        self.commands, self.is_command = e["command"], rows.kinds[places] == RowKind.EVENT
        self.is_command &= (e["flags"] & int(EventFlag.REDELIVERED)) == 0
        is_its, _ = rows.client(self.clients, places)
        _, effective = rows.turns_of(places)
        self.fine: Mask = (
            (rows.kinds[places] == RowKind.EVENT)
            & (e["event_kind"] == EventKind.FIRE)
            & (e["flags"] & ~np.uint8(EventFlag.WANTS_ANSWER) == 0)
            & (e["limit"] == 0)
            & _is_clean(e)
            & (e["value_length"] <= PAYLOAD_SIZE_MAX)
            & (self.sequences > 0)
            & (self.effective == effective)
            & (effective >= 0)
            & rows.is_named[places]
            & is_its
        )
        # Sorted by key, then by place.
        self._order = np.argsort(self.watches, kind="stable")
        self._at = _joined(self.watches, places)[self._order]

    def beside(self, watches: Numbers, places: Numbers) -> tuple[Numbers, Numbers]:
        """For each row: the number of the last event on its key before it, and of the first after it; -1 if none."""
        behind = np.searchsorted(self._at, _joined(watches, places))
        found = []
        for at in (behind - 1, behind):
            event = taken(self._order, np.where(at < len(self._order), at, -1), -1)
            found.append(np.where(taken(self.watches, event, -1) == watches, event, -1))
        return found[0], found[1]

    def senders_until(self, events: Numbers) -> tuple[Numbers, Numbers]:
        """For each of these events: the lowest and the highest sender of the events on its key, up to this event.

        Both are -1 where the number of the event is -1.
        """
        names, codes = np.unique(self.clients, return_inverse=True)
        _, keys = np.unique(self.watches[self._order], return_inverse=True)
        most, code = len(names), codes[self._order]
        place_of = np.empty(len(self._order), np.int64)
        place_of[self._order] = np.arange(len(self._order))
        at = taken(place_of, events, -1)
        highest = np.maximum.accumulate(keys * most + code) - keys * most
        lowest = most - 1 - (np.maximum.accumulate(keys * most + most - 1 - code) - keys * most)
        return taken(names, taken(lowest, at, -1), -1), taken(names, taken(highest, at, -1), -1)


class Operations:
    """The operations of a part that have one key, with their outcomes and cancels."""

    def __init__(self, rows: Rows) -> None:
        import pyarrow.compute as pc

        self._rows = rows
        part = rows.part
        registered = rows.places(RowKind.REGISTER)
        has_one = _nulls(part, "names")[registered]
        self.purgatories_of_others = np.unique(rows.purgatories[registered[~has_one]])
        sizes = np.asarray(pc.binary_length(part["bytes"].combine_chunks()))[registered]
        self.places = places = registered[has_one & (sizes == REGISTRATION_SIZE)]
        self.places_of_others = registered[~has_one & (sizes > REGISTRATION_SIZE)]
        lines = rows.lines(places, REGISTRATION_SIZE)
        self.r, self.s, self._k = (
            as_records(kind, lines[:, at * ROW_SIZE : (at + 1) * ROW_SIZE])
            for at, kind in enumerate((RowKind.REGISTER, RowKind.REGISTERED, RowKind.KEY))
        )
        self.watches, self.clients, self.commands = rows.watches[places], clients_of(self.s), self.r["command"]
        self._numbers, self._first = np.unique(self.r["operation"], return_index=True)
        # Registrations with several keys count, too: if two registrations have the same number, neither is plain.
        every = np.asarray(pc.fill_null(part["operation"].combine_chunks(), -1))[registered].astype(np.int64)
        numbers, times = np.unique(every, return_counts=True)
        self.is_alone = ~np.isin(_signed(self.r["operation"]), numbers[times > 1])
        self.outcomes, self.actions = rows.places(RowKind.OUTCOME), rows.places(RowKind.ACTION)
        self._o = rows.records(RowKind.OUTCOME, self.outcomes)
        self.a = rows.records(RowKind.ACTION, self.actions)
        self.outcome_of, self.action_of = self._one(self._o["operation"]), self._one(self.a["operation"])
        self.steps = rows.places(RowKind.GROUP)
        self.g = rows.records(RowKind.GROUP, self.steps)
        groups = self.of(self.g["operation"])
        self.is_alone[groups[groups >= 0]] = False

    def of(self, operations: np.ndarray) -> Numbers:
        """The numbers of the registrations of these operations; -1 for an operation without a registration."""
        return taken(self._first, found_in(self._numbers, operations), -1)

    def _one(self, operations: np.ndarray) -> Numbers:
        """For each registration, the number of its row among rows with these operations; -1 if it has no row.

        If a registration has several such rows, it loses `is_alone`, so it is not plain.
        """
        of = self.of(operations)
        known = np.flatnonzero(of >= 0)
        self.is_alone[np.bincount(of[known], minlength=len(self.places)) > 1] = False
        found = np.full(len(self.places), -1, np.int64)
        found[of[known]] = known
        return found

    def right(self, events: Events) -> Mask:
        """Which operations are plain, and have settled rightly or are rightly pending."""
        deadline, effective = self.r["deadline_ns"], _signed(self.s["effective_ns"])
        before, after = events.beside(self.watches, self.places)
        fine = self._registered_rightly(effective) & self._nothing_since(events, before)
        fine &= ~np.isin(self.watches, events.watches[~events.fine])
        settled, acted, has_event = self.outcome_of >= 0, self.action_of >= 0, after >= 0
        o, a = taken(self._o, self.outcome_of), taken(self.a, self.action_of)
        outcome_place, action_place = taken(self.outcomes, self.outcome_of, -1), taken(self.actions, self.action_of, -1)
        event_place, sequence = taken(events.places, after, _NEVER), taken(events.sequences, after, -1)
        in_time = has_event & (taken(events.effective, after, 0).astype(np.uint64) < deadline)
        is_named = _signed(o["sequence"]) == sequence
        completed = (o["outcome"] == Outcome.COMPLETED) & in_time & is_named & (event_place < outcome_place)
        too_late = has_event & ~in_time & (_signed(o["sequence"]) == sequence - 1)
        expired = (o["outcome"] == Outcome.EXPIRED) & (deadline <= o["settled_ns"])
        expired &= (outcome_place < event_place) | too_late
        cancelled = (o["outcome"] == Outcome.CANCELLED) & self._cancelled_rightly(a, action_place)
        cancelled &= (action_place < outcome_place) & (action_place < event_place)
        ends = self._said_rightly(o, outcome_place) & np.where(acted, cancelled, completed | expired)
        # No operation of a dead client is pending.
        pending = ~acted & ~has_event & self._rows.never_died(self.clients)
        found: Mask = fine & np.where(settled, ends & (self.places < outcome_place), pending)
        return found

    def _registered_rightly(self, effective: Numbers) -> Mask:
        rows, r, s, k, places = self._rows, self.r, self.s, self._k, self.places
        is_its, orphans = rows.client(self.clients, places)
        now, turn = rows.turns_of(places)
        called = _signed(r["registered_ns"])
        return (
            self.is_alone
            & (r["flags"] == 0)
            & (r["condition"] == Condition.AT_LEAST)
            & (r["needed"] == 1)
            & (r["command_flags"] & ~np.uint16(PLAIN_REGISTER_FLAGS) == 0)
            & (r["orphans"] <= max(Orphans))
            & (((r["command_flags"] & int(RegisterFlag.ORPHANS_GIVEN)) != 0) | (r["orphans"] == orphans))
            & (called > 0)
            & (called <= now + CALL_AHEAD_NS_MAX)
            & (r["registered_ns"] <= r["deadline_ns"])
            & (s["operation"] == r["operation"])
            & _is_clean(s)
            & (s["total"] == 0)
            & (s["progress"] == 0)
            & (s["payload_length"] <= PAYLOAD_SIZE_MAX)
            & (k["operation"] == r["operation"])
            & (k["ordinal"] == 0)
            & (k["key_kind"] == KeyKind.EVENT)
            & (k["target"] == 0)
            & _is_clean(k)
            & (effective == turn)
            & (effective >= 0)
            & (effective.astype(np.uint64) < r["deadline_ns"])
            & rows.is_named[places]
            & ~rows.is_grouped[places]
            & ~rows.has_id[places]
            & is_its
        )

    def _nothing_since(self, events: Events, before: Numbers) -> Mask:
        """Whether no event on an operation's key came after its mark.

        Events of other clients are compared by their sequence, those of the operation's own client by their command.
        With MARK_BY_SEQUENCE, all are compared by their sequence. Without it, the result is False if a key has events
        of both kinds. With NO_MARK, no earlier event counts, so the result is True.
        """
        flags, none = self.r["command_flags"], before < 0
        lowest, highest = events.senders_until(before)
        by_sequence = taken(events.sequences, before, 0).astype(np.uint64) <= self.r["mark_sequence"]
        by_command = taken(events.commands, before, 0) <= self.r["mark_command"]
        is_by_sequence = (flags & int(RegisterFlag.MARK_BY_SEQUENCE)) != 0
        are_others = (self.clients < lowest) | (self.clients > highest)
        are_own = (self.clients == lowest) & (self.clients == highest)
        no_mark = (flags & int(RegisterFlag.NO_MARK)) != 0
        seen = by_sequence & (is_by_sequence | are_others) | (by_command & ~is_by_sequence & are_own)
        found: Mask = none | no_mark | seen
        return found

    def _said_rightly(self, o: np.ndarray, places: Numbers) -> Mask:
        """Whether the OUTCOME rows, one for each operation, agree with the registrations."""
        rows, r = self._rows, self.r
        is_its, _ = rows.client(self.clients, places)
        now, _ = rows.turns_of(places)
        by_key = np.where(o["outcome"] == Outcome.COMPLETED, 1, 0)
        return (
            (o["settled_key"] == by_key)
            & np.isin(o["outcome"], [Outcome.COMPLETED, Outcome.EXPIRED, Outcome.CANCELLED])
            & (o["flags"] == 0)
            & (o["error"] == 0)
            & (o["registered_ns"] == r["registered_ns"])
            & (o["deadline_ns"] == r["deadline_ns"])
            & (_signed(o["settled_ns"]) == now)
            & (now >= 0)
            & (taken(rows.watches, places, -1) == self.watches)
            & ~taken(rows.is_grouped, places, True)
            & ~taken(rows.has_id, places, True)
            & is_its
        )

    def _cancelled_rightly(self, a: np.ndarray, places: Numbers) -> Mask:
        """Whether the ACTION rows, one for each operation, are cancels of their owners."""
        rows = self._rows
        is_its, _ = rows.client(self.clients, places)
        now, _ = rows.turns_of(places)
        return (
            (a["command_kind"] == CommandKind.CANCEL)
            & (a["flags"] & ~np.uint8(CommandFlag.WANTS_ANSWER) == 0)
            & (a["orphans"] == 0)
            & _is_clean(a)
            & (a["deadline_ns"] == self.r["deadline_ns"])
            & (_signed(a["applied_ns"]) == now)
            & (now >= 0)
            & (clients_of(a) == self.clients)
            & (self.places < places)
            & is_its
        )


def commands_rise(rows: Rows, operations: Operations, events: Events) -> bool:
    """Whether the numbers of each client's commands rise from 1 on, in all rows together.

    A command about several operations of a group has a row for each operation, all with the command's number.
    """
    several, acknowledged = operations.places_of_others, operations.g["command"] != 0
    r, s = (as_records(kind, rows.heads(several, at)) for at, kind in enumerate((RowKind.REGISTER, RowKind.REGISTERED)))
    g, is_command = operations.g[acknowledged], events.is_command
    parts = (
        (operations.clients, operations.commands, operations.places),
        (clients_of(s), r["command"], several),
        (events.clients[is_command], events.commands[is_command], events.places[is_command]),
        (clients_of(operations.a), operations.a["command"], operations.actions),
        (clients_of(g), g["command"], operations.steps[acknowledged]),
    )
    clients, commands, places = (np.concatenate(each) for each in zip(*parts, strict=True))
    order = np.lexsort((places, clients))
    again = np.isin(places, parts[-1][2])[order][1:]
    same = clients[order][1:] == clients[order][:-1]
    before, after = commands[order][:-1], commands[order][1:]
    falls = same & ((after < before) | (after == before) & ~again)
    return bool((commands > 0).all() and not falls.any())


def lines_of(rows: pyarrow.Array, size: int = ROW_SIZE) -> np.ndarray:
    """Values of `size` bytes, as an array with a line for each value. Raises ValueError for values of another size."""
    ends = np.frombuffer(rows.buffers()[1], np.int32)[rows.offset : rows.offset + len(rows) + 1]
    if rows.null_count or (len(rows) and (np.diff(ends) != size).any()):
        raise ValueError(f"the column `bytes` has values of other than {size} bytes: it is not from a journal")
    if not len(rows):
        return np.empty((0, size), np.uint8)
    data = np.frombuffer(rows.buffers()[2], np.uint8)
    return data[ends[0] : ends[-1]].reshape(-1, size)


def numbers_at(lines: np.ndarray, at: int) -> np.ndarray:
    """A 64-bit field of each line."""
    found: np.ndarray = lines[:, at : at + 8].copy().view("<i8").ravel()
    return found


def taken(values: np.ndarray, at: Numbers, missing: object = None) -> np.ndarray:
    """The values at these numbers. Number -1 gives `missing`, or zero if that is None."""
    found = np.zeros(len(at), values.dtype) if missing is None else np.full(len(at), missing, values.dtype)
    there = at >= 0
    found[there] = values[at[there]]
    return found


def found_in(values: np.ndarray, wanted: np.ndarray) -> Numbers:
    """The positions of `wanted` among sorted values; -1 for a missing value."""
    at = np.searchsorted(values, wanted)
    at = np.where(at < len(values), at, -1)
    return np.where((at >= 0) & (taken(values, at) == wanted), at, -1)


def as_records(kind: RowKind, lines: np.ndarray) -> np.ndarray:
    """Lines as rows of this kind."""
    found: np.ndarray = np.ascontiguousarray(lines).view(dtype_of(kind)).ravel()
    return found


def clients_of(rows: np.ndarray) -> Numbers:
    """Slot and generation of each row's client, as one number."""
    found: Numbers = (rows["client"].astype(np.int64) << 32) + rows["client_generation"]
    return found


def _joined(watches: Numbers, places: Numbers) -> Numbers:
    """A key and a place as one number, which sorts by key and then by place."""
    return (watches << 31) + places


def _is_clean(rows: np.ndarray) -> Mask:
    """Whether the unused bytes of rows are zero."""
    clean = np.ones(len(rows), bool)
    for name in filter(is_unused, rows.dtype.names or ()):
        clean &= rows[name] == np.zeros((), rows.dtype[name])[()]
    return clean


def _signed(values: np.ndarray) -> Numbers:
    found: Numbers = values.astype(np.int64)
    return found


def _nulls(part: pyarrow.Table, name: str) -> Mask:
    found: Mask = part[name].combine_chunks().is_null().to_numpy(zero_copy_only=False)
    return found
