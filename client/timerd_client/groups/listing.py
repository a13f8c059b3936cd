"""A list of all calls in the arena: when each is due, why it waits, where it runs, and which ones are dead letters.

    for call in client.calls():
        print(call.name, call.state, call.pid)

It reads only the arena, so it works while the daemon is dead. If the daemon runs, calls change while the list is read.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Final, Literal, NamedTuple, TypeAlias

from timerd_shm.declare.limits import CALL_ENDS_SHIFT
from timerd_shm.declare.records import ClientRecord, OpRecord
from timerd_shm.declare.states import ClientState, OpFlag, OpState, Outcome
from timerd_shm.read import hashing, walk
from timerd_shm.read.alive import now_ns
from timerd_shm.read.reader import ArenaReader, DamageError
from timerd_shm.read.text import plain

from .plan import CALL, Plan, last_run_of, unpack
from .schedule import datetime_of

CallState: TypeAlias = Literal[
    "pending", "paused", "deserted", "unhandled", "silent", "busy", "waits", "delivered", "runs", "late", "failed"
]
"""The state of a call.

* pending: it is due later. paused: it is due later, after a failed attempt or an ended process.
* deserted: it is due, and its group has no member. unhandled: no member of its group handles its name.
* silent: it is due, and all members that handle its name are silent. busy: none of them is idle, and some are busy.
* waits: it has to run alone, or another call of its id runs.
* delivered: a member has it, and has not begun. runs: its handler, or its on_failure, runs. late: it has run for longer
  than its time_limit.
* failed: it is over, and kept as a dead letter.
"""

Members: TypeAlias = list[tuple[ClientRecord, frozenset[int]]]
"""Members of a group, each with the hashes of the names that it handles."""

UNSERVED: Final = "no member of its group has served it while it was kept"


class Clocks(NamedTuple):
    """Two clocks, in ns: CLOCK_MONOTONIC, and the wall clock."""

    now_ns: Callable[[], int]
    wall_ns: Callable[[], int]


class CallInfo(NamedTuple):
    """A call as it stands in the arena. Times are UTC, by the wall clock of this moment."""

    name: str
    id: str  # a schedule's id is its name; a dead letter has its former id, which is free again
    group: str
    state: CallState
    due: datetime  # when it comes next, or came last
    point: datetime | None  # the time it was planned for, as `call.due` (a retry comes later); None after call_later()
    scheduled: bool  # whether it is a point of a schedule
    attempt: int
    ended: int  # processes that have ended in its handler, or in its on_failure if that is next
    deliveries: int  # of this attempt; if the call was given up: only those to members that ran its handler
    pid: int  # the process that has the call, as the daemon sees it; 0 = none, or not known
    client: int | None  # the slot of the member that has the call
    since: datetime | None  # when the handler began; None if it does not run
    time_limit: float | None  # how long the handler may run, in seconds; None = for ever, or it does not run
    last_run: datetime | None  # when the last attempt ended
    last_error: str  # empty = none
    number: int  # the dead letter's number, for retry and drop; 0 for other calls
    reason: str  # why the call became a dead letter; empty for other calls
    payload: bytes
    op: int  # its op id
    name_bytes: bytes  # the name as given; in `name`, bytes that a terminal must not get are escaped

    @property
    def shown_id(self) -> str:
        """The id for people: bytes that a terminal must not get are escaped."""
        return plain(self.id.encode("utf-8", "surrogateescape"))


def listed(
    reader: ArenaReader, group: str | None = None, *, failed: bool = False, clocks: Clocks | None = None
) -> Iterator[CallInfo]:
    """The calls of a group (None: of all groups), or its dead letters, in the order of their records."""
    return (info for info, _, _ in listed_with_plans(reader, group, failed=failed, clocks=clocks))


def listed_with_plans(
    reader: ArenaReader, group: str | None = None, *, failed: bool = False, clocks: Clocks | None = None
) -> Iterator[tuple[CallInfo, Plan, str]]:
    """Like listed(), but also gives each call's plan, and its name as given, which may be unprintable."""
    header = reader.header()
    clocks = clocks or Clocks(time.monotonic_ns, time.time_ns)
    now, wall = now_ns(header, clocks.now_ns), clocks.wall_ns()
    clients = list(reader.clients)
    groups = [plain(each.name[: each.name_length]) for each in reader.groups]
    members: dict[int, Members] = {}
    for index, state, flags in reader.ops.columns("state", "flags"):
        if not flags & OpFlag.CALL or state not in (OpState.PENDING, OpState.SETTLED):
            continue
        op = reader.ops[index]
        if not op.flags & OpFlag.CALL or op.state != state:
            continue  # another operation has the record by now
        name_of_group = groups[op.group - 1] if 0 < op.group <= len(groups) else ""
        is_letter = bool(op.state == OpState.SETTLED and op.client_generation == 0 and op.outcome_number)
        if group not in (None, name_of_group) or is_letter != failed:
            continue
        if op.state == OpState.SETTLED and op.outcome == Outcome.CANCELLED:
            continue
        found = _read(reader, index, op)
        if found is None:
            continue  # the call has ended while it was read
        name, plan, payload, value = found
        holder = None
        if op.state == OpState.SETTLED and op.client_generation:
            client = clients[op.client]
            holder = client if client.generation == op.client_generation else None
        ended = (op.error >> CALL_ENDS_SHIFT if op.state == OpState.SETTLED else 0) + plan.ends
        deliveries, reason = op.deliveries + plan.earlier, ""
        if is_letter:
            end = last_run_of(value)
            reason = end.why or UNSERVED
            if end.at_ns:
                plan = plan._replace(last_run_ns=end.at_ns, error=end.why)
                deliveries, ended = end.deliveries, end.ends
        since = op.progress if op.state == OpState.SETTLED and op.progress else 0
        info = CallInfo(
            name=plain(name),
            id=plan.id or name.decode("utf-8", "surrogateescape"),
            group=name_of_group,
            state="failed" if is_letter else _state(reader, op, plan, holder, clients, members, name, now),
            due=datetime_of(max(0, wall + op.deadline_ns - now)),
            point=plan.due,
            scheduled=plan.kind != CALL,
            attempt=plan.failures + 1,
            ended=ended,
            deliveries=deliveries,
            pid=0 if holder is None else holder.pid,
            client=None if holder is None else op.client,
            since=datetime_of(wall - (now - since)) if since else None,
            time_limit=op.failed / 1e9 if since and op.failed else None,
            last_run=datetime_of(plan.last_run_ns) if plan.last_run_ns else None,
            last_error=plan.error,
            number=op.outcome_number if is_letter else 0,
            reason=reason,
            payload=payload,
            op=op.generation << 32 | index,
            name_bytes=name,
        )
        yield info, plan, name.decode(errors="replace")


