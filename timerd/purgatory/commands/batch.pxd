"""Runs: neighbours of the usual kinds, applied or settled together in one transaction.

Most of what a busy daemon does is the same small thing again and again: one short key registered, a pending operation
cancelled, an event that completes the one operation that waits for it, an operation that is due, an outcome acknowledged. The
functions here take as many of these as stand beside each other, RUN_MAX at most, stage what each changes, commit once, and
then make what is derived. A crash leaves the state before the first one or behind the last, and a client sees no other
anyway: its command number moves with the whole run.

What is *usual* is a sufficient condition (is_lone, will_pend, is_plain), never a second opinion: whatever else a
command asks for, register.pxd, commands.pxd and operation/settle.pxd decide. The words are staged and the records filled by the
same functions as theirs.
"""

from libc.stdint cimport uint32_t, uint64_t
from timerd.purgatory.memory.arena cimport (
    Arena, commit, counter, histogram, histogram_add, key_of, node_of, take, unused,
)
from timerd.purgatory.memory.blob cimport blob_length, fill_blob
from timerd.purgatory.memory.builtins cimport __builtin_prefetch
from timerd.purgatory.memory.colocated cimport fill_beside, is_beside, leave_beside
from timerd.purgatory.memory.free_bitmap cimport take_spares
from timerd.purgatory.memory.hash cimport handle_tag
from timerd.purgatory.memory.list cimport append, at, is_empty, link_of, node_at, op_at
from timerd.purgatory.memory.transaction cimport td_put
from timerd.purgatory.journal.rows cimport journal_action, journal_register
from timerd.purgatory.index.keys cimport find_key, watch_event
from timerd.purgatory.index.operation_table cimport find_operation, handle_insert, handle_remove_tag
from timerd.purgatory.wheel.wheel cimport wheel_insert, wheel_remove
from timerd.purgatory.events.ring cimport event_at, fill_event, make_room, stage_slot, value_of_newest
from timerd.purgatory.members.clients cimport is_live, may_make_too_many_keys, nodes_of, tell
from timerd.purgatory.operation.register cimport (
    deadline_of, fill_first_node, fill_node, fill_payload, fill_record, kind_word, owner_word, registered_of,
)
from timerd.purgatory.operation.settle cimport (
    expire, give_up, is_completed_by_one, leave_keys, note_outcome, share_value, stage_end, stage_free,
)
from timerd_shm.generated.records cimport *

from .prefetch cimport Ahead, first_word, look_at_outcome

cdef extern from *:
    """
    #define FEW_EVENTS 4u /* of a slot: a run goes on where none of so many is on its key */
    """
    const uint32_t FEW_EVENTS


# Registrations.


cdef inline uint32_t room_for_run(Arena *a, uint32_t slot) noexcept nogil:
    """How many lone operations the client may register now, for sure: within quotas and records, RUN_MAX at most."""
    cdef ClientRecord *c = a.clients + slot
    cdef uint64_t held = <uint64_t>c.pending + c.unacknowledged
    cdef uint64_t room = RUN_MAX
    if held >= a.header.quota_operations or c.unacknowledged >= a.header.quota_outcomes:
        return 0
    if c.nodes >= a.header.quota_nodes or may_make_too_many_keys(a, c, RUN_MAX):
        return 0
    room = min(room, a.header.quota_operations - held)
    room = min(room, a.header.quota_nodes - c.nodes)
    room = min(room, unused(a, REGION_OPS))
    room = min(room, unused(a, REGION_NODES))
    return <uint32_t>min(room, unused(a, REGION_KEYS))


cdef inline bint may_be_overtaken(Arena *a, uint64_t hash, uint64_t mark) noexcept nogil:
    """Whether an event on a key with that hash may have been applied after the mark.

    When registrations come late, many slots have newer events; the key's own is hardly ever among them.
    """
    cdef uint64_t sequence = a.slots[hash & a.slot_mask].newest
    cdef EventRecord *e
    cdef uint32_t walked = 0
    while sequence > mark:
        if sequence < a.header.tail or walked == FEW_EVENTS:
            return True
        walked += 1
        a.touched += 1
        e = event_at(a, sequence)
        if e.key_hash == hash:
            return True
        sequence = e.previous
    return False


