"""Ids, given by users. An id names one pending operation.

The id is remembered for a time after the operation has settled (remembered_ids.pxd). A client chooses the 16 bytes of
an id, so the id's chain is found by a keyed hash of them. Steps of a chain count as records of the turn.
"""

from libc.stdint cimport uint32_t, uint64_t
from timerd.purgatory.memory.arena cimport Arena
from timerd.purgatory.memory.slab cimport free_record
from timerd_shm.generated.records cimport *


cdef inline uint32_t find_id(Arena *a, uint32_t hash, uint32_t purgatory, uint64_t low, uint64_t high) noexcept nogil:
    """The id's record (index + 1), or 0; `hash` is the id_hash."""
    cdef uint32_t found = a.id_heads[hash & a.id_mask]
    while found:
        if (
            a.ids[found - 1].hash_low == low
            and a.ids[found - 1].hash_high == high
            and a.ids[found - 1].purgatory == purgatory
        ):
            return found
        found = a.ids[found - 1].chain
        a.turn.touched += 1
    return 0


cdef inline void chain_id(Arena *a, uint32_t found) noexcept nogil:
    cdef uint32_t *head = a.id_heads + (a.ids[found - 1].chain_hash & a.id_mask)
    a.ids[found - 1].chain = head[0]
    head[0] = found


cdef inline void free_id(Arena *a, uint32_t found) noexcept nogil:
    """Free a record whose state is FREE: a commit has set it, or no transaction has used the record yet."""
    cdef uint32_t *link = a.id_heads + (a.ids[found - 1].chain_hash & a.id_mask)
    while link[0] != found:
        link = &a.ids[link[0] - 1].chain
        a.turn.touched += 1
    link[0] = a.ids[found - 1].chain
    free_record(a, REGION_IDS, found - 1)
