"""Looks: an event has come, so the owner of an operation under CONDITION_OWNER is to evaluate the condition.

For example, events 7 and 9 come on a key of an operation. Its `progress` becomes 9, and its client is sent (operation,
9). The client evaluates the condition, and answers LOOKED 9: the operation's `failed` becomes 9, and no look is due.

So looks are coalesced: a client has one look of an operation at a time. Events that come meanwhile raise `progress`,
and make one further look when the client has answered. `progress` and `failed` are truth, and outlive the daemon. The
list of each client's looks is beside the arena, in order of events, and a start makes it anew. A look is sent when it
is new, and again when its client is reminded, until the client has looked.
"""

from libc.stdint cimport uint32_t, uint64_t
from timerd.purgatory.memory.arena cimport Arena
from timerd.purgatory.memory.transaction cimport TD_DEFECT
from timerd_shm.generated.records cimport *

from .state cimport Look, ReportState, td_need
from .checks cimport give_ticket, take_tickets_back
from .clients cimport queue_report


cdef inline bint look_is_due(OpRecord *op) noexcept nogil:
    """Whether the owner of a pending operation is to look."""
    return op.condition == CONDITION_OWNER and op.progress > op.failed


cdef inline void unlist_look(Arena *a, OpRecord *op) noexcept nogil:
    """Take the operation out of its owner's looks, if it is there."""
    cdef Look *looks = a.members.looks
    cdef Look *at = looks + (op - a.ops)
    cdef ReportState *state
    if at.owner == 0:
        return
    state = a.members.report_states + (at.owner - 1)
    if state.next_look == <uint32_t>(op - a.ops) + 1:
        state.next_look = at.next
    if at.prev:
        looks[at.prev - 1].next = at.next
    else:
        state.first_look = at.next
    if at.next:
        looks[at.next - 1].prev = at.prev
    else:
        state.last_look = at.prev
    at.next = at.prev = at.owner = 0


cdef inline void list_look(Arena *a, OpRecord *op) noexcept nogil:
    """Put the operation last among the looks of its live owner, to be sent, unless it is there already."""
    cdef uint32_t number = <uint32_t>(op - a.ops) + 1
    cdef ReportState *state = a.members.report_states + op.client
    cdef Look *at = a.members.looks + (number - 1)
    if at.owner:
        return
    td_need(&a.members.looks_memory, number * sizeof(Look))
    at.owner = <uint32_t>op.client + 1
    at.prev = state.last_look
    if at.prev:
        a.members.looks[at.prev - 1].next = number
    else:
        state.first_look = number
    state.last_look = number
    if state.next_look == 0:
        state.next_look = number
    queue_report(a, op.client)


cdef inline void look(Arena *a, OpRecord *op, EventRecord *e) noexcept nogil:
    """The event has raised the operation's `progress`, and this is committed: its live owner is to look."""
    list_look(a, op)
    if e.kind == EVENT_KIND_CHECK:
        give_ticket(a, op, e)


cdef inline void note_look(Arena *a, OpRecord *op, uint64_t sequence) noexcept nogil:
    """The owner has looked at the events up to this sequence, this is committed, and the operation stays pending."""
    take_tickets_back(a, op, sequence, False)
    unlist_look(a, op)
    if look_is_due(op) and not TD_DEFECT(DEFECT_LOOKED_AT_ALL):
        list_look(a, op)


cdef inline void leave_looks(Arena *a, OpRecord *op) noexcept nogil:
    """The operation needs no look any more: it has settled, or its owner is dead."""
    unlist_look(a, op)
    take_tickets_back(a, op, NO_DEADLINE, False)


cdef inline void send_looks_again(Arena *a, uint32_t slot) noexcept nogil:
    """Send all looks of a client again, because it may have lost them."""
    cdef ReportState *state = a.members.report_states + slot
    if state.first_look:
        state.next_look = state.first_look
        queue_report(a, slot)


cdef inline void forget_looks(Arena *a, uint32_t slot) noexcept nogil:
    """Another client gets this slot: empty its looks. Some are left only if counts of the last client were wrong."""
    while a.members.report_states[slot].first_look:  # bound: no look is left, or as many as a wrong count has left
        unlist_look(a, a.ops + (a.members.report_states[slot].first_look - 1))


cdef inline bint has_looks(Arena *a, uint32_t slot) noexcept nogil:
    return a.members.report_states[slot].first_look != 0
