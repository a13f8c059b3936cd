"""A turn (the conductor's duty cycle): its time and its bound, its beginning and end, and work left by the turn before."""

from libc.stdint cimport uint32_t, uint64_t
from timerd.purgatory.memory.arena cimport Arena
from timerd.purgatory.memory.transaction cimport TD_DEFECT, TD_ORDERED_STORE
from timerd.purgatory.index.remembered_ids cimport forget_old_ids
from timerd.purgatory.wheel.wheel cimport next_tick, wheel_jump
from timerd.purgatory.events.ring cimport event_at, ring_is_empty
from timerd.purgatory.members.groups cimport dispatch_outcomes
from timerd.purgatory.members.lifecycle cimport end_tombstones
from timerd.purgatory.operation.apply_event cimport deliver
from timerd.purgatory.commands.acknowledge cimport free_acknowledged
from timerd_shm.generated.records cimport *

from .group_retention cimport drop_kept
from .new_plans cimport plan_calls_anew
from .reclaim cimport reclaim
from .sweep cimport sweep


cdef inline bint resume_work(Arena *a) noexcept nogil:
    """Go on with the work that a turn's bound has cut off; True if work is left."""
    cdef uint32_t slot
    cdef bint left = False
    if a.header.unfinished and not deliver(a):
        return True
    if a.turn.acknowledging:
        a.turn.acknowledging = 0
        for slot in range(a.regions[REGION_CLIENTS].count):  # bound: clients
            if a.clients[slot].state != CLIENT_STATE_FREE and not free_acknowledged(a, slot):
                a.turn.acknowledging = 1
                left = True
                break
    if not plan_calls_anew(a):
        left = True
    if not drop_kept(a):
        left = True
    if not sweep(a):
        left = True
    if not reclaim(a):
        left = True
    end_tombstones(a)
    forget_old_ids(a)
    if not dispatch_outcomes(a):
        left = True
    # The sweep requeues grants of dead clients, and such an event may be a long one.
    return left or a.header.unfinished != 0


cdef extern from "<time.h>" nogil:
    ctypedef long time_t
    ctypedef int clockid_t
    struct timespec:
        time_t tv_sec
        long tv_nsec
    int CLOCK_MONOTONIC
    int clock_gettime(clockid_t clock, timespec *at)


cdef inline void take_time(Arena *a, uint64_t now_ns) noexcept nogil:
    """Take the time that the caller passes in. It never goes back."""
    cdef timespec at
    if TD_DEFECT(DEFECT_TAKES_ITS_OWN_TIME):
        clock_gettime(CLOCK_MONOTONIC, &at)
        now_ns = <uint64_t>at.tv_sec * 1000000000 + at.tv_nsec
    if now_ns > a.turn.now_ns:
        a.turn.now_ns = now_ns
        a.journal.room = 0  # the TURN row of the new time comes first


cdef inline void allow(Arena *a, uint64_t budget) noexcept nogil:
    """Let the call that begins now touch about `budget` records (see spent). Later calls do the rest."""
    a.turn.limit = a.turn.touched + budget


cdef inline uint64_t last_turn_ns(Arena *a) noexcept nogil:
    """When the last turn was, perhaps one of an earlier daemon; 0 = there was none.

    A daemon that was killed in a turn has not noted the turn's time. The turn's events have it. So effective times
    never go back from one event to the next.
    """
    cdef uint64_t newest_ns = 0 if ring_is_empty(a) else event_at(a, a.header.newest).effective_ns
    return max(newest_ns, a.header.turn_at_ns)


cdef inline void begin_turn(Arena *a, uint64_t before_gap_ns) noexcept nogil:
    """Begin a turn. `before_gap_ns`: the time of the last turn before an open gap; NO_DEADLINE if none is open."""
    a.turn.before_gap_ns = before_gap_ns
    a.journal.room = 0
    if a.journal.level == 0 and a.header.journal_level:
        # From now on things happen without a journal.
        TD_ORDERED_STORE(a.base, &a.header.journal_level, 0)
    TD_ORDERED_STORE(a.base, &a.header.turn, a.header.turn | 1)
    a.turn.began = a.turn.touched
    wheel_jump(a, a.turn.now_ns // a.wheel.tick_ns)


cdef inline uint64_t end_turn(Arena *a) noexcept nogil:
    """End a turn. Returns how many records it has touched."""
    cdef uint64_t touched = a.turn.touched - a.turn.began
    a.daemon[DAEMON_TURNS] += 1
    a.daemon[DAEMON_RECORDS_TOUCHED] += touched
    if touched > a.daemon[DAEMON_RECORDS_TOUCHED_MAX]:
        a.daemon[DAEMON_RECORDS_TOUCHED_MAX] = touched
    a.daemon[DAEMON_CLIENTS] = a.regions[REGION_CLIENTS].in_use - a.members.tombstones
    a.header.turn_at_ns = a.turn.now_ns
    TD_ORDERED_STORE(a.base, &a.header.turn, (a.header.turn | 1) + 1)
    return touched


cdef inline uint64_t next_wake(Arena *a) noexcept nogil:
    """When the next turn is due if no frame comes. If work is left, it is due now."""
    cdef uint64_t tick = next_tick(a), due
    cdef int level
    if a.turn.sweeping or a.members.dispatching or a.turn.dropping or a.turn.reclaiming or a.turn.planning:
        return a.turn.now_ns
    for level in range(1, LEVELS):
        if a.wheel.owed[level]:
            return a.turn.now_ns
    due = NO_DEADLINE if tick == NO_DEADLINE else tick * a.wheel.tick_ns
    return min(due, min(a.members.groups_due_ns, a.members.tombstones_due_ns))
