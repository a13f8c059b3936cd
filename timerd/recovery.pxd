"""A start: finish the transaction that was being stored, then make everything derived anew from the truth.

Nothing derived is believed, so it does not matter where the last life ended; and as this only stores derived fields (and
frees what was acknowledged already, and takes silent clients for live ones), it may end anywhere itself. Order matters
where lists have one: operations come back in order of registration, settled ones and answers in order of their numbers,
ids and what waits in groups in order of settling.
"""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset
from timerd.arena cimport (
    CALLS, KINDS, TOUCH, Arena, Joined, Spares, __builtin_prefetch, capacity, commit, counter, give, key_of, node_of,
)
from timerd.blobs cimport blob_length, drop_blob, share_blob
from timerd.clients cimport charge, nodes_of, tell
from timerd.dlist cimport append, is_empty, make_empty
from timerd.groups cimport (
    after_retention, holds_what_it_does_not_take, join_group, kind_of, look_again_at, wait_in_group,
)
from timerd.handles cimport handle_insert
from timerd.hash cimport handle_tag
from timerd.ids cimport chain_id
from timerd.keys cimport attach, chain_key
from timerd.purgatory cimport begin_delivery, settled_keys
from timerd.ring cimport event_at, ring_is_empty
from timerd.soundness cimport (
    BLOCK_COUNTED, Damage, blob_is_sound, damaged, event_is_sound, id_is_sound, key_is_sound, look_for_damage, nodes_are_sound,
    op_is_sound,
)
from timerd.spares cimport give_spare
from timerd.wheel cimport wheel_insert
from timerd_shm.records cimport *


cdef extern from *:
    """
    #define DIGIT_BITS 11 /* of the numbers that are sorted: two rounds for millions of them */
    #define DIGITS (1 << DIGIT_BITS)
    #define EARLY 16 /* how many records ahead of its turn what a record names is asked for */
    #define LOOKED_AT 32 /* records that are looked at together before their turn */
    """
    enum:
        DIGIT_BITS
        DIGITS
        EARLY
        LOOKED_AT


ctypedef struct Ordered:
    # A record and the number by which its list is ordered.
    uint64_t number
    uint64_t index


ctypedef struct Gathered:
    # Records by their numbers: those that came in order, and the strays, which are yet to be sorted.
    Ordered *items
    Ordered *strays
    uint64_t count
    uint64_t stray_count


ctypedef struct Marks:
    # Which records are in use, a byte each.
    uint8_t *ops
    uint8_t *nodes
    uint8_t *keys
    uint8_t *blocks
    uint8_t *ids
    uint8_t *answers


cdef inline bint redo_is_sound(Arena *a) noexcept nogil:
    cdef RedoEntry *entry = <RedoEntry *>(a.base + REDO_OFFSET)
    cdef uint64_t i
    if a.header.redo_count > REDO_MAX:
        return False
    for i in range(a.header.redo_count):
        if entry[i].offset % 8 or entry[i].offset > a.header.size - 8:
            return False
    return True


cdef inline uint64_t finish_transaction(Arena *a) noexcept nogil:
    """Store the words of a committed transaction again; how many there were."""
    cdef uint64_t count = a.header.redo_count
    if count:
        td_store_entries(a.base, count)
        TD_ORDERED_STORE(a.base, &a.header.redo_count, 0)
    return count


cdef inline void sort_by_number(Ordered *items, Ordered *spare, uint64_t count) noexcept nogil:
    """Radix sort, a digit at a time, over the digits in which the numbers differ. What is in order is left as it is."""
    cdef uint64_t seen[DIGITS]
    cdef uint64_t i, total, here, every = 0, any_one
    cdef uint32_t shift = 0, digit
    cdef Ordered *swap
    cdef Ordered *source = items
    cdef bint in_order = True
    if count < 2:
        return
    any_one = items[0].number
    for i in range(1, count):
        every |= items[i].number ^ any_one
        in_order &= items[i - 1].number <= items[i].number
    if in_order:
        return
    while every:
        if every & (DIGITS - 1):
            memset(seen, 0, sizeof(seen))
            for i in range(count):
                seen[(source[i].number >> shift) & (DIGITS - 1)] += 1
            total = 0
            for digit in range(DIGITS):
                here = seen[digit]
                seen[digit] = total
                total += here
            for i in range(count):
                digit = (source[i].number >> shift) & (DIGITS - 1)
                spare[seen[digit]] = source[i]
                seen[digit] += 1
            swap = source
            source = spare
            spare = swap
        every >>= DIGIT_BITS
        shift += DIGIT_BITS
    if source != items:
        memcpy(items, source, count * sizeof(Ordered))


