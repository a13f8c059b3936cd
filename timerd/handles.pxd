"""From (client, command number) to operation: how an owner's cancel finds its operation. Derived; rebuilt at a start.

Open addressing. Sixteen neighbouring commands of a client share a home line of sixteen entries, each in a lane of its
own, so the sequential numbers of a client touch one cache line in sixteen commands; probing goes by 16, in the lane.
"""

from libc.stdint cimport uint32_t, uint64_t
from timerd.arena cimport Arena
from timerd.hash cimport handle_hash
from timerd_shm.records cimport *

cdef extern from *:
    """
    #define HANDLE_REMOVED 0xFFFFFFFFu
    #define HANDLE_LANES 16
    """
    const uint32_t HANDLE_REMOVED
    enum:
        HANDLE_LANES


cdef inline uint64_t home_of(Arena *a, uint64_t hash, uint64_t command) noexcept nogil:
    return (((hash & <uint64_t>0xFFFFFFFF) << 4) | (command & (HANDLE_LANES - 1))) & a.handle_mask


cdef inline void handle_insert(Arena *a, uint32_t op_index) noexcept nogil:
    cdef OpRecord *op = a.ops + op_index
    cdef uint64_t hash = handle_hash(op.client, op.command), position = home_of(a, hash, op.command)
    # The table has at least twice as many entries as there are operations, so a free one is near.
    while a.handles[position].op != 0 and a.handles[position].op != HANDLE_REMOVED:
        position = (position + HANDLE_LANES) & a.handle_mask
    a.handles[position].tag = <uint32_t>(hash >> 32)
    a.handles[position].op = op_index + 1


cdef inline void handle_remove(Arena *a, uint32_t op_index) noexcept nogil:
    """Remove an operation's entry, if there is one."""
    cdef OpRecord *op = a.ops + op_index
    cdef uint64_t position = home_of(a, handle_hash(op.client, op.command), op.command), steps = 0
    while a.handles[position].op != op_index + 1:
        if a.handles[position].op == 0 or steps > a.handle_mask:
            return
        position = (position + HANDLE_LANES) & a.handle_mask
        steps += HANDLE_LANES
    a.handles[position].op = HANDLE_REMOVED
    # At the end of a run nothing lies behind the removed ones: they are free, and look-ups stay short.
    if a.handles[(position + HANDLE_LANES) & a.handle_mask].op != 0:
        return
    while a.handles[position].op == HANDLE_REMOVED:
        a.handles[position].op = 0
        position = (position - HANDLE_LANES) & a.handle_mask


cdef inline OpRecord *find_operation(Arena *a, uint32_t client, uint64_t command) noexcept nogil:
    """The client's operation of that command number, or NULL."""
    cdef uint64_t hash = handle_hash(client, command), position = home_of(a, hash, command), steps = 0
    cdef OpRecord *op
    while a.handles[position].op != 0 and steps <= a.handle_mask:
        if a.handles[position].op != HANDLE_REMOVED and a.handles[position].tag == <uint32_t>(hash >> 32):
            op = a.ops + (a.handles[position].op - 1)
            if (
                op.client == client
                and op.command == command
                and op.client_generation == a.clients[client].generation
                and op.state != OP_STATE_FREE
            ):
                return op
        position = (position + HANDLE_LANES) & a.handle_mask
        steps += HANDLE_LANES
    return NULL
