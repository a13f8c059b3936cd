"""Groups: named sets of clients. Each outcome of a group is delivered to one live member at a time.

For example, an operation of the group "workers" expires. Its outcome waits in the group's list (client generation 0,
outcome number 0). dispatch_outcomes() delivers the outcome to a ready member: the outcome gets that member's next
outcome number, and stands among the member's own outcomes. When the member acknowledges that it has received the
outcome, the outcome leaves that list and is *held*, in no list. When the member acknowledges with GROUP_ACK that the
work is done, the outcome is freed. If the member dies, falls silent or stops before that, the outcome is requeued in
the group's list. A silent member whose process runs (ClientFlag.KEEPS) keeps its outcomes and calls, and gets no
others.

A group has two lists: calls (OpFlag.CALL), and all other outcomes. A member takes outcomes if it listens and holds less
than GROUP_HELD_MAX. It takes calls whose names it handles (its record has the hashes of these names), up to its own
number at a time. For each kind, ready members stand in a ring, beside the arena, and take turns.

Every member that listens may get any outcome, so the first of the list is delivered. Calls are found by their names
(call_names.pxd). Names take turns, and of each name the first call that a ready member may take is delivered.
"""

from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t
from timerd.purgatory.memory.arena cimport Arena, capacity, settled_of, spent
from timerd.purgatory.memory.blob cimport blob_length, blob_words
from timerd.purgatory.memory.commit cimport commit
from timerd.purgatory.memory.list cimport append, is_empty, link_of, op_at
from timerd.purgatory.memory.nodes cimport names_of
from timerd.purgatory.memory.transaction cimport TD_DEFECT, td_put
from timerd.purgatory.journal.rows cimport journal_group
from timerd.purgatory.index.operation_table cimport handle_remove
from timerd_shm.generated.records cimport *

from .state cimport CALLS, OUTCOMES, PASSED_BY, TO_MATCH, CallName, Draining, Member
from .accounts cimport account_of, charge_account, left_account, stage_account
from .call_names cimport (
    call_name, close_name, join_waiting, list_name, list_of_names, look_for_calls_again, match_name, match_names_of,
    name_of, name_of_waiting, pass_by,
)
from .calls cimport is_letter, is_running, must_wait, note_wait, stage_held, stage_interrupted
from .evictable cimport join_if_left
from .clients cimport charge_id, is_live, leave_outcomes, nodes_of, queue_report, undelivered_of
from .looks cimport leave_looks


cdef extern from *:
    """
    #define DELIVERIES_MAX UINT8_MAX /* 255 stands for 255 and more */
    #define ALONE_WAITS_NS 10000000000ull /* how long a call that is to run alone waits for an idle member */
    #define DRAINING_NS 10000000000ull /* the longest that a member gets no calls, to become idle for such a call */
    #define DRAINING_EVERY_NS 60000000000ull
    #define SLOTS_IN_RECORD 32 /* looking at this many slots takes as long as touching a record */
    #define GROUP_SHARE 1024 /* how many records are touched for a group before the next group gets its turn */
    _Static_assert(GROUP_HELD_MAX <= UINT16_MAX && CALLS_HELD_MAX <= UINT16_MAX, "ClientRecord.held, calls_held");
    _Static_assert(sizeof(((OpRecord *)0)->deliveries) == 1, "DELIVERIES_MAX");
    """
    enum:
        DELIVERIES_MAX
        GROUP_SHARE
        SLOTS_IN_RECORD
    uint64_t ALONE_WAITS_NS, DRAINING_NS, DRAINING_EVERY_NS


cdef inline int kind_of(OpRecord *op) noexcept nogil:
    """The kind of members that take the operation."""
    return CALLS if op.flags & OP_FLAG_CALL else OUTCOMES


cdef inline bint takes(ClientRecord *c, int kind) noexcept nogil:
    """Whether the client, live or not, has said that it takes its group's outcomes, or calls."""
    if c.group == 0:
        return False
    return c.calls != 0 if kind == CALLS else c.flags & CLIENT_FLAG_LISTENS != 0


cdef inline bint may_get(ClientRecord *c, int kind) noexcept nogil:
    """Whether its group's outcomes, or calls, may be delivered to the client."""
    return c.state == CLIENT_STATE_LIVE and takes(c, kind)


