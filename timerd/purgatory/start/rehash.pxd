"""Hashes are made anew if the arena's hashes have another seed: the seed's file was lost, or is another arena's.

The header's check value shows that. It is 0 during the work, and stored last. So if a start is killed in between, the
next start makes all hashes anew. They follow from names and ids.

One thing is lost. A slot of the ring has the newest event of its keys, even if the event has left the ring. The keys of
such events are not known. So every slot gets the last event that has left the ring, and a mark before it is too old.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from timerd.purgatory.memory.arena cimport Arena, capacity
from timerd.purgatory.memory.blob cimport copy_blob
from timerd.purgatory.memory.hash cimport check_of, key_hash
from timerd.purgatory.memory.transaction cimport TD_ORDERED_STORE
from timerd_shm.generated.records cimport *


cdef inline void begin_rehash(Arena *a) noexcept nogil:
    """Look whether the hashes are of this seed. If not, reset the slots of the ring, which are then made anew."""
    cdef uint32_t i
    a.rehashed = a.header.seed_check != check_of(a.seed)
    if a.rehashed:
        TD_ORDERED_STORE(a.base, &a.header.seed_check, 0)
        for i in range(capacity(a, REGION_SLOTS)):
            fill_slot(a.slots + i, a.header.tail - 1)


cdef inline void fill_slot(SlotRecord *slot, uint64_t newest) noexcept nogil:
    slot.newest = newest


cdef inline uint64_t hash_again(
    Arena *a, uint32_t purgatory, const uint8_t *inlined, uint32_t blob, uint32_t length
) noexcept nogil:
    """The hash of a key whose name stands inlined, or in a blob."""
    cdef uint8_t name[KEY_SIZE_MAX]
    if blob == 0:
        return key_hash(a.seed, purgatory, inlined, length)
    copy_blob(a, blob, name)
    return key_hash(a.seed, purgatory, name, length)


cdef inline void fill_node_again(Arena *a, WatchNode *node) noexcept nogil:
    node.hash = hash_again(a, node.purgatory, node.name, node.name_blob, node.name_length)


cdef inline void fill_watermark_again(Arena *a, WatermarkRecord *w) noexcept nogil:
    w.hash = hash_again(a, w.purgatory, w.name, w.name_blob, w.name_length)


cdef inline void fill_event_again(Arena *a, EventRecord *e) noexcept nogil:
    """Fill the hash of an event's key, and put the event in its slot. Events come in order."""
    cdef SlotRecord *slot
    e.key_hash = hash_again(a, e.purgatory, e.key, e.key_blob, e.key_length)
    slot = a.slots + (e.key_hash & a.slot_mask)
    e.previous = slot.newest
    slot.newest = e.sequence


cdef inline void end_rehash(Arena *a) noexcept nogil:
    if a.rehashed:
        TD_ORDERED_STORE(a.base, &a.header.seed_check, check_of(a.seed))
