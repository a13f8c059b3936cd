"""Watermark watchers of a key: a leftist heap by (target, registration), with two links in each node.

`prev` is the first (left) child. `next` is the sibling; in the last child it is the parent, and in the root it is 0. So
the parent can be reached without a third link, and any node leaves in O(log n). The left child is never the shallower
one. So the way down the right side has at most log2(n + 1) nodes, and that bounds the recursion. Each node that is
touched on the way counts as a record of the turn. Links are index + 1; 0 is none.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from timerd.purgatory.memory.arena cimport Arena
from timerd.purgatory.memory.builtins cimport __builtin_prefetch
from timerd.purgatory.memory.nodes cimport node_of
from timerd_shm.generated.records cimport *

from .keys cimport chain_first, find_first_like, replace_first

cdef extern from *:
    """
    #define STEPS_DOWN 4 /* from a node of a heap towards its leaves, for one node that leaves */
    """
    enum:
        STEPS_DOWN


cdef inline bint before(Arena *a, uint32_t x, uint32_t y) noexcept nogil:
    cdef WatchNode *n = node_of(a, x - 1)
    cdef WatchNode *m = node_of(a, y - 1)
    if n.target != m.target:
        return n.target < m.target
    return a.ops[n.op].registration < a.ops[m.op].registration


cdef inline uint32_t left_of(Arena *a, uint32_t x) noexcept nogil:
    return node_of(a, x - 1).prev


cdef inline uint32_t right_of(Arena *a, uint32_t x) noexcept nogil:
    cdef uint32_t left = node_of(a, x - 1).prev
    if left == 0 or node_of(a, left - 1).next == x:
        return 0
    return node_of(a, left - 1).next


cdef inline uint32_t parent_of(Arena *a, uint32_t x) noexcept nogil:
    cdef uint32_t next = node_of(a, x - 1).next
    if next == 0 or left_of(a, next) == x or right_of(a, next) == x:
        return next
    return node_of(a, next - 1).next


cdef inline uint8_t rank_of(Arena *a, uint32_t x) noexcept nogil:
    return node_of(a, x - 1).rank if x else 0


cdef inline void set_children(Arena *a, uint32_t x, uint32_t left, uint32_t right) noexcept nogil:
    """Give `x` these children, the deeper one as its left child. The `next` of `x` stays."""
    cdef uint32_t swap
    if rank_of(a, left) < rank_of(a, right):
        swap = left
        left = right
        right = swap
    node_of(a, x - 1).prev = left
    if left:
        node_of(a, left - 1).next = right if right else x
    if right:
        node_of(a, right - 1).next = x
    node_of(a, x - 1).rank = rank_of(a, right) + 1


cdef inline uint32_t merge(Arena *a, uint32_t x, uint32_t y) noexcept nogil:
    """Merge two heaps. Returns the root, whose `next` the caller sets."""
    cdef uint32_t swap, left, right
    if x == 0:
        return y
    if y == 0:
        return x
    a.turn.touched += 2  # the two nodes that are compared
    if before(a, y, x):
        swap = x
        x = y
        y = swap
    left = left_of(a, x)
    right = right_of(a, x)
    set_children(a, x, left, merge(a, right, y))
    return x


cdef inline void heap_push(Arena *a, uint32_t x) noexcept nogil:
    """Put a node (index + 1) in its key's heap."""
    cdef WatchNode *node = node_of(a, x - 1)
    cdef uint32_t before = find_first_like(a, node), top
    node.prev = 0
    node.rank = 1
    node.place = PLACE_BEHIND
    top = merge(a, before, x)
    node_of(a, top - 1).next = 0
    if before == 0:
        chain_first(a, node, x)
    elif top != before:
        set_top(a, before, top)
        node_of(a, before - 1).place = PLACE_BEHIND


cdef inline void set_top(Arena *a, uint32_t before, uint32_t top) noexcept nogil:
    """Another node is at the top of a heap now, or the heap is empty (0)."""
    replace_first(a, node_of(a, before - 1), before, node_of(a, top - 1) if top else NULL, top)
    if a.delivery.top == before:
        a.delivery.top = top


cdef inline void heap_remove(Arena *a, uint32_t x) noexcept nogil:
    """Take a node (index + 1) out of its key's heap."""
    cdef uint32_t parent = parent_of(a, x), rest, left, right
    cdef uint8_t rank
    cdef bint was_left = parent != 0 and left_of(a, parent) == x
    left = left_of(a, parent) if parent else 0
    right = right_of(a, parent) if parent else 0
    a.delivery.gone += 1
    rest = merge(a, left_of(a, x), right_of(a, x))
    if parent == 0:
        if rest:
            node_of(a, rest - 1).next = 0
        set_top(a, x, rest)
        node_of(a, x - 1).place = PLACE_NOWHERE
        return
    node_of(a, x - 1).place = PLACE_NOWHERE
    if was_left:
        left = rest
    else:
        right = rest
    # This side may be shorter now: correct the ranks above, up to the first that does not change.
    while True:
        a.turn.touched += 1
        rank = node_of(a, parent - 1).rank
        set_children(a, parent, left, right)
        if node_of(a, parent - 1).rank == rank:
            return
        parent = parent_of(a, parent)
        if parent == 0:
            return
        left = left_of(a, parent)
        right = right_of(a, parent)


cdef inline uint32_t below(Arena *a, uint32_t x, uint64_t reached) noexcept nogil:
    """The node to take out next, when all nodes with targets up to `reached` leave a heap. `x` is one of these nodes.

    The node is `x`, or up to STEPS_DOWN steps below it. The top of a heap leaves in O(log n), but a node without
    children leaves at once. So a caller that takes out 120,000 nodes takes the node that this function returns, and
    goes on from the parent of that node.
    """
    cdef uint32_t child, i
    for i in range(STEPS_DOWN):
        child = left_of(a, x)
        if child and node_of(a, child - 1).target > reached:
            child = right_of(a, x)
        elif child == 0:
            return x
        if child == 0 or node_of(a, child - 1).target > reached:
            return x
        x = child
        __builtin_prefetch(a.ops + node_of(a, x - 1).op)
    return x
