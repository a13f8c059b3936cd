"""Single commands: events, CANCEL and the like, LOOKED, COMPLETE, GROUP_ACK, CALL_PHASE.

Each command takes effect in one transaction. Further transactions deliver its event, if it has one.
A REGISTER is only dispatched from here: operation/register_command.pxd reads it, operation/register.pxd applies it.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy
from timerd.purgatory.memory.arena cimport Arena, capacity, effective_ns, unused
from timerd.purgatory.memory.blob cimport blob_length, blocks_for, drop_blob, fill_blob
from timerd.purgatory.memory.counters cimport counter
from timerd.purgatory.memory.hash cimport handle_tag, id_hash, key_hash
from timerd.purgatory.memory.nodes cimport first_node
from timerd.purgatory.memory.transaction cimport TD_DEFECT, td_put
from timerd.purgatory.journal.rows cimport journal_action, journal_group, put_action
from timerd.purgatory.index.ids cimport find_id
from timerd.purgatory.index.keys cimport share_name
from timerd.purgatory.index.operation_table cimport find_operation
from timerd.purgatory.index.purgatories cimport purgatory_is_open
from timerd.purgatory.index.watermarks cimport fill_watermark, find_watermark, free_watermark
from timerd.purgatory.wheel.wheel cimport wheel_insert, wheel_remove
from timerd.purgatory.events.ring cimport fill_event, make_room, stage_event, value_of_newest, without_room
from timerd.purgatory.members.answers cimport apply_plain, commit_command, keep_answer, met, refuse
from timerd.purgatory.members.checks cimport begin_check, has_check, take_tickets_back
from timerd.purgatory.members.calls cimport due_call, is_running, phase_of, stage_phase, stage_runs
from timerd.purgatory.members.clients cimport charge, setter_generation
from timerd.purgatory.members.evictable cimport join_if_left, leave_if_evictable
from timerd.purgatory.members.groups cimport (
    adopt_if_orphaned, after_retention, count_endless, find_call, find_held, waits_for_member,
)
from timerd.purgatory.members.looks cimport note_look
from timerd.purgatory.operation.condition cimport Verdict, unmoved
from timerd.purgatory.operation.apply_event cimport begin_delivery, deliver, requeue_grant
from timerd.purgatory.operation.register cimport apply_register
from timerd.purgatory.operation.register_command cimport Registration, deadline_of
from timerd.purgatory.operation.letters cimport find_letter, finish_done, stage_done, stage_withdrawn
from timerd.purgatory.operation.settle cimport finish_free, finish_settle, stage_settle
from timerd.purgatory.members.state cimport ROOM_BYTES
from timerd.purgatory.operation.eviction cimport EVICTED, NO_ROOM, room_for
from timerd.purgatory.operation.last_quarter cimport takes_last_quarter
from timerd.purgatory.operation.wall_time cimport wall_time_of
from timerd_shm.generated.records cimport *

from .prefetch cimport Prefetched


cdef inline uint32_t refusal_of_key(Arena *a, KeyCommand *command, uint64_t *limit) noexcept nogil:
    limit[0] = 0
    if command.key_length == 0:
        return ERROR_CODE_INVALID_KEY
    if command.value_length > PAYLOAD_SIZE_MAX:
        limit[0] = PAYLOAD_SIZE_MAX
        return ERROR_CODE_PAYLOAD_TOO_LARGE
    if command.flags & COMMAND_FLAG_LIMITED and (command.limit == 0 or command.kind != COMMAND_KIND_FIRE):
        return ERROR_CODE_INVALID_VALUE
    if command.kind == COMMAND_KIND_FAIL and command.amount > <uint64_t>0xFFFFFFFF:
        limit[0] = 0xFFFFFFFF
        return ERROR_CODE_INVALID_VALUE
    return ERROR_CODE_NONE


cdef inline uint32_t event_kind(uint32_t command_kind) noexcept nogil:
    if command_kind == COMMAND_KIND_FIRE:
        return EVENT_KIND_FIRE
    if command_kind == COMMAND_KIND_ADVANCE:
        return EVENT_KIND_ADVANCE
    if command_kind == COMMAND_KIND_FAIL:
        return EVENT_KIND_FAIL
    if command_kind == COMMAND_KIND_CANCEL_FOR_KEY:
        return EVENT_KIND_CANCEL_FOR_KEY
    return EVENT_KIND_FORGET if command_kind == COMMAND_KIND_FORGET else EVENT_KIND_CHECK


cdef inline uint32_t refusal_of_check(Arena *a, uint32_t slot, uint64_t *limit) noexcept nogil:
    """Why the client may not begin another check, or ERROR_CODE_NONE."""
    if a.members.report_states[slot].checks >= CHECKS_PER_CLIENT_MAX:
        limit[0] = met(MET_CHECKS, CHECKS_PER_CLIENT_MAX)
        return ERROR_CODE_QUOTA_EXCEEDED
    if not has_check(a):
        limit[0] = met(MET_CHECKS, CHECKS_MAX)
        return ERROR_CODE_ARENA_FULL
    return ERROR_CODE_NONE


cdef inline void stage_watermark(Arena *a, uint32_t slot, WatermarkRecord *w, uint64_t offset) noexcept nogil:
    """Stage the words by which a key gets a watermark, or a higher one. A new watermark is charged to this client."""
    cdef uint64_t word = WatermarkRecord_word_used(w)[0]
    td_put(&a.tx, &w.watermark, offset)
    if not w.used:
        word = WatermarkRecord_with_used(word, 1)
        word = WatermarkRecord_with_setter(word, slot)
        word = WatermarkRecord_with_setter_generation(word, setter_generation(a.clients + slot))
        td_put(&a.tx, WatermarkRecord_word_used(w), word)


cdef inline void discharge_watermark(Arena *a, WatermarkRecord *w) noexcept nogil:
    cdef ClientRecord *c = a.clients + w.setter
    if setter_generation(c) == w.setter_generation and c.state != CLIENT_STATE_FREE and c.watermarks:
        c.watermarks -= 1


cdef inline void apply_event(
    Arena *a, uint32_t slot, uint64_t number, KeyCommand *command, const uint8_t *name, const uint8_t *data,
    uint64_t hash,
) noexcept nogil:
    """Enter an event into the ring and begin to deliver it."""
    cdef uint64_t limit = 0
    cdef uint32_t known = 0, value = 0, key_blob = 0, flags = 0, blocks, evicted = 0
    cdef uint32_t code = refusal_of_key(a, command, &limit)
    cdef int room
    cdef bint wants = (command.flags & COMMAND_FLAG_WANTS_ANSWER) != 0, fresh
    cdef ClientRecord *c = a.clients + slot
    cdef EventRecord *e
    if code == ERROR_CODE_NONE and command.kind == COMMAND_KIND_CHECK:
        code = refusal_of_check(a, slot, &limit)
    if code != ERROR_CODE_NONE:
        refuse(a, slot, number, command.purgatory, code, limit)
        return
    if command.kind == COMMAND_KIND_ADVANCE or command.kind == COMMAND_KIND_FORGET:
        known = find_watermark(a, hash, command.purgatory, name, command.key_length)
        if (known != 0) == (command.kind == COMMAND_KIND_ADVANCE) and (
            known == 0 or a.watermarks[known - 1].watermark >= command.amount
        ):
            # The watermark stays as it is, so no event enters the ring: a late registration misses nothing.
            apply_plain(a, slot, number, wants, ERROR_CODE_NONE, 0)
            return
        if command.kind == COMMAND_KIND_ADVANCE and known == 0:
            if unused(a, REGION_WATERMARKS) == 0:
                limit = met(MET_WATERMARKS, capacity(a, REGION_WATERMARKS))
                refuse(a, slot, number, command.purgatory, ERROR_CODE_ARENA_FULL, limit)
                return
            if c.watermarks >= a.header.quota_watermarks:
                limit = met(MET_WATERMARKS, a.header.quota_watermarks)
                refuse(a, slot, number, command.purgatory, ERROR_CODE_QUOTA_EXCEEDED, limit)
                return
    fresh = command.kind == COMMAND_KIND_ADVANCE and known == 0
    value = value_of_newest(a, data, command.value_length, 0)
    blocks = 0 if value else blocks_for(command.value_length)
    if command.key_length > EVENT_KEY_INLINE:
        blocks += blocks_for(command.key_length)
    if fresh and command.key_length > KEY_INLINE:
        blocks += blocks_for(command.key_length)
    room = room_for(a, ROOM_BYTES, blocks, &evicted)
    while room == EVICTED:  # bound: EVICTED_AT_ONCE; it frees operations, and none was found above
        room = room_for(a, ROOM_BYTES, blocks, &evicted)
    if room == NO_ROOM:
        drop_blob(a, value)
        limit = met(MET_BLOCKS, capacity(a, REGION_BLOCKS))
        refuse(a, slot, number, command.purgatory, without_room(a, blocks), limit)
        return
    if fresh:
        known = fill_watermark(
            a, hash, command.purgatory, name, command.key_length,
            share_name(a, hash, command.purgatory, name, command.key_length) if command.key_length > KEY_INLINE else 0,
        )
    if value == 0:
        value = fill_blob(a, data, command.value_length)
    if command.key_length > EVENT_KEY_INLINE:
        key_blob = fill_blob(a, name, command.key_length)
    if command.flags & COMMAND_FLAG_LIMITED:
        flags |= EVENT_FLAG_LIMITED
    if wants:
        flags |= EVENT_FLAG_WANTS_ANSWER
    e = fill_event(
        a, event_kind(command.kind), command.purgatory, hash, name, command.key_length, command.amount,
        command.limit, flags, slot, number, value, key_blob, 0,
    )
    stage_event(a, e, NULL)
    if command.kind == COMMAND_KIND_ADVANCE:
        stage_watermark(a, slot, a.watermarks + (known - 1), command.amount)
        c.watermarks += fresh
    elif command.kind == COMMAND_KIND_FORGET:
        discharge_watermark(a, a.watermarks + (known - 1))
        td_put(
            &a.tx, WatermarkRecord_word_used(a.watermarks + (known - 1)),
            WatermarkRecord_with_used(WatermarkRecord_word_used(a.watermarks + (known - 1))[0], 0),
        )
    commit_command(a, slot, number, False, ERROR_CODE_NONE, 0)  # finish_delivery() leaves the answer
    a.header.ring_bytes += command.value_length + blob_length(a, key_blob)
    counter(a, command.purgatory, COUNT_EVENTS)[0] += 1
    a.turn.touched += 1
    if command.kind == COMMAND_KIND_FORGET:
        free_watermark(a, known)
    if command.kind == COMMAND_KIND_CHECK:
        begin_check(a, slot, number, e.sequence)
    begin_delivery(a, e)
    deliver(a)


cdef inline void apply_cancel(
    Arena *a, uint32_t slot, uint64_t number, OpRecord *op, OperationCommand *command, bint wants
) noexcept nogil:
    """Cancel a pending operation, in one transaction with the command's number.

    With REQUEUE the owner has given the operation up, and an unacknowledged grant is requeued.
    """
    cdef AnswerRecord *answer
    cdef Verdict v
    if op != NULL and command.flags & COMMAND_FLAG_REQUEUE and op.state == OP_STATE_SETTLED:
        if op.flags & OP_FLAG_GRANTED and op.outcome_number > a.clients[slot].acknowledged:
            requeue_grant(a, op, slot, number, command)
            return
    if op == NULL or op.state != OP_STATE_PENDING:
        apply_plain(a, slot, number, wants, ERROR_CODE_NONE, 0)
        return
    adopt_if_orphaned(a, op)
    v = unmoved(op)
    journal_action(a, slot, number, op, command, op.deadline_ns)
    stage_settle(a, op, OUTCOME_CANCELLED, 0, NULL, &v)
    answer = commit_command(a, slot, number, wants, ERROR_CODE_NONE, 1)
    finish_settle(a, op, True)
    keep_answer(a, answer)


cdef inline void apply_reschedule(
    Arena *a, uint32_t slot, uint64_t number, OpRecord *op, OperationCommand *command, bint wants
) noexcept nogil:
    """Give a pending operation a new deadline. If this deadline is past, the operation expires at the next tick."""
    cdef AnswerRecord *answer
    cdef uint64_t deadline_ns = deadline_of(a, command.registered_ns, command.timeout_ns)
    if op == NULL or op.state != OP_STATE_PENDING:
        apply_plain(a, slot, number, wants, ERROR_CODE_NONE, 0)
        return
    if deadline_ns == NO_DEADLINE and op.group == 0 and op.client_generation == 0:
        deadline_ns = after_retention(a, a.turn.now_ns)  # the operation has no owner, so it needs an end
    count_endless(a, op, -1)
    td_put(&a.tx, &op.deadline_ns, deadline_ns)
    if wall_time_of(op):
        td_put(&a.tx, &first_node(op).target, 0)  # the caller's delay counts, whatever the wall clock shows
    journal_action(a, slot, number, op, command, deadline_ns)
    answer = commit_command(a, slot, number, wants, ERROR_CODE_NONE, 1)
    count_endless(a, op, 1)
    wheel_remove(a, op)
    wheel_insert(a, op)
    counter(a, op.purgatory, COUNT_RESCHEDULED)[0] += 1
    keep_answer(a, answer)


cdef inline void apply_orphans(
    Arena *a, uint32_t slot, uint64_t number, OpRecord *op, OperationCommand *command, bint wants
) noexcept nogil:
    cdef uint64_t limit = 0
    # An operation that observes its keys belongs to its client alone: its outcome is of no use to a group.
    if op == NULL or op.state != OP_STATE_PENDING or op.condition == CONDITION_OBSERVE:
        apply_plain(a, slot, number, wants, ERROR_CODE_NONE, 0)
        return
    if command.orphans != ORPHANS_CANCEL and op.orphans == ORPHANS_CANCEL and takes_last_quarter(
        a, slot, op.keys - 1, op.payload, op.id_record != 0, &limit
    ):
        refuse(a, slot, number, command.purgatory, ERROR_CODE_QUOTA_EXCEEDED, limit)
        return
    td_put(&a.tx, OpRecord_word_orphans(op), OpRecord_with_orphans(OpRecord_word_orphans(op)[0], command.orphans))
    journal_action(a, slot, number, op, command, op.deadline_ns)
    apply_plain(a, slot, number, wants, ERROR_CODE_NONE, 1)


cdef inline void apply_done(
    Arena *a, uint32_t slot, uint64_t number, OpRecord *op, uint32_t freed_id, bint wants
) noexcept nogil:
    """GROUP_ACK: the work for a group's outcome is done, and `op` ends. NULL: the sender may end no such outcome.

    `freed_id`: this id (index + 1) counts as cancelled from now on, so that its name is free; 0 = none.
    """
    cdef AnswerRecord *answer
    cdef uint64_t *word
    cdef bint was_held = op != NULL and op.client_generation != 0
    if op == NULL and freed_id == 0:
        apply_plain(a, slot, number, wants, ERROR_CODE_NONE, 0)
        return
    if freed_id:
        word = IdRecord_word_outcome(&a.ids[freed_id - 1])
        td_put(&a.tx, word, IdRecord_with_outcome(word[0], OUTCOME_CANCELLED))
    if op != NULL:
        stage_done(a, op, slot, number)
    answer = commit_command(a, slot, number, wants, ERROR_CODE_NONE, op != NULL)
    if op != NULL:
        finish_done(a, op, was_held)
    keep_answer(a, answer)


cdef inline void apply_cancel_due(
    Arena *a, uint32_t slot, uint64_t number, OpRecord *op, IdRecord *id, bint wants
) noexcept nogil:
    """CANCEL_ID of a call that is due and that no member runs: the call is freed, and its id counts as cancelled."""
    cdef AnswerRecord *answer
    cdef uint64_t *word = IdRecord_word_outcome(id)
    td_put(&a.tx, word, IdRecord_with_outcome(word[0], OUTCOME_CANCELLED))
    stage_withdrawn(a, op, slot, number)
    answer = commit_command(a, slot, number, wants, ERROR_CODE_NONE, 1)
    finish_free(a, op)
    keep_answer(a, answer)


cdef inline void apply_call_phase(
    Arena *a, uint32_t slot, uint64_t number, CallCommand *command, const uint8_t *reason, uint32_t length
) noexcept nogil:
    """CALL_PHASE: this member is about to run something for a call that it holds, or a member gives a call up.

    The answer is the phase of the call, or 0 if this member does not hold the call, or holds it no longer. The phase is
    higher than the command's if on_failure has begun before, or if another member has given the call up. The member may
    run only the phase that it has asked for. Each phase has its own count of the processes that ended in it.

    A member that does not hold the call can give it up only while no other member runs it. Example: a member falls
    silent in the last attempt, which fails. Meanwhile another member runs the call, and may succeed.
    """
    cdef bint wants = (command.flags & COMMAND_FLAG_WANTS_ANSWER) != 0, gives_up = command.phase == CALL_PHASE_FAILED
    cdef AnswerRecord *answer
    cdef OpRecord *op
    cdef uint32_t old, value = 0
    a.turn.touched += 1
    if not CALL_PHASE_DUE < command.phase <= CALL_PHASE_FAILED:
        refuse(a, slot, number, command.purgatory, ERROR_CODE_INVALID_VALUE, CALL_PHASE_FAILED)
        return
    if length > (CALL_REASON_SIZE_MAX if gives_up else 0):
        refuse(a, slot, number, command.purgatory, ERROR_CODE_INVALID_VALUE, CALL_REASON_SIZE_MAX if gives_up else 0)
        return
    op = find_held(a, slot, command.operation)
    if op == NULL and gives_up:
        op = find_call(a, slot, command.operation)
        if op != NULL and is_running(op) and not TD_DEFECT(DEFECT_ENDED_BY_FORMER_HOLDER):
            op = NULL  # the member that runs the call decides how it ends
    if op == NULL or not op.flags & OP_FLAG_CALL:
        apply_plain(a, slot, number, wants, ERROR_CODE_NONE, 0)
        return
    if command.phase < phase_of(op):
        apply_plain(a, slot, number, wants, ERROR_CODE_NONE, phase_of(op))
        return
    if length and make_room(a, blocks_for(length)):
        value = fill_blob(a, reason, length)  # without room, the call is given up without its reason
    old = op.value
    if value:
        leave_if_evictable(a, op)  # its bytes change
    stage_phase(a, op, command.phase, op.error >> CALL_ENDS_SHIFT if command.phase == phase_of(op) else 0)
    if gives_up:
        stage_runs(a, op, 0, 0)
    else:
        stage_runs(a, op, a.turn.now_ns, command.limit_ns)
    if value:
        td_put(&a.tx, OpRecord_word_value(op), OpRecord_with_value(OpRecord_word_value(op)[0], value))
    journal_group(
        a, op, GROUP_STEP_BEGAN, op.group, slot, a.clients[slot].generation, op.deliveries, op.outcome_number, number
    )
    answer = commit_command(a, slot, number, wants, ERROR_CODE_NONE, command.phase)
    if value:
        charge(a, op, 0, 0, 0, <int64_t>length - <int64_t>blob_length(a, old))
        drop_blob(a, old)
        if waits_for_member(op):
            join_if_left(a, op)
    keep_answer(a, answer)


cdef inline uint32_t id_of(Arena *a, OperationCommand *command, const uint8_t *id) noexcept nogil:
    """The record (index + 1) of the command's id, 0 if it is not known."""
    cdef uint64_t low, high
    memcpy(&low, id, 8)
    memcpy(&high, id + 8, 8)
    return find_id(a, id_hash(a.seed, command.purgatory, low, high), command.purgatory, low, high)