cdef inline bint may_keep(ClientRecord *c, int kind) noexcept nogil:
    """Whether the client may keep the outcomes, or calls, that were delivered to it."""
    cdef bint keeps = c.state == CLIENT_STATE_SILENT and c.flags & CLIENT_FLAG_KEEPS != 0
    if TD_DEFECT(DEFECT_TAKEN_OVER_AT_ONCE):
        keeps = False
    return (c.state == CLIENT_STATE_LIVE or keeps) and takes(c, kind)


cdef inline bint has_room(ClientRecord *c, int kind) noexcept nogil:
    return c.calls_held < c.calls if kind == CALLS else c.held < GROUP_HELD_MAX


cdef inline bint is_ready(Arena *a, uint32_t slot, int kind) noexcept nogil:
    """Whether something of its group can be delivered to the client. No call joins a call that is to run alone."""
    cdef ClientRecord *c = a.clients + slot
    if a.members.rings[kind][slot].alone and not TD_DEFECT(DEFECT_ALONE_GETS_COMPANY):
        return False
    return may_get(c, kind) and has_room(c, kind)


cdef inline bint has_to_lose(ClientRecord *c) noexcept nogil:
    """Whether the client holds something that it may not keep: the sweep requeues it."""
    return (c.held and not may_keep(c, OUTCOMES)) or (c.calls_held and not may_keep(c, CALLS))


cdef inline void count_held(Arena *a, OpRecord *op, int by) noexcept nogil:
    """The member holds one more operation (1), or one less (-1)."""
    if kind_of(op) == CALLS:
        a.clients[op.client].calls_held += by
        if op.flags & OP_FLAG_ALONE:
            a.members.rings[CALLS][op.client].alone += by
        if a.clients[op.client].calls_held == 0:
            look_for_calls_again(a, op.group)
    else:
        a.clients[op.client].held += by
    join_rings(a, op.client)


cdef inline void join_rings(Arena *a, uint32_t slot) noexcept nogil:
    """Let a client stand in its group's rings exactly while something can be delivered to it."""
    join_ring(a, slot, OUTCOMES)
    join_ring(a, slot, CALLS)


cdef inline void join_ring(Arena *a, uint32_t slot, int kind) noexcept nogil:
    cdef ClientRecord *c = a.clients + slot
    cdef Member *members = a.members.rings[kind]
    cdef Member *m = members + slot
    cdef uint16_t *turns = a.members.turns[kind]
    cdef bint ready = is_ready(a, slot, kind)
    cdef uint32_t first
    if ready == (m.group != 0):
        return
    if ready:
        m.group = c.group
        m.next = m.prev = slot
        if turns[m.group - 1]:
            first = turns[m.group - 1] - 1
            m.next = first
            m.prev = members[first].prev
            members[m.prev].next = slot
            members[first].prev = slot
        else:
            turns[m.group - 1] = slot + 1
        if kind == CALLS:
            match_names_of(a, slot)
        a.members.dispatching = 1
        return
    if m.next == slot:
        turns[m.group - 1] = 0
    else:
        members[m.prev].next = m.next
        members[m.next].prev = m.prev
        if turns[m.group - 1] == slot + 1:
            turns[m.group - 1] = m.next + 1
    m.group = 0


cdef inline bint handles(Arena *a, uint32_t slot, uint64_t name) noexcept nogil:
    """Whether the client handles the calls of that name, by its name_hash."""
    cdef uint32_t blob = a.clients[slot].names, left = blob_length(a, blob) // sizeof(uint64_t), count, i
    cdef uint64_t *names
    while left:
        names = blob_words(a, blob)
        count = BLOCK_DATA // sizeof(uint64_t) if left > BLOCK_DATA // sizeof(uint64_t) else left
        a.turn.touched += 1
        for i in range(count):  # bound: BLOCK_DATA // 8 names
            if names[i] == name:
                return True
        left -= count
        blob = a.blocks[blob - 1].next
    return False


cdef inline void look_again_at(Arena *a, uint64_t at_ns) noexcept nogil:
    """Look at the groups again at `at_ns`: a retention may end, or a call that was passed by may be delivered."""
    if at_ns < a.members.groups_due_ns:
        a.members.groups_due_ns = at_ns


cdef inline bint is_draining(Draining *d, uint32_t slot, uint64_t now_ns) noexcept nogil:
    return d.slot == slot and now_ns < d.until_ns