cdef inline uint64_t deadline_of_lone(Arena *a, Ahead *x) noexcept nogil:
    """The deadline of a lone registration that just becomes pending: its timeout is in range, its payload has room, nothing
    else to refuse, no event to look for, not due yet. 0: it may be otherwise.

    A sufficient condition: what it leaves out, apply_register() decides.
    """
    cdef RegisterCommand *command = <RegisterCommand *>x.at
    cdef uint64_t deadline_ns
    if not command.flags & REGISTER_FLAG_NO_MARK and may_be_overtaken(a, x.hash, command.mark_sequence):
        return 0
    deadline_ns = deadline_of(a, command.registered_ns, command.timeout_ns)
    return deadline_ns if deadline_ns > a.now_ns else 0


cdef inline void fill_watcher(Arena *a, OpRecord *op, uint32_t index, Ahead *x, uint32_t purgatory, uint32_t used) noexcept nogil:
    """The node of a lone registration, in its key's list, and a key record if there is none.

    `used`: nodes and keys up to this index were used before. Both are there.
    """
    if a.key_heads[x.hash & a.key_mask] == 0 or find_key(a, x.hash, purgatory, x.name, x.name_length) == 0:
        if index < used and take_spares(a, index):
            fill_beside(a, op, index, x.hash, purgatory, x.name, x.name_length)
            return
    fill_first_node(op, fill_node(a, index, 0, KEY_KIND_EVENT, 0, x.hash, purgatory, x.name, x.name_length))
    watch_event(a, node_of(a, op.first_node - 1))


cdef inline uint32_t register_run(Arena *a, uint32_t slot, uint64_t number, Ahead *ahead, uint32_t count) noexcept nogil:
    """Apply the first of `count` commands, as far as they are lone registrations that just become pending; how many.

    One transaction makes all of them true, with the number of the last one: a crash leaves the state before the first
    or behind the last.
    """
    cdef ClientRecord *c = a.clients + slot
    cdef OpRecord *ops[RUN_MAX]
    cdef OpRecord *op
    cdef RegisterCommand *command = <RegisterCommand *>ahead.at
    cdef uint32_t most = min(count, room_for_run(a, slot)), n = 0, i, index, purgatory = command.purgatory
    cdef uint32_t used = <uint32_t>min(a.regions[REGION_NODES].high_water, a.regions[REGION_KEYS].high_water)
    cdef uint64_t kind = kind_word(command, c.orphans, 0, 0), owner = owner_word(slot, c.generation), deadline_ns
    while n < most and ahead[n].lone and ahead[n].at[1] == purgatory:
        command = <RegisterCommand *>ahead[n].at
        if command.timeout_ns > TIMEOUT_NS_MAX and command.timeout_ns != NO_DEADLINE:
            break
        # The ring gives way first, as it does for a registration by itself: an event that goes may be one to look for.
        if c.bytes_held + command.payload_length > a.header.quota_bytes or not make_room(a, command.payload_length != 0):
            break
        deadline_ns = deadline_of_lone(a, ahead + n)
        if deadline_ns == 0:
            break
        c.bytes_held += command.payload_length
        index = take(a, REGION_OPS) - 1
        op = ops[n] = a.ops + index
        fill_record(a, op, number + n, kind, owner, registered_of(a, command.registered_ns), deadline_ns, 0)
        fill_watcher(a, op, index, ahead + n, purgatory, used)
        fill_payload(a, op, ahead[n].name + ahead[n].name_length, command.payload_length)
        journal_register(a, op, slot, command)
        td_put(&a.tx, OpRecord_word_state(op), OpRecord_with_state(OpRecord_word_state(op)[0], OP_STATE_PENDING))
        a.header.registrations = op.registration
        n += 1
    if n == 0:
        return 0
    td_put(&a.tx, &c.last_command, number + n - 1)
    commit(a)
    counter(a, purgatory, COUNT_REGISTERED)[0] += n
    counter(a, purgatory, COUNT_PENDING)[0] += n
    counter(a, purgatory, COUNT_WATCHED)[0] += n
    c.pending += n
    c.nodes += n
    a.touched += n
    for i in range(n):
        handle_insert(a, <uint32_t>(ops[i] - a.ops), ahead[i].tag)
        wheel_insert(a, ops[i])
    return n


