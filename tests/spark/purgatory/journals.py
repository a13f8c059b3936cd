"""The rows of a bucket from a journal of level events, and the outcomes that the daemon wrote into it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from timerd_shm.declare.journal import KeyRow, RegisteredRow, RowFlag, RowKind
from timerd_shm.declare.states import EventFlag, EventKind, KeyKind
from timerd_shm.declare.wire import CommandKind, RegisterFlag
from timerd_shm.read.journal_reader import JournalReader
from timerd_spark.purgatory.rows import Event, Key, Position, Registration

CANCELS = (CommandKind.CANCEL, CommandKind.CANCEL_ID)


class Outcomes(NamedTuple):
    """How an operation settled: the outcome, the position of its key, and the number of the event."""

    outcome: int
    settled_key: int | None
    seq: int | None


def id_of(operation: int) -> str:
    return f"{operation:x}"


def rows_of(directory: Path) -> tuple[list[Registration | Event], dict[str, Outcomes]]:
    """The rows, each with its row number as `seq`, and the outcome of each operation."""
    rows: list[Registration | Event] = []
    outcomes: dict[str, Outcomes] = {}
    events: dict[int, Position] = {0: (0, 0)}
    key_of: dict[int, str] = {}  # of each event
    registered: dict[str, Registration] = {}
    pending: dict[str, Registration] = {}
    ids: dict[Any, str] = {}
    half: list[Any] = []
    names: list[str] = []
    with JournalReader(directory) as reader:

        def text(record: int) -> str:
            return (reader.text(record) or b"").hex()

        for row in reader.rows():
            r, number = row.record, 2 * row.number
            if r.kind == RowKind.REGISTER:
                half, names = [r], []
            elif r.kind in (RowKind.REGISTERED, RowKind.KEY):
                half.append(r)
                if r.kind == RowKind.KEY:
                    names.append(text(r.key))
                if len(half) == 2 + half[0].keys:
                    s = half[1]
                    place = (text(s.purgatory), text(s.id))
                    made = registration(half, names, place[0], number, events, f"{s.client}.{s.client_generation}")
                    registered[made.id or ""] = made
                    if s.id:
                        if (before := ids.get(place)) in pending:
                            rows.append(cancel(pending.pop(before), made.at_ns, number - 1))
                        ids[place] = made.id or ""
                    rows.append(made)
                    pending[made.id or ""] = made
            elif r.kind == RowKind.EVENT:
                limit = r.limit if r.flags & EventFlag.LIMITED else None
                name = f"{text(r.purgatory)}/{text(r.key)}"
                sender = None if r.flags & EventFlag.REDELIVERED else f"{r.client}.{r.client_generation}"
                rows.append(
                    Event(r.effective_ns, number, r.event_kind, name, r.amount, limit, b"", None, sender, r.command)
                )
                events[r.sequence], key_of[r.sequence] = (r.effective_ns, number), name
            elif r.kind == RowKind.ACTION:
                assert r.command_kind in CANCELS, CommandKind(r.command_kind)
                if id_of(r.operation) in pending:
                    rows.append(cancel(pending.pop(id_of(r.operation)), r.applied_ns, number))
            elif r.kind == RowKind.OUTCOME:
                op = registered[id_of(r.operation)]
                pending.pop(id_of(r.operation), None)
                ordinal = r.settled_key - 1 if r.settled_key else None
                # A watermark that was there at the registration settles without an event.
                was_there = r.flags & RowFlag.AT_REGISTRATION and op.keys[ordinal or 0].target is not None
                by_event = ordinal is not None and not was_there and key_of.get(r.sequence) == op.keys[ordinal].name
                seq = events[r.sequence][1] if by_event else None
                outcomes[id_of(r.operation)] = Outcomes(r.outcome, ordinal, seq)
    return rows, outcomes


def cancel(op: Registration, at_ns: int, seq: int) -> Event:
    """A cancel of an operation. The daemon cancels what is due but still pending, so a cancel is never after that."""
    return Event(min(at_ns, op.deadline_ns - 1), seq, EventKind.CANCEL_FOR_KEY, "", id=op.id)


def registration(
    half: list[Any], names: list[str], purgatory: str, number: int, events: dict[int, Position], client: str
) -> Registration:
    r, s = half[0], half[1]
    assert isinstance(s, RegisteredRow)
    keys = []
    for k, name in zip(half[2:], names, strict=True):
        assert isinstance(k, KeyRow)
        keys.append(Key(f"{purgatory}/{name}", k.target if k.key_kind == KeyKind.WATERMARK else None))
    no_mark = bool(r.command_flags & RegisterFlag.NO_MARK)
    own = not r.command_flags & RegisterFlag.MARK_BY_SEQUENCE
    return Registration(
        s.effective_ns,
        number,
        id_of(r.operation),
        tuple(keys),
        min(r.deadline_ns, (1 << 62)),
        r.condition,
        r.needed,
        s.total,
        b"",
        None if no_mark else events[r.mark_sequence],
        client if own and not no_mark else None,
        r.mark_command if own and not no_mark else None,
    )