cdef inline void clear_derived(Arena *a) noexcept nogil:
    """Empty every list and table, zero every count.

    But for operations, nodes, keys and blobs, whose turn comes when the truth first names them: that is one walk less.
    """
    cdef uint32_t i, n
    memset(a.levels, 0, LEVELS * sizeof(LevelRecord))
    for i in range(capacity(a, REGION_BUCKETS)):
        make_empty(a, &a.buckets[i].next)
        a.buckets[i].count = 0
    memset(a.key_heads, 0, capacity(a, REGION_KEY_TABLE) * sizeof(KeyTableRecord))
    memset(a.id_heads, 0, capacity(a, REGION_ID_TABLE) * sizeof(IdTableRecord))
    memset(a.handles, 0, capacity(a, REGION_HANDLES) * sizeof(HandleRecord))
    for i in range(capacity(a, REGION_CLIENTS)):
        make_empty(a, &a.clients[i].next)
        make_empty(a, &a.clients[i].answers_next)
        a.clients[i].pending = 0
        a.clients[i].unacknowledged = 0
        a.clients[i].answers = 0
        a.clients[i].watermarks = 0
        a.clients[i].nodes = 0
        a.clients[i].bytes_held = 0
        a.clients[i].held = 0
        a.clients[i].calls_held = 0
        for n in range(KINDS):
            a.members[n][i].group = 0
    for i in range(capacity(a, REGION_GROUPS)):
        make_empty(a, &a.groups[i].next)
        make_empty(a, &a.groups[i].calls_next)
        a.groups[i].members = 0
        a.groups[i].pending = 0
        a.groups[i].endless = 0
        a.groups[i].unacknowledged = 0
        a.groups[i].nodes = 0
        a.groups[i].bytes_held = 0
        for n in range(KINDS):
            a.turns[n][i] = 0
        a.unmatched[i] = 0
        a.outdated[i] = 0
    a.dropping = 0
    make_empty(a, &a.header.ids_next)
    a.header.ring_bytes = 0
    a.header.unfinished = 0
    a.header.registrations = 0
    for i in range(capacity(a, REGION_PURGATORIES)):
        counter(a, i, COUNT_PENDING)[0] = 0
        counter(a, i, COUNT_WATCHED)[0] = 0
    for n in range(REGION_COUNT):
        a.regions[n].free_head = 0
        a.regions[n].in_use = 0
    memset(a.freed, 0, sizeof(a.freed))


cdef inline void use_blob(Arena *a, Marks *m, uint32_t blob) noexcept nogil:
    """One more reference to a (sound) blob that the truth names."""
    if blob == 0:
        return
    if m.blocks[blob - 1] == BLOCK_COUNTED:
        a.blocks[blob - 1].refs += 1
    else:
        m.blocks[blob - 1] = BLOCK_COUNTED
        a.blocks[blob - 1].refs = 1


cdef inline bint use_key(Arena *a, Marks *m, uint32_t index, Damage *damage) noexcept nogil:
    """A key that the truth names, by a node or its watermark: named the first time, it can be found, and nobody waits."""
    cdef KeyRecord *key = key_of(a, index)
    cdef ClientRecord *c
    if m.keys[index]:
        return True
    if not key_is_sound(a, m.blocks, key):
        damaged(damage, REGION_KEYS, index)
        return False
    m.keys[index] = 1
    make_empty(a, &key.next)
    key.heap = 0
    key.refs = 0
    if key.flags & KEY_FLAG_HAS_WATERMARK:
        c = a.clients + key.setter
        if c.state != CLIENT_STATE_FREE and (c.generation & 0xFFFF) == key.setter_generation:
            c.watermarks += 1
    use_blob(a, m, key.name_blob)
    chain_key(a, index + 1)
    return True


