"""Members of a group on a rig: the common parts of tests of groups in the core."""

from __future__ import annotations

from typing import Any

from support.rig.commands import Answer, Command, Key, OperationAct, Register
from support.rig.frames import DeliveredForGroup
from support.rig.harness import Client, Rig, S, done
from timerd_shm.declare.errors import ErrorCode
from timerd_shm.declare.layout import Region
from timerd_shm.declare.states import OpState, Orphans
from timerd_shm.declare.wire import CommandKind

WORKERS = b"workers"
HOUR = 3_600 * S
ID = b"id".ljust(16, b".")
# Clients send this for if_exists="error": the id of a call counts as free if the call was cancelled or is done.
NEW = "replace cancelled"
LONG = b"a key that is longer than what fits in any record, so that it needs a block of its own"


def worker(rig: Rig, orphans: Orphans = Orphans.GROUP) -> Client:
    """A member that takes outcomes."""
    return rig.client(orphans, group=WORKERS, listens=True)


def watch(*keys: bytes, timeout_ns: int = HOUR, **more: object) -> Register:
    return Register(tuple(Key(key) for key in keys), timeout_ns=timeout_ns, **more)  # type: ignore[arg-type]


def work(*keys: bytes, timeout_ns: int = HOUR, **more: object) -> Register:
    """An operation that belongs to the group from the start."""
    return watch(*keys, timeout_ns=timeout_ns, for_group=True, **more)


def call(*names: bytes, timeout_ns: int = 0, **more: object) -> Register:
    """A call with a name, "job" if none is given. It is due at once, unless `timeout_ns` says otherwise."""
    return work(*names or (b"job",), timeout_ns=timeout_ns, call=True, **more)


def handler(rig: Rig, *names: bytes, most: int = 1, listens: bool = False, group: bytes = WORKERS) -> Client:
    """A member that takes calls of these names."""
    client = rig.client(group=group, listens=listens)
    assert rig.core.set_calls(client.slot, most, 0, list(names), rig.now_ns) == most
    return client


def due(rig: Rig, client: Client, **more: Any) -> DeliveredForGroup:
    """A call that is due, and that was delivered to this member."""
    rig.do(client, call(**more))
    return client.delivered_for_group[-1]


def cancel_id(id: bytes = ID) -> OperationAct:
    return OperationAct(CommandKind.CANCEL_ID, id=id, wants_answer=True)


def answered(rig: Rig, client: Client, command: Command) -> Answer:
    """The daemon's answer to a command that wants one."""
    found = client.answer(rig.do(client, command))
    assert found is not None, f"{command} was not answered"
    return found


def ask(rig: Rig, client: Client, command: Command) -> int:
    """The value of the daemon's answer to a command that wants one."""
    return answered(rig, client, command).value


def silence(rig: Rig, client: Client) -> None:
    rig.core.silence(client.slot, rig.now_ns)
    rig.turn()


def answer(rig: Rig, client: Client, delivered: DeliveredForGroup) -> int:
    """Acknowledge an outcome as done. Returns 1 if the client held the outcome, else 0."""
    number = rig.do(client, done(delivered))
    found = client.answer(number)
    assert found is not None and found.code == ErrorCode.NONE, found
    return found.value


def waiting(rig: Rig) -> int:
    """The number of outcomes of groups that no member holds now."""
    return sum(
        op.state == OpState.SETTLED and op.group != 0 and op.client_generation == 0
        for op in rig.arena.records(Region.OPS)
    )
