"""Prefetching: bring into the cache the memory that the next commands of a frame, or operations of a list, will need.

With a million operations every step of every command is a cache miss (table, record, neighbours in the bucket, watch
node, key). One after the other, the misses of a command take close to a microsecond. So a group of commands is first
walked through in stages. Each stage goes one step further for all commands of the group. In such a short loop the
misses of many commands overlap.

All of this is only hints: a record may change before its command is applied. But every index was read from a record,
so nothing beyond the arena is read.

The first stage has work between its misses, so it prefetches. The other stages have hardly any other work. There the
processor would drop prefetches when too many are under way. It drops no loads, so these stages load.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from timerd.purgatory.memory.arena cimport Arena
from timerd.purgatory.memory.builtins cimport CACHE_LINE, TOUCH, __builtin_prefetch
from timerd.purgatory.memory.hash cimport handle_tag, key_hash
from timerd.purgatory.memory.list cimport at
from timerd.purgatory.memory.nodes cimport first_node, next_node, node_of
from timerd.purgatory.index.operation_table cimport next_handle
from timerd.purgatory.events.ring cimport event_at
from timerd_shm.generated.records cimport *

cdef extern from *:
    """
    _Static_assert(offsetof(RegisterCommand, length) == 4 && offsetof(KeyCommand, length) == 4
        && offsetof(OperationCommand, length) == 4, "length_of() reads it of any command");
    _Static_assert(sizeof(OpRecord) == 3 * CACHE_LINE, "touch_op() asks for every line");
    _Static_assert(sizeof(WatchNode) == CACHE_LINE, "a node is one line");
    #define HANDLE_PROBES 4 /* steps in the handle table: enough for nearly every handle */
    #define PREFETCH_GROUP 32  /* commands prefetched together: their lines stay in the first-level cache */
    #define FEW_KEYS 4 /* the most keys of a registration on the fast path (few_keys) */
    """
    enum:
        PREFETCH_GROUP
        HANDLE_PROBES
        FEW_KEYS


ctypedef struct FewKey:
    # A key of a registration on the fast path (few_keys).
    const uint8_t *name
    uint64_t hash
    uint32_t length


ctypedef struct Prefetched:
    # A command that is prefetched. When it is applied, its hash and its tag need not be computed again.
    const uint8_t *at  # its position in the frame
    uint32_t length  # its bytes, all of them within the frame
    uint32_t kind  # CommandKind; 0 = nothing is prefetched for it
    uint32_t key  # a node (index + 1) of its key's chain, once it is known
    uint32_t op  # its operation (index + 1), once it is known
    WatchNode *node  # the node of a further key of its operation, to be looked at next; NULL = none is left
    uint32_t keys  # the number of keys of a registration on the fast path (few_keys); 0 = any other command
    FewKey few[FEW_KEYS]
    uint64_t hash  # of its key, or its first key
    uint64_t position  # head in the key table, or position in the handle table
    uint32_t tag  # of the handle


cdef inline uint64_t first_word(const uint8_t *p) noexcept nogil:
    """The kind, purgatory, flags and length of a command."""
    return (<uint64_t *>p)[0]


cdef inline uint32_t length_of(const uint8_t *p) noexcept nogil:
    """The length in bytes that a command states."""
    return (<uint32_t *>p)[1]


cdef inline void touch_op(Arena *a, uint32_t op) noexcept nogil:
    """Touch the lines of an operation (index + 1), with its first node."""
    cdef char *record = <char *>(a.ops + (op - 1))
    TOUCH(record)
    TOUCH(record + CACHE_LINE)
    TOUCH(record + 2 * CACHE_LINE)


cdef inline void touch_surroundings(Arena *a, uint32_t op) noexcept nogil:
    """Touch the other memory of a settlement: the neighbours in the bucket, and the head of the first key's chain."""
    cdef OpRecord *record = a.ops + (op - 1)
    TOUCH(at(a, record.next))
    TOUCH(at(a, record.prev))
    TOUCH(a.key_heads + (first_node(record).hash & a.key_mask))


cdef inline void prefetch_hash(Arena *a, Prefetched *x, const uint8_t *name, uint32_t length) noexcept nogil:
    """Prefetch the entries of a command's key in the tables."""
    x.hash = key_hash(a.seed, x.at[1], name, length)
    x.position = x.hash & a.key_mask
    __builtin_prefetch(a.key_heads + x.position)
    __builtin_prefetch(a.slots + (x.hash & a.slot_mask))