cdef inline bint use_op(Arena *a, Marks *m, OpRecord *op, Damage *damage) noexcept nogil:
    """Count what the operation names: nodes and keys while it needs them, payload, value; and charge it.

    False if something of it is not there.
    """
    cdef ClientRecord *c = a.clients + op.client
    cdef WatchNode *w
    cdef uint64_t held
    cdef uint32_t index = <uint32_t>(op - a.ops), node = op.first_node
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
        if not nodes_are_sound(a, m.nodes, op):
            return False
        while node:
            w = node_of(a, node - 1)
            if not use_key(a, m, w.key, damage):
                return False
            key_of(a, w.key).refs += 1
            w.linked = 0
            node = w.next_of_op
    charge(a, op, op.state == OP_STATE_PENDING, op.state == OP_STATE_SETTLED, nodes_of(op), held)
    if op.group == 0 and c.generation == op.client_generation and c.state != CLIENT_STATE_FREE:
        handle_insert(a, index, handle_tag(op.client, op.command))
    return True


cdef inline void restore_pending(Arena *a, OpRecord *op) noexcept nogil:
    """Back into its bucket and its watcher lists."""
    cdef uint32_t node = op.first_node
    wheel_insert(a, op)
    while node:
        if not settled_keys(op) & (<uint64_t>1 << node_of(a, node - 1).ordinal):
            attach(a, node)
        node = node_of(a, node - 1).next_of_op
    counter(a, op.purgatory, COUNT_PENDING)[0] += 1


cdef inline void restore_settled(Arena *a, OpRecord *op) noexcept nogil:
    """Back into the outcomes of who is told, to be told again; or into none, if it has been received and is held."""
    cdef ClientRecord *c = a.clients + op.client
    if op.group and kind_of(op) == CALLS:
        c.calls_held += 1
    elif op.group:
        c.held += 1
    if op.outcome_number > c.acknowledged:
        append(a, &c.next, &op.next)
    else:
        make_empty(a, &op.next)


cdef inline bint is_outcome_due(Arena *a, OpRecord *op) noexcept nogil:
    """Whether a settled operation still has somebody to tell."""
    cdef ClientRecord *c = a.clients + op.client
    if op.group:
        return True
    return (
        c.generation == op.client_generation and c.state != CLIENT_STATE_FREE and op.outcome_number > c.acknowledged
    )


cdef inline void free_unreached(Arena *a, uint8_t *used, int region) noexcept nogil:
    """Chain every record below the high water that nothing names; the lowest is taken first."""
    cdef uint32_t i = a.regions[region].high_water
    a.regions[region].in_use = i
    while i:
        i -= 1
        if not used[i]:
            give(a, region, i)


cdef inline void spare_unreached(Arena *a, uint8_t *used, int region, Spares *s) noexcept nogil:
    """The same for a region whose free records have bits; all bits are 0."""
    cdef uint32_t i
    a.regions[region].in_use = a.regions[region].high_water
    for i in range(a.regions[region].high_water):
        if not used[i]:
            give_spare(a, region, s, i)


cdef inline void look_at_names(Arena *a, uint32_t first, uint32_t last) noexcept nogil:
    """Touch what counting these operations will need: their places in both tables, and their payloads.

    In a loop of its own, so that the misses of many are under way at once; see lookahead.pxd. Nothing is known to be sound.
    """
    cdef OpRecord *op
    cdef uint32_t i, node
    for i in range(first, last):
        op = a.ops + i
        if op.state == OP_STATE_FREE:
            continue
        TOUCH(a.handles + (handle_tag(op.client, op.command) & a.handle_mask))
        if op.payload and op.payload <= a.regions[REGION_BLOCKS].high_water:
            TOUCH(a.blocks + (op.payload - 1))
        node = op.first_node
        if node and node <= a.regions[REGION_NODES].high_water:
            if node_of(a, node - 1).key < a.regions[REGION_KEYS].high_water:
                TOUCH(a.key_heads + (key_of(a, node_of(a, node - 1).key).hash & a.key_mask))


