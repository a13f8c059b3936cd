"""The journal's rows, as the core writes them (shm_layout/timerd_shm/declare/journal.py has their fields).

A row is written into the buffer where nothing reaches it, behind the last one, and becomes true in the transaction of
what it tells: commit() moves header.journal_rows with the other words. So there is a row for exactly what happened, once,
whatever is killed; nothing has to be found out by a start. The buffer is shared memory and outlives the daemon as the
arena does. The writer (journal/writer.py) takes rows from it into files, and says which may be overwritten: the rows below `tail`.

Nothing here waits. When the buffer is full, rows are dropped and counted, and when there is room again a GAP row says how
many, before anything else. Rows that belong together (a registration and its keys) are written together or not at all.

Texts are named by the record of their TEXT row in the same segment. `texts` remembers by hash where some of them stand; a
row is compared before it is believed, and what has left the buffer is written again. With unique keys that is one TEXT row
for each outcome.

What calls this stages everything else first, and commits: between a staged row and its commit nothing may be given up.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset
from timerd.purgatory.memory.arena cimport Arena, key_of, node_of, op_id
from timerd.purgatory.memory.blob cimport blob_length, copy_blob
from timerd.purgatory.memory.bytes cimport copy_short, same_short
from timerd.purgatory.memory.commit cimport commit
from timerd.purgatory.memory.transaction cimport td_put
from timerd_shm.generated.records cimport *

from .state cimport Journal, OwnerText, SeenText


cdef extern from *:
    """
    enum {
        TEXTS_SEEN = 4096, /* a power of two */
        TEXT_ROWS_MAX = (KEY_SIZE_MAX + TEXT_INLINE - 1) / TEXT_INLINE, /* of a key; of any other text one row */
        OUTCOME_ROWS_MAX = 1 + TEXT_ROWS_MAX + 3, /* with the texts of a key, an owner, a purgatory and an id */
        EVENT_ROWS_MAX = 1 + TEXT_ROWS_MAX + 2,   /* of a key, an owner and a purgatory */
        ACTION_ROWS_MAX = 1 + 1,                  /* of an owner */
        GROUP_ROWS_MAX = 1 + 2,                   /* of an owner and a group */
    };
    _Static_assert((TEXTS_SEEN & (TEXTS_SEEN - 1)) == 0, "a text's place is its hash with a mask");
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
    """A row behind those that are staged. The caller has seen journal_room."""
    cdef uint8_t *row = <uint8_t *>row_at(j, j.head + j.staged)
    j.staged += 1
    row[0] = kind
    return row


cdef inline void measure_room(Journal *j) noexcept nogil:
    """How far rows may go before the segment or the buffer is full."""
    cdef uint64_t buffer = j.tail + j.capacity, segment = j.segment + j.segment_rows
    j.room = buffer if buffer < segment else segment


cdef inline uint64_t next_block(uint64_t row) noexcept nogil:
    """The first row of a block that is not before `row`."""
    return (row + BLOCK_ROWS - 1) // BLOCK_ROWS * BLOCK_ROWS


cdef inline void begin_segment(Arena *a, uint64_t at, uint32_t flags) noexcept nogil:
    """Fill up to row `at`, the first of a block, and begin a segment there. There is room."""
    cdef Journal *j = &a.journal
    cdef SegmentRow *row
    while j.head + j.staged < at:
        memset(next_row(j, ROW_KIND_PAD), 0, ROW_SIZE)
    row = <SegmentRow *>next_row(j, ROW_KIND_SEGMENT)
    memset(<uint8_t *>row + 1, 0, sizeof(SegmentRow) - 1)
    row.level = j.level
    row.flags = flags
    row.incarnation = a.header.incarnation
    row.monotonic_ns = a.turn.now_ns
    row.newest = a.header.newest
    j.segment = at
    j.opening = 0
    if flags & ROW_FLAG_START and j.level == JOURNAL_LEVEL_OUTCOMES:
        td_put(&a.tx, &a.header.journal_level, j.level)  # with EVENTS, at the end of the snapshot


cdef inline void drop_rows(Arena *a, uint32_t rows) noexcept nogil:
    """Count rows as dropped in the transaction being staged: what is cut off is done again, and its rows with it."""
    cdef Journal *j = &a.journal
    if j.lost == 0:
        j.lost_from_ns = a.turn.now_ns
    j.lost_to_ns = a.turn.now_ns
    j.lost += rows
    j.dropping += rows


