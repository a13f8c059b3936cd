"""Batches: plain operations of one client and one purgatory that settle in one transaction.

For example, 16 cancels stand side by side in a frame. Each is staged, and one commit makes all of them true. Then
derived fields follow: the bucket, the key, the list of outcomes. A crash leaves the state before the first cancel or
after the last.

*Plain* is a sufficient condition (is_plain). Every other operation takes the general path, settle.pxd, which alone
decides. Both paths fill records and stage words with the same functions.
"""

from libc.stdint cimport uint32_t, uint64_t
from timerd.purgatory.memory.arena cimport Arena
from timerd.purgatory.memory.commit cimport commit
from timerd.purgatory.memory.counters cimport counter
from timerd.purgatory.memory.nodes cimport long_names
from timerd.purgatory.wheel.wheel cimport wheel_remove
from timerd.purgatory.members.state cimport ReportState
from timerd.purgatory.members.clients cimport further_keys, is_live, queue_report
from timerd_shm.generated.records cimport *

from .settle cimport count_settled, join_outcomes, leave_keys, share_value, stage_settled


cdef extern from *:
    """
    #define ORPHANS_SHIFT (8 * (offsetof(OpRecord, orphans) % 8))
    _Static_assert(
        offsetof(OpRecord, orphans) % 8 == 4 && offsetof(OpRecord, flags) == offsetof(OpRecord, orphans) + 1
            && offsetof(OpRecord, group) == offsetof(OpRecord, orphans) + 2 && sizeof(((OpRecord *)0)->group) == 2,
        "is_plain(): flags and group are all that stands above orphans in its word");
    """
    enum:
        ORPHANS_SHIFT


cdef inline uint64_t owner_word_of(OpRecord *op) noexcept nogil:
    return OpRecord_with_bucket(OpRecord_word_client(op)[0], 0)


cdef inline bint has_live_owner(Arena *a, OpRecord *op) noexcept nogil:
    return op.client_generation == a.clients[op.client].generation and is_live(a, op.client)


cdef inline bint is_plain(OpRecord *op, uint64_t owner, uint32_t purgatory) noexcept nogil:
    """Whether an operation of that live owner and purgatory is pending, not staged, and has no id and no failed key.

    Such an operation settles by its state word alone. outcome_number is 0 before it is staged. (A crash may leave
    another number. Then the operation takes the general path.)
    """
    # One comparison: the upper half of the word has no group and no flags, and its orphans policy is not GROUP.
    return (
        op.state == OP_STATE_PENDING and owner_word_of(op) == owner and op.purgatory == purgatory
        and OpRecord_word_orphans(op)[0] >> ORPHANS_SHIFT < <uint64_t>ORPHANS_GROUP and op.id_record == 0 and op.outcome_number == 0
        and op.failed == 0
    )


cdef inline void stage_plain(
    Arena *a, OpRecord *op, uint32_t outcome, uint32_t settled_key, EventRecord *e, uint64_t number
) noexcept nogil:
    """Stage that a plain operation settles, with that outcome number. All operations of one transaction are of one client."""
    cdef uint32_t flags = op.flags, value = 0
    if e != NULL and e.value:
        value = share_value(a, op, e, &a.clients[op.client].bytes_held, &flags)
    stage_settled(a, op, outcome, settled_key, e, flags, value, number, 0, OP_STATE_SETTLED)


cdef inline void finish_batch(
    Arena *a, OpRecord **ops, uint32_t count, uint32_t outcome, uint32_t purgatory
) noexcept nogil:
    """Commit, and update what is derived from these operations: finish_settle() for all at once.

    All belong to one client and one purgatory, and no event is in delivery.
    """
    cdef uint32_t slot, i, left = 0, further = 0
    cdef uint64_t names = 0
    cdef ClientRecord *c
    cdef ReportState *report_states
    cdef OpRecord *op
    if count:
        slot = ops[0].client
        a.staged_client = slot
        a.staged_outcomes = count
    commit(a)
    if count == 0:
        return
    count_settled(a, ops, count, outcome, purgatory)
    counter(a, purgatory, COUNT_PENDING)[0] -= count
    c = a.clients + slot
    report_states = a.members.report_states + slot
    for i in range(count):  # bound: BATCH_MAX
        op = ops[i]
        wheel_remove(a, op)
        names += long_names(a, op)
        left += leave_keys(a, op)
        further += further_keys(op)
        join_outcomes(a, c, report_states, op)
    counter(a, purgatory, COUNT_WATCHED)[0] -= left
    a.turn.touched += count
    c.nodes -= further
    c.bytes_held -= names
    c.pending -= count
    c.unacknowledged += count
    queue_report(a, slot)
