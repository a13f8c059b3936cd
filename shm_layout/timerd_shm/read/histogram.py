"""Log-linear histograms: 16 steps in each power of two, so a bucket is at most 6.25 % wide. 976 buckets cover 64 bits.

    value   0 .. 15   buckets 0 .. 15, one each          value 32 .. 63   buckets 32 .. 47, two values each
    value  16 .. 31   buckets 16 .. 31, one each         value 64 .. 127  buckets 48 .. 63, four values each

The core fills them while it settles operations; this module reads them. A percentile is the upper bound of its bucket
(never more than the largest value), so a figure is never better than the truth.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from timerd_shm.declare.records import HISTOGRAM_BUCKETS, HISTOGRAM_SUB_BITS, HistogramRecord

STEPS = 1 << HISTOGRAM_SUB_BITS
COUNTS = struct.Struct(f"<{HISTOGRAM_BUCKETS}Q")


class Summary(NamedTuple):
    """The figures of a histogram for people, in the histogram's unit (ns)."""

    count: int
    mean: float
    p50: int
    p99: int
    p999: int
    max: int


def index_of(value: int) -> int:
    """The bucket that a value (0 .. 2 ** 64 - 1) is counted in."""
    if value < STEPS:
        return value
    exponent = value.bit_length() - 1
    return (exponent - HISTOGRAM_SUB_BITS + 1) * STEPS + (value >> (exponent - HISTOGRAM_SUB_BITS) & (STEPS - 1))


def lower_bound(index: int) -> int:
    """The smallest value that is counted in a bucket."""
    assert 0 <= index < HISTOGRAM_BUCKETS, f"index={index}; buckets={HISTOGRAM_BUCKETS}"
    if index < 2 * STEPS:
        return index
    shift = index // STEPS - 1
    return (STEPS + index % STEPS) << shift


def upper_bound(index: int) -> int:
    """The largest value that is counted in a bucket."""
    return lower_bound(index) + (1 << max(index // STEPS - 1, 0)) - 1


def percentile(counts: Sequence[int], q: float) -> int:
    """The value that a share `q` (0..1) of the counted values does not exceed; 0 when nothing was counted."""
    assert 0 <= q <= 1, f"q={q}"
    total = sum(counts)
    rank = max(1, -int(-total * q // 1))  # the smallest whole number that is not below total * q
    for index, count in enumerate(counts):
        rank -= count
        if rank <= 0 and count:
            return upper_bound(index)
    return 0


def counts_of(record: HistogramRecord) -> tuple[int, ...]:
    """The counts of a histogram's buckets."""
    return COUNTS.unpack(record.buckets)


def summary_of(counts: Sequence[int], largest: int) -> Summary:
    """The figures of counted values, such as those between two looks. `largest`: no value was larger.

    The mean is that of the buckets' middles.
    """
    count = sum(counts)
    if not count:
        return Summary(0, 0.0, 0, 0, 0, 0)
    filled = [(index, number) for index, number in enumerate(counts) if number]
    mean = sum((lower_bound(index) + upper_bound(index)) / 2 * number for index, number in filled) / count
    p50, p99, p999, most = (min(percentile(counts, q), largest) for q in (0.5, 0.99, 0.999, 1))
    return Summary(count, min(mean, largest), p50, p99, p999, most)


def summary(records: Sequence[HistogramRecord]) -> Summary:
    """Count, mean, percentiles and maximum over several histograms of the same thing."""
    filled = [record for record in records if record.count]
    if not filled:
        return Summary(0, 0.0, 0, 0, 0, 0)
    counts = [sum(column) for column in zip(*map(counts_of, filled), strict=True)]
    largest = max(record.max for record in filled)
    # `count` is stored apart from the buckets: a reader that looks between the two stores may find one more or less.
    count = sum(record.count for record in filled)
    p50, p99, p999 = (min(percentile(counts, q), largest) for q in (0.5, 0.99, 0.999))
    return Summary(count, sum(record.sum for record in filled) / count, p50, p99, p999, largest)
