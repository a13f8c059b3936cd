"""The simulation with callers that give up: the grant of a limited event is seen by its caller, or is requeued.

A job is a limited event. A caller waits for a job, but gives up too soon. It drops the operation at once, later or
never. The journal names every operation that a job has completed, and every operation whose grant was requeued. The
callers must have seen each completed operation whose grant was not requeued.
"""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from simulation.engine.process import Process
from simulation.engine.run import JOURNALED, STEPS, Simulation
from support.suite.tiers import in_tiers
from timerd_client.link.operation import ThreadedOperation
from timerd_client.outcome import Outcome, State
from timerd_client.protocol.grants import Grants
from timerd_shm.declare.errors import TimerdError
from timerd_shm.declare.journal import EventRow, OutcomeRow
from timerd_shm.declare.states import EventFlag
from timerd_shm.declare.states import Outcome as Settled
from timerd_shm.read.journal_reader import JournalReader
from timerd_shm.read.segment import segments_of

SEEDS = [seed for seed in range(0, 30 * JOURNALED, JOURNALED)]  # seeds that write a journal
SHORT = 3
JOBS = "jobs"
SECOND = 1_000_000_000


class Impatient(Simulation):
    """Each process has callers that wait for jobs, and one caller that hands out jobs."""

    def __init__(self, seed: int, steps: int) -> None:
        super().__init__(seed, steps)
        self.seen: set[int] = set()  # operations of the last arena that a caller has seen as completed
        self.told: Counter[str] = Counter()
        self._choices = Random(f"impatient {seed}")

    def spawn(self) -> None:
        made = self.made
        super().spawn()
        if self.made > made:
            process = self.processes[-1]
            for body in (self._hand_out, *(self._wait,) * self._choices.randint(1, 3)):
                rng = Random(self._choices.getrandbits(64))
                process.begin(lambda body=body, rng=rng: body(process, rng))  # type: ignore[misc]

    def _hand_out(self, process: Process, rng: Random) -> None:
        while not self.calm and not process.closing:
            self.schedule.sleep(rng.randrange(SECOND // 5))
            try:
                process.client.fire(JOBS, value=b"job", limit=rng.choice((1, 1, 3)))
            except TimerdError:
                self.schedule.sleep(SECOND)

    def _wait(self, process: Process, rng: Random) -> None:
        kept: list[ThreadedOperation] = []
        operation: ThreadedOperation | None = None
        while not self.calm and not process.closing:
            try:
                operation = process.client.register(JOBS, timeout=rng.choice((0.1, 3, 20)), orphans="cancel")
                if rng.random() < 0.2:
                    self.schedule.sleep(rng.randrange(SECOND))
                self._see(operation.result(rng.choice((0, 0.01, 0.3, 3))))
            except TimeoutError:
                self.told["given up"] += 1
                if rng.random() < 0.3 and operation is not None:
                    kept.append(operation)
                if rng.random() < 0.3:
                    self.schedule.sleep(rng.randrange(SECOND))  # meanwhile the traceback keeps the operation
            except TimerdError:
                self.schedule.sleep(SECOND)
            operation = None
            if rng.random() < 0.2 and kept:
                outcome = kept.pop(0).outcome()
                if outcome is not None:
                    self._see(outcome)
            if rng.random() < 0.1:
                kept.clear()

    def _see(self, outcome: Outcome) -> None:
        self.told[outcome.state.name] += 1
        if outcome.state is State.COMPLETED and outcome.mark.incarnation == self.daemon.arena.header.incarnation:
            assert outcome._record is not None
            self.seen.add(outcome._record.operation)

    def _audit(self) -> None:
        super()._audit()
        granted, requeued = self._in_journal()
        self.told["granted"], self.told["requeued"] = len(granted), len(requeued)
        lost = granted - requeued - self.seen
        assert not lost, f"{len(lost)} of {len(granted)} grants were neither seen nor requeued"

    def _in_journal(self) -> tuple[set[int], set[int]]:
        """Operations of the last arena that a job has completed, and operations whose job was requeued."""
        granted, requeued = set[int](), set[int]()
        for directory in self.daemon.directories:
            if not directory.exists() or not segments_of(directory):
                continue
            with JournalReader(directory) as reader:
                for row in reader.rows():
                    record = row.record
                    if reader.incarnation != self.daemon.arena.header.incarnation:
                        continue
                    if isinstance(record, OutcomeRow) and record.outcome == Settled.COMPLETED:
                        granted |= {record.operation} if reader.text(record.key) == JOBS.encode() else set()
                    elif isinstance(record, EventRow) and record.flags & EventFlag.REDELIVERED:
                        requeued |= {record.command} if reader.text(record.key) == JOBS.encode() else set()
        return granted, requeued


def simulate(seed: int, steps: int = STEPS) -> Impatient:
    simulation = Impatient(seed, steps)
    simulation.run()
    return simulation


@pytest.mark.long
@pytest.mark.parametrize("seed", in_tiers(SEEDS, SHORT))
def test_each_limited_event_that_completes_an_operation_is_seen_or_requeued(seed: int) -> None:
    simulation = simulate(seed)
    print(f"seed {seed}: {dict(simulation.told)}")


@pytest.mark.long
def test_the_first_seeds_have_callers_that_give_up_and_grants_that_are_requeued() -> None:
    told = sum((simulate(seed).told for seed in SEEDS[:SHORT]), start=Counter())
    assert told["given up"] > 20 and told["COMPLETED"] > 20 and told["requeued"] > 5, told


def test_a_client_that_acknowledges_grants_that_nobody_has_seen_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def forget(self: Grants, received: int, now_ns: int) -> bool:
        self.begin_anew()
        return True

    monkeypatch.setattr(Grants, "look", forget)
    with pytest.raises(AssertionError, match="neither seen nor requeued"):
        for seed in SEEDS[:SHORT]:
            simulate(seed)
