"""Spacing: an action is due at once if there was none shortly before, else at intervals."""

from __future__ import annotations

from random import Random

from timerd_wire.spacing import Spacing

INTERVAL_NS, MOST_NS, REST = 100, 500, 3


def test_a_lone_action_is_due_at_once() -> None:
    spacing = Spacing(INTERVAL_NS, MOST_NS, burst=3, rest=REST)
    for at_ns in (1_000, 2_000, 2_500):
        assert spacing.due_ns <= at_ns
        spacing.done(at_ns)


def test_a_burst_of_actions_is_due_at_once_and_then_one_each_interval() -> None:
    spacing = Spacing(INTERVAL_NS, MOST_NS, burst=3, rest=REST)
    for _ in range(3):
        assert spacing.due_ns <= 1_000
        spacing.done(1_000)
    for _ in range(5):
        before_ns = spacing.due_ns
        spacing.done(before_ns)
        assert spacing.due_ns == before_ns + INTERVAL_NS
    assert before_ns == 1_000 + 5 * INTERVAL_NS


def test_at_any_times_there_is_at_most_one_action_each_interval_and_a_burst(seed: int) -> None:
    rng = Random(seed)
    spacing, now_ns, times = Spacing(INTERVAL_NS, MOST_NS, burst=4, rest=REST), 0, []
    for _ in range(2_000):
        now_ns = max(now_ns + rng.randrange(2 * INTERVAL_NS) * rng.randrange(2), spacing.due_ns)
        spacing.done(now_ns)
        times.append(now_ns)
    for at in range(0, len(times), 7):
        for later in range(at, len(times), 31):
            assert later - at <= (times[later] - times[at]) / INTERVAL_NS + 3


def test_a_slow_action_has_long_intervals_that_shrink_when_it_gets_fast() -> None:
    spacing, now_ns = Spacing(INTERVAL_NS, MOST_NS, burst=1, rest=REST), 1_000
    longer = ((10, INTERVAL_NS), (50, 50 * REST), (9_000, MOST_NS), (10, INTERVAL_NS))
    for took_ns, interval_ns in longer:
        now_ns = max(now_ns, spacing.due_ns)
        spacing.done(now_ns, took_ns)
        assert (spacing.interval_ns, spacing.due_ns) == (interval_ns, now_ns + interval_ns)


def test_an_action_slower_than_the_longest_interval_is_due_without_a_pause() -> None:
    """A daemon that cannot keep up loses no time in pauses."""
    spacing, now_ns = Spacing(INTERVAL_NS, MOST_NS, burst=1, rest=REST), 1_000
    for _ in range(20):
        spacing.done(now_ns, 3 * MOST_NS)
        now_ns += 3 * MOST_NS
        assert spacing.due_ns <= now_ns


def test_an_action_before_it_is_due_delays_the_next_by_one_interval_only() -> None:
    spacing, now_ns = Spacing(INTERVAL_NS, MOST_NS, burst=3, rest=REST), 1_000
    for _ in range(1_000):
        spacing.done(now_ns, MOST_NS)
        assert spacing.due_ns <= now_ns + MOST_NS
        now_ns += INTERVAL_NS // 2