# What settles.


cdef inline uint64_t owner_word_of(OpRecord *op) noexcept nogil:
    return OpRecord_with_bucket(OpRecord_word_client(op)[0], 0)


cdef inline bint has_live_owner(Arena *a, OpRecord *op) noexcept nogil:
    return op.client_generation == a.clients[op.client].generation and is_live(a, op.client)


cdef inline bint is_plain(OpRecord *op, uint64_t owner, uint32_t purgatory) noexcept nogil:
    """Whether it is pending, that live owner's own, in that purgatory, without an id, and not staged: it settles by its
    state word alone.

    outcome_number is 0 before it is staged. (A crash may leave another one; then it takes the long way.)
    """
    # The half of its word that has them says that it has neither group nor flags, and is not to be a group's.
    return (
        op.state == OP_STATE_PENDING and owner_word_of(op) == owner and op.purgatory == purgatory
        and OpRecord_word_orphans(op)[0] >> 32 < <uint64_t>ORPHANS_GROUP and op.id_record == 0 and op.outcome_number == 0
    )


cdef inline void stage_plain(
    Arena *a, OpRecord *op, uint32_t outcome, uint32_t settled_key, EventRecord *e, uint64_t number
) noexcept nogil:
    """Stage that a plain operation settles, as that outcome of its client. Those of one transaction are all of one client."""
    cdef uint32_t flags = op.flags, value = 0
    if e != NULL and e.value:
        value = share_value(a, e, &a.clients[op.client].bytes_held, &flags)
    stage_end(a, op, outcome, settled_key, e, flags, value, number, 0, OP_STATE_SETTLED)


cdef inline void count_run(Arena *a, OpRecord **ops, uint32_t count, uint32_t outcome, uint32_t purgatory) noexcept nogil:
    """What count_settled() does for each, in one purgatory with one outcome, which are not handed over."""
    cdef uint32_t i
    cdef HistogramRecord *waits = histogram(a, purgatory, HISTOGRAM_WAIT)
    for i in range(count):
        histogram_add(waits, ops[i].settled_ns - ops[i].registered_ns)
        if ops[i].flags & OP_FLAG_VALUE_DROPPED:
            counter(a, purgatory, COUNT_VALUES_DROPPED)[0] += 1
    if outcome == OUTCOME_COMPLETED:
        counter(a, purgatory, COUNT_COMPLETED)[0] += count
    elif outcome == OUTCOME_CANCELLED:
        counter(a, purgatory, COUNT_CANCELLED)[0] += count
    else:
        counter(a, purgatory, COUNT_EXPIRED)[0] += count
        for i in range(count):
            histogram_add(
                histogram(a, purgatory, HISTOGRAM_EXPIRY_LATENESS), ops[i].settled_ns - ops[i].deadline_ns
            )
    counter(a, purgatory, COUNT_PENDING)[0] -= count


cdef inline void finish_run(
    Arena *a, OpRecord **ops, uint32_t count, uint32_t outcome, uint32_t purgatory
) noexcept nogil:
    """Commit, and make what is derived of the operations that settle by it: what finish_settle() does, for all at once.

    They are of one client and one purgatory, and no event is in delivery.
    """
    cdef uint32_t slot, i, index, beside = 0
    cdef ClientRecord *c
    cdef OpRecord *op
    if count:
        slot = ops[0].client
        a.staged_client = slot
        a.staged_outcomes = count
    commit(a)
    if count == 0:
        return
    count_run(a, ops, count, outcome, purgatory)
    c = a.clients + slot
    for i in range(count):
        op = ops[i]
        index = <uint32_t>(op - a.ops)
        wheel_remove(a, op)
        if is_beside(op, index):
            leave_beside(a, op, index)
            beside += 1
        else:
            leave_keys(a, op)
            c.nodes -= op.keys - nodes_of(op)
        append(a, &c.next, &op.next)
        note_outcome(a, a.news + slot, op)
    a.regions[REGION_NODES].in_use -= beside
    a.regions[REGION_KEYS].in_use -= beside
    counter(a, purgatory, COUNT_WATCHED)[0] -= beside
    a.touched += count + beside
    c.nodes -= beside
    c.pending -= count
    c.unacknowledged += count
    tell(a, slot)


