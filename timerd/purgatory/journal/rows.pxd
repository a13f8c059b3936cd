"""The journal's rows, as the core writes them (shm_layout/timerd_shm/declare/journal.py has their fields).

For example, an operation expires. Its OUTCOME row is written after the last row, where no reader looks yet. commit()
moves header.journal_rows together with the operation's state word. So each thing that happened has one row, whenever
the daemon is killed, and a start has nothing to reconstruct. The buffer is shared memory, and outlives the daemon as
the arena does. The writer (journal/writer.py) copies rows into files. Then the next turn moves `tail` (tend_journal):
rows below `tail` may be overwritten.

Nothing here waits. When the buffer is full, rows are dropped and counted. When there is room again, a GAP row comes
first and has their number. Rows that belong together (a registration and its keys) are written together or not at all.

A row names a text by the number of the TEXT row in the same segment. `texts` remembers by hash where some TEXT rows
stand. A TEXT row is compared before it is believed. A text whose row has left the buffer is written again. If
each operation has a key of its own, each outcome has a TEXT row.

A caller stages rows and the changes that they describe, and then commits. Once a row is staged, the commit must follow.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memset
from timerd.purgatory.memory.arena cimport Arena, effective_ns, op_id
from timerd.purgatory.memory.blob cimport blob_length
from timerd.purgatory.memory.commit cimport commit
from timerd.purgatory.memory.nodes cimport first_node, next_node
from timerd.purgatory.memory.transaction cimport td_put
from timerd_shm.generated.records cimport *

from .state cimport Journal
from .room cimport (
    ACTION_ROWS_MAX, EVENT_ROWS_MAX, GROUP_ROWS_MAX, OUTCOME_ROWS_MAX, TEXT_ROWS_MAX, journal_room, make_journal_room,
    measure_room, next_row,
)
from .texts cimport client_text, event_key_text, group_text, id_text, key_text, owner_text, purgatory_text, watermark_text


cdef inline void put_outcome(
    Arena *a, OpRecord *op, uint32_t outcome, uint32_t settled_key, uint32_t op_flags, EventRecord *e, uint32_t error,
    uint64_t sequence,
) noexcept nogil:
    cdef OutcomeRow *row
    cdef WatchNode *node = first_node(op)
    cdef uint32_t ordinal = settled_key, key, owner, purgatory, id, flags = 0
    if not journal_room(a, OUTCOME_ROWS_MAX, 1):
        return
    if e != NULL:
        key = event_key_text(a, e)
    else:
        while ordinal > 1:  # bound: KEYS_MAX
            node = next_node(a, node)
            ordinal -= 1
        key = key_text(a, node)
    owner = owner_text(a, op)
    purgatory = purgatory_text(a, op.purgatory)
    id = id_text(a, op)
    if op_flags & OP_FLAG_GRANTED:
        flags |= ROW_FLAG_GRANTED
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
    """The row of an operation that settles in the transaction being staged. `op_flags`: the flags that it has then."""
    if a.journal.level:
        put_outcome(a, op, outcome, settled_key, op_flags, e, error, op.seen if e == NULL else e.sequence)


cdef inline void put_keys(Arena *a, OpRecord *op, uint64_t failed) noexcept nogil:
    """A KEY row for each key of an operation. The text comes first, because it may need rows of its own.

    `failed`: the keys whose nodes have the code of their failure in place of the target.
    """
    cdef WatchNode *node = first_node(op)
    cdef uint32_t key
    cdef KeyRow *row
    while node != NULL:  # bound: KEYS_MAX
        key = key_text(a, node)
        row = <KeyRow *>next_row(&a.journal, ROW_KIND_KEY)
        row.key_kind = node.kind
        row.ordinal = node.ordinal
        row.reserved = 0
        row.key = key
        row.operation = op_id(a, op)
        row.target = 0  # also of an event key, whose node may have a call's time by the wall clock
        if node.kind == KEY_KIND_WATERMARK and not failed & (<uint64_t>1 << node.ordinal):
            row.target = node.target
        memset(row.rest, 0, sizeof(row.rest))
        node = next_node(a, node)


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
    row.needed = op.needed if CONDITIONS_TAKE_NEEDED >> op.condition & 1 else 0
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
    rest.effective_ns = effective_ns(a)
    rest.newest = a.header.newest
    rest.progress = progress
    rest.owner = owner
    rest.purgatory = purgatory
    rest.id = id
    rest.payload_length = blob_length(a, op.payload)
    # A registration enters the codes of keys that have failed after its rows are written: fill_failures().
    put_keys(a, op, op.failed if flags & ROW_FLAG_SNAPSHOT else 0)


cdef inline uint32_t counting_flags(RegisterCommand *command) noexcept nogil:
    """The flags that mean something. Others that a client sets change nothing, but an audit would report them."""
    cdef uint32_t flags = command.flags & (
        REGISTER_FLAG_HAS_ID | REGISTER_FLAG_KEEP | REGISTER_FLAG_REPLACE | REGISTER_FLAG_WANTS_ANSWER
        | REGISTER_FLAG_MARK_BY_SEQUENCE | REGISTER_FLAG_NO_MARK | REGISTER_FLAG_ORPHANS_GIVEN | REGISTER_FLAG_FOR_GROUP
        | REGISTER_FLAG_REPLACE_CANCELLED | REGISTER_FLAG_CALL | REGISTER_FLAG_FOLLOWS | REGISTER_FLAG_REPLACE_CHANGED
        | REGISTER_FLAG_ALONE | REGISTER_FLAG_OF_LETTER | REGISTER_FLAG_SCHEDULED
    )
    if not flags & REGISTER_FLAG_FOR_GROUP:
        flags &= ~<uint32_t>REGISTER_FLAG_CALL
    return flags if flags & REGISTER_FLAG_CALL else flags & ~<uint32_t>REGISTER_FLAG_SCHEDULED


cdef inline void journal_register(Arena *a, OpRecord *op, uint32_t slot, RegisterCommand *command) noexcept nogil:
    """The rows of a registration in the transaction being staged. If it settles there, that row comes after these."""
    if a.journal.level == JOURNAL_LEVEL_EVENTS:
        put_registration(
            a, op, slot, a.clients[slot].generation, counting_flags(command), command.mark_sequence, command.mark_command,
            command.total if command.condition == CONDITION_TOTAL else 0, 0, 0,
        )


cdef inline void journal_event(Arena *a, EventRecord *e, OpRecord *of) noexcept nogil:
    """The row of an event that enters the ring in the transaction being staged. `of`: requeued from this operation, or NULL."""
    cdef uint32_t key, owner, purgatory
    cdef EventRow *row
    if a.journal.level != JOURNAL_LEVEL_EVENTS or not journal_room(a, EVENT_ROWS_MAX, 1):
        return
    a.journal.newest = e.sequence
    key = event_key_text(a, e)
    owner = client_text(a, e.client, e.client_generation)
    purgatory = purgatory_text(a, e.purgatory)
    row = <EventRow *>next_row(&a.journal, ROW_KIND_EVENT)
    row.event_kind = e.kind
    row.flags = e.flags
    row.reserved = 0
    row.key = key
    row.sequence = e.sequence
    row.effective_ns = e.effective_ns
    row.amount = e.amount
    row.command = e.command if of == NULL else op_id(a, of)
    row.owner = owner
    row.limit = e.left if e.flags & EVENT_FLAG_LIMITED else 0
    row.purgatory = purgatory
    row.client_generation = e.client_generation
    row.client = e.client
    row.reserved_half = 0
    row.value_length = blob_length(a, e.value)


cdef inline void journal_action(
    Arena *a, uint32_t slot, uint64_t number, OpRecord *op, OperationCommand *command, uint64_t deadline_ns
) noexcept nogil:
    """The row of a command that changes a pending operation in the transaction being staged."""
    cdef uint32_t generation = a.clients[slot].generation
    put_action(a, slot, generation, number, op, command.kind, command.flags, command.orphans, deadline_ns)


cdef inline void journal_new_plan(Arena *a, OpRecord *op, uint64_t deadline_ns) noexcept nogil:
    """The row of a call that gets another deadline, because the wall clock was set. No command causes it."""
    put_action(a, 0, 0, 0, op, 0, 0, 0, deadline_ns)


cdef inline void put_action(
    Arena *a, uint32_t slot, uint32_t generation, uint64_t number, OpRecord *op, uint32_t kind, uint32_t flags,
    uint32_t orphans, uint64_t deadline_ns,
) noexcept nogil:
    cdef uint32_t owner
    cdef ActionRow *row
    if a.journal.level != JOURNAL_LEVEL_EVENTS or not journal_room(a, ACTION_ROWS_MAX, 1):
        return
    owner = client_text(a, slot, generation)
    row = <ActionRow *>next_row(&a.journal, ROW_KIND_ACTION)
    row.command_kind = kind
    row.flags = flags & (COMMAND_FLAG_WANTS_ANSWER | COMMAND_FLAG_HAS_ID | COMMAND_FLAG_REQUEUE)
    row.orphans = orphans if kind == COMMAND_KIND_SET_ORPHANS else 0
    row.client_generation = generation
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
    """The row of a client, with the values that the transaction being staged gives it."""
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
    """The row of a client of which only the state changes in the transaction being staged."""
    cdef ClientRecord *c = a.clients + slot
    journal_client(a, slot, state, c.flags, c.orphans, c.group, c.pid)


cdef inline void journal_group(
    Arena *a, OpRecord *op, uint32_t step, uint32_t group, uint32_t slot, uint32_t generation, uint32_t deliveries,
    uint64_t outcome_number, uint64_t command,
) noexcept nogil:
    """The row of a step of a group's operation in the transaction being staged."""
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
    """The row of the wall clock's time, in a transaction of its own."""
    cdef AnchorRow *row
    if not journal_room(a, 1, 1):
        commit(a)
        return
    row = <AnchorRow *>next_row(&a.journal, ROW_KIND_ANCHOR)
    memset(<uint8_t *>row + 1, 0, sizeof(AnchorRow) - 1)
    row.monotonic_ns = a.turn.now_ns
    row.wall_ns = wall_ns
    commit(a)


