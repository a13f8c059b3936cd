"""The state of clients and groups beside the arena's records. arena.pxd composes it into the Arena."""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from timerd_shm.generated.records cimport *

cdef extern from "growing.h" nogil:
    ctypedef struct TdGrowing:
        pass
    void *td_growing(TdGrowing *g, size_t size)  # NULL if there is no memory
    void td_drop_growing(TdGrowing *g)
    void td_need(TdGrowing *g, size_t end)

cdef extern from *:
    """
    #define LATEST_OUTCOMES 32 /* how far the hints of a client's outcomes reach; a power of two */
    enum { OUTCOMES = 0, CALLS = 1, KINDS = 2 };  /* a member of a group takes one of these kinds, or both */
    /* Kinds of room in the arena. A kind's name in a refusal is MET_EVICTED_OPERATIONS + kind. */
    enum { ROOM_OPERATIONS = 0, ROOM_NODES = 1, ROOM_BYTES = 2, ROOMS = 3 };
    enum { NOT_DUE = 0, WAITS = 1, QUEUED = 2 };  /* a client's report: empty; it has only what may wait; it is due */
    #define CONFIRM_COMMANDS 1024 /* applied commands that are confirmed at once, without waiting for an outcome */
    #define TICKETS_OF_OPERATION 64  /* checks for which the owner of one operation is to look at a time */
    enum { CHECK_FREE = 0, CHECK_IN_DELIVERY = 1, CHECK_DELIVERED = 2 };
    enum { NOWHERE = 0, TO_MATCH = 1, PASSED_BY = 2 };  /* the list of a group in which a name of calls stands */
    #define REFUSALS 64 /* different reasons that are kept until take_refusals() */
    #define REFUSALS_NAMED 32 /* this many may name a client or group; the others are enough for all codes and limits */
    _Static_assert((LATEST_OUTCOMES & (LATEST_OUTCOMES - 1)) == 0, "join_outcomes() takes a position modulo LATEST_OUTCOMES with a mask");
    """
    enum:
        LATEST_OUTCOMES
        OUTCOMES
        CALLS
        KINDS
        ROOM_OPERATIONS
        ROOM_NODES
        ROOM_BYTES
        ROOMS
        NOT_DUE
        WAITS
        QUEUED
        CONFIRM_COMMANDS
        TICKETS_OF_OPERATION
        CHECK_FREE
        CHECK_IN_DELIVERY
        CHECK_DELIVERED
        NOWHERE
        TO_MATCH
        PASSED_BY
        REFUSALS
        REFUSALS_NAMED


ctypedef struct ReportState:
    # The newest numbers that were delivered to a client. Not in the arena, because a start delivers everything again.
    uint64_t command
    uint64_t outcome
    uint64_t answer
    uint64_t waits_ns  # since when it waits for the confirmation of commands
    uint32_t unreported  # link of its first settled operation that was not reported; 0 = none
    uint16_t next  # in the list of the clients that wait for a confirmation: the next client's slot + 1
    uint16_t prev
    uint8_t due  # NOT_DUE, WAITS or QUEUED
    uint8_t at  # position in `latest` of the operation that joined longest ago
    uint16_t checks  # checks of the client that run
    # The operations at which the client is to look (index + 1), and the first of these not sent yet; 0 = none.
    uint32_t first_look
    uint32_t last_look
    uint32_t next_look
    OpRecord *latest[LATEST_OUTCOMES]  # the last operations that joined its outcomes, for their `prefetch_hint`


ctypedef struct Look:
    # An operation's place in the list of its owner's looks, in order of events. A start makes the lists anew.
    uint32_t next  # operation (index + 1); 0 = none
    uint32_t prev
    uint32_t owner  # slot + 1; 0 = it is in no list
    uint32_t ticket  # its first ticket (index + 1); 0 = none


ctypedef struct Ticket:
    # A check waits for the owner of an operation to look.
    uint32_t check  # index
    uint32_t serial  # of the check: another serial says that the check has ended
    uint32_t next  # the next ticket of the same operation, or the next free one (index + 1)


ctypedef struct Check:
    # A CHECK command whose owners have not all looked. Not in the arena: checks end with their daemon.
    uint64_t command
    uint64_t sequence  # of its event
    uint32_t slot
    uint32_t serial  # raised when it ends
    uint32_t remaining  # operations at which the owner has not looked
    uint32_t completed
    uint32_t next  # the next free one (index + 1)
    uint8_t state


