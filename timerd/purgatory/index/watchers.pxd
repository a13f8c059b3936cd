"""A node joins the watchers of its key, or leaves them: in the key's list, or in its heap."""

from libc.stdint cimport uint32_t
from timerd.purgatory.memory.arena cimport Arena
from timerd.purgatory.memory.counters cimport counter
from timerd_shm.generated.records cimport *

from .keys cimport leave_list, watch_event
from .watermark_heap cimport heap_push, heap_remove


cdef inline void join_key(Arena *a, WatchNode *node, uint32_t number) noexcept nogil:
    """Put a node (index + 1) in its key's list or heap. The caller counts the watcher."""
    if node.kind == KEY_KIND_WATERMARK:
        heap_push(a, number)
    else:
        a.observers += node.kind == KEY_KIND_OBSERVE
        watch_event(a, node, number)


cdef inline void attach(Arena *a, WatchNode *node, uint32_t number) noexcept nogil:
    """As join_key(), and count the watcher. The caller brings nodes in order of registration."""
    join_key(a, node, number)
    counter(a, node.purgatory, COUNT_WATCHED)[0] += 1


cdef inline void leave_key(Arena *a, WatchNode *node, uint32_t number) noexcept nogil:
    """Take a node (index + 1) out of its key's list or heap. The caller counts the watcher."""
    if node.kind == KEY_KIND_WATERMARK:
        heap_remove(a, number)
    else:
        a.observers -= node.kind == KEY_KIND_OBSERVE
        leave_list(a, node, number)


cdef inline void detach(Arena *a, WatchNode *node, uint32_t number) noexcept nogil:
    """As leave_key(), if the node is in a list or heap, and count it."""
    if node.place != PLACE_NOWHERE:
        counter(a, node.purgatory, COUNT_WATCHED)[0] -= 1
        leave_key(a, node, number)