cdef inline void put_watermark(Arena *a, WatermarkRecord *w) noexcept nogil:
    cdef uint32_t text, purgatory
    cdef WatermarkRow *row
    if not journal_room(a, 2 + TEXT_ROWS_MAX, 1):
        return
    text = watermark_text(a, w)
    purgatory = purgatory_text(a, w.purgatory)
    row = <WatermarkRow *>next_row(&a.journal, ROW_KIND_WATERMARK)
    memset(<uint8_t *>row + 1, 0, sizeof(WatermarkRow) - 1)
    row.key = text
    row.watermark = w.watermark
    row.at_ns = a.turn.now_ns
    row.newest = a.header.newest
    row.purgatory = purgatory


cdef inline bint half_full(Journal *j) noexcept nogil:
    return j.head - j.tail > j.capacity // 2


cdef inline bint snapshot(Arena *a, uint64_t records) noexcept nogil:
    """Write rows for what existed when the journal began. Looks at `records` records at most; True if some are left.

    These rows are the journal's snapshot. It goes on only while half of the buffer is free. An operation that was
    registered later has its rows already.
    """
    cdef Journal *j = &a.journal
    cdef OpRecord *op
    if not j.snapshotting:
        return False
    while j.snapshot_watermark < a.regions[REGION_WATERMARKS].high_water:  # bound: `records`
        if records == 0 or half_full(j):
            return True
        records -= 1
        if a.watermarks[j.snapshot_watermark].used:
            put_watermark(a, a.watermarks + j.snapshot_watermark)
            commit(a)
        j.snapshot_watermark += 1
    while j.snapshot_op < a.regions[REGION_OPS].high_water:  # bound: `records`
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
    """Begin a segment for this daemon. Returns whether the segment continues the earlier rows without a break.

    The caller has set `rows`, `capacity`, `texts` and `owners`. The rows from `tail` on are in the buffer.
    """
    cdef Journal *j = &a.journal
    cdef bint continues = a.header.journal_level & ~<uint64_t>SNAPSHOT_UNFINISHED == level
    j.level = level
    j.staged = j.dropping = 0
    j.head = a.header.journal_rows
    j.tail = tail
    j.segment = a.header.journal_segment
    j.segment_rows = segment_rows
    j.reported = a.header.journal_gaps
    j.turn_ns = 0
    j.lost = a.daemon[DAEMON_JOURNAL_ROWS_DROPPED] - j.reported if a.daemon[DAEMON_JOURNAL_ROWS_DROPPED] > j.reported else 0
    j.lost_from_ns = 0
    j.lost_to_ns = a.turn.now_ns
    j.snapshot_op = j.snapshot_watermark = 0
    j.snapshotting = a.header.journal_level != level and level == JOURNAL_LEVEL_EVENTS
    j.snapshot_last = a.header.registrations
    j.opening = ROW_FLAG_START | (ROW_FLAG_CONTINUES if continues else 0)
    if not continues:
        td_put(&a.tx, &a.header.journal_level, JOURNAL_LEVEL_NONE)
    make_journal_room(a, 0)
    commit(a)
    return continues


