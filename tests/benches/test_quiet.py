"""The bench of a quiet machine: its hub over the real core passes every outcome on, and who is missing is said."""

from __future__ import annotations

import os

import pytest

from quiet import latencies, of_rounds, run, spent
from quiet_ways import WAYS


@pytest.mark.parametrize("name", ["hops", "seqpacket", "seqpacket core"])
def test_each_operation_comes_once_and_in_order(name: str) -> None:
    found, used = run(name, 20, 1_000)
    assert [number for number, _ in found] == list(range(20))
    assert used.cpu_ns > 0 and used.switches >= 20


def test_the_cost_of_a_process_is_that_of_all_its_threads() -> None:
    before = spent([os.getpid()])
    os.sched_yield()
    after = spent([os.getpid()])
    assert after.cpu_ns >= before.cpu_ns > 0 and after.switches >= before.switches > 0


def test_a_row_has_the_median_of_each_figure_and_the_worst_round() -> None:
    row = of_rounds([latencies([(0, ns)]) for ns in (1_000, 9_000, 2_000)], "_us")
    assert row["p50_us"] == 2.0 and row["p50_us_worst"] == 9.0


def test_a_way_without_its_server_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert WAYS["redis blpop"].missing() == "apt-get install redis-server"
