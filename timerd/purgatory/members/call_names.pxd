"""The calls of groups that wait for a member, by the name of their handler.

For example, 60,000 calls of "resize" wait, and no member of the group handles them. A member handles "mail". The calls
of "mail" are found under this name, so nobody walks through the calls of "resize". When a member becomes ready, only
the names that it handles are looked at.

Each name has the list of its waiting calls, in the order of the group's list. A group has two lists of names, and a
name stands in one of them, or in neither:

    TO_MATCH     a ready member may handle the name; the names take turns: one call of a name, then one of the next
    PASSED_BY    a call was passed by that may be delivered later: another call of its id runs, or it is to run alone

All of this is beside the arena. A start makes it anew when it queues the calls.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from timerd.purgatory.memory.arena cimport Arena
from timerd.purgatory.memory.blob cimport blob_length, blob_words, copy_blob
from timerd.purgatory.memory.hash cimport name_hash, td_sip_marked
from timerd.purgatory.memory.nodes cimport first_node
from timerd_shm.generated.records cimport *

from .state cimport NOWHERE, PASSED_BY, TO_MATCH, CallName, NameList, WaitingCall, td_need


cdef inline uint64_t name_of(Arena *a, OpRecord *op) noexcept nogil:
    """The name of a call: the name_hash of its first key. A call keeps its nodes."""
    cdef WatchNode *node = first_node(op)
    cdef uint8_t name[KEY_SIZE_MAX]
    if node.name_blob == 0:
        return name_hash(node.purgatory, node.name, node.name_length)
    copy_blob(a, node.name_blob, name)
    return name_hash(node.purgatory, name, node.name_length)


cdef inline CallName *call_name(Arena *a, uint32_t number) noexcept nogil:
    """The name with that number (index + 1)."""
    return a.members.names + (number - 1)


cdef inline CallName *name_of_waiting(Arena *a, OpRecord *op) noexcept nogil:
    """The name under which a waiting call is found."""
    return call_name(a, a.members.waiting[op - a.ops].name)


cdef inline uint32_t *head_of_name(Arena *a, uint32_t group, uint64_t hash) noexcept nogil:
    """Where the chain of names begins. Names of several groups share chains.

    Anybody can compute the hash of a name. So the table is indexed by another hash, under the arena's seed: nobody can
    aim names at one chain.
    """
    cdef uint64_t keyed = td_sip_marked(a.seed, <const uint8_t *>&hash, sizeof(uint64_t), <uint8_t>group)
    return a.members.name_heads + (keyed & a.members.name_mask)


cdef inline uint32_t find_name(Arena *a, uint32_t group, uint64_t hash) noexcept nogil:
    """The number of the name in that group (index + 1), or 0 if no call of that name waits."""
    cdef uint32_t found = head_of_name(a, group, hash)[0]
    while found and (call_name(a, found).hash != hash or call_name(a, found).group != group):
        a.turn.touched += 1
        found = call_name(a, found).chain
    return found


cdef inline NameList *list_of_names(Arena *a, uint32_t group, int place) noexcept nogil:
    return a.members.name_lists + (2 * (group - 1) + (place == PASSED_BY))


cdef inline void unlist_name(Arena *a, uint32_t number) noexcept nogil:
    """Take a name out of the list in which it stands, if any."""
    cdef CallName *n = call_name(a, number)
    cdef NameList *names = list_of_names(a, n.group, n.place)
    if n.place == NOWHERE:
        return
    if n.prev:
        call_name(a, n.prev).next = n.next
    else:
        names.first = n.next
    if n.next:
        call_name(a, n.next).prev = n.prev
    else:
        names.last = n.prev
    n.next = n.prev = 0
    n.place = NOWHERE


cdef inline void list_name(Arena *a, uint32_t number, int place) noexcept nogil:
    """Put a name last in this list of its group."""
    cdef CallName *n = call_name(a, number)
    cdef NameList *names = list_of_names(a, n.group, place)
    unlist_name(a, number)
    n.place = place
    n.prev = names.last
    if names.last:
        call_name(a, names.last).next = number
    else:
        names.first = number
    names.last = number


cdef inline uint32_t make_name(Arena *a, uint32_t group, uint64_t hash) noexcept nogil:
    """A new name without calls. There are never more names than operations, so there is room."""
    cdef uint32_t number = a.members.free_name
    cdef uint32_t *head = head_of_name(a, group, hash)
    cdef CallName *n
    if number:
        a.members.free_name = call_name(a, number).chain
    else:
        a.members.names_used += 1
        number = a.members.names_used
        td_need(&a.members.names_memory, number * sizeof(CallName))
    n = call_name(a, number)
    n.hash = hash
    n.group = group
    n.first = n.last = n.unmatched = n.next = n.prev = 0
    n.place = NOWHERE
    n.has_passed = 0
    n.matched_at = a.members.reasons[group - 1]
    n.chain = head[0]
    head[0] = number
    return number


cdef inline void drop_name(Arena *a, uint32_t number) noexcept nogil:
    """Free a name, because no call of it waits any more."""
    cdef CallName *n = call_name(a, number)
    cdef uint32_t *link = head_of_name(a, n.group, n.hash)
    unlist_name(a, number)
    while link[0] != number:
        a.turn.touched += 1
        link = &call_name(a, link[0]).chain
    link[0] = n.chain
    n.chain = a.members.free_name
    a.members.free_name = number


cdef inline void match_name(Arena *a, uint32_t number) noexcept nogil:
    """Look for a ready member for each call of the name."""
    cdef CallName *n = call_name(a, number)
    n.unmatched = n.first
    n.has_passed = 0
    n.matched_at = a.members.reasons[n.group - 1]
    if n.place != TO_MATCH:
        list_name(a, number, TO_MATCH)


cdef inline void close_name(Arena *a, uint32_t number) noexcept nogil:
    """No ready member takes further calls of the name: do not look at it until something has changed.

    If something changed while the name was looked at, the calls that were passed by are looked at again.
    """
    cdef CallName *n = call_name(a, number)
    if not n.has_passed:
        unlist_name(a, number)
    elif n.matched_at != a.members.reasons[n.group - 1]:
        match_name(a, number)
    else:
        list_name(a, number, PASSED_BY)


cdef inline void join_waiting(Arena *a, OpRecord *op) noexcept nogil:
    """A call has been queued in its group: put it last among the waiting calls of its name."""
    cdef uint32_t own = <uint32_t>(op - a.ops) + 1, number
    cdef uint64_t hash = name_of(a, op)
    cdef WaitingCall *at = a.members.waiting + (own - 1)
    cdef CallName *n
    td_need(&a.members.waiting_memory, own * sizeof(WaitingCall))
    number = find_name(a, op.group, hash)
    if number == 0:
        number = make_name(a, op.group, hash)
    n = call_name(a, number)
    at.name = number
    at.next = 0
    at.prev = n.last
    if n.last:
        a.members.waiting[n.last - 1].next = own
    else:
        n.first = own
    n.last = own
    if n.unmatched == 0:
        n.unmatched = own
        if n.place != TO_MATCH:
            list_name(a, number, TO_MATCH)


cdef inline void leave_waiting(Arena *a, OpRecord *op) noexcept nogil:
    """A call leaves its group's list. A call that waits for no member is in no list here."""
    cdef uint32_t own = <uint32_t>(op - a.ops) + 1
    cdef WaitingCall *at = a.members.waiting + (own - 1)
    cdef CallName *n
    if at.name == 0:
        return
    n = call_name(a, at.name)
    if n.unmatched == own:
        n.unmatched = at.next
    if at.prev:
        a.members.waiting[at.prev - 1].next = at.next
    else:
        n.first = at.next
    if at.next:
        a.members.waiting[at.next - 1].prev = at.prev
    else:
        n.last = at.prev
    if n.first == 0:
        drop_name(a, at.name)
    at.name = 0


