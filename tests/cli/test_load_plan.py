"""timerctl load: the plan of a run, which follows from its seed alone (timerd_client.workload)."""

from __future__ import annotations

import hashlib
import statistics
from typing import Any

import pytest

from support.rig.harness import MS, S
from timerd_client.workload import (
    MARGIN_NS,
    Workload,
    check,
    expected_share,
    fire_plan,
    key_names,
    mean_wait_ns,
    plan,
    spans,
    watched_keys,
)
from timerd_shm.declare.errors import InvalidValueError

LOW = Workload(rate=10_000, count=50_000)
HIGH = LOW._replace(p50_ns=200 * MS, p75_ns=400 * MS)


def test_the_same_seed_gives_the_same_plan_everywhere_and_another_seed_does_not() -> None:
    """The digest is the same in all processes, machines and versions of Python: else runs could not be compared."""
    rows, events = plan(LOW), fire_plan(LOW)
    digest = hashlib.sha256(b"".join(column.tobytes() for column in (*rows[1:], *events)))
    assert digest.hexdigest()[:16] == "0c7a1015e63e7fa5"
    assert plan(LOW) == rows
    assert plan(LOW._replace(seed=2)).due_ns != rows.due_ns


def test_arrivals_are_exponential_and_delays_log_normal() -> None:
    rows = plan(LOW)
    intervals = [after - before for before, after in zip(rows.due_ns, rows.due_ns[1:], strict=False)]
    assert statistics.fmean(intervals) == pytest.approx(S / LOW.rate, rel=0.02)
    assert statistics.stdev(intervals) == pytest.approx(S / LOW.rate, rel=0.03)  # exponential: as large as the mean
    quartiles = statistics.quantiles(rows.delay_ns, n=4)
    assert quartiles[1:] == pytest.approx([20 * MS, 60 * MS], rel=0.05)
    assert min(rows.delay_ns) == MARGIN_NS, "an event that could overtake its registration"


@pytest.mark.parametrize(("workload", "share"), [(LOW, 0.079), (HIGH, 0.5)])
def test_a_correct_run_expires_the_expected_share(workload: Workload, share: float) -> None:
    assert expected_share(workload) == pytest.approx(share, abs=0.0005)
    planned = sum(delay > workload.timeout_ns for delay in plan(workload).delay_ns) / workload.count
    assert planned == pytest.approx(share, abs=0.01)
    waits = [min(delay, workload.timeout_ns) for delay in plan(workload).delay_ns]
    assert mean_wait_ns(workload) == pytest.approx(statistics.fmean(waits), rel=0.02)


def test_registrars_and_firers_divide_every_operation_between_them() -> None:
    workload = Workload(rate=5_000, count=1_001, registrars=3, firers=2, keys_per_op=2)
    plans = [plan(workload, registrar) for registrar in range(3)]
    assert sum(len(rows.due_ns) for rows in plans) == 1_001
    due = {
        row * 3 + rows.registrar: at + delay
        for rows in plans
        for row, (at, delay) in enumerate(zip(rows.due_ns, rows.delay_ns, strict=True))
    }
    assert sorted(due) == list(range(1_001))
    fired: dict[int, int] = {}
    for firer in range(2):
        events = fire_plan(workload, firer)
        assert list(events.due_ns) == sorted(events.due_ns)
        for at_ns, operation, key in zip(*events, strict=True):
            assert operation not in fired
            fired[operation] = at_ns
            assert key in watched_keys(workload, operation), "an event on a key that its operation does not watch"
    horizon = max(rows.due_ns[-1] for rows in plans) + workload.timeout_ns + MARGIN_NS
    assert fired == {operation: at_ns for operation, at_ns in due.items() if at_ns <= horizon}


def test_where_keys_are_shared_the_first_event_counts() -> None:
    workload = Workload(rate=1_000, count=500, keys=50, keys_per_op=3)
    rows, events = plan(workload), fire_plan(workload)
    (span,) = spans(workload, [rows])
    at_keys: dict[int, list[int]] = {}
    for at_ns, _, key in zip(*events, strict=True):
        at_keys.setdefault(key, []).append(at_ns)
    for row in range(0, 400, 7):
        watched = [at for key in watched_keys(workload, rows.keys[row]) for at in at_keys.get(key, [])]
        for found, margin in ((span.earliest_ns[row], -MARGIN_NS), (span.latest_ns[row], MARGIN_NS)):
            later = [at - rows.due_ns[row] for at in watched if at >= rows.due_ns[row] + margin]
            assert min(later, default=S) == found or found > workload.timeout_ns < min(later, default=S)


def test_names_of_keys_differ_and_are_short() -> None:
    names = key_names("ab12", range(0, 3_000_000, 991))
    assert len(set(names)) == len(names)
    assert max(map(len, names)) <= 16, "a name would not fit into a watch node"
    assert key_names("ab12", [4_096 * 5 + 1, 1]) == ["ab125001", "ab120001"]


@pytest.mark.parametrize(
    "nonsense",
    [{"rate": 0}, {"rate": float("nan")}, {"rate": 1e9}, {"count": 0}, {"payload": 70_000}, {"p75_ns": 20 * MS},
     {"timeout_ns": 0}, {"keys": 1, "keys_per_op": 2}, {"keys_per_op": 65}, {"registrars": 65}, {"firers": 0}],
)  # fmt: skip
def test_a_workload_that_makes_no_sense_is_refused_by_name(nonsense: dict[str, Any]) -> None:
    with pytest.raises(InvalidValueError, match=f"^{next(iter(nonsense))}=".replace("_ns", "")):
        check(LOW._replace(**nonsense))