cdef inline bint make_journal_room(Arena *a, uint32_t rows) noexcept nogil:
    """See that so many rows can follow: begin a segment, tell a gap; False if the buffer is full."""
    cdef Journal *j = &a.journal
    cdef uint64_t at = j.head + j.staged, end = j.segment + j.segment_rows, until = at + rows + 1
    cdef bint begins = j.opening != 0 or until > end
    cdef GapRow *gap
    if begins:
        if j.opening or end < at:
            end = next_block(at)
        until += end - at + 1
    if j.lost:
        until += j.capacity // 8  # one gap is easier to read than a thousand
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
        j.told += j.lost
        j.lost = 0
    measure_room(j)
    return True


cdef inline bint journal_room(Arena *a, uint32_t rows, uint32_t told) noexcept nogil:
    """Whether up to so many rows can follow; if not, `told` rows are counted as dropped."""
    cdef Journal *j = &a.journal
    if j.lost == 0 and j.opening == 0 and j.head + j.staged + rows <= j.room:
        return True
    if make_journal_room(a, rows):
        return True
    drop_rows(a, told)
    return False


cdef inline bint text_is(Journal *j, uint64_t number, uint32_t kind, const uint8_t *text, uint32_t length) noexcept nogil:
    """Whether the TEXT row of that number says so. It is in the buffer."""
    cdef TextRow *row = <TextRow *>row_at(j, number)
    cdef uint32_t piece
    if row.text_kind != kind or row.length != length:
        return False
    while length:
        piece = length if length < TEXT_INLINE else TEXT_INLINE
        if not same_short((<TextRow *>row_at(j, number)).text, text, piece):
            return False
        text += piece
        length -= piece
        number += 1
    return True


cdef inline uint64_t put_text(Journal *j, uint32_t kind, const uint8_t *text, uint32_t length) noexcept nogil:
    """A TEXT row and those that continue it; the number of the first."""
    cdef uint64_t number = j.head + j.staged
    cdef uint32_t piece, rest = length, row_kind = ROW_KIND_TEXT
    cdef TextRow *row
    while True:
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
    """The record of a text in the present segment."""
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


cdef inline uint32_t key_text(Arena *a, KeyRecord *key) noexcept nogil:
    cdef uint8_t name[KEY_SIZE_MAX]
    if key.name_blob == 0:
        return text_of(a, TEXT_KIND_KEY, key.hash, key.name, key.name_length)
    copy_blob(a, key.name_blob, name)
    return text_of(a, TEXT_KIND_KEY, key.hash, name, key.name_length)


cdef inline uint32_t event_key_text(Arena *a, EventRecord *e) noexcept nogil:
    cdef uint8_t name[KEY_SIZE_MAX]
    if e.key_blob == 0:
        return text_of(a, TEXT_KIND_KEY, e.key_hash, e.key, e.key_length)
    copy_blob(a, e.key_blob, name)
    return text_of(a, TEXT_KIND_KEY, e.key_hash, name, e.key_length)


cdef inline uint32_t client_text(Arena *a, uint32_t slot, uint32_t generation) noexcept nogil:
    """The text of a client, 0 if that slot is another's now."""
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
    """The text of a group (index + 1), 0 if there is none."""
    cdef GroupRecord *g = a.groups + (group - 1)
    return text_of(a, TEXT_KIND_GROUP, group, g.name, g.name_length) if group else 0


cdef inline uint32_t owner_text(Arena *a, OpRecord *op) noexcept nogil:
    """The text of an operation's client, or of its group while nobody is told."""
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
    return text_of(a, TEXT_KIND_ID, known.hash_low, <const uint8_t *>&known.hash_low, 16)


cdef inline void put_outcome(
    Arena *a, OpRecord *op, uint32_t outcome, uint32_t settled_key, uint32_t op_flags, EventRecord *e, uint32_t error,
    uint64_t sequence,
) noexcept nogil:
    cdef OutcomeRow *row
    cdef uint32_t node = op.first_node, ordinal = settled_key, key, owner, purgatory, id, flags = 0
    if not journal_room(a, OUTCOME_ROWS_MAX, 1):
        return
    if e != NULL:
        key = event_key_text(a, e)
    else:
        while ordinal > 1:
            node = node_of(a, node - 1).next_of_op
            ordinal -= 1
        key = key_text(a, key_of(a, node_of(a, node - 1).key))
    owner = owner_text(a, op)
    purgatory = purgatory_text(a, op.purgatory)
    id = id_text(a, op)
    if op_flags & OP_FLAG_HANDED_OVER:
        flags |= ROW_FLAG_HANDED_OVER
    if op_flags & OP_FLAG_REDELIVERED:
        flags |= ROW_FLAG_REDELIVERED
    if op_flags & OP_FLAG_VALUE_DROPPED:
        flags |= ROW_FLAG_VALUE_DROPPED
    if op.state != OP_STATE_PENDING:
        flags |= ROW_FLAG_AT_REGISTRATION
    row = <OutcomeRow *>next_row(&a.journal, ROW_KIND_OUTCOME)
    row.outcome = outcome
    row.settled_key = settled_key
    row.flags = flags
    row.key = key
    row.operation = op_id(a, op)
    row.registered_ns = op.registered_ns
    row.deadline_ns = op.deadline_ns
    row.settled_ns = a.turn.now_ns
    row.sequence = sequence
    row.owner = owner
    row.error = error
    row.purgatory = purgatory
    row.id = id


