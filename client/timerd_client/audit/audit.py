"""Audits a journal of level `events`: computes from its rows how each operation should have settled, and compares.

An Audit takes rows in their order: registrations, events, cancellations, and the states of clients. Replay (replay.py)
applies them. If they settle an operation, each column of the operation's OUTCOME row must agree. For an EXPIRED row the
audit checks that the deadline had come, and that no event had settled the operation before. It does not check when the
wheel moved.

Two things are not in a journal:

* The acknowledgements of clients. If the owner of a settled operation dies, the operation's event may be requeued, or
  its outcome adopted. The audit checks that this was right, and happened once. It cannot check that this had to happen.
* The times at which the daemon sweeps the operations of a dead client. The sweep must end before the client is a
  tombstone.

An Audit is for one arena incarnation. Operations affect each other only through keys, ids and limited events on their
keys. So the rows of some keys may be audited without the rows of other keys (`whole=False`; then event numbers have
holes). Every CLIENT, SEGMENT, TURN, GAP and END row is needed. No code of the daemon is used here.

timerd_shm/declare/journal.py declares the rows, and says how the audit checks each column.
"""

from __future__ import annotations

from typing import Final

from timerd_shm.declare.journal import (
    ActionRow,
    AnchorRow,
    ClientRow,
    EndRow,
    EventRow,
    GapRow,
    GroupRow,
    OutcomeRow,
    RowFlag,
    SegmentRow,
    TurnRow,
    WatermarkRow,
)
from timerd_shm.declare.limits import CALL_AHEAD_NS_MAX, NO_DEADLINE, PAYLOAD_SIZE_MAX, TIMEOUT_NS_MAX
from timerd_shm.declare.states import RULES, Condition, EventFlag, EventKind, Orphans, Outcome
from timerd_shm.declare.wire import CommandFlag, CommandKind, RegisterFlag

from .clients import DEAD, LIVING, Clients, owners_of
from .findings import Findings
from .groups import Groups
from .records import Event, Finding, Member, Operation, Owner, Registration, Settled, Text, WatchKey, is_clean
from .replay import Replay
from .turns import Turns
from .words import differing, name_of, shown, shown_id, shown_key, shown_owner, shown_owners

NEEDS_EVENTS: Final = (
    "{} is of level outcomes: its rows show how operations settled, not why. An audit needs --journal-level=events "
    "from the arena's first row on. If segments of level events come before these rows, copy those segments alone, and "
    "audit the copy with an open end: --open-end, in Python open_end=True"
)
NEEDS_COLUMNS: Final = (
    "{} has segments that an older version of timerd wrote. They lack columns that this audit needs: audit them with "
    "timerd of that version"
)
NEEDS_BEGINNING: Final = (
    "{} begins with row {}, and an audit needs it from row 0: earlier registrations are not known. Keep all of its "
    "segments (--journal-keep), or audit a copy that has them"
)

