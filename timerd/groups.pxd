"""Groups: a named set of clients of which one live member is told at a time.

A group's operation that has settled waits in its group's list (generation 0, no number). hand_out tells it to a member
that is live, listens, and holds less than GROUP_HELD_MAX: it gets that member's next outcome number and stands in the
member's outcomes like one of its own. Acknowledged (received) it leaves that list and is *held*, in none, until the member
says that it is done; or the member is dead, silent or does not listen any more, and it waits in the group's list again.

The members that can be told something stand in a ring, in memory, so that each is told in turn.
"""

from libc.stdint cimport uint32_t, uint64_t
from timerd.arena cimport Arena, Member, capacity, commit, spent
from timerd.blobs cimport blob_length
from timerd.clients cimport leave_outcomes, tell
from timerd.dlist cimport append, is_empty, link_of, op_at, unlink
from timerd.handles cimport handle_remove
from timerd.journal cimport journal_group
from timerd_shm.records cimport *


cdef inline bint takes_outcomes(ClientRecord *c) noexcept nogil:
    """Whether the client is there to be told of its group's outcomes."""
    return c.group != 0 and c.state == CLIENT_STATE_LIVE and c.flags & CLIENT_FLAG_LISTENS != 0


cdef inline void place_in_ring(Arena *a, uint32_t slot) noexcept nogil:
    """See that a client stands in its group's ring exactly while it can be told something."""
    cdef ClientRecord *c = a.clients + slot
    cdef Member *m = a.members + slot
    cdef bint ready = takes_outcomes(c) and c.held < GROUP_HELD_MAX
    cdef uint32_t first
    if ready == (m.group != 0):
        return
    if ready:
        m.group = c.group
        m.next = m.prev = slot
        if a.turns[m.group - 1]:
            first = a.turns[m.group - 1] - 1
            m.next = first
            m.prev = a.members[first].prev
            a.members[m.prev].next = slot
            a.members[first].prev = slot
        else:
            a.turns[m.group - 1] = slot + 1
        a.handing = 1
        return
    if m.next == slot:
        a.turns[m.group - 1] = 0
    else:
        a.members[m.prev].next = m.next
        a.members[m.next].prev = m.prev
        if a.turns[m.group - 1] == slot + 1:
            a.turns[m.group - 1] = m.next + 1
    m.group = 0


cdef inline uint64_t kept_until(Arena *a, GroupRecord *g, OpRecord *op) noexcept nogil:
    """When an outcome that waits is dropped, if nobody joins its group before."""
    cdef uint64_t since = op.settled_ns if op.settled_ns > g.empty_since_ns else g.empty_since_ns
    if a.header.group_kept_ns > NO_DEADLINE - 1 - since:
        return NO_DEADLINE - 1
    return since + a.header.group_kept_ns


cdef inline void wait_in_group(Arena *a, OpRecord *op) noexcept nogil:
    """The settled operation waits for a member of its group; so its truth says already."""
    cdef GroupRecord *g = a.groups + (op.group - 1)
    cdef uint64_t until
    append(a, &g.next, &op.next)
    if a.turns[op.group - 1]:
        a.handing = 1
    if g.members == 0:
        until = kept_until(a, g, op)
        if until < a.groups_due_ns:
            a.groups_due_ns = until


cdef inline void adopt(Arena *a, OpRecord *op) noexcept nogil:
    """The group of an operation's dead owner takes it over, pending or settled; also above its quota."""
    cdef ClientRecord *c = a.clients + op.client
    cdef GroupRecord *g = a.groups + (c.group - 1)
    cdef uint64_t held = blob_length(a, op.payload) + blob_length(a, op.value)
    td_put(&a.tx, OpRecord_word_group(op), OpRecord_with_group(OpRecord_word_group(op)[0], c.group))
    td_put(
        &a.tx, OpRecord_word_client_generation(op),
        OpRecord_with_client_generation(OpRecord_word_client_generation(op)[0], 0),
    )
    if op.state == OP_STATE_SETTLED:
        # Its owner may have acted on it: whoever is told next is told the second time.
        td_put(&a.tx, OpRecord_word_deliveries(op), OpRecord_with_deliveries(OpRecord_word_deliveries(op)[0], 1))
        td_put(&a.tx, &op.outcome_number, 0)
    journal_group(
        a, op, GROUP_STEP_ADOPTED, c.group, op.client, op.client_generation, op.state == OP_STATE_SETTLED, 0, 0
    )
    commit(a)
    handle_remove(a, <uint32_t>(op - a.ops))
    c.bytes_held -= held
    g.bytes_held += held
    a.daemon[DAEMON_ORPHANS_ADOPTED] += 1
    if op.state == OP_STATE_PENDING:
        c.pending -= 1
        g.pending += 1
        return
    c.unacknowledged -= 1
    g.unacknowledged += 1
    leave_outcomes(a, op)
    wait_in_group(a, op)


