"""Operations: what completes them, how they settle, and how an event reaches its watchers.

Settling is one transaction: state, outcome number, the client's next number, what a limited event has left, the id.
Behind it come the derived things: the bucket, ALL watcher lists, gauges, the owner's outcome list. So a settled operation
is nowhere but with its owner, at once; there is nothing to purge.

An event enters the ring in one transaction, and is then delivered operation by operation; each keeps the sequence it has
`seen`, so that a start can deliver the newest event again and nothing counts twice. A delivery that is too long for a
turn goes on from `cursor`; until it is done no other command is applied (rule 8). What a limited event gave to an owner
that does not take it (it died, or gives it back) is handed on: the operation ends, and a new event of limit 1 enters the
ring, with nothing allocated.
"""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy
from timerd.purgatory.memory.arena cimport (
    TOLD, Arena, News, commit, counter, give, histogram, histogram_add, index_of_node, key_of, node_of, spent,
    stage_numbers, unused,
)
from timerd.purgatory.memory.blob cimport blob_length, copy_blob, drop_blob, share_blob
from timerd.purgatory.memory.builtins cimport __builtin_popcountll, __builtin_prefetch
from timerd.purgatory.memory.list cimport answer_at, append, is_empty, link_of, node_at
from timerd.purgatory.memory.transaction cimport TD_DEFECT, TD_ORDERED_STORE, td_put
from timerd.purgatory.journal.rows cimport journal_action, journal_outcome
from timerd.purgatory.index.ids cimport settled_word
from timerd.purgatory.index.keys cimport detach, find_key, free_node, free_nodes, leave_key
from timerd.purgatory.index.operation_table cimport handle_remove
from timerd.purgatory.wheel.wheel cimport wheel_remove
from timerd.purgatory.events.ring cimport event_at, fill_event, stage_event
from timerd.purgatory.members.clients cimport (
    charge, fill_answer, is_live, keep_answer, leave_outcomes, nodes_of, owner_of, stage_answer, tell,
)
from timerd.purgatory.members.groups cimport adopt_if_orphaned, count_held, wait_in_group
from timerd_shm.generated.records cimport *


ctypedef struct Verdict:
    # What an event means to an operation: OUTCOME_NONE = it goes on, with these masks if `changed`.
    uint32_t outcome
    bint changed
    uint64_t progress
    uint64_t failed


cdef inline Verdict unmoved(OpRecord *op) noexcept nogil:
    cdef Verdict v
    v.outcome = OUTCOME_NONE
    v.changed = False
    v.progress = op.progress
    v.failed = op.failed
    return v


cdef inline uint64_t settled_keys(OpRecord *op) noexcept nogil:
    """The keys that are satisfied or failed: what happens on them means nothing to the operation any more."""
    if op.condition == CONDITION_TOTAL:
        return op.failed
    return op.progress | op.failed


cdef inline Verdict satisfy(OpRecord *op, uint32_t ordinal) noexcept nogil:
    """The key's own part of the condition holds."""
    cdef Verdict v = unmoved(op)
    cdef uint64_t bit = <uint64_t>1 << ordinal
    if settled_keys(op) & bit:
        return v
    v.changed = True
    v.progress |= bit
    if op.condition == CONDITION_ALL_SETTLED:
        if <uint32_t>__builtin_popcountll(v.progress | v.failed) == op.keys:
            v.outcome = OUTCOME_COMPLETED
    elif <uint32_t>__builtin_popcountll(v.progress) >= op.needed:
        v.outcome = OUTCOME_COMPLETED
    return v


cdef inline Verdict judge_fire(OpRecord *op, uint32_t ordinal, EventRecord *e) noexcept nogil:
    cdef Verdict v
    if op.condition == CONDITION_TOTAL:
        v = unmoved(op)
        if settled_keys(op) & (<uint64_t>1 << ordinal):
            return v
        v.changed = e.amount != 0
        if e.amount >= op.progress:
            v.progress = 0
            v.outcome = OUTCOME_COMPLETED
        else:
            v.progress -= e.amount
    else:
        v = satisfy(op, ordinal)
    # A limited event completes an operation or does not touch it.
    if e.flags & EVENT_FLAG_LIMITED and v.outcome == OUTCOME_NONE:
        return unmoved(op)
    return v


