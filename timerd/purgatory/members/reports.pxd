"""Reports: one frame for a client, with applied commands, outcomes in order of their numbers, answers, looks and values.

A value of consecutive outcomes of one client stands in the frame's heap once. A group's outcome has a value of its
own. After the value come the payload and the names of purgatory and keys, because the receiver did not register the
operation.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset
from timerd.purgatory.memory.arena cimport Arena, op_id
from timerd.purgatory.memory.blob cimport blob_length, copy_blob
from timerd.purgatory.memory.builtins cimport __builtin_popcountll
from timerd.purgatory.memory.list cimport answer_at, at, link_of, op_at
from timerd.purgatory.memory.nodes cimport first_node, next_node
from timerd_shm.generated.records cimport *

from .state cimport NOT_DUE, ReportState
from .clients cimport is_live, touch_outcome, queue_report, topic_of


cdef extern from *:
    """
    #define REPORT_HEAP_MAX (1u << 20)  /* bytes in the heap of one report; an outcome that needs more goes alone */
    #define OUTCOMES_IN_ANSWER 4096  /* a frame's worth of outcomes, when a client asks again */
    """
    enum:
        OUTCOMES_IN_ANSWER
    const uint32_t REPORT_HEAP_MAX


ctypedef struct Extent:
    # The content of a report that is about to be written.
    uint32_t first  # link of the first settled operation
    uint32_t behind  # link of what follows the last one: an operation, or the list's head
    uint32_t outcomes
    uint32_t first_answer
    uint32_t answers
    uint32_t first_look  # operation (index + 1)
    uint32_t behind_looks  # the operation (index + 1) whose look follows the last one; 0 = none
    uint32_t looks
    uint32_t heap
    uint64_t outcome_after
    uint64_t answer_after
    uint32_t walked  # outcomes that were looked at
    bint more  # outcomes are left for another report


ctypedef struct Round:
    # The clients whose reports are due, one after the other.
    uint32_t at
    uint32_t count
    uint64_t due_ns  # when the reports that were put off are due
    uint64_t confirm_ns  # how long a report waits that only confirms commands
    uint32_t outcomes_max


cdef inline uint64_t report_size(Extent *x) noexcept nogil:
    return (
        sizeof(ReportHeader) + x.outcomes * sizeof(OutcomeRecord) + x.answers * sizeof(WireAnswer)
        + x.looks * sizeof(LookRecord) + x.heap
    )


cdef inline uint32_t names_length(Arena *a, OpRecord *op) noexcept nogil:
    """Bytes of the names of an operation's purgatory and keys, each name after its length."""
    cdef WatchNode *node = first_node(op)
    cdef uint32_t length = 1 + a.purgatories[op.purgatory].name_length
    while node != NULL:  # bound: KEYS_MAX
        length += 1 + node.name_length
        node = next_node(a, node)
    return length


cdef inline uint32_t copy_names(Arena *a, OpRecord *op, uint8_t *out) noexcept nogil:
    """Write the names of an operation's purgatory and keys: names_length() bytes."""
    cdef uint8_t *p = out
    cdef WatchNode *node = first_node(op)
    cdef PurgatoryRecord *purgatory = a.purgatories + op.purgatory
    p[0] = purgatory.name_length
    memcpy(p + 1, purgatory.name, purgatory.name_length)
    p += 1 + purgatory.name_length
    while node != NULL:  # bound: KEYS_MAX
        p[0] = node.name_length
        if node.name_blob:
            copy_blob(a, node.name_blob, p + 1)
        else:
            memcpy(p + 1, node.name, node.name_length)
        p += 1 + node.name_length
        node = next_node(a, node)
    return <uint32_t>(p - out)


cdef inline uint32_t failures_length(OpRecord *op) noexcept nogil:
    """Bytes of the codes of an operation's failed keys. If it settled without its keys, the codes are not known."""
    if not op.flags & OP_FLAG_KEYS_KEPT or CONDITIONS_OBSERVE >> op.condition & 1 or op.flags & OP_FLAG_CALL:
        return 0
    return sizeof(uint32_t) * <uint32_t>__builtin_popcountll(op.failed)


