"""Audits a journal of level `events`: computes from its rows how each operation should have settled, and compares.

An Audit takes rows in their order. They are: registrations, events, cancellations, and the states of clients. Replay
(replay.py) applies them; an operation that settles by them must have an OUTCOME row that is the same. Of an EXPIRED row
the audit checks that the deadline had come, and that no event had settled the operation before: when the wheel moves is
the daemon's business.

Two things do not stand in a journal:

* What clients have acknowledged. So for an operation that had settled when its owner died, the audit checks that its
  event was requeued, or its outcome adopted, rightly and once; not that either had to happen.
* When the daemon clears away what a dead client has left. It must be before the client is a tombstone.

An Audit is for one arena incarnation. Operations affect each other only through keys, ids and limited events on their
keys. So the rows of some keys may be audited without those of others (`whole=False`: event numbers have holes then).
Every CLIENT, SEGMENT and GAP row is needed. Nothing of the daemon's code is used here.
"""

from __future__ import annotations

from typing import Final

from timerd_shm.declare.journal import GroupStep, RowFlag
from timerd_shm.declare.limits import NO_DEADLINE
from timerd_shm.declare.states import ClientState, EventFlag, EventKind, Orphans, Outcome
from timerd_shm.declare.wire import CommandFlag, CommandKind

from .records import Event, Finding, Member, Name, Operation, Registration, Settled, Text, WatchKey
from .replay import Replay

# For each state, those that a CLIENT row may bring next; the same again where the client begins or ends to listen.
NEXT_STATES: Final = {
    ClientState.FREE: {ClientState.LIVE},
    ClientState.LIVE: {ClientState.LIVE, ClientState.SILENT, ClientState.DEAD},
    ClientState.SILENT: {ClientState.SILENT, ClientState.LIVE, ClientState.DEAD},
    ClientState.DEAD: {ClientState.TOMBSTONE, ClientState.FREE},
    ClientState.TOMBSTONE: {ClientState.LIVE, ClientState.FREE},
}
NEEDS_EVENTS: Final = (
    "{} is of level outcomes, which holds how operations settled, not why: an audit needs one that was written with "
    "--journal-level=events"
)
NEEDS_BEGINNING: Final = (
    "{} begins with row {}, and an audit needs it from row 0: what was registered before is not known. Keep all of its "
    "segments (--journal-keep), or audit a copy that has them"
)
LIVING: Final = (ClientState.LIVE, ClientState.SILENT)

# Members of enumerations as plain numbers, for what is done for each row.
_FIRE = int(EventKind.FIRE)
_LIMITED, _REDELIVERED = int(EventFlag.LIMITED), int(EventFlag.REDELIVERED)
_EXPIRED, _CANCELLED = int(Outcome.EXPIRED), int(Outcome.CANCELLED)
_GRANTED, _AGAIN, _SNAPSHOT = int(RowFlag.GRANTED), int(RowFlag.REDELIVERED), int(RowFlag.SNAPSHOT)