cdef inline void journal_outcome(
    Arena *a, OpRecord *op, uint32_t outcome, uint32_t settled_key, uint32_t op_flags, EventRecord *e, uint32_t error
) noexcept nogil:
    """Tell that an operation settles in the transaction being staged; `op_flags` are those that it gets by it."""
    cdef uint64_t sequence
    if a.journal.level == 0:
        return
    if e != NULL:
        sequence = e.sequence
    else:
        sequence = a.header.newest if op.state == OP_STATE_PENDING else op.seen
    put_outcome(a, op, outcome, settled_key, op_flags, e, error, sequence)


cdef inline void put_keys(Arena *a, OpRecord *op) noexcept nogil:
    """A KEY row for each of its keys. Each text first, because it may need rows of its own."""
    cdef uint32_t node = op.first_node, key
    cdef KeyRow *row
    while node:
        key = key_text(a, key_of(a, node_of(a, node - 1).key))
        row = <KeyRow *>next_row(&a.journal, ROW_KIND_KEY)
        row.key_kind = node_of(a, node - 1).kind
        row.ordinal = node_of(a, node - 1).ordinal
        row.reserved = 0
        row.key = key
        row.operation = op_id(a, op)
        row.target = node_of(a, node - 1).target
        memset(row.rest, 0, sizeof(row.rest))
        node = node_of(a, node - 1).next_of_op


cdef inline void put_registration(
    Arena *a, OpRecord *op, uint32_t client, uint32_t client_generation, uint32_t command_flags, uint64_t mark_sequence,
    uint64_t mark_command, uint64_t total, uint64_t progress, uint32_t flags,
) noexcept nogil:
    cdef uint32_t owner, purgatory, id
    cdef RegisterRow *row
    cdef RegisteredRow *rest
    if not journal_room(a, 5 + op.keys * (1 + TEXT_ROWS_MAX), 2 + op.keys):
        return
    owner = owner_text(a, op)
    purgatory = purgatory_text(a, op.purgatory)
    id = id_text(a, op)
    row = <RegisterRow *>next_row(&a.journal, ROW_KIND_REGISTER)
    row.condition = op.condition
    row.needed = op.needed
    row.keys = op.keys
    row.command_flags = command_flags
    row.orphans = op.orphans
    row.flags = flags
    row.operation = op_id(a, op)
    row.registration = op.registration
    row.command = op.command
    row.registered_ns = op.registered_ns
    row.deadline_ns = op.deadline_ns
    row.mark_sequence = mark_sequence
    row.mark_command = mark_command
    rest = <RegisteredRow *>next_row(&a.journal, ROW_KIND_REGISTERED)
    rest.reserved = 0
    rest.client = client
    rest.client_generation = client_generation
    rest.operation = op_id(a, op)
    rest.total = total
    rest.applied_ns = a.turn.now_ns
    rest.newest = a.header.newest
    rest.progress = progress
    rest.owner = owner
    rest.purgatory = purgatory
    rest.id = id
    rest.payload_length = blob_length(a, op.payload)
    put_keys(a, op)


cdef inline void journal_register(Arena *a, OpRecord *op, uint32_t slot, RegisterCommand *command) noexcept nogil:
    """Tell that a client registers an operation in the transaction being staged, before what settles it there."""
    if a.journal.level == JOURNAL_LEVEL_EVENTS:
        put_registration(
            a, op, slot, a.clients[slot].generation, command.flags, command.mark_sequence, command.mark_command,
            command.total if command.condition == CONDITION_TOTAL else 0, 0, 0,
        )