cdef inline void apply_group_ack(
    Arena *a, uint32_t slot, uint64_t number, OperationCommand *command, const uint8_t *id, bint wants
) noexcept nogil:
    """GROUP_ACK. With FREES_ID it carries an id, which it frees. With OF_LETTER it drops a dead letter."""
    cdef uint32_t known
    if command.flags & COMMAND_FLAG_OF_LETTER:
        apply_done(a, slot, number, find_letter(a, slot, command.operation), 0, wants)
    elif command.flags & COMMAND_FLAG_FREES_ID:
        known = id_of(a, command, id)
        if known and (
            a.ids[known - 1].state != ID_STATE_SETTLED or a.ids[known - 1].settled_ns != command.registered_ns
        ):
            known = 0  # the id names another operation by now
        apply_done(a, slot, number, find_call(a, slot, command.operation), known, wants)
    else:
        apply_done(a, slot, number, find_held(a, slot, command.operation), 0, wants)


cdef inline void apply_operation(
    Arena *a, uint32_t slot, uint64_t number, OperationCommand *command, const uint8_t *id, Prefetched *ahead
) noexcept nogil:
    """Apply an OperationCommand.

    CANCEL, RESCHEDULE and SET_ORPHANS concern an operation of the client itself. CANCEL_ID and RESCHEDULE_ID concern
    any operation with an id, and GROUP_ACK a group's outcome.
    """
    cdef bint wants = (command.flags & COMMAND_FLAG_WANTS_ANSWER) != 0
    cdef OpRecord *op
    cdef uint32_t known, tag
    a.turn.touched += 1
    if command.timeout_ns != NO_DEADLINE and command.timeout_ns > TIMEOUT_NS_MAX:
        refuse(a, slot, number, command.purgatory, ERROR_CODE_TIMEOUT_OUT_OF_RANGE, TIMEOUT_NS_MAX)
        return
    if command.kind == COMMAND_KIND_GROUP_ACK:
        apply_group_ack(a, slot, number, command, id, wants)
        return
    if command.flags & COMMAND_FLAG_HAS_ID:
        known = id_of(a, command, id)
        if command.kind == COMMAND_KIND_CANCEL_ID and known and a.ids[known - 1].state == ID_STATE_SETTLED:
            op = due_call(a, a.ids + (known - 1))
            if op != NULL:
                apply_cancel_due(a, slot, number, op, a.ids + (known - 1), wants)
                return
        if known == 0 or a.ids[known - 1].state != ID_STATE_LIVE:
            refuse(a, slot, number, command.purgatory, ERROR_CODE_UNKNOWN_OPERATION, 0)
            return
        op = a.ops + (a.ids[known - 1].op - 1)
    else:
        tag = ahead.tag if ahead.kind else handle_tag(a.seed, slot, command.operation)
        op = find_operation(a, slot, command.operation, tag)
    if command.kind == COMMAND_KIND_CANCEL or command.kind == COMMAND_KIND_CANCEL_ID:
        apply_cancel(a, slot, number, op, command, wants)
    elif command.kind == COMMAND_KIND_RESCHEDULE or command.kind == COMMAND_KIND_RESCHEDULE_ID:
        apply_reschedule(a, slot, number, op, command, wants)
    elif command.orphans >= ORPHANS_COUNT:
        refuse(a, slot, number, command.purgatory, ERROR_CODE_INVALID_VALUE, ORPHANS_GROUP)
    elif command.orphans == ORPHANS_GROUP and a.clients[slot].group == 0:
        refuse(a, slot, number, command.purgatory, ERROR_CODE_NOT_A_MEMBER, 0)
    else:
        apply_orphans(a, slot, number, op, command, wants)


