"""Computes again, from a journal of level `events` alone, how each operation should have settled.

It is told what the rows say was registered, fired, cancelled and who died, in their order; what settles by that must be
what the OUTCOME rows say. Deadlines are the wheel's business: an EXPIRED row must be due, and not contradicted.

What clients have acknowledged the journal does not tell. So of what was settled already when its owner died, it is
checked that it was handed on or adopted rightly and once, not that it had to be. When the sweep comes by what a dead
client has left is the daemon's business: but it is before the client is a tombstone.

An Audit takes rows of one arena incarnation. Operations have to do with each other only through keys, ids and limited
events on their keys, so the rows of some keys may be audited without those of others, if it is given every CLIENT,
SEGMENT and GAP row (`whole=False`: event numbers have holes then). Nothing of the daemon's code is used here.
"""

from __future__ import annotations

from bisect import bisect_right
from heapq import heappop, heappush
from typing import Final

from timerd_shm.declare.journal import GroupStep, RowFlag
from timerd_shm.declare.limits import NO_DEADLINE
from timerd_shm.declare.states import ClientState, Condition, EventFlag, EventKind, Orphans, Outcome
from timerd_shm.declare.wire import CommandFlag, CommandKind, RegisterFlag

from .records import Event, Finding, Member, Name, Operation, Place, Registration, Settled, Text

# From each state, those that a CLIENT row may tell next; the same again where it listens or not.
NEXT_STATES: Final = {
    ClientState.FREE: {ClientState.LIVE},
    ClientState.LIVE: {ClientState.LIVE, ClientState.SILENT, ClientState.DEAD},
    ClientState.SILENT: {ClientState.SILENT, ClientState.LIVE, ClientState.DEAD},
    ClientState.DEAD: {ClientState.TOMBSTONE, ClientState.FREE},
    ClientState.TOMBSTONE: {ClientState.LIVE, ClientState.FREE},
}
NEEDS_EVENTS: Final = (
    "{} is of level outcomes, which tells how operations settled, not why: an audit needs one that was written with "
    "--journal-level=events"
)
NEEDS_BEGINNING: Final = (
    "{} begins with row {}, and an audit needs it from row 0: what was registered before is not known. Keep all of its "
    "segments (--journal-keep), or audit a copy that has them"
)
LIVING: Final = (ClientState.LIVE, ClientState.SILENT)

# Members of enumerations as plain numbers, for what is done for each row.
_FIRE, _ADVANCE, _FAIL = int(EventKind.FIRE), int(EventKind.ADVANCE), int(EventKind.FAIL)
_CANCEL_FOR_KEY, _FORGET = int(EventKind.CANCEL_FOR_KEY), int(EventKind.FORGET)
_LIMITED, _REDELIVERED = int(EventFlag.LIMITED), int(EventFlag.REDELIVERED)
_NONE, _COMPLETED = int(Outcome.NONE), int(Outcome.COMPLETED)
_EXPIRED, _CANCELLED = int(Outcome.EXPIRED), int(Outcome.CANCELLED)
_TOTAL = int(Condition.TOTAL)
_GRANTED, _AGAIN, _SNAPSHOT = int(RowFlag.GRANTED), int(RowFlag.REDELIVERED), int(RowFlag.SNAPSHOT)
_NO_MARK, _BY_SEQUENCE = int(RegisterFlag.NO_MARK), int(RegisterFlag.MARK_BY_SEQUENCE)