cdef inline Verdict judge_fail(OpRecord *op, uint32_t ordinal) noexcept nogil:
    cdef Verdict v = unmoved(op)
    cdef uint64_t bit = <uint64_t>1 << ordinal
    cdef uint32_t failures
    if settled_keys(op) & bit:
        return v
    v.changed = True
    v.failed |= bit
    failures = __builtin_popcountll(v.failed)
    if op.condition == CONDITION_ALL_SETTLED:
        if <uint32_t>__builtin_popcountll(v.progress | v.failed) == op.keys:
            v.outcome = OUTCOME_COMPLETED
    elif op.condition == CONDITION_TOTAL:
        if failures == op.keys:
            v.outcome = OUTCOME_FAILED
    elif op.keys - failures < op.needed:
        v.outcome = OUTCOME_FAILED
    return v


cdef inline bint is_completed_by_one(OpRecord *op, WatchNode *node) noexcept nogil:
    """Whether any fire on that key completes it, because it is the first and the last that it waits for."""
    return (
        op.keys == 1 and op.condition == CONDITION_AT_LEAST and node.kind == KEY_KIND_EVENT
        and op.progress == 0 and op.failed == 0
    )


cdef inline Verdict judge(OpRecord *op, uint32_t kind, uint32_t ordinal, uint64_t target, EventRecord *e) noexcept nogil:
    """What the event means to the operation through its key `ordinal`. Changes nothing."""
    cdef Verdict v = unmoved(op)
    if e.kind == EVENT_KIND_FIRE:
        if kind == KEY_KIND_EVENT:
            return judge_fire(op, ordinal, e)
    elif e.kind == EVENT_KIND_ADVANCE:
        if kind == KEY_KIND_WATERMARK and e.amount >= target:
            return satisfy(op, ordinal)
    elif e.kind == EVENT_KIND_FAIL:
        return judge_fail(op, ordinal)
    elif e.kind == EVENT_KIND_CANCEL_FOR_KEY:
        if not settled_keys(op) & (<uint64_t>1 << ordinal):
            v.outcome = OUTCOME_CANCELLED
    return v


cdef inline uint64_t handed_word(EventRecord *e) noexcept nogil:
    """The event's word after one more operation: one less left, if it is limited."""
    cdef uint64_t word = EventRecord_with_completed(EventRecord_word_completed(e)[0], e.completed + 1)
    if e.flags & EVENT_FLAG_LIMITED and not TD_DEFECT(DEFECT_LIMIT_NOT_LOWERED):
        word = EventRecord_with_left(word, e.left - 1)
    return word


cdef inline void fill_settlement(
    Arena *a, OpRecord *op, uint32_t value, uint64_t outcome_number, uint32_t error
) noexcept nogil:
    op.settled_ns = a.now_ns
    op.value = value
    op.outcome_number = outcome_number
    op.error = error


cdef inline void stage_outcome(
    Arena *a, OpRecord *op, uint32_t outcome, uint32_t settled_key, EventRecord *e, uint32_t flags, uint32_t value,
    uint64_t number, uint32_t error,
) noexcept nogil:
    """Stage the words by which any operation settles, and the journal's row. `number` 0: nobody is told of it now."""
    cdef uint32_t state = OP_STATE_SETTLED if number or op.group else OP_STATE_FREE
    stage_end(a, op, outcome, settled_key, e, flags, value, number, error, state)


cdef inline void stage_end(
    Arena *a, OpRecord *op, uint32_t outcome, uint32_t settled_key, EventRecord *e, uint32_t flags, uint32_t value,
    uint64_t number, uint32_t error, uint32_t state,
) noexcept nogil:
    """What stage_outcome() does, of an operation that has this state then."""
    cdef uint64_t word = OpRecord_word_state(op)[0]
    fill_settlement(a, op, value, number, error)
    word = OpRecord_with_state(OpRecord_with_outcome(OpRecord_with_settled_key(word, settled_key), outcome), state)
    td_put(&a.tx, OpRecord_word_state(op), word)
    if flags != op.flags:
        td_put(&a.tx, OpRecord_word_flags(op), OpRecord_with_flags(OpRecord_word_flags(op)[0], flags))
    if e != NULL:
        td_put(&a.tx, &op.seen, e.sequence)
    elif op.state == OP_STATE_PENDING:
        # True by itself, and before: it was given all that it watches. (Else it settles while it is registered.)
        TD_ORDERED_STORE(a.base, &op.seen, a.header.newest)
    journal_outcome(a, op, outcome, settled_key, flags, e, error)


