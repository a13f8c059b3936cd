"""Unacknowledged commands, one after another in one piece of memory. A frame is copied from a part of this memory.

The commands lie in the order of their numbers, until a command is replaced by a longer one (`scattered`).
"""

from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcpy, memmove

cdef extern from *:
    """
    #define BYTES_FIRST (1u << 16)         /* bytes of the first memory for commands */
    #define BYTES_KEPT (4u << 20)          /* a larger memory is freed when it is empty */
    """
    const uint64_t BYTES_FIRST, BYTES_KEPT


cdef struct Entry:
    uint64_t at  # the offset of its first byte; `origin` is the offset of data[0]
    uint64_t size


cdef struct CommandBuffer:
    char *data
    uint64_t size
    uint64_t origin  # the offset of data[0]
    uint64_t used  # bytes up to the end of the last command
    uint64_t live  # bytes of the commands that are kept
    bint scattered  # the bytes are not in the order of the numbers
    Entry *entries
    int64_t head
    int64_t count  # commands: entries[head] is the first one
    int64_t capacity


cdef inline void buffer_free(CommandBuffer *buffer) noexcept:
    PyMem_RawFree(buffer.data)
    PyMem_RawFree(buffer.entries)


cdef inline const char *bytes_at(CommandBuffer *buffer, Entry *entry) noexcept nogil:
    return buffer.data + (entry.at - buffer.origin)


cdef inline int buffer_reserve(CommandBuffer *buffer, uint64_t size, int64_t rows) except -1:
    """Make room for `rows` commands with `size` bytes in all: adding them then cannot fail."""
    if buffer.used + size > buffer.size:
        move_bytes(buffer, size)
    if buffer.head + buffer.count + rows > buffer.capacity:
        move_entries(buffer, rows)
    return 0


cdef inline int move_bytes(CommandBuffer *buffer, uint64_t size) except -1:
    """Move the commands to the start of the memory if they are in order and half is enough, else to a new memory."""
    cdef uint64_t first = 0, larger = buffer.size if buffer.size else BYTES_FIRST, to = 0
    cdef int64_t at
    cdef Entry *entry
    cdef char *made
    if buffer.count and not buffer.scattered:
        first = buffer.entries[buffer.head].at - buffer.origin
        if (buffer.used - first + size) * 2 <= buffer.size:
            memmove(buffer.data, buffer.data + first, buffer.used - first)
            buffer.origin += first
            buffer.used -= first
            return 0
    while (buffer.live + size) * 2 > larger:
        larger *= 2
    made = <char *>PyMem_RawMalloc(larger)
    if made == NULL:
        raise MemoryError(f"{larger} bytes for commands that are not acknowledged")
    for at in range(buffer.head, buffer.head + buffer.count):
        entry = buffer.entries + at
        memcpy(made + to, bytes_at(buffer, entry), entry.size)
        entry.at = to
        to += entry.size
    PyMem_RawFree(buffer.data)
    buffer.data, buffer.size, buffer.origin, buffer.used, buffer.scattered = made, larger, 0, to, False
    return 0


cdef inline int move_entries(CommandBuffer *buffer, int64_t rows) except -1:
    cdef int64_t capacity = buffer.capacity if buffer.capacity else 1_024
    cdef Entry *made
    if buffer.head and (buffer.count + rows) * 2 <= capacity:
        memmove(buffer.entries, buffer.entries + buffer.head, buffer.count * sizeof(Entry))
        buffer.head = 0
        return 0
    while (buffer.count + rows) * 2 > capacity:
        capacity *= 2
    made = <Entry *>PyMem_RawMalloc(capacity * sizeof(Entry))
    if made == NULL:
        raise MemoryError(f"a list of {capacity} commands that are not acknowledged")
    if buffer.count:
        memcpy(made, buffer.entries + buffer.head, buffer.count * sizeof(Entry))
    PyMem_RawFree(buffer.entries)
    buffer.entries, buffer.capacity, buffer.head = made, capacity, 0
    return 0


cdef inline char *buffer_add(CommandBuffer *buffer, uint64_t size) noexcept nogil:
    """Add a command of this size. The caller writes the command's bytes. There must be room."""
    cdef Entry *entry = buffer.entries + (buffer.head + buffer.count)
    cdef char *written = buffer.data + buffer.used
    entry.at, entry.size = buffer.origin + buffer.used, size
    buffer.used += size
    buffer.live += size
    buffer.count += 1
    return written


cdef inline int buffer_replace(CommandBuffer *buffer, Entry *entry, const char *command, uint64_t size) except -1:
    """Replace the command of an entry. The new command may be longer."""
    if size > entry.size:
        if buffer.used + size > buffer.size:
            move_bytes(buffer, size)
        entry.at = buffer.origin + buffer.used
        buffer.used += size
        buffer.scattered = True
    buffer.live = buffer.live - entry.size + size
    entry.size = size
    memcpy(<char *>bytes_at(buffer, entry), command, size)
    return 0


cdef inline int64_t buffer_fit(Entry *first, int64_t count, uint64_t size) noexcept nogil:
    """How many commands from `first` on fit into a frame of `size` bytes: `count`, half of it, a quarter, and so on."""
    cdef uint64_t total
    cdef int64_t at
    while True:
        total = 0
        for at in range(count):
            total += first[at].size
        if total <= size:
            return count
        count = (count + 1) // 2


cdef inline void buffer_copy(CommandBuffer *buffer, Entry *first, int64_t count, char *to) noexcept nogil:
    """Copy the bytes of these commands, one after another."""
    cdef int64_t at = 0
    cdef uint64_t end
    cdef Entry *start
    while at < count:
        start = first + at
        end = start.at
        while at < count and first[at].at == end:
            end += first[at].size
            at += 1
        memcpy(to, bytes_at(buffer, start), end - start.at)
        to += end - start.at


cdef inline void buffer_drop(CommandBuffer *buffer, int64_t count) noexcept:
    """Remove the first commands."""
    cdef int64_t at
    for at in range(buffer.head, buffer.head + min(count, buffer.count)):
        buffer.live -= buffer.entries[at].size
    buffer.head += count
    buffer.count -= count
    if buffer.count <= 0:
        buffer_clear(buffer)


cdef inline void buffer_clear(CommandBuffer *buffer) noexcept:
    buffer.head = buffer.count = 0
    buffer.used = buffer.live = buffer.origin = 0
    buffer.scattered = False
    if buffer.size > BYTES_KEPT:
        PyMem_RawFree(buffer.data)
        buffer.data, buffer.size = NULL, 0
