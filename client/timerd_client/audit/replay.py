"""A purgatory that the rows of a journal fill: how each operation's OUTCOME row should be.

If the rules settle an operation, the Replay sets `expected`, and the OUTCOME row should agree with it. A Replay reports
nothing; Audit (audit.py) compares.
"""

from __future__ import annotations

from timerd_client.rules.purgatory import Purgatory
from timerd_client.rules.records import Mark

from .records import Event, Member, Operation, Settled


class Replay(Purgatory[Operation, Event]):
    """The rules, with the operations that should have settled."""

    def __init__(self) -> None:
        super().__init__()
        self._registering: Operation | None = None
        self._expected: dict[Operation, None] = {}  # should settle, but no OUTCOME row has come yet

    def on_settled(self, op: Operation, state: int, ordinal: int | None, event: Event | None, seen: int | None) -> None:
        """The operation's OUTCOME row should have this state, key and event; if there is no event, `seen`."""
        op.expected = Settled(state, ordinal, event, seen, self._registering is op)
        self._expected[op] = None

    def register(self, op: Operation, mark: Mark | None, effective_ns: int, newest: int) -> None:
        """Also remember that what settles now settles at its registration."""
        self._registering = op
        super().register(op, mark, effective_ns, newest)
        self._registering = None

    def end_pending(self, op: Operation) -> None:
        """The operation is not pending any more, for its client neither."""
        super().end_pending(op)
        op.client.pending.pop(op.number, None)

    def settled(self, op: Operation) -> None:
        """The OUTCOME row of an operation has come."""
        self._expected.pop(op, None)

    def expected_of(self, member: Member) -> list[Operation]:
        """A client's operations that an event should settle, but has not reached yet: delivery takes several turns."""
        return [op for op in self._expected if op.client is member]

    def take_back(self, op: Operation) -> None:
        """Give the grant of an operation to the next watcher: the owner died before the limited event reached it."""
        settled = op.expected
        if settled is None or (event := settled.event) is None or not op.is_granted(event):
            return
        del self._expected[op]
        op.expected, op.pending = None, True
        op.satisfied, op.missing = op.undo
        for ordinal, key in enumerate(op.keys):
            if key.target is None and not (op.satisfied | op.failed) >> ordinal & 1:
                watched = (op.purgatory, key.name)
                watchers = self._watchers.setdefault(watched, {})
                watchers[op] = ordinal
                ordered = sorted(watchers.items(), key=lambda one: one[0].registration)
                watchers.clear()
                watchers.update(ordered)
        event.left += 1
        self._deliver(event, (event.purgatory, event.key))
