"""audit_journal(): the audit of a whole journal, in this process.

found = audit_journal("/var/lib/timerd/journal")
found.wrong                   # Findings: missing rows, or a defect of the daemon; empty if all is well
found.lines()                 # the findings for people: causes first, and similar findings counted
str(found)                    # 4,711 outcomes, 2 segments, complete to row 29,873
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from timerd_shm.declare.journal import (
    ROW_SIZE,
    TEXT_INLINE,
    ClientRow,
    JournalLevel,
    RowKind,
    SegmentHeader,
    SegmentRow,
    TextKind,
)
from timerd_shm.declare.records import ArenaHeader
from timerd_shm.read.journal_reader import Chunk, Damage, JournalReader
from timerd_shm.read.segment import (
    SEGMENT_SUFFIX,
    JournalError,
    Segment,
    headers_of,
    is_unfinished,
    segment_path,
    segments_of,
)

from .audit import NEEDS_BEGINNING, NEEDS_EVENTS, Audit
from .audited import Audited, AuditedArena
from .records import APART, Finding, Owner, Registration, is_clean, registration_of
from .words import INCARNATION_SIZE, name_of, rows_are, shown_owner

_REGISTER, _REGISTERED, _KEY = int(RowKind.REGISTER), int(RowKind.REGISTERED), int(RowKind.KEY)
_OUTCOME, _EVENT, _TEXT = int(RowKind.OUTCOME), int(RowKind.EVENT), int(RowKind.TEXT)
_OF_REGISTRATIONS = frozenset((_REGISTER, _REGISTERED, _KEY))
_CONTINUED = int(RowKind.CONTINUED)
_OF_KEY, _OF_CLIENT, _OF_GROUP = int(TextKind.KEY), int(TextKind.CLIENT), int(TextKind.GROUP)
_OF_PURGATORY, _OF_ID = int(TextKind.PURGATORY), int(TextKind.ID)
OPEN_END = (
    "the journal's end is not known: its last row is no END row, and no arena says how many rows there are. If the "
    "daemon still runs, audit the journal with its arena, or stop the daemon and audit again. If the daemon was "
    "killed and the arena is gone, say that the end is open: --open-end, in Python open_end=True"
)


def audit_journal(
    directory: str | os.PathLike[str], *, arena: ArenaHeader | None = None, open_end: bool = False
) -> Audited:
    """Audit a journal from its beginning to its present end. Its daemon should have ended, or be idle.

    A journal may hold the rows of several arenas, one after the other or mixed: each arena is audited by itself. The
    rows of an arena end with an END row. If the daemon was killed or still runs, there is no END row: then give the
    header of the arena as `arena`, read before this call, because it has the number of rows. Without an END row and
    without `arena`, the unknown end is a finding, unless `open_end`. Segments of an older version count as damage: they
    lack columns that an audit needs.

    Raises JournalError if there is no journal, if its level is `outcomes`, or if its first segments were removed.
    """
    found = Audited()
    feeds: dict[int, Feed] = {}
    feed: Feed | None = None
    shared = 0  # how many entries of `reader.damage` were given to feeds
    with JournalReader(directory, older=False) as reader:
        for chunk in reader.chunks():
            before, feed = feed, feeds.get(chunk.header.incarnation)
            if feed is None:
                feed = feeds[chunk.header.incarnation] = Feed(found, reader, chunk)
            elif feed is not before:
                feed.resume(chunk)
            for damage in reader.damage[shared:]:
                its = feed if before is None or damage.offset.segment == chunk.first.segment else before
                its.damage.append(damage)
            shared = len(reader.damage)
            feed.take(chunk)
        if feed is not None:
            feed.damage += reader.damage[shared:]
        for each in feeds.values():
            each.finish(arena, open_end)
        broken = _newest_broken(reader.directory)
        _add_arenas_without_rows(found, reader, arena, open_end)
        if broken and found.arenas:
            found.arenas[-1].causes.insert(0, Finding(-1, 0, broken))
    if not found.arenas:
        why = broken or f"it holds no *{SEGMENT_SUFFIX}"
        raise JournalError(f"there is no journal in {reader.directory}: {why}")
    return found


def _newest_broken(directory: Path) -> str:
    """The error in the newest segment's header. Empty if there is none, or if a killed daemon left it unfinished."""
    try:
        sequence = segments_of(directory)[-1]
        Segment(directory, sequence).close()
    except (IndexError, FileNotFoundError):
        return ""
    except JournalError as error:
        try:
            return "" if is_unfinished(directory, sequence) else str(error)
        except OSError:
            return str(error)
    return ""


def _add_arenas_without_rows(found: Audited, reader: JournalReader, arena: ArenaHeader | None, open_end: bool) -> None:
    """Add arenas without a row in the files: a file has only its header, or only `arena` says that there are rows."""
    there = {part.incarnation for part in found.arenas}
    without = {header.incarnation: None for header in headers_of(reader.directory)}
    if arena is not None and arena.journal_rows:
        without[arena.incarnation] = None
    for incarnation in without:
        if incarnation not in there:
            part = AuditedArena(incarnation)
            found.arenas.append(part)
            part.causes += _about_the_end(part, arena, open_end)


