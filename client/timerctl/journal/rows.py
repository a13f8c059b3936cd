"""Rows of a journal as people and programs read them: a line of the terminal, or a JSON object."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import IntEnum, IntFlag
from typing import Any

from timerctl.instance import NS
from timerctl.show.table import terminal_width
from timerctl.show.text import columns_of, span
from timerd_shm.declare.fields import fields as columns
from timerd_shm.declare.journal import ROWS, TIMES, GroupStep, OutcomeRow, RowFlag, RowKind, TextKind, is_shown
from timerd_shm.declare.limits import NO_DEADLINE
from timerd_shm.declare.states import ClientFlag, ClientState, EventKind, Outcome
from timerd_shm.declare.wire import CommandKind
from timerd_shm.read.journal_reader import JournalReader, Row
from timerd_shm.read.text import plain

HIDDEN = (RowKind.TEXT, RowKind.CONTINUED)  # they have texts, which are shown with the rows that name them
INCARNATION_SIZE = 16
WORD = len("acknowledged")  # columns for the first word of a line; a few words are longer, such as cancel_for_key


class RowFormat:
    """Rows as people and programs read them: texts for numbers, names for codes, and the wall clock's time."""

    def __init__(self, reader: JournalReader) -> None:
        self._reader = reader
        self._segment = -1
        self._wall_ns = 0  # the wall clock's time at monotonic 0

    def follow(self, row: Row) -> None:
        """Note the wall clock's time in a row. Call it with every row."""
        if row.record.kind == RowKind.ANCHOR:
            self._wall_ns = row.record.wall_ns - row.record.monotonic_ns
        elif row.offset.segment != self._segment and (header := self._reader.header) is not None:
            self._wall_ns = header.wall_ns - header.monotonic_ns
        self._segment = row.offset.segment

    def when(self, at_ns: int) -> str:
        """Wall-clock time to the microsecond, UTC."""
        seconds, rest = divmod(at_ns + self._wall_ns, NS)
        try:
            return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S") + f".{rest // 1000:06}Z"
        except (ValueError, OverflowError, OSError):
            return "?"

    def fields(self, row: Row) -> dict[str, Any]:
        """A row as a JSON object."""
        record = row.record
        kind = RowKind(record.kind)
        fields: dict[str, Any] = {"offset": str(row.offset), "kind": kind.name.lower()}
        if at := TIMES.get(kind):
            fields["at"] = self.when(getattr(record, at))
        for column, value in zip(columns(ROWS[kind]), record, strict=True):
            name, shown = column.name, column.shown
            if not is_shown(column):
                continue
            if isinstance(shown, TextKind):
                fields.update(self._text(name, value))
            elif isinstance(shown, type):
                fields[name] = names(shown, value) if issubclass(shown, IntFlag) else member(shown, value)
            else:
                fields[name] = None if name == "deadline_ns" and value == NO_DEADLINE else value
        if kind is RowKind.OUTCOME:
            fields["wait_ns"] = wait_ns(record)
            if record.outcome == Outcome.EXPIRED:
                fields["lateness_ns"] = record.settled_ns - record.deadline_ns
        return fields

    def line(self, row: Row) -> str:
        """A row as a line of the terminal's width; empty for rows that people do not need."""
        what = self._what(row)
        at = TIMES.get(RowKind(row.record.kind))
        if not what or at is None:
            return ""
        text = f"{self.when(getattr(row.record, at))[11:23]}  {what}"
        width = terminal_width()
        while columns_of(text) > width:
            text = text[: width - 3 - (columns_of(text) - len(text))] + "..."
        return text

    def _what(self, row: Row) -> str:
        record, text = row.record, self._plain
        match RowKind(record.kind):
            case RowKind.OUTCOME:
                line = f"{member(Outcome, record.outcome).lower():<{WORD}}  {text('key', record.key)}"
                line += f"  after {span(wait_ns(record))}"
                if record.outcome == Outcome.EXPIRED:
                    line += f", {span(record.settled_ns - record.deadline_ns)} late"
                return line + (f"  ({owner})" if (owner := text("owner", record.owner)) else "")
            case RowKind.KEY:
                return ""
            case RowKind.REGISTER:
                due = "no deadline"
                if record.deadline_ns != NO_DEADLINE:
                    due = f"within {span(record.deadline_ns - record.registered_ns)}"
                return f"{'register':<{WORD}}  operation {record.operation:#x}, keys: {record.keys}, {due}"
            case RowKind.EVENT:
                kind = member(EventKind, record.event_kind).lower()
                return f"{kind:<{WORD}}  {text('key', record.key)}  amount {record.amount}"
            case RowKind.ACTION:
                kind = member(CommandKind, record.command_kind).lower() if record.command_kind else "new plan"
                return f"{kind:<{WORD}}  operation {record.operation:#x}"
            case RowKind.CLIENT:
                line = (
                    f"{'client':<{WORD}}  {text('owner', record.owner)} is {member(ClientState, record.state).lower()}"
                )
                return f"{line}, and keeps what it holds" if record.flags & ClientFlag.KEEPS else line
            case RowKind.GROUP:
                line = f"{member(GroupStep, record.step).lower():<{WORD}}  operation {record.operation:#x}"
                line += f" of {text('group', record.group)}"
                return line + (f"  ({owner})" if (owner := text("owner", record.owner)) else "")
            case RowKind.GAP:
                return f"{'gap':<{WORD}}  {record.rows} rows are missing here"
            case RowKind.WATERMARK:
                return f"{'watermark':<{WORD}}  {text('key', record.key)}  {record.watermark}"
            case RowKind.END:
                return f"{'end':<{WORD}}  the daemon has ended"
            case RowKind.SEGMENT if record.flags & RowFlag.START:
                return f"{'start':<{WORD}}  a daemon writes the journal"
        return ""

    def _plain(self, name: str, number: int) -> str:
        return str(self._text(name, number)[name] or "")

    def _text(self, name: str, number: int) -> dict[str, Any]:
        found = self._reader.text(number)
        if name == "owner" and found is not None and self._reader.text_kind(number) == TextKind.CLIENT:
            return {"owner": plain(found[INCARNATION_SIZE:]), "owner_incarnation": found[:INCARNATION_SIZE].hex()}
        if name == "id" and found is not None:
            return {name: found.hex()}
        return {name: None if found is None else plain(found)}


def wait_ns(record: OutcomeRow) -> int:
    """How long an operation was pending; 0 if register() was called after the beginning of the turn that settled it."""
    return max(0, record.settled_ns - record.registered_ns)


def member(enum: type[IntEnum], value: int) -> str:
    """The name of a code, or the number of a code that only a newer daemon knows."""
    try:
        return enum(value).name
    except ValueError:
        return str(value)


def names(flags: type[IntFlag], value: int) -> list[str]:
    """The names of the flags that are set."""
    return [name for name, flag in flags.__members__.items() if value & flag]
