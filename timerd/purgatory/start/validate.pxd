"""Validation: before a start uses a record, it checks that the record names only existing records.

Only the daemon writes an arena. But another program may damage the file, or the memory may be bad. A start must refuse
such an arena, with an error that names the record, instead of reading beyond the arena. A value that is wrong but leads
nowhere is found by timerd_shm/check/.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from timerd.purgatory.memory.arena cimport Arena, capacity
from timerd.purgatory.memory.blob cimport blocks_for
from timerd.purgatory.memory.nodes cimport first_node
from timerd.purgatory.members.accounts cimport kept_account
from timerd_shm.generated.records cimport *

cdef extern from *:
    """
    /* Marks of a block that a record names. A chain's first block is COUNTED once a reference to it was counted. */
    enum { BLOCK_FIRST = 1, BLOCK_INNER = 2, BLOCK_COUNTED = 3 };
    """
    enum:
        BLOCK_FIRST
        BLOCK_INNER
        BLOCK_COUNTED


ctypedef struct Damage:
    # The first record that names something that is not there.
    bint found
    int region
    uint64_t index


cdef inline void damaged(Damage *d, int region, uint64_t index) noexcept nogil:
    if not d.found:
        d.found = True
        d.region = region
        d.index = index


cdef inline bint header_is_sound(Arena *a) noexcept nogil:
    cdef ArenaHeader *h = a.header
    if not TICK_NS_MIN <= h.tick_ns <= TICK_NS_MAX or a.purgatories[0].state != 1:
        return False
    return 1 <= h.tail <= h.newest + 1 and h.newest + 1 - h.tail <= capacity(a, REGION_EVENTS) and h.newest < <uint64_t>1 << 62


cdef inline bint purgatory_is_there(Arena *a, uint32_t purgatory) noexcept nogil:
    return purgatory < capacity(a, REGION_PURGATORIES) and a.purgatories[purgatory].state == 1


cdef inline bint group_is_there(Arena *a, uint32_t group) noexcept nogil:
    """`group` is an index + 1; 0 = none."""
    return group == 0 or (group <= capacity(a, REGION_GROUPS) and a.groups[group - 1].state == 1)


cdef inline bint account_is_there(Arena *a, OpRecord *op) noexcept nogil:
    """Whether the account of a group's operation is that of a client, or of a user's ended clients for that group.

    Without a group, it is the account of the operations that a user's ended clients have left without an owner.
    """
    cdef uint32_t account = <uint32_t>first_node(op).account - 1, clients = capacity(a, REGION_CLIENTS)
    if op.group == 0:
        return account < capacity(a, REGION_ACCOUNTS) and kept_account(a, 0) <= account and (
            a.users[account - kept_account(a, 0)].state == 1
        )
    if account >= kept_account(a, 0):
        return False
    if account < clients:
        # A slot is freed after the operations that its client has made.
        return a.clients[account].state != CLIENT_STATE_FREE and a.clients[account].state != CLIENT_STATE_TOMBSTONE
    if (account - clients) % capacity(a, REGION_GROUPS) != <uint32_t>op.group - 1:
        return False
    return a.users[(account - clients) // capacity(a, REGION_GROUPS)].state == 1


cdef inline bint blob_is_sound(Arena *a, uint8_t *marks, uint32_t blob) noexcept nogil:
    """Whether a chain has the blocks for its length, and none of another chain. The first call marks the chain."""
    cdef uint32_t used = a.regions[REGION_BLOCKS].high_water, left
    if blob == 0:
        return True
    if blob > used or marks[blob - 1] == BLOCK_INNER:
        return False
    if marks[blob - 1]:
        return True
    left = blocks_for(a.blocks[blob - 1].length)
    if left == 0 or a.blocks[blob - 1].length > PAYLOAD_SIZE_MAX:
        return False
    marks[blob - 1] = BLOCK_FIRST
    while left > 1:
        blob = a.blocks[blob - 1].next
        if blob == 0 or blob > used or marks[blob - 1]:
            return False
        marks[blob - 1] = BLOCK_INNER
        left -= 1
    return a.blocks[blob - 1].next == 0


cdef inline bint op_is_sound(Arena *a, OpRecord *op) noexcept nogil:
    """Check the numbers of an operation in use. nodes_are_sound() and blob_is_sound() check the records they name."""
    if op.state > OP_STATE_SETTLED or op.outcome > OUTCOME_FAILED or op.condition >= CONDITION_COUNT:
        return False
    if not 1 <= op.keys <= KEYS_MAX or op.settled_key > op.keys or op.orphans > ORPHANS_GROUP:
        return False
    if op.client >= capacity(a, REGION_CLIENTS) or op.id_record > a.regions[REGION_IDS].high_water:
        return False
    if not purgatory_is_there(a, op.purgatory) or not group_is_there(a, op.group):
        return False
    if op.client_generation > a.clients[op.client].generation:
        return False
    if op.state == OP_STATE_PENDING and op.client_generation == a.clients[op.client].generation:
        # A slot is freed after its operations.
        if a.clients[op.client].state == CLIENT_STATE_FREE or a.clients[op.client].state == CLIENT_STATE_TOMBSTONE:
            return False
    if op.state == OP_STATE_PENDING and op.id_record:
        if a.ids[op.id_record - 1].state != ID_STATE_LIVE or a.ids[op.id_record - 1].op != <uint32_t>(op - a.ops) + 1:
            return False
    if op.state == OP_STATE_SETTLED and (op.group or op.orphans == ORPHANS_GROUP) and not op.flags & OP_FLAG_KEYS_KEPT:
        return False
    if op.group == 0 and op.flags & OP_FLAG_CALL:
        return False
    if (op.group or first_node(op).account) and not account_is_there(a, op):
        return False
    if op.group == 0 and first_node(op).account and op.client_generation:
        return False
    if (op.condition == CONDITION_OWNER) != (op.flags & OP_FLAG_OWNER != 0):
        return False
    if op.group == 0 and op.orphans == ORPHANS_GROUP and op.client_generation == a.clients[op.client].generation:
        # Its owner's group would adopt it, so the owner must have a group.
        if a.clients[op.client].group == 0:
            return False
    if op.flags & OP_FLAG_GRANTED:
        # The grant may be requeued to the next watcher of that key.
        if op.state != OP_STATE_SETTLED or not op.flags & OP_FLAG_KEYS_KEPT or op.settled_key == 0:
            return False
    # A timeout is TIMEOUT_NS_MAX at most, so twice as much is damage. A saturated deadline (NO_DEADLINE - 1) is not.
    return (
        op.state == OP_STATE_SETTLED or op.deadline_ns >= NO_DEADLINE - 1 or op.deadline_ns <= a.turn.now_ns
        or op.deadline_ns - a.turn.now_ns <= 2 * TIMEOUT_NS_MAX
    )


cdef inline bint name_is_sound(Arena *a, uint8_t *blocks, uint32_t purgatory, uint32_t length, uint32_t blob) noexcept nogil:
    """Whether the name of a key is inlined, or stands in a blob of its length."""
    if length == 0 or not purgatory_is_there(a, purgatory) or (length > KEY_INLINE) != (blob != 0):
        return False
    return blob_is_sound(a, blocks, blob) and (blob == 0 or a.blocks[blob - 1].length == length)


cdef inline bint nodes_are_sound(Arena *a, uint8_t *marks, uint8_t *blocks, OpRecord *op) noexcept nogil:
    """Whether an operation has a watch node of its own for each key. Marks those in NODES."""
    cdef WatchNode *w = first_node(op)
    cdef uint32_t count, behind
    cdef uint64_t ordinals = 0
    for count in range(op.keys):
        if w.op != <uint32_t>(op - a.ops) or w.purgatory != op.purgatory:
            return False
        if w.ordinal >= op.keys or ordinals >> w.ordinal & 1 or w.kind >= KEY_KIND_COUNT:
            return False
        if not name_is_sound(a, blocks, w.purgatory, w.name_length, w.name_blob):
            return False
        ordinals |= <uint64_t>1 << w.ordinal
        if w.next_of_op == 0:
            return count + 1 == op.keys
        if w.next_of_op <= a.first_nodes:
            return False
        behind = w.next_of_op - 1 - a.first_nodes
        if behind >= a.regions[REGION_NODES].high_water or marks[behind]:
            return False
        marks[behind] = 1
        w = a.more_nodes + behind
    return False


cdef inline bint watermark_is_sound(Arena *a, uint8_t *blocks, WatermarkRecord *w) noexcept nogil:
    return w.setter < capacity(a, REGION_CLIENTS) and name_is_sound(a, blocks, w.purgatory, w.name_length, w.name_blob)


cdef inline bint event_is_sound(Arena *a, uint8_t *blocks, EventRecord *e, uint64_t sequence) noexcept nogil:
    if e.sequence != sequence or e.previous >= sequence or not EVENT_KIND_FIRE <= e.kind <= EVENT_KIND_CHECK:
        return False
    if e.client >= capacity(a, REGION_CLIENTS) or not purgatory_is_there(a, e.purgatory) or e.key_length == 0:
        return False
    if (e.key_length > EVENT_KEY_INLINE) != (e.key_blob != 0) or not blob_is_sound(a, blocks, e.key_blob):
        return False
    return blob_is_sound(a, blocks, e.value) and (e.key_blob == 0 or a.blocks[e.key_blob - 1].length == e.key_length)


cdef inline bint call_is_sound(Arena *a, uint32_t call, uint32_t id) noexcept nogil:
    """Whether `call` is 0 (none), or the index + 1 of a settled call that names this id."""
    if call == 0:
        return True
    if call > a.regions[REGION_OPS].high_water or a.ops[call - 1].state != OP_STATE_SETTLED:
        return False
    return a.ops[call - 1].flags & OP_FLAG_CALL and a.ops[call - 1].id_record == id + 1


cdef inline bint id_is_sound(Arena *a, IdRecord *id, uint32_t index) noexcept nogil:
    """Whether an id in use is sound. Operations are checked before, because an id may name one."""
    if id.state > ID_STATE_SETTLED or id.outcome > OUTCOME_FAILED or not purgatory_is_there(a, id.purgatory):
        return False
    if not call_is_sound(a, id.call, index) or not call_is_sound(a, id.running, index):
        return False
    if id.state == ID_STATE_SETTLED:
        return 1 <= id.op <= capacity(a, REGION_CLIENTS)
    if id.op == 0 or id.op > a.regions[REGION_OPS].high_water:
        return False
    return a.ops[id.op - 1].state == OP_STATE_PENDING and a.ops[id.op - 1].id_record == index + 1


cdef inline bint client_is_sound(Arena *a, ClientRecord *c) noexcept nogil:
    return (
        c.state <= CLIENT_STATE_TOMBSTONE and c.name_length <= NAME_SIZE_MAX and c.orphans <= ORPHANS_GROUP
        and group_is_there(a, c.group) and c.acknowledged < c.next_outcome and (c.calls == 0 or c.group != 0)
    )


cdef inline void look_for_damage(Arena *a, Damage *d) noexcept nogil:
    """Check what no other function checks: header, clients, groups, users, accounts, purgatories, slots of the ring."""
    cdef uint32_t i
    if not header_is_sound(a):
        damaged(d, REGION_COUNT, 0)
        return
    for i in range(capacity(a, REGION_CLIENTS)):
        if a.clients[i].state != CLIENT_STATE_FREE and not client_is_sound(a, a.clients + i):
            damaged(d, REGION_CLIENTS, i)
    for i in range(capacity(a, REGION_GROUPS)):
        if a.groups[i].state > 1 or a.groups[i].name_length > NAME_SIZE_MAX:
            damaged(d, REGION_GROUPS, i)
    for i in range(capacity(a, REGION_USERS)):
        if a.users[i].state > 1 or (i == 0 and a.users[i].state == 0):
            damaged(d, REGION_USERS, i)
    for i in range(capacity(a, REGION_CLIENTS)):
        if a.accounts[i].user >= capacity(a, REGION_USERS):
            damaged(d, REGION_ACCOUNTS, i)
    for i in range(capacity(a, REGION_PURGATORIES)):
        if a.purgatories[i].state > 1 or a.purgatories[i].name_length > NAME_SIZE_MAX:
            damaged(d, REGION_PURGATORIES, i)
    for i in range(capacity(a, REGION_SLOTS)):
        if a.slots[i].newest > a.header.newest:
            damaged(d, REGION_SLOTS, i)