cdef inline uint64_t next_number(Arena *a, uint32_t client) noexcept nogil:
    """The number of one more outcome of the client in this transaction; commit() moves its next number with it."""
    if a.staged_outcomes and a.staged_client != client:
        stage_numbers(a)
    a.staged_client = client
    a.staged_outcomes += 1
    return a.clients[client].next_outcome + a.staged_outcomes - 1


cdef inline uint32_t share_value(Arena *a, EventRecord *e, uint64_t *held, uint32_t *flags) noexcept nogil:
    """The event's value, for an operation that it settles, charged to what its owner has `held`.

    Or 0: it has none, or its owner holds too much to be given it, which `flags` say then.
    """
    cdef uint32_t length = blob_length(a, e.value)
    if length == 0:
        return 0
    if held[0] + length > a.header.quota_bytes:
        flags[0] |= OP_FLAG_VALUE_DROPPED
        return 0
    held[0] += length
    return share_blob(a, e.value)


cdef inline void stage_settle(
    Arena *a, OpRecord *op, uint32_t outcome, uint32_t settled_key, EventRecord *e, Verdict *v
) noexcept nogil:
    """Stage that an operation settles, whoever's it is. `e` is the event that did it, or NULL; `v` has its masks."""
    cdef ClientRecord *owner = owner_of(a, op)
    cdef uint32_t flags = op.flags, value = 0, error = 0
    cdef uint64_t number = 0
    cdef uint64_t *held = NULL
    if op.group:
        held = &a.groups[op.group - 1].bytes_held
    elif owner != NULL:
        held = &owner.bytes_held
        number = next_number(a, op.client)
    if e != NULL:
        if e.kind == EVENT_KIND_FAIL:
            error = <uint32_t>e.amount
        if e.flags & EVENT_FLAG_LIMITED:
            flags |= OP_FLAG_HANDED_OVER | OP_FLAG_KEYS_KEPT
        if e.flags & EVENT_FLAG_REDELIVERED:
            flags |= OP_FLAG_REDELIVERED
        if e.flags & EVENT_FLAG_VALUE_DROPPED:
            flags |= OP_FLAG_VALUE_DROPPED
        if held != NULL:
            value = share_value(a, e, held, &flags)
        if e.flags & (EVENT_FLAG_LIMITED | EVENT_FLAG_WANTS_ANSWER):
            td_put(&a.tx, EventRecord_word_completed(e), handed_word(e))
    if op.group or op.orphans == ORPHANS_GROUP:
        flags |= OP_FLAG_KEYS_KEPT
    if v.progress != op.progress:
        td_put(&a.tx, &op.progress, v.progress)
    if v.failed != op.failed:
        td_put(&a.tx, &op.failed, v.failed)
    if op.id_record:
        td_put(&a.tx, IdRecord_word_state(&a.ids[op.id_record - 1]), settled_word(&a.ids[op.id_record - 1], outcome))
        td_put(&a.tx, &a.ids[op.id_record - 1].settled_ns, a.now_ns)
    stage_outcome(a, op, outcome, settled_key, e, flags, value, number, error)


cdef inline void give_up(Arena *a, OpRecord *op) noexcept nogil:
    """Give back a record that nothing leads to any more, with what it still has."""
    drop_blob(a, op.payload)
    drop_blob(a, op.value)
    if op.flags & OP_FLAG_KEYS_KEPT:
        free_nodes(a, op.first_node)
    give(a, REGION_OPS, <uint32_t>(op - a.ops))


