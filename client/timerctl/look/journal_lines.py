"""Command lines that find in the journal what the arena no longer knows: clients, outcomes, and the ends of calls."""

from __future__ import annotations

import argparse
import shlex
from typing import Any

from timerctl.listing import Row, hint
from timerd_shm.declare.journal import JournalLevel
from timerd_shm.declare.records import ArenaHeader, IdRecord
from timerd_shm.host.paths import InstancePaths


class JournalLines:
    """Hints of one kind, "journal". If no journal has the rows, a hint says which journal would have them."""

    def __init__(self, arguments: argparse.Namespace, paths: InstancePaths, header: ArenaHeader) -> None:
        instance = ["--instance", arguments.instance] if arguments.instance else []
        self._export = shlex.join(["timerctl", *instance, "journal", "export"])
        self._has_outcomes = paths.journal.is_symlink()
        self._has_events = self._has_outcomes and header.journal_level == JournalLevel.EVENTS

    def of_operation(self, number: int) -> Row:
        """The rows of an operation."""
        return self._line(f"select(.operation == {number})", "how it settled")

    def of_id(self, record: IdRecord, *, is_call: bool) -> Row:
        """The outcome of the operation of an id; for a call, all that members have done with it."""
        hashed = (record.hash_low.to_bytes(8, "little") + record.hash_high.to_bytes(8, "little")).hex()
        if not is_call:
            return self._line(f'select(.id == "{hashed}")', "how it settled")
        # The rows of a call's run have its op id, but not its id. The op id is taken from the rows that have its id.
        rows = f'select(.id == "{hashed}" or .operation == $op)'
        found = f"op=$({self._export} | jq 'select(.id == \"{hashed}\") | .operation' | tail -1); "
        line = f"{found}{self._export} | jq --argjson op $op '{rows}'"
        return self._needs_events(line, "how it ended (acknowledged, kept or cancelled), and who did it")

    def of_standing(self, row: Row) -> Row | None:
        """The rows that name a client, if the arena does not have its name any more; else None."""
        unnamed = [event for key in row["keys"] for event in key["events"] if event["client"] is None] + [
            event for event in row["events_in_other_purgatories"] if event["client"] is None
        ]
        if unnamed:
            numbers = " or ".join(f".sequence == {event['sequence']}" for event in unnamed)
            line = f"{self._export} | jq 'select(.kind == \"event\" and ({numbers}))'"
            return self._needs_events(line, "which client that has ended sent these events")
        if row["owner"] == {"client": None, "group": None}:
            return self._needs_events(
                f"{self._export} | jq 'select(.operation == {row['op']})'", "which client it was of"
            )
        return None

    def _line(self, select: str, what: str) -> dict[str, Any]:
        if self._has_outcomes:
            return hint("journal", f"the journal has {what}", f"{self._export} | jq '{select}'")
        return hint("journal", f"the daemon writes no journal, which would have {what}: timerd --journal DIR")

    def _needs_events(self, line: str, what: str) -> dict[str, Any]:
        if self._has_events:
            return hint("journal", f"the journal has {what}", line)
        lacks = "its journal is of level outcomes" if self._has_outcomes else "the daemon writes no journal"
        return hint(
            "journal", f"{lacks}. A journal of level events has {what}: timerd --journal DIR --journal-level events"
        )
