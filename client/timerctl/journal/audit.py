"""timerctl journal audit: computes every outcome again from the events; compares the journal's end with the arena."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from timerctl.exits import Exit, NoInstanceError
from timerctl.instance import open_arena, paths_of
from timerd_client.audit.audited import Audited, AuditedArena
from timerd_client.audit.journal import audit_journal
from timerd_client.audit.records import Finding
from timerd_shm.declare.errors import TimerdError
from timerd_shm.declare.records import ArenaHeader
from timerd_shm.read.segment import headers_of

from .source import directory_of

SHOWN = 100  # the most lines of findings that are printed


def run_audit(arguments: argparse.Namespace) -> int:
    """Print each finding, and the extent of the audit. Raises JournalError, NoInstanceError."""
    directory = directory_of(arguments)
    found = audit_journal(directory, arena=_arena_of(arguments, directory), open_end=arguments.open_end)
    if arguments.json:
        print(json.dumps(_as_json(found), indent=1))
    else:
        lines = found.lines()
        for line in lines[:SHOWN]:
            print(line)
        if len(lines) > SHOWN:
            print(f"and {len(lines) - SHOWN:,} more: --json has all")
        print(found)
    return Exit.PROBLEM if found.wrong else Exit.OK


def _arena_of(arguments: argparse.Namespace, directory: Path) -> ArenaHeader | None:
    """The header of the instance's arena, read before the journal.

    None if the arena cannot be read, or if the journal is not of this arena. The journal is of this arena if the
    instance's daemon writes to this directory, or if a segment names the arena, as the segments of a copied journal do.
    """
    try:
        paths = paths_of(arguments)
        with open_arena(paths) as reader:
            header = reader.header()
        own = paths.journal.is_symlink() and paths.journal.resolve() == directory.resolve()
        if own or any(each.incarnation == header.incarnation for each in headers_of(directory)):
            return header
    except NoInstanceError:
        if arguments.directory is None:
            raise
    except (TimerdError, OSError):
        pass
    return None


def _as_json(found: Audited) -> dict[str, object]:
    arenas = [
        {
            "incarnation": f"{arena.incarnation:016x}",
            "outcomes": arena.outcomes,
            "segments": arena.segments,
            "row": arena.row,
            "waiting": arena.waiting,
            "ended": arena.ended,
        }
        for arena in found.arenas
    ]
    causes = [_finding(arena, each, True) for arena in found.arenas for each in arena.causes]
    others = [_finding(arena, each, False) for arena in found.arenas for each in arena.others]
    return {"arenas": arenas, "findings": causes + others}


def _finding(arena: AuditedArena, finding: Finding, cause: bool) -> dict[str, object]:
    """A finding as JSON: whether it is a cause (rows are missing), and whether it may follow from a cause."""
    follows = not cause and arena.follows(finding)
    return {**finding._asdict(), "arena": f"{arena.incarnation:016x}", "cause": cause, "follows": follows}
