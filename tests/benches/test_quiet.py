"""The bench of a quiet machine: its hubs, with and without the core, pass each event on; a missing rival is named."""

from __future__ import annotations

import sys
from subprocess import PIPE, Popen

import pytest

from bench.rivals.quiet_ways import WAYS
from bench.suites.quiet import latencies, of_rounds, run, spent


@pytest.mark.long
@pytest.mark.parametrize("name", ["hops", "seqpacket", "seqpacket core"])
def test_each_operation_comes_once_and_in_order(name: str) -> None:
    found, used = run(name, 20, 1_000)
    assert [number for number, _ in found] == list(range(20))
    assert used.cpu_ns > 0 and used.switches >= 20


ECHOES = """
import sys, threading
threading.Thread(target=lambda: [print(line, end="", flush=True) for line in sys.stdin]).start()
"""


def test_the_cost_of_a_process_is_that_of_all_its_threads() -> None:
    with Popen([sys.executable, "-c", ECHOES], stdin=PIPE, stdout=PIPE, text=True, bufsize=1) as other:
        up, down = other.stdin, other.stdout
        assert up is not None and down is not None

        def echo() -> None:
            print("a line", file=up)
            assert down.readline() == "a line\n"

        echo()
        before = spent([other.pid])
        for _ in range(20):
            echo()
        after = spent([other.pid])
    assert after.cpu_ns > before.cpu_ns > 0 and after.switches >= before.switches + 10


def test_a_row_has_the_median_of_each_figure_and_the_worst_round() -> None:
    row = of_rounds([latencies([(0, ns)]) for ns in (1_000, 9_000, 2_000)], "_us")
    assert row["p50_us"] == 2.0 and row["p50_us_worst"] == 9.0


def test_a_way_without_its_server_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert WAYS["redis blpop"].missing() == "apt-get install redis-server"
