"""Client slots as the core sees them: whose an operation is, what a client is still to be told, its kept answers."""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memset
from timerd.purgatory.memory.arena cimport REFUSALS, Arena, News, capacity, commit, counter, give, take, unused
from timerd.purgatory.memory.list cimport append, link_of, unlink
from timerd.purgatory.memory.transaction cimport td_put
from timerd_shm.generated.records cimport *


cdef inline bint is_live(Arena *a, uint32_t slot) noexcept nogil:
    return a.clients[slot].state == CLIENT_STATE_LIVE or a.clients[slot].state == CLIENT_STATE_SILENT


cdef inline ClientRecord *owner_of(Arena *a, OpRecord *op) noexcept nogil:
    """The live client that the operation belongs to, or NULL: then nobody is told."""
    cdef ClientRecord *c = a.clients + op.client
    if c.generation != op.client_generation or not is_live(a, op.client):
        return NULL
    return c


cdef inline int nodes_of(OpRecord *op) noexcept nogil:
    """Watch nodes that the operation holds, by its state and flags."""
    return op.keys if op.state == OP_STATE_PENDING or op.flags & OP_FLAG_KEYS_KEPT else 0


cdef inline void charge(Arena *a, OpRecord *op, int pending, int settled, int nodes, int64_t bytes) noexcept nogil:
    """Count the operation where it is charged: to its group, or to its client, dead or alive; to nobody if it is kept."""
    cdef ClientRecord *c
    cdef GroupRecord *g
    if op.group:
        g = a.groups + (op.group - 1)
        g.pending += pending
        if op.deadline_ns == NO_DEADLINE:
            g.endless += pending
        g.unacknowledged += settled
        g.nodes += nodes
        g.bytes_held += bytes
        return
    c = a.clients + op.client
    if c.generation == op.client_generation and c.state != CLIENT_STATE_FREE:
        c.pending += pending
        c.unacknowledged += settled
        c.nodes += nodes
        c.bytes_held += bytes


cdef inline bint has_too_many_keys(Arena *a, uint64_t own, uint32_t more) noexcept nogil:
    """Whether somebody with so many watchers and watermarks may make no more new keys, so that nobody uses up all.

    Whose a key is that many watch, is not counted: as many are somebody's as it has watchers and watermarks, at most. So
    nobody is refused one while fewer are there at all than one may have.
    """
    return own + more > a.header.quota_keys and a.regions[REGION_KEYS].in_use + more > a.header.quota_keys


cdef inline bint may_make_too_many_keys(Arena *a, ClientRecord *c, uint32_t more) noexcept nogil:
    return has_too_many_keys(a, <uint64_t>c.nodes + c.watermarks, more)


cdef inline uint32_t *waiting_of(Arena *a, OpRecord *op) noexcept nogil:
    """The list of its group in which an operation waits while nobody is told of it."""
    cdef GroupRecord *g = a.groups + (op.group - 1)
    return &g.calls_next if op.flags & OP_FLAG_CALL else &g.next


cdef inline uint32_t following(Arena *a, OpRecord *op) noexcept nogil:
    """Link of the operation behind one that waits in its group; 0 = it is the last."""
    return 0 if op.next == link_of(a, waiting_of(a, op)) else op.next


cdef inline void leave_outcomes(Arena *a, OpRecord *op) noexcept nogil:
    """Take a settled operation out of the list it is in: its client's outcomes or its group's (one that is held is in none)."""
    cdef uint32_t own = link_of(a, &op.next)
    if a.news[op.client].unreported == own:
        a.news[op.client].unreported = 0 if op.next == link_of(a, &a.clients[op.client].next) else op.next
    if op.flags & OP_FLAG_CALL:
        # No cursor may stay on what leaves.
        if a.unmatched[op.group - 1] == own:
            a.unmatched[op.group - 1] = following(a, op)
        if a.outdated[op.group - 1] == own:
            a.outdated[op.group - 1] = following(a, op)
    unlink(a, &op.next)


cdef inline void forget_news(Arena *a, uint32_t slot) noexcept nogil:
    """Another client has this slot, or the same one anew. Its place among those to be told, if it has one, it keeps."""
    cdef uint8_t queued = a.news[slot].queued
    memset(a.news + slot, 0, sizeof(News))
    a.news[slot].queued = queued


