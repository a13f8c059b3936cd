"""Batches of commands: neighbouring commands of the usual kinds in a frame, applied together in one transaction.

A busy daemon does few things again and again. It registers an operation with a few short keys, cancels an operation,
fires an event that completes the one operation of its key. The functions here take such commands while they stand side
by side, BATCH_MAX at most. They stage the changes of each command, commit once, and then change the derived fields. A
crash leaves the state before the first command or after the last. No client sees a state in between, because the
command number moves with the whole batch.

The fast path takes only commands whose result is certain (few_keys, deadline_of_few, is_plain). Everything else takes
the general path in register.pxd and commands.pxd, which alone decides. Both paths use the same functions to fill
records, to stage words, and to change links and counts.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from timerd.purgatory.memory.arena cimport Arena, effective_ns, unused
from timerd.purgatory.memory.blob cimport fill_blob
from timerd.purgatory.memory.commit cimport commit
from timerd.purgatory.memory.counters cimport counter
from timerd.purgatory.memory.list cimport node_at
from timerd.purgatory.memory.nodes cimport allocate_node, first_node, node_of
from timerd.purgatory.memory.slab cimport allocate
from timerd.purgatory.memory.transaction cimport td_put
from timerd.purgatory.journal.rows cimport journal_action, journal_register
from timerd.purgatory.index.keys cimport fill_node, find_first, watch_event
from timerd.purgatory.index.operation_table cimport find_operation
from timerd.purgatory.events.ring cimport event_at, fill_event, stage_slot, value_of_newest
from timerd.purgatory.operation.settle_batch cimport finish_batch, has_live_owner, is_plain, owner_word_of, stage_plain
from timerd.purgatory.operation.condition cimport is_completed_by_one
from timerd.purgatory.operation.eviction cimport has_room
from timerd.purgatory.operation.last_quarter cimport something_is_scarce
from timerd.purgatory.operation.register cimport (
    count_registered, fill_payload, fill_record, kind_word, link_registered, owner_word,
)
from timerd.purgatory.operation.register_command cimport deadline_of, registered_of
from timerd_shm.generated.records cimport *

from .prefetch cimport Prefetched, first_word


cdef extern from *:
    """
    #define FEW_EVENTS 4u /* how many events of a slot are compared with a key before the batch gives up */
    _Static_assert(5 * BATCH_MAX + 8 <= REDO_MAX, "a batch of events stages five words of each at most, and eight for all");
    _Static_assert(BATCH_MAX <= RING_EVENTS_MIN, "all events of a batch are in the ring together");
    """
    const uint32_t FEW_EVENTS


# Registrations.


cdef inline uint32_t room_for_batch(Arena *a, uint32_t slot) noexcept nogil:
    """How many operations the client may certainly register now, by quotas and free records: BATCH_MAX at most."""
    cdef ClientRecord *c = a.clients + slot
    cdef uint64_t held = <uint64_t>c.pending + c.unacknowledged
    cdef uint64_t room = BATCH_MAX
    if held >= a.header.quota_operations or c.unacknowledged >= a.header.quota_outcomes:
        return 0
    if c.orphans != ORPHANS_CANCEL and something_is_scarce(a):
        return 0
    room = min(room, a.header.quota_operations - held)
    return <uint32_t>min(room, unused(a, REGION_OPS))


cdef inline uint32_t room_for_nodes(Arena *a, uint32_t slot) noexcept nogil:
    """How many further keys the client's operations may certainly have."""
    cdef ClientRecord *c = a.clients + slot
    if c.nodes >= a.header.quota_nodes:
        return 0
    return min(a.header.quota_nodes - c.nodes, unused(a, REGION_NODES))


cdef inline bint may_be_overtaken(Arena *a, uint64_t hash, uint64_t mark) noexcept nogil:
    """Whether an event on a key with that hash may have been applied after the mark.

    When registrations come late, many slots have newer events. Hardly ever is one of these events on the
    registration's own key.
    """
    cdef uint64_t sequence = a.slots[hash & a.slot_mask].newest
    cdef EventRecord *e
    cdef uint32_t walked = 0
    while sequence > mark:
        if sequence < a.header.tail or walked == FEW_EVENTS:
            return True
        walked += 1
        a.turn.touched += 1
        e = event_at(a, sequence)
        if e.key_hash == hash:
            return True
        sequence = e.previous
    return False


