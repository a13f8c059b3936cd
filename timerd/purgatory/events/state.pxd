"""The state of the event in delivery, and of a replay. arena.pxd composes it into the Arena."""

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from timerd_shm.generated.records cimport *


ctypedef struct Found:
    # An event of the ring that concerns a registration.
    uint64_t sequence
    uint32_t ordinal  # of the event's key in the registration
    uint32_t failed  # whether the event has failed that key


ctypedef struct Delivery:
    # The state of the event that is being delivered (header.unfinished).
    uint32_t kind  # KeyKind of the list that the event goes through: first nodes that observe the key, then others
    uint32_t first  # the first node (index + 1) in that list of the event's key; 0 = there is none
    uint32_t top  # the node at the top of its key's heap
    uint32_t in_order  # how many more nodes of the heap it visits in order
    uint32_t gone  # how many nodes have left a heap, modulo 2**32
    uint32_t cursor  # link of the next watcher in the list to visit; 0 = none is left
    Found *found  # what the replay of a registration has found; room for REPLAY_WALK_MAX
    uint32_t count  # of `found`


cdef inline bint make_delivery(Delivery *d) noexcept nogil:
    d.found = <Found *>calloc(REPLAY_WALK_MAX, sizeof(Found))
    return d.found != NULL


cdef inline void drop_delivery(Delivery *d) noexcept nogil:
    free(d.found)
