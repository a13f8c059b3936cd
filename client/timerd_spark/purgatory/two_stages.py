"""Operations whose keys may be anywhere, in two stages: by key, and then by operation.

The first stage has a *leg* for each key of an operation: an operation of its own, with one key. An event that settles a
leg becomes a *hit*, an event for one operation alone. The second stage has the operations. It applies the hits to them
by the same rules, and in the same order, as a purgatory applies events to operations. A leg whose deadline passes says
nothing, because the operation has the same deadline.

Spark has no way back from the second stage to the first. So a leg stays until an event settles it or its deadline
passes, even when its operation has settled; and a limited event, which must not be given to two, needs one stage.
"""

from __future__ import annotations

from typing import Final

import msgpack
from timerd_shm.declare.states import Condition, EventKind, Outcome

from .bucket import Bucket, Settings
from .rows import Event, Position, Registration
from .store import Store

PRESENT: Final = EventKind.CHECK  # the kind of a hit by a watermark that was there at the registration


class Legs(Bucket):
    """A bucket of the first stage. `hits` has what it says to the second one."""

    stage = 1

    def __init__(self, store: Store, settings: Settings) -> None:
        super().__init__(store, settings)
        self.hits: dict[int, list[Event]] = {}  # by the bucket of the second stage

    def _apply(self, op, ordinal, event):  # type: ignore[no-untyped-def]
        counts = op.condition == Condition.TOTAL and event.kind == EventKind.FIRE
        if counts and op.pending and op.is_concerned(event) and op.deadline_ns > event.effective_ns:
            return self._hit(op.row, event.row, event.kind, event.amount)
        return super()._apply(op, ordinal, event)

    def on_settled(self, op, state, ordinal, event, seen):  # type: ignore[no-untyped-def]
        super().on_settled(op, state, ordinal, event, seen)
        self.outcomes.clear()
        self._settled_ids.clear()  # the second stage remembers the operation's
        if event is not None:
            self._hit(op.row, event.row, event.kind, event.amount)
        elif state == Outcome.COMPLETED:
            self._hit(op.row, Event(op.row.at_ns, op.row.seq, PRESENT, op.row.keys[0].name), PRESENT, 0)

    def _hit(self, leg: Registration, by: Event, kind: int, amount: int) -> None:
        id_, at_ns, seq, ordinal, second = msgpack.unpackb(leg.payload)
        self.hits.setdefault(second, []).append(
            Event(by.at_ns, by.seq, kind, leg.keys[0].name, amount, None, by.value, id_, None, ordinal, (at_ns, seq))
        )


class Joined(Bucket):
    """A bucket of the second stage: its operations wait for hits, and watch no key."""

    stage = 2

    def watch(self, op):  # type: ignore[no-untyped-def]
        if op.id is not None:
            self._ids[op.purgatory, op.id] = op

    def _behave_as_if_registered_at(self, mark, op, effective_ns, newest):  # type: ignore[no-untyped-def]
        """The first stage has looked at the events since the mark. Their hits follow, and then the deadline counts."""

    def _enter(self, row: Event) -> None:
        if row.of is None:
            return super()._enter(row)
        op = self.pending_of(("", row.id))
        if op is None or _position_of(op.row) != row.of:
            return None
        self._now_ns = max(row.at_ns, op.row.at_ns)
        ordinal = row.command
        op.registering = (row.at_ns, row.seq) <= row.of
        if row.kind != PRESENT:
            self._apply(op, ordinal, self._event(row))
        elif op.pending and not (op.satisfied | op.failed) >> ordinal & 1:
            op.satisfied |= 1 << ordinal
            self._decide(op, ordinal, None)
        op.registering = False
        return None


def _position_of(r: Registration) -> Position:
    return r.at_ns, r.seq
