"""The arena as the core sees it: where each region lies, free records, transactions, and what a turn remembers.

Only the conductor's thread comes here, so nothing is locked. A record that nothing reaches yet is filled freely, in
functions named fill_...; from the moment its state word makes it true, its truth changes only by td_put and td_commit.
Truth first, then what is derived from it: a crash between the two is mended by the next start's rebuild.
"""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from timerd_shm.generated.records cimport *

from .transaction cimport TD_DEFECT, TdTransaction


cdef extern from *:
    """
    #define JOINED 7 /* how far hints reach: in the time of so many sweeping steps a line comes from memory */
    #define TOLD 32 /* the same of a client's outcomes; a power of two */
    #define FREED 8 /* how far ahead of its turn a free record is asked for */
    enum { OUTCOMES = 0, CALLS = 1, KINDS = 2 };  /* what a member of a group may take */
    #define REFUSALS 32 /* more than there are codes, and limits that ARENA_FULL and QUOTA_EXCEEDED may meet */
    """
    enum:
        JOINED
        TOLD
        FREED
        OUTCOMES
        CALLS
        KINDS
        REFUSALS


ctypedef struct News:
    # What a client was last told: not in the arena, because a start tells everything again.
    uint64_t command
    uint64_t outcome
    uint64_t answer
    uint64_t told_ns  # when its last report was made
    uint32_t unreported  # link of its first settled operation that was not reported; 0 = none
    uint8_t queued
    uint8_t at  # place in `latest` of the one that joined longest ago
    OpRecord *latest[TOLD]  # the operations that joined its outcomes last, for their `ahead` hints


ctypedef struct Member:
    # A client's place in a ring of its group (see groups.pxd).
    uint16_t group  # index + 1; 0 = it is in no ring
    uint16_t next  # slot
    uint16_t prev


ctypedef struct Joined:
    # Of a bucket, operations (index + 1): those that joined it last, round and round, from which their `ahead` hints are
    # made; and those that joined it first, to which no such hint leads.
    uint32_t at
    uint32_t op[JOINED]
    uint32_t first[JOINED]
    uint32_t reserved  # so that it is a cache line


ctypedef struct Spares:
    # The free records of a region below its high water (see memory/free_bitmap.pxd).
    uint64_t *bits
    uint64_t *occupied  # a bit for each word of `bits` that is not 0
    uint32_t words


ctypedef struct Found:
    # An event of the ring that concerns a registration.
    uint64_t sequence
    uint64_t ordinal


ctypedef struct SeenText:
    # A text that stands in the journal's present segment.
    uint64_t hash
    uint64_t row


ctypedef struct OwnerText:
    # A client's text in the journal's present segment.
    uint64_t row
    uint64_t generation


ctypedef struct Journal:
    # What journal/rows.pxd remembers. `level` 0 = there is none, and nothing else is valid.
    uint32_t level
    uint32_t staged  # rows of the transaction being staged
    uint32_t dropping  # rows that it would have had, and for which there was no room
    char *rows  # the buffer's
    uint64_t capacity  # rows it holds, a power of two
    uint64_t head  # number of the next row, as in the header
    uint64_t tail  # rows below it stand in files, and may be overwritten
    uint64_t room  # rows may be staged up to this number without a look at anything else
    uint64_t segment  # row with which the present segment begins
    uint64_t segment_rows  # rows of a segment
    uint64_t told  # dropped rows that GAP rows have told
    uint64_t lost  # dropped rows that none has told yet
    uint64_t lost_from_ns
    uint64_t lost_to_ns
    uint32_t opening  # RowFlag of a segment that is to begin before the next row; 0 = none
    uint8_t snapshotting  # what there was at the beginning is still being told
    uint32_t snapshot_op  # index that it comes to next
    uint32_t snapshot_key
    uint64_t snapshot_last  # newest registration when the journal began
    SeenText *texts
    OwnerText *owners
    uint64_t purgatories[PURGATORIES_MAX]  # rows of their texts


ctypedef struct Refusal:
    uint32_t code
    uint64_t value
    uint64_t count


