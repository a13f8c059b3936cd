"""Answers: results and refusals of commands, kept until their client acknowledges them."""

from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy
from timerd.purgatory.memory.arena cimport Arena, capacity, unused
from timerd.purgatory.memory.commit cimport commit
from timerd.purgatory.memory.counters cimport counter
from timerd.purgatory.memory.list cimport append, unlink
from timerd.purgatory.memory.slab cimport allocate, free_record
from timerd.purgatory.memory.transaction cimport td_put
from timerd_shm.generated.records cimport *

from .state cimport REFUSALS, REFUSALS_NAMED, Refusal
from .clients cimport queue_report


cdef inline bint can_answer(Arena *a, uint32_t slot) noexcept nogil:
    """Whether a command that leaves an answer can be applied: its client is within its quota, and a record is free.

    One record is kept back for each client. So clients that never acknowledge cannot use up the records of the others.
    """
    if a.clients[slot].answers == 0:
        return unused(a, REGION_ANSWERS) != 0
    return a.clients[slot].answers < a.header.quota_answers and unused(a, REGION_ANSWERS) > capacity(a, REGION_CLIENTS)


cdef inline AnswerRecord *fill_answer(
    Arena *a, uint32_t slot, uint64_t command, uint32_t code, uint64_t value
) noexcept nogil:
    """A filled record of an answer. No list leads to it yet."""
    cdef AnswerRecord *answer = a.answers + (allocate(a, REGION_ANSWERS) - 1)
    answer.command = command
    answer.client = slot
    answer.used = 0
    answer.reserved = 0
    answer.code = code
    answer.value = value
    return answer


cdef inline AnswerRecord *stage_answer(
    Arena *a, uint32_t slot, uint64_t command, uint32_t code, uint64_t value
) noexcept nogil:
    """Stage an answer. The caller has asked can_answer(), commits, and then calls keep_answer()."""
    cdef AnswerRecord *answer = fill_answer(a, slot, command, code, value)
    td_put(&a.tx, AnswerRecord_word_used(answer), AnswerRecord_with_used(AnswerRecord_word_used(answer)[0], 1))
    return answer


cdef inline void keep_answer(Arena *a, AnswerRecord *answer) noexcept nogil:
    """The answer is true: keep it in its client's list until it is acknowledged. NULL: the command left no answer."""
    if answer == NULL:
        return
    append(a, &a.clients[answer.client].answers_next, &answer.next)
    a.clients[answer.client].answers += 1
    queue_report(a, answer.client)


cdef inline void free_answer(Arena *a, AnswerRecord *answer) noexcept nogil:
    td_put(&a.tx, AnswerRecord_word_used(answer), AnswerRecord_with_used(AnswerRecord_word_used(answer)[0], 0))
    commit(a)
    unlink(a, &answer.next)
    a.clients[answer.client].answers -= 1
    free_record(a, REGION_ANSWERS, <uint32_t>(answer - a.answers))


cdef inline AnswerRecord *commit_command(
    Arena *a, uint32_t slot, uint64_t command, bint wants_answer, uint32_t code, uint64_t value
) noexcept nogil:
    """Commit what is staged, together with the number of the command that caused it and the answer that it wants.

    The caller then changes what is derived, and gives the answer (NULL if none) to keep_answer().
    """
    cdef AnswerRecord *answer = stage_answer(a, slot, command, code, value) if wants_answer else NULL
    td_put(&a.tx, &a.clients[slot].last_command, command)
    commit(a)
    return answer


cdef inline void apply_plain(
    Arena *a, uint32_t slot, uint64_t command, bint wants_answer, uint32_t code, uint64_t value
) noexcept nogil:
    """Commit a command that changes nothing derived, and keep the answer that it wants."""
    keep_answer(a, commit_command(a, slot, command, wants_answer, code, value))


cdef inline uint64_t met(uint32_t what, uint64_t limit) noexcept nogil:
    """The value that a refusal carries: the kind of the limit that was met, and the limit."""
    return <uint64_t>what << MET_SHIFT | limit


cdef inline uint32_t find_refusal(Arena *a, uint32_t code, uint64_t value, uint32_t who, uint32_t group) noexcept nogil:
    """The position of that reason, or the number of reasons if it is new."""
    cdef Refusal *r = a.members.refusals
    cdef uint32_t at = 0
    while at < a.members.refused and (
        r[at].code != code or r[at].value != value or r[at].who != who or r[at].group != group
    ):
        at += 1
    return at


cdef inline void name_holder(Arena *a, Refusal *r) noexcept nogil:
    """Note whose share is used up."""
    cdef ClientRecord *c = a.clients + (r.who - 1)
    cdef GroupRecord *g = a.groups + (r.group - 1)
    if r.group:
        r.pid = g.maker_pid
        r.bytes_held = g.bytes_held
        r.name_length = g.name_length
        memcpy(r.name, g.name, NAME_SIZE_MAX)
    else:
        r.pid = c.maker_pid if c.maker_pid else c.pid
        r.bytes_held = c.bytes_held
        r.name_length = c.name_length
        memcpy(r.name, c.name, NAME_SIZE_MAX)


cdef inline void note_refusal(Arena *a, uint32_t slot, uint32_t group, uint32_t code, uint64_t value) noexcept nogil:
    """Count a refusal for the log of errors. `group` (index + 1): its quota was met; 0: the client's."""
    cdef uint32_t at, who = 0
    cdef Refusal *r
    if code == ERROR_CODE_QUOTA_EXCEEDED:
        if value >> MET_SHIFT >= MET_LEFT_OPERATIONS:
            value &= ~(((<uint64_t>1 << LEFT_SHIFT) - 1) << LEFT_SHIFT)  # one reason, however much is held
        who = 1 if group else slot + 1  # the slot in a group's operation may belong to another client by now
    else:
        group = 0
        if code != ERROR_CODE_ARENA_FULL and code != ERROR_CODE_PAYLOAD_TOO_LARGE:
            value = 0  # it may be a sequence or a time, which is never the same twice
    at = find_refusal(a, code, value, who, group)
    if at == a.members.refused and at >= REFUSALS_NAMED and who:
        who = group = 0  # many at once: these are counted together
        at = find_refusal(a, code, value, who, group)
    if at == a.members.refused:
        if at == REFUSALS:
            return  # the counter `rejected` has counted it
        a.members.refused += 1
        r = a.members.refusals + at
        r.code, r.value, r.count, r.who, r.group = code, value, 0, who, group
        if who:
            name_holder(a, r)
    a.members.refusals[at].count += 1


cdef inline void refuse_for(
    Arena *a, uint32_t slot, uint32_t group, uint64_t command, uint32_t purgatory, uint32_t code, uint64_t value
) noexcept nogil:
    """Refuse a command: its number counts as applied, and the refusal is kept until it is acknowledged.

    `value`: the limit that was met. `group` (index + 1): the group that would own the operation; 0: the client would.
    """
    apply_plain(a, slot, command, True, code, value)
    if code == ERROR_CODE_OPERATION_EXISTS or code == ERROR_CODE_UNKNOWN_OPERATION:
        counter(a, purgatory, COUNT_REFUSED_BY_ID)[0] += 1  # such refusals are what ids are for
        return
    counter(a, purgatory, COUNT_REJECTED)[0] += 1
    note_refusal(a, slot, group, code, value)


cdef inline void refuse(
    Arena *a, uint32_t slot, uint64_t command, uint32_t purgatory, uint32_t code, uint64_t value
) noexcept nogil:
    """Refuse a command for which the client itself pays, and no group."""
    refuse_for(a, slot, 0, command, purgatory, code, value)
