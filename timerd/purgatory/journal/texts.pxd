"""Texts of the journal: names and ids. Each is written once in a segment, or again if the core has forgotten where it
stands. Other rows name a text by the number of its row.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset
from timerd.purgatory.memory.arena cimport Arena
from timerd.purgatory.memory.blob cimport copy_blob
from timerd.purgatory.memory.bytes cimport copy_short, same_short
from timerd_shm.generated.records cimport *

from .state cimport Journal, OwnerText, SeenText
from .room cimport TEXTS_SEEN, next_row, row_at


cdef inline bint text_is(Journal *j, uint64_t number, uint32_t kind, const uint8_t *text, uint32_t length) noexcept nogil:
    """Whether the TEXT row of that number is this text. The row is in the buffer."""
    cdef TextRow *row = <TextRow *>row_at(j, number)
    cdef uint32_t piece
    if row.text_kind != kind or row.length != length:
        return False
    while length:  # bound: KEY_SIZE_MAX bytes
        piece = length if length < TEXT_INLINE else TEXT_INLINE
        if not same_short((<TextRow *>row_at(j, number)).text, text, piece):
            return False
        text += piece
        length -= piece
        number += 1
    return True


cdef inline uint64_t put_text(Journal *j, uint32_t kind, const uint8_t *text, uint32_t length) noexcept nogil:
    """Write a TEXT row, and the rows that continue it. Returns the number of the TEXT row."""
    cdef uint64_t number = j.head + j.staged
    cdef uint32_t piece, rest = length, row_kind = ROW_KIND_TEXT
    cdef TextRow *row
    while True:  # bound: KEY_SIZE_MAX bytes
        row = <TextRow *>next_row(j, row_kind)
        memset(&row.text_kind, 0, sizeof(TextRow) - 1)
        row.text_kind = kind
        row.length = length
        piece = rest if rest < TEXT_INLINE else TEXT_INLINE
        copy_short(row.text, text, piece)
        text += piece
        rest -= piece
        if rest == 0:
            return number
        row_kind = ROW_KIND_CONTINUED
        kind = length = 0


cdef inline uint32_t text_of(Arena *a, uint32_t kind, uint64_t hash, const uint8_t *text, uint32_t length) noexcept nogil:
    """The number of a text's row, counted from the beginning of the segment."""
    cdef Journal *j = &a.journal
    cdef SeenText *seen = j.texts + (hash & (TEXTS_SEEN - 1))
    if (
        seen.hash == hash
        and seen.row > j.segment
        and seen.row + j.capacity > j.head + j.staged
        and text_is(j, seen.row, kind, text, length)
    ):
        return <uint32_t>(seen.row - j.segment)
    seen.hash = hash
    seen.row = put_text(j, kind, text, length)
    return <uint32_t>(seen.row - j.segment)


cdef inline uint32_t name_text(
    Arena *a, uint64_t hash, const uint8_t *inlined, uint32_t blob, uint32_t length
) noexcept nogil:
    """The row of the text of a key's name. The name stands inlined or in a blob."""
    cdef uint8_t name[KEY_SIZE_MAX]
    if blob == 0:
        return text_of(a, TEXT_KIND_KEY, hash, inlined, length)
    copy_blob(a, blob, name)
    return text_of(a, TEXT_KIND_KEY, hash, name, length)


cdef inline uint32_t key_text(Arena *a, WatchNode *node) noexcept nogil:
    return name_text(a, node.hash, node.name, node.name_blob, node.name_length)


cdef inline uint32_t watermark_text(Arena *a, WatermarkRecord *w) noexcept nogil:
    return name_text(a, w.hash, w.name, w.name_blob, w.name_length)


cdef inline uint32_t event_key_text(Arena *a, EventRecord *e) noexcept nogil:
    return name_text(a, e.key_hash, e.key, e.key_blob, e.key_length)


cdef inline uint32_t client_text(Arena *a, uint32_t slot, uint32_t generation) noexcept nogil:
    """The row of a client's text, 0 if another client has the slot now."""
    cdef Journal *j = &a.journal
    cdef ClientRecord *c = a.clients + slot
    cdef OwnerText *owner = j.owners + slot
    cdef uint8_t text[TEXT_INLINE]
    if generation == 0 or c.generation != generation:
        return 0
    if owner.row <= j.segment or owner.generation != generation:
        memcpy(text, &c.incarnation_low, 16)
        copy_short(text + 16, c.name, c.name_length)
        owner.row = put_text(j, TEXT_KIND_CLIENT, text, 16 + c.name_length)
        owner.generation = generation
    return <uint32_t>(owner.row - j.segment)


cdef inline uint32_t group_text(Arena *a, uint32_t group) noexcept nogil:
    """The row of a group's (index + 1) text, 0 if there is no group."""
    cdef GroupRecord *g = a.groups + (group - 1)
    return text_of(a, TEXT_KIND_GROUP, group, g.name, g.name_length) if group else 0


cdef inline uint32_t owner_text(Arena *a, OpRecord *op) noexcept nogil:
    """The row of the text of an operation's client, or of its group while the outcome is delivered to no member."""
    if op.client_generation == 0 and op.group:
        return group_text(a, op.group)
    return client_text(a, op.client, op.client_generation)


cdef inline uint32_t purgatory_text(Arena *a, uint32_t index) noexcept nogil:
    cdef Journal *j = &a.journal
    cdef PurgatoryRecord *p = a.purgatories + index
    if j.purgatories[index] <= j.segment:
        j.purgatories[index] = put_text(j, TEXT_KIND_PURGATORY, p.name, p.name_length)
    return <uint32_t>(j.purgatories[index] - j.segment)


cdef inline uint32_t id_text(Arena *a, OpRecord *op) noexcept nogil:
    cdef IdRecord *known
    if op.id_record == 0:
        return 0
    known = a.ids + (op.id_record - 1)
    return text_of(a, TEXT_KIND_ID, known.chain_hash, <const uint8_t *>&known.hash_low, 16)
