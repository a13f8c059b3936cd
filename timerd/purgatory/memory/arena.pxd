"""The arena as the core sees it: where each region lies, and what each room remembers beside the arena (state.pxd).

Only the conductor's thread comes here, so nothing is locked. Functions named fill_... write a record while nothing
leads to it. The store of its state word makes the record true. From then on only td_put and td_commit change its fields
of truth. The core changes truth first, then what is derived from it: after a crash between the two, the next start
makes the derived part anew.
"""

from libc.stdint cimport uint32_t, uint64_t
from timerd.purgatory.journal.state cimport Journal
from timerd.purgatory.index.state cimport Remembered
from timerd.purgatory.wheel.state cimport Wheel
from timerd.purgatory.events.state cimport Delivery
from timerd.purgatory.members.state cimport Members
from timerd.purgatory.turn.state cimport Turn
from timerd_shm.generated.records cimport *

from .hash cimport Seed
from .state cimport Slab
from .transaction cimport TD_DEFECT, TdTransaction


ctypedef struct Arena:
    char *base
    # The header and the regions, as a start has found them.
    ArenaHeader *header
    RegionRecord *regions
    OpRecord *ops
    # Nodes below this index are first nodes, which lie in the operation records. The others lie in NODES (nodes.pxd).
    uint32_t first_nodes
    WatchNode *more_nodes
    WatermarkRecord *watermarks
    Block *blocks
    ClientRecord *clients
    LevelRecord *levels
    BucketRecord *buckets
    EventRecord *events
    SlotRecord *slots
    uint32_t *key_heads
    uint32_t *watermark_heads
    HandleRecord *handles
    IdRecord *ids
    uint32_t *id_heads
    AnswerRecord *answers
    GroupRecord *groups
    UserRecord *users
    AccountRecord *accounts
    PurgatoryRecord *purgatories
    uint64_t *counters
    uint64_t *daemon
    HistogramRecord *histograms
    HistogramRecord *daemon_histograms
    uint64_t key_mask
    uint64_t watermark_mask
    uint64_t id_mask
    uint64_t slot_mask
    uint64_t event_mask
    uint64_t handle_mask
    Seed seed  # of every hash; clients do not know it
    uint32_t observers  # the number of nodes that observe their keys; while it is 0, no event looks for such a node
    bint rehashed  # the start found hashes of another seed, and made them anew
    # The transaction being staged, and the outcomes that it numbers for one client.
    TdTransaction tx
    uint32_t staged_client
    uint32_t staged_outcomes
    # The state of each room beside the records: see its state.pxd.
    Slab slab
    Journal journal
    Remembered remembered
    Wheel wheel
    Delivery delivery
    Members members
    Turn turn


cdef inline uint32_t in_use(Arena *a, int region) noexcept nogil:
    return a.regions[region].in_use


cdef inline uint32_t capacity(Arena *a, int region) noexcept nogil:
    return a.regions[region].count


cdef inline uint32_t unused(Arena *a, int region) noexcept nogil:
    return a.regions[region].count - a.regions[region].in_use


cdef inline uint64_t op_id(Arena *a, OpRecord *op) noexcept nogil:
    """The public id of an operation: its record's index, and above it the record's generation."""
    return (<uint64_t>op.generation << 32) | <uint64_t>(op - a.ops)


cdef inline OpRecord *settled_of(Arena *a, uint64_t operation) noexcept nogil:
    """The settled operation of that op_id; NULL if it is freed or pending, or never existed."""
    cdef uint32_t index = <uint32_t>operation
    if index >= a.regions[REGION_OPS].high_water:
        return NULL
    if a.ops[index].generation != operation >> 32 or a.ops[index].state != OP_STATE_SETTLED:
        return NULL
    return a.ops + index


cdef inline uint64_t effective_ns(Arena *a) noexcept nogil:
    """The effective time of what this turn reads: the turn's clock, or in a gap the time of the last turn before it.

    For example, the daemon was stopped for five seconds. Events that were fired meanwhile stand in the sockets, and get
    the time at which the daemon was stopped: so they win over the deadlines that passed meanwhile.
    """
    return min(a.turn.now_ns, a.turn.before_gap_ns)


cdef inline bint spent(Arena *a) noexcept nogil:
    """Whether this call has touched as many records as it may."""
    return a.turn.touched >= a.turn.limit and not TD_DEFECT(DEFECT_UNBOUNDED_TURN)


cdef inline uint64_t may_touch(Arena *a) noexcept nogil:
    """How many more records this call may touch."""
    if TD_DEFECT(DEFECT_UNBOUNDED_TURN):
        return NO_DEADLINE
    return a.turn.limit - a.turn.touched if a.turn.touched < a.turn.limit else 0