ctypedef struct Holdings:
    # The counts of a client, or of a group, when the sweep last looked.
    uint64_t step  # how many operations the sweep had looked at (`swept`) when these counts were new
    uint64_t next_outcome  # of a client: it grows with whatever the client gets
    uint32_t generation
    uint32_t pending
    uint32_t settled
    uint32_t held
    uint32_t calls_held
    uint32_t made_pending  # of its account
    uint32_t made_settled


ctypedef struct Member:
    # A client's position in a ring of its group (see groups.pxd).
    uint16_t group  # index + 1; 0 = it is in no ring
    uint16_t next  # slot
    uint16_t prev
    uint16_t alone  # calls that it holds and that are to run alone


ctypedef struct WaitingCall:
    # A call's place among the calls of its name that wait for a member (call_names.pxd).
    uint32_t next  # operation (index + 1); 0 = none
    uint32_t prev
    uint32_t name  # index + 1; 0 = the operation does not wait


ctypedef struct CallName:
    # The name of a handler, for which calls of a group wait.
    uint64_t hash  # name_hash
    uint32_t first  # operation (index + 1)
    uint32_t last
    uint32_t unmatched  # the first call that may have a ready member; 0 = none
    uint32_t chain  # the next name with the same head in the table, or the next free one (index + 1)
    uint32_t next  # in a list of the group (index + 1)
    uint32_t prev
    uint32_t matched_at  # `reasons` of the group when the name's calls were last looked at from the first one on
    uint16_t group  # index + 1
    uint8_t place  # the list: NOWHERE, TO_MATCH or PASSED_BY
    uint8_t has_passed  # whether a call was passed by that may be delivered later


ctypedef struct NameList:
    uint32_t first  # name (index + 1); 0 = none
    uint32_t last


ctypedef struct Draining:
    # A member of a group that gets no calls for a while, so that it becomes idle for a call that is to run alone.
    uint64_t until_ns
    uint64_t again_ns  # no other draining begins before this time
    uint16_t slot


ctypedef struct Refusal:
    uint32_t code
    uint32_t who  # the client whose share is used up (slot + 1); 1 for a group; 0 = none, or many counted as one
    uint32_t group  # the group whose share is used up (index + 1); 0 = it is a client's share
    uint64_t value
    uint64_t count
    # Of that client or group, at the first refusal. Copies: the slot may belong to another client when they are read.
    uint32_t pid
    uint32_t name_length
    uint64_t bytes_held
    char name[NAME_SIZE_MAX]


ctypedef struct Evictable:
    # The place of an outcome that may make room in the tree of its account (evictable.pxd).
    uint32_t older  # the subtree of older outcomes: its root (operation, index + 1); 0 = none
    uint32_t newer
    uint16_t account  # index + 1; 0 = the operation is in no tree
    uint8_t rooms  # kinds of room that it takes, a bit each
    uint8_t below  # kinds of room that it takes, or that an outcome below it takes


ctypedef struct Hoard:
    # The outcomes that may make room, of an account of ended clients, or of all such accounts of a user.
    uint64_t held[3]  # by ROOM_...: outcomes, their nodes and their bytes
    uint32_t root  # of the account's tree (operation, index + 1)
    uint32_t oldest[3]  # by ROOM_...: what the last search found, while it is right; 0 = not known


ctypedef struct Members:
    # Clients, and the queue of those whose report is due.
    ReportState *report_states  # of each client
    uint16_t *queue
    uint32_t queued
    # Clients that wait for a confirmation and for nothing else: a list in order of waits_ns; slots + 1.
    uint16_t first_waits
    uint16_t last_waits
    # Of groups: rings of members to which something can be delivered, and the next member of each (slot + 1; 0 = none).
    Member *rings[KINDS]
    uint16_t *turns[KINDS]
    uint8_t dispatching  # an outcome may wait for a member
    uint32_t next_group  # the group whose turn it is to be dispatched
    Holdings *holdings  # of each client, then of each group
    uint32_t *outdated  # link of the first call that waits in each group and may have been kept too long; 0 = none
    Evictable *evictable  # of each operation
    TdGrowing evictable_memory
    Hoard *hoards  # of each account of ended clients, then of each user
    # Calls that wait for a member, by name.
    WaitingCall *waiting  # of each operation
    TdGrowing waiting_memory
    CallName *names
    TdGrowing names_memory
    NameList *name_lists  # of each group: TO_MATCH, PASSED_BY
    uint32_t *name_heads
    uint32_t name_mask  # name_heads has mask + 1 entries
    uint32_t free_name  # index + 1
    uint32_t names_used  # how many were ever used
    uint32_t *reasons  # of each group: how often something happened after which a passed-by call may be delivered
    uint8_t *look_again  # of each group: whether its names in PASSED_BY are to be matched again
    Draining *draining  # of each group
    # Of each id: in which group (index + 1) a call waits for another call of the id; 0 = none, SEVERAL_GROUPS.
    uint16_t *waits_for_id
    # When the groups need a look next (look_again_at), and when the hour of a tombstone ends next.
    uint64_t groups_due_ns
    uint64_t tombstones_due_ns
    uint32_t tombstones
    Look *looks  # of each operation
    TdGrowing looks_memory
    Check *checks
    Ticket *tickets  # made for the first check; NULL: not yet
    uint32_t free_check  # index + 1
    uint32_t free_ticket  # index + 1
    uint32_t tickets_used  # how many were ever used: the tickets after these are free, and in no list
    uint32_t check_in_delivery  # index + 1
    uint8_t checks_finished  # a check has finished since take_finished()
    # Why commands were refused since take_refusals(), each reason once.
    Refusal refusals[REFUSALS]
    uint32_t refused