cdef inline uint32_t copy_failures(Arena *a, OpRecord *op, uint8_t *out) noexcept nogil:
    """Write the codes of an operation's failed keys, in the order of the keys: failures_length() bytes."""
    cdef WatchNode *node = first_node(op)
    cdef uint8_t *p = out
    cdef uint32_t code
    if failures_length(op) == 0:
        return 0
    while node != NULL:  # bound: KEYS_MAX
        if op.failed & (<uint64_t>1 << node.ordinal):
            code = <uint32_t>node.target
            memcpy(p, &code, sizeof(code))
            p += sizeof(code)
        node = next_node(a, node)
    return <uint32_t>(p - out)


cdef inline uint32_t heap_length(Arena *a, OpRecord *op, uint32_t last_value) noexcept nogil:
    """Bytes that an operation's outcome needs in the heap. `last_value`: the value that was last put there, or 0."""
    cdef uint32_t failures = failures_length(op)
    if op.group:
        return blob_length(a, op.value) + failures + blob_length(a, op.payload) + names_length(a, op)
    return blob_length(a, op.value) + failures if op.value != last_value or failures else 0


cdef inline void measure(
    Arena *a, uint32_t slot, uint32_t first, uint64_t outcome_after, uint64_t answer_after, uint32_t outcomes_max,
    Extent *x,
) noexcept nogil:
    """Find what follows these numbers. `first`: link of the first settled operation to look at (0 = none)."""
    cdef ClientRecord *c = a.clients + slot
    cdef uint32_t head = link_of(a, &c.next), link = first, length, last_value = 0
    cdef OpRecord *op
    memset(x, 0, sizeof(Extent))
    x.outcome_after = outcome_after
    x.answer_after = answer_after
    while link and link != head:  # bound: `outcomes_max` of unreported outcomes; measure_again() charges x.walked
        op = op_at(a, link)
        touch_outcome(a, op.prefetch_hint)
        x.walked += 1
        if op.outcome_number > outcome_after:
            length = heap_length(a, op, last_value)
            if x.outcomes == outcomes_max or (x.outcomes and x.heap + length > REPORT_HEAP_MAX):
                x.more = True
                break
            if x.outcomes == 0:
                x.first = link
            x.outcomes += 1
            x.heap += length
            if op.group == 0 and op.value and failures_length(op) == 0:
                last_value = op.value
        link = op.next
        x.behind = link
    # Answers are few, and new ones stand at the end.
    head = link_of(a, &c.answers_next)
    link = c.answers_prev
    while link != head and answer_at(a, link).command > answer_after:  # bound: the quota of answers
        x.first_answer = link
        x.answers += 1
        link = answer_at(a, link).prev


cdef inline void measure_looks(Arena *a, uint32_t slot, uint32_t looks_max, Extent *x) noexcept nogil:
    """Add the client's looks that were not sent."""
    cdef uint32_t number = a.members.report_states[slot].next_look
    x.first_look = number
    while number and x.looks < looks_max:  # bound: `looks_max`
        x.looks += 1
        number = a.members.looks[number - 1].next
    x.behind_looks = number