cdef inline void wait_for_idle(Arena *a, OpRecord *op, int busy) noexcept nogil:
    """No member is idle for a call that is to run alone. `busy`: the member with the fewest calls, -1 if none is ready.

    Example: a worker that takes 16 calls at a time is never idle. When the call has waited for 10 s, the worker gets no
    other calls for 10 s. If the worker is idle by then, it gets the call that waits. If not, it gets other calls again.
    Such 10 s begin once a minute at most. So the call that waits is not passed by for ever, and a handler that runs for
    long does not hold up the other calls.
    """
    cdef Draining *d = a.members.draining + (op.group - 1)
    cdef uint64_t from_ns = max(op.settled_ns + ALONE_WAITS_NS, d.again_ns)
    pass_by(a, op)
    if busy >= 0 and from_ns <= a.turn.now_ns:
        d.slot = busy
        d.until_ns = a.turn.now_ns + DRAINING_NS
        d.again_ns = from_ns = a.turn.now_ns + DRAINING_EVERY_NS
    if busy >= 0:
        look_again_at(a, d.until_ns if a.turn.now_ns < d.until_ns else from_ns)


cdef inline int find_ready(Arena *a, OpRecord *op) noexcept nogil:
    """The next ready member for this operation; for a call, the member with the fewest calls; -1 if there is none.

    A call that is to run alone gets a member that holds no call.
    """
    cdef uint32_t first = a.members.turns[kind_of(op)][op.group - 1], slot, passed = 0
    cdef bint alone = op.flags & OP_FLAG_ALONE != 0
    cdef Draining *d = a.members.draining + (op.group - 1)
    cdef uint64_t name
    cdef int found = -1
    if first == 0:
        return -1
    slot = first - 1
    if kind_of(op) == OUTCOMES:
        return slot
    if must_wait(a, op):
        pass_by(a, op)
        note_wait(a, op)
        return -1
    name = name_of_waiting(a, op).hash
    while True:
        passed += 1
        if not alone and is_draining(d, slot, a.turn.now_ns):
            pass_by(a, op)
            look_again_at(a, d.until_ns)
        elif found < 0 or a.clients[slot].calls_held < a.clients[found].calls_held:
            if handles(a, slot, name):
                found = slot
                if a.clients[slot].calls_held == 0:
                    if alone and d.slot == slot:
                        d.until_ns = 0
                    return found
        slot = a.members.rings[CALLS][slot].next
        if slot == first - 1:
            a.turn.touched += passed // SLOTS_IN_RECORD
            if alone:
                wait_for_idle(a, op, found)
                return -1
            return found


cdef inline bint is_handled(Arena *a, OpRecord *op) noexcept nogil:
    """Whether a member handles the call: live or silent, ready or busy."""
    cdef uint64_t name = name_of(a, op)
    cdef uint32_t slot
    a.turn.touched += capacity(a, REGION_CLIENTS) // SLOTS_IN_RECORD
    for slot in range(capacity(a, REGION_CLIENTS)):  # bound: clients
        if a.clients[slot].group == op.group and is_live(a, slot) and handles(a, slot, name):
            return True
    return False


cdef inline uint64_t kept_since(uint64_t since, uint64_t kept_ns) noexcept nogil:
    return NO_DEADLINE - 1 if kept_ns > NO_DEADLINE - 1 - since else since + kept_ns


cdef inline uint64_t after_retention(Arena *a, uint64_t since) noexcept nogil:
    return kept_since(since, a.header.group_kept_ns)


cdef inline uint64_t kept_until(Arena *a, GroupRecord *g, OpRecord *op) noexcept nogil:
    """When an outcome that waits is dropped (a call: becomes a dead letter), unless a member comes for it before.

    A schedule's call is kept at least as long as any other call, so calls after it in the list may be dropped earlier.
    """
    cdef uint64_t kept_ns = a.header.group_kept_ns
    if op.flags & OP_FLAG_SCHEDULED:
        kept_ns = max(kept_ns, a.header.schedule_kept_ns)
    return kept_since(max(op.settled_ns, g.empty_since_ns), kept_ns)


cdef inline void queue_in_group(Arena *a, OpRecord *op) noexcept nogil:
    """Queue a settled operation for the members of its group. The caller has committed the change of its record."""
    cdef GroupRecord *g = a.groups + (op.group - 1)
    cdef int kind = kind_of(op)
    append(a, undelivered_of(a, op), &op.next)
    join_if_left(a, op)
    if kind == CALLS:
        join_waiting(a, op)
    if a.members.turns[kind][op.group - 1]:
        a.members.dispatching = 1
    if g.members == 0 or kind == CALLS:
        look_again_at(a, kept_until(a, g, op))


