"""Watch keys and their watchers. A key needs no record of its own: each watch node has its key's name.

Event watchers of a key stand in a list, in order of registration; watchers that observe the key stand in a list of
their own. Watermark watchers stand in a heap (watermark_heap.pxd). Each entry of the key table leads to a chain of the
nodes that stand first in a list, or at the top of a heap. When the first node of a list leaves, the next one takes its
place in the chain. A node leaves at once when its operation settles, or when its key is satisfied or failed for the
operation.

Chains are short, because keys are hashed with a seed that no client has. Steps of a chain count as records of the turn.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from timerd.purgatory.memory.arena cimport Arena
from timerd.purgatory.memory.blob cimport blob_equals, copy_blob, drop_blob, fill_blob, share_blob
from timerd.purgatory.memory.bytes cimport copy_short, same_short
from timerd.purgatory.memory.list cimport append, link_of, make_empty, node_at, unlink
from timerd.purgatory.memory.nodes cimport first_node, free_node, index_of_node, next_node, node_of
from timerd_shm.generated.records cimport *

from .watermarks cimport find_watermark


cdef inline bint node_is(
    Arena *a, WatchNode *node, uint64_t hash, uint32_t purgatory, uint32_t kind, const uint8_t *name, uint32_t length
) noexcept nogil:
    """Whether a node watches this key, and is of this kind."""
    if node.hash != hash or node.kind != kind or node.purgatory != purgatory or node.name_length != length:
        return False
    if length <= KEY_INLINE:
        return same_short(node.name, name, length)
    return blob_equals(a, node.name_blob, name, length)


cdef inline uint32_t find_first(
    Arena *a, uint64_t hash, uint32_t purgatory, uint32_t kind, const uint8_t *name, uint32_t length
) noexcept nogil:
    """The node (index + 1) that stands first in the key's list, or at the top of its heap; 0 = no such watcher."""
    cdef uint32_t found = a.key_heads[hash & a.key_mask]
    cdef WatchNode *node
    while found:
        node = node_of(a, found - 1)
        if node_is(a, node, hash, purgatory, kind, name, length):
            return found
        found = node.chain
        a.turn.touched += 1
    return 0


cdef inline uint32_t find_first_like(Arena *a, WatchNode *node) noexcept nogil:
    """As find_first(), for the key and the kind of a node that is in no list or heap."""
    cdef uint8_t name[KEY_SIZE_MAX]
    if node.name_blob == 0:
        return find_first(a, node.hash, node.purgatory, node.kind, node.name, node.name_length)
    copy_blob(a, node.name_blob, name)
    return find_first(a, node.hash, node.purgatory, node.kind, name, node.name_length)


cdef inline void chain_first(Arena *a, WatchNode *node, uint32_t number) noexcept nogil:
    """Let the table lead to a node (index + 1), which is the first of its key."""
    cdef uint32_t *head = a.key_heads + (node.hash & a.key_mask)
    node.chain = head[0]
    node.place = PLACE_FIRST
    head[0] = number


cdef inline void replace_first(
    Arena *a, WatchNode *node, uint32_t number, WatchNode *successor, uint32_t successor_number
) noexcept nogil:
    """Replace the first node of a key in its chain, by another node or by none (NULL, 0)."""
    cdef uint32_t *link = a.key_heads + (node.hash & a.key_mask)
    while link[0] != number:
        link = &node_of(a, link[0] - 1).chain
        a.turn.touched += 1
    if successor == NULL:
        link[0] = node.chain
        return
    successor.chain = node.chain
    successor.place = PLACE_FIRST
    link[0] = successor_number


cdef inline uint32_t share_name(
    Arena *a, uint64_t hash, uint32_t purgatory, const uint8_t *name, uint32_t length
) noexcept nogil:
    """The blob of a long name: that of a watcher or watermark of the key, or a new blob, for which blocks are free."""
    cdef uint32_t found, kind
    for kind in range(KEY_KIND_COUNT):
        found = find_first(a, hash, purgatory, kind, name, length)
        if found:
            return share_blob(a, node_of(a, found - 1).name_blob)
    found = find_watermark(a, hash, purgatory, name, length)
    if found:
        return share_blob(a, a.watermarks[found - 1].name_blob)
    return fill_blob(a, name, length)


cdef inline void fill_node(
    Arena *a, WatchNode *node, uint32_t op, uint32_t ordinal, uint32_t kind, uint64_t target, uint64_t hash,
    uint32_t purgatory, const uint8_t *name, uint32_t length,
) noexcept nogil:
    """Fill a node that is in no list or heap. The caller has checked that there are blocks for a long name."""
    cdef uint64_t word = WatchNode_with_name_length(WatchNode_with_purgatory(0, purgatory), length)
    node.hash = hash
    node.target = target
    node.op = op
    node.next_of_op = 0
    WatchNode_word_purgatory(node)[0] = WatchNode_with_kind(WatchNode_with_ordinal(word, ordinal), kind)
    node.name_blob = 0
    if length <= KEY_INLINE:
        copy_short(node.name, name, length)
    else:
        node.name_blob = share_name(a, hash, purgatory, name, length)


cdef inline void watch_first(Arena *a, WatchNode *node, uint32_t number) noexcept nogil:
    """Let a node (index + 1) begin its key's list. The caller knows that the key has no watcher of this kind."""
    make_empty(a, &node.next)
    chain_first(a, node, number)


cdef inline void watch_event(Arena *a, WatchNode *node, uint32_t number) noexcept nogil:
    """Put a node (index + 1) at the end of its key's list."""
    cdef uint32_t first = find_first_like(a, node)
    if first:
        append(a, &node_of(a, first - 1).next, &node.next)
        node.place = PLACE_BEHIND
    else:
        watch_first(a, node, number)


cdef inline uint32_t next_to_visit(Arena *a, WatchNode *node) noexcept nogil:
    """The link of the watcher after this one in the list of the event in delivery; 0 = this one is the last."""
    return 0 if node.next == link_of(a, &node_of(a, a.delivery.first - 1).next) else node.next


cdef inline void leave_list(Arena *a, WatchNode *node, uint32_t number) noexcept nogil:
    """Take a node (index + 1) out of its key's list."""
    cdef uint32_t own = link_of(a, &node.next), next = 0
    cdef WatchNode *successor = NULL
    # If the event in delivery would visit this watcher next, its cursor moves on to the watcher after this one.
    if a.delivery.cursor == own:
        a.delivery.cursor = next_to_visit(a, node)
    if node.place == PLACE_FIRST:
        if node.next != own:
            successor = node_at(a, node.next)
            next = index_of_node(a, successor) + 1
        replace_first(a, node, number, successor, next)
        if a.delivery.first == number:
            a.delivery.first = next
    unlink(a, &node.next)
    node.place = PLACE_NOWHERE


cdef inline void free_nodes(Arena *a, OpRecord *op) noexcept nogil:
    """Free the nodes of a settled (or refused) operation. They are in no list or heap."""
    cdef WatchNode *node = first_node(op)
    cdef WatchNode *next
    drop_blob(a, node.name_blob)
    next = next_node(a, node)
    while next != NULL:
        node = next
        next = next_node(a, node)
        drop_blob(a, node.name_blob)
        free_node(a, node)
        a.turn.touched += 1