cdef inline uint32_t few_keys(Arena *a, Prefetched *x, const uint8_t *p) noexcept nogil:
    """The number of keys of a registration, if it may take the fast path; else 0. `p`: the end of its first key.

    It may take the fast path if all of this holds: it has few keys, all of them short and different event keys; its
    condition is at_least; its payload has one block at most; and it has no id and no other option.
    """
    cdef RegisterCommand *command = <RegisterCommand *>x.at
    cdef const uint8_t *end = x.at + x.length
    cdef uint32_t i, k
    cdef FewKey *key
    if (
        command.condition != CONDITION_AT_LEAST or command.orphans or command.keys > FEW_KEYS
        or not 1 <= command.needed <= command.keys or command.payload_length > BLOCK_DATA
        or command.flags & ~(REGISTER_FLAG_NO_MARK | REGISTER_FLAG_MARK_BY_SEQUENCE)
    ):
        return 0
    for i in range(1, command.keys):  # bound: FEW_KEYS
        key = x.few + i
        if end - p < 2 or p[1] != KEY_KIND_EVENT or not 1 <= p[0] <= KEY_INLINE or end - p - 2 < p[0]:
            return 0
        key.length = p[0]
        key.name = p + 2
        key.hash = key_hash(a.seed, x.at[1], key.name, key.length)
        p = key.name + key.length
        for k in range(i):  # bound: FEW_KEYS
            if x.few[k].hash == key.hash:
                return 0
        __builtin_prefetch(a.key_heads + (key.hash & a.key_mask))
        __builtin_prefetch(a.slots + (key.hash & a.slot_mask))
    return command.keys if end - p == <int64_t>command.payload_length else 0


cdef inline void prefetch_registration(Arena *a, Prefetched *x, uint32_t tag) noexcept nogil:
    """Stage 1 of a REGISTER command, whose operation gets that tag. The command's content may be malformed."""
    cdef RegisterCommand *command = <RegisterCommand *>x.at
    cdef const uint8_t *name = x.at + sizeof(RegisterCommand)
    cdef const uint8_t *end = x.at + x.length
    if command.flags & REGISTER_FLAG_HAS_ID:
        name += 16
    if end - name < 2 or name[1] != KEY_KIND_EVENT or end - name - 2 < name[0]:
        return
    x.kind = COMMAND_KIND_REGISTER
    x.tag = tag
    __builtin_prefetch(a.handles + (tag & a.handle_mask))
    prefetch_hash(a, x, name + 2, name[0])
    if 1 <= name[0] <= KEY_INLINE:
        x.few[0].name = name + 2
        x.few[0].length = name[0]
        x.few[0].hash = x.hash
        x.keys = few_keys(a, x, name + 2 + name[0])


cdef inline void prefetch_event(Arena *a, Prefetched *x) noexcept nogil:
    """Stage 1 of FIRE and other events."""
    cdef KeyCommand *command = <KeyCommand *>x.at
    if x.length < sizeof(KeyCommand) or x.length - sizeof(KeyCommand) < command.key_length:
        return
    x.kind = command.kind
    prefetch_hash(a, x, x.at + sizeof(KeyCommand), command.key_length)


cdef inline void prefetch_operation(Arena *a, Prefetched *x, uint32_t slot) noexcept nogil:
    """Stage 1 of CANCEL and RESCHEDULE."""
    cdef OperationCommand *command = <OperationCommand *>x.at
    if x.length < sizeof(OperationCommand):
        return
    x.kind = command.kind
    x.tag = handle_tag(a.seed, slot, command.operation)
    x.position = x.tag & a.handle_mask
    __builtin_prefetch(a.handles + x.position)


cdef inline void touch_key(Arena *a, Prefetched *x) noexcept nogil:
    """Touch the first node of a chain. For an event, touch the whole operation if the node lies in it."""
    if x.kind == COMMAND_KIND_REGISTER or x.key > a.first_nodes:
        TOUCH(node_of(a, x.key - 1))
    else:
        touch_op(a, x.key)