cdef inline void tell(Arena *a, uint32_t slot) noexcept nogil:
    """The client has news: its next report is due."""
    if not a.news[slot].queued:
        a.news[slot].queued = 1
        a.queue[a.queued] = slot
        a.queued += 1


cdef inline bint can_answer(Arena *a, uint32_t slot) noexcept nogil:
    """Whether a command that leaves an answer can be applied: its client acknowledges, and a record is free.

    One record for each client is kept back, so that clients which never acknowledge cannot use up those of the others.
    """
    if a.clients[slot].answers == 0:
        return unused(a, REGION_ANSWERS) != 0
    return a.clients[slot].answers < a.header.quota_answers and unused(a, REGION_ANSWERS) > capacity(a, REGION_CLIENTS)


cdef inline AnswerRecord *fill_answer(
    Arena *a, uint32_t slot, uint64_t command, uint32_t code, uint64_t value
) noexcept nogil:
    """An answer that nothing reaches yet. The caller has seen can_answer."""
    cdef AnswerRecord *answer = a.answers + (take(a, REGION_ANSWERS) - 1)
    answer.command = command
    answer.client = slot
    answer.used = 0
    answer.reserved = 0
    answer.code = code
    answer.value = value
    return answer


cdef inline void stage_answer(Arena *a, AnswerRecord *answer) noexcept nogil:
    td_put(&a.tx, AnswerRecord_word_used(answer), AnswerRecord_with_used(AnswerRecord_word_used(answer)[0], 1))


cdef inline void keep_answer(Arena *a, AnswerRecord *answer) noexcept nogil:
    """The answer is true: keep it in its client's list until it is acknowledged."""
    append(a, &a.clients[answer.client].answers_next, &answer.next)
    a.clients[answer.client].answers += 1
    tell(a, answer.client)


cdef inline void free_answer(Arena *a, AnswerRecord *answer) noexcept nogil:
    td_put(&a.tx, AnswerRecord_word_used(answer), AnswerRecord_with_used(AnswerRecord_word_used(answer)[0], 0))
    commit(a)
    unlink(a, &answer.next)
    a.clients[answer.client].answers -= 1
    give(a, REGION_ANSWERS, <uint32_t>(answer - a.answers))


cdef inline void apply_plain(
    Arena *a, uint32_t slot, uint64_t command, bint wants_answer, uint32_t code, uint64_t value
) noexcept nogil:
    """Pass the command's number, with nothing else changed but perhaps an answer left."""
    cdef AnswerRecord *answer = NULL
    if wants_answer:
        answer = fill_answer(a, slot, command, code, value)
        stage_answer(a, answer)
    td_put(&a.tx, &a.clients[slot].last_command, command)
    commit(a)
    if answer != NULL:
        keep_answer(a, answer)


cdef inline uint64_t met(uint32_t what, uint64_t limit) noexcept nogil:
    """The value of a refusal that met this limit."""
    return <uint64_t>what << MET_SHIFT | limit


cdef inline void note_refusal(Arena *a, uint32_t code, uint64_t value) noexcept nogil:
    """One more for the log of errors."""
    cdef uint32_t at = 0
    if code != ERROR_CODE_ARENA_FULL and code != ERROR_CODE_QUOTA_EXCEEDED:
        value = 0  # a sequence or a time: not the same twice
    while at < a.refused and (a.refusals[at].code != code or a.refusals[at].value != value):
        at += 1
    if at == a.refused:
        if at == REFUSALS:
            return  # `rejected` counts it
        a.refused += 1
        a.refusals[at].code, a.refusals[at].value, a.refusals[at].count = code, value, 0
    a.refusals[at].count += 1


cdef inline void refuse(
    Arena *a, uint32_t slot, uint64_t command, uint32_t purgatory, uint32_t code, uint64_t value
) noexcept nogil:
    """Refuse a command: its number passes, the refusal is kept until it is acknowledged. `value` is the limit met."""
    apply_plain(a, slot, command, True, code, value)
    if code == ERROR_CODE_OPERATION_EXISTS or code == ERROR_CODE_UNKNOWN_OPERATION:
        counter(a, purgatory, COUNT_REFUSED_BY_ID)[0] += 1  # what ids are for
        return
    counter(a, purgatory, COUNT_REJECTED)[0] += 1
    note_refusal(a, code, value)
