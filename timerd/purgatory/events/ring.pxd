"""The event ring. With it, an operation behaves as if it had been registered at its mark (DESIGN.md, rule 4).

An event stands at its sequence modulo the ring's size while tail <= sequence <= newest. Events are chained by hash
slot, newest first. A slot keeps its newest sequence for ever. So a mark does not become too old by events in other
slots than those of the operation's own keys. It may also become too old because purgatories were reclaimed
(index/purgatories.pxd), or because the hashes were made anew (start/rehash.pxd). The ring is bounded in events, and in
bytes of values and long keys: both bounds move the tail. A lack of blocks moves it, too (make_room).
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport qsort
from timerd.purgatory.memory.arena cimport Arena, capacity, effective_ns, unused
from timerd.purgatory.memory.blob cimport blob_equals, blob_length, drop_blob, share_blob
from timerd.purgatory.memory.builtins cimport __builtin_prefetch
from timerd.purgatory.memory.bytes cimport copy_short, same_short
from timerd.purgatory.memory.transaction cimport TD_ORDERED_STORE, td_put
from timerd.purgatory.journal.rows cimport journal_event
from timerd_shm.generated.records cimport *

from .state cimport Found


cdef extern from *:
    """
    #define REPLAY_TOO_OLD 0xFFFFFFFFu
    #define EVENTS_PREFETCHED 16 /* how many events early the record of an event is prefetched */
    """
    enum:
        EVENTS_PREFETCHED
    const uint32_t REPLAY_TOO_OLD


cdef inline EventRecord *event_at(Arena *a, uint64_t sequence) noexcept nogil:
    return a.events + (sequence & a.event_mask)


cdef inline bint ring_is_empty(Arena *a) noexcept nogil:
    return a.header.tail > a.header.newest


cdef inline void evict_event(Arena *a) noexcept nogil:
    """Move the tail over the oldest event. The tail is one word, so it may move while a transaction is being staged."""
    cdef EventRecord *e = event_at(a, a.header.tail)
    TD_ORDERED_STORE(a.base, &a.header.tail, a.header.tail + 1)
    a.header.ring_bytes -= blob_length(a, e.value) + blob_length(a, e.key_blob)
    drop_blob(a, e.value)
    drop_blob(a, e.key_blob)
    a.daemon[DAEMON_EVENTS_EVICTED] += 1


cdef inline bint make_room(Arena *a, uint32_t blocks) noexcept nogil:
    """Make `blocks` blocks free, by removing the ring's oldest events. Returns False if that is not enough.

    The newest event stays, because it may be in delivery.
    """
    while unused(a, REGION_BLOCKS) < blocks:
        if a.header.tail >= a.header.newest or a.header.ring_bytes == 0:
            return False
        evict_event(a)
        a.turn.touched += 1
    return True


cdef inline uint32_t without_room(Arena *a, uint32_t blocks) noexcept nogil:
    """The code for a command for which make_room() found too little room. It says whether the command can ever fit."""
    return ERROR_CODE_PAYLOAD_TOO_LARGE if blocks > capacity(a, REGION_BLOCKS) else ERROR_CODE_ARENA_FULL


cdef inline uint32_t value_of_newest(Arena *a, const uint8_t *value, uint32_t length, uint32_t staged) noexcept nogil:
    """The blob of the newest event's value, with one more reference; 0 if that event has another value, or none.

    The newest event may be one of the `staged` events of this transaction. So a value that is fired on many keys stands
    once in the arena, and once in a report. Only values of one block are compared.
    """
    cdef EventRecord *e = event_at(a, a.header.newest + staged)
    if not 0 < length <= BLOCK_DATA or (staged == 0 and ring_is_empty(a)):
        return 0
    if blob_length(a, e.value) != length or not same_short(a.blocks[e.value - 1].data, value, length):
        return 0
    return share_blob(a, e.value)


cdef inline EventRecord *fill_event(
    Arena *a, uint32_t kind, uint32_t purgatory, uint64_t hash, const uint8_t *key, uint32_t key_length,
    uint64_t amount, uint32_t limit, uint32_t flags, uint32_t client, uint64_t command, uint32_t value, uint32_t key_blob,
    uint32_t staged,
) noexcept nogil:
    """Write the next event, after the `staged` events of this transaction. The event is not in the ring yet."""
    cdef EventRecord *e
    cdef EventRecord *overwritten
    cdef uint64_t held = blob_length(a, value) + blob_length(a, key_blob), sequence = a.header.newest + staged + 1
    # The event overwrites the event one ring's length before it, which has to leave the ring first.
    while sequence - a.header.tail >= a.event_mask + 1:  # bound: one event
        evict_event(a)
    while not ring_is_empty(a) and a.header.ring_bytes + held > a.header.ring_bytes_max:
        a.turn.touched += 1
        evict_event(a)
    e = event_at(a, sequence)
    __builtin_prefetch(event_at(a, sequence + EVENTS_PREFETCHED))
    __builtin_prefetch(<char *>event_at(a, sequence + EVENTS_PREFETCHED) + 64)
    overwritten = event_at(a, sequence + EVENTS_PREFETCHED // 2)
    if overwritten.value:
        __builtin_prefetch(a.blocks + (overwritten.value - 1))
    e.sequence = sequence
    e.effective_ns = effective_ns(a)
    e.key_hash = hash
    e.previous = a.slots[hash & a.slot_mask].newest
    e.amount = amount
    e.command = command
    e.client = client
    e.kind = kind
    e.purgatory = purgatory
    e.client_generation = a.clients[client].generation
    e.left = limit
    e.completed = 0
    e.flags = flags
    e.key_length = key_length
    e.reserved = 0
    e.reserved_word = 0
    e.value = value
    e.key_blob = key_blob
    if key_blob == 0:
        copy_short(e.key, key, key_length)
    return e


cdef inline void stage_slot(Arena *a, EventRecord *e, OpRecord *of) noexcept nogil:
    """Stage the one word that every event needs, also in a batch, and the journal's row."""
    td_put(&a.tx, &a.slots[e.key_hash & a.slot_mask].newest, e.sequence)
    journal_event(a, e, of)


