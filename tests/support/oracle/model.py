"""The promises of the daemon, written as plainly as possible: the oracle for the compiled core.

The audit's rules (timerd_client.rules) say which event settles an operation. The model adds clients, groups, ids,
quotas and the clock. The events are an unbounded list, and the wheel is one comparison. The core's code is not used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from support.oracle.modelstate import (
    EVENT_OF,
    UNLIMITED,
    Client,
    Event,
    Limits,
    Operation,
    Remembered,
    Settled,
    Settling,
    takes_last_quarter,
)
from support.rig.commands import Answer, Command, Delivered, GroupOutcome, KeyAct, LookAct, OperationAct, Register
from timerd_client.rules.purgatory import Purgatory
from timerd_client.rules.records import Mark
from timerd_shm.declare.errors import ErrorCode
from timerd_shm.declare.limits import GROUP_KEPT_NS, NO_DEADLINE, TIMEOUT_NS_MAX
from timerd_shm.declare.states import Condition, EventKind, Orphans, Outcome
from timerd_shm.declare.wire import CommandKind

# the state ------------------------------------------------------------------------------------------------------------


class Model(Purgatory[Operation, Event]):
    """The purgatory. `slot_of(purgatory, key)` is the key's hash slot; only MARK_TOO_OLD depends on it."""

    def __init__(
        self,
        *,
        tick_ns: int,
        ring_events: int,
        slot_of: Callable[[int, bytes], int],
        capacity: int,
        quota_operations: int,
        limits: Limits = UNLIMITED,
    ) -> None:
        super().__init__()
        self.tick_ns = tick_ns
        self.ring_events = ring_events
        self.slot_of = slot_of
        self.capacity = capacity
        self.quota_operations = quota_operations
        self.limits = limits
        self.events: list[Event] = []
        self.pending: list[Operation] = []
        self.setters: dict[tuple[int, bytes], Client] = {}  # the client that first set each watermark
        self.ids: dict[tuple[int, bytes], Remembered] = {}
        self.clients: list[Client] = []
        self.group_outcomes: dict[tuple[bytes, bytes], GroupOutcome] = {}  # (group, payload) -> outcome, until done
        self.makers: dict[tuple[bytes, bytes], Client | None] = {}  # the maker of each; None: the maker has ended
        # Whether an outcome is gone from the core, and whether a member holds it. A test replaces both functions,
        # because the model does not know this.
        self.is_gone: Callable[[tuple[bytes, bytes]], bool] = lambda key: False
        self.is_held: Callable[[tuple[bytes, bytes]], bool] = lambda key: False
        self.settled: list[Settling] = []
        self.registrations = self.evicted = 0
        self.now_ns = 0  # the time of the present command

    # what can be seen -------------------------------------------------------------------------------------------------

    @property
    def newest(self) -> int:
        return len(self.events)

    @property
    def tail(self) -> int:
        """Sequence of the oldest event in the ring."""
        return max(1, self.newest - self.ring_events + 1)

    @property
    def watched(self) -> int:
        """The number of entries in all watcher lists."""
        return sum(len(op.keys) - (op.satisfied | op.failed).bit_count() for op in self.pending)

    @property
    def nodes_held(self) -> list[tuple[Client | bytes, int]]:
        """For each operation that needs its keys: its client or group, and the number of its keys after the first."""
        found: list[tuple[Client | bytes, int]] = []
        for op in self.pending:
            found.append((op.group or (b"" if op.kept else op.client), len(op.keys) - 1))
        for client in self.clients:
            for each in client.unacknowledged:
                op = each.operation
                if op.orphans is Orphans.GROUP or each.is_granted or op.failed:
                    found.append((client, len(op.keys) - 1))
        for (group, _), outcome in self.group_outcomes.items():
            found.append((group, len(outcome.keys) - 1))
        return found

    # clients ----------------------------------------------------------------------------------------------------------

    def open_client(self, orphans: Orphans = Orphans.CANCEL, group: bytes = b"") -> Client:
        client = Client(len(self.clients), orphans, group)
        self.clients.append(client)
        return client

    def close_client(self, client: Client, now_ns: int) -> None:
        """The client is dead. It may come back with its numbering, but it no longer owns its operations."""
        client.is_live, self.now_ns = False, now_ns
        for op in [op for op in self.pending if self.owns(client, op)]:
            if op.orphans is Orphans.GROUP:
                op.group, op.left = client.group, True
            else:
                op.kept = True
                if op.orphans is Orphans.CANCEL:
                    self.settle(op, Outcome.CANCELLED, None, None)
                elif op.deadline_ns == NO_DEADLINE:
                    op.deadline_ns = now_ns + GROUP_KEPT_NS
        for each in client.unacknowledged:
            if each.operation.orphans is Orphans.GROUP:
                each.operation.left = True
                self._leave_to_group(client.group, each.operation, each.delivered)
        self.makers = {key: None if maker is client else maker for key, maker in self.makers.items()}
        for op in self.pending:
            op.left = op.left or (bool(op.group) and op.client is client)
        grants = client.granted()
        client.unacknowledged.clear()
        for each in grants:
            self._requeue(each)

    @staticmethod
    def owns(client: Client, op: Operation) -> bool:
        return op.client is client and not op.group and not op.kept

    @staticmethod
    def payer(op: Operation) -> tuple[bytes, Client | None]:
        """The group or the client in whose quota of ids the operation counts. A kept operation counts in none."""
        return (op.group, None) if op.group else (b"", None if op.kept else op.client)

    def acknowledge(self, client: Client) -> None:
        """The client has received everything that was delivered."""
        client.unacknowledged.clear()

    def _leave_to_group(self, group: bytes, op: Operation, delivered: Delivered) -> None:
        self.makers[group, op.payload] = None if op.left else op.client
        self.group_outcomes[group, op.payload] = GroupOutcome(
            delivered.state,
            delivered.settled_key,
            delivered.value,
            op.purgatory,
            tuple(key.name for key in op.keys),
            delivered.codes,
        )

    def _requeue(self, settled: Settled) -> None:
        """Requeue a limited event's grant, as an event of its own."""
        assert settled.event is not None
        place = (settled.event.purgatory, settled.event.key)
        self._add(
            Event(
                settled.delivered.value,
                self.newest + 1,
                EventKind.FIRE,
                place,
                amount=1,
                limit=1,
                effective_ns=self.now_ns,
                redelivered=True,
            )
        )

    def _add(self, event: Event) -> None:
        self.events.append(event)
        self.enter(event)

    # commands ---------------------------------------------------------------------------------------------------------

    def apply(self, client: Client, command: Command, now_ns: int) -> None:
        """Apply the client's next command."""
        client.last_command, self.now_ns = client.last_command + 1, now_ns
        if isinstance(command, Register):
            self._register(client, command)
        elif isinstance(command, KeyAct):
            self._act(client, command)
        elif isinstance(command, LookAct):
            self._act_on_look(client, command)
        elif isinstance(command, OperationAct):
            self._act_on_operation(client, command)
        else:
            raise NotImplementedError(f"the model knows no phases of calls: {command}")

    def advance(self, now_ns: int) -> None:
        """Expire operations. An operation is due in the first tick that begins at its deadline or later."""
        self.now_ns = now_ns
        due = [
            op for op in self.pending if op.deadline_ns != NO_DEADLINE and self.due_tick(op) <= now_ns // self.tick_ns
        ]
        for op in sorted(due, key=lambda op: (self.due_tick(op), op.registration)):
            self.settle(op, Outcome.EXPIRED, None, None)

    def due_tick(self, op: Operation) -> int:
        return -(-op.deadline_ns // self.tick_ns)

    def _answer(self, client: Client, code: ErrorCode, value: int = 0) -> None:
        client.answers.append(Answer(client.last_command, code, value))

    def _register(self, client: Client, command: Register) -> None:
        refusal = self.refusal(command)
        if refusal is not ErrorCode.NONE:
            return self._answer(client, refusal)
        if command.mark_of_other_arena:
            return self._answer(client, ErrorCode.MARK_TOO_OLD)
        orphans = client.orphans if command.orphans is None else command.orphans
        outlives = command.for_group or orphans is not Orphans.CANCEL
        if outlives and takes_last_quarter(self, client, len(command.keys) - 1):
            return self._answer(client, ErrorCode.QUOTA_EXCEEDED)
        if command.for_group:
            held = sum(op.group == client.group for op in self.pending)
            held += sum(group == client.group for group, _ in self.group_outcomes)
        else:
            held = sum(self.owns(client, op) for op in self.pending) + len(client.unacknowledged)
        unacknowledged = sum(len(each.unacknowledged) for each in self.clients) + len(self.group_outcomes)
        full = len(self.pending) + unacknowledged >= self.capacity
        if held >= self.quota_operations:
            return self._answer(client, ErrorCode.ARENA_FULL if full else ErrorCode.QUOTA_EXCEEDED)
        limits, further = self.limits, len(command.keys) - 1
        nodes, owner = sum(count for _, count in self.nodes_held), client.group if command.for_group else client
        own = sum(count for one, count in self.nodes_held if one == owner)
        if own + further > limits.quota_nodes:
            no_room = nodes + further > limits.nodes
            return self._answer(client, ErrorCode.ARENA_FULL if no_room else ErrorCode.QUOTA_EXCEEDED)
        replaced = None
        if command.id is not None:
            remembered = self.ids.get((command.purgatory, command.id))
            if remembered is not None:
                free = command.if_exists == "replace cancelled" and remembered.cancelled
                if command.if_exists != "replace" and not free:
                    return self._answer(client, ErrorCode.OPERATION_EXISTS)
                replaced = remembered.operation
            payer = (client.group, None) if command.for_group else (b"", client)
            mine = [op for op in self.pending if op.id is not None and self.payer(op) == payer]
            if replaced not in mine and len(mine) >= limits.quota_ids:
                return self._answer(client, ErrorCode.QUOTA_EXCEEDED)
        if full and not self._evict(lambda keys: 1, self.quota_operations):
            return self._answer(client, ErrorCode.ARENA_FULL)
        while nodes + further > limits.nodes:
            if not self._evict(lambda keys: keys - 1, limits.quota_nodes):
                return self._answer(client, ErrorCode.ARENA_FULL)
            nodes = sum(count for _, count in self.nodes_held)
        if self.too_old(command):
            return self._answer(client, ErrorCode.MARK_TOO_OLD)
        if replaced is not None:
            self.settle(replaced, Outcome.CANCELLED, None, None)
        self.registrations += 1
        registered_ns = command.registered_ns or self.now_ns
        no_deadline = command.timeout_ns == NO_DEADLINE
        deadline_ns = NO_DEADLINE if no_deadline else registered_ns + command.timeout_ns
        op = Operation(self.registrations, client, command, deadline_ns)
        op.registered_ns = registered_ns
        self.pending.append(op)
        if op.id is not None:
            self.ids[op.purgatory, op.id] = Remembered(op)
        if command.wants_answer:
            self._answer(client, ErrorCode.NONE)
        mark = None
        if command.mark is not None:
            mark = Mark(command.mark.sequence, None if command.mark_by_sequence else command.mark.command)
        self.register(op, mark, self.now_ns, self.newest)

    def _evict(self, needs: Callable[[int], int], share: int) -> bool:
        """Evict an outcome of ended clients, if these hold more than `share` records. Returns whether one was evicted.

        It is the oldest outcome in a group that holds more than an equal part of the share. `needs(keys)`: how many of
        the wanted records an operation with that number of keys holds.
        """
        left = Counter[bytes]()
        for key, outcome in self.group_outcomes.items():
            left[key[0]] += needs(len(outcome.keys)) * (self.makers[key] is None)
        groups = sum(count != 0 for count in left.values())
        if sum(left.values()) <= share:
            return False
        for key, outcome in self.group_outcomes.items():
            is_ours = self.makers[key] is None and needs(len(outcome.keys)) > 0
            if is_ours and left[key[0]] > share // groups and self.is_gone(key):
                del self.group_outcomes[key]
                self.evicted += 1
                return True
        return False

    def too_old(self, command: Register) -> bool:
        """Whether the mark is ahead of all events, or the ring has lost a later event in the hash slots of the keys."""
        if command.mark is None:
            return False
        if command.mark.sequence > len(self.events):
            return True
        slots = {self.slot_of(command.purgatory, key.name) for key in command.keys}
        lost = self.events[command.mark.sequence : self.tail - 1]
        return any(self.slot_of(event.purgatory, event.key) in slots for event in lost)

    @staticmethod
    def refusal(command: Register) -> ErrorCode:
        """The refusal of a command that is wrong in itself, whatever the state is."""
        names = [key.name for key in command.keys]
        watermarks = any(key.target is not None for key in command.keys)
        observes = command.condition in (Condition.OBSERVE, Condition.OWNER)
        if any(key.observed != observes for key in command.keys):
            return ErrorCode.INVALID_CONDITION
        if command.condition is Condition.OWNER and command.for_group:
            return ErrorCode.INVALID_CONDITION
        if not names or not all(names) or len(set(names)) < len(names):
            return ErrorCode.INVALID_KEY
        if command.timeout_ns != NO_DEADLINE and command.timeout_ns > TIMEOUT_NS_MAX:
            return ErrorCode.TIMEOUT_OUT_OF_RANGE
        if command.condition is Condition.AT_LEAST and not 1 <= command.needed <= len(names):
            return ErrorCode.INVALID_CONDITION
        if command.condition is Condition.TOTAL and (command.total == 0 or watermarks):
            return ErrorCode.INVALID_CONDITION
        return ErrorCode.NONE

    def _act(self, client: Client, command: KeyAct) -> None:
        if command.limit == 0:
            return self._answer(client, ErrorCode.INVALID_VALUE)
        place = (command.purgatory, command.key)
        event = Event(
            command.value,
            self.newest + 1,
            EVENT_OF[command.kind],
            place,
            command.amount,
            command.limit,
            self.now_ns,
            client,
            client.last_command,
        )
        known = self.watermark_of(place)
        if event.kind is EventKind.ADVANCE and known is not None and known >= event.amount:
            return self._nothing_new(client, command)
        if event.kind is EventKind.FORGET and known is None:
            return self._nothing_new(client, command)
        if event.kind is EventKind.ADVANCE and (refusal := self.refusal_of_watermark(client, place)):
            return self._answer(client, refusal)
        if event.kind is EventKind.ADVANCE:
            self.setters.setdefault(place, client)
        elif event.kind is EventKind.FORGET:
            self.setters.pop(place, None)
        self._add(event)
        if command.wants_answer:
            self._answer(client, ErrorCode.NONE, event.settled)

    def refusal_of_watermark(self, client: Client, place: tuple[int, bytes]) -> ErrorCode:
        """The refusal of a watermark that the client may not set, or NONE."""
        if place in self.setters:
            return ErrorCode.NONE
        if len(self.setters) == self.limits.watermarks:
            return ErrorCode.ARENA_FULL
        own = sum(setter is client for setter in self.setters.values())
        return ErrorCode.QUOTA_EXCEEDED if own >= self.limits.quota_watermarks else ErrorCode.NONE

    def _nothing_new(self, client: Client, command: KeyAct) -> None:
        """Answer a command that makes no event: its watermark is no higher than before, or unknown to FORGET."""
        if command.wants_answer:
            self._answer(client, ErrorCode.NONE)

    # what the rules leave to the model --------------------------------------------------------------------------------

    def on_look(self, op: Operation, event: Event) -> None:
        if not op.kept and not op.group:
            op.look = event.sequence

    def fail(self, op: Operation, ordinal: int, event: Event) -> None:
        super().fail(op, ordinal, event)
        op.codes[ordinal] = event.amount

    def _apply(self, op: Operation, ordinal: int, event: Event) -> None:
        super()._apply(op, ordinal, event)
        if op.pending:
            op.counted = event.sequence

    def on_settled(self, op: Operation, state: int, ordinal: int | None, event: Event | None, seen: int | None) -> None:
        self.pending.remove(op)
        outcome, now_ns, client = Outcome(state), self.now_ns, op.client
        self.settled.append(Settling(op, outcome, ordinal, event, now_ns))
        if event is not None and not op.observes:
            event.settled += 1
        if op.id is not None and self.ids[op.purgatory, op.id].operation is op:
            self.ids[op.purgatory, op.id] = Remembered(None, outcome is Outcome.CANCELLED)
        if op.kept:
            return
        delivered = Delivered(
            number=client.next_outcome,
            command=op.command,
            state=outcome,
            settled_key=0 if ordinal is None else ordinal + 1,
            value=event.value if event else b"",
            satisfied=event.amount if event and op.observes else self.satisfied(op, outcome, ordinal),
            failed=event.kind if event and op.observes else op.failed,
            error=event.amount if event and event.kind is EventKind.FAIL else 0,
            registered_ns=op.registered_ns,
            deadline_ns=op.deadline_ns,
            settled_ns=now_ns,
            codes=tuple(code for _, code in sorted(op.codes.items())),
        )
        if op.group:
            return self._leave_to_group(op.group, op, delivered)
        client.next_outcome += 1
        client.delivered.append(delivered)
        newest = self.newest if seen is None else seen
        client.marks.append((event.sequence, event.sequence) if event else (op.counted, newest))
        client.unacknowledged.append(Settled(op, delivered, event))

    @staticmethod
    def satisfied(op: Operation, state: Outcome, ordinal: int | None) -> int:
        """The satisfied keys as bits. Under TOTAL, only the key of the event that completed the operation."""
        if op.condition is Condition.TOTAL:
            return 1 << ordinal if state is Outcome.COMPLETED and ordinal is not None else 0
        return op.satisfied

    def due_looks(self, client: Client) -> list[tuple[int, int]]:
        """(command, sequence) of each operation at which the client is to look."""
        return [(op.command, op.look) for op in self.pending if self.owns(client, op) and op.look > op.looked]

    def _act_on_look(self, client: Client, command: LookAct) -> None:
        mine = (op for op in self.pending if self.owns(client, op) and op.owners)
        op = next((op for op in mine if op.command == command.operation), None)
        done = op is not None
        if op is not None and command.kind is CommandKind.LOOKED:
            op.looked = max(op.looked, min(command.sequence, op.look))
        elif op is not None:
            done = op.deadline_ns > self.now_ns
            self.settle(op, Outcome.COMPLETED if done else Outcome.EXPIRED, None, None)
        if command.wants_answer:
            self._answer(client, ErrorCode.NONE, int(done))

    def _act_on_operation(self, client: Client, command: OperationAct) -> None:
        if command.id is not None:
            remembered = self.ids.get((command.purgatory, command.id))
            op = remembered.operation if remembered else None
            if op is None:
                return self._answer(client, ErrorCode.UNKNOWN_OPERATION)
        else:
            op = next((o for o in self.pending if self.owns(client, o) and o.command == command.operation), None)
        if command.requeues and op is None:
            found = next((each for each in client.unacknowledged if each.delivered.command == command.operation), None)
            if found is not None and found.is_granted:
                client.unacknowledged.remove(found)
                if found.delivered in client.delivered[client.reported :]:
                    # Requeued in the turn in which it was granted: no report had it.
                    del client.marks[client.delivered.index(found.delivered)]
                    client.delivered.remove(found.delivered)
                if command.wants_answer:
                    self._answer(client, ErrorCode.NONE, 1)
                return self._requeue(found)
        if op is not None and op.observes and command.kind is CommandKind.SET_ORPHANS:
            op = None
        if op is not None:
            if command.kind in (CommandKind.CANCEL, CommandKind.CANCEL_ID):
                self.settle(op, Outcome.CANCELLED, None, None)
            elif command.kind is CommandKind.SET_ORPHANS:
                begins = op.orphans is Orphans.CANCEL and command.orphans is not Orphans.CANCEL
                if begins and takes_last_quarter(self, client, len(op.keys) - 1):
                    return self._answer(client, ErrorCode.QUOTA_EXCEEDED)
                op.orphans = command.orphans
            elif command.timeout_ns == NO_DEADLINE:
                op.deadline_ns = self.now_ns + GROUP_KEPT_NS if op.kept else NO_DEADLINE
            else:
                op.deadline_ns = (command.registered_ns or self.now_ns) + command.timeout_ns
        if command.wants_answer:
            self._answer(client, ErrorCode.NONE, int(op is not None))
