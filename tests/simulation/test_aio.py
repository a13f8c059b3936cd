"""The simulation with asyncio clients: the same workload, faults and books as for threaded clients, on one clock."""

from __future__ import annotations

from random import Random

import pytest

from simulation.engine.looped import NOT_THERE, LoopedProcess
from simulation.engine.process import Process
from simulation.engine.run import STEPS, Failure, Simulation
from support.suite.tiers import in_tiers
from timerd_client.aio.waiters import LoopWaiters
from timerd_client.protocol.incoming import Incoming

SEEDS = (305, 318, 326, 300, 302, 310, 301, 304, 306, 307, 308, 309)  # the first seeds find the defects below
SHORT = 4


class Mixed(Simulation):
    """A share of the processes has an asyncio client."""

    def __init__(self, seed: int, steps: int, share: float) -> None:
        super().__init__(seed, steps)
        self._kinds = Random(seed)
        self._share = share
        self.looped = 0

    def kind_of_process(self) -> type[Process]:
        if self._kinds.random() >= self._share:
            return Process
        self.looped += 1
        return LoopedProcess

    def _failure(self, error: Exception) -> Failure:
        failure = super()._failure(error)
        failure.add_note(f"with asyncio clients: simulate({self.seed}, {self.steps}, {self._share}) of test_aio.py")
        return failure

    def acts_of(self, process: Process) -> dict[str, float]:
        if not isinstance(process, LoopedProcess):
            return self.acts
        kept = {name: weight for name, weight in self.acts.items() if name not in NOT_THERE}
        return kept or {"fire": 1.0}


def simulate(seed: int, steps: int = STEPS, share: float = 0.6) -> Mixed:
    simulation = Mixed(seed, steps, share)
    simulation.run()
    return simulation


@pytest.mark.long
@pytest.mark.parametrize("seed", in_tiers(SEEDS, SHORT))
def test_the_invariants_hold_for_asyncio_and_threaded_clients_together(seed: int) -> None:
    assert simulate(seed).looped


@pytest.mark.long
def test_a_seed_takes_the_same_steps_each_time() -> None:
    traces = [list(simulate(300, 500, 1.0).books.trace) for _ in range(2)]
    assert traces[0] == traces[1]


# defects ----------------------------------------------------------------------------------------------------------


def found() -> str:
    """The first failure of the fixed seeds if all clients are asyncio clients; "" if all seeds hold."""
    for seed in SEEDS[:SHORT]:
        try:
            simulate(seed, share=1.0)
        except Failure as failure:
            return failure.short
    return ""


@pytest.mark.long
def test_without_a_defect_no_error_is_found() -> None:
    assert not found()


def test_an_asyncio_client_that_acknowledges_too_soon_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Incoming, "acknowledged_outcome", property(lambda self: self.received_outcome + 1))
    assert found()


@pytest.mark.long
def test_an_asyncio_client_that_does_not_wake_callers_of_room_or_flush_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(LoopWaiters, "look", lambda self: None)
    assert found()
