"""Delivery: an event of the ring reaches the operations that watch its key, one after the other.

Each operation keeps the sequence of the last event it has `seen`. So a start can deliver the newest event again, and
nothing counts twice. A delivery that is too long for a turn goes on from its cursor in the next turn. No other command
is applied before the delivery has ended (DESIGN.md, rule 8).

An owner may die before it acknowledges what a limited event granted it, or it may give up the grant. Then the operation
is freed, and a new event of limit 1 enters the ring. Nothing is allocated for that (`requeue_grant`).
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy
from timerd.purgatory.memory.arena cimport Arena, spent, unused
from timerd.purgatory.memory.blob cimport blob_length, copy_blob, share_blob
from timerd.purgatory.memory.builtins cimport __builtin_prefetch
from timerd.purgatory.memory.commit cimport commit
from timerd.purgatory.memory.list cimport answer_at, is_empty, link_of, node_at
from timerd.purgatory.memory.nodes cimport first_node, index_of_node, next_node, node_of
from timerd.purgatory.memory.transaction cimport td_put
from timerd.purgatory.journal.rows cimport journal_action
from timerd.purgatory.index.keys cimport find_first, next_to_visit, node_is
from timerd.purgatory.index.watchers cimport detach
from timerd.purgatory.index.watermark_heap cimport below, parent_of
from timerd.purgatory.events.ring cimport event_at, fill_event, stage_event
from timerd.purgatory.members.answers cimport commit_command, keep_answer, stage_answer
from timerd.purgatory.members.clients cimport is_live, owner_of
from timerd.purgatory.members.checks cimport end_check_delivery
from timerd.purgatory.members.groups cimport adopt_if_orphaned
from timerd.purgatory.members.looks cimport look
from timerd_shm.generated.records cimport *

from .condition cimport Verdict, concerns, has_failures, is_used_up, judge, settled_keys
from .settle cimport finish_free, finish_settle, is_overdue, settle, stage_free, stage_settle

cdef extern from *:
    """
    #define IN_ORDER_MAX 1024u /* watermark watchers that an event reaches in order; for more it would take too long */
    """
    const uint32_t IN_ORDER_MAX


cdef inline void visit(Arena *a, EventRecord *e, WatchNode *node, uint32_t number) noexcept nogil:
    """Give an event to the operation of one watch node (index + 1)."""
    cdef OpRecord *op = a.ops + node.op
    cdef Verdict v
    a.turn.touched += 1
    if op.seen >= e.sequence or (node.kind == KEY_KIND_OBSERVE and not concerns(op, e)):
        return
    if is_overdue(op, e):
        # The wheel is late. Whether an operation expires must not depend on that, so the event does not count.
        settle(a, op, OUTCOME_EXPIRED)
        return
    adopt_if_orphaned(a, op)
    if e.flags & EVENT_FLAG_LIMITED and node.kind != KEY_KIND_OBSERVE and op.group == 0 and owner_of(a, op) == NULL:
        # It has no live owner, and a grant must reach one (rule 5).
        return
    if op.condition == CONDITION_OWNER and owner_of(a, op) == NULL:
        # Nobody looks any more, so the operation stays until its deadline, or until it is cancelled by its key.
        if e.kind != EVENT_KIND_CANCEL_FOR_KEY:
            return
    v = judge(op, node.kind, node.ordinal, node.target, e)
    if e.kind == EVENT_KIND_FAIL and v.changed and has_failures(op, v.failed):
        td_put(&a.tx, &node.target, e.amount)
    if v.outcome != OUTCOME_NONE:
        stage_settle(a, op, v.outcome, node.ordinal + 1, e, &v)
        commit(a)
        finish_settle(a, op, True)
    elif v.changed:
        td_put(&a.tx, &op.progress, v.progress)
        td_put(&a.tx, &op.failed, v.failed)
        td_put(&a.tx, &op.seen, e.sequence)
        commit(a)
        if op.condition == CONDITION_OWNER:
            look(a, op, e)
        elif settled_keys(op) & (<uint64_t>1 << node.ordinal):
            detach(a, node, number)


cdef inline const uint8_t *event_key(Arena *a, EventRecord *e, uint8_t *room) noexcept nogil:
    """The name of an event's key; a long name is copied into `room`, of KEY_SIZE_MAX bytes."""
    if e.key_blob == 0:
        return e.key
    copy_blob(a, e.key_blob, room)
    return room


cdef inline bint is_of_key(Arena *a, WatchNode *node, EventRecord *e) noexcept nogil:
    """Whether a node watches the key of an event."""
    cdef uint8_t room[KEY_SIZE_MAX]
    return node.hash == e.key_hash and node_is(
        a, node, e.key_hash, e.purgatory, node.kind, event_key(a, e, room), e.key_length
    )


cdef inline uint32_t first_watcher(Arena *a, EventRecord *e, uint32_t kind) noexcept nogil:
    """The node (index + 1) that stands first among the key's watchers of that kind, if the event concerns this kind."""
    cdef uint8_t room[KEY_SIZE_MAX]
    if kind == KEY_KIND_OBSERVE:
        if a.observers == 0 or e.kind == EVENT_KIND_FORGET or e.flags & EVENT_FLAG_REDELIVERED:
            return 0
    elif e.kind == (EVENT_KIND_ADVANCE if kind == KEY_KIND_EVENT else EVENT_KIND_FIRE) or e.kind >= EVENT_KIND_FORGET:
        return 0
    return find_first(a, e.key_hash, e.purgatory, kind, event_key(a, e, room), e.key_length)


