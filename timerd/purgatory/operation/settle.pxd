"""Settlements: how an operation gets its outcome, and how its record is freed.

Settling is one transaction: state, outcome number, the client's next number, what a limited event has left, the id. The
derived fields follow: the bucket, ALL watcher lists, gauges, the owner's outcome list. So from its settlement on, an
operation is in its owner's list and in no other. There is nothing to purge.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from timerd.purgatory.memory.arena cimport Arena
from timerd.purgatory.memory.blob cimport blob_length, drop_blob, share_blob
from timerd.purgatory.memory.commit cimport commit, next_number
from timerd.purgatory.memory.counters cimport counter, histogram, histogram_add
from timerd.purgatory.memory.list cimport append, link_of
from timerd.purgatory.memory.nodes cimport first_node, free_node, long_names, names_of, next_node
from timerd.purgatory.memory.slab cimport free_record
from timerd.purgatory.memory.transaction cimport TD_DEFECT, TD_ORDERED_STORE, td_put
from timerd.purgatory.journal.rows cimport journal_outcome
from timerd.purgatory.index.remembered_ids cimport remember_id, settled_word
from timerd.purgatory.index.keys cimport free_nodes
from timerd.purgatory.index.operation_table cimport handle_remove
from timerd.purgatory.index.watchers cimport leave_key
from timerd.purgatory.wheel.wheel cimport wheel_remove
from timerd.purgatory.events.ring cimport event_at
from timerd.purgatory.members.accounts cimport charge_account
from timerd.purgatory.members.answers cimport met, note_refusal
from timerd.purgatory.members.state cimport LATEST_OUTCOMES, ReportState
from timerd.purgatory.members.clients cimport charge, further_keys, leave_outcomes, nodes_of, owner_of, queue_report
from timerd.purgatory.members.groups cimport adopt_if_orphaned, count_held, look_for_calls_again, queue_in_group
from timerd.purgatory.members.calls cimport is_letter, stage_id_calls
from timerd.purgatory.members.looks cimport leave_looks
from timerd_shm.generated.records cimport *

from .condition cimport Verdict, has_failures, unmoved


cdef inline uint64_t granted_word(EventRecord *e) noexcept nogil:
    """The event's word after it has completed one more operation. A limited event then has one grant less."""
    cdef uint64_t word = EventRecord_with_completed(EventRecord_word_completed(e)[0], e.completed + 1)
    if e.flags & EVENT_FLAG_LIMITED and not TD_DEFECT(DEFECT_LIMIT_NOT_LOWERED):
        word = EventRecord_with_left(word, e.left - 1)
    return word


cdef inline void fill_settlement(
    Arena *a, OpRecord *op, uint32_t value, uint64_t outcome_number, uint32_t error
) noexcept nogil:
    op.settled_ns = a.turn.now_ns
    op.value = value
    op.outcome_number = outcome_number
    op.error = error


cdef inline bint is_overdue(OpRecord *op, EventRecord *e) noexcept nogil:
    """Whether an event came too late for the operation: it counts for deadlines after its effective time (rule 4)."""
    return op.deadline_ns <= e.effective_ns


cdef inline uint64_t newest_counted(Arena *a, OpRecord *op) noexcept nogil:
    """The newest event that counts for a pending operation. A new registration with this mark counts the later events.

    It is the newest event of all, unless the event in delivery came too late for the operation.
    """
    if a.header.unfinished and is_overdue(op, event_at(a, a.header.unfinished)):
        return a.header.unfinished - 1
    return a.header.newest


cdef inline void stage_outcome(
    Arena *a, OpRecord *op, uint32_t outcome, uint32_t settled_key, EventRecord *e, uint32_t flags, uint32_t value,
    uint64_t number, uint32_t error,
) noexcept nogil:
    """Stage the words by which any operation settles, and the journal's row. `number` 0: nothing is delivered now."""
    cdef uint32_t state = OP_STATE_SETTLED if number or op.group else OP_STATE_FREE
    if op.flags & OP_FLAG_CALL and outcome == OUTCOME_CANCELLED:
        state = OP_STATE_FREE  # nobody is to run it
    stage_settled(a, op, outcome, settled_key, e, flags, value, number, error, state)


