"""Remembered ids: those of settled operations. Each client slot pays for the ids that it has registered.

Example: an arena has room for 65,536 ids. One client has settled 65,000 operations with ids, and 500 others have
settled a few each. The next id makes room by forgetting the oldest id of the client with 65,000. So the client that has
the most ids makes no other client forget one.

A slot's remembered ids stand in a list, oldest first (ClientRecord.ids_next). The next client of the slot takes over
the list. When an id is forgotten, header.ids_floor_ns rises to the time when its operation settled: an id that settled
up to the floor may have been forgotten. So a late registration is refused rather than accepted twice.

The operation of a call settles when the call becomes due. Until the call is over, its id is not forgotten because of
its age, however long the call waits or runs. When ids are short, ids of such calls are passed over: PASSED_OVER_MAX of
a slot at most.
"""

from libc.stdint cimport uint32_t, uint64_t
from timerd.purgatory.memory.arena cimport Arena
from timerd.purgatory.memory.list cimport append, id_at, unlink
from timerd.purgatory.memory.slab cimport allocate
from timerd.purgatory.memory.transaction cimport TD_DEFECT, td_commit, td_put
from timerd_shm.generated.records cimport *

from .ids cimport chain_id, free_id


cdef extern from *:
    """
    #define FORGOTTEN_A_TURN 64 /* ids that a turn forgets because of their age, at most */
    #define LISTS_A_TURN 8 /* lists whose oldest id a turn looks at */
    #define COUNTS_A_TURN 64 /* slots that a turn checks for a list */
    #define COUNTS_A_RECORD 16 /* counts in a cache line: looking at them costs a turn as much as a record */
    #define PASSED_OVER_MAX 16 /* ids of unfinished calls that a slot passes over when it makes room */
    """
    enum:
        FORGOTTEN_A_TURN
        LISTS_A_TURN
        COUNTS_A_TURN
        COUNTS_A_RECORD
        PASSED_OVER_MAX


cdef inline uint64_t settled_word(IdRecord *record, uint32_t outcome, uint32_t slot) noexcept nogil:
    """The state word of an id whose operation settles. The client slot that registered the operation pays for the id."""
    cdef uint64_t word = IdRecord_word_state(record)[0]
    word = IdRecord_with_state(word, ID_STATE_SETTLED)
    word = IdRecord_with_op(word, slot + 1)
    return IdRecord_with_outcome(word, outcome)


cdef inline uint32_t below_share(uint32_t most) noexcept nogil:
    """The largest number that is less than 7/8 of `most`: 6 for 7, 6 for 8, 13 for 16."""
    return most - most // 8 - 1 if most else 0


cdef inline void remember_id(Arena *a, IdRecord *record) noexcept nogil:
    """Enter an id in its slot's list. The commit that settled its operation comes first."""
    cdef uint32_t slot = record.op - 1
    append(a, &a.clients[slot].ids_next, &record.next)
    a.remembered.counts[slot] += 1
    a.remembered.total += 1
    if a.remembered.counts[slot] >= a.remembered.counts[a.remembered.fullest]:  # both may be the same slot
        # Perhaps not the fullest: a third slot may have as many ids as the former fullest one had when it was found.
        a.remembered.fullest = slot
        a.remembered.fullest_until = max(a.remembered.fullest_until, below_share(a.remembered.counts[slot]))


cdef inline void leave_remembered(Arena *a, IdRecord *record, uint32_t slot) noexcept nogil:
    """Take an id out of this slot's list. The commit that changed the id's record comes first."""
    unlink(a, &record.next)
    a.remembered.counts[slot] -= 1
    a.remembered.total -= 1


cdef inline bint has_call(IdRecord *record) noexcept nogil:
    """Whether a call of a settled id is due, or runs."""
    return (record.call != 0 or record.running != 0) and not TD_DEFECT(DEFECT_FORGETS_CALLS)


cdef inline IdRecord *to_make_room(Arena *a, uint32_t slot) noexcept nogil:
    """The oldest id of a slot that has no unfinished call. If each of the first few has one, the slot's oldest id."""
    cdef uint32_t link = a.clients[slot].ids_next, i
    for i in range(min(a.remembered.counts[slot], PASSED_OVER_MAX)):
        if not has_call(id_at(a, link)):
            return id_at(a, link)
        link = id_at(a, link).next
    return id_at(a, a.clients[slot].ids_next)


