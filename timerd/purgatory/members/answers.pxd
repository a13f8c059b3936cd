"""Answers: what a command leaves for its client until the client acknowledges it, refusals among them."""

from libc.stdint cimport uint32_t, uint64_t
from timerd.purgatory.memory.arena cimport Arena, capacity, unused
from timerd.purgatory.memory.commit cimport commit
from timerd.purgatory.memory.counters cimport counter
from timerd.purgatory.memory.hash cimport handle_tag
from timerd.purgatory.memory.list cimport answer_at, append, link_of, unlink
from timerd.purgatory.memory.slab cimport allocate, free_record
from timerd.purgatory.memory.transaction cimport td_put
from timerd.purgatory.index.operation_table cimport find_operation
from timerd_shm.generated.records cimport *

from .state cimport REFUSALS
from .clients cimport queue_report


cdef inline bint can_answer(Arena *a, uint32_t slot) noexcept nogil:
    """Whether a command that leaves an answer can be applied: its client acknowledges, and a record is free.

    One record is kept back for each client. So clients that never acknowledge cannot use up the records of the others.
    """
    if a.clients[slot].answers == 0:
        return unused(a, REGION_ANSWERS) != 0
    return a.clients[slot].answers < a.header.quota_answers and unused(a, REGION_ANSWERS) > capacity(a, REGION_CLIENTS)


cdef inline AnswerRecord *fill_answer(
    Arena *a, uint32_t slot, uint64_t command, uint32_t code, uint64_t value
) noexcept nogil:
    """An answer that nothing reaches yet. The caller has asked can_answer()."""
    cdef AnswerRecord *answer = a.answers + (allocate(a, REGION_ANSWERS) - 1)
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
    queue_report(a, answer.client)


cdef inline void free_answer(Arena *a, AnswerRecord *answer) noexcept nogil:
    td_put(&a.tx, AnswerRecord_word_used(answer), AnswerRecord_with_used(AnswerRecord_word_used(answer)[0], 0))
    commit(a)
    unlink(a, &answer.next)
    a.clients[answer.client].answers -= 1
    free_record(a, REGION_ANSWERS, <uint32_t>(answer - a.answers))


cdef inline void apply_plain(
    Arena *a, uint32_t slot, uint64_t command, bint wants_answer, uint32_t code, uint64_t value
) noexcept nogil:
    """Apply a command that changes nothing: its number passes, and it may leave an answer."""
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
    """Count a refusal for the log of errors."""
    cdef uint32_t at = 0
    if code != ERROR_CODE_ARENA_FULL and code != ERROR_CODE_QUOTA_EXCEEDED:
        value = 0  # a sequence or a time: never the same twice
    while at < a.members.refused and (a.members.refusals[at].code != code or a.members.refusals[at].value != value):
        at += 1
    if at == a.members.refused:
        if at == REFUSALS:
            return  # `rejected` counts it
        a.members.refused += 1
        a.members.refusals[at].code, a.members.refusals[at].value, a.members.refusals[at].count = code, value, 0
    a.members.refusals[at].count += 1


cdef inline void refuse(
    Arena *a, uint32_t slot, uint64_t command, uint32_t purgatory, uint32_t code, uint64_t value
) noexcept nogil:
    """Refuse a command: its number passes, and the refusal is kept until acknowledged. `value` is the limit it met."""
    apply_plain(a, slot, command, True, code, value)
    if code == ERROR_CODE_OPERATION_EXISTS or code == ERROR_CODE_UNKNOWN_OPERATION:
        counter(a, purgatory, COUNT_REFUSED_BY_ID)[0] += 1  # ids are there for such refusals
        return
    counter(a, purgatory, COUNT_REJECTED)[0] += 1
    note_refusal(a, code, value)


cdef inline bint is_refused(Arena *a, uint32_t slot, uint64_t command) noexcept nogil:
    """Whether the command was refused, and the client has not acknowledged the refusal."""
    cdef uint32_t link = a.clients[slot].answers_next
    while link != link_of(a, &a.clients[slot].answers_next):
        if answer_at(a, link).code and answer_at(a, link).command == command:
            return True
        link = answer_at(a, link).next
    return False


cdef inline bint is_unknown(Arena *a, uint32_t slot, uint64_t command) noexcept nogil:
    """Whether the registration with that command number has neither an operation nor a refusal."""
    return find_operation(a, slot, command, handle_tag(a.seed, slot, command)) == NULL and not is_refused(a, slot, command)
