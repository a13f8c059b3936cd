"""Commands one behind the other in one piece of memory, in the order of their numbers: frames are pieces of that."""

from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memmove

cdef extern from *:
    """
    #define BYTES_FIRST (1u << 16)         /* of the memory for commands */
    #define BYTES_KEPT (4u << 20)          /* more than this is let go of when nothing is left in it */
    """
    const uint64_t BYTES_FIRST, BYTES_KEPT


cdef struct Entry:
    uint64_t at  # counted from the first byte that was ever written
    uint64_t size


cdef struct Stretch:
    char *data
    uint64_t size
    uint64_t origin  # what `at` is of the first byte of `data`
    uint64_t used  # bytes, up to the end of the last
    uint64_t live  # bytes of what is kept
    bint scattered  # the bytes do not stand in the order of the numbers
    Entry *entries
    int64_t head
    int64_t count  # commands: the bytes of entries[head] and so many
    int64_t places


cdef inline void stretch_free(Stretch *kept) noexcept:
    free(kept.data)
    free(kept.entries)


cdef inline const char *bytes_at(Stretch *kept, Entry *entry) noexcept nogil:
    return kept.data + (entry.at - kept.origin)


cdef inline int stretch_room(Stretch *kept, uint64_t size, int64_t rows) except -1:
    """After this so many bytes of so many commands can be added, which cannot fail."""
    if kept.used + size > kept.size:
        move_bytes(kept, size)
    if kept.head + kept.count + rows > kept.places:
        move_entries(kept, rows)
    return 0


cdef inline int move_bytes(Stretch *kept, uint64_t size) except -1:
    """To the start of the memory if that makes enough room, else into a larger one."""
    cdef uint64_t first = 0, larger = kept.size if kept.size else BYTES_FIRST, to = 0
    cdef int64_t at
    cdef Entry *entry
    cdef char *made
    if kept.count and not kept.scattered:
        first = kept.entries[kept.head].at - kept.origin
        if (kept.used - first + size) * 2 <= kept.size:
            memmove(kept.data, kept.data + first, kept.used - first)
            kept.origin += first
            kept.used -= first
            return 0
    while (kept.live + size) * 2 > larger:
        larger *= 2
    made = <char *>malloc(larger)
    if made == NULL:
        raise MemoryError(f"{larger} bytes for commands that are not acknowledged")
    for at in range(kept.head, kept.head + kept.count):
        entry = kept.entries + at
        memcpy(made + to, bytes_at(kept, entry), entry.size)
        entry.at = to
        to += entry.size
    free(kept.data)
    kept.data, kept.size, kept.origin, kept.used, kept.scattered = made, larger, 0, to, False
    return 0


cdef inline int move_entries(Stretch *kept, int64_t rows) except -1:
    cdef int64_t places = kept.places if kept.places else 1_024
    cdef Entry *made
    if kept.head and (kept.count + rows) * 2 <= places:
        memmove(kept.entries, kept.entries + kept.head, kept.count * sizeof(Entry))
        kept.head = 0
        return 0
    while (kept.count + rows) * 2 > places:
        places *= 2
    made = <Entry *>malloc(places * sizeof(Entry))
    if made == NULL:
        raise MemoryError(f"a list of {places} commands that are not acknowledged")
    if kept.count:
        memcpy(made, kept.entries + kept.head, kept.count * sizeof(Entry))
    free(kept.entries)
    kept.entries, kept.places, kept.head = made, places, 0
    return 0


cdef inline char *stretch_add(Stretch *kept, uint64_t size) noexcept nogil:
    """Add a command of that size, which the caller writes; there is room."""
    cdef Entry *entry = kept.entries + (kept.head + kept.count)
    cdef char *written = kept.data + kept.used
    entry.at, entry.size = kept.origin + kept.used, size
    kept.used += size
    kept.live += size
    kept.count += 1
    return written


cdef inline int stretch_replace(Stretch *kept, Entry *entry, const char *command, uint64_t size) except -1:
    """Give the entry to another command, which may be larger."""
    if size > entry.size:
        if kept.used + size > kept.size:
            move_bytes(kept, size)
        entry.at = kept.origin + kept.used
        kept.used += size
        kept.scattered = True
    kept.live = kept.live - entry.size + size
    entry.size = size
    memcpy(<char *>bytes_at(kept, entry), command, size)
    return 0


cdef inline int64_t stretch_fit(Entry *first, int64_t count, uint64_t size) noexcept nogil:
    """How many of these make a frame: `count`, or half of that until they have `size` bytes."""
    cdef uint64_t total
    cdef int64_t at
    while True:
        total = 0
        for at in range(count):
            total += first[at].size
        if total <= size:
            return count
        count = (count + 1) // 2


cdef inline void stretch_copy(Stretch *kept, Entry *first, int64_t count, char *to) noexcept nogil:
    """The bytes of these commands, one behind the other."""
    cdef int64_t at = 0
    cdef uint64_t end
    cdef Entry *start
    while at < count:
        start = first + at
        end = start.at
        while at < count and first[at].at == end:
            end += first[at].size
            at += 1
        memcpy(to, bytes_at(kept, start), end - start.at)
        to += end - start.at


cdef inline void stretch_drop(Stretch *kept, int64_t count) noexcept:
    """Let go of the first ones."""
    cdef int64_t at
    for at in range(kept.head, kept.head + min(count, kept.count)):
        kept.live -= kept.entries[at].size
    kept.head += count
    kept.count -= count
    if kept.count <= 0:
        stretch_clear(kept)


cdef inline void stretch_clear(Stretch *kept) noexcept:
    kept.head = kept.count = 0
    kept.used = kept.live = kept.origin = 0
    kept.scattered = False
    if kept.size > BYTES_KEPT:
        free(kept.data)
        kept.data, kept.size = NULL, 0
