"""The compiled core on a rig: a small arena in memory, clients that speak the real frames, and a clock moved by hand.

    rig = Rig()
    alice = rig.client()
    alice.issue(Register((Key(b"k"),), timeout_ns=5 * MS))      # numbered, and in flight
    rig.turn()                                                  # everything in flight is applied, the wheel moves
    rig.turn(rig.now_ns + 6 * MS)
    assert alice.delivered[0].state is Outcome.EXPIRED

A turn has the parts of a conductor's turn, in their order: work left from the last turn, commands, wheel, reports.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any

import timerd.core
from support.rig.arenas import SEED, Memory, violations
from support.rig.commands import Answer, Command, Delivered, KeyAct, LookAct, Mark, OperationAct, PhaseAct
from support.rig.frames import DeliveredForGroup, codes_of, encode, read_delivered_for_group
from timerd.arena.format import format_arena
from timerd.arena.plan import plan_arena
from timerd_shm.declare.fields import size_of, struct_of, unpack
from timerd_shm.declare.layout import Region
from timerd_shm.declare.limits import UID_UNKNOWN
from timerd_shm.declare.records import BLOCK_DATA
from timerd_shm.declare.states import CallPhase, Orphans, Outcome
from timerd_shm.declare.wire import (
    PROTOCOL_VERSION,
    CommandHeader,
    CommandKind,
    DownKind,
    LookRecord,
    OutcomeFlag,
    OutcomeRecord,
    ReportHeader,
    UpKind,
    WireAnswer,
)
from timerd_shm.read.hashing import key_hash

US = 1_000
MS = 1_000_000
S = 1_000_000_000
START_NS = 1_000 * S  # far from 0, and on a tick of every width in use
BUDGET = 1 << 30  # for tests that are not about bounded turns
FRAME_COMMANDS = 8_192
INCARNATION = 0x1234_5678_9ABC_DEF0  # not random, so that failures can be repeated; nor is the seed of the hashes


# a client -------------------------------------------------------------------------------------------------------------


class Client:
    """A client as its daemon sees it. It numbers commands, sends lost ones again, and notes what it receives."""

    def __init__(
        self, rig: Rig, incarnation: bytes, session: bytes, slot: int, orphans: Orphans = Orphans.CANCEL
    ) -> None:
        self.rig = rig
        self.incarnation = incarnation
        self.session = session
        self.slot = slot
        self.orphans = orphans
        self.issued = 0
        self.in_flight: list[tuple[int, Command]] = []
        self.delivered: list[Delivered] = []
        self.delivered_for_group: list[DeliveredForGroup] = []
        self.received = 0  # it has all outcomes up to this number; numbers without an outcome are void
        self.marks: dict[int, int] = {}  # outcome number -> the outcome's mark
        self.flags: dict[int, OutcomeFlag] = {}
        self.answers: list[Answer] = []
        self.looks: list[tuple[int, int]] = []  # (command, sequence) as they came
        self.acknowledged_outcome = 0
        self.acknowledged_answer = 0

    def mark(self) -> Mark:
        """The mark that register() reads: the arena's newest event and the last command issued, together."""
        return Mark(self.rig.core.newest, self.issued)

    def issue(self, command: Command) -> int:
        """Number a command; it is in flight until a turn applies it."""
        self.issued += 1
        self.in_flight.append((self.issued, command))
        return self.issued

    def mass(self, command: Command, count: int) -> None:
        """Issue and apply `count` copies of a command, in large frames and without turns."""
        encoded = encode(command)
        for first in range(0, count, FRAME_COMMANDS):
            part = min(FRAME_COMMANDS, count - first)
            header = unpack(CommandHeader, memoryview(self.frame([])))
            self.issued += part
            frame = struct_of(CommandHeader).pack(*header._replace(count=part)) + encoded * part
            assert self.rig.core.apply(self.slot, frame, self.rig.now_ns, BUDGET) == self.rig.module.APPLIED

    def frame(self, commands: Sequence[tuple[int, Command]] | None = None) -> bytes:
        """A COMMANDS frame of the commands in flight, or of other numbered commands."""
        commands = self.in_flight if commands is None else commands
        header = CommandHeader(
            version=PROTOCOL_VERSION,
            kind=UpKind.COMMANDS,
            flags=0,
            count=len(commands),
            incarnation=self.rig.core.incarnation,
            session=self.session,
            first_command=commands[0][0] if commands else self.issued + 1,
            acknowledged_outcome=self.acknowledged_outcome,
            acknowledged_answer=self.acknowledged_answer,
        )
        return struct_of(CommandHeader).pack(*header) + b"".join(encode(command) for _, command in commands)

    def acknowledge(self) -> None:
        """Acknowledge everything received with the next frame."""
        self.acknowledged_outcome = self.received
        self.acknowledged_answer = self.answers[-1].command if self.answers else 0

    def receive(self, frame: bytes) -> None:
        """Take in a REPORT frame."""
        view = memoryview(frame)
        header = unpack(ReportHeader, view)
        assert header.kind == DownKind.REPORT, f"kind={header.kind}"
        assert header.topic == self.rig.core.topic(self.slot), f"topic={header.topic:#x}"
        self.in_flight = [(number, command) for number, command in self.in_flight if number > header.applied]
        at = size_of(ReportHeader)
        looks = at + header.outcomes * size_of(OutcomeRecord) + header.answers * size_of(WireAnswer)
        heap = looks + header.looks * size_of(LookRecord)
        due = [unpack(LookRecord, view, place) for place in range(looks, heap, size_of(LookRecord))]
        self.looks += [(look.command, look.sequence) for look in due]
        for _ in range(header.outcomes):
            record = unpack(OutcomeRecord, view, at)
            at += size_of(OutcomeRecord)
            assert header.outcome_first <= record.number <= header.outcome_last, f"{record.number} outside of {header}"
            if record.number <= max(
                (each[-1].number for each in (self.delivered, self.delivered_for_group) if each), default=0
            ):
                continue
            start = heap + record.heap_offset
            if record.command == 0:
                self.delivered_for_group.append(read_delivered_for_group(record, frame[start:]))
                continue
            value = frame[start : start + record.value_length]
            assert len(value) == record.value_length, f"the heap ends in the value of outcome {record.number}"
            self.marks[record.number] = record.sequence
            self.flags[record.number] = OutcomeFlag(record.flags)
            self.delivered.append(
                Delivered(
                    record.number,
                    record.command,
                    Outcome(record.state),
                    record.settled_key,
                    value,
                    record.satisfied,
                    record.failed,
                    record.error,
                    record.registered_ns,
                    record.deadline_ns,
                    record.settled_ns,
                    codes_of(record, frame[start + record.value_length :]),
                )
            )
        if header.outcome_first <= self.received + 1:
            self.received = max(self.received, header.outcome_last)
        for index in range(header.answers):
            answer = unpack(WireAnswer, view, at)
            at += size_of(WireAnswer)
            newest = self.answers[-1].command if self.answers else 0
            if answer.command <= newest:
                continue
            if index == 0:
                assert header.answer_previous <= newest, f"an answer before {answer.command} was missed"
            self.answers.append(Answer(answer.command, answer.code, answer.value))

    def outcome(self, command: int) -> Delivered | None:
        """The outcome delivered for the registration with that number; there is at most one."""
        found = [each for each in self.delivered if each.command == command]
        assert len(found) <= 1, f"command {command} has {len(found)} outcomes: {found}"
        return found[0] if found else None

    def state(self, command: int) -> Outcome:
        """The state of the registration's outcome; NONE while the operation is pending."""
        delivered = self.outcome(command)
        return delivered.state if delivered else Outcome.NONE

    def answer(self, command: int) -> Answer | None:
        return next((answer for answer in self.answers if answer.command == command), None)


