"""Changes of a member while it is connected: whether it listens, which calls it handles, whether it is silent."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset
from timerd.purgatory.memory.arena cimport Arena, capacity
from timerd.purgatory.memory.blob cimport blocks_for, drop_blob, fill_blob
from timerd.purgatory.memory.commit cimport commit
from timerd.purgatory.memory.transaction cimport td_put
from timerd.purgatory.journal.rows cimport journal_client
from timerd.purgatory.events.ring cimport make_room
from timerd_shm.generated.records cimport *

from .accounts cimport find_user, left_account
from .call_names cimport match_names_of
from .groups cimport has_to_lose, is_deserted, is_used, join_rings
from .lifecycle cimport keeping_flag, listening_flag, stage_calls, with_silence


cdef inline void fill_group(
    Arena *a, GroupRecord *g, const char *name, uint32_t length, uint32_t pid, uint64_t start_ticks
) noexcept nogil:
    """Give a free record to this group. A free record has no operations."""
    g.name_length = length
    memset(g.name, 0, NAME_SIZE_MAX)
    memcpy(g.name, name, length)
    g.empty_since_ns = a.turn.now_ns
    g.maker_pid = pid
    g.maker_start_ticks = start_ticks


cdef inline void set_group_state(Arena *a, GroupRecord *g, uint32_t state) noexcept nogil:
    td_put(&a.tx, GroupRecord_word_state(g), GroupRecord_with_state(GroupRecord_word_state(g)[0], state))
    commit(a)
    a.regions[REGION_GROUPS].in_use += 1 if state else -1


cdef inline uint32_t left_groups(Arena *a, uint32_t user) noexcept nogil:
    """How many groups have no member, and hold something of this user's ended clients (0: users without a record)."""
    cdef AccountRecord *left = a.accounts + left_account(a, user, 0)
    cdef uint32_t index, found = 0
    for index in range(capacity(a, REGION_GROUPS)):  # bound: groups, once for each hello
        if a.groups[index].members == 0 and (left[index].pending or left[index].outcomes):
            found += not is_deserted(a, index)
    return found


cdef inline uint32_t open_group(
    Arena *a, const char *name, uint32_t length, uint32_t pid, uint64_t start_ticks, uint32_t uid, uint32_t *made,
    uint32_t *left,
) noexcept nogil:
    """The group (index + 1) of that name, which is made if there is none.

    Returns 0 if all groups are used, or if this process has made half of all groups: then `made` is the number. All
    unknown processes (pid 0) together may have made three quarters. Unused and deserted groups do not count.

    Returns 0, too, if half of all groups have no member, and hold something of this user's ended clients: then `left` is
    the number. So processes that come and go leave the other half to others. All users without a record together may
    have three quarters.
    """
    cdef GroupRecord *g
    cdef uint32_t index, count = capacity(a, REGION_GROUPS), unused = count, user
    cdef bint is_free
    made[0] = left[0] = 0
    for index in range(count):  # bound: groups, once for each hello
        g = a.groups + index
        if g.state == 0:
            unused = index if unused == count else unused
        elif g.name_length == length and memcmp(g.name, name, length) == 0:
            made[0] = 0
            return index + 1
        elif g.maker_pid == pid and g.maker_start_ticks == start_ticks and is_used(a, index):
            if is_deserted(a, index):
                continue
            made[0] += 1
    is_free = unused < count
    if not is_free:
        unused = 0
        while unused < count and is_used(a, unused):  # bound: groups, once for each hello
            unused += 1
        if unused == count:
            made[0] = 0
            return 0
    user = find_user(a, uid)
    left[0] = left_groups(a, user)
    if left[0] >= max(count // 2 if user else count - count // 4, <uint32_t>1):
        made[0] = 0
        return 0
    left[0] = 0
    if made[0] >= max(count // 2 if pid else count - count // 4, <uint32_t>1):
        return 0
    made[0] = 0
    if not is_free:
        set_group_state(a, a.groups + unused, 0)
    fill_group(a, a.groups + unused, name, length, pid, start_ticks)
    set_group_state(a, a.groups + unused, 1)
    return unused + 1


cdef inline void join_or_requeue(Arena *a, uint32_t slot) noexcept nogil:
    """A client takes more outcomes or calls of its group, or fewer: adjust the rings. The sweep requeues the excess."""
    join_rings(a, slot)
    if has_to_lose(a.clients + slot):
        a.turn.sweeping = 1


cdef inline bint may_listen(ClientRecord *c) noexcept nogil:
    """Whether the client may begin to listen: not while the sweep still requeues outcomes from an earlier time."""
    return not c.held or c.flags & CLIENT_FLAG_LISTENS != 0


cdef inline void set_listening(Arena *a, uint32_t slot, bint listens) noexcept nogil:
    cdef ClientRecord *c = a.clients + slot
    cdef uint32_t flags = listening_flag(listens) | (c.flags & CLIENT_FLAG_KEEPS)
    td_put(&a.tx, ClientRecord_word_state(c), ClientRecord_with_flags(ClientRecord_word_state(c)[0], flags))
    if flags != c.flags:
        journal_client(a, slot, c.state, flags, c.orphans, c.group, c.pid)
    commit(a)
    join_or_requeue(a, slot)


cdef inline bint set_calls(Arena *a, uint32_t slot, uint32_t most, uint64_t *hashes, uint32_t count) noexcept nogil:
    """Let the member take `most` calls at a time, of these names; False if there is no room for the names."""
    cdef ClientRecord *c = a.clients + slot
    cdef uint32_t old = c.names
    if not make_room(a, blocks_for(count * sizeof(uint64_t))):
        return False
    stage_calls(a, c, most, fill_blob(a, <const uint8_t *>hashes, count * sizeof(uint64_t)))
    commit(a)
    drop_blob(a, old)
    join_or_requeue(a, slot)
    match_names_of(a, slot)
    a.members.dispatching = 1
    return True


cdef inline void set_silence(Arena *a, uint32_t slot, uint32_t state, bint keeps) noexcept nogil:
    """A client falls silent (and `keeps` its calls and outcomes, or not), loses these later, or is live again."""
    cdef ClientRecord *c = a.clients + slot
    cdef uint64_t word = with_silence(c, state, keeps)
    if word == ClientRecord_word_state(c)[0]:
        return
    td_put(&a.tx, ClientRecord_word_state(c), word)
    journal_client(a, slot, state, keeping_flag(c, keeps), c.orphans, c.group, c.pid)
    commit(a)
    join_or_requeue(a, slot)