cdef inline void journal_event(Arena *a, EventRecord *e, OpRecord *of) noexcept nogil:
    """Tell that an event enters the ring in the transaction being staged; `of`: handed on from this operation, or NULL."""
    cdef uint32_t key, owner, purgatory
    cdef EventRow *row
    if a.journal.level != JOURNAL_LEVEL_EVENTS or not journal_room(a, EVENT_ROWS_MAX, 1):
        return
    key = event_key_text(a, e)
    owner = client_text(a, e.client, e.client_generation)
    purgatory = purgatory_text(a, e.purgatory)
    row = <EventRow *>next_row(&a.journal, ROW_KIND_EVENT)
    row.event_kind = e.kind
    row.flags = e.flags
    row.reserved = 0
    row.key = key
    row.sequence = e.sequence
    row.applied_ns = e.applied_ns
    row.amount = e.amount
    row.command = e.command if of == NULL else op_id(a, of)
    row.owner = owner
    row.limit = e.left
    row.purgatory = purgatory
    row.client_generation = e.client_generation
    row.client = e.client
    row.reserved_half = 0
    row.value_length = blob_length(a, e.value)


cdef inline void journal_action(
    Arena *a, uint32_t slot, uint64_t number, OpRecord *op, OperationCommand *command, uint64_t deadline_ns
) noexcept nogil:
    """Tell that a command changes a pending operation in the transaction being staged."""
    cdef uint32_t owner
    cdef ActionRow *row
    if a.journal.level != JOURNAL_LEVEL_EVENTS or not journal_room(a, ACTION_ROWS_MAX, 1):
        return
    owner = client_text(a, slot, a.clients[slot].generation)
    row = <ActionRow *>next_row(&a.journal, ROW_KIND_ACTION)
    row.command_kind = command.kind
    row.flags = command.flags
    row.orphans = command.orphans
    row.client_generation = a.clients[slot].generation
    row.operation = op_id(a, op)
    row.applied_ns = a.turn.now_ns
    row.deadline_ns = deadline_ns
    row.command = number
    row.client = slot
    row.reserved = 0
    row.owner = owner
    memset(row.rest, 0, sizeof(row.rest))


cdef inline void journal_client(
    Arena *a, uint32_t slot, uint32_t state, uint32_t flags, uint32_t orphans, uint32_t group, uint32_t pid
) noexcept nogil:
    """Tell what a client is by the transaction being staged."""
    cdef ClientRecord *c = a.clients + slot
    cdef uint32_t owner, name
    cdef ClientRow *row
    if a.journal.level != JOURNAL_LEVEL_EVENTS or not journal_room(a, GROUP_ROWS_MAX, 1):
        return
    owner = client_text(a, slot, c.generation)
    name = group_text(a, group)
    row = <ClientRow *>next_row(&a.journal, ROW_KIND_CLIENT)
    row.state = state
    row.orphans = orphans
    row.flags = flags
    row.client_generation = c.generation
    row.at_ns = a.turn.now_ns
    row.incarnation_low = c.incarnation_low
    row.incarnation_high = c.incarnation_high
    row.client = slot
    row.reserved_half = 0
    row.owner = owner
    row.pid = pid
    row.group = name
    memset(row.rest, 0, sizeof(row.rest))


cdef inline void journal_state(Arena *a, uint32_t slot, uint32_t state) noexcept nogil:
    """Tell that a client gets a state, and nothing else, in the transaction being staged."""
    cdef ClientRecord *c = a.clients + slot
    journal_client(a, slot, state, c.flags, c.orphans, c.group, c.pid)


cdef inline void journal_group(
    Arena *a, OpRecord *op, uint32_t step, uint32_t group, uint32_t slot, uint32_t generation, uint32_t deliveries,
    uint64_t outcome_number, uint64_t command,
) noexcept nogil:
    """Tell what becomes of an operation of a group in the transaction being staged."""
    cdef uint32_t owner, name
    cdef GroupRow *row
    if a.journal.level != JOURNAL_LEVEL_EVENTS or not journal_room(a, GROUP_ROWS_MAX, 1):
        return
    owner = client_text(a, slot, generation)
    name = group_text(a, group)
    row = <GroupRow *>next_row(&a.journal, ROW_KIND_GROUP)
    row.step = step
    row.deliveries = deliveries
    row.reserved = 0
    row.group = name
    row.operation = op_id(a, op)
    row.at_ns = a.turn.now_ns
    row.outcome_number = outcome_number
    row.command = command
    row.client = slot
    row.reserved_half = 0
    row.client_generation = generation
    row.owner = owner
    row.reserved_word = 0
    memset(row.rest, 0, sizeof(row.rest))


