"""Watermarks of keys: each has a record, found by the key's hash."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from timerd.purgatory.memory.arena cimport Arena
from timerd.purgatory.memory.blob cimport blob_equals, drop_blob
from timerd.purgatory.memory.bytes cimport copy_short, same_short
from timerd.purgatory.memory.slab cimport allocate, free_record
from timerd_shm.generated.records cimport *


cdef inline uint32_t find_watermark(
    Arena *a, uint64_t hash, uint32_t purgatory, const uint8_t *name, uint32_t length
) noexcept nogil:
    """The key's watermark (index + 1), or 0."""
    cdef uint32_t found = a.watermark_heads[hash & a.watermark_mask]
    cdef WatermarkRecord *w
    while found:
        w = a.watermarks + (found - 1)
        if w.hash == hash and w.purgatory == purgatory and w.name_length == length:
            if same_short(w.name, name, length) if length <= KEY_INLINE else blob_equals(a, w.name_blob, name, length):
                return found
        found = w.chain
        a.turn.touched += 1
    return 0


cdef inline uint32_t fill_watermark(
    Arena *a, uint64_t hash, uint32_t purgatory, const uint8_t *name, uint32_t length, uint32_t name_blob
) noexcept nogil:
    """A new record (index + 1) that is not set; 0 when all are in use. Takes over `name_blob`, a long name's blob."""
    cdef uint32_t got = allocate(a, REGION_WATERMARKS)
    cdef WatermarkRecord *w
    if got == 0:
        return 0
    w = a.watermarks + (got - 1)
    w.hash = hash
    w.watermark = 0
    WatermarkRecord_word_used(w)[0] = WatermarkRecord_with_name_length(WatermarkRecord_with_purgatory(0, purgatory), length)
    w.name_blob = name_blob
    w.unused = 0
    w.prefetch_hint = 0
    if name_blob == 0:
        copy_short(w.name, name, length)
    chain_watermark(a, got)
    return got


cdef inline void chain_watermark(Arena *a, uint32_t found) noexcept nogil:
    cdef uint32_t *head = a.watermark_heads + (a.watermarks[found - 1].hash & a.watermark_mask)
    a.watermarks[found - 1].chain = head[0]
    head[0] = found


cdef inline void free_watermark(Arena *a, uint32_t found) noexcept nogil:
    """Free a record whose state is "not used": a commit has set it, or no transaction has used the record yet."""
    cdef uint32_t *link = a.watermark_heads + (a.watermarks[found - 1].hash & a.watermark_mask)
    while link[0] != found:
        link = &a.watermarks[link[0] - 1].chain
        a.turn.touched += 1
    link[0] = a.watermarks[found - 1].chain
    drop_blob(a, a.watermarks[found - 1].name_blob)
    free_record(a, REGION_WATERMARKS, found - 1)
