"""A start makes everything derived anew from the truth. A transaction that was cut off is finished by then (redo.pxd).

For example, the last daemon was killed between a commit and the list of outcomes. The state word says "settled", and
the list lacks the operation. A start reads the word, and makes the list.

A start reads no derived field, so the last daemon may have ended anywhere. This code may end anywhere too: it stores
derived fields, and changes truth only in transactions. These free what is acknowledged, drop dead letters beyond the
bound, and make silent clients live.

Some lists have an order. Operations come back in order of registration. Settled operations and answers come in order of
their numbers. Ids and undelivered outcomes of groups come in order of settling.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset
from timerd.purgatory.memory.arena cimport Arena, capacity
from timerd.purgatory.memory.blob cimport blob_length
from timerd.purgatory.memory.builtins cimport CACHE_LINE, __builtin_prefetch
from timerd.purgatory.memory.commit cimport commit
from timerd.purgatory.memory.counters cimport counter
from timerd.purgatory.memory.hash cimport id_hash
from timerd.purgatory.memory.list cimport append, is_empty, make_empty
from timerd.purgatory.memory.nodes cimport first_node, names_of, next_node
from timerd.purgatory.memory.slab cimport free_record
from timerd.purgatory.memory.transaction cimport TD_DEFECT, td_put
from timerd.purgatory.index.ids cimport chain_id
from timerd.purgatory.index.remembered_ids cimport remember_id
from timerd.purgatory.index.watermarks cimport chain_watermark
from timerd.purgatory.wheel.state cimport Joined
from timerd.purgatory.events.ring cimport event_at, ring_is_empty
from timerd.purgatory.members.state cimport CALLS, Hoard, KINDS
from timerd.purgatory.members.accounts cimport clear_account
from timerd.purgatory.members.evictable cimport hoards_of
from timerd.purgatory.members.clients cimport charge, nodes_of, owner_of, setter_generation, queue_report
from timerd.purgatory.members.groups cimport (
    after_retention, has_to_lose, join_group, kind_of, look_again_at, queue_in_group,
)
from timerd.purgatory.members.calls cimport is_letter
from timerd.purgatory.members.lifecycle cimport with_silence
from timerd.purgatory.members.looks cimport list_look, look_is_due
from timerd.purgatory.operation.condition cimport settled_keys
from timerd.purgatory.operation.apply_event cimport begin_delivery
from timerd.purgatory.operation.letters cimport drop_surplus_letters, join_letters
from timerd_shm.generated.records cimport *

from .rebuild_order cimport EARLY, Order, Ordered, drop_order, is_outcome_due, make_order, restore_order, sort_by_number
from .rebuild_watchers cimport Watchers, drop_watchers, make_watchers, order_watchers, watch_last, watch_later
from .rehash cimport begin_rehash, end_rehash, fill_event_again, fill_node_again, fill_watermark_again
from .validate cimport (
    BLOCK_COUNTED, Damage, blob_is_sound, damaged, event_is_sound, id_is_sound, look_for_damage, nodes_are_sound, op_is_sound,
    watermark_is_sound,
)


cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_t:
        pass
    int pthread_create(pthread_t *, const void *, void *(*)(void *) noexcept nogil, void *)
    int pthread_join(pthread_t, void **)

ctypedef struct Marks:
    # Which records are in use, a byte each.
    uint8_t *ops
    uint8_t *nodes
    uint8_t *watermarks
    uint8_t *blocks
    uint8_t *ids
    uint8_t *answers
    Watchers watchers


cdef inline void clear_derived(Arena *a) noexcept nogil:
    """Empty every list and table, zero every count.

    Operations, nodes and blobs are left out. Each is emptied when the truth first names it: that saves a walk.
    """
    cdef uint32_t i, n
    memset(a.levels, 0, LEVELS * sizeof(LevelRecord))
    for i in range(capacity(a, REGION_BUCKETS)):
        make_empty(a, &a.buckets[i].next)
        a.buckets[i].count = 0
    memset(a.key_heads, 0, capacity(a, REGION_KEY_TABLE) * sizeof(KeyTableRecord))
    memset(a.watermark_heads, 0, capacity(a, REGION_WATERMARK_TABLE) * sizeof(WatermarkTableRecord))
    memset(a.id_heads, 0, capacity(a, REGION_ID_TABLE) * sizeof(IdTableRecord))
    memset(a.handles, 0, capacity(a, REGION_HANDLES) * sizeof(HandleRecord))
    for i in range(capacity(a, REGION_CLIENTS)):
        make_empty(a, &a.clients[i].next)
        make_empty(a, &a.clients[i].answers_next)
        make_empty(a, &a.clients[i].ids_next)
        a.remembered.counts[i] = 0
        a.clients[i].pending = 0
        a.clients[i].ids = 0
        a.clients[i].unacknowledged = 0
        a.clients[i].answers = 0
        a.clients[i].watermarks = 0
        a.clients[i].nodes = 0
        a.clients[i].bytes_held = 0
        a.clients[i].held = 0
        a.clients[i].calls_held = 0
        for n in range(KINDS):
            a.members.rings[n][i].group = 0
            a.members.rings[n][i].alone = 0
    for i in range(capacity(a, REGION_ACCOUNTS)):
        clear_account(a.accounts + i)
    for i in range(capacity(a, REGION_GROUPS)):
        make_empty(a, &a.groups[i].next)
        make_empty(a, &a.groups[i].calls_next)
        make_empty(a, &a.groups[i].letters_next)
        a.groups[i].letters = 0
        a.groups[i].members = 0
        a.groups[i].pending = 0
        a.groups[i].ids = 0
        a.groups[i].endless = 0
        a.groups[i].unacknowledged = 0
        a.groups[i].nodes = 0
        a.groups[i].bytes_held = 0
        for n in range(KINDS):
            a.members.turns[n][i] = 0
        a.members.outdated[i] = 0
    a.turn.dropping = 0
    memset(a.members.hoards, 0, hoards_of(a) * sizeof(Hoard))
    a.remembered.total = 0
    a.remembered.fullest_until = 0
    a.header.ring_bytes = 0
    a.header.unfinished = 0
    a.header.registrations = 0
    for i in range(capacity(a, REGION_PURGATORIES)):
        counter(a, i, COUNT_PENDING)[0] = 0
        counter(a, i, COUNT_WATCHED)[0] = 0
    for n in range(REGION_COUNT):
        a.regions[n].free_head = 0
        a.regions[n].in_use = 0
    memset(a.slab.newest, 0, sizeof(a.slab.newest))


cdef inline void use_blob(Arena *a, Marks *m, uint32_t blob) noexcept nogil:
    """Count one more reference to a (sound) blob."""
    if blob == 0:
        return
    if m.blocks[blob - 1] == BLOCK_COUNTED:
        a.blocks[blob - 1].refs += 1
    else:
        m.blocks[blob - 1] = BLOCK_COUNTED
        a.blocks[blob - 1].refs = 1


cdef inline bint use_op(Arena *a, Marks *m, OpRecord *op, Damage *damage) noexcept nogil:
    """Count what the operation names (its payload, its value, its nodes while it needs its keys), and charge it.

    False if something that it names is not there.
    """
    cdef WatchNode *w = first_node(op)
    cdef uint64_t held
    cdef uint32_t index = <uint32_t>(op - a.ops), number = index + 1
    if not op_is_sound(a, op) or not blob_is_sound(a, m.blocks, op.payload):
        return False
    m.ops[index] = 1
    use_blob(a, m, op.payload)
    held = blob_length(a, op.payload)
    if op.state == OP_STATE_SETTLED:
        if not blob_is_sound(a, m.blocks, op.value):
            return False
        use_blob(a, m, op.value)
        held += blob_length(a, op.value)
    if op.state == OP_STATE_PENDING or op.flags & OP_FLAG_KEYS_KEPT:
        if not nodes_are_sound(a, m.nodes, m.blocks, op):
            return False
        while w != NULL:
            if a.rehashed:
                fill_node_again(a, w)
            use_blob(a, m, w.name_blob)
            w.place = PLACE_NOWHERE
            if op.state == OP_STATE_PENDING and not settled_keys(op) & (<uint64_t>1 << w.ordinal):
                counter(a, op.purgatory, COUNT_WATCHED)[0] += 1
                watch_later(a, &m.watchers, number)
            number = w.next_of_op
            w = next_node(a, w)
    if op.state == OP_STATE_PENDING:
        counter(a, op.purgatory, COUNT_PENDING)[0] += 1
    held += names_of(a, op)
    charge(a, op, op.state == OP_STATE_PENDING, op.state == OP_STATE_SETTLED, nodes_of(op), held)
    return True


cdef inline void restore_settled(Arena *a, OpRecord *op) noexcept nogil:
    """Put an outcome back into its client's list, to be delivered again. A held outcome was received, and is in no list."""
    cdef ClientRecord *c = a.clients + op.client
    if op.group and kind_of(op) == CALLS:
        c.calls_held += 1
        if op.flags & OP_FLAG_ALONE:
            a.members.rings[CALLS][op.client].alone += 1
    elif op.group:
        c.held += 1
    if op.outcome_number > c.acknowledged:
        append(a, &c.next, &op.next)
    else:
        make_empty(a, &op.next)


