"""One truth on two engines: what a daemon wrote into its journal is what a bucket makes of the same rows."""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import timerd as td
from spark.purgatory.buckets import State, in_batches
from spark.purgatory.feeds import write
from spark.purgatory.journals import Outcomes, rows_of
from spark.purgatory.queries import Query
from support.oracle.journalplay import JournaledPlay
from support.real.daemons import Daemon
from support.real.patience import PATIENCE_S, eventually
from support.rig.commands import OperationAct, Register
from support.rig.harness import MS, Client
from timerd_shm.declare.journal import RowFlag
from timerd_shm.declare.states import Condition, EventKind, Orphans, Outcome
from timerd_shm.declare.wire import CommandKind
from timerd_spark.purgatory.bucket import Settings
from timerd_spark.purgatory.rows import Event, Registration

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TURNS = 400
OPERATIONS = int(os.environ.get("TIMERD_OPERATIONS", "50000"))  # of the test with a real daemon
KILLS = 5


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


def played(directory: Path, seed: int) -> tuple[list[Registration | Event], dict[str, Outcomes], int]:
    """The rows of a random program's journal, the daemon's outcomes, and the time of the end."""
    made = StreamPlay(seed, directory)
    for _ in range(TURNS):
        made.step()
    made.rig.turn(made.rig.now_ns + 1_000 * MS)
    made.rig.turn()
    return *rows_of(directory), made.rig.now_ns


def differences(found: dict[str | None, Outcomes], wanted: dict[str, Outcomes], seed: int) -> str:
    differing = [(id_, found.get(id_), outcome) for id_, outcome in wanted.items() if found.get(id_) != outcome]
    more = sorted(str(id_) for id_ in set(found) - set(wanted))
    return f"seed={seed}: {len(differing)} of {len(wanted)} differ, {differing[:5]}; {len(more)} more: {more[:5]}"


def compare(found: dict[str | None, Outcomes], wanted: dict[str, Outcomes], seed: int) -> None:
    assert found == wanted, differences(found, wanted, seed)
    counts = Counter(outcome.outcome for outcome in wanted.values())
    print(f"seed {seed}: {dict(counts)}")
    assert len(counts) == 4 and min(counts.values()) >= 5, "a program that shows little"


@pytest.mark.parametrize("number", range(3))
def test_a_random_programs_journal_gives_the_daemons_outcomes_again(tmp_path: Path, seed: int, number: int) -> None:
    seed = seed * 10 + number
    rows, wanted, end_ns = played(tmp_path, seed)
    rng = random.Random(seed)
    state = State(Settings(ordered=True, marks_ns=1 << 60, ids_ns=0))
    found: dict[str | None, Outcomes] = {}
    for some, until_ns in in_batches(rng, rows, 20 * MS, end_ns):
        for each in state.run(some, until_ns):
            was_there = each.flags & RowFlag.AT_REGISTRATION and each.row.keys[each.settled_key or 0].target is not None
            found[each.row.id] = Outcomes(each.outcome, each.settled_key, None if was_there else each.seq)
    compare(found, wanted, seed)


@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_the_journal_of_a_real_daemon_that_is_killed_gives_its_outcomes_again(
    tmp_path: Path, runtime_dir: Path, seed: int
) -> None:
    """Operations of three keys, as in the benchmark of Kafka's article, and kills while they are registered."""
    rng = random.Random(seed)
    flags = ("--capacity=65536", "--ring-events=65536", f"--journal={tmp_path}", "--journal-level=events")
    with Daemon(runtime_dir, *flags) as daemon, td.connect() as waits, td.connect() as fires:
        for number in range(1, OPERATIONS + 1):
            keys = [f"{name}{rng.randrange(2_000)}" for name in "abc"]
            when = rng.choice((td.ANY, td.ANY, td.ALL, td.at_least(2)))
            waits.register(keys, timeout=rng.choice((0.005, 0.05, 0.2, 0.4)) * rng.random(), when=when)
            fires.fire(rng.choice(keys if rng.random() < 0.7 else [f"a{rng.randrange(2_000)}"]))
            if number % 100 == 0:
                waits.flush(timeout=PATIENCE_S)
                fires.flush(timeout=PATIENCE_S)
            if number % (OPERATIONS // KILLS) == 0:
                daemon.kill()
                daemon.start()
                waits.ready(timeout=PATIENCE_S)
                fires.ready(timeout=PATIENCE_S)
        eventually(lambda: daemon.stats()["counters"]["pending"] == 0)
        daemon.stop()
    rows, wanted = rows_of(tmp_path)
    state = State(Settings(ordered=True, marks_ns=1 << 60, ids_ns=0))
    found: dict[str | None, Outcomes] = {}
    for some, until_ns in in_batches(rng, rows, 20 * MS, sizes=(200, 2_000, 20_000)):
        for each in state.run(some, until_ns):
            assert each.row.id not in found
            found[each.row.id] = Outcomes(each.outcome, each.settled_key, each.seq)
    assert len(wanted) == OPERATIONS and found == wanted, differences(found, wanted, seed)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_query_over_the_rows_of_a_journal_gives_the_daemons_outcomes_again(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    rows, wanted, end_ns = played(tmp_path / "journal", seed)
    batches = list(in_batches(random.Random(seed), rows, 20 * MS))
    arrivals = [("", row) for some, _ in batches for row in some]
    third = len(arrivals) // 3 + 1
    end = ("", Event(end_ns + 20 * MS, 0, EventKind.FIRE, "the end"))
    write(tmp_path, [*(arrivals[at : at + third] for at in range(0, len(arrivals), third)), [end]])
    query = Query(spark, tmp_path, by="group", marks=1e6, settled_ids=0)
    query.run()
    keys = {row.id: row.keys for row in rows if isinstance(row, Registration)}
    states = {outcome.name.lower(): int(outcome) for outcome in Outcome}
    found: dict[str | None, Outcomes] = {}
    for row in spark.read.parquet(str(tmp_path / "out")).collect():
        assert row.id not in found
        was_there = row.flags & RowFlag.AT_REGISTRATION and keys[row.id][row.settled_key or 0].target is not None
        found[row.id] = Outcomes(states[row.outcome], row.settled_key, None if was_there else row.seq)
    compare(found, wanted, seed)
