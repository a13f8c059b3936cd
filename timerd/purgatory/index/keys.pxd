"""Watch keys and their watchers. A key record exists while somebody watches the key, or while it has a watermark.

Event watchers of a key stand in a list, in order of registration. Watermark watchers stand in a heap
(watermark_heap.pxd). A node leaves at once when its operation settles, or when its key is satisfied or failed for the
operation.

Chains are short, because keys are hashed with a seed that no client has. Steps of a chain count as records of the turn.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from timerd.purgatory.memory.arena cimport Arena, key_of, node_of, unused
from timerd.purgatory.memory.blob cimport blob_equals, blocks_for, drop_blob, fill_blob
from timerd.purgatory.memory.bytes cimport copy_short, same_short
from timerd.purgatory.memory.counters cimport counter
from timerd.purgatory.memory.free_bitmap cimport allocate_spare, free_spare
from timerd.purgatory.memory.list cimport append, link_of, make_empty, unlink
from timerd_shm.generated.records cimport *

from .watermark_heap cimport heap_push, heap_remove


cdef inline bint key_is(Arena *a, KeyRecord *key, uint32_t purgatory, const uint8_t *name, uint32_t length) noexcept nogil:
    if key.purgatory != purgatory or key.name_length != length:
        return False
    if length <= KEY_INLINE:
        return same_short(key.name, name, length)
    return blob_equals(a, key.name_blob, name, length)


cdef inline uint32_t find_key(
    Arena *a, uint64_t hash, uint32_t purgatory, const uint8_t *name, uint32_t length
) noexcept nogil:
    """The key's record (index + 1), or 0."""
    cdef uint32_t found = a.key_heads[hash & a.key_mask]
    while found:
        if key_of(a, found - 1).hash == hash and key_is(a, key_of(a, found - 1), purgatory, name, length):
            return found
        found = key_of(a, found - 1).chain
        a.turn.touched += 1
    return 0


cdef inline void chain_key(Arena *a, uint32_t found) noexcept nogil:
    cdef uint32_t *head = a.key_heads + (key_of(a, found - 1).hash & a.key_mask)
    key_of(a, found - 1).chain = head[0]
    head[0] = found


cdef inline uint32_t fill_key(
    Arena *a, uint64_t hash, uint32_t purgatory, const uint8_t *name, uint32_t length, uint32_t colocated
) noexcept nogil:
    """A new key record (index + 1): that of index `colocated` if it is free. 0 when keys or blocks are used up."""
    cdef KeyRecord *key
    cdef uint32_t found
    if length > KEY_INLINE and unused(a, REGION_BLOCKS) < blocks_for(length):
        return 0
    found = allocate_spare(a, REGION_KEYS, &a.slab.keys, colocated)
    if found == 0:
        return 0
    key = key_of(a, found - 1)
    key.hash = hash
    key.watermark = 0
    key.purgatory = purgatory
    key.name_length = length
    key.setter = 0
    key.setter_generation = 0
    key.flags = 0
    key.reserved = 0
    key.refs = 0
    key.heap = 0
    if length <= KEY_INLINE:
        key.name_blob = 0
        copy_short(key.name, name, length)
    else:
        key.name_blob = fill_blob(a, name, length)
    make_empty(a, &key.next)
    chain_key(a, found)
    return found


cdef inline void release_key(Arena *a, uint32_t found) noexcept nogil:
    """Free the record if neither a watcher nor a watermark needs it."""
    cdef KeyRecord *key = key_of(a, found - 1)
    cdef uint32_t *link
    if key.refs or key.flags & KEY_FLAG_HAS_WATERMARK:
        return
    link = a.key_heads + (key.hash & a.key_mask)
    while link[0] != found:
        link = &key_of(a, link[0] - 1).chain
        a.turn.touched += 1
    link[0] = key.chain
    if a.delivery.key == found:
        a.delivery.key = 0
    drop_blob(a, key.name_blob)
    free_spare(a, REGION_KEYS, &a.slab.keys, found - 1)


cdef inline void watch_event(Arena *a, WatchNode *node) noexcept nogil:
    """Put a node at the end of its key's list."""
    append(a, &key_of(a, node.key).next, &node.next)
    node.linked = 1


cdef inline void attach(Arena *a, uint32_t node_number) noexcept nogil:
    """Put a node (index + 1) in its key's list or heap. The caller brings nodes in order of registration."""
    cdef WatchNode *node = node_of(a, node_number - 1)
    cdef KeyRecord *key = key_of(a, node.key)
    if node.kind == KEY_KIND_WATERMARK:
        heap_push(a, key, node_number)
        node.linked = 1
    else:
        watch_event(a, node)
    counter(a, key.purgatory, COUNT_WATCHED)[0] += 1


cdef inline void detach(Arena *a, uint32_t node_number) noexcept nogil:
    """Take a node out of its key's list or heap, if it is in one. The node still names its key."""
    cdef WatchNode *node = node_of(a, node_number - 1)
    leave_key(a, node_number, node, key_of(a, node.key))


cdef inline void leave_key(Arena *a, uint32_t node_number, WatchNode *node, KeyRecord *key) noexcept nogil:
    """Take a node out of the list or heap of its key, if it is in one."""
    if not node.linked:
        return
    node.linked = 0
    counter(a, key.purgatory, COUNT_WATCHED)[0] -= 1
    if node.kind == KEY_KIND_WATERMARK:
        heap_remove(a, key, node_number)
        return
    # The event in delivery would visit this watcher next: its cursor moves to the watcher behind.
    if a.delivery.cursor == link_of(a, &node.next):
        a.delivery.cursor = node.next
    unlink(a, &node.next)


cdef inline void free_nodes(Arena *a, uint32_t first) noexcept nogil:
    """Free the nodes of a settled (or refused) operation, and its keys that have no other watcher."""
    cdef uint32_t next
    cdef WatchNode *node
    while first:
        node = node_of(a, first - 1)
        next = node.next_of_op
        free_node(a, first, node, key_of(a, node.key))
        a.turn.touched += 1
        first = next


cdef inline void free_node(Arena *a, uint32_t number, WatchNode *node, KeyRecord *key) noexcept nogil:
    """Free a node that is in no list or heap, and its key if the key has no other watcher."""
    key.refs -= 1
    free_spare(a, REGION_NODES, &a.slab.nodes, number - 1)
    if key.refs == 0:
        release_key(a, node.key + 1)