cdef inline void leave_unreached(Arena *a, Marks *m) noexcept nogil:
    """Mark the nodes that nothing names as being in no list: readers rely on that."""
    cdef uint32_t i
    for i in range(a.regions[REGION_NODES].high_water):
        if not m.nodes[i]:
            a.more_nodes[i].place = PLACE_NOWHERE


cdef inline void free_unreached(Arena *a, uint8_t *used, int region) noexcept nogil:
    """Free every record below the high water that nothing names. The lowest one will be allocated first."""
    cdef uint32_t i = a.regions[region].high_water
    a.regions[region].in_use = i
    while i:
        i -= 1
        if not used[i]:
            free_record(a, region, i)


cdef inline void prefetch_record(OpRecord *op) noexcept nogil:
    """Prefetch an operation, with its first node. It may lie beyond the arena: a prefetch reads nothing."""
    cdef char *record = <char *>op
    __builtin_prefetch(record)
    __builtin_prefetch(record + CACHE_LINE)
    __builtin_prefetch(record + 2 * CACHE_LINE)


cdef inline void prefetch_second(Arena *a, OpRecord *op) noexcept nogil:
    """Prefetch the node of an operation's second key. The index may be wrong: a prefetch reads nothing."""
    cdef uint32_t second = first_node(op).next_of_op
    if second > a.first_nodes:
        __builtin_prefetch(a.more_nodes + (second - 1 - a.first_nodes))