cdef inline void stage_settled(
    Arena *a, OpRecord *op, uint32_t outcome, uint32_t settled_key, EventRecord *e, uint32_t flags, uint32_t value,
    uint64_t number, uint32_t error, uint32_t state,
) noexcept nogil:
    """Do what stage_outcome() does, for an operation that gets this state."""
    cdef uint64_t word = OpRecord_word_state(op)[0]
    fill_settlement(a, op, value, number, 0 if op.flags & OP_FLAG_CALL else error)
    word = OpRecord_with_state(OpRecord_with_outcome(OpRecord_with_settled_key(word, settled_key), outcome), state)
    td_put(&a.tx, OpRecord_word_state(op), word)
    if flags != op.flags:
        td_put(&a.tx, OpRecord_word_flags(op), OpRecord_with_flags(OpRecord_word_flags(op)[0], flags))
    if e != NULL:
        td_put(&a.tx, &op.seen, e.sequence)
    elif op.state == OP_STATE_PENDING:
        # The newest event that has reached the operation. It is valid by itself, so it may be stored before the commit.
        TD_ORDERED_STORE(a.base, &op.seen, newest_counted(a, op))
    journal_outcome(a, op, outcome, settled_key, flags, e, error)


cdef inline uint32_t share_value(Arena *a, OpRecord *op, EventRecord *e, uint64_t *held, uint32_t *flags) noexcept nogil:
    """The event's value, for an operation that it settles. The value is charged to `held`, the bytes of its owner.

    0: the event has no value, or the owner holds too many bytes for it. Then `flags` get VALUE_DROPPED, and the log of
    errors says whose outcome it was, because no call raises an error for that.
    """
    cdef uint32_t length = blob_length(a, e.value)
    if length == 0:
        return 0
    if held[0] + length > a.header.quota_bytes:
        flags[0] |= OP_FLAG_VALUE_DROPPED
        note_refusal(a, op.client, op.group, ERROR_CODE_QUOTA_EXCEEDED, met(MET_VALUES, a.header.quota_bytes))
        return 0
    held[0] += length
    return share_blob(a, e.value)


cdef inline void stage_settle(
    Arena *a, OpRecord *op, uint32_t outcome, uint32_t settled_key, EventRecord *e, Verdict *v
) noexcept nogil:
    """Stage that an operation settles, whoever owns it. `e`: the event that settles it, or NULL. `v`: its masks."""
    cdef ClientRecord *owner = owner_of(a, op)
    cdef uint32_t flags = op.flags, value = 0, error = 0
    cdef uint64_t number = 0
    cdef uint64_t *held = NULL
    cdef IdRecord *id_record
    cdef bint takes = op.condition != CONDITION_OBSERVE  # OBSERVE takes nothing: others need the event, too
    if op.group:
        held = &a.groups[op.group - 1].bytes_held
    elif owner != NULL:
        held = &owner.bytes_held
        number = next_number(a, op.client)
    if e != NULL:
        if e.kind == EVENT_KIND_FAIL:
            error = <uint32_t>e.amount
        if takes and e.flags & EVENT_FLAG_LIMITED:
            flags |= OP_FLAG_GRANTED | OP_FLAG_KEYS_KEPT
        if e.flags & EVENT_FLAG_REDELIVERED:
            flags |= OP_FLAG_REDELIVERED
        if e.flags & EVENT_FLAG_VALUE_DROPPED:
            flags |= OP_FLAG_VALUE_DROPPED
        if held != NULL:
            value = share_value(a, op, e, held, &flags)
            if op.group:
                charge_account(a, op, 0, 0, 0, blob_length(a, value))
        if takes and e.flags & (EVENT_FLAG_LIMITED | EVENT_FLAG_WANTS_ANSWER):
            td_put(&a.tx, EventRecord_word_completed(e), granted_word(e))
    if op.group or op.orphans == ORPHANS_GROUP or (number and has_failures(op, v.failed)):
        flags |= OP_FLAG_KEYS_KEPT
    if op.flags & OP_FLAG_CALL:
        v.progress = v.failed = 0  # in a settled call these fields say whether it runs (members/calls.pxd)
    if v.progress != op.progress:
        td_put(&a.tx, &op.progress, v.progress)
    if v.failed != op.failed:
        td_put(&a.tx, &op.failed, v.failed)
    if op.id_record:
        id_record = a.ids + (op.id_record - 1)
        td_put(&a.tx, IdRecord_word_state(id_record), settled_word(id_record, outcome, op.client))
        td_put(&a.tx, &id_record.settled_ns, a.turn.now_ns)
        if op.flags & OP_FLAG_CALL and outcome != OUTCOME_CANCELLED and op.state == OP_STATE_PENDING:
            stage_id_calls(a, id_record, <uint32_t>(op - a.ops) + 1, id_record.running)
    stage_outcome(a, op, outcome, settled_key, e, flags, value, number, error)