cdef inline bint make_members(
    Members *m, uint32_t clients, uint32_t groups, uint32_t operations, uint32_t hoards, uint32_t ids
) noexcept nogil:
    """False if there is no memory; drop_members() frees what was made."""
    cdef int kind
    cdef uint32_t i
    cdef bint made = True
    m.report_states = <ReportState *>calloc(clients, sizeof(ReportState))
    m.holdings = <Holdings *>calloc(clients + groups, sizeof(Holdings))
    m.queue = <uint16_t *>calloc(clients, sizeof(uint16_t))
    m.outdated = <uint32_t *>calloc(groups, sizeof(uint32_t))
    m.name_mask = 1023
    while m.name_mask < operations >> 2:  # bound: 32
        m.name_mask = 2 * m.name_mask + 1
    m.waiting = <WaitingCall *>td_growing(&m.waiting_memory, operations * sizeof(WaitingCall))
    m.names = <CallName *>td_growing(&m.names_memory, operations * sizeof(CallName))
    m.name_lists = <NameList *>calloc(2 * groups, sizeof(NameList))
    m.name_heads = <uint32_t *>calloc(m.name_mask + 1, sizeof(uint32_t))
    m.reasons = <uint32_t *>calloc(groups, sizeof(uint32_t))
    m.look_again = <uint8_t *>calloc(groups, sizeof(uint8_t))
    m.draining = <Draining *>calloc(groups, sizeof(Draining))
    m.waits_for_id = <uint16_t *>calloc(ids, sizeof(uint16_t))
    for kind in range(KINDS):
        m.rings[kind] = <Member *>calloc(clients, sizeof(Member))
        m.turns[kind] = <uint16_t *>calloc(groups, sizeof(uint16_t))
        made = made and m.rings[kind] != NULL and m.turns[kind] != NULL
    m.evictable = <Evictable *>td_growing(&m.evictable_memory, operations * sizeof(Evictable))
    m.hoards = <Hoard *>calloc(hoards, sizeof(Hoard))
    made = made and m.evictable != NULL and m.hoards != NULL
    m.looks = <Look *>td_growing(&m.looks_memory, operations * sizeof(Look))
    m.checks = <Check *>calloc(CHECKS_MAX, sizeof(Check))
    made = made and m.holdings != NULL and m.looks != NULL and m.checks != NULL
    if made:
        for i in range(CHECKS_MAX - 1):
            m.checks[i].next = i + 2
        m.free_check = 1
    made = made and m.waiting != NULL and m.names != NULL and m.name_lists != NULL and m.name_heads != NULL
    made = made and m.reasons != NULL and m.look_again != NULL and m.draining != NULL and m.waits_for_id != NULL
    return made and m.report_states != NULL and m.queue != NULL and m.outdated != NULL


cdef inline void drop_members(Members *m) noexcept nogil:
    cdef int kind
    free(m.report_states)
    free(m.holdings)
    free(m.queue)
    free(m.outdated)
    td_drop_growing(&m.waiting_memory)
    td_drop_growing(&m.names_memory)
    free(m.name_lists)
    free(m.name_heads)
    free(m.reasons)
    free(m.look_again)
    free(m.draining)
    free(m.waits_for_id)
    td_drop_growing(&m.looks_memory)
    free(m.checks)
    free(m.tickets)
    for kind in range(KINDS):
        free(m.rings[kind])
        free(m.turns[kind])
    td_drop_growing(&m.evictable_memory)
    free(m.hoards)
