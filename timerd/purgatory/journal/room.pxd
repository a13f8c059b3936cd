"""Room for rows: where the next row stands, when a segment or a turn begins, and how many rows were dropped."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memset
from timerd.purgatory.memory.arena cimport Arena, effective_ns
from timerd.purgatory.memory.transaction cimport TD_DEFECT, td_put
from timerd_shm.generated.records cimport *

from .state cimport Journal

cdef extern from *:
    """
    enum {
        TEXTS_SEEN = 4096, /* a power of two */
        TEXT_ROWS_MAX = (KEY_SIZE_MAX + TEXT_INLINE - 1) / TEXT_INLINE, /* for a key's text; other texts take one row */
        OUTCOME_ROWS_MAX = 1 + TEXT_ROWS_MAX + 3, /* with the texts of a key, an owner, a purgatory and an id */
        EVENT_ROWS_MAX = 1 + TEXT_ROWS_MAX + 2,   /* with the texts of a key, an owner and a purgatory */
        ACTION_ROWS_MAX = 1 + 1,                  /* with the text of an owner */
        GROUP_ROWS_MAX = 1 + 2,                   /* with the texts of an owner and a group */
    };
    _Static_assert((TEXTS_SEEN & (TEXTS_SEEN - 1)) == 0, "a text's position is its hash with a mask");
    _Static_assert(16 + NAME_SIZE_MAX <= TEXT_INLINE, "the texts of clients, groups, purgatories and ids take a row each");
    """
    enum:
        TEXTS_SEEN
        TEXT_ROWS_MAX
        OUTCOME_ROWS_MAX
        EVENT_ROWS_MAX
        ACTION_ROWS_MAX
        GROUP_ROWS_MAX


cdef inline void *row_at(Journal *j, uint64_t number) noexcept nogil:
    return j.rows + (number & (j.capacity - 1)) * ROW_SIZE


cdef inline void *next_row(Journal *j, uint32_t kind) noexcept nogil:
    """The next row, after the staged ones. The caller has asked journal_room()."""
    cdef uint8_t *row = <uint8_t *>row_at(j, j.head + j.staged)
    j.staged += 1
    row[0] = kind
    return row


cdef inline bint turn_is_noted(Arena *a) noexcept nogil:
    """Whether the newest TURN row is of the present turn. Level OUTCOMES has no such rows."""
    cdef Journal *j = &a.journal
    if j.level != JOURNAL_LEVEL_EVENTS or (TD_DEFECT(DEFECT_TURN_NOT_NOTED) and j.turn_ns):
        return True
    return j.turn_ns == a.turn.now_ns and j.turn_effective_ns == effective_ns(a)


cdef inline void measure_room(Arena *a) noexcept nogil:
    """Set `room`: the row number at which the segment or the buffer is full; 0 before a turn's first row."""
    cdef Journal *j = &a.journal
    cdef uint64_t buffer = j.tail + j.capacity, segment = j.segment + j.segment_rows
    j.room = min(buffer, segment) if turn_is_noted(a) else 0


cdef inline uint64_t next_block(uint64_t row) noexcept nogil:
    """The number of the first row, `row` or later, at which a block begins."""
    return (row + BLOCK_ROWS - 1) // BLOCK_ROWS * BLOCK_ROWS


cdef inline void begin_segment(Arena *a, uint64_t at, uint32_t flags) noexcept nogil:
    """Write PAD rows up to row `at`, the first of a block. A segment begins there. The caller has checked the room."""
    cdef Journal *j = &a.journal
    cdef SegmentRow *row
    while j.head + j.staged < at:  # bound: BLOCK_ROWS
        memset(next_row(j, ROW_KIND_PAD), 0, ROW_SIZE)
    row = <SegmentRow *>next_row(j, ROW_KIND_SEGMENT)
    memset(<uint8_t *>row + 1, 0, sizeof(SegmentRow) - 1)
    row.level = j.level
    row.flags = flags
    row.incarnation = a.header.incarnation
    row.monotonic_ns = a.turn.now_ns
    row.newest = max(a.header.newest, j.newest)
    row.start = a.daemon[DAEMON_STARTS]
    row.kept_ns = a.header.group_kept_ns
    j.segment = at
    j.opening = 0
    j.turn_ns = 0
    if flags & ROW_FLAG_START and not flags & ROW_FLAG_CONTINUES:
        td_put(&a.tx, &a.header.journal_level, j.level | (SNAPSHOT_UNFINISHED if j.level == JOURNAL_LEVEL_EVENTS else 0))


cdef inline void put_turn(Arena *a) noexcept nogil:
    """The TURN row of the present turn."""
    cdef Journal *j = &a.journal
    cdef TurnRow *row = <TurnRow *>next_row(j, ROW_KIND_TURN)
    memset(<uint8_t *>row + 1, 0, sizeof(TurnRow) - 1)
    row.now_ns = j.turn_ns = a.turn.now_ns
    row.effective_ns = j.turn_effective_ns = effective_ns(a)
    row.newest = max(a.header.newest, j.newest)


cdef inline void drop_rows(Arena *a, uint32_t rows) noexcept nogil:
    """Count rows as dropped, in the transaction being staged: a crash before its commit undoes the count, too."""
    cdef Journal *j = &a.journal
    if j.lost == 0:
        j.lost_from_ns = a.turn.now_ns
    j.lost_to_ns = a.turn.now_ns
    j.lost += rows
    j.dropping += rows


cdef inline bint make_journal_room(Arena *a, uint32_t rows) noexcept nogil:
    """Make sure that `rows` rows can follow; False if the buffer is full.

    As needed, it begins a segment, and writes a GAP row and a TURN row. With `rows` 0 it writes no TURN row, because no
    row follows.
    """
    cdef Journal *j = &a.journal
    cdef uint64_t at = j.head + j.staged, end = j.segment + j.segment_rows, until = at + rows + 2
    cdef bint begins = j.opening != 0 or until > end
    cdef GapRow *gap
    if begins:
        if j.opening or end < at:
            end = next_block(at)
        until += end - at + 1
    if j.lost:
        # A gap ends when an eighth of the buffer is free: one gap is easier to read than a thousand.
        until += j.capacity // 8
    if until > j.tail + j.capacity:
        return False
    if begins:
        begin_segment(a, end, j.opening if j.opening else ROW_FLAG_CONTINUES)
    if j.lost:
        gap = <GapRow *>next_row(j, ROW_KIND_GAP)
        memset(<uint8_t *>gap + 1, 0, sizeof(GapRow) - 1)
        gap.rows = j.lost
        gap.from_ns = j.lost_from_ns
        gap.to_ns = j.lost_to_ns
        j.reported += j.lost
        j.lost = 0
    if rows and not turn_is_noted(a):
        put_turn(a)
    measure_room(a)
    return True


cdef inline bint journal_room(Arena *a, uint32_t rows, uint32_t lost) noexcept nogil:
    """Whether up to `rows` rows can follow; if not, `lost` of them are counted as dropped."""
    cdef Journal *j = &a.journal
    if j.lost == 0 and j.opening == 0 and j.head + j.staged + rows <= j.room:
        return True
    if make_journal_room(a, rows):
        return True
    drop_rows(a, lost)
    return False