cdef inline bint is_abandoned(Arena *a, GroupRecord *g) noexcept nogil:
    """Whether the group has had no member for its retention. Then its operations without a deadline end."""
    return g.members == 0 and after_retention(a, g.empty_since_ns) <= a.turn.now_ns


cdef inline void count_endless(Arena *a, OpRecord *op, int by) noexcept nogil:
    """Count a group's pending operation (1, or -1) if it has no deadline."""
    cdef GroupRecord *g
    if op.group and op.deadline_ns == NO_DEADLINE:
        g = a.groups + (op.group - 1)
        g.endless += by
        if g.members == 0 and g.endless:
            look_again_at(a, after_retention(a, g.empty_since_ns))


cdef inline void adopt(Arena *a, OpRecord *op) noexcept nogil:
    """The group of a dead owner takes over its operation, pending or settled. The group's quota does not limit that."""
    cdef ClientRecord *c = a.clients + op.client
    cdef GroupRecord *g = a.groups + (c.group - 1)
    cdef uint64_t held = blob_length(a, op.payload) + blob_length(a, op.value) + names_of(a, op)
    cdef bint pending = op.state == OP_STATE_PENDING
    stage_account(a, op, left_account(a, a.accounts[op.client].user, c.group - 1))
    td_put(&a.tx, OpRecord_word_group(op), OpRecord_with_group(OpRecord_word_group(op)[0], c.group))
    td_put(
        &a.tx, OpRecord_word_client_generation(op),
        OpRecord_with_client_generation(OpRecord_word_client_generation(op)[0], 0),
    )
    if op.state == OP_STATE_SETTLED:
        # Its owner may have acted on it: the next delivery counts as the second one.
        td_put(&a.tx, OpRecord_word_deliveries(op), OpRecord_with_deliveries(OpRecord_word_deliveries(op)[0], 1))
        td_put(&a.tx, &op.outcome_number, 0)
    journal_group(
        a, op, GROUP_STEP_ADOPTED, c.group, op.client, op.client_generation, op.state == OP_STATE_SETTLED, 0, 0
    )
    commit(a)
    leave_looks(a, op)
    handle_remove(a, <uint32_t>(op - a.ops))
    c.nodes -= nodes_of(op)
    g.nodes += nodes_of(op)
    c.bytes_held -= held
    g.bytes_held += held
    charge_account(a, op, pending, not pending, nodes_of(op), held)
    a.daemon[DAEMON_ORPHANS_ADOPTED] += 1
    if pending:
        c.pending -= 1
        g.pending += 1
        c.ids -= op.id_record != 0
        charge_id(a, op, op.id_record != 0)
        count_endless(a, op, 1)
        return
    c.unacknowledged -= 1
    g.unacknowledged += 1
    leave_outcomes(a, op)
    queue_in_group(a, op)


cdef inline bint waits_for_member(OpRecord *op) noexcept nogil:
    """Whether an operation of a group is in the group's list."""
    return op.state == OP_STATE_SETTLED and op.client_generation == 0 and not is_letter(op)


cdef inline void leave_to_user(Arena *a, OpRecord *op) noexcept nogil:
    """The client that made an operation of a group has ended: charge the operation to its user's ended clients."""
    cdef uint32_t user = account_of(a, op).user
    cdef bint pending = op.state == OP_STATE_PENDING
    cdef int64_t held = <int64_t>blob_length(a, op.payload) + blob_length(a, op.value) + names_of(a, op)
    stage_account(a, op, left_account(a, user, op.group - 1))
    cdef uint32_t ids = pending and op.id_record != 0
    account_of(a, op).ids -= ids
    charge_account(a, op, -pending, pending - 1, -nodes_of(op), -held)
    commit(a)
    charge_account(a, op, pending, not pending, nodes_of(op), held)
    account_of(a, op).ids += ids
    if waits_for_member(op):
        join_if_left(a, op)


cdef inline void adopt_if_orphaned(Arena *a, OpRecord *op) noexcept nogil:
    """Let the group take over an operation of a dead owner, before something else happens to it. The sweep comes later."""
    cdef ClientRecord *c = a.clients + op.client
    if op.orphans != ORPHANS_GROUP or op.group or c.state != CLIENT_STATE_DEAD or c.generation != op.client_generation:
        return
    adopt(a, op)