cdef inline uint64_t deadline_of_few(Arena *a, Prefetched *x) noexcept nogil:
    """The deadline of a registration with few keys that is certain to become pending; 0 if that is not certain.

    The caller has checked the timeout, and the room for the payload. This function checks that no event has to be
    looked for, and that the deadline has not passed. If it returns 0, apply_register() decides.
    """
    cdef RegisterCommand *command = <RegisterCommand *>x.at
    cdef uint64_t deadline_ns
    cdef uint32_t i
    if not command.flags & REGISTER_FLAG_NO_MARK:
        if command.mark_sequence < a.header.purgatories_floor or command.mark_sequence > a.header.newest:
            return 0
        for i in range(x.keys):  # bound: FEW_KEYS
            if may_be_overtaken(a, x.few[i].hash, command.mark_sequence):
                return 0
    deadline_ns = deadline_of(a, command.registered_ns, command.timeout_ns)
    return deadline_ns if deadline_ns > a.turn.now_ns else 0


cdef inline void fill_few(Arena *a, OpRecord *op, uint32_t index, Prefetched *x, uint32_t purgatory) noexcept nogil:
    """Fill the nodes of a registration with few keys, and put them in the keys' lists. Enough nodes are free."""
    cdef WatchNode *node = first_node(op)
    cdef uint32_t i, number = index + 1
    for i in range(x.keys):  # bound: FEW_KEYS
        if i:
            number = allocate_node(a)
            node.next_of_op = number
            node = node_of(a, number - 1)
        fill_node(a, node, index, i, KEY_KIND_EVENT, 0, x.few[i].hash, purgatory, x.few[i].name, x.few[i].length)
        watch_event(a, node, number)


cdef inline uint32_t register_batch(Arena *a, uint32_t slot, uint64_t number, Prefetched *ahead, uint32_t count) noexcept nogil:
    """Apply registrations with few keys that become pending, `count` at most, up to the first other command.

    Returns how many were applied. One transaction makes all of them true, with the number of the last command.
    """
    cdef ClientRecord *c = a.clients + slot
    cdef OpRecord *ops[BATCH_MAX]
    cdef OpRecord *op
    cdef RegisterCommand *command = <RegisterCommand *>ahead.at
    cdef uint32_t most = min(count, room_for_batch(a, slot)), n = 0, i, index, purgatory = command.purgatory
    cdef uint32_t further = 0, nodes = room_for_nodes(a, slot)
    cdef uint64_t owner = owner_word(slot, c.generation), deadline_ns
    while n < most and ahead[n].keys and ahead[n].at[1] == purgatory:  # bound: BATCH_MAX
        command = <RegisterCommand *>ahead[n].at
        if command.timeout_ns > TIMEOUT_NS_MAX and command.timeout_ns != NO_DEADLINE:
            break
        if further + (ahead[n].keys - 1) > nodes:
            break
        # has_room() comes first, as for a single registration: it may evict an event that deadline_of_few() looks for.
        if c.bytes_held + command.payload_length > a.header.quota_bytes or not has_room(a, command.payload_length != 0):
            break
        deadline_ns = deadline_of_few(a, ahead + n)
        if deadline_ns == 0:
            break
        c.bytes_held += command.payload_length
        index = allocate(a, REGION_OPS) - 1
        op = ops[n] = a.ops + index
        fill_record(
            a, op, number + n, kind_word(command, c.orphans, 0, 0), owner, registered_of(a, command.registered_ns),
            deadline_ns, 0,
        )
        fill_few(a, op, index, ahead + n, purgatory)
        fill_payload(a, op, ahead[n].at + (ahead[n].length - command.payload_length), command.payload_length)
        journal_register(a, op, slot, command)
        td_put(&a.tx, OpRecord_word_state(op), OpRecord_with_state(OpRecord_word_state(op)[0], OP_STATE_PENDING))
        a.header.registrations = op.registration
        further += ahead[n].keys - 1
        n += 1
    if n == 0:
        return 0
    td_put(&a.tx, &c.last_command, number + n - 1)
    commit(a)
    count_registered(a, purgatory, n, n)
    a.turn.touched += n + further  # the keys of all operations
    # Watchers and the client's charge are counted once for the whole batch. To call attach() and charge() as
    # apply_register() does would cost 23 instructions for each operation (3.1 % of an insert, by callgrind).
    counter(a, purgatory, COUNT_WATCHED)[0] += n + further
    c.pending += n
    c.nodes += further
    for i in range(n):  # bound: BATCH_MAX
        link_registered(a, ops[i], <uint32_t>(ops[i] - a.ops), ahead[i].tag, True, True)
    return n