cdef inline void journal_anchor(Arena *a, uint64_t wall_ns) noexcept nogil:
    """Tell what the wall clock says, in a transaction of its own."""
    cdef AnchorRow *row
    if not journal_room(a, 1, 1):
        commit(a)
        return
    row = <AnchorRow *>next_row(&a.journal, ROW_KIND_ANCHOR)
    memset(<uint8_t *>row + 1, 0, sizeof(AnchorRow) - 1)
    row.monotonic_ns = a.turn.now_ns
    row.wall_ns = wall_ns
    commit(a)


cdef inline void put_watermark(Arena *a, KeyRecord *key) noexcept nogil:
    cdef uint32_t text, purgatory
    cdef WatermarkRow *row
    if not journal_room(a, 2 + TEXT_ROWS_MAX, 1):
        return
    text = key_text(a, key)
    purgatory = purgatory_text(a, key.purgatory)
    row = <WatermarkRow *>next_row(&a.journal, ROW_KIND_WATERMARK)
    memset(<uint8_t *>row + 1, 0, sizeof(WatermarkRow) - 1)
    row.key = text
    row.watermark = key.watermark
    row.at_ns = a.turn.now_ns
    row.newest = a.header.newest
    row.purgatory = purgatory


cdef inline bint half_full(Journal *j) noexcept nogil:
    return j.head - j.tail > j.capacity // 2


cdef inline bint snapshot(Arena *a, uint64_t records) noexcept nogil:
    """Go on to tell what there was when the journal began, over so many records; True if some is left.

    What was registered since then has told itself. Only while half of the buffer is free.
    """
    cdef Journal *j = &a.journal
    cdef OpRecord *op
    if not j.snapshotting:
        return False
    while j.snapshot_key < a.regions[REGION_KEYS].high_water:
        if records == 0 or half_full(j):
            return True
        records -= 1
        if key_of(a, j.snapshot_key).flags & KEY_FLAG_HAS_WATERMARK:
            put_watermark(a, key_of(a, j.snapshot_key))
            commit(a)
        j.snapshot_key += 1
    while j.snapshot_op < a.regions[REGION_OPS].high_water:
        if records == 0 or half_full(j):
            return True
        records -= 1
        op = a.ops + j.snapshot_op
        if op.state == OP_STATE_PENDING and op.registration <= j.snapshot_last:
            put_registration(
                a, op, op.client, op.client_generation, 0, op.seen, op.failed, op.progress if op.condition == CONDITION_TOTAL else 0,
                0 if op.condition == CONDITION_TOTAL else op.progress, ROW_FLAG_SNAPSHOT,
            )
            commit(a)
        j.snapshot_op += 1
    j.snapshotting = 0
    td_put(&a.tx, &a.header.journal_level, j.level)
    commit(a)
    return False


cdef inline bint open_journal(Arena *a, uint32_t level, uint64_t segment_rows, uint64_t tail) noexcept nogil:
    """Begin a segment for this daemon; True if nothing lies between this and the rows before it.

    `rows`, `capacity`, `texts` and `owners` are set; the rows from `tail` on are in the buffer.
    """
    cdef Journal *j = &a.journal
    cdef bint continues = a.header.journal_level == level
    j.level = level
    j.staged = j.dropping = 0
    j.head = a.header.journal_rows
    j.tail = tail
    j.segment = a.header.journal_segment
    j.segment_rows = segment_rows
    j.told = a.header.journal_gaps
    j.lost = a.daemon[DAEMON_JOURNAL_ROWS_DROPPED] - j.told if a.daemon[DAEMON_JOURNAL_ROWS_DROPPED] > j.told else 0
    j.lost_from_ns = 0
    j.lost_to_ns = a.turn.now_ns
    j.snapshot_op = j.snapshot_key = 0
    j.snapshotting = not continues and level == JOURNAL_LEVEL_EVENTS
    j.snapshot_last = a.header.registrations
    j.opening = ROW_FLAG_START | (ROW_FLAG_CONTINUES if continues else 0)
    if not continues:
        td_put(&a.tx, &a.header.journal_level, JOURNAL_LEVEL_NONE)
    make_journal_room(a, 0)
    commit(a)
    return continues


cdef inline bint tend_journal(Arena *a, uint64_t written, uint64_t wall_ns, uint64_t records) noexcept nogil:
    """What a turn does for the journal: see core.pyi."""
    cdef Journal *j = &a.journal
    j.tail = written
    a.header.journal_written = written
    measure_room(j)
    if (j.lost or j.opening) and make_journal_room(a, 0):
        commit(a)
    if wall_ns:
        journal_anchor(a, wall_ns)
    return snapshot(a, records)


cdef inline void renew_journal(Arena *a) noexcept nogil:
    """Begin a segment before the next row."""
    if a.journal.opening == 0:
        a.journal.opening = ROW_FLAG_CONTINUES