cdef inline void free_op(Arena *a, OpRecord *op) noexcept nogil:
    """Give back a record whose state says FREE, with all that only it names. It is in no list."""
    charge(a, op, 0, 0, -nodes_of(op), -<int64_t>(blob_length(a, op.payload) + blob_length(a, op.value)))
    if op.group == 0:
        handle_remove(a, <uint32_t>(op - a.ops))
    give_up(a, op)


cdef inline void count_settled(Arena *a, OpRecord *op) noexcept nogil:
    cdef uint32_t p = op.purgatory
    if op.outcome == OUTCOME_COMPLETED:
        counter(a, p, COUNT_COMPLETED)[0] += 1
        if op.flags & OP_FLAG_HANDED_OVER:
            counter(a, p, COUNT_HANDED_OVER)[0] += 1
    elif op.outcome == OUTCOME_EXPIRED:
        counter(a, p, COUNT_EXPIRED)[0] += 1
        histogram_add(histogram(a, p, HISTOGRAM_EXPIRY_LATENESS), op.settled_ns - op.deadline_ns)
    elif op.outcome == OUTCOME_CANCELLED:
        counter(a, p, COUNT_CANCELLED)[0] += 1
    else:
        counter(a, p, COUNT_FAILED)[0] += 1
    if op.flags & OP_FLAG_VALUE_DROPPED:
        counter(a, p, COUNT_VALUES_DROPPED)[0] += 1
    histogram_add(histogram(a, p, HISTOGRAM_WAIT), op.settled_ns - op.registered_ns)


cdef inline void note_outcome(Arena *a, News *news, OpRecord *op) noexcept nogil:
    """An operation has joined its client's outcomes: let the one that did so TOLD places before lead to it."""
    cdef OpRecord *before = news.latest[news.at]
    news.latest[news.at] = op
    news.at = (news.at + 1) & (TOLD - 1)
    if before != NULL:
        before.ahead = <uint32_t>(op - a.ops) + 1
    if news.unreported == 0:
        news.unreported = link_of(a, &op.next)


cdef inline void leave_keys(Arena *a, OpRecord *op) noexcept nogil:
    """An operation that was pending watches its keys no more."""
    cdef uint32_t number = op.first_node, next
    cdef WatchNode *node
    cdef KeyRecord *key
    cdef bint kept = op.flags & OP_FLAG_KEYS_KEPT
    while number:
        node = node_of(a, number - 1)
        key = key_of(a, node.key)
        next = node.next_of_op
        if number == op.first_node or not TD_DEFECT(DEFECT_UNLINK_FROM_ONE_LIST):
            leave_key(a, number, node, key)
        a.touched += 1
        if not kept:
            free_node(a, number, node, key)
        number = next


cdef inline void finish_settle(Arena *a, OpRecord *op, bint was_pending) noexcept nogil:
    """It has settled, in truth: take it out of its bucket and all its lists, and give it to its owner or group."""
    count_settled(a, op)
    if was_pending:
        counter(a, op.purgatory, COUNT_PENDING)[0] -= 1
        charge(a, op, -1, 0, nodes_of(op) - op.keys, 0)
        wheel_remove(a, op)
        leave_keys(a, op)
    elif not op.flags & OP_FLAG_KEYS_KEPT:
        free_nodes(a, op.first_node)
    if op.id_record:
        append(a, &a.header.ids_next, &a.ids[op.id_record - 1].next)
    if op.state == OP_STATE_FREE:
        free_op(a, op)
        return
    charge(a, op, 0, 1, 0, 0)
    if op.group:
        wait_in_group(a, op)
        return
    append(a, &a.clients[op.client].next, &op.next)
    note_outcome(a, a.news + op.client, op)
    tell(a, op.client)


cdef inline void settle(Arena *a, OpRecord *op, uint32_t outcome) noexcept nogil:
    """Settle a pending operation without an event: expired or cancelled."""
    cdef Verdict v
    adopt_if_orphaned(a, op)
    v = unmoved(op)
    stage_settle(a, op, outcome, 0, NULL, &v)
    commit(a)
    finish_settle(a, op, True)


