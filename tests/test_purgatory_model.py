"""Random programs over the compiled core and the dumb model: the same outcomes, the same answers, and a sound arena.

A failing seed is in the assertion's message; `run(seed)` plays it again.
"""

from __future__ import annotations

import importlib
import random
from importlib.util import find_spec
from itertools import groupby
from types import ModuleType
from typing import Any

import pytest

import timerd.core
from harness import BUDGET, MS, Client, Rig
from model import Client as ModelClient
from model import Command, Key, KeyAct, Mark, Model, OperationAct, Register, Told
from timerd_shm.layout import Condition, Orphans, Outcome, Region
from timerd_shm.limits import NO_DEADLINE
from timerd_shm.wire import CommandKind

KEYS = (b"a", b"b", b"c", b"sixteen bytes...", b"seventeen bytes..", b"l" * 49, b"m" * 255)
IDS = tuple(bytes([number]) * 16 for number in range(1, 5))
TURNS = 300
SEEDS = range(1, 11)
POINTS_MAX = 2_000

core_faults: Any = importlib.import_module("timerd.core_faults") if find_spec("timerd.core_faults") else None


class Play:
    """The core and the model, told the same."""

    def __init__(self, seed: int, core: ModuleType = timerd.core, tick_ns: int = MS) -> None:
        self.random = random.Random(seed)
        self.rig = self.make_rig(capacity=64, ring_events=16, clients=4, purgatories=2, tick_ns=tick_ns, core=core)
        self.rig.cut = self.cut  # type: ignore[method-assign]
        self.purgatories = [0, self.rig.core.purgatory(b"other")]
        header = self.rig.arena.header
        self.model = Model(
            tick_ns=tick_ns,
            ring_events=self.rig.arena.region(Region.EVENTS).count,
            slot_of=self.rig.slot_of,
            capacity=self.rig.arena.region(Region.OPS).count,
            quota_operations=header.quota_operations,
        )
        self.sides: list[tuple[Client, ModelClient]] = []
        self.saved: list[tuple[Client, Mark]] = []
        self.compared: dict[Client, tuple[int, int]] = {}
        self.steps = self.crashes = 0
        for _ in range(3):
            self.open()

    def make_rig(self, **knobs: Any) -> Rig:
        return Rig(**knobs)

    def open(self) -> None:
        orphans = self.random.choice((Orphans.CANCEL, Orphans.KEEP))
        client = self.rig.client(orphans)
        self.sides.append((client, self.model.open_client(orphans)))
        self.compared[client] = (0, 0)

    # a random command -------------------------------------------------------------------------------------------------

    def command(self, client: Client) -> Command:
        chosen = self.random.choices((self.register, self.key_act, self.operation_act), weights=(10, 9, 3))[0](client)
        return chosen

    def register(self, client: Client) -> Register:
        choose = self.random
        condition = choose.choices(list(Condition), weights=(6, 2, 2))[0]
        names = choose.sample(KEYS, choose.choice((1, 1, 1, 2, 2, 3)))
        keys = tuple(
            Key(name, choose.randrange(1, 12) if condition is not Condition.TOTAL and choose.random() < 0.3 else None)
            for name in names
        )
        mark, by_sequence = self.mark(client)
        registered_ns = choose.choice((0, self.rig.now_ns, self.rig.now_ns - choose.randrange(20 * MS)))
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
            payload=choose.randbytes(choose.choice((0, 0, 10, 130))),
            id=choose.choice(IDS) if choose.random() < 0.15 else None,
            if_exists=choose.choice(("error", "keep", "replace")),
            orphans=choose.choice((None, None, Orphans.CANCEL, Orphans.KEEP)),
            wants_answer=choose.random() < 0.2,
        )

    def mark(self, client: Client) -> tuple[Mark | None, bool]:
        kind = self.random.random()
        if kind < 0.1:
            return None, False
        if kind < 0.6:
            return client.mark(), False
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
        )
        kind = choose.choices(kinds, weights=(12, 6, 3, 1, 1))[0]
        amount = {CommandKind.FIRE: choose.randrange(6), CommandKind.ADVANCE: choose.randrange(14)}.get(kind, 7)
        return KeyAct(
            kind,
            choose.choice(KEYS),
            amount,
            choose.randbytes(choose.choice((0, 5, 200))) if kind in kinds[:3] else b"",
            limit=choose.choice((1, 1, 2, 3)) if kind is CommandKind.FIRE and choose.random() < 0.4 else None,
            purgatory=choose.choice(self.purgatories),
            wants_answer=choose.random() < 0.3,
        )

    def operation_act(self, client: Client) -> OperationAct:
        choose = self.random
        kind = choose.choice(
            (
                CommandKind.CANCEL,
                CommandKind.RESCHEDULE,
                CommandKind.RESCHEDULE,
                CommandKind.SET_ORPHANS,
                CommandKind.CANCEL_ID,
                CommandKind.RESCHEDULE_ID,
            )
        )
        pending = [op.command for op in self.model.pending if op.client.name == self.rig_name(client)]
        any_command = choose.randint(1, client.issued) if client.issued else 1
        return OperationAct(
            kind,
            operation=choose.choice((*pending, any_command)),
            id=choose.choice(IDS) if kind in (CommandKind.CANCEL_ID, CommandKind.RESCHEDULE_ID) else None,
            timeout_ns=choose.choice((NO_DEADLINE, 5 * MS, choose.randrange(1, 100 * MS))),
            orphans=choose.choice((Orphans.CANCEL, Orphans.KEEP)),
            purgatory=choose.choice(self.purgatories),
            wants_answer=choose.random() < 0.6,
        )

    def rig_name(self, client: Client) -> int:
        return next(model.name for mine, model in self.sides if mine is client)

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
        elif what < 0.07:
            self.replace_a_client()
        elif what < 0.25:
            for client, model in self.sides:
                if choose.random() < 0.6:
                    self.rig.acknowledge(client)
                    self.compare(client, model)
                    self.model.acknowledge(model, client.acknowledged_outcome)
        else:
            self.turn()

    def turn(self) -> None:
        choose = self.random
        jump = choose.choice((0, 1, MS // 3, MS, 2 * MS, choose.randrange(30 * MS), choose.randrange(300 * MS)))
        delivered = choose.sample(self.sides, choose.randint(0, len(self.sides)))
        applied = [(model, list(client.in_flight)) for client, model in delivered]
        self.rig.budget = choose.choice((BUDGET, BUDGET, 1, 2, 7))
        if self.rig.module is core_faults and choose.random() < 0.3:
            self.crash(self.rig.now_ns + jump, [client for client, _ in delivered])
        self.rig.turn(self.rig.now_ns + jump, only=[client for client, _ in delivered])
        for model, commands in applied:
            for number, command in commands:
                self.model.apply(model, command, self.rig.now_ns)
                assert model.last_command == number
        self.model.advance(self.rig.now_ns)

    def crash(self, now_ns: int, delivered: list[Client]) -> None:
        """The daemon is killed at some ordering point of the coming turn; the clients will send everything again."""
        doomed = self.rig.clone(bytes(self.rig.memory))
        doomed.now_ns = now_ns
        core_faults.record(POINTS_MAX)
        doomed.core.begin_turn(now_ns)
        doomed.resume()
        for client in delivered:
            if client.in_flight:
                doomed.apply(client, client.frame())
        while doomed.core.advance(now_ns, doomed.budget):
            pass
        copies = core_faults.snapshots()
        if copies:
            self.rig.restart(self.random.choice(copies))
            self.crashes += 1

    def cut(self) -> None:
        """Between the parts of a long event the daemon may be killed, too."""
        if self.random.random() < 0.1:
            self.rig.restart()
            self.rig.core.begin_turn(self.rig.now_ns)

    def replace_a_client(self) -> None:
        """One dies, with everything acknowledged (what becomes of unacknowledged hand-overs is another issue's)."""
        client, model = self.random.choice(self.sides)
        self.rig.acknowledge(client)
        self.compare(client, model)
        self.sides.remove((client, model))
        self.saved = [(maker, mark) for maker, mark in self.saved if maker is not client]
        self.rig.close(client)
        self.model.close_client(model, self.rig.now_ns)
        self.open()

    # comparing --------------------------------------------------------------------------------------------------------

    def compare_all(self) -> None:
        for client, model in self.sides:
            self.compare(client, model)
        for purgatory in self.purgatories:
            pending = [op for op in self.model.pending if op.purgatory == purgatory]
            watched = sum(len(op.keys) - (op.satisfied | op.failed).bit_count() for op in pending)
            counted = (self.rig.arena.count("pending", purgatory), self.rig.arena.count("watched", purgatory))
            assert counted == (len(pending), watched), f"purgatory={purgatory}"
        self.rig.check()

    def compare(self, client: Client, model: ModelClient) -> None:
        """The same outcomes with all their fields, and the same answers, since the last comparison."""
        told, answered = self.compared[client]
        assert [each.number for each in client.told] == list(range(1, len(client.told) + 1))
        expected, found = self.in_order(model.told[told:]), self.in_order(client.told[told:])
        assert found == expected
        for each in client.told[told:]:
            least, greatest = next(
                marks for marks, other in zip(model.marks, model.told, strict=True) if other.command == each.command
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
        self.compared[client] = (len(client.told), len(client.answers))

    def in_order(self, told: list[Told]) -> list[Told]:
        """Within a tick expiries have no order; everything else has."""

        def run(each: Told) -> tuple[object, ...]:
            if each.state is Outcome.EXPIRED:
                return (each.settled_ns, -(-each.deadline_ns // self.model.tick_ns))
            return (each.number,)

        ordered: list[Told] = []
        for _, same in groupby(told, run):
            ordered += sorted(same, key=lambda each: each.command)
        return [each._replace(number=0) for each in ordered]


def run(seed: int, core: ModuleType = timerd.core, turns: int = TURNS) -> Play:
    """Play one program."""
    play = Play(seed, core)
    for turn in range(turns):
        try:
            play.step()
            play.compare_all()
        except AssertionError as error:
            raise AssertionError(f"seed={seed}, turn={turn}: {error}") from error
    return play


@pytest.mark.parametrize("seed", SEEDS)
def test_the_core_does_what_the_model_does(seed: int) -> None:
    play = run(seed)
    print(f"seed {seed}: {play.steps} commands in {TURNS} turns")
    assert play.steps > TURNS, f"seed={seed}: only {play.steps} commands"


def test_the_core_does_what_the_model_does_in_a_new_program_each_run(seed: int) -> None:
    run(seed)


@pytest.mark.skipif(core_faults is None, reason="the build for tests was not made (TIMERD_FAULTS)")
@pytest.mark.parametrize("seed", SEEDS[:6])
def test_a_daemon_killed_at_any_instruction_does_what_the_model_does(seed: int) -> None:
    """The same programs; in many turns the arena is cut off at a random ordering point, and a new core goes on."""
    play = run(seed, core_faults)
    print(f"seed {seed}: {play.steps} commands, {play.crashes} crashes in {TURNS} turns")
    assert play.crashes > TURNS // 20, f"seed={seed}: only {play.crashes} crashes"