cdef inline void remember_longer(Arena *a, IdRecord *record, uint32_t slot) noexcept nogil:
    """Let the oldest id of a slot become its newest, as if it had settled now, because its call is not over."""
    td_put(&a.tx, &record.settled_ns, a.turn.now_ns)
    td_commit(&a.tx)
    leave_remembered(a, record, slot)
    remember_id(a, record)


cdef inline void forget_id(Arena *a, IdRecord *record, uint32_t slot) noexcept nogil:
    """Forget an id of this slot's list. An unknown id that settled up to `ids_floor_ns` may be a forgotten one."""
    if record.settled_ns > a.header.ids_floor_ns:
        td_put(&a.tx, &a.header.ids_floor_ns, record.settled_ns)
    td_put(&a.tx, IdRecord_word_state(record), IdRecord_with_state(IdRecord_word_state(record)[0], ID_STATE_FREE))
    td_commit(&a.tx)
    leave_remembered(a, record, slot)
    free_id(a, <uint32_t>(record - a.ids) + 1)
    a.daemon[DAEMON_IDS_FORGOTTEN] += 1


cdef inline uint32_t fullest_slot(Arena *a) noexcept nogil:
    """A slot with at least 7/8 as many remembered ids as the fullest. A search takes long, so its result is kept."""
    cdef uint32_t *counts = a.remembered.counts
    cdef uint32_t slot, most = a.remembered.fullest
    if counts[most] <= a.remembered.fullest_until or TD_DEFECT(DEFECT_FORGETS_THE_LEAST):
        for slot in range(a.remembered.slots):  # bound: charged after the loop
            if counts[slot] and (counts[slot] > counts[most]) != TD_DEFECT(DEFECT_FORGETS_THE_LEAST):
                most = slot
        a.remembered.fullest = most
        a.remembered.fullest_until = below_share(counts[most])
        a.turn.touched += a.remembered.slots // COUNTS_A_RECORD
    return a.remembered.fullest


cdef inline void forget_old_ids(Arena *a) noexcept nogil:
    """Forget some of the ids that settled too long ago. No turn is made for this alone.

    Looking costs every turn the same, and is not charged: otherwise a turn with a small bound could do nothing else.
    """
    cdef uint32_t looked, forgotten = 0, lists = 0, slot
    cdef IdRecord *record
    if a.remembered.total == 0:
        return
    for looked in range(COUNTS_A_TURN):
        slot = a.remembered.next_slot
        if a.remembered.counts[slot]:
            if lists == LISTS_A_TURN:
                return
            lists += 1
        while a.remembered.counts[slot]:
            record = id_at(a, a.clients[slot].ids_next)
            if a.turn.now_ns < record.settled_ns or a.turn.now_ns - record.settled_ns < a.header.ids_kept_ns:
                break
            if forgotten == FORGOTTEN_A_TURN:
                return
            if has_call(record):
                remember_longer(a, record, slot)
            else:
                forget_id(a, record, slot)
            forgotten += 1
            a.turn.touched += 1
        a.remembered.next_slot = slot + 1 if slot + 1 < a.remembered.slots else 0


cdef inline uint32_t fill_id(Arena *a, uint32_t hash, uint32_t purgatory, uint64_t low, uint64_t high) noexcept nogil:
    """A new id record (index + 1), still FREE; 0 when all ids name pending operations.

    If no record is free, an id of the slot with the most remembered ids is forgotten.
    """
    cdef uint32_t found = allocate(a, REGION_IDS), slot
    cdef IdRecord *record
    if found == 0:
        if a.remembered.total == 0:
            return 0
        slot = fullest_slot(a)
        forget_id(a, to_make_room(a, slot), slot)
        found = allocate(a, REGION_IDS)
    record = a.ids + (found - 1)
    record.hash_low = low
    record.hash_high = high
    record.state = ID_STATE_FREE
    record.outcome = 0
    record.purgatory = purgatory
    record.op = 0
    record.settled_ns = 0
    record.call = record.running = 0
    record.chain_hash = hash
    chain_id(a, found)
    return found