cdef inline void stage_free(Arena *a, OpRecord *op) noexcept nogil:
    """The word by which a settled operation ends: nobody needs to be told any more."""
    td_put(&a.tx, OpRecord_word_state(op), OpRecord_with_state(OpRecord_word_state(op)[0], OP_STATE_FREE))


cdef inline void finish_free(Arena *a, OpRecord *op) noexcept nogil:
    """A settled operation has ended, in truth: take it out of its list, and give back its record."""
    leave_outcomes(a, op)
    charge(a, op, 0, -1, 0, 0)
    if op.group and op.client_generation:
        count_held(a, op, -1)
    free_op(a, op)


cdef inline void drop_settled(Arena *a, OpRecord *op) noexcept nogil:
    """Nobody is left to tell of it."""
    stage_free(a, op)
    commit(a)
    finish_free(a, op)


cdef inline void free_settled(Arena *a, OpRecord *op) noexcept nogil:
    """Its outcome is acknowledged."""
    a.daemon[DAEMON_OUTCOMES_ACKNOWLEDGED] += 1
    drop_settled(a, op)


cdef inline void visit(Arena *a, EventRecord *e, uint32_t node_number) noexcept nogil:
    """Give an event to the operation of one watch node."""
    cdef WatchNode *node = node_of(a, node_number - 1)
    cdef OpRecord *op = a.ops + node.op
    cdef Verdict v
    a.touched += 1
    if op.seen >= e.sequence:
        return
    adopt_if_orphaned(a, op)
    if e.flags & EVENT_FLAG_LIMITED and op.group == 0 and owner_of(a, op) == NULL:
        # Nobody would be told: what is handed over must reach somebody (rule 5).
        return
    v = judge(op, node.kind, node.ordinal, node.target, e)
    if v.outcome != OUTCOME_NONE:
        stage_settle(a, op, v.outcome, node.ordinal + 1, e, &v)
        commit(a)
        finish_settle(a, op, True)
    elif v.changed:
        td_put(&a.tx, &op.progress, v.progress)
        td_put(&a.tx, &op.failed, v.failed)
        td_put(&a.tx, &op.seen, e.sequence)
        commit(a)
        if settled_keys(op) & (<uint64_t>1 << node.ordinal):
            detach(a, node_number)


cdef inline void begin_delivery(Arena *a, EventRecord *e) noexcept nogil:
    """The event is in the ring: find its key's watchers."""
    cdef uint8_t name[256]
    if e.key_blob:
        copy_blob(a, e.key_blob, name)
        a.delivery_key = find_key(a, e.key_hash, e.purgatory, name, e.key_length)
    else:
        a.delivery_key = find_key(a, e.key_hash, e.purgatory, e.key, e.key_length)
    a.cursor = key_of(a, a.delivery_key - 1).next if a.delivery_key else 0
    a.header.unfinished = e.sequence


cdef inline void finish_delivery(Arena *a, EventRecord *e) noexcept nogil:
    """Every watcher has been given the event: leave the answer of a fire_wait, unless an earlier life has left it."""
    cdef ClientRecord *c = a.clients + e.client
    cdef AnswerRecord *answer
    a.header.unfinished = 0
    a.delivery_key = 0
    a.cursor = 0
    if not e.flags & EVENT_FLAG_WANTS_ANSWER or c.generation != e.client_generation or not is_live(a, e.client):
        return
    if e.command <= c.answers_acknowledged or unused(a, REGION_ANSWERS) == 0:
        return
    if not is_empty(a, &c.answers_next) and answer_at(a, c.answers_prev).command >= e.command:
        return
    answer = fill_answer(a, e.client, e.command, ERROR_CODE_NONE, e.completed)
    stage_answer(a, answer)
    commit(a)
    keep_answer(a, answer)


