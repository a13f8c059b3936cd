"""The last quarter of an arena: what outlives its client may not take it from others.

For example, an arena has room for 131,072 operations. Ended clients of user 1000 have left 98,304 pending operations for
groups that have no member. Such operations stay until their deadlines, and never make room. So a client of user 1000
that registers for a group gets QuotaExceededError. Its operations that end with it (orphans="cancel") are accepted, and
so is everything of other users.

Outcomes that may make room (evictable.pxd) count only up to their share: beyond it the oldest ones are evicted.

The holdings of the client itself count, too: it may end at once. So processes that end one after the other leave a quarter
to others, whatever they register. Other live clients of the user do not count: looking at all clients takes too long.
"""

from libc.stdint cimport uint32_t, uint64_t
from timerd.purgatory.memory.arena cimport Arena, capacity, unused
from timerd.purgatory.memory.transaction cimport TD_DEFECT
from timerd.purgatory.members.accounts cimport kept_account, left_account
from timerd.purgatory.members.answers cimport met
from timerd.purgatory.members.evictable cimport hoard_of
from timerd.purgatory.members.state cimport ROOM_BYTES, ROOM_NODES, ROOM_OPERATIONS
from timerd_shm.generated.records cimport *


cdef inline bint is_scarce(Arena *a, int region) noexcept nogil:
    """Whether less than a quarter of a region is free. Remembered ids count as free, because they give way at once.

    The ring's values give way, too, but do not count: several events may share one value. So while the ring is full of
    values, the sums of ended clients are looked at more often than they need to be.
    """
    cdef uint64_t free = unused(a, region)
    if region == REGION_IDS:
        free += a.remembered.total
    return 4 * free < capacity(a, region)


cdef inline bint something_is_scarce(Arena *a) noexcept nogil:
    return (
        is_scarce(a, REGION_OPS) or is_scarce(a, REGION_NODES) or is_scarce(a, REGION_BLOCKS) or is_scarce(a, REGION_IDS)
    )


cdef inline uint64_t charged(AccountRecord *account, int region) noexcept nogil:
    if region == REGION_OPS:
        return <uint64_t>account.pending + account.outcomes
    if region == REGION_NODES:
        return account.nodes
    return account.bytes_held if region == REGION_BLOCKS else account.ids


cdef inline uint64_t quota_of(Arena *a, int region) noexcept nogil:
    """The quota of one client. It is also the share of outcomes that a user's ended clients keep in a full arena."""
    if region == REGION_OPS:
        return a.header.quota_operations
    if region == REGION_NODES:
        return a.header.quota_nodes
    return a.header.quota_bytes if region == REGION_BLOCKS else a.header.quota_ids


cdef inline uint64_t most_kept(Arena *a, int region) noexcept nogil:
    """The most that the ended clients of one user may keep: three quarters, or the quota of one client."""
    cdef uint64_t whole = <uint64_t>capacity(a, region) * (BLOCK_DATA if region == REGION_BLOCKS else 1)
    return max(whole - whole // 4, quota_of(a, region))


cdef inline uint64_t evictable_of(Arena *a, uint32_t account, int region) noexcept nogil:
    """How much of an account of ended clients (index + 1) may make room. Ids never do."""
    if region == REGION_OPS:
        return hoard_of(a, account).held[ROOM_OPERATIONS]
    if region == REGION_NODES:
        return hoard_of(a, account).held[ROOM_NODES]
    return hoard_of(a, account).held[ROOM_BYTES] if region == REGION_BLOCKS else 0


cdef inline uint64_t kept_beside(Arena *a, uint32_t slot, int region) noexcept nogil:
    """How much the ended clients of a client's user keep: without an owner, or for groups without another member."""
    cdef uint32_t user = a.accounts[slot].user, group, first = left_account(a, user, 0)
    cdef uint64_t kept = charged(a.accounts + kept_account(a, user), region), evictable = 0, goes
    for group in range(capacity(a, REGION_GROUPS)):  # bound: groups
        if a.groups[group].members <= (a.clients[slot].group == group + 1):
            goes = evictable_of(a, first + group + 1, region)
            kept += charged(a.accounts + first + group, region) - goes
            evictable += goes
    if TD_DEFECT(DEFECT_OUTCOMES_COUNT_AS_KEPT):
        return kept + evictable
    return kept + min(evictable, quota_of(a, region))


cdef inline uint64_t held_of(Arena *a, uint32_t slot, int region) noexcept nogil:
    """The holdings of a client: its own operations, and those that it has made for its group."""
    cdef ClientRecord *c = a.clients + slot
    cdef uint64_t held = charged(a.accounts + slot, region)
    if region == REGION_OPS:
        return held + c.pending + c.unacknowledged
    if region == REGION_NODES:
        return held + c.nodes
    return held + (c.bytes_held if region == REGION_BLOCKS else c.ids)


cdef inline bint is_refused(Arena *a, uint32_t slot, int region, uint32_t what, uint64_t *limit) noexcept nogil:
    """Whether the client and its user's ended clients keep all that they may. `limit` gets the limit that was met."""
    cdef uint64_t held, allowed = most_kept(a, region), most = (<uint64_t>1 << LEFT_SHIFT) - 1
    if not is_scarce(a, region) or TD_DEFECT(DEFECT_LAST_QUARTER_TAKEN):
        return False
    a.turn.touched += 2  # 64 accounts
    held = kept_beside(a, slot, region) + held_of(a, slot, region)
    if held < allowed:
        return False
    if region == REGION_BLOCKS:
        held, allowed = held // LEFT_UNIT, allowed // LEFT_UNIT
    limit[0] = met(what, min(held, most) << LEFT_SHIFT | min(allowed, most))
    return True


cdef inline bint takes_last_quarter(
    Arena *a, uint32_t slot, uint32_t further_keys, uint32_t blocks, bint has_id, uint64_t *limit
) noexcept nogil:
    """Whether an operation of this client that may outlive it is to be refused. `limit` gets the limit that was met."""
    return is_refused(a, slot, REGION_OPS, MET_LEFT_OPERATIONS, limit) or takes_last_quarter_of_rest(
        a, slot, further_keys, blocks, has_id, limit
    )


cdef inline bint takes_last_quarter_of_rest(
    Arena *a, uint32_t slot, uint32_t further_keys, uint32_t blocks, bint has_id, uint64_t *limit
) noexcept nogil:
    """The same for an operation that takes the place of a call: whether it takes too much of anything else."""
    return (
        (further_keys and is_refused(a, slot, REGION_NODES, MET_LEFT_NODES, limit))
        or (blocks and is_refused(a, slot, REGION_BLOCKS, MET_LEFT_BYTES, limit))
        or (has_id and is_refused(a, slot, REGION_IDS, MET_LEFT_IDS, limit))
    )