cdef inline uint32_t cancel_run(Arena *a, uint32_t slot, uint64_t number, Ahead *ahead, uint32_t count) noexcept nogil:
    """Apply the first of `count` commands, as far as they cancel plain operations and want no answer; how many."""
    cdef OpRecord *ops[RUN_MAX]
    cdef ClientRecord *c = a.clients + slot
    cdef OpRecord *op
    cdef OperationCommand *command = <OperationCommand *>ahead.at
    cdef uint64_t owner = owner_word(slot, c.generation), head = first_word(ahead.at)
    cdef uint32_t n = 0, most = min(count, RUN_MAX), purgatory = command.purgatory
    if command.flags or ahead.length != sizeof(OperationCommand):
        return 0
    # Kind, purgatory, flags and length are those of the first one.
    while n < most and first_word(ahead[n].at) == head:
        command = <OperationCommand *>ahead[n].at
        if command.timeout_ns > TIMEOUT_NS_MAX and command.timeout_ns != NO_DEADLINE:
            break
        op = a.ops + (ahead[n].op - 1) if ahead[n].op else find_operation(a, slot, command.operation, ahead[n].tag)
        if op == NULL or op.command != command.operation or not is_plain(op, owner, purgatory):
            break
        journal_action(a, slot, number + n, op, command, op.deadline_ns)
        stage_plain(a, op, OUTCOME_CANCELLED, 0, NULL, c.next_outcome + n)
        ops[n] = op
        n += 1
    if n == 0:
        return 0
    td_put(&a.tx, &c.last_command, number + n - 1)
    finish_run(a, ops, n, OUTCOME_CANCELLED, purgatory)
    return n


cdef inline uint32_t fire_run(Arena *a, uint32_t slot, uint64_t number, Ahead *ahead, uint32_t count) noexcept nogil:
    """Apply the first of `count` commands, as far as they fire events, with a value of one block at most, that nobody waits
    for, or one plain operation, which they complete; how many."""
    cdef OpRecord *ops[RUN_MAX]
    cdef OpRecord *op
    cdef KeyCommand *command
    cdef EventRecord *e
    cdef KeyRecord *watched
    cdef WatchNode *node = NULL
    cdef const uint8_t *name
    cdef uint32_t n = 0, settled = 0, key, value, purgatory = ahead.at[1]
    cdef uint64_t slots = 0, bit, held = 0, owner = 0, next_outcome = 0
    while n < count and n < RUN_MAX and ahead[n].kind == COMMAND_KIND_FIRE and ahead[n].at[1] == purgatory:
        command = <KeyCommand *>ahead[n].at
        if command.flags or command.value_length > BLOCK_DATA or not 1 <= command.key_length <= EVENT_KEY_INLINE:
            break
        if ahead[n].length != sizeof(KeyCommand) + command.key_length + command.value_length:
            break
        # Two that may share a hash slot of the ring (so two on one key) are not of one run: the slot has one newest event.
        bit = <uint64_t>1 << (ahead[n].hash & a.slot_mask & 63)
        if slots & bit:
            break
        name = ahead[n].at + sizeof(KeyCommand)
        key = find_key(a, ahead[n].hash, purgatory, name, command.key_length)
        op = NULL
        watched = key_of(a, key - 1) if key else NULL
        if watched != NULL and not is_empty(a, &watched.next):
            node = node_at(a, watched.next)
            op = a.ops + node.op
            if settled == 0:
                if not has_live_owner(a, op):
                    break
                owner = owner_word_of(op)
                next_outcome = a.clients[op.client].next_outcome
            if watched.next != watched.prev or not is_plain(op, owner, purgatory) or not is_completed_by_one(op, node):
                break
        value = 0
        if command.value_length:
            # The ring gives way for what is staged as well, but cannot give that way.
            held += command.value_length
            if held > a.header.ring_bytes_max:
                break
            value = value_of_newest(a, name + command.key_length, command.value_length, n)
            if value == 0:
                if not make_room(a, 1):
                    break
                value = fill_blob(a, name + command.key_length, command.value_length)
        e = fill_event(
            a, EVENT_KIND_FIRE, purgatory, ahead[n].hash, name, command.key_length, command.amount, command.limit, 0,
            slot, number + n, value, 0, n,
        )
        if op != NULL:
            stage_slot(a, e, NULL)
            td_put(&a.tx, &op.progress, 1)
            stage_plain(a, op, OUTCOME_COMPLETED, 1, e, next_outcome + settled)
            ops[settled] = op
            settled += 1
        else:
            stage_slot(a, e, NULL)
        a.header.ring_bytes += command.value_length
        slots |= bit
        n += 1
    if n == 0:
        return 0
    td_put(&a.tx, &a.header.newest, a.header.newest + n)
    td_put(&a.tx, &a.clients[slot].last_command, number + n - 1)
    finish_run(a, ops, settled, OUTCOME_COMPLETED, purgatory)
    counter(a, purgatory, COUNT_EVENTS)[0] += n
    a.touched += n
    return n


