"""The purgatory in plain Python: which event settles an operation, and how.

A Purgatory takes registrations, events and watermarks in their order. It has no clock: an operation expires when the
effective time of an event, or of the operation's own registration, is not before its deadline. A subclass says in
on_settled() what an outcome means to it. The rules are numbered in timerd/DESIGN.md.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from heapq import heappop, heappush
from typing import Generic, TypeVar

from timerd_shm.declare.states import Condition, EventKind, Outcome

from .records import Event, Mark, Operation, OperationId, WatchKey

# Members of enumerations as plain numbers, for the code that runs for each event.
_FIRE, _ADVANCE, _FAIL = int(EventKind.FIRE), int(EventKind.ADVANCE), int(EventKind.FAIL)
_CANCEL_FOR_KEY, _FORGET = int(EventKind.CANCEL_FOR_KEY), int(EventKind.FORGET)
_NONE, _COMPLETED = int(Outcome.NONE), int(Outcome.COMPLETED)
_EXPIRED, _CANCELLED = int(Outcome.EXPIRED), int(Outcome.CANCELLED)
_TOTAL = int(Condition.TOTAL)

EventT = TypeVar("EventT", bound=Event)
OperationT = TypeVar("OperationT", bound=Operation)


class Purgatory(ABC, Generic[OperationT, EventT]):
    """Pending operations by the keys that they watch, the events of each key, watermarks and ids."""

    def __init__(self) -> None:
        self._watchers: dict[WatchKey, dict[OperationT, int]] = {}  # operation -> the key's ordinal; oldest first
        self._observers: dict[WatchKey, dict[OperationT, int]] = {}  # operations that observe the key
        self._targets: dict[WatchKey, list[tuple[int, int, OperationT, int]]] = {}  # a heap for each watermark key
        self._events: dict[WatchKey, list[EventT]] = {}
        self._watermarks: dict[WatchKey, int] = {}
        self._ids: dict[OperationId, OperationT] = {}

    # the user's part --------------------------------------------------------------------------------------------------

    @abstractmethod
    def on_settled(
        self, op: OperationT, state: int, ordinal: int | None, event: EventT | None, seen: int | None
    ) -> None:
        """The operation has settled: by which key and event, if by one, else after which event (None: the newest)."""

    def on_look(self, op: OperationT, event: EventT) -> None:
        """The owner of the operation is to look at its condition."""

    def fail(self, op: OperationT, ordinal: int, event: EventT) -> None:
        """A key of the operation has failed."""
        op.failed |= 1 << ordinal

    # calls, in the order of commands ----------------------------------------------------------------------------------

    def replace(self, of_id: OperationId, newest: int) -> None:
        """Settle the pending operation of this id, if there is one: another operation replaces it."""
        if (replaced := self._ids.get(of_id)) is not None:
            self.settle(replaced, _CANCELLED, None, None, newest)

    def register(self, op: OperationT, mark: Mark | None, effective_ns: int, newest: int) -> None:
        """Let an operation watch its keys, and settle it if events since its mark settle it.

        `mark` None: no earlier event counts. `effective_ns`: when the registration is applied. `newest`: the sequence
        of the newest event.
        """
        self.watch(op)
        self._behave_as_if_registered_at(mark, op, effective_ns, newest)

    def watch(self, op: OperationT) -> None:
        """Let a pending operation watch the keys that it still waits for. Its id is taken."""
        if op.id is not None:
            self._ids[op.purgatory, op.id] = op
        for ordinal, key in enumerate(op.keys):
            if (op.satisfied | op.failed) >> ordinal & 1:
                continue
            watched = (op.purgatory, key.name)
            if key.target is None:
                self._lists_of(op).setdefault(watched, {})[op] = ordinal
            else:
                heappush(self._targets.setdefault(watched, []), (key.target, op.registration, op, ordinal))

    def enter(self, event: EventT) -> None:
        """Keep an event, and deliver it to the operations that watch its key."""
        self.remember(event)
        key = (event.purgatory, event.key)
        if event.kind == _ADVANCE:
            self.raise_watermark(key, event.amount)
        elif event.kind == _FORGET:
            self._watermarks.pop(key, None)
            return
        self._deliver(event, key)

    def remember(self, event: EventT) -> None:
        """Keep an event, for operations whose mark it is after."""
        key = (event.purgatory, event.key)
        events = self._events.get(key)
        if events is None:
            self._events[key] = [event]
        else:
            events.append(event)
        if (client := event.client) is not None:
            client.commands.append(event.command)
            client.sequences.append(event.sequence)

    def raise_watermark(self, key: WatchKey, watermark: int) -> None:
        """Raise a key's watermark to this one, unless it is higher already."""
        self._watermarks[key] = max(watermark, self._watermarks.get(key, 0))

    def settle(
        self, op: OperationT, state: int, ordinal: int | None, event: EventT | None, seen: int | None = None
    ) -> None:
        """Settle an operation by a rule, a command or the clock. The arguments are those of on_settled()."""
        self.on_settled(op, state, ordinal, event, seen)
        self.end_pending(op)

    def end_pending(self, op: OperationT) -> None:
        """The operation is not pending any more: it watches no key, and its id is free."""
        op.pending = False
        for ordinal in range(len(op.keys)):
            self._unwatch(op, ordinal)
        if op.id is not None and self._ids.get((op.purgatory, op.id)) is op:
            del self._ids[op.purgatory, op.id]

    def pending_of(self, of_id: OperationId) -> OperationT | None:
        """The pending operation of this id."""
        return self._ids.get(of_id)

    def watermark_of(self, key: WatchKey) -> int | None:
        """A key's watermark, if it is known."""
        return self._watermarks.get(key)

    # the rules --------------------------------------------------------------------------------------------------------

    def _behave_as_if_registered_at(self, mark: Mark | None, op: OperationT, effective_ns: int, newest: int) -> None:
        """Rule 4: events after the mark in sequence order, then present watermarks, and only then the deadline."""
        seen = newest
        if mark is not None:
            for event in self._since(mark, op):
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
        if op.deadline_ns <= effective_ns:
            self.settle(op, _EXPIRED, None, None, seen)

    def _since(self, mark: Mark, op: OperationT) -> list[EventT]:
        """Events on the operation's keys after its mark, in the order of their sequences."""
        floor = mark.sequence
        if mark.command is not None:  # an own event after the mark's command may have a lower sequence than the mark
            own = bisect_right(op.client.commands, mark.command)
            if own < len(op.client.sequences):
                floor = min(floor, op.client.sequences[own] - 1)
        found: list[EventT] = []
        for key in op.keys:
            events = self._events.get((op.purgatory, key.name), ())
            at = len(events)
            while at and events[at - 1].sequence > floor:
                at -= 1
                event = events[at]
                if mark.command is not None and event.client is op.client:
                    if event.command > mark.command:
                        found.append(event)
                elif event.sequence > mark.sequence:
                    found.append(event)
        if len(found) > 1:
            found.sort(key=lambda event: event.sequence)
        return found

    def _deliver(self, event: EventT, key: WatchKey) -> None:
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

    def _grant(self, event: EventT, watchers: dict[OperationT, int]) -> bool:
        """Apply a limited event to watchers until one settles. Returns whether one did.

        In a corrupt journal a watcher may leave the key without settling: this ends the search, too.
        """
        for op, ordinal in watchers.items():
            self._apply(op, ordinal, event)
            if not op.pending or op not in watchers:
                return True
        return False

    def _apply(self, op: OperationT, ordinal: int, event: EventT) -> None:
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
            return self.on_look(op, event)
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
            self.fail(op, ordinal, event)
        elif kind == _ADVANCE and target is not None and event.amount >= target:
            op.satisfied |= bit
        else:
            return
        if self._decide(op, ordinal, event):
            if event.limited:
                event.left -= 1
        elif op.condition != _TOTAL or kind == _FAIL:
            self._unwatch(op, ordinal)

    def _decide(self, op: OperationT, ordinal: int, event: EventT | None, seen: int | None = None) -> bool:
        """Settle the operation if its condition holds or can no longer hold. Returns whether it has settled."""
        verdict = op.verdict(op.satisfied)
        if verdict != _NONE:
            self.settle(op, verdict, ordinal, event, seen)
        return verdict != _NONE

    def _lists_of(self, op: OperationT) -> dict[WatchKey, dict[OperationT, int]]:
        return self._observers if op.observes or op.owners else self._watchers

    def _unwatch(self, op: OperationT, ordinal: int) -> None:
        key = (op.purgatory, op.keys[ordinal].name)
        lists = self._lists_of(op)
        watchers = lists.get(key)
        if watchers is not None:
            watchers.pop(op, None)
            if not watchers:
                del lists[key]
