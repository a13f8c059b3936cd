"""Registration: an operation behaves as if registered at its mark (DESIGN.md, rule 4).

The record is filled while nothing reaches it: its keys, its payload, and the replay of the events that the ring holds
after the mark. Then one transaction makes the operation true, pending or settled already, together with the client's
command number, the id and the outcome number. So a crash leaves either nothing of the operation or all of it.
register_command.pxd reads the command, and quota.pxd may refuse it.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp
from timerd.purgatory.memory.arena cimport Arena, capacity, effective_ns, unused
from timerd.purgatory.memory.blob cimport blob_length, drop_blob, fill_blob
from timerd.purgatory.memory.counters cimport counter
from timerd.purgatory.memory.hash cimport id_hash
from timerd.purgatory.memory.nodes cimport allocate_node, first_node, names_of, next_node, node_of
from timerd.purgatory.memory.slab cimport allocate, free_record
from timerd.purgatory.memory.transaction cimport TD_DEFECT, td_put
from timerd.purgatory.journal.rows cimport journal_register
from timerd.purgatory.index.ids cimport find_id, free_id
from timerd.purgatory.index.remembered_ids cimport fill_id, leave_remembered
from timerd.purgatory.index.keys cimport fill_node, free_nodes
from timerd.purgatory.index.operation_table cimport handle_insert
from timerd.purgatory.index.purgatories cimport is_before
from timerd.purgatory.index.watchers cimport attach
from timerd.purgatory.index.watermarks cimport find_watermark
from timerd.purgatory.wheel.wheel cimport wheel_insert
from timerd.purgatory.events.ring cimport REPLAY_TOO_OLD, event_at, find_events, sort_found, without_room
from timerd.purgatory.members.accounts cimport fill_account
from timerd.purgatory.members.answers cimport commit_command, keep_answer, met, refuse, refuse_for
from timerd.purgatory.members.clients cimport charge, charge_id, nodes_of
from timerd.purgatory.members.calls cimport due_call, phase_of, stage_id_calls
from timerd.purgatory.members.groups cimport adopt_if_orphaned
from timerd.purgatory.members.looks cimport list_look, look_is_due
from timerd.purgatory.members.state cimport ROOM_BYTES, ROOM_NODES, ROOM_OPERATIONS
from timerd_shm.generated.records cimport *

from .condition cimport Verdict, has_failures, is_used_up, judge, satisfy, settled_keys, unmoved
from .eviction cimport EVICTED, HAS_ROOM, NO_ROOM, room_for
from .letters cimport (
    Shortage, drop_oldest_letter, finish_done, letters_for, stage_done, stage_id_is_free, stage_withdrawn,
)
from .quota cimport find_followed, group_of, has_too_many_ids, is_call, refusal_of, shortage_of
from .register_command cimport Key, Registration, deadline_of, has_wall_time, read_registration, registered_of
from .settle cimport finish_free, finish_settle, is_overdue, stage_settle
from .wall_time cimport WALL_STEP_NS, deadline_by_wall, differ


cdef inline uint64_t kind_word(RegisterCommand *command, uint32_t orphans, uint32_t group, uint32_t flags) noexcept nogil:
    """OpRecord_word_keys: the condition, the orphans policy and the group."""
    cdef uint64_t word = OpRecord_with_needed(OpRecord_with_keys(0, command.keys), command.needed)
    word = OpRecord_with_condition(OpRecord_with_purgatory(word, command.purgatory), command.condition)
    word = OpRecord_with_flags(OpRecord_with_orphans(word, orphans), flags)
    return OpRecord_with_group(word, group)


cdef inline uint64_t owner_word(uint32_t slot, uint32_t generation) noexcept nogil:
    """OpRecord_word_client of an operation of that client that is in no bucket."""
    return OpRecord_with_client_generation(OpRecord_with_client(0, slot), generation)


cdef inline void fill_record(
    Arena *a, OpRecord *op, uint64_t number, uint64_t kind, uint64_t owner, uint64_t registered_ns, uint64_t deadline_ns,
    uint64_t progress,
) noexcept nogil:
    """Fill all fields but the state. The generation may change, because nothing reaches the record."""
    # A word with many fields is stored whole, because it is read again soon: after a store in parts, a processor would
    # wait for the word. The first word says FREE, no outcome.
    OpRecord_word_state(op)[0] = OpRecord_with_generation(0, op.generation + 1)
    op.settled_ns = 0
    op.registered_ns = registered_ns
    op.seen = a.header.newest
    op.progress = progress
    OpRecord_word_keys(op)[0] = kind
    op.command = number
    op.registration = a.header.registrations + 1
    op.id_record = 0
    op.payload = 0
    op.value = 0
    op.tag = 0
    op.failed = 0
    op.outcome_number = 0
    OpRecord_word_client(op)[0] = owner
    op.deadline_ns = deadline_ns
    op.error = 0
    op.prefetch_hint = 0


cdef inline void fill_operation(Arena *a, OpRecord *op, Registration *r) noexcept nogil:
    """Fill all fields but the state, as a command says them."""
    cdef RegisterCommand *command = r.command
    cdef uint32_t slot = r.slot
    cdef ClientRecord *c = a.clients + slot
    cdef uint32_t orphans = c.orphans, group = 0, generation = c.generation, flags = 0
    if command.flags & REGISTER_FLAG_ORPHANS_GIVEN:
        orphans = command.orphans
    if command.flags & REGISTER_FLAG_FOR_GROUP:
        orphans = ORPHANS_GROUP
        group = c.group
        generation = 0
        if command.flags & REGISTER_FLAG_CALL:
            flags = OP_FLAG_CALL | (OP_FLAG_ALONE if command.flags & REGISTER_FLAG_ALONE else 0)
            if command.flags & REGISTER_FLAG_SCHEDULED:
                flags |= OP_FLAG_SCHEDULED
    elif command.condition == CONDITION_OWNER:
        flags = OP_FLAG_OWNER
    fill_record(
        a, op, r.number, kind_word(command, orphans, group, flags), owner_word(slot, generation),
        registered_of(a, command.registered_ns), planned_by(a, r),
        command.total if command.condition == CONDITION_TOTAL else 0,
    )


cdef inline uint64_t planned_by(Arena *a, Registration *r) noexcept nogil:
    """The deadline of a registration. If the wall clock was set after the sender read it, a call follows that clock."""
    cdef uint64_t deadline_ns = deadline_of(a, r.command.registered_ns, r.command.timeout_ns), planned_ns
    if not has_wall_time(r.command) or a.turn.wall_ahead_ns == 0:
        return deadline_ns
    planned_ns = deadline_by_wall(a, r.command.mark_command)
    if not differ(planned_ns, max(deadline_ns, a.turn.now_ns), WALL_STEP_NS):
        return deadline_ns
    return max(planned_ns, registered_of(a, r.command.registered_ns))


cdef inline void fill_payload(Arena *a, OpRecord *op, const uint8_t *payload, uint32_t length) noexcept nogil:
    """Fill the payload. The caller has checked that enough blocks are free."""
    if length:
        op.payload = fill_blob(a, payload, length)


cdef inline void fill_id_record(OpRecord *op, uint32_t id_record) noexcept nogil:
    op.id_record = id_record


cdef inline void fill_nodes(Arena *a, OpRecord *op, uint32_t op_index, Registration *r) noexcept nogil:
    """Fill a watch node for each key. The caller has checked that enough nodes are free."""
    cdef WatchNode *node = first_node(op)
    cdef uint32_t i, number
    cdef Key *key
    for i in range(r.command.keys):  # bound: KEYS_MAX
        if i:
            number = allocate_node(a)
            node.next_of_op = number
            node = node_of(a, number - 1)
        key = &r.keys[i]
        fill_node(a, node, op_index, i, key.kind, key.target, key.hash, r.command.purgatory, key.name, key.length)


cdef inline void fill_replay(Arena *a, OpRecord *op, Registration *r, Verdict *v, EventRecord **by, uint32_t *ordinal,
                             uint32_t *code) noexcept nogil:
    """The meaning of the events after the mark, and of present watermarks, to the operation.

    `v.outcome`: whether it has settled. `by`: the event that settled it (NULL: a watermark). `ordinal`: through which
    key. `code`: MARK_TOO_OLD if an event may have been missed.
    """
    cdef RegisterCommand *command = r.command
    cdef EventRecord *e
    cdef Key *key
    cdef uint32_t i, count = 0, walked = 0, found
    cdef uint64_t mark = command.mark_sequence
    by[0] = NULL
    code[0] = ERROR_CODE_NONE
    v[0] = unmoved(op)
    a.delivery.count = 0
    if not command.flags & REGISTER_FLAG_NO_MARK and not TD_DEFECT(DEFECT_NO_REPLAY):
        if mark > a.header.newest or is_before(a, mark, command.purgatory):  # a mark ahead is of another arena
            code[0] = ERROR_CODE_MARK_TOO_OLD
            return
        for i in range(command.keys):  # bound: KEYS_MAX
            count = find_events(
                a, mark, r.keys[i].hash, command.purgatory, r.keys[i].name, r.keys[i].length, i, count, &walked
            )
            if count == REPLAY_TOO_OLD:
                code[0] = ERROR_CODE_MARK_TOO_OLD
                break
        a.turn.touched += walked  # walks in vain count, too, and they are the longest
        if code[0] != ERROR_CODE_NONE:
            return
        if count > 1:
            sort_found(a, count)
        a.delivery.count = count
        for i in range(count):  # bound: REPLAY_WALK_MAX
            e = event_at(a, a.delivery.found[i].sequence)
            if (
                e.client == r.slot
                and e.client_generation == a.clients[r.slot].generation
                and not command.flags & REGISTER_FLAG_MARK_BY_SEQUENCE
                and e.command <= command.mark_command
                and not TD_DEFECT(DEFECT_MARK_IGNORES_OWN_COMMANDS)
            ):
                # This client issued the event before it read the mark: the event lies before the mark.
                continue
            if is_overdue(op, e):
                # This event comes too late, and so do later ones. The outcome's mark stands before this event, so a
                # new registration since that mark counts the event.
                op.seen = e.sequence - 1
                break
            ordinal[0] = a.delivery.found[i].ordinal
            if is_used_up(e, r.keys[ordinal[0]].kind):
                continue
            v[0] = judge(op, r.keys[ordinal[0]].kind, ordinal[0], r.keys[ordinal[0]].target, e)
            a.delivery.found[i].failed = e.kind == EVENT_KIND_FAIL and v[0].changed
            if v.outcome != OUTCOME_NONE:
                by[0] = e
                return
            op.progress = v.progress
            op.failed = v.failed
    # A watermark is state: the present one counts, even if it was reached after the deadline.
    for i in range(command.keys):  # bound: KEYS_MAX
        key = &r.keys[i]
        if key.kind != KEY_KIND_WATERMARK:
            continue
        found = find_watermark(a, key.hash, command.purgatory, key.name, key.length)
        if found and a.watermarks[found - 1].watermark >= key.target:
            ordinal[0] = i
            v[0] = satisfy(op, i)
            if v.outcome != OUTCOME_NONE:
                return
            op.progress = v.progress
    v[0] = unmoved(op)


cdef inline void fill_failures(Arena *a, OpRecord *op, uint64_t failed) noexcept nogil:
    """Enter the codes of the keys that fill_replay() has found failed.

    The codes take the place of the targets. The journal's rows have the targets, and are written already.
    """
    cdef WatchNode *node = first_node(op)
    cdef uint32_t i
    while node != NULL:  # bound: KEYS_MAX
        if failed & (<uint64_t>1 << node.ordinal):
            for i in range(a.delivery.count):  # bound: REPLAY_WALK_MAX
                if a.delivery.found[i].failed and a.delivery.found[i].ordinal == node.ordinal:
                    node.target = event_at(a, a.delivery.found[i].sequence).amount
                    break
        node = next_node(a, node)


cdef inline void abandon(Arena *a, OpRecord *op, uint32_t fresh_id) noexcept nogil:
    """Free all records of a registration that is not applied. Nothing leads to them yet."""
    if fresh_id:
        free_id(a, fresh_id)
    drop_blob(a, op.payload)
    free_nodes(a, op)
    free_record(a, REGION_OPS, <uint32_t>(op - a.ops))


cdef inline bint is_changed(Arena *a, Registration *r, OpRecord *op) noexcept nogil:
    """Whether a registration is a changed form of an operation: its payload is of the same sort, but has other values.

    The first bytes of both payloads, which name their sort, are equal, and their first `total` bytes are not.
    """
    cdef uint32_t length = <uint32_t>r.command.total
    cdef const uint8_t *data
    if length == 0 or blob_length(a, op.payload) < length:
        return False
    data = a.blocks[op.payload - 1].data
    return data[0] == r.payload[0] and memcmp(data, r.payload, length) != 0


cdef inline OpRecord *waiting_under(Arena *a, IdRecord *record, OpRecord *followed) noexcept nogil:
    """The pending operation of an id, or its call that is due and does not run; NULL: none, or it is `followed`."""
    cdef OpRecord *op = a.ops + (record.op - 1) if record.state == ID_STATE_LIVE else due_call(a, record)
    return NULL if op == followed else op


cdef inline bint has_begun(OpRecord *op) noexcept nogil:
    """Whether a member has run something for a call."""
    return op.state == OP_STATE_SETTLED and phase_of(op) != CALL_PHASE_DUE


cdef inline bint is_made_again(RegisterCommand *command) noexcept nogil:
    """Whether a call may follow a running call of its id, but is dropped if any other call of the id exists."""
    return is_call(command) and command.flags & REGISTER_FLAG_KEEP and command.flags & REGISTER_FLAG_REPLACE


cdef inline bint may_replace(Arena *a, Registration *r, IdRecord *record, OpRecord *waiting) noexcept nogil:
    """Whether a registration may take over an id that exists, and under which `waiting` waits (NULL: nothing does)."""
    cdef RegisterCommand *command = r.command
    cdef bint is_over = record.state == ID_STATE_SETTLED and record.outcome == OUTCOME_CANCELLED
    if is_made_again(command):
        # A call that has begun elsewhere may still be done there: it counts as one that runs.
        return is_over if waiting == NULL and record.call == 0 else waiting == NULL or has_begun(waiting)
    if command.flags & REGISTER_FLAG_REPLACE_CHANGED and waiting != NULL:
        # An operation that is due stays: it is about to happen.
        return waiting.state == OP_STATE_PENDING and waiting.deadline_ns > effective_ns(a) and is_changed(a, r, waiting)
    if command.flags & REGISTER_FLAG_REPLACE_CANCELLED:
        return is_over
    return command.flags & REGISTER_FLAG_REPLACE != 0


cdef inline bint id_is_taken(Arena *a, Registration *r) noexcept nogil:
    """Whether the registration has an id that exists and that it may not take over."""
    cdef OpRecord *followed = find_followed(a, r) if r.command.flags & REGISTER_FLAG_FOLLOWS else NULL
    cdef uint32_t known = 0
    if r.command.flags & REGISTER_FLAG_HAS_ID:
        known = find_id(
            a, id_hash(a.seed, r.command.purgatory, r.id_low, r.id_high), r.command.purgatory, r.id_low, r.id_high
        )
    return known and not may_replace(a, r, a.ids + (known - 1), waiting_under(a, a.ids + (known - 1), followed))


cdef inline bint give_way(Arena *a, Registration *r, uint32_t operations, uint32_t blocks) noexcept nogil:
    """Drop dead letters of the group that registers; False if these would not make enough room.

    `operations`, `blocks`: how many of these the arena lacks for the registration; both are 0 if a quota refuses it.
    """
    cdef GroupRecord *g
    cdef Shortage lacks
    cdef uint32_t count
    if group_of(a, r) == 0:
        return False
    g = a.groups + (group_of(a, r) - 1)
    if g.letters == 0:
        return False
    lacks = shortage_of(a, r, g)
    lacks.operations = max(lacks.operations, operations)
    lacks.blocks = blocks
    if lacks.operations == 0 and lacks.bytes == 0 and blocks == 0:
        return False
    count = letters_for(a, g, lacks, find_followed(a, r) if r.command.flags & REGISTER_FLAG_FOLLOWS else NULL)
    for _ in range(count):  # bound: LETTERS_AT_ONCE
        drop_oldest_letter(a, g)
    return count != 0


cdef inline void stage_calls_of_id(
    Arena *a, IdRecord *id, OpRecord *op, bint due, OpRecord *followed, OpRecord *superseded
) noexcept nogil:
    """Stage which calls the id names after the registration of `op`. `due`: it is due at once, not pending."""
    cdef uint32_t call = id.call, running = id.running
    if followed != NULL and running == <uint32_t>(followed - a.ops) + 1:
        running = 0
    if superseded != NULL and running == <uint32_t>(superseded - a.ops) + 1:
        running = 0
    if (followed != NULL and call == <uint32_t>(followed - a.ops) + 1) or superseded != NULL:
        call = 0
    stage_id_calls(a, id, <uint32_t>(op - a.ops) + 1 if due else call, running)


cdef inline void attach_nodes(Arena *a, OpRecord *op) noexcept nogil:
    """Let a pending operation watch its keys, except those that are satisfied or failed."""
    cdef WatchNode *node = first_node(op)
    cdef uint32_t number = <uint32_t>(op - a.ops) + 1
    while node != NULL:  # bound: KEYS_MAX
        if not settled_keys(op) & (<uint64_t>1 << node.ordinal):
            attach(a, node, number)
        number = node.next_of_op
        node = next_node(a, node)


cdef inline void count_registered(Arena *a, uint32_t purgatory, uint32_t count, uint32_t pending) noexcept nogil:
    """Count the operations that one transaction has made true. `pending`: how many of them are pending."""
    counter(a, purgatory, COUNT_REGISTERED)[0] += count
    counter(a, purgatory, COUNT_PENDING)[0] += pending
    a.turn.touched += count


cdef inline void link_registered(
    Arena *a, OpRecord *op, uint32_t index, uint32_t tag, bint owned, bint pending
) noexcept nogil:
    """An operation is true: if a client owns it, its command number leads to it; if it is pending, it has a bucket."""
    if owned:
        handle_insert(a, index, tag)
    if pending:
        wheel_insert(a, op)


cdef inline int find_room(Arena *a, Registration *r, uint32_t *code, uint64_t *limit) noexcept nogil:
    """HAS_ROOM, EVICTED or NO_ROOM, for a registration (see room_for). NO_ROOM: `code` and `limit` say why."""
    cdef uint32_t operations = 0, blocks = 0
    cdef int room = room_for(a, ROOM_BYTES, r.blocks, &r.evicted)
    if room == NO_ROOM:
        blocks = r.blocks - unused(a, REGION_BLOCKS)
        code[0] = without_room(a, r.blocks)
        limit[0] = met(MET_BLOCKS, capacity(a, REGION_BLOCKS))
    if room == HAS_ROOM:
        room = room_for(a, ROOM_OPERATIONS, 1, &r.evicted)
        if room == NO_ROOM:
            operations = 1
            code[0] = ERROR_CODE_ARENA_FULL
            limit[0] = met(MET_OPERATIONS, capacity(a, REGION_OPS))
    if room == NO_ROOM:
        return EVICTED if give_way(a, r, operations, blocks) else NO_ROOM
    if room == HAS_ROOM and r.command.keys > 1:
        room = room_for(a, ROOM_NODES, r.command.keys - 1, &r.evicted)
        if room == NO_ROOM:
            code[0] = ERROR_CODE_ARENA_FULL
            limit[0] = met(MET_NODES, capacity(a, REGION_NODES))
    return room


cdef inline bint apply_register(Arena *a, Registration *r, const uint8_t *end) noexcept nogil:
    """Apply a REGISTER command; False if it is malformed. A command with another fault is refused by its code."""
    if not read_registration(a, r, end):
        return False
    a.turn.touched += r.command.keys  # each key is hashed, compared and looked up, even if the command is refused
    r.evicted = 0
    while not register_or_make_room(a, r):  # bound: EVICTED_AT_ONCE, and twice LETTERS_AT_ONCE
        pass
    return True


cdef inline bint register_or_make_room(Arena *a, Registration *r) noexcept nogil:
    """Apply a registration. False: operations have made room, and the caller is to call again.

    One of these may be an operation that was found here, such as the call that is replaced. So all is looked up anew.
    """
    cdef RegisterCommand *command = r.command
    cdef OpRecord *op
    cdef OpRecord *replaced = NULL
    cdef OpRecord *followed = NULL
    cdef OpRecord *waiting = NULL
    cdef OpRecord *superseded = NULL
    cdef AnswerRecord *answer
    cdef EventRecord *by = NULL
    cdef IdRecord *id_record
    cdef Verdict v, old
    cdef uint64_t limit = 0, word
    cdef uint32_t code, index, hash = 0, known = 0, fresh_id = 0, payer = 0, ordinal = 0, settled_key = 0
    cdef bint remembered = False, pending, was_held = False
    code = refusal_of(a, r, &limit)
    if (code == ERROR_CODE_QUOTA_EXCEEDED or code == ERROR_CODE_ARENA_FULL) and not id_is_taken(a, r):
        if give_way(a, r, 0, 0):
            return False
    if code == ERROR_CODE_NONE and command.flags & REGISTER_FLAG_FOLLOWS:
        followed = find_followed(a, r)
        was_held = followed.client_generation != 0
    if code == ERROR_CODE_NONE and command.flags & REGISTER_FLAG_HAS_ID:
        hash = id_hash(a.seed, command.purgatory, r.id_low, r.id_high)
        known = find_id(a, hash, command.purgatory, r.id_low, r.id_high)
        if known:
            waiting = waiting_under(a, a.ids + (known - 1), followed)
        if known and not may_replace(a, r, a.ids + (known - 1), waiting):
            code = ERROR_CODE_OPERATION_EXISTS
            limit = a.ids[known - 1].outcome
        elif not known and command.registered_ns and command.registered_ns < a.header.ids_floor_ns:
            code = ERROR_CODE_TOO_OLD_TO_TELL
            limit = a.header.ids_floor_ns
        elif known and a.ids[known - 1].state == ID_STATE_LIVE:
            replaced = waiting
        else:
            superseded = NULL if is_made_again(command) else waiting
            remembered = known != 0
            payer = a.ids[known - 1].op - 1 if remembered else 0
        if replaced != NULL:
            adopt_if_orphaned(a, replaced)  # so that the group pays for it already
        if code == ERROR_CODE_NONE and has_too_many_ids(a, r, replaced, followed):
            code = ERROR_CODE_QUOTA_EXCEEDED
            limit = met(MET_IDS, a.header.quota_ids)
    if code == ERROR_CODE_NONE:
        if find_room(a, r, &code, &limit) == EVICTED and not TD_DEFECT(DEFECT_USES_WHAT_IS_EVICTED):
            return False
    if code != ERROR_CODE_NONE:
        refuse_for(a, r.slot, group_of(a, r), r.number, command.purgatory, code, limit)
        return True
    index = allocate(a, REGION_OPS) - 1
    op = a.ops + index
    fill_operation(a, op, r)
    fill_nodes(a, op, index, r)
    if op.group:
        fill_account(op, r.slot)
    fill_payload(a, op, r.payload, command.payload_length)
    if command.flags & REGISTER_FLAG_HAS_ID:
        if not known:
            known = fresh_id = fill_id(a, hash, command.purgatory, r.id_low, r.id_high)
            if known == 0:
                abandon(a, op, 0)
                limit = met(MET_IDS, capacity(a, REGION_IDS))
                refuse(a, r.slot, r.number, command.purgatory, ERROR_CODE_ARENA_FULL, limit)
                return True
        fill_id_record(op, known)
    fill_replay(a, op, r, &v, &by, &ordinal, &code)
    if code != ERROR_CODE_NONE:
        a.daemon[DAEMON_REPLAYS_TOO_OLD] += 1
        abandon(a, op, fresh_id)
        refuse(a, r.slot, r.number, command.purgatory, code, a.header.tail)
        return True
    if v.outcome != OUTCOME_NONE:
        settled_key = ordinal + 1
    elif op.deadline_ns <= effective_ns(a):
        v.outcome = OUTCOME_EXPIRED
    charge(a, op, 0, 0, 0, command.payload_length)  # before a value is charged: both have to fit into the quota
    # One transaction: the operation, its id, the one it replaces, the one it follows, an answer, the command's number.
    journal_register(a, op, r.slot, command)
    if has_failures(op, v.failed):
        fill_failures(a, op, v.failed)
    if command.flags & REGISTER_FLAG_FOLLOWS:
        if known != followed.id_record:
            stage_id_is_free(a, followed)  # the call goes on under another id
        stage_done(a, followed, r.slot, r.number)
    if superseded != NULL:
        stage_withdrawn(a, superseded, r.slot, r.number)
    if replaced != NULL:
        old = unmoved(replaced)
        stage_settle(a, replaced, OUTCOME_CANCELLED, 0, NULL, &old)
        # From now on the id names the new operation.
        td_put(
            &a.tx, OpRecord_word_id_record(replaced), OpRecord_with_id_record(OpRecord_word_id_record(replaced)[0], 0)
        )
    if v.outcome != OUTCOME_NONE:
        stage_settle(a, op, v.outcome, settled_key, by, &v)
    else:
        td_put(&a.tx, OpRecord_word_state(op), OpRecord_with_state(OpRecord_word_state(op)[0], OP_STATE_PENDING))
        if known:
            id_record = a.ids + (known - 1)
            word = IdRecord_with_state(IdRecord_word_state(id_record)[0], ID_STATE_LIVE)
            td_put(&a.tx, IdRecord_word_state(id_record), IdRecord_with_op(IdRecord_with_outcome(word, 0), index + 1))
    if known and op.flags & OP_FLAG_CALL:
        stage_calls_of_id(a, a.ids + (known - 1), op, v.outcome != OUTCOME_NONE, followed, superseded)
    answer = commit_command(a, r.slot, r.number, command.flags & REGISTER_FLAG_WANTS_ANSWER != 0, ERROR_CODE_NONE, 0)
    # The operation is true. The records that derive from it follow.
    pending = op.state == OP_STATE_PENDING
    a.header.registrations = op.registration
    charge(a, op, pending, 0, nodes_of(op), names_of(a, op))
    count_registered(a, op.purgatory, 1, pending)
    if remembered:
        leave_remembered(a, a.ids + (known - 1), payer)
    if replaced != NULL:
        charge_id(a, replaced, -1)
        finish_settle(a, replaced, True)
    if superseded != NULL:
        finish_free(a, superseded)
    if followed != NULL:
        finish_done(a, followed, was_held)
    link_registered(a, op, index, r.tag, op.group == 0, pending)
    if pending:
        attach_nodes(a, op)
        if look_is_due(op):
            list_look(a, op)
    else:
        if by != NULL:
            counter(a, op.purgatory, COUNT_REPLAYED)[0] += 1
        finish_settle(a, op, False)
    keep_answer(a, answer)
    return True