def _read(reader: ArenaReader, index: int, op: OpRecord) -> tuple[bytes, Plan, bytes, bytes] | None:
    """Name, plan, payload and value of a call. None if another operation has the record now.

    A call without a plan comes from another program: no handler can run it, so it becomes a dead letter.
    """
    try:
        packed = reader.blob(op.payload)
        value = reader.blob(op.value) if op.state == OpState.SETTLED else b""
        name = reader.key_name(reader.nodes[next(walk.nodes_of(reader, index))])
    except (DamageError, StopIteration):
        return None
    after = reader.ops[index]
    if (after.generation, after.payload, after.state) != (op.generation, op.payload, op.state):
        return None
    return name, *(unpack(packed) or (Plan(CALL), packed)), value


def _state(
    reader: ArenaReader,
    op: OpRecord,
    plan: Plan,
    holder: ClientRecord | None,
    clients: list[ClientRecord],
    members: dict[int, Members],
    name: bytes,
    now: int,
) -> CallState:
    """The state of a call. `members` keeps the members of each group between calls of this function."""
    if op.state == OpState.PENDING:
        return "paused" if plan.failures or plan.ends else "pending"
    if holder is not None:
        if not op.progress:
            return "delivered"
        return "late" if op.failed and now - op.progress > op.failed else "runs"
    if op.group not in members:
        members[op.group] = [(each, frozenset(names_handled(reader, each))) for each in members_of(clients, op.group)]
    hashed = name_hash(op.purgatory, name)
    handlers = [client for client, hashes in members[op.group] if hashed in hashes]
    if not handlers:
        return "unhandled" if members[op.group] else "deserted"
    live = [client for client in handlers if client.state == ClientState.LIVE]
    if not live:
        return "silent"
    return "waits" if any(client.calls_held < client.calls for client in live) else "busy"


def members_of(clients: Iterable[ClientRecord], group: int) -> list[ClientRecord]:
    """The clients that are members of a group (index + 1)."""
    return [each for each in clients if is_member(each, group)]


def is_member(client: ClientRecord, group: int) -> bool:
    """Whether the client is a member of a group (index + 1)."""
    return client.group == group and client.state in (ClientState.LIVE, ClientState.SILENT)


def name_hash(purgatory: int, name: bytes) -> int:
    """The hash by which a client's record names a handler. It has no seed, so everybody can compute it."""
    return hashing.key_hash(bytes(hashing.SEED_SIZE), purgatory, name)


def names_handled(reader: ArenaReader, client: ClientRecord) -> tuple[int, ...]:
    """The hashes of the names that a client handles: the arena does not have the names themselves."""
    try:
        packed = reader.blob(client.names)
    except DamageError:
        return ()
    return struct.unpack(f"<{len(packed) // 8}Q", packed[: len(packed) // 8 * 8])
