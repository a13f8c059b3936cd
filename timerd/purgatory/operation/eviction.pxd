"""Eviction: when the arena lacks room, outcomes of groups are dropped if the ended clients of a user hold too much.

For example, an arena has room for 131,072 operations. Three processes of user 1000, one after the other, register
60,000 operations each, for a group each. The operations settle, and the process ends. The ended clients of user 1000
have one share together: what one client may hold, 65,536 operations. The third process finds no free record. So the
oldest of these outcomes are evicted, one for each registration, while their user holds more than its share. Other
users' outcomes stay, and so do all outcomes while there is room.

Groups of one user do not pay for each other: only a group that holds more than its part loses outcomes. The part is the
share, divided by the number of groups for which the user's ended clients hold such outcomes. A pending operation, a dead
letter, a schedule's call and what a member holds are never evicted, and do not count here: see
last_quarter.pxd.

Operations of connected clients need no such rule: the quota of their group is as large as the share.
"""

from libc.stdint cimport uint32_t, uint64_t
from timerd.purgatory.memory.arena cimport Arena, capacity, unused
from timerd.purgatory.memory.builtins cimport RARELY
from timerd.purgatory.memory.commit cimport commit
from timerd.purgatory.memory.transaction cimport TD_DEFECT
from timerd.purgatory.journal.rows cimport journal_group
from timerd.purgatory.events.ring cimport make_room
from timerd.purgatory.members.accounts cimport left_account
from timerd.purgatory.members.answers cimport met, note_refusal
from timerd.purgatory.members.calls cimport stage_not_held
from timerd.purgatory.members.evictable cimport hoard_of, hoard_of_user, is_older, oldest_of
from timerd.purgatory.members.state cimport ROOM_BYTES, ROOM_NODES, ROOM_OPERATIONS
from timerd_shm.generated.records cimport *

from .letters cimport stage_id_is_free
from .settle cimport finish_free, stage_free

cdef extern from *:
    """
    #define EVICTED_AT_ONCE 1024 /* outcomes that make room for one command, at most */
    enum { NO_ROOM = 0, HAS_ROOM = 1, EVICTED = 2 };  /* what room_for() answers */
    """
    enum:
        EVICTED_AT_ONCE
        NO_ROOM
        HAS_ROOM
        EVICTED


cdef inline int region_of(int room) noexcept nogil:
    if room == ROOM_OPERATIONS:
        return REGION_OPS
    return REGION_NODES if room == ROOM_NODES else REGION_BLOCKS


cdef inline uint64_t share_of(Arena *a, int room) noexcept nogil:
    """The share of the ended clients of one user: the quota of one client."""
    if room == ROOM_OPERATIONS:
        return a.header.quota_operations
    return a.header.quota_nodes if room == ROOM_NODES else a.header.quota_bytes


cdef inline bint is_beyond_share(Arena *a, uint32_t user, int room) noexcept nogil:
    """Whether outcomes of this user's ended clients are to make room."""
    cdef uint64_t share = 0 if TD_DEFECT(DEFECT_EVICTS_WITHIN_SHARE) else share_of(a, room)
    return hoard_of_user(a, user).held[room] > share


cdef inline bint may_evict(Arena *a, int room) noexcept nogil:
    """Whether some outcome is to make room before anything else does."""
    cdef uint32_t user
    for user in range(capacity(a, REGION_USERS)):  # bound: users
        if is_beyond_share(a, user, room):
            return True
    return False


cdef inline OpRecord *oldest_beyond_share(Arena *a, int room) noexcept nogil:
    """The oldest outcome that is to make room; NULL if there is none."""
    cdef uint64_t part
    cdef uint32_t user, group, groups, count = capacity(a, REGION_GROUPS), first
    cdef OpRecord *oldest = NULL
    cdef OpRecord *op
    for user in range(capacity(a, REGION_USERS)):  # bound: users
        if not is_beyond_share(a, user, room):
            continue
        a.turn.touched += 2  # the sums of 64 groups
        first = left_account(a, user, 0) + 1
        groups = 0
        for group in range(count):  # bound: groups
            groups += hoard_of(a, first + group).held[room] != 0
        part = 0 if TD_DEFECT(DEFECT_EVICTS_WITHIN_SHARE) else share_of(a, room) // groups
        for group in range(count):  # bound: groups
            if hoard_of(a, first + group).held[room] <= part:
                continue
            a.turn.touched += 1
            op = oldest_of(a, first + group, room)
            if op != NULL and (oldest == NULL or is_older(a, <uint32_t>(op - a.ops) + 1, <uint32_t>(oldest - a.ops) + 1)):
                oldest = op
    return oldest


cdef inline void evict(Arena *a, OpRecord *op, int room) noexcept nogil:
    """Drop an outcome, or a call that is due, to make room. The log of errors names its group."""
    a.turn.touched += 1
    note_refusal(a, 0, op.group, ERROR_CODE_QUOTA_EXCEEDED, met(MET_EVICTED_OPERATIONS + room, share_of(a, room)))
    if op.flags & OP_FLAG_CALL:
        stage_not_held(a, op, False)
        stage_id_is_free(a, op)
    stage_free(a, op)
    journal_group(a, op, GROUP_STEP_EVICTED, op.group, 0, 0, op.deliveries, 0, 0)
    a.daemon[DAEMON_GROUP_OUTCOMES_EVICTED] += 1  # before the commit: a crash may count one too many, and none too few
    commit(a)
    finish_free(a, op)


cdef inline int room_for(Arena *a, int room, uint32_t wanted, uint32_t *evicted) noexcept nogil:
    """Whether `wanted` records are free for a command. If not, outcomes make room, then the ring's oldest events.

    EVICTED: outcomes are gone, as many as it takes, or fewer. The caller may have looked up one of them. So it looks
    everything up again, and asks again. `evicted` counts the outcomes that have gone for its command:
    EVICTED_AT_ONCE at most. So the caller has to begin anew a bounded number of times.
    """
    cdef uint32_t before = evicted[0]
    cdef OpRecord *op
    if not RARELY(unused(a, region_of(room)) < wanted):
        return HAS_ROOM
    while unused(a, region_of(room)) < wanted and evicted[0] < EVICTED_AT_ONCE:  # bound: EVICTED_AT_ONCE
        op = oldest_beyond_share(a, room)
        if op == NULL:
            break
        evict(a, op, room)
        evicted[0] += 1
    if evicted[0] != before:
        return EVICTED
    return HAS_ROOM if room == ROOM_BYTES and make_room(a, wanted) else NO_ROOM


cdef inline bint has_room(Arena *a, uint32_t blocks) noexcept nogil:
    """Whether `blocks` blocks are free, perhaps after the ring's oldest events have left; False if outcomes may go first."""
    if RARELY(unused(a, REGION_BLOCKS) < blocks):
        return not may_evict(a, ROOM_BYTES) and make_room(a, blocks)
    return True
