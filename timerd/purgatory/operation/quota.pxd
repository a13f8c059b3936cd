"""Quotas: whether a registration may be applied, and if not, which limit it met."""

from libc.stdint cimport uint32_t, uint64_t
from timerd.purgatory.memory.arena cimport Arena, capacity, unused
from timerd.purgatory.memory.blob cimport blob_length, blocks_for
from timerd.purgatory.memory.bytes cimport same_short
from timerd.purgatory.memory.nodes cimport names_of
from timerd.purgatory.members.answers cimport met
from timerd.purgatory.members.groups cimport find_call
from timerd_shm.generated.records cimport *

from .last_quarter cimport takes_last_quarter, takes_last_quarter_of_rest
from .letters cimport Shortage, becomes_letter, find_letter
from .register_command cimport Registration

cdef extern from *:
    """
    #define BLOCKS_MORE 8u /* blocks by which the payload may grow from a call to the one that follows: an error's text */
    """
    const uint32_t BLOCKS_MORE


cdef inline bint needs_group(RegisterCommand *command) noexcept nogil:
    if command.flags & REGISTER_FLAG_FOR_GROUP:
        return True
    return command.flags & REGISTER_FLAG_ORPHANS_GIVEN and command.orphans == ORPHANS_GROUP


cdef inline bint outlives_client(Arena *a, Registration *r) noexcept nogil:
    """Whether the operation may outlive its client. One that follows a call takes the call's place."""
    cdef uint32_t orphans = a.clients[r.slot].orphans
    if r.command.flags & REGISTER_FLAG_FOR_GROUP:
        return r.command.flags & REGISTER_FLAG_FOLLOWS == 0
    if r.command.flags & REGISTER_FLAG_ORPHANS_GIVEN:
        orphans = r.command.orphans
    return orphans != ORPHANS_CANCEL


cdef inline bint needs_more(Arena *a, Registration *r, OpRecord *followed) noexcept nogil:
    """Whether an operation takes an id that the followed call does not have, or many more blocks than that call."""
    if r.command.flags & REGISTER_FLAG_HAS_ID and not followed.id_record:
        return True
    return r.blocks > blocks_for(blob_length(a, followed.payload)) + BLOCKS_MORE


cdef inline uint32_t group_of(Arena *a, Registration *r) noexcept nogil:
    """The group (index + 1) that pays for the operation; 0: the client does."""
    return a.clients[r.slot].group if r.command.flags & REGISTER_FLAG_FOR_GROUP else 0


cdef inline bint has_too_many_ids(Arena *a, Registration *r, OpRecord *replaced, OpRecord *followed) noexcept nogil:
    """Whether the client (or group) that registers has as many pending operations with ids as it may.

    A registration that takes over an id of the same client or group (`replaced`) adds no id. An operation that follows
    a call with an id is never refused here: a refusal would keep the call, and its id, for ever.
    """
    cdef ClientRecord *c = a.clients + r.slot
    cdef uint32_t group = group_of(a, r)
    if followed != NULL and followed.id_record:
        return False
    if replaced != NULL and replaced.group == group and (
        group or (replaced.client == r.slot and replaced.client_generation == c.generation)
    ):
        return False
    return (a.groups[group - 1].ids if group else c.ids) >= a.header.quota_ids