cdef inline void touch_chain(Arena *a, uint64_t hash) noexcept nogil:
    """Touch the first node of a key's chain."""
    cdef uint32_t found = a.key_heads[hash & a.key_mask]
    if found:
        TOUCH(node_of(a, found - 1))


cdef inline void follow_watcher(Arena *a, Prefetched *x) noexcept nogil:
    """Go on to the first watcher of a fired key."""
    x.op = node_of(a, x.key - 1).op + 1
    if x.op == x.key:
        touch_surroundings(a, x.op)
    else:
        touch_op(a, x.op)


cdef inline void find_record(Arena *a, Prefetched *x) noexcept nogil:
    """Stage 2: the record that the command's table entry names."""
    cdef uint32_t probe
    if x.kind == COMMAND_KIND_CANCEL or x.kind == COMMAND_KIND_RESCHEDULE:
        for probe in range(HANDLE_PROBES):
            if a.handles[x.position].tag == x.tag or a.handles[x.position].op == 0:
                break
            x.position = next_handle(a, x.position)
        x.op = a.handles[x.position].op
        if x.op:
            touch_op(a, x.op)
    elif x.kind:
        x.key = a.key_heads[x.position]
        if x.key:
            touch_key(a, x)
        for probe in range(1, x.keys):  # bound: FEW_KEYS
            touch_chain(a, x.few[probe].hash)
        if x.kind == COMMAND_KIND_REGISTER and a.slots[x.hash & a.slot_mask].newest > (<RegisterCommand *>x.at).mark_sequence:
            __builtin_prefetch(event_at(a, a.slots[x.hash & a.slot_mask].newest))


cdef inline void find_next(Arena *a, Prefetched *x) noexcept nogil:
    """Stage 3: one step further on the way to the command's operation, or the surroundings of the operation."""
    if x.op:
        touch_surroundings(a, x.op)
        if x.kind == COMMAND_KIND_CANCEL:
            x.node = second_node(a, x.op)
    elif x.key:
        if node_of(a, x.key - 1).hash != x.hash and node_of(a, x.key - 1).chain:
            x.key = node_of(a, x.key - 1).chain
            touch_key(a, x)
        elif x.kind == COMMAND_KIND_FIRE:
            follow_watcher(a, x)


cdef inline WatchNode *second_node(Arena *a, uint32_t op) noexcept nogil:
    """The node of the second key of an operation (index + 1), prefetched; NULL = it has none."""
    cdef WatchNode *node = next_node(a, first_node(a.ops + (op - 1)))
    if node != NULL:
        __builtin_prefetch(node)
    return node


cdef inline WatchNode *touch_node(Arena *a, WatchNode *node) noexcept nogil:
    """Touch the head of the chain of a node's key. Returns the node of the next key, prefetched, or NULL."""
    cdef WatchNode *next = next_node(a, node)
    TOUCH(a.key_heads + (node.hash & a.key_mask))
    if next != NULL:
        __builtin_prefetch(next)
    return next


cdef inline void find_last(Arena *a, Prefetched *x) noexcept nogil:
    """Stage 4, for FIRE: what stage 3 has not reached of the key's first watcher, and its operation's second node."""
    if x.kind == COMMAND_KIND_FIRE and x.key:
        if x.op == 0:
            follow_watcher(a, x)
        elif x.op != x.key:
            touch_surroundings(a, x.op)
        x.node = second_node(a, x.op)


cdef inline void prefetch_further(Arena *a, Prefetched *ahead, uint32_t count) noexcept nogil:
    """The stages after the first. In each of them, all commands go one step further."""
    cdef uint32_t i, kinds = 0, key
    cdef bint more
    for i in range(count):  # bound: PREFETCH_GROUP
        kinds |= 1 << ahead[i].kind
        find_record(a, ahead + i)
    for i in range(count):  # bound: PREFETCH_GROUP
        find_next(a, ahead + i)
    if kinds & 1 << COMMAND_KIND_FIRE:
        for i in range(count):  # bound: PREFETCH_GROUP
            find_last(a, ahead + i)
    for key in range(1, FEW_KEYS):
        more = False
        for i in range(count):  # bound: PREFETCH_GROUP
            if ahead[i].node != NULL:
                ahead[i].node = touch_node(a, ahead[i].node)
                more = True
        if not more:
            break
