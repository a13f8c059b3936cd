"""Outcomes that may make room, in order of age: a tree for each account of ended clients.

For example, an ended client has made 60,000 outcomes for the group "web", and 40,000 of them wait in the group's list,
among 20,000 outcomes of a live client. The oldest of the 40,000 is found in some 17 steps, and so is the oldest one that
has a payload. Nothing is passed over.

An outcome is in a tree while it waits in its group's list, unless a schedule has made it. The sums of an account, and of
a user, count these outcomes alone. So what never makes room is in no sum: pending operations, dead letters, schedules'
calls, and what a member holds.

The trees are treaps: ordered by age, and heaps by a hash of the record's index under the arena's seed. So their expected
depth is the logarithm of their size, whatever clients register. All of this is beside the arena, and a start makes it
anew when it queues the outcomes.
"""

from libc.stdint cimport uint32_t, uint64_t
from timerd.purgatory.memory.arena cimport Arena, capacity
from timerd.purgatory.memory.blob cimport blob_length, freed_by_drop
from timerd.purgatory.memory.builtins cimport RARELY
from timerd.purgatory.memory.hash cimport td_sip_short
from timerd.purgatory.memory.nodes cimport first_node, names_of
from timerd.purgatory.memory.transaction cimport TD_DEFECT
from timerd_shm.generated.records cimport *

from .state cimport Evictable, Hoard, ROOMS, ROOM_BYTES, ROOM_NODES, ROOM_OPERATIONS, td_need


cdef inline Evictable *evictable_at(Arena *a, uint32_t number) noexcept nogil:
    """The place of an outcome (index + 1) in the tree of its account."""
    return a.members.evictable + (number - 1)


cdef inline uint32_t hoards_of(Arena *a) noexcept nogil:
    """How many sums there are: of each account of ended clients, then of each user."""
    return capacity(a, REGION_ACCOUNTS) - capacity(a, REGION_CLIENTS) + capacity(a, REGION_USERS)


cdef inline Hoard *hoard_of(Arena *a, uint32_t account) noexcept nogil:
    """The outcomes that may make room, of the account of ended clients with this number (index + 1)."""
    return a.members.hoards + (account - 1 - capacity(a, REGION_CLIENTS))


cdef inline Hoard *hoard_of_user(Arena *a, uint32_t user) noexcept nogil:
    """The sums of all accounts of a user's ended clients."""
    return a.members.hoards + (capacity(a, REGION_ACCOUNTS) - capacity(a, REGION_CLIENTS) + user)


cdef inline uint64_t held_by(Arena *a, OpRecord *op, int room) noexcept nogil:
    """How much of a kind of room a settled operation is charged with. A shared value is charged to each operation."""
    if room == ROOM_OPERATIONS:
        return 1
    if room == ROOM_NODES:
        return op.keys - 1 if op.flags & OP_FLAG_KEYS_KEPT else 0
    return <uint64_t>blob_length(a, op.payload) + blob_length(a, op.value) + names_of(a, op)


cdef inline bint is_older(Arena *a, uint32_t number, uint32_t than) noexcept nogil:
    """Whether an outcome (index + 1) settled before another one, or in the same turn and was registered before it."""
    cdef OpRecord *op = a.ops + (number - 1)
    cdef OpRecord *other = a.ops + (than - 1)
    if op.settled_ns != other.settled_ns:
        return (op.settled_ns < other.settled_ns) != TD_DEFECT(DEFECT_EVICTS_THE_NEWEST)
    if op.registration != other.registration:
        return op.registration < other.registration
    return number < than


cdef inline bint is_above(Arena *a, uint32_t number, uint32_t other) noexcept nogil:
    """Whether an outcome (index + 1) stands above another one in a tree that has both."""
    return td_sip_short(a.seed, number, 7) > td_sip_short(a.seed, other, 7)


cdef inline void sum_rooms(Arena *a, uint32_t number) noexcept nogil:
    """The subtree of an outcome has changed: note which kinds of room it takes. Each step in a tree ends here."""
    cdef Evictable *at = evictable_at(a, number)
    a.turn.touched += 1
    at.below = at.rooms
    if at.older:
        at.below |= evictable_at(a, at.older).below
    if at.newer:
        at.below |= evictable_at(a, at.newer).below


cdef inline uint32_t merge(Arena *a, uint32_t older, uint32_t newer) noexcept nogil:
    """One tree of two. All outcomes of the first one are older than those of the second."""
    if older == 0 or newer == 0:
        return older | newer
    if is_above(a, older, newer):
        evictable_at(a, older).newer = merge(a, evictable_at(a, older).newer, newer)
        sum_rooms(a, older)
        return older
    evictable_at(a, newer).older = merge(a, older, evictable_at(a, newer).older)
    sum_rooms(a, newer)
    return newer


cdef inline void split(Arena *a, uint32_t root, uint32_t number, uint32_t *older, uint32_t *newer) noexcept nogil:
    """Split a tree into the outcomes that are older than this one, and those that are not."""
    cdef Evictable *at
    if root == 0:
        older[0] = 0
        newer[0] = 0
        return
    at = evictable_at(a, root)
    if is_older(a, root, number):
        split(a, at.newer, number, &at.newer, newer)
        older[0] = root
    else:
        split(a, at.older, number, older, &at.older)
        newer[0] = root
    sum_rooms(a, root)