cdef inline void pass_by(Arena *a, OpRecord *op) noexcept nogil:
    """Pass by a call that may be delivered later, even if no member becomes ready then: its name is looked at again."""
    name_of_waiting(a, op).has_passed = 1


cdef inline void match_names_of(Arena *a, uint32_t slot) noexcept nogil:
    """A member takes calls now: look for waiting calls of the names that it handles."""
    cdef ClientRecord *c = a.clients + slot
    cdef uint32_t blob = c.names, left = blob_length(a, blob) // sizeof(uint64_t), count, i, number
    cdef uint64_t *hashes
    while left:
        hashes = blob_words(a, blob)
        count = BLOCK_DATA // sizeof(uint64_t) if left > BLOCK_DATA // sizeof(uint64_t) else left
        a.turn.touched += 1 + count
        for i in range(count):  # bound: BLOCK_DATA // 8 names
            number = find_name(a, c.group, hashes[i])
            if number:
                match_name(a, number)
        left -= count
        blob = a.blocks[blob - 1].next


cdef inline void look_for_calls_again(Arena *a, uint32_t group) noexcept nogil:
    """A call of the group is over, or a member holds none: a call that was passed by may be delivered now."""
    a.members.reasons[group - 1] += 1
    if list_of_names(a, group, PASSED_BY).first:
        a.members.look_again[group - 1] = 1
        a.members.dispatching = 1
