"""The compiled calls of malloc.pyi."""

cdef extern from *:
    """
    #include <malloc.h>
    #ifdef __GLIBC__
    static void td_set_malloc(int mapped, int kept) {
        mallopt(M_MMAP_THRESHOLD, mapped);
        mallopt(M_TRIM_THRESHOLD, kept);
    }
    static void td_trim(void) { malloc_trim(0); }
    #else
    static void td_set_malloc(int mapped, int kept) { (void)mapped; (void)kept; }
    static void td_trim(void) {}
    #endif
    """
    void td_set_malloc(int mapped, int kept)
    void td_trim()

cdef enum:
    MAPPED = 1 << 20  # bytes: from this size on a block is mapped by itself
    KEPT = 4 << 20  # bytes at the end of the heap that malloc keeps


def return_large_blocks():
    td_set_malloc(MAPPED, KEPT)


def trim():
    td_trim()