cdef inline void apply_looked(
    Arena *a, uint32_t slot, uint64_t number, OpRecord *op, LookCommand *command, bint wants
) noexcept nogil:
    """LOOKED: the owner has evaluated its condition up to an event, and it does not hold. `op`: pending, or NULL."""
    cdef uint64_t looked
    cdef bint pending = op != NULL
    if op != NULL:
        looked = min(command.sequence, op.progress)
        if looked <= op.failed:
            op = NULL  # the command changes nothing
        else:
            td_put(&a.tx, &op.failed, looked)
    apply_plain(a, slot, number, wants, ERROR_CODE_NONE, pending)
    if op != NULL:
        note_look(a, op, looked)


cdef inline void apply_complete(
    Arena *a, uint32_t slot, uint64_t number, OpRecord *op, LookCommand *command, bint wants
) noexcept nogil:
    """COMPLETE: the owner's condition holds. `op`: pending, or NULL. The deadline wins if it is past."""
    cdef AnswerRecord *answer
    cdef uint32_t outcome = OUTCOME_COMPLETED
    cdef Verdict v
    if op == NULL:
        apply_plain(a, slot, number, wants, ERROR_CODE_NONE, 0)
        return
    if op.deadline_ns <= effective_ns(a) and not TD_DEFECT(DEFECT_COMPLETE_IS_NEVER_LATE):
        outcome = OUTCOME_EXPIRED
    else:
        put_action(
            a, slot, a.clients[slot].generation, number, op, COMMAND_KIND_COMPLETE, command.flags, 0, op.deadline_ns
        )
    v = unmoved(op)
    stage_settle(a, op, outcome, 0, NULL, &v)
    answer = commit_command(a, slot, number, wants, ERROR_CODE_NONE, outcome == OUTCOME_COMPLETED)
    if outcome == OUTCOME_COMPLETED:
        take_tickets_back(a, op, command.sequence, True)
    finish_settle(a, op, True)
    keep_answer(a, answer)


