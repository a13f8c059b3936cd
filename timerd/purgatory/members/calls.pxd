"""Calls of groups, once they are due: a call's phase, which call of an id is held, how many processes a call has ended.

For example, a call with the id "user-9" is due. The record of its id names the call (IdRecord.call), and anybody may
still cancel the call. Then the call is delivered to a member. From then on the record of the id names it as held
(IdRecord.running), and no other call of the same id is delivered. The member sends CALL_PHASE, and waits for the answer
before it runs the handler. From then on the call cannot be cancelled. If the member's process ends while
it runs the call, that end is counted. If the member only closes, or falls silent, nothing is counted.

A settled call needs no masks of keys. So `progress` says since when it runs, `failed` says how long it may run, and
`error` has its phase and the number of processes that it has ended.
"""

from libc.stdint cimport uint16_t, uint32_t, uint64_t
from timerd.purgatory.memory.arena cimport Arena, capacity
from timerd.purgatory.memory.transaction cimport TD_DEFECT, td_put
from timerd_shm.generated.records cimport *

from .call_names cimport look_for_calls_again

cdef extern from *:
    """
    #define CALL_ENDS_MAX 255 /* this many processes, or more */
    #define SEVERAL_GROUPS UINT16_MAX /* calls of one id wait in more than one group */
    _Static_assert(GROUPS_MAX < SEVERAL_GROUPS, "Members.waits_for_id");
    """
    enum:
        CALL_ENDS_MAX
        SEVERAL_GROUPS


cdef inline uint32_t phase_of(OpRecord *op) noexcept nogil:
    """CallPhase of a settled call."""
    return op.error & ((1 << CALL_ENDS_SHIFT) - 1)


cdef inline bint is_running(OpRecord *op) noexcept nogil:
    """Whether a member runs something for a settled call."""
    return op.progress != 0


cdef inline bint is_letter(OpRecord *op) noexcept nogil:
    """Whether a settled call of a group is one of its dead letters."""
    return op.flags & OP_FLAG_CALL and op.client_generation == 0 and op.outcome_number != 0


cdef inline OpRecord *due_call(Arena *a, IdRecord *id) noexcept nogil:
    """The call of that id that is due, does not run, and was not given up; or NULL."""
    cdef OpRecord *op
    if id.call == 0:
        return NULL
    op = a.ops + (id.call - 1)
    return NULL if is_running(op) or phase_of(op) == CALL_PHASE_FAILED else op


cdef inline bint must_wait(Arena *a, OpRecord *op) noexcept nogil:
    """Whether a due call has to wait, because a member holds another call of its id."""
    cdef uint32_t running
    if op.id_record == 0 or TD_DEFECT(DEFECT_TWO_OF_AN_ID):
        return False
    running = a.ids[op.id_record - 1].running
    return running != 0 and running != <uint32_t>(op - a.ops) + 1


cdef inline void note_wait(Arena *a, OpRecord *op) noexcept nogil:
    """A due call waits for another call of its id: its group is looked at again when a call of the id is over.

    The other call may be of any group, because an id belongs to a purgatory, not to a group.
    """
    cdef uint16_t *waits = a.members.waits_for_id + (op.id_record - 1)
    if waits[0] != op.group:
        waits[0] = op.group if waits[0] == 0 else SEVERAL_GROUPS


cdef inline void look_for_calls_of_id(Arena *a, uint32_t id_record) noexcept nogil:
    """No member holds this call of an id (index + 1) from now on: another call of the id may be delivered."""
    cdef uint16_t *waits = a.members.waits_for_id + (id_record - 1)
    cdef uint32_t group
    if waits[0] == SEVERAL_GROUPS:
        for group in range(capacity(a, REGION_GROUPS)):  # bound: groups
            look_for_calls_again(a, group + 1)
    elif waits[0]:
        look_for_calls_again(a, waits[0])
    waits[0] = 0


cdef inline void stage_id_calls(Arena *a, IdRecord *id, uint32_t call, uint32_t running) noexcept nogil:
    """Stage which call of an id is due, and which one a member holds (index + 1)."""
    cdef uint64_t word = IdRecord_with_running(IdRecord_with_call(0, call), running)
    if word != IdRecord_word_call(id)[0]:
        td_put(&a.tx, IdRecord_word_call(id), word)


cdef inline void stage_held(Arena *a, OpRecord *op) noexcept nogil:
    """Stage that a member holds this call of its id."""
    if op.flags & OP_FLAG_CALL and op.id_record:
        stage_id_calls(a, a.ids + (op.id_record - 1), a.ids[op.id_record - 1].call, <uint32_t>(op - a.ops) + 1)


cdef inline void stage_not_held(Arena *a, OpRecord *op, bint due) noexcept nogil:
    """Stage for a call's id, if it is still known, that no member holds the call; `due`: whether it is not done."""
    cdef uint32_t own = <uint32_t>(op - a.ops) + 1, call, running
    cdef IdRecord *id
    if not op.flags & OP_FLAG_CALL or op.id_record == 0:
        return
    id = a.ids + (op.id_record - 1)
    call, running = id.call, id.running
    if running == own:
        running = 0
    if call == own and not due:
        call = 0
    stage_id_calls(a, id, call, running)
    look_for_calls_of_id(a, op.id_record)


cdef inline void stage_phase(Arena *a, OpRecord *op, uint32_t phase, uint32_t ends) noexcept nogil:
    td_put(
        &a.tx, OpRecord_word_error(op), OpRecord_with_error(OpRecord_word_error(op)[0], phase | ends << CALL_ENDS_SHIFT)
    )


cdef inline void stage_runs(Arena *a, OpRecord *op, uint64_t since_ns, uint64_t limit_ns) noexcept nogil:
    if op.progress != since_ns:
        td_put(&a.tx, &op.progress, since_ns)
    if op.failed != limit_ns:
        td_put(&a.tx, &op.failed, limit_ns)


cdef inline void stage_interrupted(Arena *a, OpRecord *op, bint process_ended) noexcept nogil:
    """Stage that the holder of a call no longer holds it, and that the call is not done."""
    cdef uint32_t ends = op.error >> CALL_ENDS_SHIFT
    if not op.flags & OP_FLAG_CALL:
        return
    stage_not_held(a, op, True)
    if not is_running(op):
        return
    stage_runs(a, op, 0, 0)
    if process_ended and ends < CALL_ENDS_MAX and not TD_DEFECT(DEFECT_ENDS_NOT_COUNTED):
        stage_phase(a, op, phase_of(op), ends + 1)
