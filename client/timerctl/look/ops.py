"""timerctl ops: the operations of an instance, filtered and bounded; and the buckets of its wheel.

A new column needs three things: a value in `row_of` (which is also the JSON), a head in OPERATIONS_TABLE, and a text in
`cells_of`.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from timerctl.exits import UsageError
from timerctl.instance import open_arena, paths_of
from timerctl.known import of_key, of_near_keys, of_near_names, purgatories_of, slots_of
from timerctl.listing import Row, add_bytes, add_limit, declare, show
from timerctl.show.table import Column, Table
from timerctl.show.text import begun, duration_ns, key_of, word
from timerd_client.groups.plan import unpack
from timerd_shm.declare.layout import BUCKETS, LEVEL_BITS, LEVELS
from timerd_shm.declare.limits import NO_DEADLINE
from timerd_shm.declare.records import OpRecord, WatchNode
from timerd_shm.declare.states import RULES, ClientState, Condition, KeyKind, OpFlag, OpState, Outcome
from timerd_shm.read import walk
from timerd_shm.read.reader import ArenaReader, DamageError
from timerd_shm.read.text import label, plain

from .clocks import Clocks
from .find import id_hash_of, number_of

BYTES_SHOWN = 40  # in a row of a table
DONE = {"satisfied": "(ok)", "failed": "(failed)"}
STATES = {"pending": (OpState.PENDING,), "settled": (OpState.SETTLED,), "all": (OpState.PENDING, OpState.SETTLED)}
EPILOG = f"""\
client: the slot of the operation's owner; for an operation of a group, the slot
of the member that holds it now; "-" if it waits in its group, or was kept when
its owner ended. group: the group that owns the operation. keys: the missing
ones first; r1(ok) is satisfied, r2(failed) has failed. id: whether the
operation has an id; the arena has only its hash. Payloads may be secrets:
--bytes 0 shows none. An operation that has settled is kept until its owner has
acknowledged its outcome. Most settled operations have no keys any more. A
listing of a live instance does not show one moment: operations may settle while
it is printed.

examples:
  timerctl ops --due-within 5s         what expires soon, or is overdue
  timerctl ops --key orders/42         operations that wait for a key
  timerctl ops --client web-1          of the clients of this name
  timerctl ops --client 3 --state all  all of the client in slot 3
  timerctl ops --bucket                the wheel's buckets that hold something
  timerctl ops --bucket 1:17 --json    bucket 17 of level 1
  timerctl explain 7.1                 all about one of them, by column "op"

Levels are 0 to {LEVELS - 1}, buckets 0 to {BUCKETS - 1}.
"""


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Declare the command."""
    command = declare(
        commands,
        common,
        "ops",
        run,
        help="operations, and the wheel's buckets",
        description="The operations of an instance, in order of their records.",
        epilog=EPILOG,
    )
    command.add_argument("--state", choices=STATES, default="pending", help="default: pending")
    command.add_argument("--purgatory", metavar="NAME", help="only of this purgatory")
    command.add_argument("--key", metavar="KEY", type=key_of, help="only those that watch this key")
    command.add_argument("--client", metavar="NAME|SLOT", help="only of clients of this name, or of this slot")
    command.add_argument(
        "--due-within", metavar="TIME", type=duration_ns, help="only those due within TIME (5s, 200ms, 1h)"
    )
    command.add_argument(
        "--bucket",
        metavar="LEVEL:INDEX",
        nargs="?",
        const="",
        help="only of this bucket; --bucket alone lists all buckets",
    )
    add_bytes(command, "payloads", BYTES_SHOWN)
    add_limit(command)


def run(arguments: argparse.Namespace) -> int:
    """Print operations or buckets."""
    paths = paths_of(arguments)
    with open_arena(paths) as reader:
        header = reader.header()
        found = buckets(reader, arguments.limit) if arguments.bucket == "" else operations(reader, arguments)
        nothing, hints = ("", []) if found or arguments.bucket == "" else absence(reader, arguments)
    rows = found[: arguments.limit]
    more = f"There are more: raise --limit ({arguments.limit})." if len(found) > len(rows) else ""
    if arguments.bucket == "":
        return show(arguments, paths, header, rows, BUCKETS_TABLE, cells_of_bucket, "The wheel is empty.", more)
    return show(arguments, paths, header, rows, OPERATIONS_TABLE, cells_of, nothing, more, hints=hints)