cdef inline void free_parts(Arena *a, OpRecord *op) noexcept nogil:
    """Free a record that nothing leads to, with the blobs and nodes that it still names."""
    drop_blob(a, op.payload)
    drop_blob(a, op.value)
    if op.flags & OP_FLAG_KEYS_KEPT:
        free_nodes(a, op)
    free_record(a, REGION_OPS, <uint32_t>(op - a.ops))


cdef inline void free_op(Arena *a, OpRecord *op) noexcept nogil:
    """Free a record whose state says FREE, with everything that only this record names. It is in no list."""
    cdef int64_t bytes = <int64_t>blob_length(a, op.payload) + blob_length(a, op.value) + names_of(a, op)
    charge(a, op, 0, 0, -nodes_of(op), -bytes)
    if op.group == 0:
        handle_remove(a, <uint32_t>(op - a.ops))
    free_parts(a, op)


cdef inline int counter_of(uint32_t outcome) noexcept nogil:
    """The counter of a purgatory that counts this outcome."""
    if outcome == OUTCOME_COMPLETED:
        return COUNT_COMPLETED
    if outcome == OUTCOME_CANCELLED:
        return COUNT_CANCELLED
    return COUNT_EXPIRED if outcome == OUTCOME_EXPIRED else COUNT_FAILED


cdef inline void count_settled(
    Arena *a, OpRecord **ops, uint32_t count, uint32_t outcome, uint32_t purgatory
) noexcept nogil:
    """Count operations of one purgatory that have settled in one transaction, with one outcome."""
    cdef HistogramRecord *waits = histogram(a, purgatory, HISTOGRAM_WAIT)
    cdef uint32_t i
    counter(a, purgatory, counter_of(outcome))[0] += count
    for i in range(count):  # bound: BATCH_MAX
        # The call may lie ahead of the turn in which the operation settles.
        histogram_add(waits, ops[i].settled_ns - min(ops[i].registered_ns, ops[i].settled_ns))
        if ops[i].flags & (OP_FLAG_VALUE_DROPPED | OP_FLAG_GRANTED):
            counter(a, purgatory, COUNT_VALUES_DROPPED)[0] += ops[i].flags & OP_FLAG_VALUE_DROPPED != 0
            if outcome == OUTCOME_COMPLETED:
                counter(a, purgatory, COUNT_GRANTED)[0] += ops[i].flags & OP_FLAG_GRANTED != 0
    if outcome == OUTCOME_EXPIRED:
        for i in range(count):  # bound: BATCH_MAX
            histogram_add(
                histogram(a, purgatory, HISTOGRAM_EXPIRY_LATENESS), ops[i].settled_ns - ops[i].deadline_ns
            )


cdef inline void join_outcomes(Arena *a, ClientRecord *owner, ReportState *report_states, OpRecord *op) noexcept nogil:
    """Make a settled operation its client's newest outcome.

    The outcome LATEST_OUTCOMES positions before it gets a hint that names it.
    """
    cdef OpRecord *before = report_states.latest[report_states.at]
    append(a, &owner.next, &op.next)
    report_states.latest[report_states.at] = op
    report_states.at = (report_states.at + 1) & (LATEST_OUTCOMES - 1)
    if before != NULL:
        before.prefetch_hint = <uint32_t>(op - a.ops) + 1
    if report_states.unreported == 0:
        report_states.unreported = link_of(a, &op.next)