cdef inline bint deliver(Arena *a) noexcept nogil:
    """Go on with the event in delivery; False if the turn's bound came first."""
    cdef EventRecord *e = event_at(a, a.header.unfinished)
    cdef KeyRecord *key
    cdef WatchNode *node
    cdef uint32_t head, root
    if a.delivery_key:
        key = key_of(a, a.delivery_key - 1)
        head = link_of(a, &key.next)
        while e.kind != EVENT_KIND_ADVANCE and e.kind != EVENT_KIND_FORGET and a.delivery_key and a.cursor != head:
            if e.flags & EVENT_FLAG_LIMITED and e.left == 0:
                break
            if spent(a):
                return False
            node = node_at(a, a.cursor)
            a.cursor = node.next
            if a.cursor != head:
                __builtin_prefetch(&a.ops[node_at(a, a.cursor).op])
            visit(a, e, index_of_node(a, node) + 1)
        while e.kind != EVENT_KIND_FIRE and e.kind != EVENT_KIND_FORGET and a.delivery_key and key.heap:
            root = key.heap
            if e.kind == EVENT_KIND_ADVANCE and node_of(a, root - 1).target > e.amount:
                break
            if spent(a):
                return False
            visit(a, e, root)
            # It has left the heap: it is satisfied, failed or settled. (A guard: a loop must end whatever is wrong.)
            if a.delivery_key and key.heap == root:
                break
    finish_delivery(a, e)
    return True


cdef inline EventRecord *fill_hand_on(Arena *a, OpRecord *op) noexcept nogil:
    """The event by which goes on what a limited event gave to a settled operation: same key and value, nothing allocated."""
    cdef uint8_t name[256]
    cdef uint32_t node = op.first_node, key_blob = 0, flags = EVENT_FLAG_LIMITED | EVENT_FLAG_REDELIVERED
    cdef KeyRecord *key
    cdef EventRecord *e
    while node_of(a, node - 1).ordinal != op.settled_key - 1:
        node = node_of(a, node - 1).next_of_op
    key = key_of(a, node_of(a, node - 1).key)
    if key.name_length > EVENT_KEY_INLINE:
        key_blob = share_blob(a, key.name_blob)
    elif key.name_length > KEY_INLINE:
        copy_blob(a, key.name_blob, name)
    else:
        memcpy(name, key.name, key.name_length)
    if op.flags & OP_FLAG_VALUE_DROPPED:
        flags |= EVENT_FLAG_VALUE_DROPPED
    e = fill_event(
        a, EVENT_KIND_FIRE, op.purgatory, key.hash, name, key.name_length, 1, 1, flags, op.client, 0,
        share_blob(a, op.value), key_blob, 0,
    )
    e.client_generation = 0  # nobody's: it counts by sequence for everybody
    return e


cdef inline void hand_on(
    Arena *a, OpRecord *op, uint32_t slot, uint64_t number, OperationCommand *command, AnswerRecord *answer
) noexcept nogil:
    """Its owner does not take what a limited event gave it: end the operation, and fire again. None is in delivery.

    In one transaction, with the `number` of the `command` that asks for it and its answer (NULL = none).
    """
    cdef EventRecord *e = fill_hand_on(a, op)
    stage_free(a, op)
    if command != NULL:
        td_put(&a.tx, &a.clients[slot].last_command, number)
        journal_action(a, slot, number, op, command, op.deadline_ns)
    stage_event(a, e, op)
    if answer != NULL:
        stage_answer(a, answer)
    commit(a)
    a.header.ring_bytes += blob_length(a, e.value) + blob_length(a, e.key_blob)
    a.daemon[DAEMON_HANDED_ON] += 1
    finish_free(a, op)
    if answer != NULL:
        keep_answer(a, answer)
    begin_delivery(a, e)
    deliver(a)


cdef inline void expire(Arena *a, OpRecord *op) noexcept nogil:
    """An operation is due. If an event is in delivery and it watches the key, it is given the event first."""
    cdef EventRecord *e
    cdef uint32_t node = op.first_node, generation = op.generation
    a.touched += 1
    if a.header.unfinished and a.delivery_key:
        e = event_at(a, a.header.unfinished)
        while node:
            if node_of(a, node - 1).linked and node_of(a, node - 1).key == a.delivery_key - 1:
                if not (e.flags & EVENT_FLAG_LIMITED and e.left == 0):
                    visit(a, e, node)
                break
            node = node_of(a, node - 1).next_of_op
        if op.generation != generation or op.state != OP_STATE_PENDING:
            return
    settle(a, op, OUTCOME_EXPIRED)
