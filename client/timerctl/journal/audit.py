"""timerctl journal audit: every outcome computed again from the events; the journal's end as the arena knows it."""

from __future__ import annotations

import argparse
import json

from timerctl.exits import Exit, NoInstanceError
from timerctl.instance import open_arena, paths_of
from timerd_client.audit.journal import Audited, audit_journal
from timerd_shm.declare.errors import TimerdError
from timerd_shm.declare.records import ArenaHeader

from .source import directory_of

SHOWN = 100  # findings that are printed as lines


def run_audit(arguments: argparse.Namespace) -> int:
    """Print each finding, and how much was audited. Raises JournalError, NoInstanceError."""
    arena = _arena_of(arguments)
    found = audit_journal(directory_of(arguments), arena=arena, open_end=arguments.open_end)
    if arguments.json:
        print(json.dumps(_as_json(found), indent=1))
    else:
        for row, operation, what in found.wrong[:SHOWN]:
            print(f"row {row}: {f'operation {operation:#x}: ' if operation else ''}{what}")
        if len(found.wrong) > SHOWN:
            print(f"and {len(found.wrong) - SHOWN:,} more")
        print(found)
    return Exit.PROBLEM if found.wrong else Exit.OK


def _arena_of(arguments: argparse.Namespace) -> ArenaHeader | None:
    """The header of the instance's arena, read before the journal; None if there is none that can be read."""
    try:
        with open_arena(paths_of(arguments)) as reader:
            return reader.header()
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
    findings = [{"row": row, "operation": operation, "what": what} for row, operation, what in found.wrong]
    return {"arenas": arenas, "findings": findings}