cdef inline void fill_outcome(
    Arena *a, OpRecord *op, OutcomeRecord *out, uint8_t *heap, uint32_t *used, uint32_t *last_value, uint32_t *last_at
) noexcept nogil:
    cdef uint32_t length = blob_length(a, op.value), failures = failures_length(op)
    out.command = 0 if op.group else op.command
    out.number = op.outcome_number
    out.operation = op_id(a, op)
    out.settled_ns = op.settled_ns
    out.deadline_ns = op.deadline_ns
    out.registered_ns = op.registered_ns
    out.sequence = op.seen
    out.satisfied = op.progress if op.condition != CONDITION_TOTAL and op.condition != CONDITION_OWNER else 0
    out.failed = op.failed if op.condition != CONDITION_OWNER else 0
    if op.flags & OP_FLAG_CALL:
        out.satisfied = first_node(op).target  # when it is due by the wall clock
        out.failed = 0
    out.heap_offset = 0
    out.value_length = length
    out.payload_length = 0
    out.keys_length = 0
    out.error = op.error
    out.state = op.outcome
    out.settled_key = op.settled_key
    out.deliveries = op.deliveries
    out.flags = 0
    if op.condition == CONDITION_TOTAL and op.outcome == OUTCOME_COMPLETED and op.settled_key:
        out.satisfied = <uint64_t>1 << (op.settled_key - 1)
    if op.flags & OP_FLAG_GRANTED:
        out.flags |= OUTCOME_FLAG_GRANTED
    if op.flags & OP_FLAG_REDELIVERED or (op.group and op.deliveries > 1):
        out.flags |= OUTCOME_FLAG_REDELIVERED
    if op.flags & OP_FLAG_VALUE_DROPPED:
        out.flags |= OUTCOME_FLAG_VALUE_DROPPED
    if length:
        out.flags |= OUTCOME_FLAG_HAS_VALUE
    if failures:
        out.flags |= OUTCOME_FLAG_HAS_FAILURES
    if op.group:
        out.flags |= OUTCOME_FLAG_HAS_PAYLOAD
        if op.flags & OP_FLAG_CALL:
            out.flags |= OUTCOME_FLAG_CALL
        out.heap_offset = used[0]
        copy_blob(a, op.value, heap + used[0])
        used[0] += length
        used[0] += copy_failures(a, op, heap + used[0])
        out.payload_length = blob_length(a, op.payload)
        copy_blob(a, op.payload, heap + used[0])
        used[0] += out.payload_length
        out.keys_length = copy_names(a, op, heap + used[0])
        used[0] += out.keys_length
    elif failures:
        # The codes follow the value, so the value is written again even if others share it.
        out.heap_offset = used[0]
        copy_blob(a, op.value, heap + used[0])
        used[0] += length
        used[0] += copy_failures(a, op, heap + used[0])
    elif length:
        if op.value != last_value[0]:
            copy_blob(a, op.value, heap + used[0])
            last_value[0] = op.value
            last_at[0] = used[0]
            used[0] += length
        out.heap_offset = last_at[0]


cdef inline void write_report(Arena *a, uint32_t slot, uint32_t kind, Extent *x, uint8_t *out) noexcept nogil:
    """Write a measured report: report_size(x) bytes at `out`."""
    cdef ClientRecord *c = a.clients + slot
    cdef ReportHeader *header = <ReportHeader *>out
    cdef OutcomeRecord *outcome = <OutcomeRecord *>(out + sizeof(ReportHeader))
    cdef WireAnswer *answer = <WireAnswer *>(<uint8_t *>outcome + x.outcomes * sizeof(OutcomeRecord))
    cdef LookRecord *due = <LookRecord *>(<uint8_t *>answer + x.answers * sizeof(WireAnswer))
    cdef uint8_t *heap = <uint8_t *>due + x.looks * sizeof(LookRecord)
    cdef uint32_t i, link = x.first, used = 0, last_value = 0, last_at = 0
    cdef AnswerRecord *kept
    memset(header, 0, sizeof(ReportHeader))
    header.topic = topic_of(a, slot)
    header.version = PROTOCOL_VERSION
    header.kind = kind
    header.outcomes = x.outcomes
    header.answers = x.answers
    header.looks = x.looks
    header.incarnation = a.header.incarnation
    header.applied = c.last_command
    header.outcome_first = x.outcome_after + 1
    header.outcome_last = x.outcome_after
    header.outcome_newest = c.next_outcome - 1
    header.answer_previous = x.answer_after
    header.newest = a.header.newest
    header.now_ns = a.turn.now_ns
    if c.answers_prev != link_of(a, &c.answers_next):
        header.answer_newest = answer_at(a, c.answers_prev).command
    for i in range(x.outcomes):  # bound: the walk that chose them
        fill_outcome(a, op_at(a, link), outcome + i, heap, &used, &last_value, &last_at)
        header.outcome_last = outcome[i].number
        link = op_at(a, link).next
    if not x.more:
        # Nothing was left out, so the missing numbers up to the newest are void.
        header.outcome_last = c.next_outcome - 1
    link = x.first_answer
    for i in range(x.answers):  # bound: the quota of answers
        kept = answer_at(a, link)
        answer[i].command = kept.command
        answer[i].value = kept.value
        answer[i].code = kept.code
        answer[i].reserved = 0
        link = kept.next
    link = x.first_look
    for i in range(x.looks):  # bound: `looks_max`
        due[i].command = a.ops[link - 1].command
        due[i].sequence = a.ops[link - 1].progress
        link = a.members.looks[link - 1].next


