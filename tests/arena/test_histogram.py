"""The index arithmetic of histograms (all small values, and the edges of large ones), and the figures that are read."""

from __future__ import annotations

import random

import pytest

from timerd_shm.declare.records import HISTOGRAM_BUCKETS, HistogramRecord
from timerd_shm.read import histogram

EDGES = [2**bit + near for bit in range(4, 64) for near in (-1, 0, 1)]


@pytest.mark.parametrize("values", [range(70_000), EDGES], ids=["every small one", "around powers of two"])
def test_a_value_lies_within_the_bounds_of_its_bucket(values: list[int]) -> None:
    for value in values:
        index = histogram.index_of(value)
        assert histogram.lower_bound(index) <= value <= histogram.upper_bound(index), f"value={value}; index={index}"


def test_buckets_follow_one_another_without_gap_or_overlap() -> None:
    for index in range(HISTOGRAM_BUCKETS - 1):
        assert histogram.upper_bound(index) + 1 == histogram.lower_bound(index + 1), f"index={index}"
    assert histogram.index_of(2**64 - 1) == HISTOGRAM_BUCKETS - 1
    assert histogram.upper_bound(HISTOGRAM_BUCKETS - 1) == 2**64 - 1


def test_a_bucket_is_at_most_a_sixteenth_wide() -> None:
    for index in range(16, HISTOGRAM_BUCKETS):
        lower = histogram.lower_bound(index)
        assert (histogram.upper_bound(index) - lower + 1) * 16 <= lower, f"index={index}"


def filled(values: list[int]) -> HistogramRecord:
    counts = [0] * HISTOGRAM_BUCKETS
    for value in values:
        counts[histogram.index_of(value)] += 1
    return HistogramRecord(len(values), sum(values), max(values, default=0), 0, histogram.COUNTS.pack(*counts))


def test_percentiles_are_never_below_the_truth_and_at_most_a_sixteenth_above(rng: random.Random) -> None:
    values = sorted(int(rng.lognormvariate(12, 3)) for _ in range(5_000))
    found = histogram.summary([filled(values)])
    for q, figure in ((0.5, found.p50), (0.99, found.p99), (0.999, found.p999)):
        true = values[max(-int(-len(values) * q // 1) - 1, 0)]
        assert true <= figure <= true * 17 / 16 + 1, f"q={q}; true={true}; figure={figure}"
    assert (found.count, found.max) == (5_000, values[-1])
    assert found.mean == sum(values) / 5_000


def test_histograms_of_several_purgatories_add_up(rng: random.Random) -> None:
    left, right = ([rng.randrange(10**9) for _ in range(200)] for _ in range(2))
    assert histogram.summary([filled(left), filled([]), filled(right)]) == histogram.summary([filled(left + right)])


def test_an_empty_histogram_has_only_zeros() -> None:
    assert histogram.summary([]) == histogram.summary([filled([])]) == (0, 0.0, 0, 0, 0, 0)
    assert histogram.percentile([0] * HISTOGRAM_BUCKETS, 0.5) == 0