cdef inline void use_operations(Arena *a, Marks *m, Damage *damage) noexcept nogil:
    """Count what operations name. Free settled operations that are to be delivered to nobody."""
    cdef uint32_t i
    cdef OpRecord *op
    for i in range(a.regions[REGION_OPS].high_water):
        op = a.ops + i
        prefetch_record(op + EARLY)
        if i + EARLY // 2 < a.regions[REGION_OPS].high_water:
            prefetch_second(a, op + EARLY // 2)
        first_node(op).place = PLACE_NOWHERE
        if op.state == OP_STATE_FREE:
            continue
        if op.client >= capacity(a, REGION_CLIENTS):
            damaged(damage, REGION_OPS, i)
            return
        if op.state == OP_STATE_SETTLED and not is_outcome_due(a, op):
            # It is acknowledged, or its client is freed. The last daemon ended before it freed the record.
            td_put(&a.tx, OpRecord_word_state(op), OpRecord_with_state(OpRecord_word_state(op)[0], OP_STATE_FREE))
            commit(a)
            continue
        if not use_op(a, m, op, damage):
            damaged(damage, REGION_OPS, i)
            return
        if op.registration > a.header.registrations:
            a.header.registrations = op.registration


cdef inline void restore_undelivered(Arena *a, Ordered *items, Ordered *spare) noexcept nogil:
    """Put groups' undelivered outcomes back into their lists, in order of settling, and dead letters in order of number.

    Members are in their rings already.
    """
    cdef uint32_t i
    cdef OpRecord *op
    cdef uint64_t count = 0, outcomes = 0, k
    a.members.groups_due_ns = NO_DEADLINE
    for i in range(capacity(a, REGION_GROUPS)):
        outcomes += a.groups[i].unacknowledged
        if a.groups[i].endless and a.groups[i].members == 0:
            look_again_at(a, after_retention(a, a.groups[i].empty_since_ns))
    if outcomes == 0:
        return
    for i in range(a.regions[REGION_OPS].high_water):
        if a.ops[i].state == OP_STATE_SETTLED and a.ops[i].group and a.ops[i].client_generation == 0 and not is_letter(a.ops + i):
            items[count].number = a.ops[i].settled_ns
            items[count].index = i
            count += 1
    sort_by_number(items, spare, count)
    for k in range(count):
        queue_in_group(a, a.ops + items[k].index)
    count = 0
    for i in range(a.regions[REGION_OPS].high_water):
        op = a.ops + i
        if op.state == OP_STATE_SETTLED and op.group and is_letter(op):
            items[count].number = op.outcome_number
            items[count].index = i
            count += 1
    sort_by_number(items, spare, count)
    for k in range(count):
        join_letters(a, a.ops + items[k].index)
    for i in range(capacity(a, REGION_GROUPS)):
        drop_surplus_letters(a, a.groups + i)


cdef inline void restore_ids(
    Arena *a, Marks *m, Ordered *items, Ordered *spare, Damage *damage
) noexcept nogil:
    cdef uint32_t i
    cdef uint64_t count = 0, k
    for i in range(a.regions[REGION_IDS].high_water):
        if a.ids[i].state == ID_STATE_FREE:
            continue
        if not id_is_sound(a, a.ids + i, i):
            damaged(damage, REGION_IDS, i)
            return
        m.ids[i] = 1
        a.ids[i].chain_hash = id_hash(a.seed, a.ids[i].purgatory, a.ids[i].hash_low, a.ids[i].hash_high)
        chain_id(a, i + 1)
        if a.ids[i].state == ID_STATE_SETTLED:
            items[count].number = a.ids[i].settled_ns
            items[count].index = i
            count += 1
    sort_by_number(items, spare, count)
    for k in range(count):
        remember_id(a, a.ids + items[k].index)


cdef inline void restore_answers(
    Arena *a, Marks *m, Ordered *items, Ordered *spare, Damage *damage
) noexcept nogil:
    cdef uint32_t i
    cdef uint64_t count = 0, k
    cdef AnswerRecord *answer
    cdef ClientRecord *c
    for i in range(a.regions[REGION_ANSWERS].high_water):
        answer = a.answers + i
        if not answer.used:
            continue
        if answer.client >= capacity(a, REGION_CLIENTS):
            damaged(damage, REGION_ANSWERS, i)
            return
        c = a.clients + answer.client
        if c.state == CLIENT_STATE_FREE or answer.command <= c.answers_acknowledged:
            td_put(&a.tx, AnswerRecord_word_used(answer), AnswerRecord_with_used(AnswerRecord_word_used(answer)[0], 0))
            commit(a)
            continue
        m.answers[i] = 1
        items[count].number = answer.command
        items[count].index = i
        count += 1
    sort_by_number(items, spare, count)
    for k in range(count):
        answer = a.answers + items[k].index
        append(a, &a.clients[answer.client].answers_next, &answer.next)
        a.clients[answer.client].answers += 1


cdef inline void restore_ring(Arena *a, Marks *m, Damage *damage) noexcept nogil:
    cdef uint64_t sequence = a.header.tail
    cdef EventRecord *e
    while sequence <= a.header.newest:
        e = event_at(a, sequence)
        if not event_is_sound(a, m.blocks, e, sequence):
            damaged(damage, REGION_EVENTS, sequence & a.event_mask)
            return
        if a.rehashed:
            fill_event_again(a, e)
        use_blob(a, m, e.value)
        use_blob(a, m, e.key_blob)
        a.header.ring_bytes += blob_length(a, e.value) + blob_length(a, e.key_blob)
        sequence += 1


cdef inline void restore_watermarks(Arena *a, Marks *m, Damage *damage) noexcept nogil:
    cdef uint32_t i
    cdef WatermarkRecord *w
    cdef ClientRecord *c
    for i in range(a.regions[REGION_WATERMARKS].high_water):
        w = a.watermarks + i
        if not w.used:
            continue
        if not watermark_is_sound(a, m.blocks, w):
            damaged(damage, REGION_WATERMARKS, i)
            return
        m.watermarks[i] = 1
        use_blob(a, m, w.name_blob)
        if a.rehashed:
            fill_watermark_again(a, w)
        chain_watermark(a, i + 1)
        c = a.clients + w.setter
        if c.state != CLIENT_STATE_FREE and setter_generation(c) == w.setter_generation:
            c.watermarks += 1


cdef inline void restore_names(Arena *a, Marks *m, Damage *damage) noexcept nogil:
    """Check and count the blobs with the names of the calls that members handle."""
    cdef uint32_t slot
    for slot in range(capacity(a, REGION_CLIENTS)):
        if a.clients[slot].state == CLIENT_STATE_FREE:
            continue
        if not blob_is_sound(a, m.blocks, a.clients[slot].names):
            damaged(damage, REGION_CLIENTS, slot)
            return
        use_blob(a, m, a.clients[slot].names)


cdef inline void restore_clients(Arena *a) noexcept nogil:
    cdef uint32_t slot
    cdef ClientRecord *c
    a.members.queued = 0
    a.members.first_waits = a.members.last_waits = 0
    a.turn.sweeping = 0
    a.turn.sweep_at = 0
    a.turn.swept = 0
    a.members.tombstones = 0
    a.members.tombstones_due_ns = NO_DEADLINE
    for slot in range(capacity(a, REGION_CLIENTS)):
        c = a.clients + slot
        memset(a.members.report_states + slot, 0, sizeof(a.members.report_states[0]))
        if c.state == CLIENT_STATE_FREE:
            continue
        a.regions[REGION_CLIENTS].in_use += 1
        if c.state == CLIENT_STATE_TOMBSTONE:
            a.members.tombstones += 1
            if c.died_ns + TOMBSTONE_KEPT_NS < a.members.tombstones_due_ns:
                a.members.tombstones_due_ns = c.died_ns + TOMBSTONE_KEPT_NS
            continue
        if c.state == CLIENT_STATE_SILENT:
            # No daemon was there to read its frames: its lease begins anew.
            td_put(&a.tx, ClientRecord_word_state(c), with_silence(c, CLIENT_STATE_LIVE, False))
            commit(a)
        if c.state == CLIENT_STATE_DEAD or has_to_lose(c):
            a.turn.sweeping = 1
        if c.state == CLIENT_STATE_DEAD:
            continue
        join_group(a, slot)
        # Reports begin again, after the last acknowledged outcome and answer.
        a.members.report_states[slot].outcome = c.acknowledged
        a.members.report_states[slot].answer = c.answers_acknowledged
        if not is_empty(a, &c.next):
            a.members.report_states[slot].unreported = c.next
        queue_report(a, slot)


cdef inline void restore_looks(Arena *a, Ordered *items, Ordered *spare) noexcept nogil:
    """Put each look that is still due into the list of its owner, in order of events."""
    cdef uint32_t i
    cdef uint64_t count = 0, k
    if a.observers == 0 or TD_DEFECT(DEFECT_LOOKS_NOT_RESTORED):
        return
    for i in range(a.regions[REGION_OPS].high_water):
        if a.ops[i].state == OP_STATE_PENDING and look_is_due(a.ops + i) and owner_of(a, a.ops + i) != NULL:
            items[count].number = a.ops[i].progress
            items[count].index = i
            count += 1
    sort_by_number(items, spare, count)
    for k in range(count):
        list_look(a, a.ops + items[k].index)


cdef inline void restore_groups(Arena *a) noexcept nogil:
    cdef uint32_t group, user
    for group in range(capacity(a, REGION_GROUPS)):
        if a.groups[group].state:
            a.regions[REGION_GROUPS].in_use += 1
    for user in range(capacity(a, REGION_USERS)):
        a.regions[REGION_USERS].in_use += a.users[user].state


cdef inline void restore_counters(Arena *a) noexcept nogil:
    """Counters are not truth, but they add up: registered = pending + settled."""
    cdef uint32_t p
    for p in range(capacity(a, REGION_PURGATORIES)):
        if a.purgatories[p].state:
            a.regions[REGION_PURGATORIES].in_use += 1
        counter(a, p, COUNT_REGISTERED)[0] = (
            counter(a, p, COUNT_PENDING)[0] + counter(a, p, COUNT_COMPLETED)[0] + counter(a, p, COUNT_EXPIRED)[0]
            + counter(a, p, COUNT_CANCELLED)[0] + counter(a, p, COUNT_FAILED)[0]
        )


cdef inline void restore_operations(Arena *a, Marks *m, Order *order, Damage *damage) noexcept nogil:
    """Restore operations and keys. A second thread makes everything that needs only the operations' own records."""
    cdef pthread_t thread
    cdef bint threaded = pthread_create(&thread, NULL, restore_order, order) == 0
    cdef uint64_t k
    if not threaded:
        restore_order(order)
    use_operations(a, m, damage)
    if not damage.found:
        restore_watermarks(a, m, damage)
        watch_last(a, &m.watchers)
    if threaded:
        pthread_join(thread, NULL)
    if damage.found:
        return
    order_watchers(a, &m.watchers, order)
    for k in range(order.settled_count):
        restore_settled(a, a.ops + order.settled[k].index)


cdef inline void restore_records(Arena *a, Marks *m, Order *order, Damage *damage) noexcept nogil:
    """Restore everything that records name, region by region, up to the first damaged record."""
    restore_operations(a, m, order, damage)
    if not damage.found:
        restore_ring(a, m, damage)
    if not damage.found:
        restore_names(a, m, damage)
    if not damage.found:
        restore_ids(a, m, order.items, order.spare, damage)
    if not damage.found:
        restore_answers(a, m, order.items, order.spare, damage)


cdef inline bint rebuild(Arena *a, Damage *damage) noexcept nogil:
    """Make everything derived anew; False when there is no memory for it, or a record is damaged."""
    cdef Marks m
    cdef uint64_t most = a.regions[REGION_OPS].high_water
    cdef Order order
    cdef bint made
    look_for_damage(a, damage)
    if damage.found:
        return False
    if a.regions[REGION_IDS].high_water > most:
        most = a.regions[REGION_IDS].high_water
    if a.regions[REGION_ANSWERS].high_water > most:
        most = a.regions[REGION_ANSWERS].high_water
    m.ops = <uint8_t *>calloc(a.regions[REGION_OPS].high_water + 1, 1)
    m.nodes = <uint8_t *>calloc(a.regions[REGION_NODES].high_water + 1, 1)
    m.watermarks = <uint8_t *>calloc(a.regions[REGION_WATERMARKS].high_water + 1, 1)
    m.blocks = <uint8_t *>calloc(a.regions[REGION_BLOCKS].high_water + 1, 1)
    m.ids = <uint8_t *>calloc(a.regions[REGION_IDS].high_water + 1, 1)
    m.answers = <uint8_t *>calloc(a.regions[REGION_ANSWERS].high_water + 1, 1)
    made = make_watchers(&m.watchers, a)
    made = (
        make_order(&order, a, most) and made and m.ops != NULL and m.nodes != NULL and m.watermarks != NULL
        and m.blocks != NULL and m.ids != NULL and m.answers != NULL
    )
    if made:
        begin_rehash(a)
        clear_derived(a)
        a.header.wheel_tick = a.turn.now_ns // a.wheel.tick_ns
        a.wheel.visited_tick = a.header.wheel_tick
        memset(a.wheel.joined, 0, capacity(a, REGION_BUCKETS) * sizeof(Joined))
        restore_records(a, &m, &order, damage)
        made = not damage.found
    if made:
        free_unreached(a, m.ops, REGION_OPS)
        leave_unreached(a, &m)
        free_unreached(a, m.nodes, REGION_NODES)
        free_unreached(a, m.watermarks, REGION_WATERMARKS)
        free_unreached(a, m.blocks, REGION_BLOCKS)
        free_unreached(a, m.ids, REGION_IDS)
        free_unreached(a, m.answers, REGION_ANSWERS)
        restore_clients(a)
        restore_looks(a, order.items, order.spare)
        restore_undelivered(a, order.items, order.spare)
        restore_groups(a)
        restore_counters(a)
        if not ring_is_empty(a):
            # The newest event may not have reached every watcher. An operation that has seen it ignores it.
            begin_delivery(a, event_at(a, a.header.newest))
        end_rehash(a)
    drop_order(&order)
    free(m.ops)
    free(m.nodes)
    free(m.watermarks)
    free(m.blocks)
    free(m.ids)
    free(m.answers)
    drop_watchers(&m.watchers)
    return made