cdef inline void adopt_if_orphaned(Arena *a, OpRecord *op) noexcept nogil:
    """Something happens to an operation whose owner is dead, before the sweep has come by: its group gets it first."""
    cdef ClientRecord *c = a.clients + op.client
    if op.orphans != ORPHANS_GROUP or op.group or c.state != CLIENT_STATE_DEAD or c.generation != op.client_generation:
        return
    adopt(a, op)


cdef inline void tell_member(Arena *a, OpRecord *op, uint32_t slot) noexcept nogil:
    """Tell a member of an outcome that waits in its group's list."""
    cdef ClientRecord *c = a.clients + slot
    cdef uint64_t word = OpRecord_word_client(op)[0]
    cdef uint32_t deliveries = op.deliveries
    if deliveries < 255:
        deliveries += 1
        td_put(
            &a.tx, OpRecord_word_deliveries(op), OpRecord_with_deliveries(OpRecord_word_deliveries(op)[0], deliveries)
        )
    word = OpRecord_with_client_generation(OpRecord_with_client(word, slot), c.generation)
    td_put(&a.tx, OpRecord_word_client(op), word)
    td_put(&a.tx, &op.outcome_number, c.next_outcome)
    td_put(&a.tx, &c.next_outcome, c.next_outcome + 1)
    journal_group(a, op, GROUP_STEP_TOLD, op.group, slot, c.generation, deliveries, c.next_outcome, 0)
    commit(a)
    unlink(a, &op.next)
    append(a, &c.next, &op.next)
    if a.news[slot].unreported == 0:
        a.news[slot].unreported = link_of(a, &op.next)
    tell(a, slot)
    c.held += 1
    place_in_ring(a, slot)
    a.daemon[DAEMON_GROUP_OUTCOMES_TOLD] += 1


cdef inline bint hand_out(Arena *a) noexcept nogil:
    """Tell members, each in turn, what waits in their groups' lists; False if the turn's bound came first."""
    cdef uint32_t group, slot
    if not a.handing:
        return True
    for group in range(capacity(a, REGION_GROUPS)):
        while a.turns[group] and not is_empty(a, &a.groups[group].next):
            if spent(a):
                return False
            a.touched += 1
            slot = a.turns[group] - 1
            a.turns[group] = a.members[slot].next + 1
            tell_member(a, op_at(a, a.groups[group].next), slot)
    a.handing = 0
    return True


cdef inline void take_back(Arena *a, OpRecord *op) noexcept nogil:
    """The member that was told is gone, silent or does not listen: the outcome waits for another. Its number is void."""
    cdef uint32_t slot = op.client
    td_put(
        &a.tx, OpRecord_word_client_generation(op),
        OpRecord_with_client_generation(OpRecord_word_client_generation(op)[0], 0),
    )
    td_put(&a.tx, &op.outcome_number, 0)
    journal_group(a, op, GROUP_STEP_RETURNED, op.group, slot, op.client_generation, op.deliveries, 0, 0)
    commit(a)
    leave_outcomes(a, op)
    a.clients[slot].held -= 1
    place_in_ring(a, slot)
    wait_in_group(a, op)
    a.daemon[DAEMON_GROUP_OUTCOMES_RETURNED] += 1


cdef inline OpRecord *find_held(Arena *a, uint32_t slot, uint64_t operation) noexcept nogil:
    """The operation of that op id, if this client was told of it for its group and has not done it; else NULL."""
    cdef OpRecord *op
    cdef uint32_t index = <uint32_t>operation
    if index >= a.regions[REGION_OPS].high_water:
        return NULL
    op = a.ops + index
    if op.generation != operation >> 32 or op.state != OP_STATE_SETTLED or op.group == 0:
        return NULL
    if op.client == slot and op.client_generation == a.clients[slot].generation:
        return op
    return op if TD_DEFECT(DEFECT_DONE_BY_FORMER_HOLDER) and op.client_generation else NULL


cdef inline void join_group(Arena *a, uint32_t slot) noexcept nogil:
    """The client is a live member now; so its truth says already."""
    if a.clients[slot].group:
        a.groups[a.clients[slot].group - 1].members += 1
        place_in_ring(a, slot)


cdef inline void leave_group(Arena *a, uint32_t slot) noexcept nogil:
    """The client has died; so its truth says already, and since when its group is empty."""
    cdef GroupRecord *g
    if a.clients[slot].group == 0:
        return
    place_in_ring(a, slot)
    g = a.groups + (a.clients[slot].group - 1)
    g.members -= 1
    if g.members == 0 and not is_empty(a, &g.next) and kept_until(a, g, op_at(a, g.next)) < a.groups_due_ns:
        a.groups_due_ns = kept_until(a, g, op_at(a, g.next))


cdef inline bint is_used(Arena *a, uint32_t group) noexcept nogil:
    """Whether the group (index) has a member, one that died and is not dealt with yet, or an operation."""
    cdef GroupRecord *g = a.groups + group
    cdef uint32_t slot
    if g.members or g.pending or g.unacknowledged:
        return True
    for slot in range(capacity(a, REGION_CLIENTS)):
        if a.clients[slot].state != CLIENT_STATE_FREE and a.clients[slot].group == group + 1:
            return True
    return False