def absence(reader: ArenaReader, arguments: argparse.Namespace) -> tuple[str, list[Row]]:
    """A sentence for a listing without rows, and hints: a filter may have a name that nothing has."""
    purgatories = list(purgatories_of(reader).values())
    if arguments.purgatory is not None and arguments.purgatory not in purgatories:
        near = of_near_names(arguments, "purgatory", arguments.purgatory, purgatories, "ops", "--purgatory")
        return f"No operations: there is no purgatory {arguments.purgatory!r:.40} now.", list(near)
    if arguments.client is not None and not slots_of(reader, arguments.client):
        clients = [label(each.name[: each.name_length]) for each in reader.clients if each.state != ClientState.FREE]
        near = of_near_names(arguments, "client", arguments.client, clients, "ops", "--client")
        return f"No operations: no client has the name or the slot {arguments.client!r:.40} now.", list(near)
    if arguments.key is None:
        return "No operations.", []
    found = list(of_key(reader, arguments, arguments.key))
    if not found:
        found = list(of_near_keys(reader, arguments, arguments.key, "ops", "--key"))
    return "No operations.", found


# operations ----------------------------------------------------------------------------------------------------------


def operations(reader: ArenaReader, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows up to the limit, and one more if there are more."""
    return list(islice(chosen(reader, arguments, Clocks(reader.header())), arguments.limit + 1))


def chosen(reader: ArenaReader, arguments: argparse.Namespace, clocks: Clocks) -> Iterator[dict[str, Any]]:
    rows = Rows(reader, clocks, arguments.bytes)
    states = STATES[arguments.state]
    slots = None if arguments.client is None else slots_of(reader, arguments.client)
    due_by = None if arguments.due_within is None else clocks.now_ns + arguments.due_within
    for index, op in candidates(reader, arguments.bucket):
        if op.state not in states or op.purgatory >= len(rows.purgatories):
            continue
        if arguments.purgatory is not None and rows.purgatories[op.purgatory] != arguments.purgatory:
            continue
        if slots is not None and rows.client_of(op) not in slots:
            continue
        if due_by is not None and not op.deadline_ns <= due_by:
            continue
        keys = keys_of(reader, index, op)
        if arguments.key is None or arguments.key in [name for name, _, _ in keys]:
            yield rows.of(index, op, keys)


class Rows:
    """Makes the rows of operations."""

    def __init__(self, reader: ArenaReader, clocks: Clocks, bytes_shown: int = BYTES_SHOWN) -> None:
        self._reader, self._clocks, self._bytes = reader, clocks, bytes_shown
        self.purgatories = [reader.purgatory_name(index) for index in range(len(reader.purgatories))]
        self._generations = [each.generation if each.state != ClientState.FREE else 0 for each in reader.clients]
        self._groups = [plain(group.name[: group.name_length]) for group in reader.groups]

    def of(self, index: int, op: OpRecord, keys: list[tuple[bytes, int | None, str]] | None = None) -> Row:
        """The row of an operation; `keys` if they were read before."""
        keys = keys_of(self._reader, index, op) if keys is None else keys
        return row_of(index, op, self.purgatories[op.purgatory], keys, self._clocks) | {
            "client": self.client_of(op),
            "group": self.group_of(op),
            "id_hash": id_hash_of(self._reader, op),
            "payload": begun(payload_of(self._reader, op), self._bytes),
        }

    def client_of(self, op: OpRecord) -> int | None:
        """The slot of the client that owns the operation, or holds it for its group; None if there is none now."""
        return client_of(op, self._generations)

    def group_of(self, op: OpRecord) -> str | None:
        """The name of the operation's group, if it has one."""
        return self._groups[op.group - 1] if 0 < op.group <= len(self._groups) else None


def client_of(op: OpRecord, generations: list[int]) -> int | None:
    """The slot of the client that owns the operation, or holds it for its group; None if there is none now.

    The record keeps the slot when its client has ended. By then another client may use that slot.
    """
    slot = op.client
    if op.client_generation and slot < len(generations) and generations[slot] == op.client_generation:
        return slot
    return None


def candidates(reader: ArenaReader, bucket: str | None) -> Iterable[tuple[int, OpRecord]]:
    """All operations, or those in a bucket."""
    if bucket is None:
        return enumerate(reader.ops.used())
    found = re.fullmatch(r"(\d{1,3}):(\d{1,3})", bucket)
    level, position = map(int, found.groups()) if found is not None else (LEVELS, BUCKETS)
    if level >= LEVELS or position >= BUCKETS:
        raise UsageError(
            f"bucket {bucket!r:.40} is not LEVEL:INDEX: levels are 0 to {LEVELS - 1}, indexes 0 to {BUCKETS - 1}"
        )
    indexes = reader.between_turns(lambda: list(walk.bucket(reader, level, position)))
    return [(index, reader.ops[index]) for index in indexes]


def blob_of(reader: ArenaReader, first: int) -> bytes:
    """A payload or value; empty if it leaves the arena while it is read."""
    try:
        return reader.blob(first)
    except DamageError:
        return b""


def payload_of(reader: ArenaReader, op: OpRecord) -> bytes:
    """The payload of an operation, as its caller gave it. In the arena a call's payload follows its plan."""
    payload = blob_of(reader, op.payload)
    planned = unpack(payload) if op.flags & OpFlag.CALL else None
    return payload if planned is None else planned[1]


def state_of_key(op: OpRecord, node: WatchNode) -> str:
    """A key is missing, satisfied or failed; or watched, for a subscription, a delayed operation or a call."""
    bit = 1 << node.ordinal
    if op.condition in (Condition.OBSERVE, Condition.OWNER) or op.flags & OpFlag.CALL:
        return "watched"
    if op.failed & bit:
        return "failed"
    return "satisfied" if op.condition != Condition.TOTAL and op.progress & bit else "missing"


def keys_of(reader: ArenaReader, index: int, op: OpRecord) -> list[tuple[bytes, int | None, str]]:
    """(name, watermark to reach or None, state) of an operation's keys; empty if it settled and did not keep them."""
    if op.state != OpState.PENDING and not op.flags & OpFlag.KEYS_KEPT:
        return []
    keys: list[tuple[bytes, int | None, str]] = []
    try:
        for number in walk.nodes_of(reader, index):
            node = reader.nodes[number]
            target = node.target if node.kind == KeyKind.WATERMARK else None
            keys.append((reader.key_name(node), target, state_of_key(op, node)))
    except DamageError:
        pass  # the operation settled while it was read; show the keys read so far
    return keys


def outcome_of(op: OpRecord) -> str:
    """The outcome of an operation: completed, expired, and so on; pending, if it has none.

    A call that is due has settled as expired, because its deadline is its due time. Here it is called "due", and a dead
    letter "failed".
    """
    if op.state != OpState.SETTLED or op.outcome not in list(Outcome):
        return "pending"
    if op.flags & OpFlag.CALL and op.outcome != Outcome.CANCELLED:
        return "failed" if op.client_generation == 0 and op.outcome_number else "due"
    return Outcome(op.outcome).name.lower()


def row_of(
    index: int, op: OpRecord, purgatory: str, keys: list[tuple[bytes, int | None, str]], clocks: Clocks
) -> dict[str, Any]:
    settled = op.state == OpState.SETTLED
    # Else `progress` and `failed` are no masks of keys: of a settled call they describe the run.
    has_masks = op.condition not in (Condition.OBSERVE, Condition.OWNER) and not (settled and op.flags & OpFlag.CALL)
    now = clocks.now_ns
    return {
        "op": op.generation << 32 | index,
        "number": number_of(op.generation, index),
        "state": outcome_of(op),
        "purgatory": purgatory,
        "command": op.command,
        "condition": condition_of(op),
        "keys": [{"key": plain(name), "watermark": target, "state": state} for name, target, state in keys],
        "satisfied": op.progress.bit_count() if has_masks and op.condition != Condition.TOTAL else None,
        "failed": op.failed.bit_count() if has_masks else None,
        "deadline_ns": None if op.deadline_ns == NO_DEADLINE else op.deadline_ns,
        **clocks.due(op.deadline_ns),
        "waiting_ns": max(0, (op.settled_ns if settled else now) - op.registered_ns),
        "bucket": f"{(op.bucket - 1) // BUCKETS}:{(op.bucket - 1) % BUCKETS}" if op.bucket and not settled else None,
        "outcome_number": op.outcome_number if settled else None,
    }


def condition_of(op: OpRecord) -> str:
    """The condition: any, all, at-least:K, all_settled, observe, owner, or the amount that a total still lacks."""
    if op.condition == Condition.TOTAL:
        return f"total, {op.progress} to go"
    if op.condition != Condition.AT_LEAST and (rule := RULES.get(op.condition)) is not None:
        name = Condition(op.condition).name.lower()
        return f"{name}:{op.needed}" if rule.takes_needed else name
    if op.needed == op.keys:
        return "any" if op.keys == 1 else "all"
    return "any" if op.needed == 1 else f"at-least:{op.needed}"


OPERATIONS_TABLE = Table(
    Column("op", right=True),
    Column("state"),
    Column("client", right=True),
    Column("group", flexible=True, optional=True),
    Column("due in", right=True),
    Column("condition", flexible=True),
    Column("keys", flexible=True),
    Column("purgatory", flexible=True, optional=True),
    Column("id", optional=True),
    Column("bucket", right=True, optional=True),
    Column("command", right=True, optional=True),
    Column("payload", flexible=True, optional=True),
)


def cells_of(row: Row) -> tuple[object, ...]:
    return (
        row["number"],
        row["state"],
        "-" if row["client"] is None else row["client"],
        row["group"] or "-",
        row["due_in"] if row["state"] == "pending" else "-",
        row["condition"],
        " ".join(map(written, sorted(row["keys"], key=lambda each: each["state"] in DONE))) or "-",
        row["purgatory"],
        "yes" if row["id_hash"] else "-",
        row["bucket"] or "-",
        row["command"],
        f"{row['payload']['text']}{'...' if row['payload']['cut'] else ''}" or "-",
    )


def written(key: dict[str, Any]) -> str:
    """A key in one word: name, or name>=watermark; r1(ok) is satisfied, r2(failed) has failed."""
    watermark = "" if key["watermark"] is None else f">={key['watermark']}"
    return f"{word(key['key'])}{watermark}{DONE.get(key['state'], '')}"


# buckets -------------------------------------------------------------------------------------------------------------


def buckets(reader: ArenaReader, limit: int) -> list[dict[str, Any]]:
    """The buckets that are not empty, the finest level first: up to the limit, and one more if there are more."""
    header = reader.header()
    clocks, tick_ns = Clocks(header), header.tick_ns
    rows = []
    for bucket in islice(walk.occupied_buckets(reader), limit + 1):
        shift = LEVEL_BITS * bucket.level
        # The first tick of this bucket that is after the wheel's own time.
        present = header.wheel_tick >> shift
        start = (present + 1 + (bucket.index - present - 1) % BUCKETS) << shift
        rows.append(
            {
                "bucket": f"{bucket.level}:{bucket.index}",
                "count": bucket.count,
                "first_tick": start,
                "ticks": 1 << shift,
                **clocks.due(start * tick_ns),
            }
        )
    return rows


BUCKETS_TABLE = Table(
    Column("bucket"),
    Column("operations", right=True),
    Column("from tick", right=True),
    Column("ticks", right=True),
    Column("begins in", right=True),
)


def cells_of_bucket(row: Row) -> tuple[object, ...]:
    return row["bucket"], row["count"], row["first_tick"], row["ticks"], row["due_in"]