class Audit:
    """Takes rows in their order; `wrong` says what disagrees. `outcomes` counts the OUTCOME rows that were checked."""

    def __init__(self, *, whole: bool = True) -> None:
        self.whole = whole
        self.wrong: list[Finding] = []
        self.outcomes = 0
        self._row = -1  # the one that is looked at
        self._cut = False  # there was a GAP
        self._newest: int | None = None
        self._members: dict[Name, Member] = {}
        self._operations: dict[int, Operation] = {}
        self._told: set[int] = set()
        self._registrations = 0
        self._watchers: dict[Place, dict[Operation, int]] = {}  # of events on a key, with the ordinal; oldest first
        self._targets: dict[Place, list[tuple[int, int, Operation, int]]] = {}  # a heap each
        self._events: dict[Place, list[Event]] = {}
        self._watermarks: dict[Place, int] = {}
        self._ids: dict[Place, Operation] = {}

    def end(self) -> list[Finding]:
        """No row comes any more. `wrong`."""
        self._row = -1
        for op in self._operations.values():
            if op.expected is not None:
                self.say(op.number, f"should have settled: {Outcome(op.expected.state).name}")
        return self.wrong

    def say(self, operation: int, what: str) -> None:
        if not self._cut:
            self.wrong.append(Finding(self._row, operation, what))

    # clients -------------------------------------------------------------------------------------------------------

    def segment(self, row: int, flags: int, newest: int) -> None:
        """A SEGMENT row."""
        self._row = row
        if self._newest is None:
            self._newest = newest
        if flags & RowFlag.START:
            for member in self._members.values():
                if member.state is ClientState.SILENT:
                    member.state = ClientState.LIVE

    def gap(self, row: int, rows: int) -> None:
        """A GAP row: what is pending is not known any more, so nothing after it is audited."""
        self._row = row
        self.say(0, f"{rows} rows were dropped here: nothing after it can be audited")
        self._cut = True

    def client(
        self, row: int, name: Name, state: ClientState, listens: bool, orphans: int, group: Text, at_ns: int
    ) -> None:
        """A CLIENT row."""
        self._row = row
        member = self._members.get(name)
        before = member.state if member else ClientState.FREE
        if state not in NEXT_STATES[before]:
            self.say(0, f"client {name} is {state.name} after {before.name}")
        if member is None:
            member = self._members[name] = Member(name, state, orphans, group, listens)
        member.state, member.listens = state, listens
        if state is ClientState.LIVE:
            member.orphans, member.group = orphans, group
        elif state is ClientState.DEAD:
            self._die(member, at_ns)
        elif state in (ClientState.TOMBSTONE, ClientState.FREE) and before is ClientState.DEAD:
            for op in member.concerned:
                if op.left is member:
                    self.say(op.number, f"it was left as it is when client {name} had died")
                if op.holder is member:
                    self.say(op.number, f"it is still told to client {name}, which is dead")
            member.concerned.clear()
        if state is ClientState.FREE:
            del self._members[name]

    @staticmethod
    def _die(member: Member, died_ns: int) -> None:
        """What it has pending takes no limited event any more, unless it is its group's. What is kept has an end."""
        for op in member.pending.values():
            if op.orphans == Orphans.GROUP:
                op.group = member.group
            else:
                op.kept = True
            if op.orphans != Orphans.KEEP:
                op.left = member
                member.concerned.add(op)
            elif op.deadline_ns == NO_DEADLINE:
                op.left_ns = died_ns
        member.pending.clear()

    # registrations and events --------------------------------------------------------------------------------------

    def registration(self, r: Registration) -> None:
        """REGISTER, REGISTERED and KEY rows."""
        self._row = r.row
        if r.flags & _SNAPSHOT:
            # Killed before the first snapshot had ended, a daemon begins with another one. All was told before.
            if r.operation not in self._operations and r.operation not in self._told:
                self.say(r.operation, "it was there before the journal: it cannot be audited")
            return
        client = self._members.get(r.client)
        if client is None:
            return self.say(r.operation, f"its client {r.client} is not known")
        place = (r.purgatory, r.id)
        if r.id is not None:
            replaced = self._ids.get(place)
            if replaced is not None:
                self._settle(replaced, _CANCELLED, None, None)
        self._registrations += 1
        op = self._operations[r.operation] = Operation(r, client, self._registrations)
        if op.group and r.owner is not None and r.owner != op.group:
            self.say(op.number, f"it is of group {op.group!r}, not {r.owner!r}")
        if not op.group:
            client.pending[op.number] = op
        if r.id is not None:
            self._ids[place] = op
        for ordinal, key in enumerate(op.keys):
            watched = (op.purgatory, key.name)
            if key.target is None:
                self._watchers.setdefault(watched, {})[op] = ordinal
            else:
                heappush(self._targets.setdefault(watched, []), (key.target, op.registration, op, ordinal))
        self._behave_as_if_registered_at_its_mark(op, r)
        return None

    def _behave_as_if_registered_at_its_mark(self, op: Operation, r: Registration) -> None:
        """Events after the mark in sequence order, then present watermarks, and only then the deadline."""
        if not r.command_flags & _NO_MARK:
            found = self._since_mark(op, r)
            for event in found:
                if event.applied_ns < op.deadline_ns:
                    for ordinal, key in enumerate(op.keys):
                        if key.name == event.key:
                            self._give(op, ordinal, event)
                    if not op.pending:
                        return
        for ordinal, key in enumerate(op.keys):
            if key.target is not None and not (op.satisfied | op.failed) >> ordinal & 1:
                watermark = self._watermarks.get((op.purgatory, key.name))
                if watermark is not None and watermark >= key.target:
                    op.satisfied |= 1 << ordinal
                    if self._decide(op, ordinal, None):
                        return
        if op.deadline_ns <= r.applied_ns:
            self._settle(op, _EXPIRED, None, None)

    def _since_mark(self, op: Operation, r: Registration) -> list[Event]:
        """Events on its keys after its mark: another client's by sequence, its own client's by command number."""
        by_sequence = bool(r.command_flags & _BY_SEQUENCE)
        floor = r.mark_sequence
        if not by_sequence:  # an own event after the mark's command may have a lower number than the mark
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

    def event(
        self,
        row: int,
        kind: int,
        flags: int,
        place: Place,
        sequence: int,
        applied_ns: int,
        amount: int,
        command: int,
        limit: int,
        client: Name,
    ) -> None:
        """An EVENT row."""
        self._row = row
        if self.whole:
            if self._newest is not None and sequence != self._newest + 1:
                self.say(0, f"event {sequence} follows event {self._newest}")
            self._newest = sequence
        sender = None
        if flags & _REDELIVERED:
            self._requeued(command, (kind, amount, limit, place))
        else:
            sender = self._members.get(client)
            if sender is None:
                return self.say(0, f"event {sequence} is of client {client}, which is not known")
            sender.commands.append(command)
            sender.sequences.append(sequence)
        event = Event(
            sequence, kind, place, amount, limit if flags & (_LIMITED | _REDELIVERED) else None, sender, command
        )
        event.applied_ns = applied_ns
        events = self._events.get(place)
        if events is None:
            self._events[place] = [event]
        else:
            events.append(event)
        if kind == _ADVANCE:
            self._watermarks[place] = max(amount, self._watermarks.get(place, 0))
        elif kind == _FORGET:
            self._watermarks.pop(place, None)
            return None
        self._deliver(event, place)
        return None

    def watermark(self, row: int, place: Place, watermark: int) -> None:
        """A WATERMARK row: it was there when the journal began."""
        self._row = row
        self._watermarks[place] = max(watermark, self._watermarks.get(place, 0))

    def _deliver(self, event: Event, place: Place) -> None:
        """To who watches its key: events by registration, then watermarks by (target, registration)."""
        kind = event.kind
        if kind != _ADVANCE:
            watchers = self._watchers.get(place)
            if watchers and event.limited:
                while event.left and self._grant(event, watchers):
                    pass
            elif watchers:
                for op, ordinal in list(watchers.items()):
                    self._give(op, ordinal, event)
        heap = self._targets.get(place)
        if not heap or kind == _FIRE:
            return
        if kind == _ADVANCE:
            while heap and heap[0][0] <= event.amount:
                _, _, op, ordinal = heappop(heap)
                if op.pending:
                    self._give(op, ordinal, event)
        else:
            for _, _, op, ordinal in sorted(heap, key=lambda one: one[:2]):
                if op.pending:
                    self._give(op, ordinal, event)

    def _grant(self, event: Event, watchers: dict[Operation, int]) -> bool:
        """A limited event to the next that it completes; whether there is one."""
        left = event.left
        for op, ordinal in watchers.items():
            self._give(op, ordinal, event)
            if event.left < left:
                return True
        return False

    def _give(self, op: Operation, ordinal: int, event: Event) -> None:
        """What one event does to one operation, by one of its keys."""
        bit = 1 << ordinal
        if not op.pending or (op.satisfied | op.failed) & bit:
            return
        kind, target = event.kind, op.keys[ordinal].target
        if kind == _FIRE and target is None:
            total = op.condition == _TOTAL
            if event.limited:
                completes = op.missing <= event.amount if total else op.verdict(op.satisfied | bit) == _COMPLETED
                if event.left == 0 or op.kept or not completes:
                    return
            if total:
                op.missing -= min(op.missing, event.amount)
            else:
                op.satisfied |= bit
        elif kind == _CANCEL_FOR_KEY:
            return self._settle(op, _CANCELLED, ordinal, event)
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

    def _decide(self, op: Operation, ordinal: int, event: Event | None) -> bool:
        """Settle it if its condition holds, or can hold no more; whether it did."""
        verdict = op.verdict(op.satisfied)
        if verdict != _NONE:
            self._settle(op, verdict, ordinal, event)
        return verdict != _NONE

    def _settle(self, op: Operation, state: int, ordinal: int | None, event: Event | None) -> None:
        op.expected = Settled(state, ordinal, event)
        self._not_pending(op)

    def _not_pending(self, op: Operation) -> None:
        op.pending = False
        op.client.pending.pop(op.number, None)
        for ordinal in range(len(op.keys)):
            self._unwatch(op, ordinal)
        if op.id is not None and self._ids.get((op.purgatory, op.id)) is op:
            del self._ids[op.purgatory, op.id]

    def _unwatch(self, op: Operation, ordinal: int) -> None:
        place = (op.purgatory, op.keys[ordinal].name)
        watchers = self._watchers.get(place)
        if watchers is not None:
            watchers.pop(op, None)
            if not watchers:
                del self._watchers[place]

    def _requeued(self, number: int, found: tuple[int, int, int, Place]) -> None:
        """What a limited event gave to an operation goes on, because its owner is dead or gives it back: once."""
        op = self._operations.get(number)
        given = op.settled.event if op is not None and op.settled is not None else None
        if op is None or given is None or not given.limited:
            return self.say(number, "it has nothing that could be handed on")
        if not op.requeue_asked and (op.group or op.client.state is not ClientState.DEAD):
            self.say(number, "it is handed on, and its owner is not dead, and did not give it back")
        if op.ended:
            self.say(number, "it is handed on, and had ended")
        if found != (_FIRE, 1, 1, (given.purgatory, given.key)):
            self.say(number, f"{found} is not what it was given")
        op.ended = True
        return None

    # what becomes of operations ------------------------------------------------------------------------------------

    def action(
        self, row: int, kind: int, flags: int, orphans: int, operation: int, deadline_ns: int, client: Name
    ) -> None:
        """An ACTION row."""
        self._row = row
        op = self._operations.get(operation)
        if flags & CommandFlag.REQUEUE and (op.settled is not None if op else operation in self._told):
            if op is not None and op.client.name == client:
                op.requeue_asked = True
            return None
        if op is None or not op.pending:
            return self.say(operation, f"{CommandKind(kind).name} of it, and it is not pending")
        if kind in (CommandKind.CANCEL, CommandKind.CANCEL_ID):
            self._settle(op, _CANCELLED, None, None)
        elif kind == CommandKind.SET_ORPHANS:
            op.orphans = orphans
        else:
            op.deadline_ns = deadline_ns
        return None

    def outcome(
        self,
        row: int,
        state: int,
        settled_key: int,
        flags: int,
        key: Text,
        operation: int,
        registered_ns: int,
        deadline_ns: int,
        settled_ns: int,
        sequence: int,
        owner: Text,
    ) -> None:
        """An OUTCOME row. `owner` is given where it may be a group's name; None: not known."""
        self._row = row
        self.outcomes += not self._cut
        if operation in self._told:
            return self.say(operation, "it settles twice")
        self._told.add(operation)
        op = self._operations.get(operation)
        if op is None:
            return self.say(operation, f"it is {Outcome(state).name}, and was never registered")
        left, op.left = op.left, None
        if op.deadline_ns == NO_DEADLINE and 0 < op.left_ns < deadline_ns:
            op.deadline_ns = deadline_ns
        if left is not None and op.group:
            self.say(operation, "it settles before its group has adopted it")
        if op.group and owner is not None and owner != op.group:
            self.say(operation, f"it is of group {op.group!r}, not of {owner!r}")
        if state == _EXPIRED and not op.deadline_ns <= settled_ns:
            self.say(operation, f"expired at {settled_ns}, due at {op.deadline_ns}")
        settled, op.expected = op.expected, None
        if settled is None:
            self._settled_by_itself(op, state, left)
        else:
            self._compare(op, settled, (state, settled_key, sequence), key, (registered_ns, deadline_ns), flags)
        if not op.group and (op.settled is None or op.settled.event is None or not op.settled.event.limited):
            if op.orphans == Orphans.GROUP:
                return None  # its group may adopt what it was to be told
            del self._operations[operation]
        return None

    def _settled_by_itself(self, op: Operation, state: int, left: Member | None) -> None:
        """No event has settled it, nor a command: its deadline, or its client's end."""
        orphaned = state == _CANCELLED and left is not None and op.orphans == Orphans.CANCEL
        if state == _CANCELLED and op.group and op.deadline_ns == NO_DEADLINE:
            orphaned = not any(m.group == op.group and m.state in LIVING for m in self._members.values())
        if state != _EXPIRED and not orphaned:
            self.say(op.number, f"{Outcome(state).name}, and nothing that came before says so")
        op.settled = Settled(state, None, None)
        self._not_pending(op)

    def _compare(
        self,
        op: Operation,
        settled: Settled,
        found: tuple[int, int, int | None],
        key: Text,
        times: tuple[int, int],
        flags: int,
    ) -> None:
        op.settled = settled
        event, ordinal = settled.event, settled.ordinal
        wanted = (settled.state, 0 if ordinal is None else ordinal + 1, event.sequence if event else found[2])
        if found != wanted:
            self.say(op.number, f"it is {_shown(*found)}, and should be {_shown(*wanted)}")
        if ordinal is not None and key != op.keys[ordinal].name:
            self.say(op.number, f"its key is {key!r}, and should be {op.keys[ordinal].name!r}")
        if times != (op.registered_ns, op.deadline_ns):
            self.say(op.number, "its times differ from those of its registration")
        if bool(flags & _GRANTED) != bool(event and event.limited):
            self.say(op.number, "GRANTED is wrong")
        if bool(flags & _AGAIN) != bool(event and event.client is None):
            self.say(op.number, "REDELIVERED is wrong")

    def group(self, row: int, step: GroupStep, deliveries: int, group: Text, operation: int, client: Name) -> None:
        """A GROUP row."""
        self._row = row
        op, member = self._operations.get(operation), self._members.get(client)
        if op is None or (member is None and step is not GroupStep.DROPPED):
            return self.say(operation, f"{step.name}: the operation or client {client} is not known")
        if step is GroupStep.ADOPTED:
            return self._adopted(op, member, group)
        holder, op.holder = op.holder, None
        if holder is not None:
            holder.concerned.discard(op)
        wrong = op.settled is None or op.ended or op.group != group
        match step:
            case GroupStep.DELIVERED:
                there = member is not None and member.takes(op) and member.group == group
                wrong = wrong or holder is not None or not there or deliveries != min(op.deliveries + 1, 255)
                op.deliveries, op.holder = deliveries, member
                if member is not None:
                    member.concerned.add(op)
            case GroupStep.REQUEUED:
                wrong = wrong or holder is not member or member is None or (member.takes(op) and not op.call)
            case GroupStep.ACKNOWLEDGED:
                wrong = wrong or holder is not member
                op.ended = True
            case GroupStep.DROPPED:
                there = any(m.group == group and m.state in LIVING for m in self._members.values())
                wrong = wrong or holder is not None or (there and not op.call)  # of a call, nobody handles the name
                op.ended = True
        if wrong:
            self.say(operation, f"it is of group {op.group!r}, and cannot be {step.name} by {group!r} now")
        return None

    def _adopted(self, op: Operation, member: Member | None, group: Text) -> None:
        ended = member is not None and member.state is ClientState.DEAD and member.group == group
        wrong = not ended or op.client is not member or op.orphans != Orphans.GROUP
        if op.pending:
            wrong = wrong or op.left is not member
            op.left = None
        else:
            wrong = wrong or op.settled is None or op.ended or bool(op.group)
            op.group, op.deliveries = group, 1
        if wrong:
            self.say(op.number, f"it cannot be adopted by {group!r} now")


def _shown(state: int, settled_key: int, sequence: int | None) -> str:
    key = f" by its key {settled_key - 1}" if settled_key else ""
    return f"{Outcome(state).name}{key} with event {sequence}"
