"""A client: the lists of its operations and outcomes, its counts, whether its report is due."""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memset
from timerd.purgatory.memory.arena cimport Arena
from timerd.purgatory.memory.builtins cimport CACHE_LINE, TOUCH
from timerd.purgatory.memory.commit cimport commit
from timerd.purgatory.memory.list cimport link_of, unlink
from timerd.purgatory.memory.nodes cimport first_node
from timerd.purgatory.memory.transaction cimport td_put
from timerd.purgatory.journal.rows cimport journal_state
from timerd_shm.generated.records cimport *

from .accounts cimport account_of, charge_account
from .state cimport CONFIRM_COMMANDS, NOT_DUE, QUEUED, WAITS, Members, ReportState
from .call_names cimport leave_waiting
from .evictable cimport leave_if_evictable


cdef extern from *:
    """
    _Static_assert(sizeof(((WatermarkRecord *)0)->setter_generation) == 2, "setter_generation()");
    _Static_assert(sizeof(((OpRecord *)0)->client) == 2, "topic_of(): a slot has 16 bits");
    """


cdef inline bint is_live(Arena *a, uint32_t slot) noexcept nogil:
    return a.clients[slot].state == CLIENT_STATE_LIVE or a.clients[slot].state == CLIENT_STATE_SILENT


cdef inline uint64_t topic_of(Arena *a, uint32_t slot) noexcept nogil:
    """The topic of reports to a client: its slot of 16 bits, and above it the slot's generation."""
    return (<uint64_t>a.clients[slot].generation << 16) | slot


cdef inline uint16_t setter_generation(ClientRecord *c) noexcept nogil:
    """The generation of a client that sets a watermark: the low bits, for which a watermark's record has room."""
    return <uint16_t>c.generation


cdef inline ClientRecord *owner_of(Arena *a, OpRecord *op) noexcept nogil:
    """The live client that owns the operation, or NULL: then its outcome is delivered to no client."""
    cdef ClientRecord *c = a.clients + op.client
    if c.generation != op.client_generation or not is_live(a, op.client):
        return NULL
    return c


cdef inline int further_keys(OpRecord *op) noexcept nogil:
    """How many keys the operation has after the first. Each has a node in NODES while the operation needs its keys."""
    return <int>op.keys - 1


cdef inline int nodes_of(OpRecord *op) noexcept nogil:
    """How many records of NODES the operation holds, by its state and flags."""
    return further_keys(op) if op.state == OP_STATE_PENDING or op.flags & OP_FLAG_KEYS_KEPT else 0


cdef inline void charge_id(Arena *a, OpRecord *op, int by) noexcept nogil:
    """Charge an operation's id (`by`: 1, or -1) to the client, or to the group and the account, that pay for it."""
    cdef ClientRecord *c = a.clients + op.client
    if op.group:
        a.groups[op.group - 1].ids += by
        account_of(a, op).ids += by
    elif c.generation == op.client_generation and c.state != CLIENT_STATE_FREE:
        c.ids += by
    elif first_node(op).account:
        account_of(a, op).ids += by


cdef inline void charge(Arena *a, OpRecord *op, int pending, int settled, int nodes, int64_t bytes) noexcept nogil:
    """Charge the operation to its group and its account, or to its client; without an owner, to its account alone."""
    cdef ClientRecord *c
    cdef GroupRecord *g
    if op.id_record and pending:
        charge_id(a, op, pending)
    if op.group:
        g = a.groups + (op.group - 1)
        g.pending += pending
        if op.deadline_ns == NO_DEADLINE:
            g.endless += pending
        g.unacknowledged += settled
        g.nodes += nodes
        g.bytes_held += bytes
        charge_account(a, op, pending, settled, nodes, bytes)
        return
    c = a.clients + op.client
    if c.generation == op.client_generation and c.state != CLIENT_STATE_FREE:
        c.pending += pending
        c.unacknowledged += settled
        c.nodes += nodes
        c.bytes_held += bytes
    elif first_node(op).account:
        charge_account(a, op, pending, settled, nodes, bytes)


cdef inline uint32_t *undelivered_of(Arena *a, OpRecord *op) noexcept nogil:
    """The list of its group in which an operation waits until it is delivered to a member."""
    cdef GroupRecord *g = a.groups + (op.group - 1)
    return &g.calls_next if op.flags & OP_FLAG_CALL else &g.next


cdef inline uint32_t following(Arena *a, OpRecord *op) noexcept nogil:
    """Link of the next operation in the list of the group; 0 = this one is the last."""
    return 0 if op.next == link_of(a, undelivered_of(a, op)) else op.next