cdef inline uint32_t insert(Arena *a, uint32_t root, uint32_t number) noexcept nogil:
    """The tree with that outcome."""
    cdef Evictable *at
    if root == 0 or is_above(a, number, root):
        at = evictable_at(a, number)
        split(a, root, number, &at.older, &at.newer)
        sum_rooms(a, number)
        return number
    at = evictable_at(a, root)
    if is_older(a, number, root):
        at.older = insert(a, at.older, number)
    else:
        at.newer = insert(a, at.newer, number)
    sum_rooms(a, root)
    return root


cdef inline uint32_t remove(Arena *a, uint32_t root, uint32_t number) noexcept nogil:
    """The tree without that outcome."""
    cdef Evictable *at
    if root == 0:
        return 0
    at = evictable_at(a, root)
    if root == number:
        return merge(a, at.older, at.newer)
    if is_older(a, number, root):
        at.older = remove(a, at.older, number)
    else:
        at.newer = remove(a, at.newer, number)
    sum_rooms(a, root)
    return root


cdef inline void count_hoard(Arena *a, uint32_t account, OpRecord *op, int by) noexcept nogil:
    """An outcome joins the tree of an account (1), or leaves it (-1)."""
    cdef Hoard *own = hoard_of(a, account)
    cdef Hoard *all = hoard_of_user(a, (account - 1 - capacity(a, REGION_CLIENTS)) // capacity(a, REGION_GROUPS))
    cdef uint64_t held
    cdef int room
    for room in range(ROOMS):
        held = held_by(a, op, room)
        own.held[room] += held if by > 0 else 0 - held
        all.held[room] += held if by > 0 else 0 - held


cdef inline void join_if_left(Arena *a, OpRecord *op) noexcept nogil:
    """An outcome waits in its group's list: it may make room if an ended client has made it. The commit comes first."""
    if RARELY(first_node(op).account > capacity(a, REGION_CLIENTS)):
        join_evictable(a, op)


cdef inline void join_evictable(Arena *a, OpRecord *op) noexcept nogil:
    """An outcome of an ended client waits in its group's list: from now on it may make room. The commit comes first."""
    cdef uint32_t account = first_node(op).account, number, room
    cdef Evictable *at
    cdef Hoard *hoard
    if op.flags & OP_FLAG_SCHEDULED and not TD_DEFECT(DEFECT_SCHEDULES_MAKE_ROOM):
        return
    number = <uint32_t>(op - a.ops) + 1
    td_need(&a.members.evictable_memory, number * sizeof(Evictable))
    at = evictable_at(a, number)
    hoard = hoard_of(a, account)
    at.account = account
    at.rooms = 0
    for room in range(ROOMS):
        at.rooms |= (held_by(a, op, room) != 0) << room
    if TD_DEFECT(DEFECT_SHARED_VALUES_STAY) and freed_by_drop(a, op.payload) + freed_by_drop(a, op.value) == 0:
        at.rooms &= (1 << ROOM_BYTES) - 1
    hoard.root = insert(a, hoard.root, number)
    count_hoard(a, account, op, 1)
    for room in range(ROOMS):
        if hoard.oldest[room] and at.rooms >> room & 1 and is_older(a, number, hoard.oldest[room]):
            hoard.oldest[room] = number


cdef inline void leave_evictable(Arena *a, OpRecord *op) noexcept nogil:
    """An outcome that may make room leaves its group's list, or is about to be charged with other bytes."""
    cdef Evictable *at = a.members.evictable + (op - a.ops)
    cdef Hoard *hoard = hoard_of(a, at.account)
    cdef uint32_t number = <uint32_t>(op - a.ops) + 1, room
    hoard.root = remove(a, hoard.root, number)
    for room in range(ROOMS):
        if hoard.oldest[room] == number:
            hoard.oldest[room] = 0
    count_hoard(a, at.account, op, -1)
    at.account = 0


cdef inline void leave_if_evictable(Arena *a, OpRecord *op) noexcept nogil:
    if RARELY(a.members.evictable[op - a.ops].account):
        leave_evictable(a, op)


cdef inline OpRecord *oldest_of(Arena *a, uint32_t account, int room) noexcept nogil:
    """The oldest outcome of an account (index + 1) that may make room of this kind; NULL if there is none.

    A search for room asks many accounts again and again, and takes from one of them. So each keeps what was found.
    """
    cdef Hoard *hoard = hoard_of(a, account)
    cdef uint32_t number = hoard.root
    cdef Evictable *at
    if hoard.oldest[room]:
        return a.ops + (hoard.oldest[room] - 1)
    while number and evictable_at(a, number).below >> room & 1:
        a.turn.touched += 1
        at = evictable_at(a, number)
        if at.older and evictable_at(a, at.older).below >> room & 1:
            number = at.older
        elif at.rooms >> room & 1:
            hoard.oldest[room] = number
            return a.ops + (number - 1)
        else:
            number = at.newer
    return NULL
