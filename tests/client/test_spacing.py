"""Spacing: at once when it was quiet, else in intervals."""

from __future__ import annotations

from random import Random

from timerd_wire.spacing import REST, Spacing

INTERVAL_NS, MOST_NS = 100, 500


def test_what_is_alone_waits_for_nothing() -> None:
    spacing = Spacing(INTERVAL_NS, MOST_NS, burst=3)
    for at_ns in (1_000, 2_000, 2_500):
        assert spacing.due_ns <= at_ns
        spacing.done(at_ns)


def test_a_few_follow_each_other_at_once_and_then_one_comes_each_interval() -> None:
    spacing = Spacing(INTERVAL_NS, MOST_NS, burst=3)
    for _ in range(3):
        assert spacing.due_ns <= 1_000
        spacing.done(1_000)
    for _ in range(5):
        before_ns = spacing.due_ns
        spacing.done(before_ns)
        assert spacing.due_ns == before_ns + INTERVAL_NS
    assert before_ns == 1_000 + 5 * INTERVAL_NS


def test_whenever_it_is_done_there_are_no_more_than_one_in_each_interval_and_a_burst(seed: int) -> None:
    rng = Random(seed)
    spacing, now_ns, times = Spacing(INTERVAL_NS, MOST_NS, burst=4), 0, []
    for _ in range(2_000):
        now_ns = max(now_ns + rng.randrange(2 * INTERVAL_NS) * rng.randrange(2), spacing.due_ns)
        spacing.done(now_ns)
        times.append(now_ns)
    for at in range(0, len(times), 7):
        for later in range(at, len(times), 31):
            assert later - at <= (times[later] - times[at]) / INTERVAL_NS + 3


def test_what_takes_long_is_done_seldom_and_quickly_again_when_it_takes_less() -> None:
    spacing, now_ns = Spacing(INTERVAL_NS, MOST_NS, burst=1), 1_000
    longer = ((10, INTERVAL_NS), (50, 50 * REST), (9_000, MOST_NS), (10, INTERVAL_NS))
    for took_ns, interval_ns in longer:
        now_ns = max(now_ns, spacing.due_ns)
        spacing.done(now_ns, took_ns)
        assert (spacing.interval_ns, spacing.due_ns) == (interval_ns, now_ns + interval_ns)


def test_what_takes_longer_than_the_longest_interval_is_done_without_a_pause() -> None:
    """A daemon that cannot keep up is not kept from it."""
    spacing, now_ns = Spacing(INTERVAL_NS, MOST_NS, burst=1), 1_000
    for _ in range(20):
        spacing.done(now_ns, 3 * MOST_NS)
        now_ns += 3 * MOST_NS
        assert spacing.due_ns <= now_ns


def test_what_is_done_before_it_is_due_keeps_the_next_back_for_an_interval_only() -> None:
    spacing, now_ns = Spacing(INTERVAL_NS, MOST_NS, burst=3), 1_000
    for _ in range(1_000):
        spacing.done(now_ns, MOST_NS)
        assert spacing.due_ns <= now_ns + MOST_NS
        now_ns += INTERVAL_NS // 2
