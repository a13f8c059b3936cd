"""Opening the journal's buffer: whether it belongs to this arena, and memory for its texts."""

from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc
from timerd.purgatory.memory.arena cimport Arena, capacity
from timerd_shm.generated.records cimport *

from .state cimport Journal, OwnerText, SeenText
from .room cimport TEXTS_SEEN


cdef inline bint buffer_is_sound(Arena *a, BufferHeader *header, uint64_t length, uint64_t segment_rows) noexcept nogil:
    """Whether `length` bytes are a buffer of this arena, and a segment may have `segment_rows` rows."""
    return (
        length >= BUFFER_HEADER_SIZE
        and length >= BUFFER_HEADER_SIZE + <uint64_t>header.rows * ROW_SIZE
        and header.rows >= BUFFER_ROWS_MIN
        and header.rows & (header.rows - 1) == 0
        and header.fingerprint == JOURNAL_FINGERPRINT
        and header.incarnation == a.header.incarnation
        and segment_rows != 0
        and segment_rows % BLOCK_ROWS == 0
    )


cdef inline bint make_texts(Arena *a, BufferHeader *header) noexcept nogil:
    """Remember the buffer, and allocate the tables of its texts, still empty; False if there is no memory."""
    cdef Journal *j = &a.journal
    j.rows = <char *>header + BUFFER_HEADER_SIZE
    j.capacity = header.rows
    j.texts = <SeenText *>calloc(TEXTS_SEEN, sizeof(SeenText))
    j.owners = <OwnerText *>calloc(capacity(a, REGION_CLIENTS), sizeof(OwnerText))
    return j.texts != NULL and j.owners != NULL
