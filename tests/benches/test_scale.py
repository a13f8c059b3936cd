"""The bench of many waits at once: each loop and each poll gets its own event, and faults are counted."""

from __future__ import annotations

import pytest

from bench.suites.scale import WORKERS, long_polls, loops, missing
from timerd_wire.transports import TRANSPORTS, Transport

EACH = pytest.mark.parametrize("transport", TRANSPORTS)


@pytest.mark.long
@pytest.mark.parametrize("workers", WORKERS)
@EACH
def test_each_loop_completes_with_its_own_value(transport: Transport, workers: str) -> None:
    row, wrong = loops(transport, workers, 2, 0.2)
    assert wrong == 0 and row["loops_per_s"] > 0 and row["cpu_us"] > 0


@pytest.mark.long
@EACH
def test_each_poll_gets_each_of_its_events_once(transport: Transport) -> None:
    # The events of a poll come 0.8 s apart. A poll that has not begun to wait again by then would miss one.
    row, wrong = long_polls(transport, polls=20, each=3, rate=25)
    assert wrong == 0 and 0 < row["p50_us"] <= row["p99_us"] <= row["max_us"]


def test_a_lost_event_and_a_repeated_event_are_counted() -> None:
    assert missing([(0, 5), (1, 5), (2, 5)], 3) == 0
    assert missing([(0, 5), (2, 5)], 3) == 1
    assert missing([(0, 5), (1, 5), (1, 5), (2, 5)], 3) == 1
    assert missing([(0, 5), (-1, 0), (2, 5)], 3) == 2, "a poll expired, and its event was lost"
