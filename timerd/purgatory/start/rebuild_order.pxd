"""The second thread of a start: handles, the order of registration, and the wheel, from the operations' own records alone.

restore_order() runs in that thread. Meanwhile the conductor's thread goes on with nodes, payloads and values
(rebuild.pxd). Neither thread stores a word that the other reads, with one exception: the conductor's thread frees
settled operations without a receiver. The second thread passes over these, whether they are still settled or already
free. It does not know whether a record is sound, so it follows no index beyond the arena. The conductor's thread finds
the damage.
"""

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset
from timerd.purgatory.memory.arena cimport Arena, capacity
from timerd.purgatory.memory.builtins cimport __builtin_prefetch
from timerd.purgatory.memory.hash cimport handle_tag
from timerd.purgatory.memory.list cimport make_empty
from timerd.purgatory.index.operation_table cimport handle_insert
from timerd.purgatory.wheel.wheel cimport wheel_insert
from timerd_shm.generated.records cimport *


cdef extern from *:
    """
    #define DIGIT_BITS 11 /* bits by which a round sorts: two rounds for millions of numbers */
    #define DIGITS (1 << DIGIT_BITS)
    #define EARLY 16 /* how many records early the targets of a record are prefetched */
    #define FEW 32 /* the most records that are sorted without counting digits: to clear the counts would take longer */
    """
    enum:
        DIGIT_BITS
        FEW
        DIGITS
        EARLY


ctypedef struct Ordered:
    # A record and the number by which its list is ordered.
    uint64_t number
    uint64_t index


ctypedef struct Gathered:
    # Records by their numbers: `items` came in order, `strays` still have to be sorted.
    Ordered *items
    Ordered *strays
    uint64_t count
    uint64_t stray_count


ctypedef struct Handles:
    # The handles that are inserted next: their entries in the table are prefetched.
    uint32_t ops[EARLY]  # index + 1; 0 = none
    uint32_t tags[EARLY]
    uint32_t at


ctypedef struct Order:
    # The order of operations, and room to find it.
    Arena *a
    uint32_t *pending  # indexes, in order of registration
    uint64_t pending_count
    Ordered *settled  # in order of their outcomes' numbers; in `items`, after those that are pending
    uint64_t settled_count
    Ordered *items
    Ordered *strays
    Ordered *spare
    uint32_t *generations  # of client slots; 0 = free. A copy, because the other thread writes the lines of the clients' records


cdef inline bint make_order(Order *o, Arena *a, uint64_t most) noexcept nogil:
    """Room for `most` records, at least as many as there are operations; False if there is no memory for it."""
    cdef uint32_t slot, slots = capacity(a, REGION_CLIENTS)
    o.a = a
    o.pending_count = o.settled_count = 0
    o.pending = <uint32_t *>malloc((most + 1) * sizeof(uint32_t))
    o.items = <Ordered *>malloc((most + 1) * sizeof(Ordered))
    o.strays = <Ordered *>malloc((most + 1) * sizeof(Ordered))
    o.spare = <Ordered *>malloc((most + 1) * sizeof(Ordered))
    o.generations = <uint32_t *>malloc(slots * sizeof(uint32_t))
    if o.pending == NULL or o.items == NULL or o.strays == NULL or o.spare == NULL or o.generations == NULL:
        return False
    for slot in range(slots):
        o.generations[slot] = 0 if a.clients[slot].state == CLIENT_STATE_FREE else a.clients[slot].generation
    return True


cdef inline void drop_order(Order *o) noexcept nogil:
    free(o.pending)
    free(o.items)
    free(o.strays)
    free(o.spare)
    free(o.generations)


cdef inline void insertion_sort(Ordered *items, uint64_t count) noexcept nogil:
    cdef uint64_t i, k
    cdef Ordered item
    for i in range(1, count):
        item = items[i]
        k = i
        while k and items[k - 1].number > item.number:
            items[k] = items[k - 1]
            k -= 1
        items[k] = item


cdef inline void sort_by_number(Ordered *items, Ordered *spare, uint64_t count) noexcept nogil:
    """Radix sort, a digit at a time, over the digits in which the numbers differ. Numbers in order stay as they are."""
    cdef uint64_t seen[DIGITS]
    cdef uint64_t i, total, here, every = 0, any_one
    cdef uint32_t shift = 0, digit
    cdef Ordered *swap
    cdef Ordered *source = items
    cdef bint in_order = True
    if count < 2:
        return
    any_one = items[0].number
    for i in range(1, count):
        every |= items[i].number ^ any_one
        in_order &= items[i - 1].number <= items[i].number
    if in_order:
        return
    if count <= FEW:
        insertion_sort(items, count)
        return
    while every:
        if every & (DIGITS - 1):
            memset(seen, 0, sizeof(seen))
            for i in range(count):
                seen[(source[i].number >> shift) & (DIGITS - 1)] += 1
            total = 0
            for digit in range(DIGITS):
                here = seen[digit]
                seen[digit] = total
                total += here
            for i in range(count):
                digit = (source[i].number >> shift) & (DIGITS - 1)
                spare[seen[digit]] = source[i]
                seen[digit] += 1
            swap = source
            source = spare
            spare = swap
        every >>= DIGIT_BITS
        shift += DIGIT_BITS
    if source != items:
        memcpy(items, source, count * sizeof(Ordered))


