"""Ids, given by users. An id names one pending operation, and is remembered for a time after the operation settled.

Settled ids stand in a list, oldest first (header.ids_next). When no record is free, the oldest id is forgotten. Then
header.ids_floor_ns rises: up to that time an id may have been forgotten. So no id is forgotten silently.

An id is 16 bytes of its client's choice, so its chain is found by a keyed hash of them. Steps count as records.
"""

from libc.stdint cimport uint32_t, uint64_t
from timerd.purgatory.memory.arena cimport Arena
from timerd.purgatory.memory.list cimport id_at, is_empty, unlink
from timerd.purgatory.memory.slab cimport allocate, free_record
from timerd.purgatory.memory.transaction cimport td_commit, td_put
from timerd_shm.generated.records cimport *


cdef inline uint32_t find_id(Arena *a, uint32_t hash, uint32_t purgatory, uint64_t low, uint64_t high) noexcept nogil:
    """The id's record (index + 1), or 0; `hash` is the id_hash."""
    cdef uint32_t found = a.id_heads[hash & a.id_mask]
    while found:
        if (
            a.ids[found - 1].hash_low == low
            and a.ids[found - 1].hash_high == high
            and a.ids[found - 1].purgatory == purgatory
        ):
            return found
        found = a.ids[found - 1].chain
        a.turn.touched += 1
    return 0


cdef inline void chain_id(Arena *a, uint32_t found) noexcept nogil:
    cdef uint32_t *head = a.id_heads + (a.ids[found - 1].chain_hash & a.id_mask)
    a.ids[found - 1].chain = head[0]
    head[0] = found


cdef inline void free_id(Arena *a, uint32_t found) noexcept nogil:
    """Free a record. Its state word says FREE already, or nothing reached it."""
    cdef uint32_t *link = a.id_heads + (a.ids[found - 1].chain_hash & a.id_mask)
    while link[0] != found:
        link = &a.ids[link[0] - 1].chain
        a.turn.touched += 1
    link[0] = a.ids[found - 1].chain
    free_record(a, REGION_IDS, found - 1)


cdef inline void forget_id(Arena *a, IdRecord *record) noexcept nogil:
    """Forget a settled id, and raise the floor: for times below it, an unknown id may be a forgotten one."""
    cdef uint32_t found = <uint32_t>(record - a.ids) + 1
    td_put(&a.tx, &a.header.ids_floor_ns, record.settled_ns)
    td_put(&a.tx, IdRecord_word_state(record), IdRecord_with_state(IdRecord_word_state(record)[0], ID_STATE_FREE))
    td_commit(&a.tx)
    unlink(a, &record.next)
    free_id(a, found)
    a.daemon[DAEMON_IDS_FORGOTTEN] += 1


cdef inline void forget_old_ids(Arena *a) noexcept nogil:
    """Forget ids that settled longer ago than the window: 64 at most, in a turn that there is anyway."""
    cdef uint32_t count
    cdef IdRecord *record
    for count in range(64):
        if is_empty(a, &a.header.ids_next):
            return
        record = id_at(a, a.header.ids_next)
        if a.turn.now_ns - record.settled_ns < a.header.ids_kept_ns or a.turn.now_ns < record.settled_ns:
            return
        forget_id(a, record)
        a.turn.touched += 1


cdef inline uint32_t fill_id(Arena *a, uint32_t hash, uint32_t purgatory, uint64_t low, uint64_t high) noexcept nogil:
    """A new id record (index + 1), still FREE. The oldest settled id makes room. 0 when all name pending operations."""
    cdef uint32_t found = allocate(a, REGION_IDS)
    cdef IdRecord *record
    if found == 0:
        if is_empty(a, &a.header.ids_next):
            return 0
        forget_id(a, id_at(a, a.header.ids_next))
        found = allocate(a, REGION_IDS)
    record = a.ids + (found - 1)
    record.hash_low = low
    record.hash_high = high
    record.state = ID_STATE_FREE
    record.outcome = 0
    record.purgatory = purgatory
    record.op = 0
    record.settled_ns = 0
    record.chain_hash = hash
    chain_id(a, found)
    return found


cdef inline uint64_t settled_word(IdRecord *record, uint32_t outcome) noexcept nogil:
    """The state word of an id whose operation settles."""
    cdef uint64_t word = IdRecord_word_state(record)[0]
    word = IdRecord_with_state(word, ID_STATE_SETTLED)
    word = IdRecord_with_op(word, 0)
    return IdRecord_with_outcome(word, outcome)
