"""The counters of the purgatories, and their histograms of times."""

from libc.stdint cimport uint32_t, uint64_t
from timerd_shm.generated.records cimport *

from .arena cimport Arena
from .builtins cimport __builtin_clzll


cdef inline uint64_t *counter(Arena *a, uint32_t purgatory, int which) noexcept nogil:
    return a.counters + purgatory * PURGATORY_COUNTERS_MAX + which


cdef inline HistogramRecord *histogram(Arena *a, uint32_t purgatory, int which) noexcept nogil:
    return a.histograms + purgatory * HISTOGRAM_COUNT + which


cdef inline void histogram_add(HistogramRecord *h, uint64_t value) noexcept nogil:
    cdef uint64_t *buckets = <uint64_t *>h.buckets
    cdef uint32_t e
    h.count += 1
    h.sum += value
    if value > h.max:
        h.max = value
    if value < 16:
        buckets[value] += 1
    else:
        e = 63 - __builtin_clzll(value)
        buckets[(e - 3) * 16 + ((value >> (e - 4)) & 15)] += 1
