"""A REGISTER command: how it is read from its frame, and its deadline as a time of the daemon's clock.

Its fixed fields are those of RegisterCommand. A new field concerns the fast path as well: few_keys in
commands/prefetch.pxd must send here every registration that the fast path cannot apply.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy
from timerd.purgatory.memory.arena cimport Arena
from timerd.purgatory.memory.blob cimport blocks_for
from timerd.purgatory.memory.hash cimport key_hash
from timerd_shm.generated.records cimport *


ctypedef struct Key:
    # A key of the command, as read from the frame.
    const uint8_t *name
    uint64_t target
    uint64_t hash
    uint32_t length
    uint32_t kind


ctypedef struct Registration:
    # A REGISTER command, as read from the frame.
    RegisterCommand *command
    Key keys[KEYS_MAX]
    uint64_t id_low
    uint64_t id_high
    const uint8_t *payload
    uint64_t number
    uint64_t first_hash  # of the first key, if `hashed`
    uint32_t tag  # of its operation in the table of operations
    bint hashed
    uint32_t slot
    uint32_t blocks  # of the payload and of long names, at most
    uint32_t long_names  # bytes of the names that do not fit into a node
    uint32_t evicted  # outcomes that have made room for it


cdef inline bint has_wall_time(RegisterCommand *command) noexcept nogil:
    """Whether it is a call with a time by the wall clock: `mark_command` is that time, because it has no mark."""
    cdef uint32_t flags = REGISTER_FLAG_FOR_GROUP | REGISTER_FLAG_CALL | REGISTER_FLAG_NO_MARK
    return command.flags & flags == flags and command.mark_command != 0 and command.timeout_ns != NO_DEADLINE


cdef inline bint read_registration(Arena *a, Registration *r, const uint8_t *end) noexcept nogil:
    """Read the variable part; False if it does not fit the fixed part. Nothing beyond `end` is touched."""
    cdef RegisterCommand *command = r.command
    cdef const uint8_t *p = <const uint8_t *>command + sizeof(RegisterCommand)
    cdef Key *key
    cdef uint32_t i
    r.id_low = r.id_high = 0
    r.blocks = 0
    r.long_names = 0
    r.payload = NULL
    if command.flags & REGISTER_FLAG_HAS_ID:
        if end - p < 16:
            return False
        memcpy(&r.id_low, p, 8)
        memcpy(&r.id_high, p + 8, 8)
        p += 16
    for i in range(command.keys):  # bound: KEYS_MAX
        if i >= KEYS_MAX:
            # refusal_of() refuses too many keys with an error of its own, and needs no payload for that.
            return True
        key = &r.keys[i]
        if end - p < 2:
            return False
        key.length = p[0]
        key.kind = p[1]
        key.target = 0
        p += 2
        if key.kind == KEY_KIND_WATERMARK:
            if end - p < 8:
                return False
            memcpy(&key.target, p, 8)
            p += 8
        elif key.kind >= KEY_KIND_COUNT:
            return False
        if <uint64_t>(end - p) < key.length:
            return False
        key.name = p
        if i == 0 and r.hashed:
            key.hash = r.first_hash
        else:
            key.hash = key_hash(a.seed, command.purgatory, p, key.length)
        p += key.length
        if key.length > KEY_INLINE:
            r.blocks += blocks_for(key.length)
            r.long_names += key.length
    if has_wall_time(command) and r.keys[0].kind == KEY_KIND_EVENT:
        r.keys[0].target = command.mark_command
    if <uint64_t>(end - p) != command.payload_length:
        return False
    r.payload = p
    if command.payload_length <= PAYLOAD_SIZE_MAX:
        r.blocks += blocks_for(command.payload_length)
    return True


cdef inline uint64_t registered_of(Arena *a, uint64_t registered_ns) noexcept nogil:
    """The time of the caller's call. It may lie ahead of the turn's clock, which was read when the turn began.

    A time that lies too far ahead is not of this clock: then the turn's time counts.
    """
    if registered_ns == 0 or registered_ns > a.turn.now_ns + CALL_AHEAD_NS_MAX:
        return a.turn.now_ns
    return registered_ns


cdef inline uint64_t deadline_of(Arena *a, uint64_t registered_ns, uint64_t timeout_ns) noexcept nogil:
    """The absolute deadline of a checked timeout. It counts from the call."""
    cdef uint64_t called_ns = registered_of(a, registered_ns)
    if timeout_ns == NO_DEADLINE:
        return NO_DEADLINE
    if timeout_ns >= NO_DEADLINE - called_ns:
        return NO_DEADLINE - 1  # saturated, not wrapped round to "at once"
    return called_ns + timeout_ns
