"""One truth on two engines: what a daemon wrote into its journal is what a bucket makes of the same rows."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from spark.purgatory.journals import Outcomes, rows_of
from spark.purgatory.test_bucket import State, in_batches
from support.oracle.journalplay import JournaledPlay
from support.rig.commands import OperationAct, Register
from support.rig.harness import MS, Client
from timerd_shm.declare.journal import RowFlag
from timerd_shm.declare.states import Condition, Orphans, Outcome
from timerd_shm.declare.wire import CommandKind
from timerd_spark.purgatory.bucket import Settings

TURNS = 400


class StreamPlay(JournaledPlay):
    """A random program of what a stream can say: no group, no client that dies, no change of a deadline."""

    def register(self, client: Client) -> Register:
        while True:
            made = super().register(client)
            if made.condition not in (Condition.OBSERVE, Condition.OWNER) and not made.for_group:
                return made

    def operation_act(self, client: Client) -> OperationAct:
        while True:
            made = super().operation_act(client)
            if made.kind in (CommandKind.CANCEL, CommandKind.CANCEL_ID) and not made.requeues:
                return made

    def open(self) -> None:
        client = self.rig.client(Orphans.CANCEL)
        self.sides.append((client, self.model.open_client(Orphans.CANCEL)))
        self.compared[client], self.judged[client], self.groups[client] = (0, 0), 0, b""

    def let_one_die(self) -> None:
        """No client dies."""


@pytest.mark.parametrize("number", range(3))
def test_a_random_programs_journal_gives_the_daemons_outcomes_again(tmp_path: Path, seed: int, number: int) -> None:
    seed = seed * 10 + number
    made = StreamPlay(seed, tmp_path)
    for _ in range(TURNS):
        made.step()
    made.rig.turn(made.rig.now_ns + 1_000 * MS)
    made.rig.turn()
    rows, wanted = rows_of(tmp_path)
    rng = random.Random(seed)
    state, found = State(Settings(ordered=True, marks_ns=1 << 60, ids_ns=0)), {}
    for some, until_ns in in_batches(rng, rows, 20 * MS, made.rig.now_ns):
        for each in state.run(some, until_ns):
            was_there = each.flags & RowFlag.AT_REGISTRATION and each.row.keys[each.settled_key or 0].target is not None
            found[each.row.id] = Outcomes(each.outcome, each.settled_key, None if was_there else each.seq)
    differing = {id_: (found.get(id_), outcome) for id_, outcome in wanted.items() if found.get(id_) != outcome}
    assert not differing, f"seed={seed}: {len(differing)} of {len(wanted)}, {list(differing.items())[:5]}"
    assert set(found) == set(wanted), f"seed={seed}"
    counts = Counter(outcome.outcome for outcome in wanted.values())
    print(f"seed {seed}: {dict(counts)}")
    assert len(counts) == 4 and min(counts.values()) >= 5, "a program that shows little"
    assert all(outcome in list(Outcome) for outcome in counts)
