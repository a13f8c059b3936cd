"""The core takes and releases the memory of Python's objects: the arena, the journal's buffer, a frame.

An arena is attached in a fixed order. First the header is checked. Then a transaction that a crash has cut off is
finished, because it may change words with which the region table is compared. Then the table is checked. Only then is
any offset followed.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset
from timerd.purgatory.memory.arena cimport Arena
from timerd.purgatory.memory.before_images cimport td_begin_images, td_end_images, td_image_room, td_images
from timerd.purgatory.memory.builtins cimport CACHE_LINE
from timerd.purgatory.memory.faults cimport faults_beside, faults_nothing_beside
from timerd.purgatory.memory.hash cimport Seed
from timerd.purgatory.memory.transaction cimport TD_DEFECT
from timerd.purgatory.journal.buffer cimport buffer_is_sound, make_texts
from timerd.purgatory.journal.rows cimport open_journal, tend_journal
from timerd.purgatory.commands.frame cimport receive_frame
from timerd.purgatory.turn.duty_cycle cimport take_time
from timerd.purgatory.start.attach cimport attach_arena, drop_rooms
from timerd.purgatory.start.redo cimport finish_transaction, redo_is_sound
from timerd.purgatory.start.validate cimport Damage
from timerd_shm.generated.records cimport *

from .arguments cimport refusals


ctypedef struct Taken:
    # The memory of a Python object. It stays in its place as long as it is taken.
    Py_buffer buffer
    bint taken


cdef inline int take(Taken *memory, source) except -1:
    PyObject_GetBuffer(source, &memory.buffer, PyBUF_SIMPLE | PyBUF_WRITABLE)
    memory.taken = True
    return 0


cdef inline void let_go(Taken *memory):
    if memory.taken:
        PyBuffer_Release(&memory.buffer)
        memory.taken = False


cdef inline uint64_t attach_checked(Arena *a, view, uint64_t now_ns) except? 0xFFFFFFFFFFFFFFFF:
    """Attach the taken memory, whose bytes are `view`. Returns how many words of a cut-off transaction it stored."""
    from timerd.purgatory.start import header
    cdef Damage damage
    cdef uint64_t replayed
    cdef bint made
    memset(&damage, 0, sizeof(damage))
    header.check_header(view, LAYOUT_FINGERPRINT ^ (1 if TD_DEFECT(DEFECT_STALE_CONSTANT) else 0))
    a.header = <ArenaHeader *>a.base
    if not redo_is_sound(a):
        raise header.damaged(f"its redo slot (count {a.header.redo_count})")
    replayed = finish_transaction(a)
    header.check_regions(view)
    with nogil:
        made = attach_arena(a, now_ns, &damage)
    if damage.found:
        raise header.damaged_record(damage.region, damage.index)
    if not made:
        raise MemoryError("no memory for what the core remembers beside the arena")
    if replayed:
        a.daemon[DAEMON_REDO_REPLAYED] += 1
    a.daemon[DAEMON_STARTS] += 1
    return replayed


cdef inline void drop_arena(Arena *a, Taken *memory):
    """Free the state of the rooms, and release the arena's memory."""
    drop_rooms(a)
    memset(a, 0, sizeof(Arena))
    let_go(memory)


cdef inline uint64_t attach_memory(
    Arena *a, Taken *memory, source, uint64_t now_ns, bytes seed
) except? 0xFFFFFFFFFFFFFFFF:
    """Take an arena's memory and attach it. Returns how many words of a cut-off transaction were stored again."""
    if memory.taken:
        raise refusals().attached_already()
    if len(seed) != sizeof(Seed):
        raise refusals().no_seed(len(seed))
    take(memory, source)
    if not TD_DEFECT(DEFECT_WEAK_HASH):  # with the defect the seed is 0, which is no secret
        memcpy(&a.seed, PyBytes_AS_STRING(seed), sizeof(Seed))
    a.base = <char *>memory.buffer.buf
    try:
        with memoryview(source) as view, view.cast("B") as octets:
            return attach_checked(a, octets, now_ns)
    except BaseException:
        drop_arena(a, memory)
        raise


cdef inline int begin_log(Arena *a, Taken *images, source) except -1:
    """Take the memory of a log, all zero. From now on a line's present bytes are logged before a store changes them."""
    cdef uint64_t lines = a.header.size // CACHE_LINE
    if td_images != NULL or images.taken:
        raise refusals().copied_already()
    take(images, source)
    if not td_image_room(images.buffer.len, lines):
        let_go(images)
        raise refusals().no_log(images.buffer.len, lines)
    td_begin_images(images.buffer.buf, images.buffer.len, a.base, a.header.size)
    return 0


cdef inline void end_log(Taken *images):
    """Stop logging, and release the log. A second call changes nothing."""
    if images.taken:
        td_end_images(images.buffer.buf)
        let_go(images)


cdef inline void release_memory(Arena *a, Taken *memory, Taken *journal, Taken *images):
    """Release all memory. A second call changes nothing."""
    end_log(images)
    if memory.taken:
        drop_arena(a, memory)
    if journal.taken:
        faults_nothing_beside(<const char *>journal.buffer.buf)
        let_go(journal)


cdef inline bint open_buffer(
    Arena *a, Taken *journal, source, uint32_t level, uint64_t segment_rows, uint64_t written, uint64_t now_ns
) except? 0:
    """Take the journal's buffer and begin a segment in it. Returns whether the segment continues the earlier rows."""
    cdef BufferHeader *header
    cdef bint continues
    if journal.taken or not JOURNAL_LEVEL_NONE < level < JOURNAL_LEVEL_COUNT:
        raise refusals().invalid_level(level)
    take(journal, source)
    header = <BufferHeader *>journal.buffer.buf
    if not buffer_is_sound(a, header, journal.buffer.len, segment_rows):
        raise refusals().no_buffer(journal.buffer.len)
    if not written <= a.header.journal_rows <= written + header.rows:
        raise refusals().buffer_ends_elsewhere(written, a.header.journal_rows, header.rows)
    take_time(a, now_ns)
    if not make_texts(a, header):
        raise MemoryError("no memory for the journal's texts")
    faults_beside(<const char *>journal.buffer.buf, journal.buffer.len)
    with nogil:
        continues = open_journal(a, level, segment_rows, written)
    return continues


cdef inline bint tend_buffer(Arena *a, uint64_t written, uint64_t wall_ns, uint64_t records) except? 0:
    """Do a turn's work for the journal, whose rows up to `written` stand in files. Returns whether work is left."""
    cdef bint left
    if a.journal.level == 0 or not a.journal.tail <= written <= a.journal.head:
        raise refusals().rows_not_in_buffer(written, a.journal.tail, a.journal.head, a.journal.level)
    with nogil:
        left = tend_journal(a, written, wall_ns, records)
    return left


cdef inline int receive(Arena *a, uint32_t slot, frame) except -1:
    """Receive a frame's bytes from a client."""
    cdef Py_buffer view
    cdef int status
    PyObject_GetBuffer(frame, &view, PyBUF_SIMPLE)
    with nogil:
        status = receive_frame(a, slot, <const uint8_t *>view.buf, view.len)
    PyBuffer_Release(&view)
    return status