cdef inline void apply_look(Arena *a, uint32_t slot, uint64_t number, LookCommand *command) noexcept nogil:
    """LOOKED and COMPLETE of the client's own operation under CONDITION_OWNER. They change no other operation."""
    cdef OpRecord *op = find_operation(a, slot, command.operation, handle_tag(a.seed, slot, command.operation))
    cdef bint wants = (command.flags & COMMAND_FLAG_WANTS_ANSWER) != 0
    a.turn.touched += 1
    if op != NULL and (op.state != OP_STATE_PENDING or op.condition != CONDITION_OWNER):
        op = NULL
    if command.kind == COMMAND_KIND_LOOKED:
        apply_looked(a, slot, number, op, command, wants)
    else:
        apply_complete(a, slot, number, op, command, wants)


cdef inline bint needs_id(OperationCommand *command) noexcept nogil:
    if command.kind == COMMAND_KIND_GROUP_ACK:
        return command.flags & COMMAND_FLAG_FREES_ID != 0
    return command.kind == COMMAND_KIND_CANCEL_ID or command.kind == COMMAND_KIND_RESCHEDULE_ID


cdef inline bint apply_command(Arena *a, uint32_t slot, uint64_t number, Prefetched *ahead) noexcept nogil:
    """Apply a prefetched command; False if it is malformed."""
    cdef const uint8_t *p = ahead.at
    cdef uint64_t hash
    cdef uint32_t kind = p[0], purgatory = p[1], length = ahead.length, variable
    cdef KeyCommand *key
    cdef OperationCommand *operation
    cdef Registration r
    if not purgatory_is_open(a, purgatory):
        return False
    if kind == COMMAND_KIND_REGISTER:
        if length < sizeof(RegisterCommand):
            return False
        r.command = <RegisterCommand *>p
        r.number = number
        r.slot = slot
        r.hashed = ahead.kind != 0
        r.first_hash = ahead.hash
        r.tag = ahead.tag if ahead.kind else handle_tag(a.seed, slot, number)
        return apply_register(a, &r, p + length)
    if COMMAND_KIND_FIRE <= kind <= COMMAND_KIND_CHECK:
        key = <KeyCommand *>p
        if length < sizeof(KeyCommand):
            return False
        if <uint64_t>length != <uint64_t>sizeof(KeyCommand) + key.key_length + key.value_length:
            return False
        p += sizeof(KeyCommand)
        hash = ahead.hash if ahead.kind else key_hash(a.seed, purgatory, p, key.key_length)
        apply_event(a, slot, number, key, p, p + key.key_length, hash)
        return True
    if COMMAND_KIND_LOOKED <= kind <= COMMAND_KIND_COMPLETE:
        if length != sizeof(LookCommand):
            return False
        apply_look(a, slot, number, <LookCommand *>p)
        return True
    if kind == COMMAND_KIND_CALL_PHASE:
        if length < sizeof(CallCommand):
            return False
        apply_call_phase(a, slot, number, <CallCommand *>p, p + sizeof(CallCommand), length - sizeof(CallCommand))
        return True
    if COMMAND_KIND_CANCEL <= kind <= COMMAND_KIND_GROUP_ACK:
        operation = <OperationCommand *>p
        if length < sizeof(OperationCommand):
            return False
        variable = 16 if operation.flags & COMMAND_FLAG_HAS_ID else 0
        if length != sizeof(OperationCommand) + variable:
            return False
        if needs_id(operation) != (variable != 0):
            return False
        apply_operation(a, slot, number, operation, p + sizeof(OperationCommand), ahead)
        return True
    return False
