"""The effect of a journal's events on its registrations: the purgatory's rules, written a second time in plain Python.

A Replay takes registrations, events and watermarks in their order. If they settle an operation, the Replay sets
`expected`, and the OUTCOME row should agree with it. A Replay reports nothing; Audit (audit.py) compares. A Replay has
no clock: an operation expires when the effective time of an event, or of the operation's own registration, is not
before its deadline.
"""

from __future__ import annotations

from bisect import bisect_right
from heapq import heappop, heappush

from timerd_shm.declare.states import Condition, EventKind, Outcome
from timerd_shm.declare.wire import RegisterFlag

from .records import Event, Member, Operation, OperationId, Registration, Settled, WatchKey

# Members of enumerations as plain numbers, for the code that runs for each row.
_FIRE, _ADVANCE, _FAIL = int(EventKind.FIRE), int(EventKind.ADVANCE), int(EventKind.FAIL)
_CANCEL_FOR_KEY, _FORGET = int(EventKind.CANCEL_FOR_KEY), int(EventKind.FORGET)
_NONE, _COMPLETED = int(Outcome.NONE), int(Outcome.COMPLETED)
_EXPIRED, _CANCELLED = int(Outcome.EXPIRED), int(Outcome.CANCELLED)
_TOTAL = int(Condition.TOTAL)
_NO_MARK, _BY_SEQUENCE = int(RegisterFlag.NO_MARK), int(RegisterFlag.MARK_BY_SEQUENCE)