cdef inline void note_reported(Arena *a, uint32_t slot, Extent *x) noexcept nogil:
    """Note what this report contains: the next report begins after it."""
    cdef ClientRecord *c = a.clients + slot
    if x.outcomes:
        a.members.report_states[slot].unreported = 0 if x.behind == link_of(a, &c.next) else x.behind
    if not x.more:
        a.members.report_states[slot].outcome = c.next_outcome - 1
    elif x.outcomes:
        a.members.report_states[slot].outcome = op_at(a, at(a, x.behind).prev).outcome_number
    if x.answers:
        a.members.report_states[slot].answer = answer_at(a, c.answers_prev).command
    if x.looks:
        a.members.report_states[slot].next_look = x.behind_looks
    a.members.report_states[slot].command = c.last_command


cdef inline void begin_round(Arena *a, Round *r) noexcept nogil:
    """Begin a round. Confirmations that have waited long enough are queued behind reports: outcomes go first."""
    cdef uint64_t due_ns
    r.due_ns = NO_DEADLINE
    while a.members.first_waits:  # bound: clients
        due_ns = a.members.report_states[a.members.first_waits - 1].waits_ns + r.confirm_ns
        if due_ns > a.turn.now_ns:
            r.due_ns = due_ns
            break
        queue_report(a, a.members.first_waits - 1)
    r.at = 0
    r.count = a.members.queued
    a.members.queued = 0


cdef inline void put_off(Arena *a, Round *r, uint32_t slot) noexcept nogil:
    """Put off a client's report. The queue has room: this call has taken out at least as many clients."""
    a.members.queue[a.members.queued] = slot
    a.members.queued += 1
    r.due_ns = a.turn.now_ns


cdef inline int next_report(Arena *a, Round *r, bint full, Extent *x) noexcept nogil:
    """The slot of the next client with a due report, and its extent; or -1. When the round is `full`, all are put off."""
    cdef uint32_t slot
    cdef ReportState *report_states
    while r.at < r.count:  # bound: clients
        slot = a.members.queue[r.at]
        report_states = a.members.report_states + slot
        r.at += 1
        if full:
            put_off(a, r, slot)
        else:
            report_states.due = NOT_DUE
            if is_live(a, slot):
                measure(a, slot, report_states.unreported, report_states.outcome, report_states.answer, r.outcomes_max, x)
                measure_looks(a, slot, r.outcomes_max, x)
                return slot
    return -1


cdef inline void measure_again(
    Arena *a, uint32_t slot, uint64_t outcome_after, uint64_t answer_after, Extent *x
) noexcept nogil:
    """The extent of the report for a client that asks again for what follows these numbers."""
    cdef ClientRecord *c = a.clients + slot
    cdef uint32_t first = c.next
    if outcome_after >= c.next_outcome - 1:
        # Nothing follows: the unacknowledged outcomes need no walk.
        outcome_after = c.next_outcome - 1
        first = 0
    measure(a, slot, first, outcome_after, answer_after, OUTCOMES_IN_ANSWER, x)
    a.turn.touched += x.walked
