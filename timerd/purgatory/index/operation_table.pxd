"""The table from (client, command number) to operation. With it, an owner's cancel finds its operation.

The table is derived: a start makes it anew. It has open addressing. Sixteen neighbouring commands of a client share a
line of sixteen entries, each in a lane of its own. So sixteen sequential commands of a client touch neighbouring
entries, 128 bytes in sum. A keyed hash chooses the lane. Without it, a client that registers with every sixteenth
command only would fill one lane. Probing goes on in the lane, then in the next lane, so it reaches every entry. A
removed entry leaves no mark: the entries after it move up. So a look-up in vain ends as early as if the entry had
never been there. Eight steps of probing count as one record of the turn, because an entry has only 8 bytes.
"""

from libc.stdint cimport uint32_t, uint64_t
from timerd.purgatory.memory.arena cimport Arena
from timerd.purgatory.memory.builtins cimport __builtin_prefetch
from timerd_shm.generated.records cimport *

cdef extern from *:
    """
    enum { STEPS_IN_RECORD = 8 };
    """
    enum:
        STEPS_IN_RECORD


cdef inline uint64_t next_handle(Arena *a, uint64_t position) noexcept nogil:
    """The entry to probe after this one."""
    if position + HANDLE_LANES <= a.handle_mask:
        return position + HANDLE_LANES
    return (position + 1) & (HANDLE_LANES - 1)


cdef inline uint64_t probes_between(Arena *a, uint64_t home, uint64_t position) noexcept nogil:
    """How many steps probing takes from one entry to another. A lane has (handle_mask + 1) / HANDLE_LANES entries."""
    cdef uint64_t rows = position // HANDLE_LANES - home // HANDLE_LANES, lanes = position - home
    return (rows + (lanes & (HANDLE_LANES - 1)) * ((a.handle_mask + 1) // HANDLE_LANES)) & a.handle_mask


cdef inline void prefetch_removal(Arena *a, uint32_t tag) noexcept nogil:
    """Prefetch what handle_remove() looks at: the entry of that tag, and the one after it, which may move up."""
    cdef uint64_t position = tag & a.handle_mask
    __builtin_prefetch(a.handles + position)
    __builtin_prefetch(a.handles + next_handle(a, position))


cdef inline void handle_insert(Arena *a, uint32_t op_index, uint32_t tag) noexcept nogil:
    """Let the operation be found by its tag: handle_tag() of its client and its command."""
    cdef uint64_t position = tag & a.handle_mask
    cdef uint32_t steps = 0
    # The table has at least twice as many entries as there are operations, so a free one is near.
    while a.handles[position].op:  # bound: charged after the loop
        position = next_handle(a, position)
        steps += 1
    a.turn.touched += steps // STEPS_IN_RECORD
    a.handles[position].tag = tag
    a.handles[position].op = op_index + 1
    a.ops[op_index].tag = tag


cdef inline void handle_remove(Arena *a, uint32_t op_index) noexcept nogil:
    """Remove an operation's entry, if there is one."""
    cdef uint64_t position = a.ops[op_index].tag & a.handle_mask, behind
    cdef uint32_t steps = 0
    while a.handles[position].op != op_index + 1:
        if a.handles[position].op == 0:
            a.turn.touched += steps // STEPS_IN_RECORD
            return
        position = next_handle(a, position)
        steps += 1
    behind = next_handle(a, position)
    while a.handles[behind].op:  # bound: charged after the loop
        # This entry may move up if probing for it passes the gap.
        if probes_between(a, a.handles[behind].tag & a.handle_mask, behind) >= probes_between(a, position, behind):
            a.handles[position] = a.handles[behind]
            position = behind
        behind = next_handle(a, behind)
        steps += 1
    a.turn.touched += steps // STEPS_IN_RECORD
    a.handles[position].op = 0


cdef inline OpRecord *find_operation(Arena *a, uint32_t client, uint64_t command, uint32_t tag) noexcept nogil:
    """The client's operation of that command number, or NULL; `tag` is the handle_tag of client and command."""
    cdef uint64_t position = tag & a.handle_mask
    cdef uint32_t steps = 0
    cdef OpRecord *op
    while a.handles[position].op:
        if a.handles[position].tag == tag:
            op = a.ops + (a.handles[position].op - 1)
            if (
                op.client == client
                and op.command == command
                and op.client_generation == a.clients[client].generation
                and op.state != OP_STATE_FREE
            ):
                a.turn.touched += steps // STEPS_IN_RECORD
                return op
        position = next_handle(a, position)
        steps += 1
    a.turn.touched += steps // STEPS_IN_RECORD
    return NULL
