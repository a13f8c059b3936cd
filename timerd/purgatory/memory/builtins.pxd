"""What the C compiler offers beyond C: counts of bits, and hints to the processor."""

from libc.stdint cimport uint64_t
cdef extern from *:
    """
    /* A load whose value nobody wants: for a line that will be needed soon (see commands/prefetch.pxd for why not a prefetch). */
    #define TOUCH(address) ((void)*(volatile const char *)(address))
    """
    void TOUCH(const void *address) noexcept nogil
    int __builtin_clzll(uint64_t) noexcept nogil
    int __builtin_ctzll(uint64_t) noexcept nogil
    int __builtin_popcountll(uint64_t) noexcept nogil
    void __builtin_prefetch(const void *) noexcept nogil
