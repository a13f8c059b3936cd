"""A co-located key: an operation has one key, and key and node have its index, so all three are one piece of memory.

That is how most operations stand, so commands/command_batch.pxd goes this short way: no list is walked, and no record
is looked for. operation/settle.pxd and keys.pxd deal with every other operation.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from timerd_shm.generated.records cimport *

from .arena cimport Arena, key_of
from .bytes cimport copy_short
from .free_bitmap cimport free_spares
from .list cimport link_of


cdef extern from *:
    """
    /* The word of a watch node from next_of_op on: it has no next node, and is an event's, the first key, in the key's list. */
    #define ONLY_EVENT_NODE WatchNode_with_linked(WatchNode_with_kind(0, KEY_KIND_EVENT), 1)
    _Static_assert(offsetof(WatchNode, next_of_op) % 8 == 0 && offsetof(WatchNode, linked) == offsetof(WatchNode, next_of_op) + 7,
        "all from next_of_op to linked is one word");
    """
    const uint64_t ONLY_EVENT_NODE


cdef inline void fill_colocated(
    Arena *a, OpRecord *op, uint32_t index, uint64_t hash, uint32_t purgatory, const uint8_t *name, uint32_t length
) noexcept nogil:
    """Watch a new key, with node and key of the operation's index. The caller has allocated both."""
    cdef KeyRecord *key = <KeyRecord *>op.colocated_key
    cdef WatchNode *node = <WatchNode *>op.colocated_node
    op.first_node = index + 1
    node.op = index
    node.key = index
    node.target = 0
    WatchNode_word_next_of_op(node)[0] = ONLY_EVENT_NODE
    node.next = node.prev = link_of(a, &key.next)
    key.hash = hash
    key.watermark = 0
    KeyRecord_word_purgatory(key)[0] = KeyRecord_with_name_length(KeyRecord_with_purgatory(0, purgatory), length)
    key.name_blob = 0
    key.refs = 1
    copy_short(key.name, name, length)
    key.next = key.prev = link_of(a, &node.next)
    key.heap = 0
    chain_colocated(a, key, index)


cdef inline void chain_colocated(Arena *a, KeyRecord *key, uint32_t index) noexcept nogil:
    cdef uint32_t *head = a.key_heads + (key.hash & a.key_mask)
    key.chain = head[0]
    head[0] = index + 1


cdef inline bint is_colocated(OpRecord *op, uint32_t index) noexcept nogil:
    """Whether the pending operation of that index watches only its co-located key, an event's, and is its only watcher."""
    cdef KeyRecord *key = <KeyRecord *>op.colocated_key
    cdef WatchNode *node = <WatchNode *>op.colocated_node
    return (
        op.first_node == index + 1 and WatchNode_word_next_of_op(node)[0] == ONLY_EVENT_NODE and node.key == index
        and key.refs == 1 and key.name_blob == 0 and not key.flags & KEY_FLAG_HAS_WATERMARK
    )


cdef inline void leave_colocated(Arena *a, OpRecord *op, uint32_t index) noexcept nogil:
    """The operation has settled: free its node and its key. The caller counts them, and has checked that no event is in delivery."""
    cdef KeyRecord *key = <KeyRecord *>op.colocated_key
    cdef uint32_t *link = a.key_heads + (key.hash & a.key_mask)
    while link[0] != index + 1:
        link = &key_of(a, link[0] - 1).chain
        a.turn.touched += 1
    link[0] = key.chain
    key.refs = 0
    (<WatchNode *>op.colocated_node).linked = 0
    free_spares(a, index)
