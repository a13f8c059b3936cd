"""The whole system, simulated: a fixed set of seeds, and defects that they find. `make soak` runs other seeds."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

import pytest

from simulation.engine.daemon import core_faults
from simulation.engine.measured import Measure
from simulation.engine.measured import lines_executed as coverage
from simulation.engine.run import TRANSPORTS, Failure, Simulation, simulate
from support.suite.tiers import in_tiers
from timerd.conductor.transport import SocketTransport
from timerd.packets.connection import PacketConnection
from timerd_client.groups.carrier import Carrier
from timerd_client.groups.plan import Plan
from timerd_client.groups.registry import Job
from timerd_client.groups.steps import Acknowledge, Run, Steps
from timerd_client.protocol.inbox import DeliveredOutcome
from timerd_client.protocol.incoming import Incoming
from timerd_client.protocol.outgoing import Outgoing
from timerd_client.transport.unix_sockets import UnixSockets
from timerd_shm.generate import DEFECTS

# A measured seed takes three times as long, so there are few. They run nearly all lines. Seeds with groups come first.
MEASURED_SEEDS = (102, 45, 22, 15, 128, 52, 62, 99, 8)
OTHER_SEEDS = [seed for seed in range(22) if seed not in MEASURED_SEEDS]
FAULTS = (
    "arena destroyed",
    "connection broken",
    "daemon killed",
    "daemon stopped",
    "dropped commands",
    "dropped published",
    "killed at a store",
    "outcomes that a journal tells",
    "process closed",
    "process ended by a handler",
    "process killed",
    "process stalled",
    "process stopped",
    "wall clock jumped",
)


@pytest.mark.parametrize("first", in_tiers(range(0, len(OTHER_SEEDS), 4), 1))
def test_the_invariants_hold_whatever_happens(first: int) -> None:
    for seed in OTHER_SEEDS[first : first + 4]:
        simulate(seed)


@pytest.mark.long
@pytest.mark.parametrize(
    ("seeds", "covered_percent", "wanted"),
    [(MEASURED_SEEDS[:1], 75, ()), pytest.param(MEASURED_SEEDS, 85, FAULTS, marks=pytest.mark.long)],
    ids=["one", "all"],
)
def test_the_fixed_seeds_cover_nearly_all_of_conductor_and_protocol(
    seeds: tuple[int, ...], covered_percent: int, wanted: tuple[str, ...]
) -> None:
    measure = Measure()
    simulations: list[Simulation] = []
    measure.of(lambda: simulations.extend(simulate(seed, transports="zeromq") for seed in seeds))
    percent = measure.percent()
    print(coverage(percent))
    assert min(percent.values()) >= covered_percent, coverage(percent)
    faults: Counter[str] = sum((simulation.faults for simulation in simulations), start=Counter())
    assert not [fault for fault in wanted if not faults[fault]], f"there were only {faults}"


def test_the_fixed_seeds_have_clients_of_either_transport_and_of_both() -> None:
    assert {Simulation(seed, 0).transports for seed in OTHER_SEEDS} == set(TRANSPORTS)


@pytest.mark.long
@pytest.mark.parametrize("transports", TRANSPORTS)
def test_a_seed_takes_the_same_steps_each_time(transports: str) -> None:
    traces = [list(simulate(1, 500, transports).books.trace) for _ in range(2)]
    assert traces[0] == traces[1]


@pytest.mark.long
def test_a_seed_draws_nothing_from_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """Formerly, ids of calls were drawn from the system, so a seed did not always take the same steps."""

    def urandom(size: int) -> bytes:
        raise AssertionError("drawn from the system")

    monkeypatch.setattr(os, "urandom", urandom)
    for transports in TRANSPORTS:
        simulate(22, 1_000, transports)


# defects ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def no_defect_is_left() -> Iterator[None]:
    yield
    core_faults.set_defect(0)


def found(*first: int) -> str:
    """The first failure of the fixed seeds: of `first`, which failed when this was written, then of the others."""
    for seed in (*first, *MEASURED_SEEDS, *OTHER_SEEDS):
        try:
            simulate(seed)
        except Failure as failure:
            return failure.short
    return ""


@pytest.mark.long
@pytest.mark.parametrize(
    ("defect", "first"),
    [
        ("EARLY_BY_A_TICK", 2),
        ("NO_REPLAY", 3),
        ("LIMIT_NOT_LOWERED", 2),
        ("TAKEN_OVER_AT_ONCE", 30657),
        pytest.param("NO_REDO", 16, marks=pytest.mark.long),
    ],
)
def test_a_defect_of_the_core_is_found(defect: str, first: int, no_defect_is_left: None) -> None:
    core_faults.set_defect(DEFECTS.index(defect) + 1)
    assert found(first), f"{defect} is not found"


@pytest.mark.long
def test_a_core_that_stores_journal_rows_outside_of_their_transaction_is_found(no_defect_is_left: None) -> None:
    core_faults.set_defect(DEFECTS.index("ROWS_APART") + 1)
    assert "the journal" in found(12)


@pytest.mark.long
def test_a_client_that_acknowledges_too_soon_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Incoming, "acknowledged_outcome", property(lambda self: self.received_outcome + 1))
    says = found(4)
    assert any(what in says for what in ("no outcome at the end", "has run []")), says


def test_a_member_that_acknowledges_a_call_before_it_has_done_it_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Carrier._run

    def early(self: Carrier, name: str, job: Job, told: DeliveredOutcome, plan: Plan, payload: bytes) -> Steps:
        steps, value = run(self, name, job, told, plan, payload), None
        with suppress(StopIteration):
            while True:
                step = steps.send(value)
                if isinstance(step, Run):
                    yield Acknowledge(self.commands.done_and_free(plan.id or name, told), told)
                value = yield step

    monkeypatch.setattr(Carrier, "_run", early)
    says = found(6, 25, 38, 53, 58)
    assert any(what in says for what in ("attempts have ended", "has run")), says


def test_a_client_that_resends_commands_under_new_numbers_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def go_back(self: Outgoing) -> None:
        ledger = self._ledger
        self.sent = ledger.applied
        self.resets += 1
        if self.resets < 20:  # else there would be more and more commands
            ledger.issue_all([ledger.command(one) for one in range(ledger.applied + 1, ledger.issued + 1)][:50])

    monkeypatch.setattr(Outgoing, "go_back", go_back)
    assert found()


@pytest.mark.long
def test_a_client_that_shows_its_session_over_its_first_connection_alone_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    subscribe = UnixSockets.subscribe

    def once(self: UnixSockets, session: bytes) -> None:
        if session != self._session:
            subscribe(self, session)

    monkeypatch.setattr(UnixSockets, "subscribe", once)
    assert "no outcome at the end" in found(0, 2, 6)


def test_a_daemon_that_takes_its_own_end_of_a_connection_for_the_clients_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def ended(self: SocketTransport, connection: PacketConnection) -> None:
        if connection.watch:
            self._liveness.adopted_ended(connection.watch, is_client=True)
        self._left(connection.slot, connection)

    monkeypatch.setattr(SocketTransport, "_on_packets_end", ended)
    assert "the daemon takes it for ended" in found(0, 8)


@pytest.mark.long
def test_a_client_that_reuses_command_numbers_after_a_restart_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    forgotten_by_daemon = Incoming.forgotten_by_daemon  # the last method about commands that a WELCOME calls

    def forget_unacknowledged(self: Incoming, last: int) -> None:
        forgotten_by_daemon(self, last)
        self._ledger.begin_after(self._ledger.applied)
        self._outgoing.sent = self._outgoing.offered = self._ledger.applied

    monkeypatch.setattr(Incoming, "forgotten_by_daemon", forget_unacknowledged)
    assert found(26)
