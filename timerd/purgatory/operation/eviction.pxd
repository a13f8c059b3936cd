"""Eviction: under want of room, outcomes that ended clients have made for groups give way, beyond their user's share.

For example, an arena has room for 131,072 operations. Three processes of user 1000 register 60,000 operations each, for
a group each, and end. The ended clients of user 1000 have one share together: what one client may hold, 65,536
operations. The third process finds no free record. So the oldest of these outcomes go, one for each registration, while
their user holds more than its share. Other users' outcomes stay, and so do all outcomes while there is room.

Groups of one user do not pay for each other: only a group that holds more than its part loses outcomes. The part is the
share, divided by the number of groups for which the user's ended clients hold something. A pending operation, a dead
letter, a schedule's call and what a member holds are charged, and never go.

A client that is connected has no need of this: the quota of its group is as large as the share.
"""

from libc.stdint cimport uint32_t, uint64_t
from timerd.purgatory.memory.arena cimport Arena, capacity, spent, unused
from timerd.purgatory.memory.blob cimport freed_by_drop
from timerd.purgatory.memory.commit cimport commit
from timerd.purgatory.memory.list cimport link_of, op_at
from timerd.purgatory.memory.nodes cimport first_node
from timerd.purgatory.memory.transaction cimport TD_DEFECT
from timerd.purgatory.journal.rows cimport journal_group
from timerd.purgatory.events.ring cimport make_room
from timerd.purgatory.members.accounts cimport left_account
from timerd.purgatory.members.answers cimport met, note_refusal
from timerd.purgatory.members.calls cimport stage_not_held
from timerd.purgatory.members.clients cimport nodes_of
from timerd.purgatory.members.state cimport Cursor, EVERY_ROOM, KINDS, ROOM_BYTES, ROOM_NODES, ROOM_OPERATIONS
from timerd_shm.generated.records cimport *

from .letters cimport stage_id_is_free
from .settle cimport finish_free, stage_free

cdef extern from *:
    """
    #define EVICTED_AT_ONCE 1024 /* outcomes that make room for one command, at most */
    #define PASSED_AT_ONCE 1024 /* outcomes that are looked at for one command, and stay, at most */
    enum { NO_ROOM = 0, HAS_ROOM = 1, EVICTED = 2 };  /* what room_for() answers */
    """
    enum:
        EVICTED_AT_ONCE
        PASSED_AT_ONCE
        NO_ROOM
        HAS_ROOM
        EVICTED


cdef inline bint may_evict(Arena *a, int kind) noexcept nogil:
    """Whether a search may find an outcome that may go. Where the last one found none, and nothing came since, none may."""
    return a.members.may_evict >> kind & 1


cdef inline int region_of(int kind) noexcept nogil:
    if kind == ROOM_OPERATIONS:
        return REGION_OPS
    return REGION_NODES if kind == ROOM_NODES else REGION_BLOCKS


cdef inline uint64_t share_of(Arena *a, int kind) noexcept nogil:
    """The share of the ended clients of one user: the quota of one client."""
    if kind == ROOM_OPERATIONS:
        return a.header.quota_operations
    return a.header.quota_nodes if kind == ROOM_NODES else a.header.quota_bytes


cdef inline uint64_t held_in(AccountRecord *account, int kind) noexcept nogil:
    if kind == ROOM_OPERATIONS:
        return <uint64_t>account.pending + account.outcomes
    return account.nodes if kind == ROOM_NODES else account.bytes_held


cdef inline bint makes_room(Arena *a, OpRecord *op, int kind) noexcept nogil:
    """Whether something of this kind is free when the outcome is dropped."""
    if kind == ROOM_OPERATIONS:
        return True
    return nodes_of(op) != 0 if kind == ROOM_NODES else freed_by_drop(a, op.payload) + freed_by_drop(a, op.value) != 0


cdef inline OpRecord *oldest_in(
    Arena *a, uint32_t account, uint32_t group, bint calls, int kind, uint32_t *passed
) noexcept nogil:
    """The oldest outcome of an account that may go, in one list of its group; NULL if none was found.

    A cursor remembers how far the list was looked at for this account. It begins anew for another account, and when a
    client of the group has ended.
    """
    cdef Cursor *cursor = a.members.evictable[calls] + group
    cdef uint32_t *list = &a.groups[group].calls_next if calls else &a.groups[group].next
    cdef uint32_t head = link_of(a, list), link = list[0]
    cdef OpRecord *op
    if cursor.link and cursor.account == account and cursor.room == kind:
        link = cursor.link
    cursor.account, cursor.room = account, kind
    while link != head:
        op = op_at(a, link)
        if first_node(op).account == account + 1 and not op.flags & OP_FLAG_SCHEDULED and makes_room(a, op, kind):
            cursor.link = link
            return op
        if passed[0] == PASSED_AT_ONCE:
            cursor.link = link
            a.turn.evicting = kind + 1
            return NULL
        passed[0] += 1
        a.turn.touched += 1
        link = op.next
    cursor.link = 0
    return NULL


