"""timerctl calls: the named calls of an instance: when they come next, and how they ended last.

All of that stands in the arena, in the plan before each call's payload (timerd_client/groups/plan.py). A new column
needs three things: a value in `row_of` (which is also the JSON), a head in CALLS_TABLE, and a text in `cells_of`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any

from timerctl.instance import open_arena, paths_of
from timerctl.listing import Row, add_limit, declare, show
from timerctl.show.table import Column, Table
from timerctl.show.text import due_in, span
from timerd_client.groups.plan import CALL, Plan, unpack
from timerd_shm.declare.records import OpRecord
from timerd_shm.declare.states import ClientState, OpFlag, OpState, Outcome
from timerd_shm.read.alive import now_ns
from timerd_shm.read.reader import ArenaReader, DamageError
from timerd_shm.read.text import plain

from .ops import client_of, keys_of

EPILOG = """\
next run: when the call is due; "waits": it is due, and no member of its group
is free that handles its name; "runs": a member has it. last run and last error
are those of the last attempt of a call that is retried, and of the last point
of a schedule. The id of a schedule is its name. A call that is over stands here
no more: its error is in the log of the worker that has run it.

examples:
  timerctl calls                      what comes next, in order of time
  timerctl calls --match 'mail/*'     calls of these names
  timerctl calls --failed --json      those whose last attempt has failed
"""


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Declare the command."""
    command = declare(
        commands,
        common,
        "calls",
        run,
        help="named calls: next run, last run, last error",
        description="The named calls of an instance, in order of their next runs.",
        epilog=EPILOG,
    )
    command.add_argument("--group", metavar="NAME", help="only of this group")
    command.add_argument("--match", metavar="PATTERN", help="only names that match (*, ?, [...])")
    command.add_argument("--failed", action="store_true", help="only those whose last attempt has failed")
    add_limit(command)


def run(arguments: argparse.Namespace) -> int:
    """Print them."""
    paths = paths_of(arguments)
    with open_arena(paths) as reader:
        header = reader.header()
        found = sorted(chosen(reader, arguments), key=lambda row: row["deadline_ns"])
    rows = list(islice(found, arguments.limit))
    more = f"There are more: raise --limit ({arguments.limit})." if len(found) > len(rows) else ""
    return show(arguments, paths, header, rows, CALLS_TABLE, cells_of, "No calls.", more)


def chosen(reader: ArenaReader, arguments: argparse.Namespace) -> Iterator[Row]:
    now = now_ns(reader.header())
    generations = [client.generation if client.state != ClientState.FREE else 0 for client in reader.clients]
    groups = [plain(group.name[: group.name_length]) for group in reader.groups]
    for index, op in enumerate(reader.ops.used()):
        if not op.flags & OpFlag.CALL or op.state not in (OpState.PENDING, OpState.SETTLED):
            continue
        if op.state == OpState.SETTLED and op.outcome == Outcome.CANCELLED:
            continue
        keys = keys_of(reader, index, op)
        plan = plan_of(reader, index, op)
        if not keys or plan is None:
            continue  # it has ended while it was read
        group = groups[op.group - 1] if 0 < op.group <= len(groups) else ""
        row = row_of(op, plain(keys[0][0]), plan, group, client_of(op, generations), now)
        if arguments.group not in (None, group) or (arguments.failed and not plan.error):
            continue
        if arguments.match is None or fnmatchcase(row["name"], arguments.match):
            yield row


def plan_of(reader: ArenaReader, index: int, op: OpRecord) -> Plan | None:
    """The plan of a call; None if the record has become another operation's while it was read."""
    try:
        found = unpack(reader.blob(op.payload))
    except DamageError:
        return None
    after = reader.ops[index]
    return None if found is None or (after.generation, after.payload) != (op.generation, op.payload) else found[0]


def row_of(op: OpRecord, name: str, plan: Plan, group: str, client: int | None, now: int) -> Row:
    pending = op.state == OpState.PENDING
    return {
        "name": name,
        "id": plan.id or name,
        "group": group,
        "state": "pending" if pending else "waits" if client is None else "runs",
        "scheduled": plan.kind != CALL,
        "deadline_ns": op.deadline_ns,
        "next_run": due_in(op.deadline_ns, now),
        "attempt": plan.failures + 1,
        "last_run": None if not plan.last_run_ns else datetime.fromtimestamp(plan.last_run_ns / 1e9, UTC).isoformat(),
        "last_run_ago": None if not plan.last_run_ns else span(max(0, time.time_ns() - plan.last_run_ns)),
        "last_error": plan.error or None,
        "deliveries": op.deliveries,
        "client": None if pending else client,
    }


CALLS_TABLE = Table(
    Column("name", flexible=True),
    Column("id", flexible=True),
    Column("next run", right=True),
    Column("last run", right=True),
    Column("attempt", right=True),
    Column("last error", flexible=True),
    Column("group", flexible=True, optional=True),
    Column("client", right=True, optional=True),
)


def cells_of(row: Row) -> tuple[object, ...]:
    return (
        row["name"],
        "-" if row["id"] == row["name"] else plain(row["id"].encode()),
        f"in {row['next_run']}" if row["state"] == "pending" else row["state"],
        "-" if row["last_run_ago"] is None else f"{row['last_run_ago']} ago",
        row["attempt"],
        plain((row["last_error"] or "-").encode()),
        row["group"],
        "-" if row["client"] is None else row["client"],
    )