cdef inline bint tend_journal(Arena *a, uint64_t written, uint64_t wall_ns, uint64_t records) noexcept nogil:
    """A turn's work for the journal: see core.pyi."""
    cdef Journal *j = &a.journal
    j.tail = written
    a.header.journal_written = written
    measure_room(a)
    if (j.lost or j.opening) and make_journal_room(a, 0):
        commit(a)
    if wall_ns:
        journal_anchor(a, wall_ns)
    return snapshot(a, records)


cdef inline void renew_journal(Arena *a) noexcept nogil:
    """Let a segment begin before the next row."""
    if a.journal.opening == 0:
        a.journal.opening = ROW_FLAG_CONTINUES


cdef inline void end_journal(Arena *a) noexcept nogil:
    """The row of an orderly end, in a transaction of its own: the last one of this daemon."""
    cdef EndRow *row
    if journal_room(a, 1, 0):
        row = <EndRow *>next_row(&a.journal, ROW_KIND_END)
        memset(<uint8_t *>row + 1, 0, sizeof(EndRow) - 1)
        row.at_ns = a.turn.now_ns
        row.number = a.journal.head + a.journal.staged - 1
        row.newest = a.header.newest
        row.start = a.daemon[DAEMON_STARTS]
        row.gaps = a.journal.reported
    commit(a)
