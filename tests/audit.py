"""Computes again, from a journal of level `events` alone, how each operation should have settled.

The dumb model is told what the rows say was registered, fired, cancelled and who died, in their order; what it settles
must be what the OUTCOME rows say. Deadlines are the wheel's business: an EXPIRED row must be due, and not contradicted.
"""

from __future__ import annotations

from typing import Any

from model import Client, Key, KeyAct, Mark, Model, Operation, OperationAct, Register, Settling
from timerd_shm.journal import RowFlag, RowKind
from timerd_shm.journal_reader import JournalReader, Row
from timerd_shm.layout import ClientState, Condition, EventFlag, EventKind, KeyKind, Orphans, Outcome
from timerd_shm.limits import NO_DEADLINE
from timerd_shm.wire import CommandKind, RegisterFlag

COMMAND_OF = {
    EventKind.FIRE: CommandKind.FIRE,
    EventKind.ADVANCE: CommandKind.ADVANCE,
    EventKind.FAIL: CommandKind.FAIL,
    EventKind.CANCEL_FOR_KEY: CommandKind.CANCEL_FOR_KEY,
    EventKind.FORGET: CommandKind.FORGET,
}


class Audit:
    """`run()` reads to the end and returns what is wrong; `outcomes` counts the rows that were checked."""

    def __init__(self, reader: JournalReader) -> None:
        self.reader = reader
        self.model = Model(
            tick_ns=1, ring_events=1 << 60, slot_of=lambda purgatory, key: 0, capacity=1 << 60, quota_operations=1 << 60
        )
        self.clients: dict[tuple[int, int], Client] = {}
        self.operations: dict[int, Operation] = {}
        self.names: dict[Operation, int] = {}
        self.purgatories: dict[bytes | None, int] = {}
        self.expected: dict[Operation, Settling] = {}
        self.taken = 0  # of model.settled
        self.wrong: list[str] = []
        self.outcomes = 0
        self.told: set[int] = set()

    def run(self) -> list[str]:
        half: list[Row] = []
        for row in self.reader.rows():
            kind = row.record.kind
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
            case RowKind.CLIENT:
                name = (record.client, record.client_generation)
                if record.state == ClientState.LIVE:
                    self.clients[name] = self.model.open_client(Orphans(record.orphans))
                elif record.state == ClientState.DEAD:
                    self.model.close_client(self.clients[name], record.at_ns)
            case RowKind.EVENT:
                self.event(row)
            case RowKind.ACTION:
                self.action(row)
            case RowKind.OUTCOME:
                self.outcome(row)

    def client(self, record: Any) -> Client:
        """Whom a row names, with the command number before its own: refused commands have no rows."""
        client = self.clients[record.client, record.client_generation]
        client.last_command = record.command - 1
        return client

    def purgatory(self, record: Any) -> int:
        return self.purgatories.setdefault(self.reader.text(record.purgatory), len(self.purgatories))

    def register(self, first: Row, second: Row, *keys: Row) -> None:
        r, s = first.record, second.record
        flags = RegisterFlag(r.command_flags)
        names = [(key.record, self.reader.text(key.record.key)) for key in keys]
        marked = not flags & RegisterFlag.NO_MARK
        client = self.clients[s.client, s.client_generation]
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
            ),
            s.applied_ns,
        )
        registered = [op for op in (*self.model.pending, *(e.op for e in self.model.settled[self.taken :]))]
        op = next(op for op in registered if op.client is client and op.command == r.command)
        self.operations[r.operation], self.names[op] = op, r.operation

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

    def action(self, row: Row) -> None:
        record = row.record
        op = self.operations.get(record.operation)
        if op is None or op not in self.model.pending:
            return self.say(row, f"operation {record.operation:#x} is not pending")
        match CommandKind(record.command_kind):
            case CommandKind.CANCEL | CommandKind.CANCEL_ID:
                command = OperationAct(CommandKind.CANCEL, op.command)
            case CommandKind.SET_ORPHANS:
                command = OperationAct(CommandKind.SET_ORPHANS, op.command, orphans=Orphans(record.orphans))
            case _:
                op.deadline_ns = record.deadline_ns
                return None
        self.model.apply(op.client, command, record.applied_ns)

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
        if settled is None:
            if state is not Outcome.EXPIRED:
                return self.say(row, f"{state.name}, and nothing that came before says so")
            if not op.deadline_ns <= record.settled_ns:
                self.say(row, f"expired at {record.settled_ns}, due at {op.deadline_ns}")
            self.model._settle(op, Outcome.EXPIRED, record.settled_ns)
            self.taken = len(self.model.settled)
            return None
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
        return None


def audit(directory: Any) -> Audit:
    """Audit a whole journal; `wrong` is empty if it holds."""
    with JournalReader(directory) as reader:
        found = Audit(reader)
        found.run()
        found.wrong += [f"{damage.offset}: {damage.what}" for damage in reader.damage]
    return found