# the rig --------------------------------------------------------------------------------------------------------------


class Rig:
    """A core on an arena of its own, and its clients."""

    def __init__(
        self,
        *,
        capacity: int = 64,
        ring_events: int = 16,
        clients: int = 4,
        purgatories: int = 2,
        tick_ns: int = MS,
        now_ns: int = START_NS,
        core: ModuleType = timerd.core,
        incarnation: int = INCARNATION,
        **knobs: int,
    ) -> None:
        self.module = core
        self.now_ns = now_ns
        enough = {
            "nodes": 4 * capacity,
            "blocks": 4 * capacity,
            "ids": capacity,
            "answers": 1024,
            "groups": 2,
            "errors": 2,
        }
        plan = plan_arena(
            capacity,
            ring_events=ring_events,
            clients=clients,
            purgatories=purgatories,
            tick=tick_ns,
            **(enough | {"quota_bytes": enough["blocks"] * BLOCK_DATA} | knobs),
        )
        self.memory = bytearray(plan.size)
        format_arena(memoryview(self.memory), plan, incarnation=incarnation)
        self.core: Any = core.Core(self.memory, now_ns, SEED)
        self.clients: list[Client] = []
        self.opened = 0
        self.budget = BUDGET
        self.advanced_ns = now_ns

    def cut(self) -> None:
        """Called between the parts of work that is cut by the budget. A test may replace this method."""

    @property
    def arena(self) -> Memory:
        return Memory(self.memory)

    def client(
        self,
        orphans: Orphans = Orphans.CANCEL,
        *,
        group: bytes = b"",
        listens: bool = False,
        process: tuple[int, int] = (0, 0),
        uid: int = UID_UNKNOWN,
        name: bytes | None = None,
    ) -> Client:
        """A new client that has said hello; a member of `group`, if that is given. `process`: pid and start ticks.

        A client without a name gets "client-1" and so on.
        """
        self.opened += 1
        incarnation, session = (
            hashlib.blake2b(b"%s %d" % (what, self.opened), digest_size=16).digest()
            for what in (b"incarnation", b"session")
        )
        slot = self.core.open_client(
            incarnation,
            session,
            name=b"client-%d" % self.opened if name is None else name,
            orphans=orphans,
            now_ns=self.now_ns,
            group=self.core.group(group, *process, uid) if group else 0,
            listens=listens,
            maker_pid=process[0],
            maker_start_ticks=process[1],
            uid=uid,
        )
        client = Client(self, incarnation, session, slot, orphans)
        self.clients.append(client)
        return client

    def slot_of(self, purgatory: int, key: bytes) -> int:
        """The ring's hash slot of a key."""
        return key_hash(SEED, purgatory, key) & (self.arena.region(Region.SLOTS).count - 1)

    def restart(self, memory: bytes | None = None) -> None:
        """Start a new daemon on a copy of the arena, as after SIGKILL, or on the copy `memory`."""
        self.memory, old = bytearray(self.memory if memory is None else memory), self.core
        if memory is None:
            old.release()
        self.core = self.module.Core(self.memory, self.advanced_ns, SEED)

    def copied(self, memory: bytes) -> Any:
        """The memory of a clone; a test may replace this method."""
        return bytearray(memory)

    def clone(self, memory: bytes) -> Rig:
        """A new daemon on a copy of the arena, beside this rig's daemon, and without clients."""
        rig = object.__new__(Rig)
        rig.module, rig.now_ns, rig.memory = self.module, self.now_ns, self.copied(memory)
        rig.core, rig.clients, rig.opened = self.module.Core(rig.memory, self.advanced_ns, SEED), [], self.opened
        rig.budget, rig.advanced_ns = self.budget, self.advanced_ns
        return rig

    def apply(self, client: Client, frame: bytes) -> int:
        """Apply a frame to its end, resuming as often as needed. Returns the core's result."""
        result: int = self.core.apply(client.slot, frame, self.now_ns, self.budget)
        while result == self.module.UNFINISHED:
            self.cut()
            self.resume()
            result = self.core.apply(client.slot, frame, self.now_ns, self.budget)
        return result

    def resume(self) -> None:
        """Go on with work that was cut by a budget, until no work is left."""
        while self.core.resume(self.now_ns, self.budget):
            self.cut()

    def resume_in_turns(self, budget: int) -> list[int]:
        """Make turns of this budget until no work is left. Returns the number of records touched in each turn."""
        touched, more = [], True
        while more:
            self.core.begin_turn(self.now_ns)
            more = self.core.resume(self.now_ns, budget)
            touched.append(self.core.end_turn(self.now_ns))
        return touched

    def turn(self, now_ns: int | None = None, only: Iterable[Client] | None = None) -> int:
        """One turn: commands in flight (of all clients, or `only` these), wheel, reports. Returns records touched."""
        self.now_ns = self.now_ns if now_ns is None else now_ns
        self.core.begin_turn(self.now_ns)
        self.resume()
        for client in self.clients if only is None else only:
            for first in range(0, len(client.in_flight), FRAME_COMMANDS):
                frame = client.frame(client.in_flight[first : first + FRAME_COMMANDS])
                result = self.apply(client, frame)
                assert result == self.module.APPLIED, f"a frame of client {client.slot} was answered {result}"
        while self.core.advance(self.now_ns, self.budget):
            pass
        self.advanced_ns = self.now_ns
        self.report()
        touched: int = self.core.end_turn(self.now_ns)
        return touched

    def report(self) -> None:
        """Deliver everything that is due to clients."""
        while reports := self.core.reports(self.now_ns):
            for slot, frame in reports:
                for client in self.clients:
                    if client.slot == slot:
                        client.receive(bytes(frame))

    def do(self, client: Client, *commands: Command, now_ns: int | None = None) -> int:
        """Issue and apply commands in a turn of their own. Returns the number of the first command."""
        first = client.issued + 1
        for command in commands:
            client.issue(command)
        self.turn(now_ns, only=[client])
        return first

    def acknowledge(self, *clients: Client) -> None:
        """Have the clients (none given: all clients) acknowledge what they have received, in a turn."""
        self.core.begin_turn(self.now_ns)
        for client in clients or self.clients:
            client.acknowledge()
            left = self.core.acknowledge(
                client.slot, client.acknowledged_outcome, client.acknowledged_answer, self.budget
            )
            while left:
                left = self.core.resume(self.now_ns, self.budget)
        self.report()
        self.core.end_turn(self.now_ns)

    def close(self, client: Client, *, goodbye: bool = False) -> None:
        """Close a client that is dead, or has said goodbye."""
        self.clients.remove(client)
        self.core.begin_turn(self.now_ns)
        self.core.close_client(client.slot, self.now_ns, goodbye=goodbye)
        self.resume()
        self.report()
        self.core.end_turn(self.now_ns)

    def gauges(self) -> tuple[int, int]:
        """Pending operations and watchers of the default purgatory: Kafka's numDelayed and watched."""
        return self.arena.count("pending", 0), self.arena.count("watched", 0)

    def check(self) -> None:
        """Assert that check() finds nothing."""
        found = violations(self.memory)
        assert not found, "\n".join(found)


