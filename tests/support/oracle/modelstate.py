"""The state of the model: operations, events, clients and ids as plain objects, and the limits that it knows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from support.rig.commands import Answer, Delivered, Key, Register
from timerd_client.rules import records as rules
from timerd_shm.declare.states import EventKind, Orphans, Outcome
from timerd_shm.declare.wire import CommandKind

EVENT_OF = {
    CommandKind.FIRE: EventKind.FIRE,
    CommandKind.ADVANCE: EventKind.ADVANCE,
    CommandKind.FAIL: EventKind.FAIL,
    CommandKind.CANCEL_FOR_KEY: EventKind.CANCEL_FOR_KEY,
    CommandKind.FORGET: EventKind.FORGET,
    CommandKind.CHECK: EventKind.CHECK,
}

if TYPE_CHECKING:
    from support.oracle.model import Model


class Event(rules.Event):
    """An event, its value, and the number of operations that it has settled."""

    __slots__ = ("settled", "value")

    client: Client | None
    purgatory: int
    key: bytes

    def __init__(self, value: bytes, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.value, self.settled = value, 0


class Operation(rules.Operation):
    """An operation, and what its client or group has to know of it."""

    client: Client
    keys: tuple[Key, ...]
    purgatory: int
    id: bytes | None

    def __init__(self, registration: int, client: Client, command: Register, deadline_ns: int) -> None:
        super().__init__(
            registration,
            command.purgatory,
            command.keys,
            command.condition,
            command.needed,
            command.total,
            deadline_ns,
            command.id,
            client,
        )
        self.command = client.last_command
        self.registered_ns = 0
        self.orphans = client.orphans if command.orphans is None else command.orphans
        self.payload, self.call = command.payload, command.call
        self.group = client.group if command.for_group else b""  # if given, the operation belongs to this group
        self.left = False  # it is a group's, and the client that has made it has ended
        self.counted = 0  # sequence of the newest event on its keys that was applied to it
        self.codes: dict[int, int] = {}  # the error codes of the failed keys, by ordinal
        self.look = 0  # under OWNER: sequence of the newest event at which the owner is to look
        self.looked = 0  # sequence of the newest event at which the owner has looked


class Settled(NamedTuple):
    """An outcome that its owner has not acknowledged."""

    operation: Operation
    delivered: Delivered
    event: Event | None

    @property
    def is_granted(self) -> bool:
        """Whether the operation has taken a grant of a limited event."""
        return self.operation.is_granted(self.event)


@dataclass(eq=False)
class Client(rules.Sender):
    name: int
    orphans: Orphans = Orphans.CANCEL
    group: bytes = b""
    last_command: int = 0
    next_outcome: int = 1
    delivered: list[Delivered] = field(default_factory=list)
    reported: int = 0  # how many of `delivered` were delivered before the present turn
    # For each outcome: the least and the greatest mark that the core may give it, so that no event is missed.
    marks: list[tuple[int, int]] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    unacknowledged: list[Settled] = field(default_factory=list)
    is_live: bool = True

    def granted(self) -> list[Settled]:
        """The grants of limited events that would be requeued if the client died."""
        return [each for each in self.unacknowledged if each.is_granted and each.operation.orphans is not Orphans.GROUP]


class Settling(NamedTuple):
    """How an operation settled, whether its outcome is delivered or not."""

    op: Operation
    state: Outcome
    ordinal: int | None
    event: Event | None
    settled_ns: int


@dataclass
class Remembered:
    """An id, and its operation while that is pending. `operation` is None if the operation has settled."""

    operation: Operation | None
    cancelled: bool = False


class Limits(NamedTuple):
    """The numbers of watch nodes and watermarks, and the quotas of one client or group: nodes, watermarks and ids.

    An operation needs a watch node for each key after its first.
    """

    nodes: int
    watermarks: int
    quota_nodes: int
    quota_watermarks: int
    quota_ids: int


UNLIMITED = Limits(*(1 << 60,) * 5)


def takes_last_quarter(model: Model, client: Client, further: int) -> bool:
    """Whether an operation that may outlive its client would take the last quarter of the operations or watch nodes.

    That quarter is kept for other users; in the model, all clients are of one user. `further`: the number of the
    operation's keys after the first.
    """
    peopled = {each.group for each in model.clients if each.is_live and each is not client}
    limits = model.limits
    # For each operation that counts: the number of its further keys, and whether it may be evicted.
    held: list[tuple[int, bool]] = []
    in_use = len(model.pending) + len(model.group_outcomes)
    for op in model.pending:
        is_left = op.kept or (op.left and op.group not in peopled)
        if is_left or (op.client is client and not op.left):
            held.append((len(op.keys) - 1, False))
    for key, outcome in model.group_outcomes.items():
        maker = model.makers[key]
        if maker is client or (maker is None and key[0] not in peopled):
            held.append((len(outcome.keys) - 1, maker is None and not model.is_held(key)))
    for each in model.clients:
        in_use += len(each.unacknowledged)
    evictable = min(sum(goes for _, goes in held), model.quota_operations)
    kept = sum(not goes for _, goes in held) + len(client.unacknowledged) + evictable
    allowed = max(model.capacity - model.capacity // 4, model.quota_operations)
    if 4 * (model.capacity - in_use) < model.capacity and kept >= allowed:
        return True
    nodes = sum(count for one, count in model.nodes_held if one == client)
    nodes -= sum(len(op.keys) - 1 for op in model.pending if model.owns(client, op))
    nodes += sum(count for count, goes in held if not goes)
    nodes += min(sum(count for count, goes in held if goes), limits.quota_nodes)
    free = limits.nodes - sum(count for _, count in model.nodes_held)
    return (
        bool(further) and 4 * free < limits.nodes and nodes >= max(limits.nodes - limits.nodes // 4, limits.quota_nodes)
    )
