"""New plans: when the wall clock has been set, each pending call that is due by this clock gets another deadline.

For example, a call is due at 03:00, in an hour. The wall clock is set forward to 02:50. The walk over the operations
reaches the call, and sets its deadline to ten minutes from now. This needs no live worker.

A walk keeps to one distance between the clocks. If the clock is set again meanwhile, the walk begins anew. The arena's
header has the distance by which all calls are planned, and 0 while a walk is under way. So the next start walks again
after a kill, or if the clock was set while no daemon ran.
"""

from libc.stdint cimport uint64_t
from timerd.purgatory.memory.arena cimport Arena, spent
from timerd.purgatory.memory.commit cimport commit
from timerd.purgatory.memory.counters cimport counter
from timerd.purgatory.memory.transaction cimport td_commit, td_put
from timerd.purgatory.journal.rows cimport journal_new_plan
from timerd.purgatory.wheel.wheel cimport wheel_insert, wheel_remove
from timerd.purgatory.operation.wall_time cimport deadline_by_wall, differ, wall_time_of
from timerd_shm.generated.records cimport *

cdef extern from *:
    """
    #define NEW_PLAN_NS 1000000 /* a deadline that differs by less stays */
    """
    uint64_t NEW_PLAN_NS


cdef inline void set_wall_clock(Arena *a, uint64_t ahead_ns) noexcept nogil:
    """The wall clock is `ahead_ns` ahead of CLOCK_MONOTONIC (modulo 2**64): plan by that from now on."""
    a.turn.wall_ahead_ns = ahead_ns
    a.turn.planned = 0
    if a.header.wall_ahead_ns and not differ(ahead_ns, a.header.wall_ahead_ns, NEW_PLAN_NS):
        return
    a.turn.planning = 1
    td_put(&a.tx, &a.header.wall_ahead_ns, 0)
    td_commit(&a.tx)


cdef inline bint plan_anew(Arena *a, OpRecord *op) noexcept nogil:
    """Give a pending call its deadline by the wall clock. Returns whether that is later than the old deadline."""
    cdef uint64_t wall_ns = wall_time_of(op), before_ns = op.deadline_ns, deadline_ns
    if wall_ns == 0 or op.state != OP_STATE_PENDING:
        return False
    deadline_ns = deadline_by_wall(a, wall_ns)
    if not differ(deadline_ns, max(before_ns, a.turn.now_ns), NEW_PLAN_NS):
        return False
    td_put(&a.tx, &op.deadline_ns, deadline_ns)
    journal_new_plan(a, op, deadline_ns)
    commit(a)
    wheel_remove(a, op)
    wheel_insert(a, op)
    counter(a, op.purgatory, COUNT_RESCHEDULED)[0] += 1
    return deadline_ns > before_ns


cdef inline bint plan_calls_anew(Arena *a) noexcept nogil:
    """Go on with the walk over all operations; False if the turn's bound came first."""
    while a.turn.planning:
        if a.turn.planned >= a.regions[REGION_OPS].high_water:
            td_put(&a.tx, &a.header.wall_ahead_ns, a.turn.wall_ahead_ns)
            td_commit(&a.tx)
            a.turn.planning = 0
            return True
        if spent(a):
            return False
        a.turn.touched += 1
        plan_anew(a, a.ops + a.turn.planned)
        a.turn.planned += 1
    return True