class Replay:
    """Pending operations by the keys that they watch, the events of each key, watermarks and ids."""

    def __init__(self) -> None:
        self._watchers: dict[WatchKey, dict[Operation, int]] = {}  # operation -> the key's ordinal; oldest first
        self._observers: dict[WatchKey, dict[Operation, int]] = {}  # operations that observe the key
        self._targets: dict[WatchKey, list[tuple[int, int, Operation, int]]] = {}  # a heap for each watermark key
        self._events: dict[WatchKey, list[Event]] = {}
        self._watermarks: dict[WatchKey, int] = {}
        self._ids: dict[OperationId, Operation] = {}
        self._registering: Operation | None = None
        self._expected: dict[Operation, None] = {}  # should settle, but no OUTCOME row has come yet

    # calls for rows ---------------------------------------------------------------------------------------------------

    def replace(self, of_id: OperationId, newest: int) -> None:
        """Settle the pending operation of this id, if there is one: another operation replaces it."""
        if (replaced := self._ids.get(of_id)) is not None:
            self.settle(replaced, _CANCELLED, None, None, newest)

    def register(self, op: Operation, r: Registration) -> None:
        """Let an operation watch its keys. Settle it if events since its mark settle it."""
        if op.id is not None:
            self._ids[op.purgatory, op.id] = op
        for ordinal, key in enumerate(op.keys):
            watched = (op.purgatory, key.name)
            if key.target is None:
                self._lists_of(op).setdefault(watched, {})[op] = ordinal
            else:
                heappush(self._targets.setdefault(watched, []), (key.target, op.registration, op, ordinal))
        self._registering = op
        self._behave_as_if_registered_at_its_mark(op, r)
        self._registering = None

    def enter(self, event: Event, key: WatchKey) -> None:
        """Keep an event, and deliver it to the operations that watch its key."""
        events = self._events.get(key)
        if events is None:
            self._events[key] = [event]
        else:
            events.append(event)
        if event.kind == _ADVANCE:
            self.raise_watermark(key, event.amount)
        elif event.kind == _FORGET:
            self._watermarks.pop(key, None)
            return
        self._deliver(event, key)

    def raise_watermark(self, key: WatchKey, watermark: int) -> None:
        """Raise a key's watermark to this one, unless it is higher already."""
        self._watermarks[key] = max(watermark, self._watermarks.get(key, 0))

    def settle(
        self, op: Operation, state: int, ordinal: int | None, event: Event | None, seen: int | None = None
    ) -> None:
        """Settle an operation. Its OUTCOME row should have this state, key and event; if there is no event, `seen`."""
        op.expected = Settled(state, ordinal, event, seen, self._registering is op)
        self._expected[op] = None
        self.end_pending(op)

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

    def pending_of(self, of_id: OperationId) -> Operation | None:
        """The pending operation of this id."""
        return self._ids.get(of_id)

    def watermark_of(self, key: WatchKey) -> int | None:
        """A key's watermark, if it is known."""
        return self._watermarks.get(key)

    def end_pending(self, op: Operation) -> None:
        """The operation is not pending any more: it watches no key, and its id is free."""
        op.pending = False
        op.client.pending.pop(op.number, None)
        for ordinal in range(len(op.keys)):
            self._unwatch(op, ordinal)
        if op.id is not None and self._ids.get((op.purgatory, op.id)) is op:
            del self._ids[op.purgatory, op.id]

    # the rules --------------------------------------------------------------------------------------------------------

    def _behave_as_if_registered_at_its_mark(self, op: Operation, r: Registration) -> None:
        """Apply events after the mark in sequence order, then present watermarks, and only then the deadline."""
        seen = r.newest
        if not r.command_flags & _NO_MARK:
            found = self._since_mark(op, r)
            for event in found:
                if event.effective_ns >= op.deadline_ns:  # this event and all after it come too late
                    seen = event.sequence - 1
                    break
                for ordinal, key in enumerate(op.keys):
                    if key.name == event.key:
                        self._apply(op, ordinal, event)
                if not op.pending:
                    return
        for ordinal, key in enumerate(op.keys):
            if key.target is not None and not (op.satisfied | op.failed) >> ordinal & 1:
                watermark = self._watermarks.get((op.purgatory, key.name))
                if watermark is not None and watermark >= key.target:
                    op.satisfied |= 1 << ordinal
                    if self._decide(op, ordinal, None, seen):
                        return
        if op.deadline_ns <= r.effective_ns:
            self.settle(op, _EXPIRED, None, None, seen)

    def _since_mark(self, op: Operation, r: Registration) -> list[Event]:
        """Events on the operation's keys after its mark: own events by command number, other events by sequence."""
        by_sequence = bool(r.command_flags & _BY_SEQUENCE)
        floor = r.mark_sequence
        if not by_sequence:  # an own event after the mark's command may have a lower sequence than the mark
            own = bisect_right(op.client.commands, r.mark_command)
            if own < len(op.client.sequences):
                floor = min(floor, op.client.sequences[own] - 1)
        found: list[Event] = []
        for key in op.keys:
            events = self._events.get((op.purgatory, key.name), ())
            at = len(events)
            while at and events[at - 1].sequence > floor:
                at -= 1
                event = events[at]
                if event.client is op.client and not by_sequence:
                    if event.command > r.mark_command:
                        found.append(event)
                elif event.sequence > r.mark_sequence:
                    found.append(event)
        if len(found) > 1:
            found.sort(key=lambda event: event.sequence)
        return found

    def _deliver(self, event: Event, key: WatchKey) -> None:
        """Apply an event to its key's watchers, oldest first; for an ADVANCE, those with the lowest target first."""
        kind = event.kind
        if observers := self._observers.get(key):
            for op, ordinal in list(observers.items()):
                self._apply(op, ordinal, event)
        if kind != _ADVANCE:
            watchers = self._watchers.get(key)
            if watchers and event.limited:
                while event.left and self._grant(event, watchers):
                    pass
            elif watchers:
                for op, ordinal in list(watchers.items()):
                    self._apply(op, ordinal, event)
        heap = self._targets.get(key)
        if not heap or kind == _FIRE:
            return
        if kind == _ADVANCE:
            while heap and heap[0][0] <= event.amount:
                _, _, op, ordinal = heappop(heap)
                if op.pending:
                    self._apply(op, ordinal, event)
        else:
            for _, _, op, ordinal in sorted(heap, key=lambda one: one[:2]):
                if op.pending:
                    self._apply(op, ordinal, event)

    def _grant(self, event: Event, watchers: dict[Operation, int]) -> bool:
        """Apply a limited event to watchers until one settles. Returns whether one did.

        In a corrupt journal a watcher may leave the key without settling: this ends the search, too.
        """
        for op, ordinal in watchers.items():
            self._apply(op, ordinal, event)
            if not op.pending or op not in watchers:
                return True
        return False

    def _apply(self, op: Operation, ordinal: int, event: Event) -> None:
        """Apply one event to one operation, by one of its keys."""
        bit = 1 << ordinal
        if not op.pending or (op.satisfied | op.failed) & bit or not op.is_concerned(event):
            return
        kind, target = event.kind, op.keys[ordinal].target
        if op.deadline_ns <= event.effective_ns:
            return self.settle(op, _EXPIRED, None, None, event.sequence - 1)
        if op.observes:
            return self.settle(op, _COMPLETED, ordinal, event)
        if op.owners and kind != _CANCEL_FOR_KEY:
            return None
        if kind == _FIRE and target is None:
            total = op.condition == _TOTAL
            if event.limited:
                completes = op.missing <= event.amount if total else op.verdict(op.satisfied | bit) == _COMPLETED
                if event.left == 0 or op.kept or not completes:
                    return
                op.undo = op.satisfied, op.missing
            if total:
                op.missing -= min(op.missing, event.amount)
            else:
                op.satisfied |= bit
        elif kind == _CANCEL_FOR_KEY:
            return self.settle(op, _CANCELLED, ordinal, event)
        elif kind == _FAIL:
            op.failed |= bit
        elif kind == _ADVANCE and target is not None and event.amount >= target:
            op.satisfied |= bit
        else:
            return
        if self._decide(op, ordinal, event):
            if event.limited:
                event.left -= 1
        elif op.condition != _TOTAL or kind == _FAIL:
            self._unwatch(op, ordinal)

    def _decide(self, op: Operation, ordinal: int, event: Event | None, seen: int | None = None) -> bool:
        """Settle the operation if its condition holds or can no longer hold. Returns whether it has settled."""
        verdict = op.verdict(op.satisfied)
        if verdict != _NONE:
            self.settle(op, verdict, ordinal, event, seen)
        return verdict != _NONE

    def _lists_of(self, op: Operation) -> dict[WatchKey, dict[Operation, int]]:
        return self._observers if op.observes or op.owners else self._watchers

    def _unwatch(self, op: Operation, ordinal: int) -> None:
        key = (op.purgatory, op.keys[ordinal].name)
        lists = self._lists_of(op)
        watchers = lists.get(key)
        if watchers is not None:
            watchers.pop(op, None)
            if not watchers:
                del lists[key]