# short forms ----------------------------------------------------------------------------------------------------------


def fire(key: bytes, amount: int = 1, *, value: bytes = b"", limit: int | None = None, wait: bool = False) -> KeyAct:
    return KeyAct(CommandKind.FIRE, key, amount, value, limit, wants_answer=wait)


def advance(key: bytes, watermark: int, *, value: bytes = b"", wait: bool = False) -> KeyAct:
    return KeyAct(CommandKind.ADVANCE, key, watermark, value, wants_answer=wait)


def fail(key: bytes, code: int, *, value: bytes = b"", wait: bool = False) -> KeyAct:
    return KeyAct(CommandKind.FAIL, key, code, value, wants_answer=wait)


def cancel_for_key(key: bytes, *, wait: bool = False) -> KeyAct:
    return KeyAct(CommandKind.CANCEL_FOR_KEY, key, 0, wants_answer=wait)


def forget(key: bytes, *, wait: bool = False) -> KeyAct:
    return KeyAct(CommandKind.FORGET, key, 0, wants_answer=wait)


def ask_owners(key: bytes) -> KeyAct:
    return KeyAct(CommandKind.CHECK, key, 0)


def looked(operation: int, sequence: int, *, wait: bool = False) -> LookAct:
    return LookAct(CommandKind.LOOKED, operation, sequence, wants_answer=wait)


