"""timerctl clients: who is connected, what each holds, and what the system says of its process."""

from __future__ import annotations

import argparse
from typing import Any

from timerd_shm.layout import ArenaHeader, ClientRecord, ClientState, Orphans

from .instance import now_ns, open_arena, paths_of
from .listing import declare, show
from .processes import process_of
from .table import Column, Table
from .text import label, size, span

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
    declare(
        commands,
        common,
        "clients",
        run,
        help="clients, what they hold, their processes",
        description="The clients of an instance: one a process and connection.",
        epilog=EPILOG,
    )


def run(arguments: argparse.Namespace) -> int:
    """Print them."""
    paths = paths_of(arguments)
    with open_arena(paths) as reader:
        header = reader.header()
        records = reader.between_turns(lambda: list(reader.clients))
    rows = [row_of(slot, client, header) for slot, client in enumerate(records) if client.state != ClientState.FREE]
    table = Table(
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
    )
    return show(arguments, paths, header, rows, table, cells_of, "No clients.")


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
