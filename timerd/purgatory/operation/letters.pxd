"""Dead letters: calls that are over and are kept, so that no call vanishes. They hold no id.

For example, a call has ended five processes. A member gives the call up (CALL_PHASE with FAILED and a reason). When the
call is done, it becomes a dead letter of its group, with the arena's next number for letters. Everybody may read it in
the arena. A member may retry the dead letter, by a registration that follows it, or drop it. A call that no member
handles becomes a dead letter after its retention, too.

A group keeps a bounded number of dead letters: beyond it, the oldest is dropped for a newer one. The oldest letters are
also dropped for a registration that would be refused otherwise: as many of them as it needs, and none if they would not
suffice.
"""

from libc.stdint cimport uint32_t, uint64_t
from timerd.purgatory.memory.arena cimport Arena, capacity, settled_of
from timerd.purgatory.memory.blob cimport blob_length, freed_by_drop
from timerd.purgatory.memory.commit cimport commit
from timerd.purgatory.memory.list cimport append, link_of, op_at
from timerd.purgatory.memory.nodes cimport names_of
from timerd.purgatory.memory.transaction cimport td_put
from timerd.purgatory.journal.rows cimport journal_group
from timerd.purgatory.members.calls cimport is_letter, phase_of, stage_not_held, stage_runs
from timerd.purgatory.members.clients cimport leave_outcomes
from timerd.purgatory.members.groups cimport count_held, is_deserted, look_for_calls_again
from timerd_shm.generated.records cimport *

from .settle cimport finish_free, stage_free

cdef extern from *:
    """
    #define LETTERS_AT_ONCE 64 /* dead letters that are dropped for one command, at most */
    """
    enum:
        LETTERS_AT_ONCE


ctypedef struct Shortage:
    # The room that a registration lacks, of the kinds that dead letters take up.
    uint64_t operations
    uint64_t bytes
    uint64_t blocks


cdef inline OpRecord *find_letter(Arena *a, uint32_t slot, uint64_t operation) noexcept nogil:
    """The dead letter of that op id, if it belongs to this client's group; else NULL."""
    cdef OpRecord *op = settled_of(a, operation)
    if op == NULL or op.group == 0 or op.group != a.clients[slot].group or not is_letter(op):
        return NULL
    return op


cdef inline void stage_id_is_free(Arena *a, OpRecord *op) noexcept nogil:
    """Stage that the id of a call counts as cancelled, unless it names a newer call by now."""
    cdef IdRecord *id
    if op.id_record == 0:
        return
    id = a.ids + (op.id_record - 1)
    if id.state == ID_STATE_SETTLED and id.call == <uint32_t>(op - a.ops) + 1:
        td_put(&a.tx, IdRecord_word_outcome(id), IdRecord_with_outcome(IdRecord_word_outcome(id)[0], OUTCOME_CANCELLED))


cdef inline void stage_letter(Arena *a, OpRecord *op) noexcept nogil:
    """Stage that a call of a group is its newest dead letter."""
    td_put(
        &a.tx, OpRecord_word_client_generation(op),
        OpRecord_with_client_generation(OpRecord_word_client_generation(op)[0], 0),
    )
    td_put(&a.tx, &op.outcome_number, a.header.newest_letter + 1)
    td_put(&a.tx, &a.header.newest_letter, a.header.newest_letter + 1)
    stage_runs(a, op, 0, 0)
    stage_not_held(a, op, False)
    stage_id_is_free(a, op)
    if op.id_record:
        td_put(&a.tx, OpRecord_word_id_record(op), OpRecord_with_id_record(OpRecord_word_id_record(op)[0], 0))


cdef inline void drop_oldest_letter(Arena *a, GroupRecord *g) noexcept nogil:
    """Free the oldest dead letter of a group that has some."""
    cdef OpRecord *op = op_at(a, g.letters_next)
    a.turn.touched += 1
    stage_free(a, op)
    journal_group(a, op, GROUP_STEP_DROPPED, op.group, 0, 0, op.deliveries, 0, 0)
    commit(a)
    finish_free(a, op)
    a.daemon[DAEMON_DEAD_LETTERS_DROPPED] += 1


cdef inline void drop_surplus_letters(Arena *a, GroupRecord *g) noexcept nogil:
    """Drop letters beyond the bound. If a start has lowered the bound, each next letter of a group drops some."""
    cdef uint32_t i
    for i in range(LETTERS_AT_ONCE):
        if g.letters <= a.header.letters_max:
            return
        drop_oldest_letter(a, g)