cdef inline bint is_outcome_due(Arena *a, OpRecord *op) noexcept nogil:
    """Whether a settled operation belongs to a group, or is still to be delivered to a client."""
    cdef ClientRecord *c = a.clients + op.client
    if op.group:
        return True
    return (
        c.generation == op.client_generation and c.state != CLIENT_STATE_FREE and op.outcome_number > c.acknowledged
    )


cdef inline void gather(Gathered *g, uint64_t number, uint64_t index) noexcept nogil:
    """Append a record to the items in order, if at most one item has to become a stray. Else the record is a stray.

    Records come in order of index. That is the order of their numbers, except for records that were used again.
    """
    cdef Ordered *entry = g.items + g.count
    if g.count and number < g.items[g.count - 1].number:
        entry = g.strays + g.stray_count
        g.stray_count += 1
        if g.count == 1 or number >= g.items[g.count - 2].number:
            entry[0] = g.items[g.count - 1]
            entry = g.items + (g.count - 1)
    else:
        g.count += 1
    entry.number = number
    entry.index = index


cdef inline void make_unlinked(Arena *a, OpRecord *op) noexcept nogil:
    op.bucket = 0
    op.prefetch_hint = 0
    make_empty(a, &op.next)  # an operation without a deadline is in no list, but its links are read


cdef inline void link_pending(Order *o, uint64_t k, uint32_t index) noexcept nogil:
    """Put an operation into its bucket, as the next in order."""
    cdef OpRecord *op = o.a.ops + index
    make_unlinked(o.a, op)
    wheel_insert(o.a, op)
    o.pending[k] = index


cdef inline void prefetch_deadline(Arena *a, Ordered *items, uint64_t count, uint64_t k) noexcept nogil:
    if k + EARLY < count:
        __builtin_prefetch(&a.ops[items[k + EARLY].index].deadline_ns)


cdef inline void link_in_order(Order *o, Gathered *g) noexcept nogil:
    cdef uint64_t i = 0, k = 0
    sort_by_number(g.strays, o.spare, g.stray_count)
    while i < g.count or k < g.stray_count:
        if k == g.stray_count or (i < g.count and g.items[i].number < g.strays[k].number):
            prefetch_deadline(o.a, g.items, g.count, i)
            link_pending(o, i + k, g.items[i].index)
            i += 1
        else:
            prefetch_deadline(o.a, g.strays, g.stray_count, k)
            link_pending(o, i + k, g.strays[k].index)
            k += 1
    o.pending_count = i + k


cdef inline void insert_later(Arena *a, Handles *h, uint32_t op, uint32_t tag) noexcept nogil:
    """Insert the handle that came EARLY calls before. The handle of `op` (index + 1; 0 = none) takes its position."""
    if h.ops[h.at]:
        handle_insert(a, h.ops[h.at] - 1, h.tags[h.at])
    h.ops[h.at] = op
    h.tags[h.at] = tag
    h.at = (h.at + 1) % EARLY
    __builtin_prefetch(a.handles + (tag & a.handle_mask))


cdef inline void *restore_order(void *order) noexcept nogil:
    cdef Order *o = <Order *>order
    cdef Arena *a = o.a
    cdef uint32_t i, count = a.regions[REGION_OPS].high_water
    cdef OpRecord *op
    cdef Gathered pending
    cdef Handles handles
    memset(&handles, 0, sizeof(handles))
    pending.items = o.items
    pending.strays = o.strays
    pending.count = pending.stray_count = 0
    o.settled = o.items + count
    for i in range(count):
        op = a.ops + i
        if op.state != OP_STATE_PENDING:
            make_unlinked(a, op)
        if op.state == OP_STATE_FREE or op.client >= capacity(a, REGION_CLIENTS):
            continue
        if op.state == OP_STATE_PENDING:
            gather(&pending, op.registration, i)
        elif not is_outcome_due(a, op):
            continue
        elif op.client_generation:
            o.settled -= 1
            o.settled_count += 1
            o.settled.number = op.outcome_number
            o.settled.index = i
        if op.group == 0 and op.client_generation and op.client_generation == o.generations[op.client]:
            insert_later(a, &handles, i + 1, handle_tag(a.seed, op.client, op.command))
    for i in range(EARLY):
        insert_later(a, &handles, 0, 0)
    link_in_order(o, &pending)
    sort_by_number(o.settled, o.spare, o.settled_count)
    return NULL