class Audit:
    """Takes rows in their order; `wrong` lists what disagrees. `outcomes` counts the OUTCOME rows that were checked."""

    def __init__(self, *, whole: bool = True) -> None:
        self.whole = whole
        self.wrong: list[Finding] = []
        self.outcomes = 0
        self._row = -1  # number of the present row
        self._cut = False  # there was a GAP
        self._newest: int | None = None
        self._members: dict[Name, Member] = {}
        self._operations: dict[int, Operation] = {}
        self._settled: set[int] = set()
        self._registrations = 0
        self._replay = Replay()

    def end(self) -> list[Finding]:
        """Check that no OUTCOME row is missing, as no row comes any more; `wrong`."""
        self._row = -1
        for op in self._operations.values():
            if op.expected is not None:
                self.report(op.number, f"should have settled: {Outcome(op.expected.state).name}")
        return self.wrong

    def report(self, operation: int, what: str) -> None:
        """Add a finding at the present row; none after a GAP."""
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
        """A GAP row: which operations are pending is not known any more, so nothing after it is audited."""
        self._row = row
        self.report(0, f"{rows} rows were dropped here: nothing after it can be audited")
        self._cut = True

    def client(
        self, row: int, name: Name, state: ClientState, listens: bool, orphans: int, group: Text, at_ns: int
    ) -> None:
        """A CLIENT row."""
        self._row = row
        member = self._members.get(name)
        before = member.state if member else ClientState.FREE
        if state not in NEXT_STATES[before]:
            self.report(0, f"client {name} is {state.name} after {before.name}")
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
                    self.report(op.number, f"it is as it was, although client {name} has died")
                if op.holder is member:
                    self.report(op.number, f"client {name} still holds it, and is dead")
            member.concerned.clear()
        if state is ClientState.FREE:
            del self._members[name]

    @staticmethod
    def _die(member: Member, died_ns: int) -> None:
        """Its pending operations: a limited event completes none of them, unless its group adopts it.

        Those that are kept without a deadline get one.
        """
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
            # A daemon that was killed in its first snapshot is followed by one that makes another: the rows repeat.
            if r.operation not in self._operations and r.operation not in self._settled:
                self.report(r.operation, "it was there before the journal: it cannot be audited")
            return
        client = self._members.get(r.client)
        if client is None:
            return self.report(r.operation, f"its client {r.client} is not known")
        if r.id is not None:
            self._replay.replace((r.purgatory, r.id))
        self._registrations += 1
        op = self._operations[r.operation] = Operation(r, client, self._registrations)
        if op.group and r.owner is not None and r.owner != op.group:
            self.report(op.number, f"it is of group {op.group!r}, not {r.owner!r}")
        if not op.group:
            client.pending[op.number] = op
        self._replay.register(op, r)
        return None

    def event(
        self,
        row: int,
        kind: int,
        flags: int,
        watch_key: WatchKey,
        sequence: int,
        effective_ns: int,
        amount: int,
        command: int,
        limit: int,
        client: Name,
    ) -> None:
        """An EVENT row."""
        self._row = row
        if self.whole:
            if self._newest is not None and sequence != self._newest + 1:
                self.report(0, f"event {sequence} follows event {self._newest}")
            self._newest = sequence
        sender = None
        if flags & _REDELIVERED:
            self._requeued(command, (kind, amount, limit, watch_key))
        else:
            sender = self._members.get(client)
            if sender is None:
                return self.report(0, f"event {sequence} is of client {client}, which is not known")
            sender.commands.append(command)
            sender.sequences.append(sequence)
        event = Event(
            sequence, kind, watch_key, amount, limit if flags & (_LIMITED | _REDELIVERED) else None, sender, command
        )
        event.effective_ns = effective_ns
        self._replay.enter(event, watch_key)
        return None

    def watermark(self, row: int, watch_key: WatchKey, watermark: int) -> None:
        """A WATERMARK row: the key had it when the journal began."""
        self._row = row
        self._replay.raise_watermark(watch_key, watermark)

    def _requeued(self, number: int, found: tuple[int, int, int, WatchKey]) -> None:
        """A limited event that completed an operation is requeued, as its owner is dead or asks for that: once."""
        op = self._operations.get(number)
        given = op.settled.event if op is not None and op.settled is not None else None
        if op is None or given is None or not given.limited:
            return self.report(number, "it has no limited event that could be requeued")
        if not op.requeue_asked and (op.group or op.client.state is not ClientState.DEAD):
            self.report(number, "it is requeued, and its owner is not dead, and did not ask for that")
        if op.done:
            self.report(number, "it is requeued, and was done before")
        if found != (_FIRE, 1, 1, (given.purgatory, given.key)):
            self.report(number, f"{found} is not the event that it was granted")
        op.done = True
        return None

    # what becomes of operations ------------------------------------------------------------------------------------

    def action(
        self, row: int, kind: int, flags: int, orphans: int, operation: int, deadline_ns: int, client: Name
    ) -> None:
        """An ACTION row."""
        self._row = row
        op = self._operations.get(operation)
        if flags & CommandFlag.REQUEUE and (op.settled is not None if op else operation in self._settled):
            if op is not None and op.client.name == client:
                op.requeue_asked = True
            return None
        if op is None or not op.pending:
            return self.report(operation, f"{CommandKind(kind).name} of it, and it is not pending")
        if kind in (CommandKind.CANCEL, CommandKind.CANCEL_ID):
            self._replay.settle(op, _CANCELLED, None, None)
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
        """An OUTCOME row. `owner` may be a group's name; None: not known."""
        self._row = row
        self.outcomes += not self._cut
        if operation in self._settled:
            return self.report(operation, "it settles twice")
        self._settled.add(operation)
        op = self._operations.get(operation)
        if op is None:
            return self.report(operation, f"it is {Outcome(state).name}, and was never registered")
        left, op.left = op.left, None
        if op.deadline_ns == NO_DEADLINE and 0 < op.left_ns < deadline_ns:
            op.deadline_ns = deadline_ns
        if left is not None and op.group:
            self.report(operation, "it settles before its group has adopted it")
        if op.group and owner is not None and owner != op.group:
            self.report(operation, f"it is of group {op.group!r}, not of {owner!r}")
        if state == _EXPIRED and not op.deadline_ns <= settled_ns:
            self.report(operation, f"expired at {settled_ns}, due at {op.deadline_ns}")
        settled, op.expected = op.expected, None
        if settled is None:
            self._settled_by_itself(op, state, left)
        else:
            self._compare(op, settled, (state, settled_key, sequence), key, (registered_ns, deadline_ns), flags)
        if not op.group and (op.settled is None or op.settled.event is None or not op.settled.event.limited):
            if op.orphans == Orphans.GROUP:
                return None  # its group may adopt the outcome
            del self._operations[operation]
        return None

    def _settled_by_itself(self, op: Operation, state: int, left: Member | None) -> None:
        """Neither an event nor a command has settled it: its deadline did, or its client's end."""
        orphaned = state == _CANCELLED and left is not None and op.orphans == Orphans.CANCEL
        if state == _CANCELLED and op.group and op.deadline_ns == NO_DEADLINE:
            orphaned = not any(m.group == op.group and m.state in LIVING for m in self._members.values())
        if state != _EXPIRED and not orphaned:
            self.report(op.number, f"{Outcome(state).name}, and nothing that came before explains it")
        op.settled = Settled(state, None, None)
        self._replay.end_pending(op)

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
            self.report(op.number, f"it is {_shown(*found)}, and should be {_shown(*wanted)}")
        if ordinal is not None and key != op.keys[ordinal].name:
            self.report(op.number, f"its key is {key!r}, and should be {op.keys[ordinal].name!r}")
        if times != (op.registered_ns, op.deadline_ns):
            self.report(op.number, "its times differ from those of its registration")
        if bool(flags & _GRANTED) != bool(event and event.limited):
            self.report(op.number, "GRANTED is wrong")
        if bool(flags & _AGAIN) != bool(event and event.client is None):
            self.report(op.number, "REDELIVERED is wrong")

    def group(self, row: int, step: GroupStep, deliveries: int, group: Text, operation: int, client: Name) -> None:
        """A GROUP row."""
        self._row = row
        op, member = self._operations.get(operation), self._members.get(client)
        if op is None or (member is None and step is not GroupStep.DROPPED):
            return self.report(operation, f"{step.name}: the operation or client {client} is not known")
        if step is GroupStep.ADOPTED:
            return self._adopted(op, member, group)
        holder, op.holder = op.holder, None
        if holder is not None:
            holder.concerned.discard(op)
        wrong = op.settled is None or op.done or op.group != group
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
                op.done = True
            case GroupStep.DROPPED:
                there = any(m.group == group and m.state in LIVING for m in self._members.values())
                wrong = (
                    wrong or holder is not None or (there and not op.call)
                )  # a call is dropped if no member handles it
                op.done = True
        if wrong:
            self.report(operation, f"it is of group {op.group!r}, and cannot be {step.name} by {group!r} now")
        return None

    def _adopted(self, op: Operation, member: Member | None, group: Text) -> None:
        died = member is not None and member.state is ClientState.DEAD and member.group == group
        wrong = not died or op.client is not member or op.orphans != Orphans.GROUP
        if op.pending:
            wrong = wrong or op.left is not member
            op.left = None
        else:
            wrong = wrong or op.settled is None or op.done or bool(op.group)
            op.group, op.deliveries = group, 1
        if wrong:
            self.report(op.number, f"it cannot be adopted by {group!r} now")


def _shown(state: int, settled_key: int, sequence: int | None) -> str:
    key = f" by its key {settled_key - 1}" if settled_key else ""
    return f"{Outcome(state).name}{key} with event {sequence}"
