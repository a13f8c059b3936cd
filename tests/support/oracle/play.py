"""A random program over the core and the model. Both get the same commands, and must deliver the same outcomes."""

from __future__ import annotations

import random
from functools import cache
from itertools import groupby
from types import ModuleType
from typing import Any

import timerd.core
from support.oracle.model import Model
from support.oracle.modelstate import Client as ModelClient
from support.oracle.modelstate import Limits
from support.rig.commands import Command, Delivered, GroupOutcome, Key, KeyAct, LookAct, Mark, OperationAct, Register
from support.rig.faults import core_faults
from support.rig.frames import DeliveredForGroup
from support.rig.harness import BUDGET, MS, Client, Rig, done
from timerd_shm.declare.layout import Region
from timerd_shm.declare.limits import NO_DEADLINE
from timerd_shm.declare.states import RULES, ClientFlag, ClientState, Condition, OpState, Orphans, Outcome
from timerd_shm.declare.wire import CommandKind
from timerd_shm.read.reader import ArenaReader

KEYS = (b"a", b"b", b"c", b"sixteen bytes...", b"seventeen bytes..", b"l" * 49, b"m" * 255)
GROUPS = (b"workers", b"others")
IDS = tuple(bytes([number]) * 16 for number in range(1, 5))
# The weight with which a condition is drawn. A condition that is not listed has the weight 2.
WEIGHTS = {Condition.AT_LEAST: 6, Condition.OBSERVE: 3, Condition.OWNER: 3}


