"""The counters of the purgatories, and their histograms of times."""

from libc.stdint cimport uint32_t, uint64_t
from timerd_shm.generated.records cimport *

from .arena cimport Arena
from .builtins cimport WORD_BITS, __builtin_clzll


cdef extern from *:
    """
    #define HISTOGRAM_STEPS (1 << HISTOGRAM_SUB_BITS) /* buckets of each power of two; timerd_shm.read.histogram has a table */
    _Static_assert(HISTOGRAM_BUCKETS == (64 - HISTOGRAM_SUB_BITS + 1) * HISTOGRAM_STEPS, "buckets for every value of 64 bits");
    _Static_assert(sizeof(((HistogramRecord *)0)->buckets) == 8 * HISTOGRAM_BUCKETS, "counts of 64 bits");
    """
    enum:
        HISTOGRAM_STEPS


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
    if value < HISTOGRAM_STEPS:
        buckets[value] += 1
    else:
        e = WORD_BITS - 1 - __builtin_clzll(value)
        buckets[(e - HISTOGRAM_SUB_BITS + 1) * HISTOGRAM_STEPS + ((value >> (e - HISTOGRAM_SUB_BITS)) & (HISTOGRAM_STEPS - 1))] += 1
