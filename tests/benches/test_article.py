"""The article's experiment (see bench/NUMBERS.md) at a tiny size: its plan, both designs, and a judge of outcomes."""

from __future__ import annotations

from array import array
from itertools import pairwise

import pytest

from bench.rivals.designs import (
    HIGH,
    KEYS,
    LOW,
    MS,
    PAYLOAD,
    TIMEOUT_NS,
    Case,
    Point,
    Requests,
    Script,
    draw,
    judge,
    plan_within,
    play_old,
    play_timerd,
)
from bench.rivals.old_purgatory import COMPLETED, EXPIRED, NEVER, PENDING, REFUSED, OldPurgatory

BUDGET = 20 << 20


@pytest.mark.parametrize(("case", "share"), [(LOW, 0.079), (HIGH, 0.5)])
def test_the_plan_is_that_of_the_article(case: Case, share: float, seed: int) -> None:
    requests = draw(case, rate=20_000, count=20_000, seed=seed)
    assert requests.delay_ns.count(NEVER) / 20_000 == pytest.approx(share, abs=0.02)
    assert requests.span_ns == pytest.approx(1_000 * MS, rel=0.05)
    assert len(requests.completed) == 20_000 - requests.delay_ns.count(NEVER)
    assert all(one <= other for one, other in pairwise(requests.completed_due_ns))
    assert all(
        due == requests.due_ns[number] + requests.delay_ns[number]
        for number, due in zip(requests.completed, requests.completed_due_ns, strict=True)
    )


def test_the_script_numbers_commands_in_the_order_of_their_times(seed: int) -> None:
    requests = draw(LOW, rate=5_000, count=500, seed=seed)
    script = Script(requests)
    commands = script.commands
    assert len(commands.due_ns) == 500 + len(requests.completed) and list(commands.due_ns) == sorted(commands.due_ns)
    for number, command in enumerate(script.number_of):
        assert commands.due_ns[command - 1] == requests.due_ns[number]
    for position in (0, 1, 250, 700, len(commands.due_ns)):
        registered = sum(command <= position for command in script.number_of)
        assert script.registered_before(position) == registered
        rest = script.completions_after(position)
        left = [
            due
            for number, due in zip(requests.completed, requests.completed_due_ns, strict=True)
            if number < registered and (position < len(commands.due_ns) and due >= commands.due_ns[position])
        ]
        assert list(rest.due_ns) == left and len(rest.data) == 32 * len(left)


def plays(requests: Requests, budget: int = BUDGET) -> dict[str, Point]:
    return {
        "timerd": play_timerd(requests, budget),
        "purged": play_old(requests, 100, budget),
        "never": play_old(requests, 0, budget),
    }


@pytest.mark.parametrize("case", [LOW, HIGH])
def test_each_design_settles_each_request_once_as_planned(case: Case, seed: int) -> None:
    requests = draw(case, rate=4_000, count=800, seed=seed)
    for name, point in plays(requests).items():
        verdict = judge(requests, point)
        assert not verdict.wrong, (name, verdict.wrong)
        assert point.registered > 0 and point.refused == 0, name
        # A busy machine may be late. But at least all operations that were planned to expire must expire, or still
        # wait.
        assert verdict.expired + verdict.unsettled >= verdict.expired_planned, name
        if name == "timerd":
            assert verdict.expired_planned and not verdict.unsettled
            assert verdict.expired <= verdict.expired_planned + verdict.missed + 40, (
                "40 allows for completions within 5 ms of the timeout"
            )


def test_both_designs_refuse_requests_that_do_not_fit_in_memory(seed: int) -> None:
    budget = 12 << 20
    capacity = plan_within(budget).capacity
    # All requests arrive within the timeout of 200 ms, so more are pending than fit.
    requests = draw(HIGH, rate=10 * capacity, count=2 * capacity, seed=seed)
    point = play_timerd(requests, budget)
    assert point.refused > 0 and point.memory_bytes <= budget
    assert not judge(requests, point).wrong
    small = 200 * OldPurgatory.bytes_for(len(KEYS), PAYLOAD)
    for purge in (1, 0):
        point = play_old(requests, purge, small)
        assert point.refused > 0 and point.memory_bytes <= small
        assert not judge(requests, point).wrong


def told(
    requests: Requests, *, number: int = 0, state: int | None = None, settlings: int = 1, late_ns: int = 0
) -> Point:
    """A point at which all requests except one went as planned."""
    count = len(requests.due_ns)
    states = bytearray(EXPIRED if delay == NEVER else COMPLETED for delay in requests.delay_ns)
    times = array("q", [TIMEOUT_NS]) * count
    if state is not None:
        states[number] = state
    times[number] += late_ns
    every = bytearray([1]) * count
    every[number] = settlings
    return Point(count, 0, 1.0, 0.2, 0.1, 1, states, every, array("q", [0]) * count, times, {})


def test_the_judge_finds_each_kind_of_error(seed: int) -> None:
    requests = draw(LOW, rate=1_000, count=1_000, seed=seed)
    never = requests.delay_ns.index(NEVER)
    soon = next(number for number, delay in enumerate(requests.delay_ns) if delay < 50 * MS)
    assert judge(requests, told(requests)).wrong == []
    assert "settled 2 times" in judge(requests, told(requests, settlings=2)).wrong[0]
    assert "plan has no completion" in judge(requests, told(requests, number=never, state=COMPLETED)).wrong[0]
    assert "expired 1 ns early" in judge(requests, told(requests, number=never, late_ns=-1)).wrong[0]
    assert "have no outcome" in judge(requests, told(requests, state=REFUSED)).wrong[0]
    assert judge(requests, told(requests, number=soon, state=EXPIRED)).missed == 1
    assert judge(requests, told(requests, state=PENDING, settlings=0)).unsettled == 1
    assert "settled 1 times" in judge(requests, told(requests, state=PENDING)).wrong[0]