cdef inline void deliver_to_member(Arena *a, OpRecord *op, uint32_t slot) noexcept nogil:
    """Deliver an outcome of the group's list to a member."""
    cdef ClientRecord *c = a.clients + slot
    cdef uint64_t word = OpRecord_word_client(op)[0]
    cdef uint32_t deliveries = op.deliveries
    if deliveries < DELIVERIES_MAX:
        deliveries += 1
        td_put(
            &a.tx, OpRecord_word_deliveries(op), OpRecord_with_deliveries(OpRecord_word_deliveries(op)[0], deliveries)
        )
    word = OpRecord_with_client_generation(OpRecord_with_client(word, slot), c.generation)
    td_put(&a.tx, OpRecord_word_client(op), word)
    td_put(&a.tx, &op.outcome_number, c.next_outcome)
    td_put(&a.tx, &c.next_outcome, c.next_outcome + 1)
    stage_held(a, op)
    journal_group(a, op, GROUP_STEP_DELIVERED, op.group, slot, c.generation, deliveries, c.next_outcome, 0)
    commit(a)
    leave_outcomes(a, op)
    append(a, &c.next, &op.next)
    if a.members.report_states[slot].unreported == 0:
        a.members.report_states[slot].unreported = link_of(a, &op.next)
    queue_report(a, slot)
    count_held(a, op, 1)
    a.daemon[DAEMON_GROUP_OUTCOMES_DELIVERED] += 1


cdef inline void deliver_to_next(Arena *a, OpRecord *op, uint32_t slot) noexcept nogil:
    """Deliver to this member. The member after it is next in turn."""
    a.turn.touched += 1
    a.members.turns[kind_of(op)][op.group - 1] = a.members.rings[kind_of(op)][slot].next + 1
    deliver_to_member(a, op, slot)


cdef inline bint dispatch_group(Arena *a, uint32_t group, uint64_t most) noexcept nogil:
    """Deliver the outcomes in a group's lists to ready members, in turn; False if a bound came first.

    `most`: the records touched (a.turn.touched) at which the next group gets its turn.
    """
    cdef int slot
    cdef uint32_t number
    cdef OpRecord *op
    cdef CallName *n
    while a.members.turns[OUTCOMES][group] and not is_empty(a, &a.groups[group].next):
        if spent(a) or a.turn.touched >= most:
            return False
        op = op_at(a, a.groups[group].next)
        deliver_to_next(a, op, find_ready(a, op))
    while a.members.look_again[group]:
        if spent(a) or a.turn.touched >= most:
            return False
        a.turn.touched += 1
        number = list_of_names(a, group + 1, PASSED_BY).first
        if number:
            match_name(a, number)
        else:
            a.members.look_again[group] = 0
    while a.members.turns[CALLS][group] and list_of_names(a, group + 1, TO_MATCH).first:
        if spent(a) or a.turn.touched >= most:
            return False
        a.turn.touched += 1
        number = list_of_names(a, group + 1, TO_MATCH).first
        n = call_name(a, number)
        if n.unmatched == 0:
            close_name(a, number)
            continue
        op = a.ops + (n.unmatched - 1)
        slot = find_ready(a, op)
        if slot >= 0:
            list_name(a, number, TO_MATCH)
            deliver_to_next(a, op, slot)
        elif op.flags & OP_FLAG_ALONE or must_wait(a, op):
            n.unmatched = a.members.waiting[n.unmatched - 1].next
        else:
            close_name(a, number)
    return True


cdef inline bint dispatch_outcomes(Arena *a) noexcept nogil:
    """Deliver the outcomes in groups' lists; False if the turn's bound came first. Groups take turns.

    For example, one group has 60,000 calls that no member handles, and its members change their handlers all the time.
    A call of another group waits until GROUP_SHARE records of the first group were touched, and not for all its calls.
    """
    cdef uint32_t count = capacity(a, REGION_GROUPS), group, seen
    cdef bint left
    while a.members.dispatching:
        left = False
        for seen in range(count):
            group = a.members.next_group
            a.members.next_group = group + 1 if group + 1 < count else 0
            if not dispatch_group(a, group, a.turn.touched + GROUP_SHARE):
                if spent(a):
                    return False
                left = True
        if not left:
            a.members.dispatching = 0
    return True