cdef inline void begin_list(Arena *a, EventRecord *e, uint32_t kind) noexcept nogil:
    """Go to the key's list of watchers of that kind."""
    a.delivery.kind = kind
    a.delivery.first = first_watcher(a, e, kind)
    a.delivery.cursor = link_of(a, &node_of(a, a.delivery.first - 1).next) if a.delivery.first else 0


cdef inline void begin_delivery(Arena *a, EventRecord *e) noexcept nogil:
    """The event is in the ring. Watchers that observe its key come first, because the others may use up the event."""
    begin_list(a, e, KEY_KIND_OBSERVE)
    a.delivery.top = first_watcher(a, e, KEY_KIND_WATERMARK)
    a.delivery.in_order = IN_ORDER_MAX
    a.header.unfinished = e.sequence


cdef inline void finish_delivery(Arena *a, EventRecord *e) noexcept nogil:
    """The event has reached every watcher: leave the answer of a fire_wait, unless an earlier daemon has left it."""
    cdef ClientRecord *c = a.clients + e.client
    cdef AnswerRecord *answer
    if e.kind == EVENT_KIND_CHECK:
        end_check_delivery(a, e)
    a.header.unfinished = 0
    a.delivery.first = a.delivery.top = a.delivery.cursor = 0
    if not e.flags & EVENT_FLAG_WANTS_ANSWER or c.generation != e.client_generation or not is_live(a, e.client):
        return
    if e.command <= c.answers_acknowledged or unused(a, REGION_ANSWERS) == 0:
        return
    if not is_empty(a, &c.answers_next) and answer_at(a, c.answers_prev).command >= e.command:
        return
    answer = stage_answer(a, e.client, e.command, ERROR_CODE_NONE, e.completed)
    commit(a)
    keep_answer(a, answer)


cdef inline bint deliver(Arena *a) noexcept nogil:
    """Go on with the event in delivery; False if the turn's bound came first."""
    cdef EventRecord *e = event_at(a, a.header.unfinished)
    cdef WatchNode *node
    cdef uint32_t number, from_node = 0, gone
    cdef uint64_t reached
    while True:
        while a.delivery.cursor:
            if is_used_up(e, a.delivery.kind):
                break
            if spent(a):
                return False
            node = node_at(a, a.delivery.cursor)
            a.delivery.cursor = next_to_visit(a, node)
            if a.delivery.cursor:
                __builtin_prefetch(&a.ops[node_at(a, a.delivery.cursor).op])
            visit(a, e, node, index_of_node(a, node) + 1)
        if a.delivery.kind == KEY_KIND_EVENT:
            break
        begin_list(a, e, KEY_KIND_EVENT)
    reached = e.amount if e.kind == EVENT_KIND_ADVANCE else ~<uint64_t>0
    while a.delivery.top and node_of(a, a.delivery.top - 1).target <= reached:
        if spent(a):
            return False
        number = a.delivery.top
        if a.delivery.in_order:
            a.delivery.in_order -= 1
        else:
            number = below(a, from_node or number, reached)
            from_node = parent_of(a, number)
        gone = a.delivery.gone
        visit(a, e, node_of(a, number - 1), number)
        # The node has left the heap, because its key is satisfied or failed, or its operation has settled. If it is
        # still there, a record is wrong: the loop ends here, because otherwise it would never end.
        if a.delivery.gone == gone:
            break
    finish_delivery(a, e)
    return True


cdef inline EventRecord *fill_requeued_event(Arena *a, OpRecord *op) noexcept nogil:
    """The event that requeues the grant of a settled operation: same key and value, nothing allocated."""
    cdef uint8_t name[KEY_SIZE_MAX]
    cdef uint32_t key_blob = 0, flags = EVENT_FLAG_LIMITED | EVENT_FLAG_REDELIVERED
    cdef WatchNode *node = first_node(op)
    cdef EventRecord *e
    while node.ordinal != op.settled_key - 1:  # bound: KEYS_MAX
        node = next_node(a, node)
    if node.name_length > EVENT_KEY_INLINE:
        key_blob = share_blob(a, node.name_blob)
    elif node.name_length > KEY_INLINE:
        copy_blob(a, node.name_blob, name)
    else:
        memcpy(name, node.name, node.name_length)
    if op.flags & OP_FLAG_VALUE_DROPPED:
        flags |= EVENT_FLAG_VALUE_DROPPED
    e = fill_event(
        a, EVENT_KIND_FIRE, op.purgatory, node.hash, name, node.name_length, 1, 1, flags, op.client, 0,
        share_blob(a, op.value), key_blob, 0,
    )
    e.client_generation = 0  # it belongs to no client: for whom it counts depends on its sequence alone
    return e


cdef inline void requeue_grant(
    Arena *a, OpRecord *op, uint32_t slot, uint64_t number, OperationCommand *command
) noexcept nogil:
    """The owner does not take its grant: free the operation, and fire again. No event is in delivery.

    One transaction does this, and includes the number and the answer of `command`, which asked for it (NULL: the owner
    is dead).
    """
    cdef EventRecord *e = fill_requeued_event(a, op)
    cdef AnswerRecord *answer = NULL
    stage_free(a, op)
    if command != NULL:
        journal_action(a, slot, number, op, command, op.deadline_ns)
    stage_event(a, e, op)
    if command != NULL:
        answer = commit_command(a, slot, number, command.flags & COMMAND_FLAG_WANTS_ANSWER != 0, ERROR_CODE_NONE, 1)
    else:
        commit(a)
    a.header.ring_bytes += blob_length(a, e.value) + blob_length(a, e.key_blob)
    a.daemon[DAEMON_REQUEUED] += 1
    finish_free(a, op)
    keep_answer(a, answer)
    begin_delivery(a, e)
    deliver(a)
