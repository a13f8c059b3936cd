"""The redo slot at a start: a start finishes the transaction that the last daemon was storing when it ended.

For example, the daemon was killed when it had stored `redo_count = 2` and one of the two words. A start stores both
words again.
"""

from libc.stdint cimport uint64_t
from timerd.purgatory.memory.arena cimport Arena
from timerd.purgatory.memory.transaction cimport TD_ORDERED_STORE, td_store_entries
from timerd_shm.generated.records cimport *


cdef inline bint redo_is_sound(Arena *a) noexcept nogil:
    """Whether every entry is a whole word within the arena, and none is a word of the slot itself or of the region table."""
    cdef RedoEntry *entry = <RedoEntry *>(a.base + REDO_OFFSET)
    cdef uint64_t i
    if a.header.redo_count > REDO_MAX or a.header.size < sizeof(uint64_t):
        return False
    for i in range(a.header.redo_count):
        if entry[i].offset % 8 or entry[i].offset > a.header.size - 8:
            return False
        if REDO_OFFSET <= entry[i].offset < HEADER_SIZE:
            return False
    return True


cdef inline uint64_t finish_transaction(Arena *a) noexcept nogil:
    """Store the words of a committed transaction again. Returns their number; 0 if no transaction was cut off."""
    cdef uint64_t count = a.header.redo_count
    if count:
        td_store_entries(a.base, count)
        TD_ORDERED_STORE(a.base, &a.header.redo_count, 0)
    return count