cdef inline OpRecord *oldest_beyond_share(Arena *a, int kind, uint32_t *passed) noexcept nogil:
    """The oldest outcome that is to give way; NULL if there is none.

    It is NULL, too, if PASSED_AT_ONCE came first: then `evicting` says that resume_eviction() is to go on.
    """
    cdef uint64_t share = share_of(a, kind), held
    cdef uint32_t user, group, groups, count = capacity(a, REGION_GROUPS), first
    cdef AccountRecord *left
    cdef OpRecord *oldest = NULL
    cdef OpRecord *op
    cdef bint calls
    a.turn.evicting = 0
    if not may_evict(a, kind):
        return NULL
    if TD_DEFECT(DEFECT_EVICTS_WITHIN_SHARE):
        share = 0
    for user in range(capacity(a, REGION_USERS)):
        if not a.users[user].state:
            continue
        a.turn.touched += 1
        first = left_account(a, user, 0)
        left = a.accounts + first
        held = groups = 0
        for group in range(count):  # bound: groups
            held += held_in(left + group, kind)
            groups += held_in(left + group, kind) != 0
        if held <= share:
            continue
        for group in range(count):  # bound: groups
            if held_in(left + group, kind) <= share // groups:
                continue
            for calls in range(KINDS):
                op = oldest_in(a, first + group, group, calls, kind, passed)
                if op != NULL and (oldest == NULL or op.settled_ns < oldest.settled_ns):
                    oldest = op
    if oldest != NULL:
        a.turn.evicting = 0
    elif not a.turn.evicting:
        a.members.may_evict &= EVERY_ROOM ^ (1 << kind)
    return oldest


cdef inline void evict(Arena *a, OpRecord *op, int kind) noexcept nogil:
    """Drop an outcome, or a call that is due, to make room. The log of errors names its group."""
    a.turn.touched += 1
    note_refusal(a, 0, op.group, ERROR_CODE_QUOTA_EXCEEDED, met(MET_EVICTED_OPERATIONS + kind, share_of(a, kind)))
    if op.flags & OP_FLAG_CALL:
        stage_not_held(a, op, False)
        stage_id_is_free(a, op)
    stage_free(a, op)
    journal_group(a, op, GROUP_STEP_EVICTED, op.group, 0, 0, op.deliveries, 0, 0)
    a.daemon[DAEMON_GROUP_OUTCOMES_EVICTED] += 1  # before the commit: a crash may count one too many, and none too few
    commit(a)
    finish_free(a, op)


cdef inline int room_for(Arena *a, int kind, uint32_t wanted, uint32_t *evicted) noexcept nogil:
    """Whether `wanted` records are free for a command. If not, outcomes make room, then the ring's oldest events.

    EVICTED: outcomes are gone, as many as it takes, or fewer. Whatever the caller has looked up may be one of them. So
    the caller looks everything up again, and asks again. `evicted` counts the outcomes that have gone for its command:
    EVICTED_AT_ONCE at most. So the caller has to begin anew a bounded number of times.
    """
    cdef uint32_t before = evicted[0], passed = 0
    cdef OpRecord *op
    while unused(a, region_of(kind)) < wanted and evicted[0] < EVICTED_AT_ONCE:
        op = oldest_beyond_share(a, kind, &passed)
        if op == NULL:
            break
        evict(a, op, kind)
        evicted[0] += 1
    if evicted[0] != before:
        return EVICTED
    if unused(a, region_of(kind)) >= wanted or (kind == ROOM_BYTES and make_room(a, wanted)):
        return HAS_ROOM
    return NO_ROOM


cdef inline bint has_room(Arena *a, uint32_t blocks) noexcept nogil:
    """Whether `blocks` blocks are free, perhaps after the ring's oldest events have left; False if outcomes may go first."""
    return unused(a, REGION_BLOCKS) >= blocks or (not may_evict(a, ROOM_BYTES) and make_room(a, blocks))


cdef inline bint resume_eviction(Arena *a) noexcept nogil:
    """Go on looking for an outcome where a command has stopped at PASSED_AT_ONCE; False if the turn's bound came first.

    The command was refused. This way the next one finds room.
    """
    cdef uint32_t passed
    cdef int kind
    cdef OpRecord *op
    while a.turn.evicting:
        if spent(a):
            return False
        kind, passed = a.turn.evicting - 1, 0
        op = oldest_beyond_share(a, kind, &passed)
        if op != NULL:
            evict(a, op, kind)
    return True
