"""timerctl clients: who is connected, what each holds, and what the system says of its process."""

from __future__ import annotations

import argparse
from typing import Any

from timerd_shm.layout import ArenaHeader, ClientRecord, ClientState, Orphans

from .exits import Exit
from .instance import is_alive, note_if_dead, now_ns, open_arena, paths_of
from .processes import process_of
from .table import Column, Table
from .text import label, print_json, size, span

EPILOG = """\
pending: operations that have not settled. unacked: settled ones whose outcome
the client has not acknowledged. held: payload and value bytes charged to it.
cpu: of one core, on average since the process started.

examples:
  timerctl clients
  timerctl clients --json | jq '.[] | select(.unacknowledged > 100)'
"""


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Declare the command."""
    command = commands.add_parser(
        "clients",
        parents=[common],
        help="clients, what they hold, their processes",
        description="The clients of an instance: one a process and connection.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("--json", action="store_true", help="print one JSON document")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print them."""
    paths = paths_of(arguments)
    with open_arena(paths) as reader:
        header = reader.header()
        alive = is_alive(paths, header)
        records = reader.between_turns(lambda: list(reader.clients))
    rows = [row_of(slot, client, header) for slot, client in enumerate(records) if client.state != ClientState.FREE]
    if arguments.json:
        print_json(rows)
        return Exit.OK
    if note := note_if_dead(paths, alive):
        print(note)
    if not rows:
        print("No clients.")
        return Exit.OK
    Table(
        Column("slot", right=True),
        Column("pid", right=True),
        Column("name", flexible=True),
        Column("state"),
        Column("pending", right=True),
        Column("unacked", right=True),
        Column("heard", right=True),
        Column("held", right=True, optional=True),
        Column("orphans", optional=True),
        Column("cpu", right=True, optional=True),
        Column("rss", right=True, optional=True),
        Column("command", flexible=True, optional=True),
    ).print([cells_of(row) for row in rows])
    return Exit.OK


def row_of(slot: int, client: ClientRecord, header: ArenaHeader) -> dict[str, Any]:
    process = process_of(client.pid, client.start_ticks, client.pid_namespace)
    return {
        "slot": slot,
        "pid": client.pid or None,
        "name": label(client.name[: client.name_length]),
        "state": ClientState(client.state).name.lower() if client.state in list(ClientState) else str(client.state),
        "pending": client.pending,
        "unacknowledged": client.unacknowledged,
        "answers": client.answers,
        "watermarks": client.watermarks,
        "bytes_held": client.bytes_held,
        "orphans": Orphans(client.orphans).name.lower() if client.orphans in list(Orphans) else str(client.orphans),
        "last_command": client.last_command,
        "heard_ns_ago": max(now_ns(header) - client.heard_ns, 0),
        "ended": process is None,
        "command": process.command if process else None,
        "cpu_percent": process.cpu_percent if process else None,
        "rss_bytes": process.rss_bytes if process else None,
    }


def cells_of(row: dict[str, Any]) -> tuple[object, ...]:
    return (
        row["slot"],
        row["pid"] or "-",
        row["name"] or "-",
        row["state"],
        row["pending"],
        row["unacknowledged"],
        span(row["heard_ns_ago"]),
        size(row["bytes_held"]),
        row["orphans"],
        "-" if row["cpu_percent"] is None else f"{row['cpu_percent']:.1f} %",
        "-" if row["rss_bytes"] is None else size(row["rss_bytes"]),
        "(ended)" if row["ended"] else row["command"] or "-",
    )
