"""Calls that are due by the wall clock (call_at): the node of their name has their time, in place of a target.

The deadline of such a call follows from its time and from how far the wall clock is ahead of the daemon's own clock.
turn/new_plans.pxd plans all pending calls anew when the wall clock has been set.
"""

from libc.stdint cimport int64_t, uint64_t
from timerd.purgatory.memory.arena cimport Arena
from timerd.purgatory.memory.nodes cimport first_node
from timerd_shm.generated.records cimport *


cdef extern from *:
    """
    #define WALL_STEP_NS 200000000 /* client and daemon may disagree about the wall clock by less than this */
    """
    uint64_t WALL_STEP_NS


cdef inline uint64_t wall_time_of(OpRecord *op) noexcept nogil:
    """When a call is due by the wall clock; 0 if it has no such time, or is no call."""
    cdef WatchNode *node = first_node(op)
    if not op.flags & OP_FLAG_CALL or node.kind != KEY_KIND_EVENT or op.failed & 1:  # the target of a failed key is its code
        return 0
    return node.target


cdef inline uint64_t deadline_by_wall(Arena *a, uint64_t wall_ns) noexcept nogil:
    """The deadline of a call that is due at that time, as the clocks are now. A time in the past is due now."""
    cdef int64_t left_ns = <int64_t>(wall_ns - a.turn.wall_ahead_ns - a.turn.now_ns)
    return a.turn.now_ns + <uint64_t>min(max(left_ns, 0), <int64_t>TIMEOUT_NS_MAX)


cdef inline bint differ(uint64_t one_ns, uint64_t other_ns, uint64_t by_ns) noexcept nogil:
    """Whether two times differ by more than `by_ns`."""
    return (one_ns - other_ns if one_ns > other_ns else other_ns - one_ns) > by_ns