cdef inline void free_run(Arena *a, uint32_t slot, uint64_t acknowledged) noexcept nogil:
    """Free the client's first outcomes, as far as they are its own and have no higher number: the first one is and has not."""
    cdef ClientRecord *c = a.clients + slot
    cdef OpRecord *ops[RUN_MAX]
    cdef uint32_t tags[RUN_MAX]
    cdef OpRecord *op
    cdef uint32_t n = 0, i, link = c.next, head = link_of(a, &c.next)
    cdef uint64_t bytes = 0
    cdef bint passed = False
    while n < RUN_MAX and link != head:
        op = op_at(a, link)
        if op.group or op.outcome_number > acknowledged:
            break
        look_at_outcome(a, op.ahead)
        tags[n] = handle_tag(slot, op.command)
        __builtin_prefetch(a.handles + (tags[n] & a.handle_mask))
        if op.payload:
            __builtin_prefetch(a.blocks + (op.payload - 1))
        if op.value:
            __builtin_prefetch(a.blocks + (op.value - 1))
        stage_free(a, op)
        ops[n] = op
        n += 1
        passed = passed or a.news[slot].unreported == link
        link = op.next
    commit(a)
    if passed:
        a.news[slot].unreported = 0 if link == head else link
    c.next = link
    at(a, link).prev = head
    for i in range(n):
        op = ops[i]
        bytes += blob_length(a, op.payload) + blob_length(a, op.value)
        c.nodes -= nodes_of(op)
        handle_remove_tag(a, <uint32_t>(op - a.ops), tags[i])
        give_up(a, op)
    c.unacknowledged -= n
    c.bytes_held -= bytes
    a.daemon[DAEMON_OUTCOMES_ACKNOWLEDGED] += n
    a.touched += n


cdef inline uint32_t expire_run(Arena *a, BucketRecord *bucket, uint32_t count) noexcept nogil:
    """Expire the first operations of a bucket that is due: `count` at most, one at least; how many."""
    cdef OpRecord *ops[RUN_MAX]
    cdef OpRecord *op = op_at(a, bucket.next)
    cdef uint32_t n = 0, most = min(count, RUN_MAX), link = bucket.next, head = link_of(a, &bucket.next)
    cdef uint32_t purgatory = op.purgatory
    cdef uint64_t owner = owner_word_of(op), next_outcome = a.clients[op.client].next_outcome
    if a.header.unfinished == 0 and has_live_owner(a, op):
        while n < most and link != head:
            op = op_at(a, link)
            if not is_plain(op, owner, purgatory):
                break
            stage_plain(a, op, OUTCOME_EXPIRED, 0, NULL, next_outcome + n)
            ops[n] = op
            n += 1
            link = op.next
    if n == 0:
        expire(a, op_at(a, bucket.next))
        return 1
    finish_run(a, ops, n, OUTCOME_EXPIRED, purgatory)
    return n