cdef inline uint32_t refusal_of_quota(Arena *a, Registration *r, uint64_t *limit) noexcept nogil:
    """The code if the client, or the group, holds as much as it may. `limit` becomes the limit that was met."""
    cdef ClientRecord *c = a.clients + r.slot
    cdef GroupRecord *g
    cdef uint64_t pending = c.pending, unacknowledged = c.unacknowledged, bytes_held = c.bytes_held
    cdef uint64_t nodes = c.nodes, further = r.command.keys - 1
    if r.command.flags & REGISTER_FLAG_FOR_GROUP:
        g = a.groups + (c.group - 1)
        pending = g.pending
        unacknowledged = g.unacknowledged
        bytes_held = g.bytes_held
        nodes = g.nodes
        if r.command.flags & REGISTER_FLAG_FOLLOWS:
            # The operation follows a call that is freed with it. A refusal would keep the call and its room for ever.
            pending = unacknowledged = nodes = 0
            bytes_held -= freed_with(a, r)
    if pending + unacknowledged >= a.header.quota_operations:
        if unused(a, REGION_OPS) == 0:
            # Both limits are met; a higher quota would not help.
            limit[0] = met(MET_OPERATIONS, capacity(a, REGION_OPS))
            return ERROR_CODE_ARENA_FULL
        limit[0] = met(MET_OPERATIONS, a.header.quota_operations)
        return ERROR_CODE_QUOTA_EXCEEDED
    if unacknowledged >= a.header.quota_outcomes:
        limit[0] = met(MET_OUTCOMES, a.header.quota_outcomes)
        return ERROR_CODE_QUOTA_EXCEEDED
    if bytes_held + r.command.payload_length + r.long_names > a.header.quota_bytes:
        limit[0] = met(MET_BYTES, a.header.quota_bytes)
        return ERROR_CODE_QUOTA_EXCEEDED
    if nodes + further > a.header.quota_nodes:
        if unused(a, REGION_NODES) < further:
            limit[0] = met(MET_NODES, capacity(a, REGION_NODES))
            return ERROR_CODE_ARENA_FULL
        limit[0] = met(MET_NODES, a.header.quota_nodes)
        return ERROR_CODE_QUOTA_EXCEEDED
    return ERROR_CODE_NONE


cdef inline uint64_t freed_with(Arena *a, Registration *r) noexcept nogil:
    """The bytes of the call, or the dead letter, that is freed with this registration."""
    cdef OpRecord *followed = find_followed(a, r) if r.command.flags & REGISTER_FLAG_FOLLOWS else NULL
    if followed == NULL or becomes_letter(followed):
        return 0
    return blob_length(a, followed.payload) + blob_length(a, followed.value) + names_of(a, followed)


cdef inline uint64_t beyond(uint64_t held, uint64_t most) noexcept nogil:
    return held - most if held > most else 0


cdef inline Shortage shortage_of(Arena *a, Registration *r, GroupRecord *g) noexcept nogil:
    """How far a registration would take its group beyond the quotas. All zero: dropping dead letters does not help."""
    cdef Shortage lacks
    lacks.operations = lacks.bytes = lacks.blocks = 0
    if not r.command.flags & REGISTER_FLAG_FOLLOWS:
        if g.nodes + r.command.keys - 1 > a.header.quota_nodes:
            return lacks  # dead letters have no further keys
        lacks.operations = max(
            beyond(g.pending + g.unacknowledged + 1, a.header.quota_operations),
            beyond(g.unacknowledged + 1, a.header.quota_outcomes),
        )
    lacks.bytes = beyond(g.bytes_held - freed_with(a, r) + r.command.payload_length + r.long_names, a.header.quota_bytes)
    return lacks


cdef inline bint is_call(RegisterCommand *command) noexcept nogil:
    return command.flags & REGISTER_FLAG_FOR_GROUP and command.flags & REGISTER_FLAG_CALL


cdef inline OpRecord *find_followed(Arena *a, Registration *r) noexcept nogil:
    """The call, or the dead letter, that ends with this registration; NULL if it is gone."""
    if r.command.flags & REGISTER_FLAG_OF_LETTER:
        return find_letter(a, r.slot, r.command.mark_sequence)
    return find_call(a, r.slot, r.command.mark_sequence)


