"""Computes again, from a journal of level `events` alone, how each operation should have settled.

The dumb model is told what the rows say was registered, fired, cancelled and who died, in their order; what it settles
must be what the OUTCOME rows say. Deadlines are the wheel's business: an EXPIRED row must be due, and not contradicted.

It ends at a GAP: what is pending then is not known any more. What clients have acknowledged the journal does not tell.
So of what was settled already when its owner died, it is checked that it was handed on or adopted rightly and once, not
that it had to be. When the sweep comes by what a dead client has left is the daemon's business: but it is before the
client is a tombstone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from commands import Key, KeyAct, Mark, Register
from model import Client, Model, Operation, Settling
from timerd_shm.journal import GroupStep, RowFlag, RowKind
from timerd_shm.journal_reader import JournalReader, Row
from timerd_shm.layout import ClientFlag, ClientState, Condition, EventFlag, EventKind, KeyKind, Orphans, Outcome
from timerd_shm.limits import GROUP_KEPT_NS, NO_DEADLINE
from timerd_shm.wire import CommandFlag, CommandKind, RegisterFlag

COMMAND_OF = {
    EventKind.FIRE: CommandKind.FIRE,
    EventKind.ADVANCE: CommandKind.ADVANCE,
    EventKind.FAIL: CommandKind.FAIL,
    EventKind.CANCEL_FOR_KEY: CommandKind.CANCEL_FOR_KEY,
    EventKind.FORGET: CommandKind.FORGET,
}


# From each state, those that a CLIENT row may tell next; the same again where it listens or not.
NEXT_STATES = {
    ClientState.FREE: {ClientState.LIVE},
    ClientState.LIVE: {ClientState.LIVE, ClientState.SILENT, ClientState.DEAD},
    ClientState.SILENT: {ClientState.SILENT, ClientState.LIVE, ClientState.DEAD},
    ClientState.DEAD: {ClientState.TOMBSTONE, ClientState.FREE},
    ClientState.TOMBSTONE: {ClientState.LIVE, ClientState.FREE},
}
LIVING = (ClientState.LIVE, ClientState.SILENT)


@dataclass
class Member:
    """A client as the CLIENT rows have it."""

    client: Client
    state: ClientState
    listens: bool

    def takes(self, op: Operation) -> bool:
        """Whether it may be told of it. Which calls a client handles, rows do not tell."""
        return bool(self.client.group) and self.state is ClientState.LIVE and (self.listens or op.call)


class Audit:
    """`run()` reads to the end and returns what is wrong; `outcomes` counts the rows that were checked."""

    def __init__(self, reader: JournalReader) -> None:
        self.reader = reader
        self.model = Model(
            tick_ns=1, ring_events=1 << 60, slot_of=lambda purgatory, key: 0, capacity=1 << 60, quota_operations=1 << 60
        )
        self.members: dict[tuple[int, int], Member] = {}  # by slot and generation
        self.operations: dict[int, Operation] = {}
        self.names: dict[Operation, int] = {}
        self.purgatories: dict[bytes | None, int] = {}
        self.expected: dict[Operation, Settling] = {}
        self.taken = 0  # of model.settled
        self.wrong: list[str] = []
        self.outcomes = 0
        self.told: set[int] = set()
        self.settled: dict[Operation, Settling] = {}  # as its row has said
        self.left: dict[Operation, Member] = {}  # pending, of a dead client: to be cancelled, or adopted
        self.ends: dict[Operation, int] = {}  # kept without a deadline: the one it gets
        self.given_back: set[Operation] = set()  # a command has asked to hand it on
        self.holders: dict[Operation, Member] = {}  # of a group's: whom it is told to
        self.deliveries: dict[Operation, int] = {}
        self.ended: set[Operation] = set()  # handed on, done or dropped
        self.gap = 0  # rows that the first GAP says are missing; nothing after it is audited

    def run(self) -> list[str]:
        half: list[Row] = []
        for row in self.reader.rows():
            kind = row.record.kind
            if kind == RowKind.GAP:
                self.gap = row.record.rows
                if half:
                    self.say(half[0], "a registration lacks rows")
                return self.wrong
            if kind in (RowKind.REGISTER, RowKind.REGISTERED, RowKind.KEY):
                half.append(row)
                if kind == RowKind.KEY and len(half) == 2 + half[0].record.keys:
                    self.register(*half)
                    half = []
            elif kind != RowKind.TEXT and kind != RowKind.CONTINUED:
                if half:
                    self.say(half[0], "a registration lacks rows")
                    half = []
                self.take(row)
            self.collect()
        for op, settled in self.expected.items():
            self.wrong.append(f"operation {self.names[op]:#x} should have settled: {settled.state.name}")
        return self.wrong

    def say(self, row: Row, what: str) -> None:
        self.wrong.append(f"{row.offset}: {what}")

    def take(self, row: Row) -> None:
        record = row.record
        match RowKind(record.kind):
            case RowKind.SEGMENT if record.flags & RowFlag.START:
                for member in self.members.values():
                    if member.state is ClientState.SILENT:
                        member.state = ClientState.LIVE
            case RowKind.CLIENT:
                self.client_row(row)
            case RowKind.GROUP:
                self.group(row)
            case RowKind.EVENT if record.flags & EventFlag.REDELIVERED:
                self.handed_on(row)
            case RowKind.EVENT:
                self.event(row)
            case RowKind.ACTION:
                self.action(row)
            case RowKind.OUTCOME:
                self.outcome(row)

    def client_row(self, row: Row) -> None:
        record, name = row.record, (row.record.client, row.record.client_generation)
        state, group = ClientState(record.state), self.reader.text(record.group) or b""
        member = self.members.get(name)
        before = member.state if member else ClientState.FREE
        if state not in NEXT_STATES[before]:
            self.say(row, f"client {name} is {state.name} after {before.name}")
        if member is None:
            client = self.model.open_client(Orphans(record.orphans), group)
            member = self.members[name] = Member(client, state, False)
        member.state, member.listens = state, bool(record.flags & ClientFlag.LISTENS)
        if state is ClientState.LIVE:
            member.client.orphans, member.client.group = Orphans(record.orphans), group
        elif state is ClientState.DEAD:
            self.die(member, record.at_ns)
        elif state in (ClientState.TOMBSTONE, ClientState.FREE) and before is ClientState.DEAD:
            for op, owner in self.left.items():
                if owner is member:
                    self.say(row, f"operation {self.names[op]:#x} of client {name} was left as it is")
            for op, holder in self.holders.items():
                if holder is member:
                    self.say(row, f"operation {self.names[op]:#x} is still told to client {name}")
        if state is ClientState.FREE:
            del self.members[name]

    def die(self, member: Member, died_ns: int) -> None:
        """What it has pending takes no limited event any more, unless it is its group's. What is kept has an end."""
        for op in self.model.pending:
            if self.model.owns(member.client, op):
                if op.orphans is Orphans.GROUP:
                    op.group = member.client.group
                else:
                    op.kept = True
                if op.orphans is not Orphans.KEEP:
                    self.left[op] = member
                elif op.deadline_ns == NO_DEADLINE:
                    self.ends[op] = died_ns + GROUP_KEPT_NS

    def client(self, record: Any) -> Client:
        """Whom a row names, with the command number before its own: refused commands have no rows."""
        client = self.members[record.client, record.client_generation].client
        client.last_command = record.command - 1
        return client

    def purgatory(self, record: Any) -> int:
        return self.purgatories.setdefault(self.reader.text(record.purgatory), len(self.purgatories))

    def register(self, first: Row, second: Row, *keys: Row) -> None:
        r, s = first.record, second.record
        if r.flags & RowFlag.SNAPSHOT:
            # Killed before the first snapshot had ended, a daemon begins with another one. All was told before.
            if r.operation not in self.operations:
                self.say(first, f"operation {r.operation:#x} was there before the journal: it cannot be audited")
            return
        flags = RegisterFlag(r.command_flags)
        names = [(key.record, self.reader.text(key.record.key)) for key in keys]
        marked = not flags & RegisterFlag.NO_MARK
        client = self.members[s.client, s.client_generation].client
        client.last_command = r.command - 1
        self.model.apply(
            client,
            Register(
                tuple(
                    Key(name or b"", key.target if key.key_kind == KeyKind.WATERMARK else None) for key, name in names
                ),
                timeout_ns=NO_DEADLINE if r.deadline_ns == NO_DEADLINE else r.deadline_ns - r.registered_ns,
                condition=Condition(r.condition),
                needed=r.needed,
                total=s.total,
                mark=Mark(r.mark_sequence, r.mark_command) if marked else None,
                mark_by_sequence=bool(flags & RegisterFlag.MARK_BY_SEQUENCE),
                purgatory=self.purgatory(s),
                registered_ns=r.registered_ns,
                id=self.reader.text(s.id),
                if_exists="replace",
                orphans=Orphans(r.orphans),
                for_group=bool(flags & RegisterFlag.FOR_GROUP),
                call=bool(flags & RegisterFlag.CALL),
            ),
            s.applied_ns,
        )
        registered = [op for op in (*self.model.pending, *(e.op for e in self.model.settled[self.taken :]))]
        op = next(op for op in registered if op.client is client and op.command == r.command)
        self.operations[r.operation], self.names[op] = op, r.operation
        if op.group and self.reader.text(s.owner) != op.group:
            self.say(first, f"it is of group {op.group!r}, not {self.reader.text(s.owner)!r}")

    def event(self, row: Row) -> None:
        e = row.record
        self.model.apply(
            self.client(e),
            KeyAct(
                COMMAND_OF[EventKind(e.event_kind)],
                self.reader.text(e.key) or b"",
                e.amount,
                limit=e.limit if e.flags & EventFlag.LIMITED else None,
                purgatory=self.purgatory(e),
            ),
            e.applied_ns,
        )
        if self.model.newest != e.sequence:
            self.say(row, f"event {e.sequence} is the {self.model.newest}th")

    def handed_on(self, row: Row) -> None:
        """What a limited event gave to an operation goes on, because its owner is dead or gives it back: once."""
        e = row.record
        op = self.operations.get(e.command)
        settled = self.settled.get(op) if op else None
        if op is None or settled is None or settled.event is None or not settled.event.limited:
            return self.say(row, f"operation {e.command:#x} has nothing that could be handed on")
        owner = next((each for each in self.members.values() if each.client is op.client), None)
        if op not in self.given_back and (op.group or owner is None or owner.state is not ClientState.DEAD):
            self.say(row, f"the owner of operation {e.command:#x} is not dead, and did not give it back")
        if op in self.ended:
            self.say(row, f"operation {e.command:#x} had ended")
        found = (EventKind(e.event_kind), e.amount, e.limit, self.reader.text(e.key), self.purgatory(e))
        if found != (EventKind.FIRE, 1, 1, settled.event.key, settled.event.purgatory):
            self.say(row, f"{found} is not what operation {e.command:#x} was given")
        self.ended.add(op)
        given = next(each for each in op.client.unacknowledged if each.operation is op)
        self.model._hand_on(given, e.applied_ns)
        if self.model.newest != e.sequence:
            self.say(row, f"event {e.sequence} is the {self.model.newest}th")
        return None

    def group(self, row: Row) -> None:
        record, step = row.record, GroupStep(row.record.step)
        op, group = self.operations.get(record.operation), self.reader.text(record.group) or b""
        member = self.members.get((record.client, record.client_generation))
        if op is None or (member is None and step is not GroupStep.DROPPED):
            return self.say(row, f"{step.name}: operation {record.operation:#x}, or the client, is not known")
        if step is GroupStep.ADOPTED:
            return self.adopted(row, op, member, group)
        holder, told = self.holders.pop(op, None), self.deliveries.get(op, 0)
        wrong = op not in self.settled or op in self.ended or op.group != group
        match step:
            case GroupStep.TOLD:
                there = member is not None and member.takes(op) and member.client.group == group
                wrong = wrong or holder is not None or not there or record.deliveries != min(told + 1, 255)
                self.deliveries[op] = record.deliveries
                if member is not None:
                    self.holders[op] = member
            case GroupStep.RETURNED:
                wrong = wrong or holder is not member or member is None or (member.takes(op) and not op.call)
            case GroupStep.DONE:
                wrong = wrong or holder is not member
                self.ended.add(op)
            case GroupStep.DROPPED:
                wrong = wrong or holder is not None
                there = any(m.client.group == group and m.state in LIVING for m in self.members.values())
                wrong = wrong or (there and not op.call)  # of a call, nobody of these handles the name
                self.ended.add(op)
        if wrong:
            self.say(row, f"operation {record.operation:#x} of group {group!r} cannot be {step.name} now")
        return None

    def adopted(self, row: Row, op: Operation, member: Member | None, group: bytes) -> None:
        ended = member is not None and member.state is ClientState.DEAD and member.client.group == group
        wrong = not ended or op.client is not (member and member.client) or op.orphans is not Orphans.GROUP
        if op in self.model.pending:
            wrong = wrong or self.left.pop(op, None) is not member
        else:
            wrong = wrong or op not in self.settled or op in self.ended or bool(op.group)
            op.group = group
            self.deliveries[op] = 1
        if wrong:
            self.say(row, f"operation {self.names[op]:#x} cannot be adopted by {group!r} now")

    def action(self, row: Row) -> None:
        record = row.record
        op = self.operations.get(record.operation)
        sender = self.members[record.client, record.client_generation].client
        if op in self.settled and record.flags & CommandFlag.GIVE_BACK and op.client is sender:
            self.given_back.add(op)
            return None
        if op is None or op not in self.model.pending:
            return self.say(row, f"operation {record.operation:#x} is not pending")
        match CommandKind(record.command_kind):
            case CommandKind.CANCEL | CommandKind.CANCEL_ID:
                self.model._settle(op, Outcome.CANCELLED, record.applied_ns)
            case CommandKind.SET_ORPHANS:
                op.orphans = Orphans(record.orphans)
            case _:
                op.deadline_ns = record.deadline_ns
        return None

    def collect(self) -> None:
        """What the model has settled since the last row."""
        for settled in self.model.settled[self.taken :]:
            self.expected[settled.op] = settled
        self.taken = len(self.model.settled)

    def outcome(self, row: Row) -> None:
        self.outcomes += 1
        record = row.record
        if record.operation in self.told:
            return self.say(row, f"operation {record.operation:#x} settles twice")
        self.told.add(record.operation)
        op, state = self.operations.get(record.operation), Outcome(record.outcome)
        if op is None:
            return self.say(row, f"operation {record.operation:#x} was never registered")
        settled = self.expected.pop(op, None)
        left = self.left.pop(op, None)
        if op.deadline_ns == NO_DEADLINE and record.deadline_ns == self.ends.get(op):
            op.deadline_ns = record.deadline_ns
        if left is not None and op.group:
            self.say(row, f"operation {record.operation:#x} settles before its group has adopted it")
        if op.group and self.reader.text(record.owner) != op.group:
            self.say(row, f"it is of group {op.group!r}, not of {self.reader.text(record.owner)!r}")
        if settled is None:
            orphaned = state is Outcome.CANCELLED and left is not None and op.orphans is Orphans.CANCEL
            if state is Outcome.CANCELLED and op.group and op.deadline_ns == NO_DEADLINE:
                orphaned = not any(m.client.group == op.group and m.state in LIVING for m in self.members.values())
            if state is not Outcome.EXPIRED and not orphaned:
                return self.say(row, f"{state.name}, and nothing that came before says so")
            if state is Outcome.EXPIRED and not op.deadline_ns <= record.settled_ns:
                self.say(row, f"expired at {record.settled_ns}, due at {op.deadline_ns}")
            self.model._settle(op, state, record.settled_ns)
            self.settled[op] = self.model.settled[-1]
            self.taken = len(self.model.settled)
            return None
        self.settled[op] = settled
        ordinal = 0 if settled.ordinal is None else settled.ordinal + 1
        wanted = (settled.state, ordinal, settled.event.sequence if settled.event else None)
        found = (state, record.settled_key, record.sequence if settled.event else None)
        if found != wanted:
            self.say(row, f"operation {record.operation:#x}: {found}, and it should be {wanted}")
        key = self.reader.text(record.key)
        if settled.ordinal is not None and key != op.keys[settled.ordinal].name:
            self.say(row, f"its key is {key!r}, and should be {op.keys[settled.ordinal].name!r}")
        if (record.registered_ns, record.deadline_ns) != (op.registered_ns, op.deadline_ns):
            self.say(row, "its times differ from those of its registration")
        if bool(record.flags & RowFlag.HANDED_OVER) != bool(settled.event and settled.event.limited):
            self.say(row, "HANDED_OVER is wrong")
        if bool(record.flags & RowFlag.REDELIVERED) != bool(settled.event and settled.event.client is None):
            self.say(row, "REDELIVERED is wrong")
        return None


def audit(directory: Any) -> Audit:
    """Audit a whole journal; `wrong` is empty if it holds."""
    with JournalReader(directory) as reader:
        found = Audit(reader)
        found.run()
        found.wrong += [f"{damage.offset}: {damage.what}" for damage in reader.damage]
    return found
