"""The state of the settled ids beside the arena's records. arena.pxd composes it into the Arena."""

from libc.stdint cimport uint32_t
from libc.stdlib cimport calloc, free


ctypedef struct Remembered:
    # How many remembered ids each client slot has. A slot with none costs a look at this count, not at its record.
    uint32_t *counts
    uint32_t slots
    uint32_t total
    uint32_t fullest  # a slot with the most ids, or nearly the most
    uint32_t fullest_until  # with this many ids or fewer (less than 7/8 of the most) it no longer counts as fullest
    uint32_t next_slot  # the slot whose oldest ids are looked at next


cdef inline bint make_remembered(Remembered *r, uint32_t slots) noexcept nogil:
    """False if there is no memory; drop_remembered() frees what was made."""
    r.counts = <uint32_t *>calloc(slots, sizeof(uint32_t))
    r.slots = slots
    return r.counts != NULL


cdef inline void drop_remembered(Remembered *r) noexcept nogil:
    free(r.counts)