ctypedef struct Arena:
    char *base
    ArenaHeader *header
    RegionRecord *regions
    OpRecord *ops
    # The rest of nodes and keys, from these indexes on; those below lie in the operation's record of their index.
    WatchNode *more_nodes
    KeyRecord *more_keys
    uint32_t nodes_beside
    uint32_t keys_beside
    Block *blocks
    ClientRecord *clients
    LevelRecord *levels
    BucketRecord *buckets
    EventRecord *events
    SlotRecord *slots
    uint32_t *key_heads
    HandleRecord *handles
    IdRecord *ids
    uint32_t *id_heads
    AnswerRecord *answers
    GroupRecord *groups
    PurgatoryRecord *purgatories
    uint64_t *counters
    uint64_t *daemon
    HistogramRecord *histograms
    uint64_t key_mask
    uint64_t id_mask
    uint64_t slot_mask
    uint64_t event_mask
    uint64_t handle_mask
    uint64_t tick_ns
    uint64_t ticks_per_2_64  # 2**64 // tick_ns
    TdTransaction tx
    # Of the transaction being staged: outcomes that it numbers for one client.
    uint32_t staged_client
    uint32_t staged_outcomes
    # Of this turn.
    uint64_t now_ns
    uint64_t touched
    uint64_t limit
    uint64_t turn_began
    # Of the wheel: records that each level's sweep still owes to the present tick, and the last tick that was swept.
    uint64_t owed[LEVELS]
    uint64_t visited_tick
    Joined *joined  # for each bucket
    Spares spare_nodes
    Spares spare_keys
    # The newest free records (index + 1) of each other region, by their place in its chain modulo FREED.
    uint32_t freed[REGION_COUNT][FREED]
    # Of the event that is being delivered (header.unfinished).
    uint32_t delivery_key  # index + 1; 0 = its key is gone, so it is done
    uint32_t cursor  # link of the watcher to visit next
    # Of the acknowledgements that were cut, and the sweep over what dead and silent clients hold.
    uint8_t acknowledging
    uint8_t sweeping  # some client is dead, or holds outcomes of its group that others are to be told
    uint32_t sweep_at
    # Of groups: rings of members that can be told something, and whose turn it is in each (slot + 1; 0 = nobody).
    Member *members[KINDS]
    uint16_t *turns[KINDS]
    uint8_t handing  # something may wait for a member
    # Of each group's calls that wait, links: the first that may have somebody to be told, and the first that may be kept
    # too long; 0 = none.
    uint32_t *unmatched
    uint32_t *outdated
    uint8_t dropping  # a look at what was kept too long is under way
    # When the next thing that is kept for a time ends: of a group that nobody is there for, a tombstone.
    uint64_t groups_due_ns
    uint64_t tombstones_due_ns
    uint32_t tombstones
    # Clients that have news.
    News *news
    uint16_t *queue
    uint32_t queued
    Found *found
    # Why commands were refused since the log of errors was told, each reason once.
    Refusal refusals[REFUSALS]
    uint32_t refused
    Journal journal


cdef inline uint32_t in_use(Arena *a, int region) noexcept nogil:
    return a.regions[region].in_use


cdef inline uint32_t capacity(Arena *a, int region) noexcept nogil:
    return a.regions[region].count


cdef inline uint32_t unused(Arena *a, int region) noexcept nogil:
    return a.regions[region].count - a.regions[region].in_use


cdef inline WatchNode *node_of(Arena *a, uint32_t index) noexcept nogil:
    """The watch node of an index."""
    if index < a.nodes_beside:
        return <WatchNode *>a.ops[index].own_node
    return a.more_nodes + (index - a.nodes_beside)


cdef inline uint32_t index_of_node(Arena *a, WatchNode *node) noexcept nogil:
    cdef uint64_t distance = <uint64_t>(<char *>node - <char *>a.ops)
    if distance < <uint64_t>a.nodes_beside * sizeof(OpRecord):
        return <uint32_t>(distance // sizeof(OpRecord))
    return <uint32_t>(node - a.more_nodes) + a.nodes_beside


cdef inline KeyRecord *key_of(Arena *a, uint32_t index) noexcept nogil:
    """The key record of an index."""
    if index < a.keys_beside:
        return <KeyRecord *>a.ops[index].own_key
    return a.more_keys + (index - a.keys_beside)


cdef inline bint spent(Arena *a) noexcept nogil:
    """Whether this call has touched as many records as it may."""
    return a.touched >= a.limit and not TD_DEFECT(DEFECT_UNBOUNDED_TURN)


cdef inline uint64_t may_touch(Arena *a) noexcept nogil:
    """How many records more this call may touch."""
    if TD_DEFECT(DEFECT_UNBOUNDED_TURN):
        return NO_DEADLINE
    return a.limit - a.touched if a.touched < a.limit else 0