cdef inline uint32_t refusal_of(Arena *a, Registration *r, uint64_t *limit) noexcept nogil:
    """The code if the command is wrong or meets a quota; or ERROR_CODE_NONE. `limit` becomes the limit that was met."""
    cdef RegisterCommand *command = r.command
    cdef OpRecord *followed = NULL
    cdef bint observes
    cdef uint32_t i, k
    limit[0] = 0
    if command.keys == 0:
        return ERROR_CODE_INVALID_KEY
    if command.keys > KEYS_MAX:
        limit[0] = KEYS_MAX
        return ERROR_CODE_TOO_MANY_KEYS
    if command.payload_length > PAYLOAD_SIZE_MAX:
        limit[0] = PAYLOAD_SIZE_MAX
        return ERROR_CODE_PAYLOAD_TOO_LARGE
    if command.timeout_ns != NO_DEADLINE and command.timeout_ns > TIMEOUT_NS_MAX:
        limit[0] = TIMEOUT_NS_MAX
        return ERROR_CODE_TIMEOUT_OUT_OF_RANGE
    if command.condition >= CONDITION_COUNT or command.orphans >= ORPHANS_COUNT:
        return ERROR_CODE_INVALID_CONDITION
    if needs_group(command) and a.clients[r.slot].group == 0:
        return ERROR_CODE_NOT_A_MEMBER
    if command.flags & REGISTER_FLAG_FOLLOWS:
        if not command.flags & REGISTER_FLAG_NO_MARK:
            return ERROR_CODE_INVALID_VALUE
        followed = find_followed(a, r)
        if followed == NULL:
            return ERROR_CODE_UNKNOWN_OPERATION
        if command.keys > followed.keys:  # its group's quota of nodes is not checked
            limit[0] = followed.keys
            return ERROR_CODE_TOO_MANY_KEYS
    if command.flags & REGISTER_FLAG_REPLACE_CHANGED:
        limit[0] = command.payload_length if command.payload_length < BLOCK_DATA else BLOCK_DATA
        if command.total > limit[0]:
            return ERROR_CODE_INVALID_VALUE
    observes = CONDITIONS_OBSERVE >> command.condition & 1
    if CONDITIONS_TAKE_NEEDED >> command.condition & 1 and (command.needed == 0 or command.needed > command.keys):
        limit[0] = command.keys
        return ERROR_CODE_INVALID_CONDITION
    if command.condition == CONDITION_TOTAL and command.total == 0:
        return ERROR_CODE_INVALID_CONDITION
    if is_call(command) and (
        command.keys != 1 or command.condition != CONDITION_AT_LEAST or r.keys[0].kind != KEY_KIND_EVENT
    ):
        return ERROR_CODE_INVALID_CONDITION  # a call has one name
    if command.condition == CONDITION_OWNER and command.flags & REGISTER_FLAG_FOR_GROUP:
        return ERROR_CODE_INVALID_CONDITION  # it would have no owner
    for i in range(command.keys):  # bound: KEYS_MAX
        if r.keys[i].length == 0:
            return ERROR_CODE_INVALID_KEY
        if r.keys[i].kind == KEY_KIND_WATERMARK and not CONDITIONS_TAKE_WATERMARKS >> command.condition & 1:
            return ERROR_CODE_INVALID_CONDITION
        if (r.keys[i].kind == KEY_KIND_OBSERVE) != observes:
            return ERROR_CODE_INVALID_CONDITION
        for k in range(i):  # bound: KEYS_MAX
            if (
                r.keys[k].hash == r.keys[i].hash
                and r.keys[k].length == r.keys[i].length
                and same_short(r.keys[k].name, r.keys[i].name, r.keys[i].length)
            ):
                return ERROR_CODE_INVALID_KEY
    if command.flags & REGISTER_FLAG_MARK_OF_OTHER_ARENA:
        limit[0] = a.header.tail
        return ERROR_CODE_MARK_TOO_OLD
    if outlives_client(a, r) and takes_last_quarter(
        a, r.slot, command.keys - 1, r.blocks, command.flags & REGISTER_FLAG_HAS_ID != 0, limit
    ):
        return ERROR_CODE_QUOTA_EXCEEDED
    if followed != NULL and needs_more(a, r, followed) and takes_last_quarter_of_rest(
        a, r.slot, 0, r.blocks, command.flags & REGISTER_FLAG_HAS_ID != 0, limit
    ):
        return ERROR_CODE_QUOTA_EXCEEDED
    return refusal_of_quota(a, r, limit)