# Settlements.


cdef inline uint32_t cancel_batch(Arena *a, uint32_t slot, uint64_t number, Prefetched *ahead, uint32_t count) noexcept nogil:
    """Apply commands, `count` at most, up to the first that has a flag or does not cancel a plain operation.

    Returns how many were applied.
    """
    cdef OpRecord *ops[BATCH_MAX]
    cdef ClientRecord *c = a.clients + slot
    cdef OpRecord *op
    cdef OperationCommand *command = <OperationCommand *>ahead.at
    cdef uint64_t owner = owner_word(slot, c.generation), head = first_word(ahead.at)
    cdef uint32_t n = 0, most = min(count, BATCH_MAX), purgatory = command.purgatory
    if command.flags or ahead.length != sizeof(OperationCommand):
        return 0
    # The batch ends at a command with another kind, purgatory, flags or length than the first.
    while n < most and first_word(ahead[n].at) == head:  # bound: BATCH_MAX
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
    finish_batch(a, ops, n, OUTCOME_CANCELLED, purgatory)
    return n


cdef inline uint32_t fire_batch(Arena *a, uint32_t slot, uint64_t number, Prefetched *ahead, uint32_t count) noexcept nogil:
    """Apply FIRE commands without flags, with short keys and short values, `count` at most. Returns how many.

    It stops at the first other command. The key of each event has no watcher, or a single one: a plain operation that
    the event completes.
    """
    cdef OpRecord *ops[BATCH_MAX]
    cdef OpRecord *op
    cdef KeyCommand *command
    cdef EventRecord *e
    cdef WatchNode *node = NULL
    cdef const uint8_t *name
    cdef uint32_t n = 0, settled = 0, key, value, purgatory = ahead.at[1]
    cdef uint64_t slots = 0, bit, held = 0, owner = 0, next_outcome = 0
    # bound: BATCH_MAX
    while n < count and n < BATCH_MAX and ahead[n].kind == COMMAND_KIND_FIRE and ahead[n].at[1] == purgatory:
        command = <KeyCommand *>ahead[n].at
        if command.flags or command.value_length > BLOCK_DATA or not 1 <= command.key_length <= EVENT_KEY_INLINE:
            break
        if ahead[n].length != sizeof(KeyCommand) + command.key_length + command.value_length:
            break
        # Two events of one hash slot, such as two on one key, are never in one batch: a slot has one newest event.
        bit = <uint64_t>1 << (ahead[n].hash & a.slot_mask & 63)
        if slots & bit:
            break
        name = ahead[n].at + sizeof(KeyCommand)
        if a.observers and find_first(a, ahead[n].hash, purgatory, KEY_KIND_OBSERVE, name, command.key_length):
            break
        key = find_first(a, ahead[n].hash, purgatory, KEY_KIND_EVENT, name, command.key_length)
        op = NULL
        if key:
            node = node_of(a, key - 1)
            op = a.ops + node.op
            if settled == 0:
                if not has_live_owner(a, op):
                    break
                owner = owner_word_of(op)
                next_outcome = a.clients[op.client].next_outcome
            if node_at(a, node.next) != node or not is_plain(op, owner, purgatory) or not is_completed_by_one(op, node):
                break  # there are more watchers, or the event does not complete the operation
            if op.deadline_ns <= effective_ns(a):
                break
        value = 0
        if command.value_length:
            # Old events leave the ring to make room for staged values. A staged value itself cannot leave.
            held += command.value_length
            if held > a.header.ring_bytes_max:
                break
            value = value_of_newest(a, name + command.key_length, command.value_length, n)
            if value == 0:
                if not has_room(a, 1):
                    break
                value = fill_blob(a, name + command.key_length, command.value_length)
        e = fill_event(
            a, EVENT_KIND_FIRE, purgatory, ahead[n].hash, name, command.key_length, command.amount, command.limit, 0,
            slot, number + n, value, 0, n,
        )
        if op != NULL:
            stage_slot(a, e, NULL)
            td_put(&a.tx, &op.progress, <uint64_t>1 << node.ordinal)
            stage_plain(a, op, OUTCOME_COMPLETED, node.ordinal + 1, e, next_outcome + settled)
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
    finish_batch(a, ops, settled, OUTCOME_COMPLETED, purgatory)
    counter(a, purgatory, COUNT_EVENTS)[0] += n
    a.turn.touched += n
    return n