def _about_the_end(part: AuditedArena, arena: ArenaHeader | None, open_end: bool) -> list[Finding]:
    """The findings about the end of an arena's rows."""
    if arena is None or arena.incarnation != part.incarnation:
        return [] if part.ended or open_end else [Finding(part.rows, 0, OPEN_END)]
    missing = arena.journal_rows - part.rows
    if missing <= 0:
        return []
    if arena.pid and part.rows >= arena.journal_written:  # the daemon runs, or the next start writes them
        part.waiting = missing
        return []
    where = "at the end" if part.rows else "in all files"
    what = f"{rows_are(part.rows, arena.journal_rows - 1)} missing {where}: the arena says that they were written"
    return [Finding(part.rows, 0, what)]


class _Texts:
    """The texts of the present segment, by record and kind."""

    def __init__(self, reader: JournalReader) -> None:
        self._found = reader.found_text

    def of(self, record: int, kind: int) -> bytes | None:
        """The text of a record. None for record 0, and b"" if the record has no text of this kind."""
        if record == 0:
            return None
        found = self._found(record)
        return found[0] if found is not None and found[1] == kind else b""

    def owner(self, record: int) -> Owner:
        """An owner's text, and whether the owner is a group. (None, False) if the text cannot be read.

        A group's text is its name. A client's text is its incarnation, followed by its name.
        """
        if record == 0:
            return None
        found = self._found(record)
        if found is None or found[1] not in (_OF_CLIENT, _OF_GROUP):
            return None, False
        return found[0], found[1] == _OF_GROUP


class Feed:
    """Gives the rows of one arena to an audit."""

    def __init__(self, found: Audited, reader: JournalReader, first: Chunk) -> None:
        """Raises JournalError if the arena's first row is not in the journal."""
        number = first.header.first_row + first.first.record
        if number:
            why = "".join(f". {each.what}" for each in reader.damage[:1])
            raise JournalError(NEEDS_BEGINNING.format(_written(reader, first.header), number) + why + _mixed(reader))
        self.part = AuditedArena(first.header.incarnation)
        self._reader = reader
        self._audit, self._texts = Audit(), _Texts(reader)
        self._handlers = _handlers(self._audit, reader, self._texts)
        self._half: list[tuple[int, Any]] = []  # rows of a registration whose last row has not come
        self.damage: list[Damage] = []  # the parts of its rows that could not be read
        self._had = 0  # skip rows with lower numbers: they were read before
        self._segment = -1
        self._continued = 0  # rows that continue the newest text and have not come
        found.arenas.append(self.part)

    def resume(self, chunk: Chunk) -> None:
        """Continue after rows of another arena. The chunk may repeat rows of this arena, which are skipped."""
        number, part = chunk.header.first_row + chunk.first.record, self.part
        if number > part.rows:
            what = f"{rows_are(part.rows, number - 1)} in no segment"
            self.damage.append(Damage(chunk.first, what, part.rows))
        self._had = part.rows

    def take(self, chunk: Chunk) -> None:
        """Give the rows of a chunk to the audit."""
        part, audit, half, first_row = self.part, self._audit, self._half, chunk.header.first_row
        if chunk.first.segment != self._segment:
            self._segment, part.segments = chunk.first.segment, part.segments + 1
            if chunk.first.record == 0 and chunk.blocks[ROW_SIZE] != RowKind.SEGMENT:
                audit.wrong.append(Finding(first_row, 0, f"segment {self._segment} begins with no SEGMENT row"))
        handlers, outcome, event = self._handlers, audit.outcome, audit.event
        owner, of, had = self._texts.owner, self._texts.of, self._had
        for record, r in self._reader.decoded(chunk):
            number, kind = first_row + record, r.kind
            if number < had:
                continue
            if kind == _TEXT:
                self._continued = max(0, r.length - 1) // TEXT_INLINE
                if not is_clean(r) or r.text[r.length :].strip(b"\0"):
                    audit.wrong.append(Finding(number, 0, "the TEXT row has bytes after its text"))
            elif kind in _OF_REGISTRATIONS:
                if kind != (_REGISTER if not half else _REGISTERED if len(half) == 1 else _KEY):
                    _incomplete(audit, [*half, (number, r)])
                    half.clear()
                if half or kind == _REGISTER:
                    half.append((number, r))
                    if kind == _KEY and len(half) == 2 + half[0][1].keys:
                        audit.registration(_registration(audit, self._texts, half))
                        half.clear()
            elif kind == _CONTINUED:
                self._continued -= 1
                if r.text_kind or r.length or not is_clean(r) or self._continued < 0:
                    audit.wrong.append(Finding(number, 0, "the CONTINUED row continues no text"))
            else:
                if half:
                    _incomplete(audit, half)
                    half.clear()
                if kind == _OUTCOME:
                    id_ = of(r.id, _OF_ID) if r.id else None
                    outcome(number, r, of(r.key, _OF_KEY), owner(r.owner), of(r.purgatory, _OF_PURGATORY), id_)
                elif kind == _EVENT:
                    event(number, r, (of(r.purgatory, _OF_PURGATORY), of(r.key, _OF_KEY)), owner(r.owner))
                elif kind in handlers:
                    handlers[kind](number, r)
        part.rows = max(part.rows, first_row + chunk.first.record + chunk.rows)

    def finish(self, arena: ArenaHeader | None, open_end: bool) -> None:
        """Finish, after the last row of this arena."""
        part, audit, damage = self.part, self._audit, self.damage
        if self._half:
            _incomplete(audit, self._half)
        part.outcomes, part.ended = audit.outcomes, audit.turns.ended
        missing = [each.row for each in damage if each.row is not None]
        part.row = min(part.rows, audit.turns.first_gap, *missing) - 1
        causes = [
            Finding(-1 if each.row is None else each.row, 0, f"{each.what} (at {each.offset})") for each in damage
        ]
        causes += audit.findings.causes
        part.others += [finding for finding in audit.finish() if finding not in audit.findings.causes]
        part.causes += sorted(causes, key=lambda cause: cause.row) + _about_the_end(part, arena, open_end)