# Members of enumerations as plain numbers, for the code that runs for each row.
_FIRE, _ADVANCE, _FAIL, _FORGET = (
    int(kind) for kind in (EventKind.FIRE, EventKind.ADVANCE, EventKind.FAIL, EventKind.FORGET)
)
_LIMITED, _REDELIVERED, _DROPPED = (
    int(flag) for flag in (EventFlag.LIMITED, EventFlag.REDELIVERED, EventFlag.VALUE_DROPPED)
)
_EVENT_FLAGS = int(EventFlag.LIMITED | EventFlag.WANTS_ANSWER | EventFlag.REDELIVERED | EventFlag.VALUE_DROPPED)
_COMPLETED, _EXPIRED, _CANCELLED = int(Outcome.COMPLETED), int(Outcome.EXPIRED), int(Outcome.CANCELLED)
_SNAPSHOT, _AT_REGISTRATION = int(RowFlag.SNAPSHOT), int(RowFlag.AT_REGISTRATION)
_GRANTED, _AGAIN, _LOST = int(RowFlag.GRANTED), int(RowFlag.REDELIVERED), int(RowFlag.VALUE_DROPPED)
_CANCEL, _CANCEL_ID = int(CommandKind.CANCEL), int(CommandKind.CANCEL_ID)
_RESCHEDULE, _RESCHEDULE_ID = int(CommandKind.RESCHEDULE), int(CommandKind.RESCHEDULE_ID)
_SET_ORPHANS = int(CommandKind.SET_ORPHANS)
_COMPLETE = int(CommandKind.COMPLETE)
_NEW_PLAN = 0  # no command: the daemon has planned a call anew
_ACTIONS = (_CANCEL, _CANCEL_ID, _RESCHEDULE, _RESCHEDULE_ID, _SET_ORPHANS, _COMPLETE)
_ACTION_FLAGS = int(CommandFlag.WANTS_ANSWER | CommandFlag.HAS_ID | CommandFlag.REQUEUE)
_HAS_ID, _REQUEUE = int(CommandFlag.HAS_ID), int(CommandFlag.REQUEUE)
_REGISTER_FLAGS = sum(RegisterFlag) - int(RegisterFlag.MARK_OF_OTHER_ARENA)
_ID_GIVEN, _ORPHANS_GIVEN = int(RegisterFlag.HAS_ID), int(RegisterFlag.ORPHANS_GIVEN)
_FOR_GROUP, _NO_MARK = int(RegisterFlag.FOR_GROUP), int(RegisterFlag.NO_MARK)
_CALL, _SCHEDULED = int(RegisterFlag.CALL), int(RegisterFlag.SCHEDULED)
_FOLLOWS = int(RegisterFlag.FOLLOWS)
_REPLACES = int(RegisterFlag.REPLACE | RegisterFlag.REPLACE_CHANGED)
_TAKE_NEEDED = frozenset(int(condition) for condition, rule in RULES.items() if rule.takes_needed)
_TOTAL = int(Condition.TOTAL)
_CONDITIONS, _EVENT_KINDS = len(Condition), frozenset(int(kind) for kind in EventKind)
_KEEP, _GROUP = int(Orphans.KEEP), int(Orphans.GROUP)
_CODE_MAX = (1 << 32) - 1
_REQUEUED = ("kind", "flags", "amount", "limit", "key", "value_length", "client")  # columns of the new EVENT row