cdef inline void leave_outcomes(Arena *a, OpRecord *op) noexcept nogil:
    """Take a settled operation out of its client's or its group's outcomes. A held operation is in neither."""
    cdef uint32_t own = link_of(a, &op.next)
    if a.members.report_states[op.client].unreported == own:
        a.members.report_states[op.client].unreported = 0 if op.next == link_of(a, &a.clients[op.client].next) else op.next
    if op.group:
        leave_if_evictable(a, op)
    if op.flags & OP_FLAG_CALL:
        leave_waiting(a, op)
        if a.members.outdated[op.group - 1] == own:
            a.members.outdated[op.group - 1] = following(a, op)
    unlink(a, &op.next)


cdef inline void clear_report_state(Arena *a, uint32_t slot) noexcept nogil:
    """Another client gets this slot, or the same client comes back. A slot that is queued for a report stays queued."""
    cdef uint8_t due
    stop_waiting(a, slot)
    due = a.members.report_states[slot].due
    memset(a.members.report_states + slot, 0, sizeof(ReportState))
    a.members.report_states[slot].due = due


cdef inline void stop_waiting(Arena *a, uint32_t slot) noexcept nogil:
    """If the client waits for a confirmation, take it out of the list of the clients that wait."""
    cdef Members *m = &a.members
    cdef ReportState *state = m.report_states + slot
    if state.due != WAITS:
        return
    state.due = NOT_DUE
    if state.prev:
        m.report_states[state.prev - 1].next = state.next
    else:
        m.first_waits = state.next
    if state.next:
        m.report_states[state.next - 1].prev = state.prev
    else:
        m.last_waits = state.prev


cdef inline void queue_report(Arena *a, uint32_t slot) noexcept nogil:
    """Something is to be delivered to the client: its report is due."""
    if a.members.report_states[slot].due != QUEUED:
        stop_waiting(a, slot)
        a.members.report_states[slot].due = QUEUED
        a.members.queue[a.members.queued] = slot
        a.members.queued += 1


cdef inline void confirm_later(Arena *a, uint32_t slot) noexcept nogil:
    """Commands of the client are applied. If they are few, their confirmation may wait for another report."""
    cdef Members *m = &a.members
    cdef ReportState *state = m.report_states + slot
    if a.clients[slot].last_command - state.command >= CONFIRM_COMMANDS:
        queue_report(a, slot)
    elif state.due == NOT_DUE:
        state.due = WAITS
        state.waits_ns = a.turn.now_ns
        state.next = 0
        state.prev = m.last_waits
        if state.prev:
            m.report_states[state.prev - 1].next = slot + 1
        else:
            m.first_waits = slot + 1
        m.last_waits = slot + 1


cdef inline void free_client(Arena *a, uint32_t slot) noexcept nogil:
    """Free the slot of a client that holds nothing."""
    cdef ClientRecord *c = a.clients + slot
    if c.state == CLIENT_STATE_TOMBSTONE:
        a.members.tombstones -= 1
    td_put(&a.tx, ClientRecord_word_state(c), ClientRecord_with_state(ClientRecord_word_state(c)[0], CLIENT_STATE_FREE))
    journal_state(a, slot, CLIENT_STATE_FREE)
    commit(a)
    a.regions[REGION_CLIENTS].in_use -= 1


cdef inline void bury_client(Arena *a, uint32_t slot) noexcept nogil:
    """A dead client becomes a tombstone: its numbering is kept, because it may come back within the hour."""
    cdef ClientRecord *c = a.clients + slot
    td_put(
        &a.tx, ClientRecord_word_state(c),
        ClientRecord_with_state(ClientRecord_word_state(c)[0], CLIENT_STATE_TOMBSTONE),
    )
    td_put(&a.tx, ClientRecord_word_group(c), ClientRecord_with_group(ClientRecord_word_group(c)[0], 0))
    journal_state(a, slot, CLIENT_STATE_TOMBSTONE)
    commit(a)
    a.members.tombstones += 1
    if c.died_ns + TOMBSTONE_KEPT_NS < a.members.tombstones_due_ns:
        a.members.tombstones_due_ns = c.died_ns + TOMBSTONE_KEPT_NS


cdef inline void touch_outcome(Arena *a, uint32_t op) noexcept nogil:
    """Touch what a report reads of the operation that a hint names (index + 1; 0 = none).

    It loads, because the processor would drop prefetches here: a report takes 15 ns for each outcome instead of 25. A
    wrong hint leads nowhere outside the region.
    """
    cdef char *record
    if op - 1 < a.first_nodes:
        record = <char *>(a.ops + (op - 1))
        TOUCH(record)
        TOUCH(record + CACHE_LINE)