def _written(reader: JournalReader, header: SegmentHeader | None) -> str:
    """The beginning of a message: a segment's file, and the instance that wrote it."""
    if header is None:
        return str(reader.directory)
    return f"{segment_path(reader.directory, header.sequence)}, which instance {_instance(header)!r} wrote,"


def _mixed(reader: JournalReader) -> str:
    """A sentence if the directory has rows of several instances, or of several levels."""
    there = {(_instance(each), name_of(JournalLevel, each.level).lower()) for each in headers_of(reader.directory)}
    if len(there) == 1:
        return ""
    named = ", ".join(f"instance {instance!r} with level {level}" for instance, level in sorted(there))
    return f". The directory has rows of {named}: give each a --journal directory of its own"


def _instance(header: SegmentHeader) -> str:
    return header.instance.rstrip(b"\0").decode("utf-8", "backslashreplace")


def _incomplete(audit: Audit, half: list[tuple[int, Any]]) -> None:
    """Report rows of a registration whose other rows are missing."""
    audit.wrong.append(Finding(half[0][0], half[0][1].operation, "its registration lacks rows"))


def _handlers(audit: Audit, reader: JournalReader, texts: _Texts) -> dict[int, Callable[[int, Any], None]]:
    """For each rare kind of row, the function that takes its number and record."""
    of, owner, findings = texts.of, texts.owner, audit.findings

    def segment(number: int, r: SegmentRow) -> None:
        header = reader.header
        if r.level != JournalLevel.EVENTS:
            raise JournalError(NEEDS_EVENTS.format(_written(reader, reader.header)) + _mixed(reader))
        audit.segment(number, r)
        if header is None or (r.incarnation, number) != (header.incarnation, header.first_row):
            findings.report(0, f"the SEGMENT row has arena {r.incarnation:016x}, or is not the first of its file")
        elif r.monotonic_ns > header.monotonic_ns:
            findings.report(0, f"the SEGMENT row's time is {r.monotonic_ns}, after its file's, {header.monotonic_ns}")

    def client(number: int, r: ClientRow) -> None:
        name = owner(r.owner)
        audit.client(number, r, name, of(r.group, _OF_GROUP))
        incarnation = r.incarnation_low.to_bytes(8, "little") + r.incarnation_high.to_bytes(8, "little")
        if name is None or name[1] or (name[0] or b"")[:INCARNATION_SIZE] != incarnation:
            who = f"client {(r.client, r.client_generation)}"
            findings.report(0, f"{who} has incarnation {incarnation.hex()}, but its text names {shown_owner(name)}")

    return {
        RowKind.SEGMENT: segment,
        RowKind.TURN: audit.turn,
        RowKind.ANCHOR: audit.anchor,
        RowKind.CLIENT: client,
        RowKind.GAP: audit.gap,
        RowKind.END: audit.end,
        RowKind.WATERMARK: lambda n, r: audit.watermark(n, r, (of(r.purgatory, _OF_PURGATORY), of(r.key, _OF_KEY))),
        RowKind.ACTION: lambda n, r: audit.action(n, r, owner(r.owner)),
        RowKind.GROUP: lambda n, r: audit.group(n, r, of(r.group, _OF_GROUP), owner(r.owner)),
    }


def _registration(audit: Audit, texts: _Texts, rows: list[tuple[int, Any]]) -> Registration:
    """The registration that these rows make up."""
    (number, r), (_, s), *others = rows
    of, keys = texts.of, [k for _, k in others]
    found, fits = registration_of(
        number,
        (r, s, *keys),
        [of(k.key, _OF_KEY) for k in keys],
        texts.owner(s.owner),
        of(s.purgatory, _OF_PURGATORY),
        of(s.id, _OF_ID) if s.id else None,
    )
    if not fits:
        audit.wrong.append(Finding(number, r.operation, APART))
    return found