cdef inline void requeue_outcome(Arena *a, OpRecord *op) noexcept nogil:
    """Requeue an outcome that its member may not keep (may_keep). The outcome's number is void."""
    cdef uint32_t slot = op.client
    cdef ClientRecord *c = a.clients + slot
    cdef bint ended
    td_put(
        &a.tx, OpRecord_word_client_generation(op),
        OpRecord_with_client_generation(OpRecord_word_client_generation(op)[0], 0),
    )
    td_put(&a.tx, &op.outcome_number, 0)
    ended = c.state == CLIENT_STATE_DEAD and not c.flags & CLIENT_FLAG_GOODBYE
    if ended and op.flags & OP_FLAG_CALL and op.progress:
        a.daemon[DAEMON_CALLS_ENDED_PROCESS] += 1
    stage_interrupted(a, op, ended)
    journal_group(a, op, GROUP_STEP_REQUEUED, op.group, slot, op.client_generation, op.deliveries, 0, 0)
    commit(a)
    leave_outcomes(a, op)
    count_held(a, op, -1)
    queue_in_group(a, op)
    if op.flags & OP_FLAG_CALL:
        look_for_calls_again(a, op.group)
    a.daemon[DAEMON_GROUP_OUTCOMES_REQUEUED] += 1


cdef inline OpRecord *find_held(Arena *a, uint32_t slot, uint64_t operation) noexcept nogil:
    """The operation of that op id, if this client holds it for its group; else NULL."""
    cdef OpRecord *op = settled_of(a, operation)
    if op == NULL or op.group == 0:
        return NULL
    if op.client == slot and op.client_generation == a.clients[slot].generation:
        return op
    return op if TD_DEFECT(DEFECT_ACKNOWLEDGED_BY_FORMER_HOLDER) and op.client_generation else NULL


cdef inline bint give_back(Arena *a, uint32_t slot, uint64_t operation) noexcept nogil:
    """Requeue a call that the client holds and has not begun. Returns whether it was such a call."""
    cdef OpRecord *op = find_held(a, slot, operation)
    if op == NULL or not op.flags & OP_FLAG_CALL or is_running(op):
        return False
    a.turn.touched += 1
    requeue_outcome(a, op)
    return True


cdef inline OpRecord *find_call(Arena *a, uint32_t slot, uint64_t operation) noexcept nogil:
    """The call of that op id, if it is due, not done, and of this client's group; else NULL.

    Every member may acknowledge the call. For example, a member did the work, and fell silent meanwhile: another member
    holds the call by then.
    """
    cdef OpRecord *op = settled_of(a, operation)
    if op == NULL or not op.flags & OP_FLAG_CALL or is_letter(op):
        return NULL
    return op if op.group == a.clients[slot].group else NULL


cdef inline void join_group(Arena *a, uint32_t slot) noexcept nogil:
    """Count a client that is a live member now. The caller has committed that."""
    if a.clients[slot].group:
        a.groups[a.clients[slot].group - 1].members += 1
        join_rings(a, slot)


cdef inline void leave_group(Arena *a, uint32_t slot) noexcept nogil:
    """A client has died, and leaves its group. The caller has committed that, with the group's empty_since_ns."""
    cdef GroupRecord *g
    if a.clients[slot].group == 0:
        return
    join_rings(a, slot)
    g = a.groups + (a.clients[slot].group - 1)
    g.members -= 1
    if g.members == 0:
        look_again_at(a, after_retention(a, g.empty_since_ns))


cdef inline bint is_deserted(Arena *a, uint32_t group) noexcept nogil:
    """Whether a group (index) has only dead letters, and had no member and no new letter for the longest retention."""
    cdef GroupRecord *g = a.groups + group
    cdef uint64_t kept_ns = max(a.header.group_kept_ns, a.header.schedule_kept_ns)
    if g.members or g.pending or g.letters == 0 or g.letters != g.unacknowledged:
        return False
    return kept_since(max(g.empty_since_ns, op_at(a, g.letters_prev).settled_ns), kept_ns) <= a.turn.now_ns


cdef inline bint is_used(Arena *a, uint32_t group) noexcept nogil:
    """Whether the group (index) has a live member, a dead one that the sweep is not done with, or an operation."""
    cdef GroupRecord *g = a.groups + group
    cdef uint32_t slot
    if g.members or g.pending or g.unacknowledged:
        return True
    for slot in range(capacity(a, REGION_CLIENTS)):  # bound: clients
        if a.clients[slot].state != CLIENT_STATE_FREE and a.clients[slot].group == group + 1:
            return True
    return False
