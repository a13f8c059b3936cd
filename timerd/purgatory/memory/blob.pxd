"""Payloads, values and long names: chains of blocks with a count of references. 10,000 operations may share a value.

A blob is named by its first block (index + 1); 0 is the empty blob. Only the first block counts references and bytes.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from timerd_shm.generated.records cimport *

from .arena cimport Arena
from .bytes cimport copy_short, same_short
from .slab cimport allocate, free_record


cdef inline uint32_t blocks_for(uint32_t length) noexcept nogil:
    return (length + BLOCK_DATA - 1) // BLOCK_DATA


cdef inline uint32_t fill_blob(Arena *a, const uint8_t *data, uint32_t length) noexcept nogil:
    """A new blob with one reference. The caller has checked that blocks_for(length) blocks are free."""
    cdef uint32_t first = 0, previous = 0, block, piece, rest = length
    while rest:  # bound: the bytes of a frame
        piece = rest if rest < BLOCK_DATA else BLOCK_DATA
        block = allocate(a, REGION_BLOCKS)
        copy_short(a.blocks[block - 1].data, data, piece)
        a.blocks[block - 1].next = 0
        if previous:
            a.blocks[previous - 1].next = block
        else:
            first = block
            a.blocks[first - 1].length = length
            a.blocks[first - 1].refs = 1
        previous = block
        data += piece
        rest -= piece
    return first


cdef inline uint32_t blob_length(Arena *a, uint32_t blob) noexcept nogil:
    return a.blocks[blob - 1].length if blob else 0


cdef inline uint64_t *blob_words(Arena *a, uint32_t block) noexcept nogil:
    """The data of a block, as words."""
    return <uint64_t *>a.blocks[block - 1].data


cdef inline uint32_t share_blob(Arena *a, uint32_t blob) noexcept nogil:
    if blob:
        a.blocks[blob - 1].refs += 1
    return blob


cdef inline void drop_blob(Arena *a, uint32_t blob) noexcept nogil:
    """Give up one reference. The last one frees the chain."""
    cdef uint32_t next
    if blob == 0:
        return
    a.blocks[blob - 1].refs -= 1
    if a.blocks[blob - 1].refs:
        return
    # A value of 64 KiB has 586 blocks. The first one is charged with the record that names the blob.
    a.turn.touched += blocks_for(a.blocks[blob - 1].length) - 1
    while blob:  # bound: charged above
        next = a.blocks[blob - 1].next
        free_record(a, REGION_BLOCKS, blob - 1)
        blob = next


cdef inline uint32_t freed_by_drop(Arena *a, uint32_t blob) noexcept nogil:
    """The blocks that drop_blob() would free."""
    return blocks_for(blob_length(a, blob)) if blob and a.blocks[blob - 1].refs == 1 else 0


cdef inline void copy_blob(Arena *a, uint32_t blob, uint8_t *out) noexcept nogil:
    cdef uint32_t rest = blob_length(a, blob), piece
    while rest:  # bound: the bytes of a frame
        piece = rest if rest < BLOCK_DATA else BLOCK_DATA
        copy_short(out, a.blocks[blob - 1].data, piece)
        out += piece
        rest -= piece
        blob = a.blocks[blob - 1].next


cdef inline bint blob_equals(Arena *a, uint32_t blob, const uint8_t *data, uint32_t length) noexcept nogil:
    cdef uint32_t piece
    if blob_length(a, blob) != length:
        return False
    while length:  # bound: the bytes of a frame
        piece = length if length < BLOCK_DATA else BLOCK_DATA
        if not same_short(a.blocks[blob - 1].data, data, piece):
            return False
        data += piece
        length -= piece
        blob = a.blocks[blob - 1].next
    return True