def complete(operation: int, sequence: int = 0, *, wait: bool = False) -> LookAct:
    return LookAct(CommandKind.COMPLETE, operation, sequence, wants_answer=wait)


def cancel(operation: int, *, wait: bool = False) -> OperationAct:
    return OperationAct(CommandKind.CANCEL, operation, wants_answer=wait)


def requeue(operation: int, *, wait: bool = False) -> OperationAct:
    return OperationAct(CommandKind.CANCEL, operation, requeues=True, wants_answer=wait)


def done(delivered: DeliveredForGroup) -> OperationAct:
    """The member has done its work for an outcome of its group. The answer says whether the member held it."""
    return OperationAct(CommandKind.GROUP_ACK, delivered.operation, wants_answer=True)


def begun(delivered: DeliveredForGroup, phase: CallPhase = CallPhase.HANDLER, **more: Any) -> PhaseAct:
    """The member is about to run something for a call. The answer says whether the member holds the call."""
    return PhaseAct(delivered.operation, phase, **more)


def given_up(delivered: DeliveredForGroup, reason: bytes = b"") -> PhaseAct:
    return PhaseAct(delivered.operation, CallPhase.FAILED, reason=reason)


def reschedule(operation: int, timeout_ns: int, *, registered_ns: int = 0, wait: bool = False) -> OperationAct:
    return OperationAct(
        CommandKind.RESCHEDULE, operation, timeout_ns=timeout_ns, registered_ns=registered_ns, wants_answer=wait
    )
