"""Watch nodes by index: the node of an operation's first key lies in the operation, those of its further keys in NODES.

Most operations have one key. So one prefetch of the operation brings all of it, and nothing is allocated beside it.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from timerd_shm.generated.records cimport *

from .arena cimport Arena
from .slab cimport allocate, free_record


cdef inline WatchNode *first_node(OpRecord *op) noexcept nogil:
    return <WatchNode *>op.first_node


cdef inline WatchNode *node_of(Arena *a, uint32_t index) noexcept nogil:
    """The watch node of an index."""
    if index < a.first_nodes:
        return <WatchNode *>a.ops[index].first_node
    return a.more_nodes + (index - a.first_nodes)


cdef inline WatchNode *next_node(Arena *a, WatchNode *node) noexcept nogil:
    """The node of the next key of the same operation, which always lies in NODES; NULL = there is none."""
    return a.more_nodes + (node.next_of_op - 1 - a.first_nodes) if node.next_of_op else NULL


cdef inline uint32_t index_of_node(Arena *a, WatchNode *node) noexcept nogil:
    cdef uint64_t distance = <uint64_t>(<char *>node - <char *>a.ops)
    if distance < <uint64_t>a.first_nodes * sizeof(OpRecord):
        return <uint32_t>(distance // sizeof(OpRecord))
    return <uint32_t>(node - a.more_nodes) + a.first_nodes


cdef inline uint32_t allocate_node(Arena *a) noexcept nogil:
    """A node for a further key (index + 1); 0 when all are in use."""
    cdef uint32_t got = allocate(a, REGION_NODES)
    return got + a.first_nodes if got else 0


cdef inline void free_node(Arena *a, WatchNode *node) noexcept nogil:
    """Free the node of a further key. It is in no list and no heap."""
    free_record(a, REGION_NODES, <uint32_t>(node - a.more_nodes))


cdef inline int64_t long_names(Arena *a, OpRecord *op) noexcept nogil:
    """Bytes of an operation's key names that lie in blocks. Operations that watch one key share its name: each pays."""
    cdef WatchNode *node = first_node(op)
    cdef int64_t length = 0
    while node != NULL:  # bound: KEYS_MAX
        length += node.name_length if node.name_length > KEY_INLINE else 0
        node = next_node(a, node)
    return length


cdef inline int64_t names_of(Arena *a, OpRecord *op) noexcept nogil:
    """Bytes of the long names that the operation holds, by its state and flags."""
    return long_names(a, op) if op.state == OP_STATE_PENDING or op.flags & OP_FLAG_KEYS_KEPT else 0