class Audit:
    """Takes rows in their order. `wrong` lists the disagreements, `outcomes` counts the checked OUTCOME rows."""

    def __init__(self, *, whole: bool = True) -> None:
        self.outcomes = 0
        self.findings = Findings()
        self.turns = Turns(self.findings, whole)
        self._clients = Clients(self.findings, self.turns)
        self._groups = Groups(self.findings, self.turns, self._clients, whole)
        self._operations: dict[int, Operation] = {}
        self._settled: set[int] = set()
        self._registrations = 0
        self._number = 0  # number of the newest registration
        self._started = False  # a daemon has started since: it counts on from the newest registration in its arena
        self._whole = whole
        self._newest: Event | None = None
        self._replay = Replay()

    @property
    def wrong(self) -> list[Finding]:
        """The disagreements."""
        return self.findings.wrong

    def finish(self) -> list[Finding]:
        """Check, after the last row, that no OUTCOME row is missing. Returns `wrong`."""
        self.findings.row = -1
        for op in self._operations.values():
            if op.expected is not None:
                self.findings.report(op.number, f"should have settled: {Outcome(op.expected.state).name}")
        return self.findings.wrong

    # segments, turns and clients ------------------------------------------------------------------------------------

    def segment(self, row: int, r: SegmentRow) -> None:
        """A SEGMENT row."""
        self.findings.row = row
        self.turns.segment(r)
        if r.flags & RowFlag.START:
            self._clients.start()
            self._started = True

    def turn(self, row: int, r: TurnRow) -> None:
        """A TURN row."""
        self.findings.row = row
        self.turns.turn(r)

    def anchor(self, row: int, r: AnchorRow) -> None:
        """An ANCHOR row."""
        self.findings.row = row
        self.turns.anchor(r)

    def gap(self, row: int, r: GapRow) -> None:
        """A GAP row."""
        self.findings.row = row
        self.turns.gap(r)

    def end(self, row: int, r: EndRow) -> None:
        """An END row."""
        self.findings.row = row
        self.turns.end(r)

    def client(self, row: int, r: ClientRow, owner: Owner, group: Text) -> None:
        """A CLIENT row."""
        self.findings.row = row
        self._clients.client(r, owner, group)
        if r.state == DEAD and (member := self._clients.members.get((r.client, r.client_generation))) is not None:
            for op in self._replay.expected_of(member):
                self._clients.orphan(op, member, r.at_ns)
                if not op.group:
                    self._replay.take_back(op)

    # registrations and events --------------------------------------------------------------------------------------

    def registration(self, r: Registration) -> None:
        """REGISTER, REGISTERED and KEY rows."""
        findings = self.findings
        findings.row = r.row
        if r.flags & _SNAPSHOT:
            # A new journal begins with rows for the operations that are pending. If the daemon is killed meanwhile, the
            # next daemon writes these rows again.
            if r.operation not in self._operations and r.operation not in self._settled:
                findings.report(r.operation, "it is older than the journal, and cannot be audited")
            return
        owner = r.owner
        client = self._clients.members.get(r.client)
        if r.command_flags & _FOR_GROUP and client is not None and owner == (client.group, True):
            owner = client.text
        sender = self._clients.sender(r.client, owner, r.command, r.operation)
        if sender is None:
            return
        self._check_registration(r, sender)
        if r.operation in self._operations or r.operation in self._settled:
            findings.report(r.operation, "it is registered twice")
        if r.id is not None:
            of_id = (r.purgatory, r.id)
            if not r.command_flags & _REPLACES and self._replay.pending_of(of_id) is not None:
                findings.report(r.operation, "it replaces an operation, and should have been refused")
            self._replay.replace(of_id, r.newest)
        self._registrations += 1
        op = self._operations[r.operation] = Operation(r, sender, self._registrations)
        if not op.group:
            sender.pending[op.number] = op
        self._replay.register(op, r.mark, r.effective_ns, r.newest)

    def _check_registration(self, r: Registration, sender: Member) -> None:
        """Report values that the daemon would have refused, and wrong values that the daemon has computed itself."""
        turns, flags, keys = self.turns, r.command_flags, r.keys
        wrong: list[str] = []
        if r.effective_ns != turns.effective_ns:
            turns.not_effective(r.operation, r.effective_ns)
        turns.is_newest(r.newest, r.operation)
        if self._whole:
            follows = r.registration - self._number
            if follows != 1 and (not self._started or follows > 1):
                wrong.append(f"registration {r.registration} follows {self._number}")
            self._number, self._started = r.registration, False
        if r.registered_ns > turns.now_ns + CALL_AHEAD_NS_MAX or not 0 < r.registered_ns <= r.deadline_ns:
            wrong.append(f"it was called at {r.registered_ns}, for {r.deadline_ns}, and applied at {turns.now_ns}")
        needed = 1 <= r.needed <= len(keys) if r.condition in _TAKE_NEEDED else r.needed == 0
        if r.condition >= _CONDITIONS or not needed:
            wrong.append(f"{name_of(Condition, r.condition)} of {len(keys)} keys cannot need {r.needed}")
        if (r.total != 0) != (r.condition == _TOTAL):
            wrong.append(f"{name_of(Condition, r.condition)} cannot have the total {r.total}")
        if flags & ~_REGISTER_FLAGS or bool(flags & _ID_GIVEN) != bool(r.id):
            wrong.append(f"its flags are {flags:#x}, and it has {shown_id(r.id)}")
        needs = ((_CALL, _FOR_GROUP), (_SCHEDULED, _CALL), (_FOLLOWS, _NO_MARK))
        if any(flags & flag and not flags & needed for flag, needed in needs):
            wrong.append(f"its flags are {flags:#x}, which contradict each other")
        if flags & _FOR_GROUP and (r.owner is None or not r.owner[1]):
            wrong.append(f"it is for a group, and its owner is {shown_owner(r.owner)}")
        policy = _GROUP if flags & _FOR_GROUP else None if flags & _ORPHANS_GIVEN else sender.orphans
        if r.orphans > _GROUP or (policy is not None and r.orphans != policy):
            what = f"its orphans policy is {name_of(Orphans, r.orphans)}"
            wrong.append(what if policy is None else f"{what}, and should be {name_of(Orphans, policy)}")
        if r.flags or r.progress or r.payload_length > PAYLOAD_SIZE_MAX:
            wrong.append(f"flags {r.flags:#x}, progress {r.progress:#x}, or a payload of {r.payload_length} bytes")
        if not r.purgatory or not all(key.name for key in keys):
            wrong.append("the name of its purgatory or of a key is missing")
        if len(keys) > 1 and len({key.name for key in keys}) != len(keys):
            wrong.append("two of its keys are the same")
        for what in wrong:
            self.findings.report(r.operation, what)

    def event(self, row: int, r: EventRow, watch_key: WatchKey, owner: Owner) -> None:
        """An EVENT row."""
        findings, flags = self.findings, r.flags
        findings.row = row
        self.turns.event(r.sequence, r.effective_ns)
        self._check_event(r, watch_key)
        limited = bool(flags & _LIMITED)
        sender: Member | None = None
        if flags & _REDELIVERED:
            self._requeued(r, watch_key, owner)
        else:
            sender = self._clients.sender((r.client, r.client_generation), owner, r.command, 0)
            if sender is None:
                return
        limit, again = r.limit if limited else None, bool(flags & _REDELIVERED)
        event = Event(
            r.sequence, r.event_kind, watch_key, r.amount, limit, r.effective_ns, sender, r.command, redelivered=again
        )
        event.value_length, event.value_dropped = r.value_length, bool(flags & _DROPPED)
        self._newest = event
        self._replay.enter(event)

    def _check_event(self, r: EventRow, watch_key: WatchKey) -> None:
        """Report values that the daemon would have refused, and a command that would have made no event."""
        kind, flags, wrong = r.event_kind, r.flags, False
        if flags:
            wrong = bool(flags & ~_EVENT_FLAGS) or (flags & _LIMITED and (kind != _FIRE or r.limit == 0)) != 0
            wrong = wrong or bool(flags & _DROPPED and not flags & _REDELIVERED)
        if r.limit and not flags & _LIMITED:
            wrong = True
        if kind not in _EVENT_KINDS or not is_clean(r) or r.value_length > PAYLOAD_SIZE_MAX:
            wrong = True
        elif kind == _FAIL:
            wrong = wrong or r.amount > _CODE_MAX
        elif kind == _ADVANCE:
            watermark = self._replay.watermark_of(watch_key)
            wrong = wrong or (watermark is not None and r.amount <= watermark)
        elif kind == _FORGET and not self.turns.begins_late:
            wrong = wrong or self._replay.watermark_of(watch_key) is None
        if wrong or not watch_key[0] or not watch_key[1]:
            what = f"{name_of(EventKind, kind)} of {shown_key(watch_key)}, flags {flags:#x}, amount {r.amount}"
            what += f", limit {r.limit}"
            self.findings.report(0, f"event {r.sequence} is not possible: {what}")

    def watermark(self, row: int, r: WatermarkRow, watch_key: WatchKey) -> None:
        """A WATERMARK row: the watermark of a key when the journal began."""
        self.findings.row = row
        self.turns.at(r.at_ns, 0)
        self.turns.is_newest(r.newest, 0)
        if not is_clean(r) or not all(watch_key):
            self.findings.report(0, "the WATERMARK row has no key, or bytes that are not zero")
        self._replay.raise_watermark(watch_key, r.watermark)

    def _requeued(self, r: EventRow, watch_key: WatchKey, owner: Owner) -> None:
        """A limited event that completed an operation is requeued, once: the owner is dead, or has asked for this."""
        report, number = self.findings.report, r.command
        op = self._operations.get(number)
        given = op.settled.event if op is not None and op.settled is not None else None
        if op is None or given is None or not op.is_granted(given):
            return report(number, "it has no limited event that could be requeued")
        if not op.requeue_asked and (op.group or op.client.state in LIVING):
            report(number, "it is requeued, although its owner is not dead and did not ask for that")
        if op.done:
            report(number, "it is requeued, although it was done before")
        flags = _LIMITED | _REDELIVERED | (_DROPPED if op.dropped else 0)
        length = 0 if op.dropped else given.value_length
        client = (r.client, r.client_generation)
        found = (r.event_kind, r.flags, r.amount, r.limit, watch_key, r.value_length, client)
        wanted = (_FIRE, flags, 1, 1, (given.purgatory, given.key), length, (op.client.name[0], 0))
        if found != wanted or owner is not None:
            differs = differing(_REQUEUED, found, wanted) or f"it names {shown_owner(owner)}"
            report(number, f"its event is requeued with wrong values: {differs}")
        op.done = True
        return None

    # actions and outcomes ------------------------------------------------------------------------------------------

    def action(self, row: int, r: ActionRow, owner: Owner) -> None:
        """An ACTION row."""
        findings, turns, kind, operation = self.findings, self.turns, r.command_kind, r.operation
        findings.row = row
        if kind == _NEW_PLAN:
            return self._new_plan(r, owner)
        turns.at(r.applied_ns, operation)
        sender = self._clients.sender((r.client, r.client_generation), owner, r.command, operation)
        op = self._operations.get(operation)
        by_id = kind in (_CANCEL_ID, _RESCHEDULE_ID)
        if (
            kind not in _ACTIONS
            or bool(r.flags & _HAS_ID) != by_id
            or r.flags & ~_ACTION_FLAGS
            or r.orphans > (_GROUP if kind == _SET_ORPHANS else 0)
            or not is_clean(r)
        ):
            what = f"{name_of(CommandKind, kind)} with flags {r.flags:#x} and policy {name_of(Orphans, r.orphans)}"
            findings.report(operation, f"{what} is no command")
        if op is not None and not by_id and op.client is not sender:
            findings.report(operation, f"client {(r.client, r.client_generation)} does not own it")
        if op is not None and kind not in (_RESCHEDULE, _RESCHEDULE_ID):
            self._check_deadline(op, r.deadline_ns)
        if r.flags & _REQUEUE and (op.settled is not None if op else operation in self._settled):
            if op is not None and op.client is sender:
                op.requeue_asked = True
            return None
        if op is None or not op.pending:
            return findings.report(operation, f"it is not pending, and there is a {name_of(CommandKind, kind)} for it")
        if kind == _COMPLETE:
            # COMPLETE counts only for an operation whose owner decides, and before the deadline.
            if not op.owners or op.deadline_ns <= turns.effective_ns:
                late = f"at {turns.effective_ns}, due at {op.deadline_ns}" if op.owners else "although events decide"
                findings.report(operation, f"it was completed by COMPLETE {late}")
            self._replay.settle(op, _COMPLETED, None, None, turns.newest)
        elif kind in (_CANCEL, _CANCEL_ID):
            self._replay.settle(op, _CANCELLED, None, None, turns.newest)
        elif kind == _SET_ORPHANS:
            op.orphans = r.orphans
        else:
            op.deadline_ns = r.deadline_ns
            op.wall_ns = 0
        return None

    def _new_plan(self, r: ActionRow, owner: Owner) -> None:
        """An ACTION row without a command: the daemon has planned a call anew, because the wall clock was set."""
        findings, turns = self.findings, self.turns
        turns.at(r.applied_ns, r.operation)
        zeros = (r.flags, r.orphans, r.client, r.client_generation, r.command)
        if any(zeros) or owner is not None or not is_clean(r):
            findings.report(r.operation, f"it is planned anew, and the row has owner {shown_owner(owner)} or a command")
        op = self._operations.get(r.operation)
        if op is None or not op.pending or not op.wall_ns:
            return findings.report(r.operation, "it is planned anew, and is no pending call with a wall clock time")
        if not turns.now_ns <= r.deadline_ns <= turns.now_ns + TIMEOUT_NS_MAX:
            findings.report(r.operation, f"it is planned anew at {turns.now_ns}, for {r.deadline_ns}")
        op.deadline_ns = r.deadline_ns
        return None

    def group(self, row: int, r: GroupRow, group: Text, owner: Owner) -> None:
        """A GROUP row."""
        self.findings.row = row
        self._groups.group(r, self._operations.get(r.operation), group, owner)

    def outcome(self, row: int, r: OutcomeRow, key: Text, owner: Owner, purgatory: Text, id_: Text) -> None:
        """An OUTCOME row, and its texts."""
        findings, operation = self.findings, r.operation
        findings.row = row
        self.outcomes += not findings.cut
        if r.settled_ns != self.turns.now_ns or self.turns.effective_ns < 0:
            self.turns.at(r.settled_ns, operation)
        if operation in self._settled:
            return findings.report(operation, "it settles twice")
        self._settled.add(operation)
        op = self._operations.get(operation)
        if op is None:
            return findings.report(
                operation, f"it settles as {name_of(Outcome, r.outcome)}, and no row that was read registers it"
            )
        left, op.left = op.left, None
        if left is not None and op.group:
            findings.report(operation, "it settles before its group has adopted it")
        client = op.client
        if op.group or op.kept:
            if owner not in owners_of(op):
                wanted = shown_owners(owners_of(op))
                findings.report(operation, f"its owner is {shown_owner(owner)}, and should be {wanted}")
        else:
            if owner != client.text:
                wanted = shown_owner(client.text)
                findings.report(operation, f"its owner is {shown_owner(owner)}, and should be {wanted}")
            if client.state in LIVING:
                client.next_outcome += 1
        if (r.registered_ns, purgatory, id_) != (op.registered_ns, op.purgatory, op.id):
            found = f"called at {r.registered_ns} in {shown(purgatory)} with {shown_id(id_)}"
            said = f"{op.registered_ns}, {shown(op.purgatory)}, {shown_id(op.id)}"
            findings.report(operation, f"{found}, and its registration has {said}")
        if r.deadline_ns != op.deadline_ns:
            self._check_deadline(op, r.deadline_ns)
        if r.outcome == _EXPIRED and not op.deadline_ns <= r.settled_ns:
            findings.report(operation, f"expired at {r.settled_ns}, due at {op.deadline_ns}")
        settled, op.expected = op.expected, None
        self._replay.settled(op)
        # The sweep after the death of the operation's client may cancel it before an event reaches it.
        swept = left is not None and not op.group and r.outcome == _CANCELLED and r.settled_key == 0
        if settled is None or swept:
            settled = self._settled_by_itself(op, r.outcome, left)
            self._replay.end_pending(op)
        op.settled, op.settled_ns, op.dropped = settled, r.settled_ns, bool(r.flags & _LOST)
        self._compare(op, settled, r, key)
        if not op.group and not op.is_granted(settled.event):
            if op.orphans == _GROUP:
                return None  # its group may adopt the outcome
            del self._operations[operation]
        return None

    def _check_deadline(self, op: Operation, deadline_ns: int) -> None:
        """Check a deadline. A kept operation without a deadline gets a deadline from the daemon."""
        if deadline_ns == op.deadline_ns:
            return
        if op.left_ns and op.deadline_ns == NO_DEADLINE:
            op.deadline_ns = deadline_ns
            kept_ns = self.turns.kept_ns
            if deadline_ns == min(op.left_ns + kept_ns, NO_DEADLINE - 1) or kept_ns != op.client.kept_ns:
                return
        self.findings.report(op.number, f"its deadline is {deadline_ns}, and should be {op.deadline_ns}")

    def _settled_by_itself(self, op: Operation, state: int, left: Member | None) -> Settled:
        """The settlement of an operation that no event or command has settled, but its deadline or its owner's end."""
        orphaned = state == _CANCELLED and left is not None and op.orphans not in (_KEEP, _GROUP)
        if state == _CANCELLED and op.group and op.deadline_ns == NO_DEADLINE:
            members = self._clients.members.values()
            orphaned = not any(m.group == op.group and m.state in LIVING for m in members)
        if state != _EXPIRED and not orphaned:
            name = name_of(Outcome, state)
            self.findings.report(op.number, f"it is {name}, and no earlier row explains this")
        return Settled(state, None, None)

    def _compare(self, op: Operation, settled: Settled, r: OutcomeRow, key: Text) -> None:
        """Compare the columns of an OUTCOME row that describe the settlement."""
        event, ordinal, flags = settled.event, settled.ordinal, r.flags
        wanted_flags = _AT_REGISTRATION if settled.at_registration else 0
        error, sequence = 0, r.sequence
        if event is not None:
            sequence = event.sequence
            if op.is_granted(event):
                wanted_flags |= _GRANTED
            if event.redelivered:
                wanted_flags |= _AGAIN
            if event.value_dropped or (flags & _LOST and event.value_length):
                wanted_flags |= _LOST  # the room for a value depends on acknowledgements: either is right
            if event.kind == _FAIL:
                error = event.amount
        elif settled.seen is not None:
            sequence = settled.seen
        elif self.turns.newest is not None and sequence != self.turns.newest:
            # All events have reached the operation, except one in delivery that came too late.
            newest = self._newest
            too_late = newest is not None and newest.effective_ns >= op.deadline_ns
            sequence = self.turns.newest - 1 if too_late else self.turns.newest
        found = (r.outcome, r.settled_key, r.sequence, r.error, flags)
        wanted = (settled.state, 0 if ordinal is None else ordinal + 1, sequence, error, wanted_flags)
        if found != wanted:
            self.findings.report(op.number, f"it is {_shown(*found)}, and should be {_shown(*wanted)}")
        name = op.keys[ordinal or 0].name
        if key != name:
            self.findings.report(op.number, f"its key is {shown(key)}, and should be {shown(name)}")


def _shown(state: int, settled_key: int, sequence: int, error: int, flags: int) -> str:
    key = f" by its key {settled_key - 1}" if settled_key else ""
    code = f", error {error}" if error else ""
    return f"{name_of(Outcome, state)}{key} with event {sequence}{code}, flags {flags:#x}"