cdef inline uint32_t leave_keys(Arena *a, OpRecord *op) noexcept nogil:
    """Take an operation that was pending out of its keys' lists. Returns the number of lists: the caller counts them.

    The nodes are free then, unless the operation keeps its keys.
    """
    cdef uint32_t number = <uint32_t>(op - a.ops) + 1, left = 0
    cdef WatchNode *node = first_node(op)
    cdef WatchNode *next
    cdef bint kept = op.flags & OP_FLAG_KEYS_KEPT, first = True
    while node != NULL:
        next = next_node(a, node)
        a.turn.touched += 1
        if first or not TD_DEFECT(DEFECT_UNLINK_FROM_ONE_LIST):
            if node.place != PLACE_NOWHERE:
                leave_key(a, node, number)
                left += 1
            if not kept:
                drop_blob(a, node.name_blob)
                if not first:
                    number = node.next_of_op
                    free_node(a, node)
                    node = next
                    continue
        number = node.next_of_op
        node = next
        first = False
    return left


cdef inline void finish_settle(Arena *a, OpRecord *op, bint was_pending) noexcept nogil:
    """The settlement is committed: the operation leaves its bucket and lists, and joins those of its owner or group."""
    count_settled(a, &op, 1, op.outcome, op.purgatory)
    if was_pending:
        counter(a, op.purgatory, COUNT_PENDING)[0] -= 1
        charge(a, op, -1, 0, nodes_of(op) - further_keys(op), names_of(a, op) - long_names(a, op))
        if op.flags & OP_FLAG_OWNER:
            leave_looks(a, op)
        wheel_remove(a, op)
        counter(a, op.purgatory, COUNT_WATCHED)[0] -= leave_keys(a, op)
    elif not op.flags & OP_FLAG_KEYS_KEPT:
        free_nodes(a, op)
    if op.id_record:
        remember_id(a, a.ids + (op.id_record - 1))
    if op.state == OP_STATE_FREE:
        free_op(a, op)
        return
    charge(a, op, 0, 1, 0, 0)
    if op.group:
        queue_in_group(a, op)
        return
    join_outcomes(a, a.clients + op.client, a.members.report_states + op.client, op)
    queue_report(a, op.client)


cdef inline void settle(Arena *a, OpRecord *op, uint32_t outcome) noexcept nogil:
    """Settle a pending operation without an event: as expired or cancelled."""
    cdef Verdict v
    adopt_if_orphaned(a, op)
    v = unmoved(op)
    stage_settle(a, op, outcome, 0, NULL, &v)
    commit(a)
    finish_settle(a, op, True)


cdef inline void stage_free(Arena *a, OpRecord *op) noexcept nogil:
    """Stage the word by which a settled operation is freed: it has been acknowledged, or has no owner."""
    td_put(&a.tx, OpRecord_word_state(op), OpRecord_with_state(OpRecord_word_state(op)[0], OP_STATE_FREE))


cdef inline void finish_free(Arena *a, OpRecord *op) noexcept nogil:
    """A settled operation is free, and this is committed: take it out of its list, and free its record."""
    leave_outcomes(a, op)
    charge(a, op, 0, -1, 0, 0)
    if op.group and op.client_generation:
        count_held(a, op, -1)
    if is_letter(op):
        a.groups[op.group - 1].letters -= 1
    if op.group:
        look_for_calls_again(a, op.group)
    free_op(a, op)


cdef inline void drop_settled(Arena *a, OpRecord *op) noexcept nogil:
    """Free a settled operation: it is acknowledged, or has no owner left."""
    stage_free(a, op)
    commit(a)
    finish_free(a, op)


cdef inline void free_settled(Arena *a, OpRecord *op) noexcept nogil:
    """Free a settled operation whose outcome is acknowledged."""
    a.daemon[DAEMON_OUTCOMES_ACKNOWLEDGED] += 1
    drop_settled(a, op)
