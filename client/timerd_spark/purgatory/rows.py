"""The rows that a bucket takes, registrations and events, and the outcomes that it gives. Times are in ns."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from timerd_shm.declare.states import Condition, EventKind

Position = tuple[int, int]  # the time of a row, and its number among rows of one time: rows are applied in this order

EVENT_KINDS: Final = {
    "fire": EventKind.FIRE,
    "advance": EventKind.ADVANCE,
    "fail": EventKind.FAIL,
    "cancel": EventKind.CANCEL_FOR_KEY,
    "forget": EventKind.FORGET,
}
CONDITIONS: Final = {
    "any": Condition.AT_LEAST,
    "all": Condition.AT_LEAST,
    "at_least": Condition.AT_LEAST,
    "all_settled": Condition.ALL_SETTLED,
    "total": Condition.TOTAL,
}


NEVER: Final = (1 << 63) - 1
SEPARATOR: Final = "\x1f"  # between the name of a group and that of a key or an id


class Key(NamedTuple):
    """A key of a registration, and the watermark to reach: None for an event key."""

    name: str
    target: int | None = None


class Registration(NamedTuple):
    """An operation to register. `needed` and `total` as the condition wants them; `mark`: later events count."""

    at_ns: int
    seq: int
    id: str | None
    keys: tuple[Key, ...]
    deadline_ns: int
    condition: int = Condition.AT_LEAST
    needed: int = 1
    total: int = 0
    payload: bytes = b""
    mark: Position | None = None
    sender: str | None = None
    command: int | None = None  # with `sender`: its events count from this command on, whatever their position is

    def __lt__(self, other: object) -> bool:
        """Whether the row is applied before another."""
        return order_of(self) < order_of(other)  # type: ignore[arg-type]


class Event(NamedTuple):
    """An event on a key; or, with `id`, the cancellation of the operation with this id.

    With `of` it is a hit: an event on a key of one operation, which has this id and was registered at this position.
    """

    at_ns: int
    seq: int
    kind: int
    key: str
    amount: int = 1
    limit: int | None = None
    value: bytes = b""
    id: str | None = None
    sender: str | None = None
    command: int = 0
    of: Position | None = None


class Settled(NamedTuple):
    """How an operation has settled. `seq` is that of the event that settled it, if one did."""

    row: Registration
    copy: int  # 0, or the number of equal registrations before this one
    outcome: int
    error: int | None
    settled_key: int | None
    settled_ns: int
    flags: int
    value: bytes
    seq: int | None


def order_of(row: Registration | Event) -> tuple[Any, ...]:
    """The order in which rows are applied: by position; a registration before an event; else by what they say."""
    if isinstance(row, Registration):
        keys = [key.name for key in row.keys]
        return (row.at_ns, row.seq, 0, row.id or "", keys, row.deadline_ns, row.payload, *row[5:8])
    if row.of is not None:  # an event after the mark of a later registration is applied at the registration
        return (*max((row.at_ns, row.seq), row.of), 1, row.id, [], row.at_ns, b"", row.seq, row.command)
    return (row.at_ns, row.seq, 1, row.key, [], row.kind, row.value, row.amount, row.id or "", row.limit or 0)