cdef inline bint empty_deserted(Arena *a) noexcept nogil:
    """Drop letters of the group that was deserted first, LETTERS_AT_ONCE at most. False if no group is deserted."""
    cdef uint32_t index, count = capacity(a, REGION_GROUPS), found = count, i
    for index in range(count):  # bound: groups
        if is_deserted(a, index) and (found == count or a.groups[index].empty_since_ns < a.groups[found].empty_since_ns):
            found = index
    if found == count:
        return False
    for i in range(min(a.groups[found].letters, <uint32_t>LETTERS_AT_ONCE)):
        drop_oldest_letter(a, a.groups + found)
    return True


cdef inline uint32_t letters_for(Arena *a, GroupRecord *g, Shortage lacks, OpRecord *kept) noexcept nogil:
    """How many of a group's oldest dead letters make up for a shortage; 0 if LETTERS_AT_ONCE, or all, are too few.

    `kept` stays, and so do newer letters.
    """
    cdef uint32_t head = link_of(a, &g.letters_next), link = g.letters_next, count
    cdef OpRecord *op
    for count in range(1, LETTERS_AT_ONCE + 1):
        if link == head or op_at(a, link) == kept:
            return 0
        op = op_at(a, link)
        a.turn.touched += 1
        lacks.operations -= lacks.operations != 0
        lacks.blocks -= min(lacks.blocks, <uint64_t>freed_by_drop(a, op.payload) + freed_by_drop(a, op.value))
        lacks.bytes -= min(lacks.bytes, <uint64_t>blob_length(a, op.payload) + blob_length(a, op.value) + names_of(a, op))
        if lacks.operations == 0 and lacks.bytes == 0 and lacks.blocks == 0:
            return count
        link = op.next
    return 0


cdef inline void join_letters(Arena *a, OpRecord *op) noexcept nogil:
    """Put a dead letter in its group's list. The commit that made it one comes first."""
    cdef GroupRecord *g = a.groups + (op.group - 1)
    append(a, &g.letters_next, &op.next)
    g.letters += 1


cdef inline void finish_letter(Arena *a, OpRecord *op, bint was_held) noexcept nogil:
    """A call has become a dead letter, and this is committed: put it in its group's list."""
    leave_outcomes(a, op)
    if was_held:
        count_held(a, op, -1)
    look_for_calls_again(a, op.group)
    join_letters(a, op)
    a.daemon[DAEMON_DEAD_LETTERS] += 1
    drop_surplus_letters(a, a.groups + (op.group - 1))


cdef inline bint becomes_letter(OpRecord *op) noexcept nogil:
    """Whether an operation of a group that is done now is kept, because it is a call that was given up."""
    return op.flags & OP_FLAG_CALL and phase_of(op) == CALL_PHASE_FAILED and not is_letter(op)


cdef inline void stage_done(Arena *a, OpRecord *op, uint32_t slot, uint64_t command) noexcept nogil:
    """Stage that a group's outcome is done, as a command of this client says: it is freed, or kept as a dead letter."""
    cdef uint32_t step = GROUP_STEP_ACKNOWLEDGED
    cdef uint64_t number = op.outcome_number
    if becomes_letter(op):
        step = GROUP_STEP_KEPT
        stage_letter(a, op)
        number = 0
    else:
        stage_not_held(a, op, False)
        stage_free(a, op)
        if is_letter(op):
            number = 0
    journal_group(a, op, step, op.group, slot, a.clients[slot].generation, op.deliveries, number, command)


cdef inline void stage_withdrawn(Arena *a, OpRecord *op, uint32_t slot, uint64_t command) noexcept nogil:
    """Stage that a call which is due and does not run is freed, because this client has cancelled or replaced it."""
    stage_not_held(a, op, False)
    stage_free(a, op)
    journal_group(a, op, GROUP_STEP_CANCELLED, op.group, slot, a.clients[slot].generation, op.deliveries, 0, command)


cdef inline void finish_done(Arena *a, OpRecord *op, bint was_held) noexcept nogil:
    """A group's outcome is done, and this is committed: free it, or keep it as a dead letter."""
    a.daemon[DAEMON_OUTCOMES_ACKNOWLEDGED] += 1
    if op.state == OP_STATE_SETTLED:
        finish_letter(a, op, was_held)
        return
    finish_free(a, op)
