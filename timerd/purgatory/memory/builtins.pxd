"""Builtins of the C compiler and the processor: counts of bits, and hints for the caches."""

from libc.stdint cimport uint64_t
cdef extern from *:
    """
    /* TOUCH loads a line that is needed soon, and drops the value. commands/prefetch.pxd says why it is no prefetch. */
    #define CACHE_LINE 64
    #define WORD_BITS 64
    #define TOUCH(address) ((void)*(volatile const char *)(address))
    /* RARELY: code behind this condition stays out of the way of the usual path. */
    #define RARELY(condition) __builtin_expect(!!(condition), 0)
    """
    enum:
        CACHE_LINE
        WORD_BITS
    void TOUCH(const void *address) noexcept nogil
    bint RARELY(bint condition) noexcept nogil
    int __builtin_clzll(uint64_t) noexcept nogil
    int __builtin_ctzll(uint64_t) noexcept nogil
    int __builtin_popcountll(uint64_t) noexcept nogil
    void __builtin_prefetch(const void *) noexcept nogil