class Play:
    """The core and the model, with the same commands."""

    def __init__(
        self, seed: int, core: ModuleType = timerd.core, tick_ns: int = MS, more: dict[str, int] | None = None
    ) -> None:
        self.random = random.Random(seed)
        knobs = {"capacity": 64, "ring_events": 16, "clients": 6, "purgatories": 2, "blocks": 512}
        self.rig = self.make_rig(tick_ns=tick_ns, core=core, **(knobs | (more or {})))
        self.rig.cut = self.cut  # type: ignore[method-assign]
        self.purgatories = [0, self.rig.core.purgatory(b"other")]
        header = self.rig.arena.header
        self.model = Model(
            tick_ns=tick_ns,
            ring_events=self.rig.arena.region(Region.EVENTS).count,
            slot_of=cache(self.rig.slot_of),
            capacity=self.rig.arena.region(Region.OPS).count,
            quota_operations=header.quota_operations,
            limits=Limits(
                self.rig.arena.region(Region.NODES).count,
                self.rig.arena.region(Region.WATERMARKS).count,
                header.quota_nodes,
                header.quota_watermarks,
                header.quota_ids,
            ),
        )
        self.sides: list[tuple[Client, ModelClient]] = []
        self.dead: list[tuple[Client, ModelClient]] = []
        self.groups: dict[Client, bytes] = {}
        self.saved: list[tuple[Client, Mark]] = []
        self.asked: dict[Client, list[int]] = {}  # the CHECK commands of the present turn, which end with the turn
        self.compared: dict[Client, tuple[int, int]] = {}
        self.judged: dict[Client, int] = {}  # how many of the group's outcomes that the client has got were compared
        self.kept: dict[Client, dict[bytes, int]] = {}  # what a silent client keeps: payloads, and delivery counts
        self.deliveries: dict[bytes, int] = {}  # payload -> the newest count of deliveries
        self.payloads = self.steps = self.crashes = self.deaths = self.returns = self.done = self.looks = 0
        for _ in range(4):
            self.open()

    def make_rig(self, **knobs: Any) -> Rig:
        return Rig(**knobs)

    def open(self) -> None:
        group = self.random.choice((b"", *GROUPS, GROUPS[0]))
        orphans = self.random.choice((Orphans.CANCEL, Orphans.KEEP, *(Orphans.GROUP,) * 2 * bool(group)))
        client = self.rig.client(orphans, group=group, listens=bool(group) and self.random.random() < 0.7)
        self.sides.append((client, self.model.open_client(orphans, group)))
        self.compared[client], self.judged[client], self.groups[client] = (0, 0), 0, group

    # a random command -------------------------------------------------------------------------------------------------

    def command(self, client: Client) -> Command:
        if client.delivered_for_group and self.random.random() < 0.3:
            delivered = self.random.choice(client.delivered_for_group[-8:])
            if self.random.random() < 0.6:
                return done(delivered)
        return self.random.choices(
            (self.register, self.key_act, self.operation_act, self.look_act), weights=(10, 9, 4, 2)
        )[0](client)

    def register(self, client: Client) -> Register:
        choose = self.random
        condition = choose.choices(list(Condition), [WEIGHTS.get(each, 2) for each in Condition])[0]
        observes, counts = RULES[condition].observes, not RULES[condition].no_watermarks
        names = choose.sample(KEYS, choose.choice((1, 1, 1, 2, 2, 3)))
        keys = tuple(
            Key(
                name,
                choose.randrange(1, 12) if counts and choose.random() < 0.3 else None,
                observes,
            )
            for name in names
        )
        mark, by_sequence = self.mark(client)
        registered_ns = choose.choice((0, self.rig.now_ns, self.rig.now_ns - choose.randrange(20 * MS)))
        self.payloads += 1  # a group's operation is recognized by its payload
        member = bool(self.groups[client])
        return Register(
            keys,
            timeout_ns=choose.choice(
                (NO_DEADLINE, 0, 1, MS, 3 * MS, choose.randrange(40 * MS), choose.randrange(400 * MS))
            ),
            condition=condition,
            needed=choose.randint(1, len(keys)),
            total=choose.randrange(1, 9) if condition is Condition.TOTAL else 0,
            mark=mark,
            mark_by_sequence=by_sequence,
            mark_of_other_arena=choose.random() < 0.01,
            purgatory=choose.choice(self.purgatories),
            registered_ns=registered_ns,
            payload=(b"%06d" % self.payloads) * member + choose.randbytes(choose.choice((0, 0, 10, 130))),
            id=choose.choice(IDS) if choose.random() < 0.15 else None,
            if_exists=choose.choice(("error", "keep", "replace", "replace cancelled")),
            orphans=choose.choice((None, None, Orphans.CANCEL, Orphans.KEEP, *(Orphans.GROUP,) * member)),
            for_group=member and choose.random() < 0.2,
            wants_answer=choose.random() < 0.2,
        )

    def mark(self, client: Client) -> tuple[Mark | None, bool]:
        kind = self.random.random()
        if kind < 0.1:
            return None, False
        if kind < 0.6:
            return client.mark(), False
        if kind < 0.61:
            return Mark(client.mark().sequence + self.random.randint(1, 5), 0), True
        maker, mark = self.random.choice(self.saved[-12:] or [(client, client.mark())])
        return mark, maker is not client or self.random.random() < 0.1

    def key_act(self, client: Client) -> KeyAct:
        choose = self.random
        kinds = (
            CommandKind.FIRE,
            CommandKind.ADVANCE,
            CommandKind.FAIL,
            CommandKind.CANCEL_FOR_KEY,
            CommandKind.FORGET,
            CommandKind.CHECK,
        )
        kind = choose.choices(kinds, weights=(12, 6, 3, 1, 1, 1))[0]
        amount = choose.randrange({CommandKind.FIRE: 6, CommandKind.ADVANCE: 14}.get(kind, 1 << 32))
        return KeyAct(
            kind,
            choose.choice(KEYS),
            amount,
            choose.choice((b"again", choose.randbytes(choose.choice((0, 5, 200))))) if kind in kinds[:3] else b"",
            limit=choose.choice((1, 1, 2, 3)) if kind is CommandKind.FIRE and choose.random() < 0.5 else None,
            purgatory=choose.choice(self.purgatories),
            wants_answer=choose.random() < 0.3,
        )

    def operation_act(self, client: Client) -> OperationAct:
        choose = self.random
        kind = choose.choice(
            (
                CommandKind.CANCEL,
                CommandKind.CANCEL,
                CommandKind.RESCHEDULE,
                CommandKind.RESCHEDULE,
                CommandKind.SET_ORPHANS,
                CommandKind.CANCEL_ID,
                CommandKind.RESCHEDULE_ID,
            )
        )
        model = self.model_of(client)
        pending = [op.command for op in self.model.pending if self.model.owns(model, op)]
        granted = [each.delivered.command for each in model.unacknowledged if each.is_granted]
        any_command = choose.randint(1, client.issued) if client.issued else 1
        if granted and choose.random() < 0.5:
            return OperationAct(CommandKind.CANCEL, choose.choice(granted), requeues=True, wants_answer=True)
        return OperationAct(
            kind,
            operation=choose.choice((*pending, any_command)),
            id=choose.choice(IDS) if kind in (CommandKind.CANCEL_ID, CommandKind.RESCHEDULE_ID) else None,
            timeout_ns=choose.choice((NO_DEADLINE, 5 * MS, choose.randrange(1, 100 * MS))),
            orphans=choose.choice((Orphans.CANCEL, Orphans.KEEP, *(Orphans.GROUP,) * bool(self.groups[client]))),
            requeues=kind is CommandKind.CANCEL and choose.random() < 0.6,
            purgatory=choose.choice(self.purgatories),
            wants_answer=choose.random() < 0.6,
        )

    def look_act(self, client: Client) -> LookAct:
        choose = self.random
        model = self.model_of(client)
        pending = [op for op in self.model.pending if self.model.owns(model, op) and op.owners]
        any_command = choose.randint(1, client.issued) if client.issued else 1
        op = choose.choice(pending) if pending and choose.random() < 0.9 else None
        return LookAct(
            choose.choice((CommandKind.LOOKED, CommandKind.LOOKED, CommandKind.COMPLETE)),
            op.command if op else any_command,
            choose.choice((0, self.model.newest, op.look if op else 1, choose.randrange(self.model.newest + 3))),
            wants_answer=choose.random() < 0.5,
        )

    def model_of(self, client: Client) -> ModelClient:
        return next(model for mine, model in self.sides if mine is client)

    # steps ------------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        choose = self.random
        for client, _ in choose.choices(self.sides, k=choose.randrange(4)):
            if choose.random() < 0.5:
                self.saved.append((client, client.mark()))
            for _ in range(choose.randrange(1, 4)):
                client.issue(self.command(client))
                self.steps += 1
        what = choose.random()
        if what < 0.05:
            self.rig.restart()
            self.kept.clear()
        elif what < 0.09:
            self.let_one_die()
        elif what < 0.12 and self.dead:
            self.come_back()
        elif what < 0.17:
            self.fall_silent_or_listen()
        elif what < 0.3:
            for client, model in self.sides:
                if choose.random() < 0.6:
                    self.acknowledge(client, model)
        else:
            self.turn()

    def acknowledge(self, client: Client, model: ModelClient) -> None:
        self.rig.acknowledge(client)
        self.compare(client, model)
        self.model.acknowledge(model)

    def turn(self) -> None:
        choose = self.random
        jump = choose.choice((0, 1, MS // 3, MS, 2 * MS, choose.randrange(30 * MS), choose.randrange(300 * MS)))
        reached = choose.sample(self.sides, choose.randint(0, len(self.sides)))
        applied = [(model, list(client.in_flight)) for client, model in reached]
        for client, _ in reached:
            self.asked[client] = [
                number
                for number, command in client.in_flight
                if isinstance(command, KeyAct) and command.kind is CommandKind.CHECK
            ]
        acknowledged = {
            client: {
                command.operation
                for _, command in client.in_flight
                if isinstance(command, OperationAct) and command.kind is CommandKind.GROUP_ACK
            }
            for client, _ in reached
        }
        self.rig.budget = choose.choice((BUDGET, BUDGET, 1, 2, 7))
        now_ns = self.rig.now_ns + jump
        held = self.kept_by_groups(held=True)
        if self.rig.module is core_faults and choose.random() < 0.3:
            self.crash(now_ns, [client for client, _ in reached])
        self.rig.turn(now_ns, only=[client for client, _ in reached])
        done_now = {
            each.payload
            for client, _ in reached
            for each in client.delivered_for_group
            if each.operation in acknowledged[client]
        }
        there = {*self.kept_by_groups(), *(key for key in self.model.group_outcomes if key[1] in done_now)}
        self.model.is_gone = lambda key: key not in there
        self.model.is_held = lambda key: key in held
        for model, commands in applied:
            for number, command in commands:
                self.apply_to_model(model, number, command)
                assert model.last_command == number
        for client, _ in reached:
            for number in self.asked.pop(client, ()):
                self.rig.core.check(client.slot, number, True)
        self.model.advance(self.rig.now_ns)

    def apply_to_model(self, model: ModelClient, number: int, command: Command) -> None:
        if not isinstance(command, OperationAct) or command.kind is not CommandKind.GROUP_ACK:
            return self.model.apply(model, command, self.rig.now_ns)
        client = next(mine for mine, other in self.sides if other is model)
        answer = client.answer(number)
        assert answer is not None, f"done {command.operation:#x} was not answered"
        if answer.value == 1:
            delivered = next(each for each in client.delivered_for_group if each.operation == command.operation)
            assert self.model.group_outcomes.pop((model.group, delivered.payload), None), f"{delivered} was done before"
            self.done += 1
        model.last_command += 1
        model.answers.append(answer)

    def crash(self, now_ns: int, reached: list[Client]) -> None:
        """Kill the daemon at some ordering point of the coming turn. The clients will send everything again."""
        doomed = self.rig.clone(bytes(self.rig.memory))
        doomed.now_ns = now_ns
        self.kill_at_some_point()
        doomed.core.begin_turn(now_ns)
        doomed.resume()
        for client in reached:
            if client.in_flight:
                doomed.apply(client, client.frame())
        while doomed.core.advance(now_ns, doomed.budget):
            pass
        self.rig.now_ns = now_ns  # the next daemon does not start before this one was killed
        for copy in core_faults.snapshots():
            self.rig.restart(copy)
            self.crashes += 1

    def kill_at_some_point(self) -> None:
        core_faults.record(1, chance=self.random.getrandbits(63) + 1)

    def cut(self) -> None:
        """Between the parts of a long event, kill the daemon now and then."""
        if self.random.random() < 0.1:
            self.rig.restart()
            self.rig.core.begin_turn(self.rig.now_ns)

    def let_one_die(self) -> None:
        """Kill a client. If it has several grants it acknowledges first: the model cannot order their requeues."""
        one = [side for side in self.sides if len(side[1].granted()) == 1]
        client, model = self.random.choice(one if self.random.random() < 0.7 and one else self.sides)
        self.compare(client, model)
        if len(model.granted()) > 1 or self.random.random() < 0.3:
            self.acknowledge(client, model)
        self.deaths += 1
        self.sides.remove((client, model))
        self.saved = [(maker, mark) for maker, mark in self.saved if maker is not client]
        goodbye = self.random.random() < 0.2
        if self.rig.module is core_faults and self.random.random() < 0.7:
            doomed = self.rig.clone(bytes(self.rig.memory))
            doomed.budget = self.rig.budget
            self.kill_at_some_point()
            doomed.core.close_client(client.slot, doomed.now_ns, goodbye=goodbye)
            doomed.resume()
            [copy] = core_faults.snapshots()
            self.rig.restart(copy)
            self.crashes += 1
        self.rig.clients.remove(client)
        self.rig.core.begin_turn(self.rig.now_ns)
        if client.slot in self.rig.core.live_slots():
            self.rig.core.close_client(client.slot, self.rig.now_ns, goodbye=goodbye)
        self.rig.resume()
        self.rig.report()
        self.rig.core.end_turn(self.rig.now_ns)
        self.model.close_client(model, self.rig.now_ns)
        self.kept.pop(client, None)
        if not goodbye:
            self.dead.append((client, model))
        if len(self.sides) < 2 or self.random.random() < 0.7:
            self.open()

    def come_back(self) -> None:
        """Let a dead client resume its session and numbering, if its tombstone still exists."""
        client, model = self.dead.pop(self.random.randrange(len(self.dead)))
        if len(self.sides) >= 5 or self.rig.core.find_tombstone(client.session) < 0:
            return
        group = self.groups[client]
        self.rig.core.resume_client(
            client.slot,
            now_ns=self.rig.now_ns,
            orphans=client.orphans,
            group=self.rig.core.group(group) if group else 0,
            listens=bool(group),
        )
        self.rig.clients.append(client)
        self.sides.append((client, model))
        model.is_live = True
        # Skip outcomes that it got before it died: since then they may have been delivered to other members.
        self.judged[client] = len(client.delivered_for_group)
        self.returns += 1

    def fall_silent_or_listen(self) -> None:
        client, _ = self.random.choice(self.sides)
        core, now_ns = self.rig.core, self.rig.now_ns
        kept = self.kept.pop(client, {})
        if self.groups[client] and self.random.random() < 0.5:
            if core.set_listening(client.slot, self.random.random() < 0.6, now_ns):
                self.kept[client] = kept
        elif (record := self.rig.arena.record(Region.CLIENTS, client.slot)).state != ClientState.SILENT:
            keeps = self.random.random() < 0.6
            core.silence(client.slot, now_ns, keeps=keeps)
            if keeps and record.flags & ClientFlag.LISTENS:  # else the sweep will requeue what the client holds
                held = core.held(client.slot, [each.operation for each in client.delivered_for_group])
                self.kept[client] = {
                    each.payload: each.deliveries for each in client.delivered_for_group if each.operation in held
                }
        elif self.random.random() < 0.5:
            core.silence(client.slot, now_ns)
        else:
            core.revive(client.slot, now_ns)

    # comparing --------------------------------------------------------------------------------------------------------

    def compare_all(self) -> None:
        for client, model in self.sides:
            self.compare(client, model)
        self.compare_groups()
        self.compare_looks()
        for purgatory in self.purgatories:
            pending = [op for op in self.model.pending if op.purgatory == purgatory]
            watched = sum(len(op.keys) - (op.satisfied | op.failed).bit_count() for op in pending)
            counted = (self.rig.arena.count("pending", purgatory), self.rig.arena.count("watched", purgatory))
            assert counted == (len(pending), watched), f"purgatory={purgatory}"
        self.rig.check()

    def compare(self, client: Client, model: ModelClient) -> None:
        """Assert that both have made the same outcomes and the same answers since the last comparison."""
        delivered, answered = self.compared[client]
        numbers = [each.number for each in client.delivered]
        assert numbers == sorted(set(numbers))
        expected, found = self.in_order(model.delivered[delivered:]), self.in_order(client.delivered[delivered:])
        assert found == expected
        for each in client.delivered[delivered:]:
            least, greatest = next(
                marks
                for marks, other in zip(model.marks, model.delivered, strict=True)
                if other.command == each.command
            )
            assert least <= client.marks[each.number] <= greatest, f"mark of {each}"
            if each.state is Outcome.EXPIRED:
                assert each.settled_ns >= each.deadline_ns, f"early: {each}"
        codes = [
            (each.command, each.code, each.value if each.code == 0 else None) for each in client.answers[answered:]
        ]
        wanted = [
            (each.command, each.code, each.value if each.code == 0 else None) for each in model.answers[answered:]
        ]
        assert codes == wanted
        self.compared[client] = (len(client.delivered), len(client.answers))
        model.reported = len(model.delivered)

    def compare_looks(self) -> None:
        """Assert that the looks that are due at each owner are those of the model."""
        for client, _ in self.sides:
            client.looks.clear()
            self.rig.core.send_looks_again(client.slot)
        self.rig.report()
        for client, model in self.sides:
            # A late registration gets its look later, so looks do not come in the order of events.
            assert sorted(client.looks) == sorted(self.model.due_looks(model)), f"looks of {client.slot}"
            self.looks += len(client.looks)

    def compare_groups(self) -> None:
        """Outcomes must equal the model's. Each delivery must raise the count. No two members may hold one outcome."""
        kept = {payload: count for each in self.kept.values() for payload, count in each.items()}
        for client, _ in self.sides:
            for delivered in client.delivered_for_group[self.judged[client] :]:
                assert delivered.deliveries <= kept.get(delivered.payload, 255), (
                    f"{delivered}: a silent client keeps it"
                )
                assert delivered.deliveries > self.deliveries.get(delivered.payload, 0), (
                    f"{delivered} was delivered before"
                )
                self.deliveries[delivered.payload] = delivered.deliveries
                known = self.model.group_outcomes.get((self.groups[client], delivered.payload))
                assert known is None or known == self.as_modelled(delivered), f"{delivered} is not {known}"
            self.judged[client] = len(client.delivered_for_group)
        operations = [each.operation for client, _ in self.sides for each in client.delivered_for_group]
        held = [op for client, _ in self.sides for op in self.rig.core.held(client.slot, sorted(set(operations)))]
        assert len(held) == len(set(held)), f"held by two: {held}"
        assert self.kept_by_groups() == sorted(self.model.group_outcomes)
        assert self.rig.arena.count("group_outcomes_evicted") <= self.model.evicted, (
            "counters may lose a turn in a crash"
        )

    def as_modelled(self, delivered: DeliveredForGroup) -> GroupOutcome:
        purgatory = self.purgatories[(b"default", b"other").index(delivered.purgatory)]
        return GroupOutcome(
            delivered.state, delivered.settled_key, delivered.value, purgatory, delivered.keys, delivered.codes
        )

    def kept_by_groups(self, *, held: bool = False) -> list[tuple[bytes, bytes]]:
        """Group and payload of each outcome of a group that is not done. With `held`: only if a member holds it."""
        with ArenaReader.from_bytes(self.rig.memory) as reader:
            groups = [group.name[: group.name_length] for group in reader.groups]
            return sorted(
                (groups[op.group - 1], reader.blob(op.payload))
                for op in reader.ops.used()
                if op.state == OpState.SETTLED and op.group and (op.client_generation or not held)
            )

    def everything_is_delivered_at_the_end(self) -> None:
        """Let one member listen in each group. It gets all outcomes that are not done, and reports them as done."""
        while len(self.sides) > 4:
            self.let_one_die()
        for client, _ in self.sides:
            if self.groups[client]:
                self.rig.core.set_listening(client.slot, False, self.rig.now_ns)
        self.rig.turn(only=[])
        for group in GROUPS:
            wanted = {payload for name, payload in self.model.group_outcomes if name == group}
            client = self.rig.client(group=group, listens=True)
            self.rig.turn(only=[])
            assert {each.payload for each in client.delivered_for_group} >= wanted, "something is not delivered"
            for delivered in client.delivered_for_group:
                self.rig.do(client, done(delivered))
            assert all(answer.value == 1 for answer in client.answers)
            self.rig.close(client, goodbye=True)
        assert self.kept_by_groups() == []

    def in_order(self, delivered: list[Delivered]) -> list[Delivered]:
        """The outcomes, with the expiries of one tick sorted: these may come in any order, other outcomes may not."""

        def run(each: Delivered) -> tuple[object, ...]:
            if each.state is Outcome.EXPIRED:
                return (each.settled_ns, -(-each.deadline_ns // self.model.tick_ns))
            return (each.number,)

        ordered: list[Delivered] = []
        for _, same in groupby(delivered, run):
            ordered += sorted(same, key=lambda each: each.command)
        return [each._replace(number=0) for each in ordered]
