"""Acknowledgements: outcomes and answers that a client has received are freed, the outcomes in batches.

free_parts() in operation/settle.pxd frees an operation's payload, its value and its other parts.
"""

from libc.stdint cimport uint32_t, uint64_t
from timerd.purgatory.memory.arena cimport Arena, spent
from timerd.purgatory.memory.blob cimport blob_length
from timerd.purgatory.memory.builtins cimport __builtin_prefetch
from timerd.purgatory.memory.commit cimport commit
from timerd.purgatory.memory.list cimport answer_at, at, is_empty, link_of, make_empty, op_at
from timerd.purgatory.memory.nodes cimport names_of
from timerd.purgatory.memory.transaction cimport TD_DEFECT, td_put
from timerd.purgatory.index.operation_table cimport handle_remove, prefetch_removal
from timerd.purgatory.members.state cimport ReportState
from timerd.purgatory.members.answers cimport free_answer
from timerd.purgatory.members.clients cimport leave_outcomes, nodes_of, touch_outcome
from timerd.purgatory.operation.settle cimport free_parts, stage_free
from timerd_shm.generated.records cimport *


cdef inline uint32_t look_ahead(Arena *a, uint32_t link, uint32_t head, uint64_t acknowledged) noexcept nogil:
    """Prefetch what freeing the next BATCH_MAX acknowledged outcomes will touch, from `link` on.

    Returns the link after these outcomes. An outcome's own record is in the cache already. Its hint names an outcome
    that is freed two batches later: the record of that later outcome is prefetched.
    """
    cdef OpRecord *op
    cdef uint32_t n = 0
    while n < BATCH_MAX and link != head:  # bound: BATCH_MAX
        op = op_at(a, link)
        if op.outcome_number > acknowledged:
            break
        touch_outcome(a, op.prefetch_hint)
        prefetch_removal(a, op.tag)
        if op.payload:
            __builtin_prefetch(a.blocks + (op.payload - 1))
        if op.value:
            __builtin_prefetch(a.blocks + (op.value - 1))
        link = op.next
        n += 1
    return link


cdef inline void free_batch(Arena *a, uint32_t slot, uint64_t acknowledged) noexcept nogil:
    """Free the client's first outcomes up to `acknowledged`: one batch at most, which ends before a group's outcome.

    The caller knows that the first outcome may be freed.
    """
    cdef ClientRecord *c = a.clients + slot
    cdef ReportState *report_states = a.members.report_states + slot
    cdef OpRecord *ops[BATCH_MAX]
    cdef OpRecord *op
    cdef uint32_t n = 0, i, link = c.next, head = link_of(a, &c.next)
    cdef uint64_t bytes = 0
    while n < BATCH_MAX and link != head:  # bound: BATCH_MAX
        op = op_at(a, link)
        if op.group or op.outcome_number > acknowledged:
            break
        stage_free(a, op)
        ops[n] = op
        n += 1
        link = op.next
    commit(a)
    if report_states.unreported:
        for i in range(n):  # bound: BATCH_MAX
            if report_states.unreported == link_of(a, &ops[i].next):
                report_states.unreported = 0 if link == head else link
                break
    c.next = link
    at(a, link).prev = head
    for i in range(n):  # bound: BATCH_MAX
        op = ops[i]
        if op.payload or op.value:
            bytes += blob_length(a, op.payload) + blob_length(a, op.value)
        bytes += names_of(a, op)
        c.nodes -= nodes_of(op)
        handle_remove(a, <uint32_t>(op - a.ops))
        free_parts(a, op)
    c.unacknowledged -= n
    c.bytes_held -= bytes
    a.daemon[DAEMON_OUTCOMES_ACKNOWLEDGED] += n
    a.turn.touched += n


cdef inline bint free_acknowledged(Arena *a, uint32_t slot) noexcept nogil:
    """Free the outcomes and answers that the client has acknowledged; False if some are left."""
    cdef ClientRecord *c = a.clients + slot
    cdef OpRecord *op
    cdef uint64_t last = a.members.report_states[slot].outcome
    cdef uint32_t head = link_of(a, &c.next), ahead = 0
    if c.acknowledged < last and not TD_DEFECT(DEFECT_FREED_UNACKNOWLEDGED):
        last = c.acknowledged
    while not is_empty(a, &c.next):
        op = op_at(a, c.next)
        if op.outcome_number > last:
            break
        if spent(a):
            return False
        if op.group:
            # The outcome was received, but its work is not done: the outcome is held, in no list.
            a.turn.touched += 1
            if ahead == c.next:
                ahead = op.next
            leave_outcomes(a, op)
            make_empty(a, &op.next)
        else:
            # A batch is prefetched while the one before it is freed.
            ahead = look_ahead(a, ahead if ahead else look_ahead(a, c.next, head, last), head, last)
            free_batch(a, slot, last)
    while not is_empty(a, &c.answers_next) and answer_at(a, c.answers_next).command <= c.answers_acknowledged:
        if spent(a):
            return False
        a.turn.touched += 1
        free_answer(a, answer_at(a, c.answers_next))
    return True


cdef inline bint acknowledge_client(Arena *a, uint32_t slot, uint64_t outcome, uint64_t answer) noexcept nogil:
    """Store the numbers of the newest outcome and answer that the client has received, and free all up to them.

    A number that the client cannot have received yet counts as the newest one that exists.

    Returns False if some outcomes or answers are left to free.
    """
    cdef ClientRecord *c = a.clients + slot
    if outcome >= c.next_outcome:
        outcome = c.next_outcome - 1
    if answer > c.last_command:
        answer = c.last_command
    if outcome > c.acknowledged:
        td_put(&a.tx, &c.acknowledged, outcome)
        if outcome > a.members.report_states[slot].outcome:
            a.members.report_states[slot].outcome = outcome
    if answer > c.answers_acknowledged:
        td_put(&a.tx, &c.answers_acknowledged, answer)
    commit(a)
    if free_acknowledged(a, slot):
        return True
    a.turn.acknowledging = 1
    return False
