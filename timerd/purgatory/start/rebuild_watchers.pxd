"""Watch nodes watch their keys again, in the order of the records. At the end each list gets the order of registration.

For example, each of a million nodes watches a key of its own. Their chains in the key table need no search: a byte for
each chain shows that no node of this key came before. For a second watcher of a key, the first one is searched for.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset
from timerd.purgatory.memory.arena cimport Arena
from timerd.purgatory.memory.builtins cimport __builtin_prefetch
from timerd.purgatory.memory.list cimport append, make_empty, node_at
from timerd.purgatory.memory.nodes cimport first_node, index_of_node, node_of
from timerd.purgatory.index.keys cimport replace_first, watch_first
from timerd.purgatory.index.watchers cimport join_key
from timerd_shm.generated.records cimport *

from .rebuild_order cimport EARLY, Order, Ordered, sort_by_number

cdef extern from *:
    """
    #define DISORDERED 1 /* the rank of a node that stands first in a list, while the list is not in order */
    """
    enum:
        DISORDERED


ctypedef struct Watchers:
    # A byte for each chain. Three bits of a key's hash choose a bit of it, which is set if the chain may have the key.
    uint8_t *chained
    # The nodes (index + 1) that came last, and do not watch their keys yet: the table's entries for them are prefetched.
    uint32_t coming[EARLY]
    uint32_t coming_at
    bint disordered  # the watchers of some keys are not in order


cdef inline bint make_watchers(Watchers *w, Arena *a) noexcept nogil:
    """False if there is no memory for it."""
    memset(w, 0, sizeof(Watchers))
    w.chained = <uint8_t *>calloc(a.key_mask + 1, 1)
    return w.chained != NULL


cdef inline void drop_watchers(Watchers *w) noexcept nogil:
    free(w.chained)


cdef inline bint is_first_of_key(Arena *a, Watchers *w, WatchNode *node) noexcept nogil:
    """Whether certainly no event watcher of the node's key came before. Then the key's chain need not be searched."""
    cdef uint8_t *chained = w.chained + (node.hash & a.key_mask)
    cdef uint8_t bit = <uint8_t>1 << (node.hash >> 61)
    if chained[0] & bit:
        return False
    chained[0] |= bit
    return True


cdef inline void watch_again(Arena *a, Watchers *w, uint32_t number) noexcept nogil:
    """Let a node (index + 1) of a pending operation watch its key again. Mark the list if a later registration came before."""
    cdef WatchNode *node = node_of(a, number - 1)
    if node.kind == KEY_KIND_EVENT and is_first_of_key(a, w, node):
        watch_first(a, node, number)
        return
    join_key(a, node, number)
    if node.kind != KEY_KIND_WATERMARK and node.place == PLACE_BEHIND:
        if a.ops[node_at(a, node.prev).op].registration > a.ops[node.op].registration:
            node_at(a, node.next).rank = DISORDERED  # the next node is the first, because this one is the last
            w.disordered = True


cdef inline void watch_later(Arena *a, Watchers *w, uint32_t number) noexcept nogil:
    """Let the node that came EARLY calls before watch its key. This node (index + 1; 0 = none) takes its position."""
    if w.coming[w.coming_at]:
        watch_again(a, w, w.coming[w.coming_at])
    w.coming[w.coming_at] = number
    w.coming_at = (w.coming_at + 1) % EARLY
    if number:
        __builtin_prefetch(a.key_heads + (node_of(a, number - 1).hash & a.key_mask))
        __builtin_prefetch(w.chained + (node_of(a, number - 1).hash & a.key_mask))


cdef inline void watch_last(Arena *a, Watchers *w) noexcept nogil:
    cdef uint32_t i
    for i in range(EARLY):
        watch_later(a, w, 0)


cdef inline void order_list(Arena *a, WatchNode *first, uint32_t number, Ordered *items, Ordered *spare) noexcept nogil:
    """Put the watchers of a key in order of registration. `first`, with this number (index + 1), stands first now."""
    cdef uint64_t count = 0, k
    cdef WatchNode *node = first
    first.rank = 0
    while count == 0 or node != first:
        items[count].number = a.ops[node.op].registration
        items[count].index = index_of_node(a, node)
        count += 1
        node = node_at(a, node.next)
    sort_by_number(items, spare, count)
    node = node_of(a, <uint32_t>items[0].index)
    if node != first:
        replace_first(a, first, number, node, <uint32_t>items[0].index + 1)
        first.place = PLACE_BEHIND
    first = node
    make_empty(a, &first.next)
    for k in range(1, count):
        append(a, &first.next, &node_of(a, <uint32_t>items[k].index).next)


cdef inline void order_watchers(Arena *a, Watchers *w, Order *o) noexcept nogil:
    """Sort the lists whose watchers came in another order than that of registration."""
    cdef uint32_t i
    if not w.disordered:
        return
    for i in range(a.regions[REGION_OPS].high_water):
        if is_disordered(first_node(a.ops + i)):
            order_list(a, first_node(a.ops + i), i + 1, o.strays, o.spare)
    for i in range(a.regions[REGION_NODES].high_water):
        if is_disordered(a.more_nodes + i):
            order_list(a, a.more_nodes + i, a.first_nodes + i + 1, o.strays, o.spare)


cdef inline bint is_disordered(WatchNode *node) noexcept nogil:
    return node.place == PLACE_FIRST and node.kind != KEY_KIND_WATERMARK and node.rank == DISORDERED
