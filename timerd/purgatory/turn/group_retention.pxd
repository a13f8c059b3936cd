"""The retention of groups: outcomes and calls that no member takes are kept for a time.

Then an outcome is dropped, and a call becomes a dead letter.
"""

from libc.stdint cimport uint32_t
from timerd.purgatory.memory.arena cimport Arena, spent
from timerd.purgatory.memory.commit cimport commit
from timerd.purgatory.memory.list cimport is_empty, op_at
from timerd.purgatory.journal.rows cimport journal_group
from timerd.purgatory.members.clients cimport following
from timerd.purgatory.members.groups cimport (
    after_retention, is_abandoned, is_handled, kept_until, look_again_at, look_for_calls_again,
)
from timerd.purgatory.operation.letters cimport finish_letter, stage_letter
from timerd.purgatory.operation.settle cimport finish_free, stage_free
from timerd_shm.generated.records cimport *


cdef inline void drop_undelivered(Arena *a, OpRecord *op) noexcept nogil:
    """Drop an outcome: no member came for it during its retention. A call is kept as a dead letter."""
    a.turn.touched += 1
    if op.flags & OP_FLAG_CALL:
        stage_letter(a, op)
        journal_group(a, op, GROUP_STEP_KEPT, op.group, 0, 0, op.deliveries, 0, 0)
        commit(a)
        finish_letter(a, op, False)
        return
    stage_free(a, op)
    journal_group(a, op, GROUP_STEP_DROPPED, op.group, 0, 0, op.deliveries, 0, 0)
    commit(a)
    finish_free(a, op)
    a.daemon[DAEMON_GROUP_OUTCOMES_DROPPED] += 1


cdef inline bint drop_outcomes(Arena *a, GroupRecord *g) noexcept nogil:
    """Drop the outcomes of a group without members, after their retention; False if the bound came first."""
    cdef OpRecord *op
    while g.members == 0 and not is_empty(a, &g.next):
        op = op_at(a, g.next)
        if kept_until(a, g, op) > a.turn.now_ns:
            look_again_at(a, kept_until(a, g, op))
            return True
        if spent(a):
            return False
        drop_undelivered(a, op)
    return True


cdef inline bint drop_calls(Arena *a, uint32_t group) noexcept nogil:
    """Make dead letters of calls that no member handles, after their retention; False if the bound came first.

    Calls stand in order of time, except for requeued ones, which stand after newer calls and may be kept longer. The
    walk ends at the first call that has to stay, unless a schedule made it.
    """
    cdef GroupRecord *g = a.groups + group
    cdef OpRecord *op
    cdef uint64_t until_ns
    while a.members.outdated[group]:
        op = op_at(a, a.members.outdated[group])
        until_ns = kept_until(a, g, op)
        if until_ns > a.turn.now_ns and not op.flags & OP_FLAG_SCHEDULED:
            look_again_at(a, until_ns)
            a.members.outdated[group] = 0
            return True
        if spent(a):
            return False
        a.turn.touched += 1
        if until_ns > a.turn.now_ns:
            look_again_at(a, until_ns)
            a.members.outdated[group] = following(a, op)
        elif g.members and is_handled(a, op):
            look_again_at(a, after_retention(a, a.turn.now_ns))
            a.members.outdated[group] = following(a, op)
        else:
            drop_undelivered(a, op)
    return True


cdef inline bint drop_kept(Arena *a) noexcept nogil:
    """Drop what groups have kept for too long; False if the bound came first."""
    cdef uint32_t group
    cdef GroupRecord *g
    if not a.turn.dropping:
        if a.turn.now_ns < a.members.groups_due_ns:
            return True
        a.members.groups_due_ns = NO_DEADLINE
        a.turn.dropping = 1
        for group in range(a.regions[REGION_GROUPS].count):  # bound: groups
            g = a.groups + group
            look_for_calls_again(a, group + 1)
            a.members.outdated[group] = 0 if is_empty(a, &g.calls_next) else g.calls_next
            if g.endless and is_abandoned(a, g):
                a.turn.sweeping = 1
            elif g.endless and g.members == 0:
                look_again_at(a, after_retention(a, g.empty_since_ns))
    for group in range(a.regions[REGION_GROUPS].count):  # bound: groups
        if not drop_outcomes(a, a.groups + group) or not drop_calls(a, group):
            return False
    a.turn.dropping = 0
    return True