cdef inline void ask_for_links(Arena *a, Ordered *items, uint64_t count, uint64_t k) noexcept nogil:
    """Ask for what restoring pending operation k, EARLY places later, and those before it will need."""
    cdef OpRecord *op
    if k + EARLY < count:
        op = a.ops + items[k + EARLY].index
        __builtin_prefetch(op)
        __builtin_prefetch(&op.next)
    if k + EARLY // 2 < count:
        op = a.ops + items[k + EARLY // 2].index
        __builtin_prefetch(node_of(a, op.first_node - 1))
    if k + EARLY // 4 < count:
        op = a.ops + items[k + EARLY // 4].index
        __builtin_prefetch(key_of(a, node_of(a, op.first_node - 1).key))


cdef inline void gather(Gathered *g, uint64_t number, uint64_t index) noexcept nogil:
    """Take a record among those in order, if that goes with at most one of them made a stray instead; else among the strays.

    Records come by in order of index, which is that of their numbers but for those that were used again.
    """
    cdef Ordered *place = g.items + g.count
    if g.count and number < g.items[g.count - 1].number:
        place = g.strays + g.stray_count
        g.stray_count += 1
        if g.count == 1 or number >= g.items[g.count - 2].number:
            place[0] = g.items[g.count - 1]
            place = g.items + (g.count - 1)
    else:
        g.count += 1
    place.number = number
    place.index = index


cdef inline void restore_in_order(Arena *a, Gathered *g, Ordered *spare) noexcept nogil:
    """Pending operations back into their lists, in order of registration."""
    cdef uint64_t i = 0, k = 0
    sort_by_number(g.strays, spare, g.stray_count)
    while i < g.count or k < g.stray_count:
        if k == g.stray_count or (i < g.count and g.items[i].number < g.strays[k].number):
            ask_for_links(a, g.items, g.count, i)
            restore_pending(a, a.ops + g.items[i].index)
            i += 1
        else:
            ask_for_links(a, g.strays, g.stray_count, k)
            restore_pending(a, a.ops + g.strays[k].index)
            k += 1


cdef inline void restore_operations(
    Arena *a, Marks *m, Ordered *items, Ordered *strays, Ordered *spare, Damage *damage
) noexcept nogil:
    cdef uint32_t i
    cdef uint64_t settled = 0, k
    cdef OpRecord *op
    # Pending ones are gathered from the front, settled ones behind the last place of all.
    cdef Ordered *last = items + a.regions[REGION_OPS].high_water
    cdef Gathered pending
    pending.items = items
    pending.strays = strays
    pending.count = pending.stray_count = 0
    for i in range(a.regions[REGION_OPS].high_water):
        if i % LOOKED_AT == 0:
            look_at_names(a, i, min(i + LOOKED_AT, a.regions[REGION_OPS].high_water))
        op = a.ops + i
        op.bucket = 0
        op.ahead = 0
        make_empty(a, &op.next)  # without a deadline it is in no list, and is looked at all the same
        if op.state != OP_STATE_FREE and op.client >= capacity(a, REGION_CLIENTS):
            damaged(damage, REGION_OPS, i)
            return
        if op.state == OP_STATE_SETTLED and not is_outcome_due(a, op):
            # Acknowledged, or of a client that is gone: only its record had not been given back.
            td_put(&a.tx, OpRecord_word_state(op), OpRecord_with_state(OpRecord_word_state(op)[0], OP_STATE_FREE))
            commit(a)
        if op.state == OP_STATE_FREE:
            continue
        if not use_op(a, m, op, damage):
            damaged(damage, REGION_OPS, i)
            return
        if op.registration > a.header.registrations:
            a.header.registrations = op.registration
        if op.state == OP_STATE_PENDING:
            gather(&pending, op.registration, i)
        elif op.client_generation:
            settled += 1
            last[-<int64_t>settled].number = op.outcome_number
            last[-<int64_t>settled].index = i
    restore_in_order(a, &pending, spare)
    sort_by_number(last - settled, spare, settled)
    for k in range(settled):
        restore_settled(a, a.ops + last[<int64_t>(k - settled)].index)


cdef inline void restore_waiting(Arena *a, Ordered *items, Ordered *spare) noexcept nogil:
    """Groups' outcomes that nobody is told now, back into their groups' lists in order of settling. Members are there."""
    cdef uint32_t i
    cdef uint64_t count = 0, outcomes = 0, k
    a.groups_due_ns = NO_DEADLINE
    for i in range(capacity(a, REGION_GROUPS)):
        outcomes += a.groups[i].unacknowledged
        if a.groups[i].endless and a.groups[i].members == 0:
            look_again_at(a, after_retention(a, a.groups[i].empty_since_ns))
    if outcomes == 0:
        return
    for i in range(a.regions[REGION_OPS].high_water):
        if a.ops[i].state == OP_STATE_SETTLED and a.ops[i].group and a.ops[i].client_generation == 0:
            items[count].number = a.ops[i].settled_ns
            items[count].index = i
            count += 1
    sort_by_number(items, spare, count)
    for k in range(count):
        wait_in_group(a, a.ops + items[k].index)


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
        chain_id(a, i + 1)
        if a.ids[i].state == ID_STATE_SETTLED:
            items[count].number = a.ids[i].settled_ns
            items[count].index = i
            count += 1
    sort_by_number(items, spare, count)
    for k in range(count):
        append(a, &a.header.ids_next, &a.ids[items[k].index].next)


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
        use_blob(a, m, e.value)
        use_blob(a, m, e.key_blob)
        a.header.ring_bytes += blob_length(a, e.value) + blob_length(a, e.key_blob)
        sequence += 1


cdef inline void restore_watermarks(Arena *a, Marks *m, Damage *damage) noexcept nogil:
    """Keys that nobody watches, and that have a watermark."""
    cdef uint32_t i
    for i in range(a.regions[REGION_KEYS].high_water):
        if not m.keys[i] and key_of(a, i).flags & KEY_FLAG_HAS_WATERMARK and not use_key(a, m, i, damage):
            return


cdef inline void restore_names(Arena *a, Marks *m, Damage *damage) noexcept nogil:
    """What members handle."""
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
    a.queued = 0
    a.sweeping = 0
    a.sweep_at = 0
    a.tombstones = 0
    a.tombstones_due_ns = NO_DEADLINE
    for slot in range(capacity(a, REGION_CLIENTS)):
        c = a.clients + slot
        memset(a.news + slot, 0, sizeof(a.news[0]))
        if c.state == CLIENT_STATE_FREE:
            continue
        a.regions[REGION_CLIENTS].in_use += 1
        if c.state == CLIENT_STATE_TOMBSTONE:
            a.tombstones += 1
            if c.died_ns + TOMBSTONE_KEPT_NS < a.tombstones_due_ns:
                a.tombstones_due_ns = c.died_ns + TOMBSTONE_KEPT_NS
            continue
        if c.state == CLIENT_STATE_SILENT:
            # Nobody listened to it: its lease is whole again.
            td_put(
                &a.tx, ClientRecord_word_state(c),
                ClientRecord_with_state(ClientRecord_word_state(c)[0], CLIENT_STATE_LIVE),
            )
            commit(a)
        if c.state == CLIENT_STATE_DEAD or holds_what_it_does_not_take(c):
            a.sweeping = 1
        if c.state == CLIENT_STATE_DEAD:
            continue
        join_group(a, slot)
        # Told again: what this life has not reported begins behind what was acknowledged.
        a.news[slot].outcome = c.acknowledged
        a.news[slot].answer = c.answers_acknowledged
        if not is_empty(a, &c.next):
            a.news[slot].unreported = c.next
        tell(a, slot)


cdef inline void restore_groups(Arena *a) noexcept nogil:
    cdef uint32_t group
    for group in range(capacity(a, REGION_GROUPS)):
        if a.groups[group].state:
            a.regions[REGION_GROUPS].in_use += 1


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


cdef inline void restore_records(
    Arena *a, Marks *m, Ordered *items, Ordered *strays, Ordered *spare, Damage *damage
) noexcept nogil:
    """Everything that records name, region by region; it ends at the first that is damaged."""
    look_for_damage(a, damage)
    if not damage.found:
        restore_operations(a, m, items, strays, spare, damage)
    if not damage.found:
        restore_ring(a, m, damage)
    if not damage.found:
        restore_names(a, m, damage)
    if not damage.found:
        restore_watermarks(a, m, damage)
    if not damage.found:
        restore_ids(a, m, items, spare, damage)
    if not damage.found:
        restore_answers(a, m, items, spare, damage)


cdef inline bint rebuild(Arena *a, Damage *damage) noexcept nogil:
    """Make everything derived anew; False when there is no memory for it, or a record is damaged."""
    cdef Marks m
    cdef uint64_t most = a.regions[REGION_OPS].high_water
    cdef Ordered *items
    cdef Ordered *strays
    cdef Ordered *spare
    cdef bint made
    if a.regions[REGION_IDS].high_water > most:
        most = a.regions[REGION_IDS].high_water
    if a.regions[REGION_ANSWERS].high_water > most:
        most = a.regions[REGION_ANSWERS].high_water
    items = <Ordered *>malloc((most + 1) * sizeof(Ordered))
    strays = <Ordered *>malloc((most + 1) * sizeof(Ordered))
    spare = <Ordered *>malloc((most + 1) * sizeof(Ordered))
    m.ops = <uint8_t *>calloc(a.regions[REGION_OPS].high_water + 1, 1)
    m.nodes = <uint8_t *>calloc(a.regions[REGION_NODES].high_water + 1, 1)
    m.keys = <uint8_t *>calloc(a.regions[REGION_KEYS].high_water + 1, 1)
    m.blocks = <uint8_t *>calloc(a.regions[REGION_BLOCKS].high_water + 1, 1)
    m.ids = <uint8_t *>calloc(a.regions[REGION_IDS].high_water + 1, 1)
    m.answers = <uint8_t *>calloc(a.regions[REGION_ANSWERS].high_water + 1, 1)
    made = (
        items != NULL and strays != NULL and spare != NULL and m.ops != NULL and m.nodes != NULL and m.keys != NULL
        and m.blocks != NULL and m.ids != NULL and m.answers != NULL
    )
    if made:
        clear_derived(a)
        a.header.wheel_tick = a.now_ns // a.tick_ns
        a.visited_tick = a.header.wheel_tick
        memset(a.joined, 0, capacity(a, REGION_BUCKETS) * sizeof(Joined))
        restore_records(a, &m, items, strays, spare, damage)
        made = not damage.found
    if made:
        free_unreached(a, m.ops, REGION_OPS)
        spare_unreached(a, m.nodes, REGION_NODES, &a.spare_nodes)
        spare_unreached(a, m.keys, REGION_KEYS, &a.spare_keys)
        free_unreached(a, m.blocks, REGION_BLOCKS)
        free_unreached(a, m.ids, REGION_IDS)
        free_unreached(a, m.answers, REGION_ANSWERS)
        restore_clients(a)
        restore_waiting(a, items, spare)
        restore_groups(a)
        restore_counters(a)
        if not ring_is_empty(a):
            # It may not have reached everybody; who has seen it, sees it no second time.
            begin_delivery(a, event_at(a, a.header.newest))
    free(items)
    free(strays)
    free(spare)
    free(m.ops)
    free(m.nodes)
    free(m.keys)
    free(m.blocks)
    free(m.ids)
    free(m.answers)
    return made
