"""audit_journal(): the audit of a whole journal, in this process.

audit_journal("/var/lib/timerd/journal").wrong       # Findings: none, or a defect of the daemon
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, groupby

from timerd_shm.declare.journal import GroupStep, JournalLevel, RowKind
from timerd_shm.declare.states import ClientFlag, ClientState, KeyKind
from timerd_shm.read.journal_reader import JournalReader, Row
from timerd_shm.read.segment import JournalError

from .audit import NEEDS_BEGINNING, NEEDS_EVENTS, Audit
from .records import Finding, Key, Registration


@dataclass
class Audited:
    """What an audit of a whole journal has found."""

    wrong: list[Finding]
    outcomes: int  # OUTCOME rows that were checked


def audit_journal(directory: str | os.PathLike[str]) -> Audited:
    """Audit a journal from its beginning to its present end; its daemon should have ended, or be idle.

    A journal may hold the rows of several arenas, one after the other: each is audited by itself.

    Raises JournalError, also for a journal of level `outcomes`, and for one whose first segments are not kept any more.
    """
    found = Audited([], 0)
    with JournalReader(directory) as reader:
        for _, rows in groupby(reader.rows(), lambda _: reader.incarnation):
            audit = Audit()
            feed(audit, reader, _from_the_first(reader, rows))
            found.wrong += audit.end()
            found.outcomes += audit.outcomes
        found.wrong += [Finding(-1, 0, f"{damage.offset}: {damage.what}") for damage in reader.damage]
    return found


def _from_the_first(reader: JournalReader, rows: Iterator[Row]) -> Iterator[Row]:
    """The rows of an arena, if its first is among them."""
    first = next(rows)
    if first.number:
        raise JournalError(NEEDS_BEGINNING.format(reader.directory, first.number))
    return chain((first,), rows)


def feed(audit: Audit, reader: JournalReader, rows: Iterable[Row]) -> None:
    """Give rows of a journal to an audit."""
    half: list[Row] = []
    text = reader.text
    for row in rows:
        number, r = row.number, row.record
        kind = r.kind
        if kind in (RowKind.REGISTER, RowKind.REGISTERED, RowKind.KEY):
            half.append(row)
            if kind == RowKind.KEY and len(half) == 2 + half[0].record.keys:
                audit.registration(_registration(reader, *half))
                half = []
            continue
        if kind in (RowKind.TEXT, RowKind.CONTINUED):
            continue
        if half:
            audit.wrong.append(Finding(half[0].number, half[0].record.operation, "its registration lacks rows"))
            half = []
        match kind:
            case RowKind.SEGMENT:
                if r.level != JournalLevel.EVENTS:
                    raise JournalError(NEEDS_EVENTS.format(reader.directory))
                audit.segment(number, r.flags, r.newest)
            case RowKind.GAP:
                audit.gap(number, r.rows)
            case RowKind.CLIENT:
                name, listens = (r.client, r.client_generation), bool(r.flags & ClientFlag.LISTENS)
                audit.client(number, name, ClientState(r.state), listens, r.orphans, text(r.group), r.at_ns)
            case RowKind.EVENT:
                watch_key, sender = (text(r.purgatory), text(r.key)), (r.client, r.client_generation)
                audit.event(
                    number,
                    r.event_kind,
                    r.flags,
                    watch_key,
                    r.sequence,
                    r.effective_ns,
                    r.amount,
                    r.command,
                    r.limit,
                    sender,
                )
            case RowKind.WATERMARK:
                audit.watermark(number, (text(r.purgatory), text(r.key)), r.watermark)
            case RowKind.ACTION:
                name = (r.client, r.client_generation)
                audit.action(number, r.command_kind, r.flags, r.orphans, r.operation, r.deadline_ns, name)
            case RowKind.GROUP:
                name = (r.client, r.client_generation)
                audit.group(number, GroupStep(r.step), r.deliveries, text(r.group), r.operation, name)
            case RowKind.OUTCOME:
                audit.outcome(
                    number,
                    r.outcome,
                    r.settled_key,
                    r.flags,
                    text(r.key),
                    r.operation,
                    r.registered_ns,
                    r.deadline_ns,
                    r.settled_ns,
                    r.sequence,
                    text(r.owner) or b"",
                )


def _registration(reader: JournalReader, first: Row, second: Row, *keys: Row) -> Registration:
    r, s, text = first.record, second.record, reader.text
    return Registration(
        first.number,
        r.operation,
        r.flags,
        r.command_flags,
        r.condition,
        r.needed,
        r.orphans,
        r.command,
        r.registered_ns,
        r.deadline_ns,
        r.mark_sequence,
        r.mark_command,
        (s.client, s.client_generation),
        s.total,
        s.effective_ns,
        text(s.owner) or b"",
        text(s.purgatory),
        text(s.id),
        tuple(
            Key(text(key.record.key), key.record.target if key.record.key_kind == KeyKind.WATERMARK else None)
            for key in keys
        ),
    )
