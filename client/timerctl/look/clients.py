"""timerctl clients: the clients, their holdings, and facts of their processes."""

from __future__ import annotations

import argparse
import pwd
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

from timerctl.instance import open_arena, paths_of
from timerctl.listing import add_limit, declare, show
from timerctl.show.table import Column, Table
from timerctl.show.text import size, span
from timerd_shm.declare.limits import UID_UNKNOWN
from timerd_shm.declare.records import AccountRecord, ArenaHeader, ClientRecord, UserRecord
from timerd_shm.declare.states import ClientFlag, ClientState, Orphans
from timerd_shm.read.alive import now_ns
from timerd_shm.read.reader import ArenaReader
from timerd_shm.read.text import label

from .handlers import Handlers, is_stopped
from .processes import process_of

ORDERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "pending": lambda row: (-row["pending"], -row["backlog"]),
    "backlog": lambda row: (-row["backlog"], -row["pending"]),
    "share": lambda row: -used_of(row["quotas"]),
    "doing": lambda row: -((row["outcomes_held"] or 0) + (row["calls_held"] or 0)),
    "silent": lambda row: -(row["silent_ns"] or 0),
    "cpu": lambda row: -(row["cpu_percent"] or 0),
    "name": lambda row: str(row["name"]),
    "slot": lambda row: (row["slot"] is None, row["slot"] or 0),
}
ENDED = (ClientState.DEAD, ClientState.TOMBSTONE)
# The columns of a client that a row of ended clients does not have.
ENDED_ROW: dict[str, Any] = {
    "slot": None,
    "pid": None,
    "name": None,
    "state": "ended",
    "stopped": False,
    "listens": False,
    "handles": {"count": 0, "known": []},
    "lease_ns": None,
    "takeover_ns": None,
    "keeps": False,
    "silent_ns": None,
    "died_ago_ns": None,
    "outcomes_held": None,
    "calls_held": None,
    "answers": None,
    "watermarks": None,
    "ids": None,
    "orphans": None,
    "last_command": None,
    "heard_ago_ns": None,
    "ended": True,
    "command": None,
    "cpu_percent": None,
    "rss_bytes": None,
}
EPILOG = """\
state: live; silent (it sent nothing for its lease); "silent, keeps for 4 min"
(silent, but its process runs: in 4 min other members of its group get what it
is doing); "live, stopped" (its process got SIGSTOP, or is in a debugger); dead
(what it held is being removed); tombstone (dead, but its numbering is kept for
an hour); ended (not one client: the row counts what ended clients of a user
have left in a group). silent: how long it sent nothing while the daemon was
reading. pending: operations that have not settled.
backlog: outcomes that it has not acknowledged. serves: what it takes of its
group: "outcomes", if it iterates over outcomes(), and the names of its
handlers. The arena has only the hash of such a name. So a name is shown if a
call in the arena has this name, and other handlers are counted. made:
operations of its group that it has made, pending or not done. doing: outcomes
and calls of its group that were delivered to it, and are not done. share: the
quota that it has used most, and how much of that quota (--json has all
quotas). `heard`: time since its last frame. lease: how long it may send nothing
before it is silent. takeover: how long it keeps what it is doing while it is
silent and its process runs. held: bytes of payloads, values and long keys. cpu:
share of one core, on average since the process started. Columns that do not fit
are left out, and named below: COLUMNS=250 timerctl clients shows all.

examples:
  timerctl clients                          those with the most pending first
  timerctl clients --sort share --limit 5
  timerctl clients --json | jq '.rows[] | select(.backlog > 100)'
  timerctl clients --json | jq '.rows[] | [.name, .group, .handles]'
  timerctl clients --json | jq '.rows[] | [.user, .group, .made.outcomes]'
"""


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Declare the command."""
    command = declare(
        commands,
        common,
        "clients",
        run,
        help="clients, what they hold, their processes",
        description=(
            "The clients of an instance, one for each connection of a process, and what\n"
            "ended clients have left in groups. So this shows who holds the arena."
        ),
        epilog=EPILOG,
    )
    about = f"{', '.join(ORDERS)} (default: pending, the most first)"
    command.add_argument("--sort", metavar="COLUMN", choices=ORDERS, default="pending", help=about)
    add_limit(command)


def run(arguments: argparse.Namespace) -> int:
    """Print the clients."""
    paths = paths_of(arguments)
    with open_arena(paths) as reader:
        header = reader.header()
        found = sorted(rows_of(reader, header), key=ORDERS[arguments.sort])
    rows = found[: arguments.limit]
    more = f"{len(found) - len(rows)} more: raise --limit ({arguments.limit})." if len(found) > len(rows) else ""
    return show(arguments, paths, header, rows, CLIENTS_TABLE, cells_of, "No clients.", more)


def rows_of(reader: ArenaReader, header: ArenaHeader) -> list[dict[str, Any]]:
    """A row for each client, and one for each user and group that ended clients have left something in."""
    records, groups, users, accounts = reader.between_turns(
        lambda: (list(reader.clients), list(reader.groups), list(reader.users), list(reader.accounts))
    )
    handlers = Handlers(reader)
    names = [label(group.name[: group.name_length]) for group in groups]
    rows = [
        row_of(slot, client, names[client.group - 1] if 0 < client.group <= len(names) else None, header)
        | {"handles": handlers.of(client)}
        | made_of(accounts[slot], users)
        for slot, client in enumerate(records)
        if client.state != ClientState.FREE
    ]
    return [*rows, *ended_rows(users, accounts[len(records) :], names, header)]


def row_of(slot: int, client: ClientRecord, group: str | None, header: ArenaHeader) -> dict[str, Any]:
    process = process_of(client.pid, client.start_ticks, client.pid_namespace)
    return {
        "slot": slot,
        "pid": client.pid or None,
        "name": label(client.name[: client.name_length]),
        "state": ClientState(client.state).name.lower() if client.state in list(ClientState) else str(client.state),
        "group": group,
        "listens": bool(client.flags & ClientFlag.LISTENS),
        "lease_ns": client.lease_ns,
        "takeover_ns": client.takeover_ms * 1_000_000,
        "keeps": bool(client.flags & ClientFlag.KEEPS),
        "stopped": is_stopped(client),
        "silent_ns": client.silent_ns,
        "died_ago_ns": max(now_ns(header) - client.died_ns, 0) if client.state in ENDED else None,
        "pending": client.pending,
        "backlog": client.unacknowledged,
        "outcomes_held": client.held,
        "calls_held": client.calls_held,
        "answers": client.answers,
        "watermarks": client.watermarks,
        "nodes": client.nodes,
        "bytes_held": client.bytes_held,
        "ids": client.ids,
        "quotas": quotas_of(client, header),
        "orphans": Orphans(client.orphans).name.lower() if client.orphans in list(Orphans) else str(client.orphans),
        "last_command": client.last_command,
        "heard_ago_ns": max(now_ns(header) - client.last_frame_ns, 0),
        "ended": process is None,
        "command": process.command if process else None,
        "cpu_percent": process.cpu_percent if process else None,
        "rss_bytes": process.rss_bytes if process else None,
    }


def made_of(account: AccountRecord, users: Sequence[UserRecord]) -> dict[str, Any]:
    """The user of an account, and the sums over the operations of groups that are charged to this account."""
    uid = users[account.user].uid if account.user < len(users) else UID_UNKNOWN
    return {
        "uid": None if uid == UID_UNKNOWN else uid,
        "user": user_name(uid),
        "made": {
            "pending": account.pending,
            "outcomes": account.outcomes,
            "nodes": account.nodes,
            "bytes": account.bytes_held,
        },
    }


@cache
def user_name(uid: int) -> str | None:
    """The name of a user of this host, or the uid if it has no name. None for UID_UNKNOWN: many users, or not known."""
    if uid == UID_UNKNOWN:
        return None
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def ended_rows(
    users: Sequence[UserRecord], accounts: Sequence[AccountRecord], groups: Sequence[str], header: ArenaHeader
) -> Iterator[dict[str, Any]]:
    """A row for each user and group for which ended clients of the user have made something that is still there.

    The group of operations without an owner (orphans="keep") is None.
    """
    for user in range(len(users)):
        own = [*accounts[user * len(groups) : (user + 1) * len(groups)], accounts[len(users) * len(groups) + user]]
        used = {
            "operations": sum(each.pending + each.outcomes for each in own),
            "bytes": sum(each.bytes_held for each in own),
            "nodes": sum(each.nodes for each in own),
        }
        quotas = {name: {"used": sum_, "limit": getattr(header, f"quota_{name}")} for name, sum_ in used.items()}
        for group, account in zip([*groups, None], own, strict=True):
            if account.pending or account.outcomes:
                yield (
                    ENDED_ROW
                    | made_of(account._replace(user=user), users)
                    | {
                        "group": group,
                        "pending": account.pending,
                        "backlog": account.outcomes,
                        "nodes": account.nodes,
                        "bytes_held": account.bytes_held,
                        "quotas": quotas,
                    }
                )


def quotas_of(client: ClientRecord, header: ArenaHeader) -> dict[str, dict[str, int]]:
    """How much of each quota the client has used, by the name of its flag without `--quota-`."""
    used = {
        "operations": client.pending + client.unacknowledged,
        "outcomes": client.unacknowledged,
        "bytes": client.bytes_held,
        "nodes": client.nodes,
        "watermarks": client.watermarks,
        "ids": client.ids,
        "answers": client.answers,
    }
    return {name: {"used": number, "limit": getattr(header, f"quota_{name}")} for name, number in used.items()}


def used_of(quotas: dict[str, dict[str, int]]) -> float:
    """The largest part that is used of a quota, from 0 to 1."""
    return max(each["used"] / max(each["limit"], 1) for each in quotas.values())


def share_of(quotas: dict[str, dict[str, int]]) -> str:
    """The quota of which the client has used the largest part: "97 % bytes", "0.031 % operations"."""
    name, most = max(quotas.items(), key=lambda item: item[1]["used"] / max(item[1]["limit"], 1))
    return f"{percent(most['used'], max(most['limit'], 1))} % {name}" if most["used"] else "-"


def percent(used: int, limit: int) -> str:
    """A percentage, rounded down: 97, 3.1, 0.031. A small one has two digits, so that its order is visible."""
    for digits in (0, 1, 2, 3):
        scale = 10**digits
        if (number := 100 * scale * used // limit) >= 10:
            return f"{number / scale:.{digits}f}"
    return f"{number / scale:.{digits}f}" if number else f"<{1 / scale:.{digits}f}"


def serves(row: dict[str, Any]) -> str:
    """The column "serves": outcomes, and the names of the handlers, as far as they are known."""
    known, count = row["handles"]["known"], row["handles"]["count"]
    unknown = f"{count - len(known)} {'more ' if known else ''}handler{'s' * (count - len(known) > 1)}"
    return ", ".join(["outcomes"] * row["listens"] + known + [unknown] * (count > len(known))) or "-"


def state_of(row: dict[str, Any]) -> str:
    """The state of a client. If it is silent and its process runs: also how long it keeps its outcomes and calls."""
    left_ns = max(row["takeover_ns"] - row["silent_ns"], 0) if row["keeps"] else 0
    stopped = ", stopped" if row["stopped"] else ""
    return f"{row['state']}{stopped}, keeps for {span(left_ns)}" if row["keeps"] else f"{row['state']}{stopped}"


CLIENTS_TABLE = Table(
    Column("slot", right=True),
    Column("pid", right=True),
    Column("name", flexible=True),
    Column("state"),
    Column("group", flexible=True),
    Column("silent", right=True),
    Column("pending", right=True),
    Column("backlog", right=True),
    Column("serves", flexible=True, optional=True),
    Column("share", right=True, optional=True),
    Column("doing", right=True, optional=True),
    Column("made", right=True, optional=True),
    Column("user", optional=True),
    Column("heard", right=True, optional=True),
    Column("lease", right=True, optional=True),
    Column("takeover", right=True, optional=True),
    Column("held", right=True, optional=True),
    Column("orphans", optional=True),
    Column("cpu", right=True, optional=True),
    Column("rss", right=True, optional=True),
    Column("command", flexible=True, optional=True),
)


def cells_of(row: dict[str, Any]) -> tuple[object, ...]:
    return (
        "-" if row["slot"] is None else row["slot"],
        row["pid"] or "-",
        row["name"] or ("-" if row["slot"] is not None else f"user {row['user']}" if row["user"] else "other users"),
        state_of(row),
        row["group"] or "-",
        "-" if row["died_ago_ns"] is not None or row["slot"] is None else span(row["silent_ns"]),
        row["pending"],
        row["backlog"],
        serves(row),
        share_of(row["quotas"]),
        "-" if row["slot"] is None else row["outcomes_held"] + row["calls_held"],
        row["made"]["pending"] + row["made"]["outcomes"],
        row["user"] or "-",
        *("-" if row[name] is None else span(row[name]) for name in ("heard_ago_ns", "lease_ns", "takeover_ns")),
        size(row["bytes_held"]),
        row["orphans"] or "-",
        "-" if row["cpu_percent"] is None else f"{row['cpu_percent']:.1f} %",
        "-" if row["rss_bytes"] is None else size(row["rss_bytes"]),
        "(ended)" if row["ended"] else row["command"] or "-",
    )