cdef inline void stage_event(Arena *a, EventRecord *e, OpRecord *of) noexcept nogil:
    """Stage the words by which a filled event enters the ring. `of`: the operation from which it is requeued, or NULL."""
    stage_slot(a, e, of)
    td_put(&a.tx, &a.header.newest, e.sequence)


cdef inline bint event_is_on(
    Arena *a, EventRecord *e, uint64_t hash, uint32_t purgatory, const uint8_t *key, uint32_t length
) noexcept nogil:
    if e.key_hash != hash or e.purgatory != purgatory or e.key_length != length:
        return False
    if e.key_blob:
        return blob_equals(a, e.key_blob, key, length)
    return same_short(e.key, key, length)


cdef inline uint32_t find_events(
    Arena *a, uint64_t mark, uint64_t hash, uint32_t purgatory, const uint8_t *key, uint32_t length,
    uint32_t ordinal, uint32_t count, uint32_t *walked,
) noexcept nogil:
    """Add the key's events after the mark to a.delivery.found, at `count`. Returns the new count, or REPLAY_TOO_OLD."""
    cdef uint64_t sequence = a.slots[hash & a.slot_mask].newest
    cdef EventRecord *e
    while sequence > mark:  # bound: REPLAY_WALK_MAX
        if sequence < a.header.tail or walked[0] >= REPLAY_WALK_MAX:
            return REPLAY_TOO_OLD
        walked[0] += 1
        e = event_at(a, sequence)
        if event_is_on(a, e, hash, purgatory, key, length):
            a.delivery.found[count].sequence = sequence
            a.delivery.found[count].ordinal = ordinal
            a.delivery.found[count].failed = 0
            count += 1
        sequence = e.previous
    return count


cdef inline int by_sequence(const void *x, const void *y) noexcept nogil:
    cdef uint64_t left = (<const Found *>x).sequence, right = (<const Found *>y).sequence
    return -1 if left < right else 1


cdef inline void sort_found(Arena *a, uint32_t count) noexcept nogil:
    qsort(a.delivery.found, count, sizeof(Found), by_sequence)
