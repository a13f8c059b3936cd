"""The life of a client: it gets a slot, comes back to one, and dies.

A slot is FREE, then LIVE or SILENT, then DEAD. Unless the client said goodbye, it is a TOMBSTONE then, and perhaps LIVE
again. At last it is FREE. The sweep deals with what is left of a dead client.
"""

from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy, memset
from timerd.purgatory.memory.arena cimport Arena, capacity
from timerd.purgatory.memory.blob cimport drop_blob
from timerd.purgatory.memory.commit cimport commit
from timerd.purgatory.memory.transaction cimport td_put
from timerd.purgatory.journal.rows cimport journal_client, journal_state
from timerd.purgatory.index.purgatories cimport in_mask
from timerd_shm.generated.records cimport *

from .accounts cimport open_user
from .clients cimport clear_report_state, free_client, queue_report
from .checks cimport end_checks
from .groups cimport join_group, leave_group
from .looks cimport forget_looks, send_looks_again


ctypedef struct Facts:
    # A client's hello, and the facts about its process.
    const char *name
    uint32_t name_length
    uint32_t pid
    uint64_t start_ticks
    uint64_t pid_namespace
    uint32_t orphans
    uint64_t lease_ns
    uint32_t takeover_ms
    uint64_t wall_ns
    uint32_t group  # index + 1; 0 = none
    bint listens
    uint32_t maker_pid  # process of the hello, as the kernel says; 0 = not known
    uint64_t maker_start_ticks
    uint32_t uid  # user of that process


cdef inline uint32_t listening_flag(bint listens) noexcept nogil:
    return CLIENT_FLAG_LISTENS if listens else 0


cdef inline uint32_t keeping_flag(ClientRecord *c, bint keeps) noexcept nogil:
    """The client's flags, with KEEPS or without it."""
    return (c.flags & ~<uint32_t>CLIENT_FLAG_KEEPS) | (CLIENT_FLAG_KEEPS if keeps else 0)


cdef inline uint64_t with_silence(ClientRecord *c, uint32_t state, bint keeps) noexcept nogil:
    """The client's word of state and flags with that state, and with the flag KEEPS or without."""
    cdef uint64_t word = ClientRecord_with_state(ClientRecord_word_state(c)[0], state)
    return ClientRecord_with_flags(word, keeping_flag(c, keeps))


cdef inline int find_client(Arena *a, const char *wanted, bint by_session, uint32_t states) noexcept nogil:
    """The slot of the client with that session hash, or incarnation, in one of these states (a bit each); or -1."""
    cdef uint64_t low, high
    cdef ClientRecord *c
    cdef int slot
    memcpy(&low, wanted, 8)
    memcpy(&high, wanted + 8, 8)
    for slot in range(capacity(a, REGION_CLIENTS)):  # bound: clients, once for each hello
        c = a.clients + slot
        if not states >> c.state & 1:
            continue
        if by_session and c.session_low == low and c.session_high == high:
            return slot
        if not by_session and c.incarnation_low == low and c.incarnation_high == high:
            return slot
    return -1


cdef inline uint32_t share_of_slots(Arena *a, uint32_t pid) noexcept nogil:
    """Slots that the clients of a process may have. All clients of unknown processes (pid 0) share twice as many."""
    return a.header.quota_clients if pid else 2 * a.header.quota_clients


cdef inline uint32_t slots_of(Arena *a, uint32_t pid, uint64_t start_ticks, int *tombstone) noexcept nogil:
    """Slots that the clients of a process have, the dead ones too. `tombstone` becomes its oldest tombstone, or -1."""
    cdef uint32_t found = 0
    cdef int slot
    cdef ClientRecord *c
    tombstone[0] = -1
    for slot in range(capacity(a, REGION_CLIENTS)):  # bound: clients, once for each hello
        c = a.clients + slot
        if c.state == CLIENT_STATE_FREE or c.maker_pid != pid or c.maker_start_ticks != start_ticks:
            continue
        found += 1
        if c.state == CLIENT_STATE_TOMBSTONE and (tombstone[0] < 0 or c.died_ns < a.clients[tombstone[0]].died_ns):
            tombstone[0] = slot
    return found


cdef inline int free_slot(Arena *a) noexcept nogil:
    """A free slot. When there is none, the oldest tombstone's slot is freed; -1 when there is no tombstone either."""
    cdef int slot, oldest = -1
    for slot in range(capacity(a, REGION_CLIENTS)):  # bound: clients, once for each hello
        if a.clients[slot].state == CLIENT_STATE_FREE:
            return slot
        if a.clients[slot].state == CLIENT_STATE_TOMBSTONE:
            if oldest < 0 or a.clients[slot].died_ns < a.clients[oldest].died_ns:
                oldest = slot
    if oldest >= 0:
        free_client(a, oldest)
    return oldest


cdef inline void fill_client(
    Arena *a, ClientRecord *c, const char *incarnation, const char *session_hash, Facts *facts
) noexcept nogil:
    """Fill a free slot for a client. The state word will make it true. The lists of a free slot are empty."""
    c.generation = c.generation + 1 if c.generation + 1 else 1
    c.orphans = facts.orphans
    c.name_length = facts.name_length
    c.flags = listening_flag(facts.listens)
    memcpy(&c.incarnation_low, incarnation, 8)
    memcpy(&c.incarnation_high, incarnation + 8, 8)
    memcpy(&c.session_low, session_hash, 8)
    memcpy(&c.session_high, session_hash + 8, 8)
    c.last_command = 0
    c.next_outcome = 1
    c.acknowledged = 0
    c.answers_acknowledged = 0
    c.pid = facts.pid
    c.group = facts.group
    c.start_ticks = facts.start_ticks
    c.pid_namespace = facts.pid_namespace
    c.connected_wall_ns = facts.wall_ns
    memset(c.name, 0, NAME_SIZE_MAX)
    memcpy(c.name, facts.name, facts.name_length)
    c.last_frame_ns = a.turn.now_ns
    c.silent_ns = 0
    c.lease_ns = facts.lease_ns
    c.takeover_ms = facts.takeover_ms
    c.watermarks = 0
    c.bytes_held = 0
    c.died_ns = 0
    c.calls = 0
    c.names = 0
    c.purgatories = 0
    c.maker_pid = facts.maker_pid
    c.maker_start_ticks = facts.maker_start_ticks


cdef inline void fill_user(Arena *a, uint32_t slot, uint32_t user) noexcept nogil:
    """Enter the user (index) of a client. The account of a free slot pays for nothing."""
    a.accounts[slot].user = user


cdef inline void open_client(
    Arena *a, uint32_t slot, const char *incarnation, const char *session_hash, Facts *facts
) noexcept nogil:
    """A new client gets a free slot."""
    cdef ClientRecord *c = a.clients + slot
    cdef uint32_t user = open_user(a, facts.uid)
    fill_client(a, c, incarnation, session_hash, facts)
    fill_user(a, slot, user)
    forget_looks(a, slot)
    clear_report_state(a, slot)
    td_put(&a.tx, ClientRecord_word_state(c), ClientRecord_with_state(ClientRecord_word_state(c)[0], CLIENT_STATE_LIVE))
    journal_state(a, slot, CLIENT_STATE_LIVE)
    commit(a)
    a.regions[REGION_CLIENTS].in_use += 1
    join_group(a, slot)
    queue_report(a, slot)


cdef inline void renew_session(Arena *a, uint32_t slot, const char *session_hash, uint64_t frame_ns) noexcept nogil:
    """A client with a slot says hello once more: only its session hash changes."""
    cdef ClientRecord *c = a.clients + slot
    cdef uint64_t low, high
    memcpy(&low, session_hash, 8)
    memcpy(&high, session_hash + 8, 8)
    td_put(&a.tx, &c.session_low, low)
    td_put(&a.tx, &c.session_high, high)
    commit(a)
    c.last_frame_ns = frame_ns
    send_looks_again(a, slot)
    queue_report(a, slot)


cdef inline void resume_client(Arena *a, uint32_t slot, Facts *facts) noexcept nogil:
    """A tombstone becomes a live client again, with its old numbering."""
    cdef ClientRecord *c = a.clients + slot
    cdef AccountRecord *account = a.accounts + slot
    cdef uint32_t flags = listening_flag(facts.listens), user = open_user(a, facts.uid)
    cdef uint64_t word = ClientRecord_with_state(ClientRecord_word_state(c)[0], CLIENT_STATE_LIVE)
    word = ClientRecord_with_flags(ClientRecord_with_orphans(word, facts.orphans), flags)
    td_put(&a.tx, ClientRecord_word_state(c), word)
    word = ClientRecord_with_pid(ClientRecord_word_pid(c)[0], facts.pid)
    td_put(&a.tx, ClientRecord_word_pid(c), ClientRecord_with_group(word, facts.group))
    td_put(&a.tx, &c.start_ticks, facts.start_ticks)
    td_put(&a.tx, &c.pid_namespace, facts.pid_namespace)
    td_put(&a.tx, &c.connected_wall_ns, facts.wall_ns)
    td_put(&a.tx, &c.lease_ns, facts.lease_ns)
    td_put(
        &a.tx, ClientRecord_word_takeover_ms(c),
        ClientRecord_with_takeover_ms(ClientRecord_word_takeover_ms(c)[0], facts.takeover_ms),
    )
    td_put(&a.tx, ClientRecord_word_maker_pid(c), ClientRecord_with_maker_pid(0, facts.maker_pid))
    td_put(&a.tx, &c.maker_start_ticks, facts.maker_start_ticks)
    td_put(&a.tx, &c.purgatories, 0)
    td_put(&a.tx, AccountRecord_word_user(account), AccountRecord_with_user(AccountRecord_word_user(account)[0], user))
    journal_client(a, slot, CLIENT_STATE_LIVE, flags, facts.orphans, facts.group, facts.pid)
    commit(a)
    a.members.tombstones -= 1
    c.last_frame_ns = a.turn.now_ns
    c.silent_ns = 0
    # The outcomes that it had not acknowledged are its own no longer: its first report makes their numbers void.
    forget_looks(a, slot)
    clear_report_state(a, slot)
    a.members.report_states[slot].outcome = c.acknowledged
    a.members.report_states[slot].answer = c.answers_acknowledged
    join_group(a, slot)
    queue_report(a, slot)


cdef inline void name_purgatory(Arena *a, uint32_t slot, uint32_t purgatory) noexcept nogil:
    """A live client knows the index of this purgatory, so the purgatory is kept."""
    cdef ClientRecord *c = a.clients + slot
    if not c.purgatories & in_mask(purgatory):
        td_put(&a.tx, &c.purgatories, c.purgatories | in_mask(purgatory))
        commit(a)


cdef inline void stage_calls(Arena *a, ClientRecord *c, uint32_t most, uint32_t names) noexcept nogil:
    """Stage the words by which a client takes `most` calls, of these names (a blob)."""
    td_put(&a.tx, ClientRecord_word_pid(c), ClientRecord_with_calls(ClientRecord_word_pid(c)[0], most))
    td_put(&a.tx, ClientRecord_word_names(c), ClientRecord_with_names(ClientRecord_word_names(c)[0], names))


cdef inline void close_client(Arena *a, uint32_t slot, bint goodbye) noexcept nogil:
    """The client is dead. After a goodbye it does not come back, and leaves no tombstone."""
    cdef ClientRecord *c = a.clients + slot
    cdef uint32_t names = c.names, flags = CLIENT_FLAG_GOODBYE if goodbye else 0
    cdef uint64_t word = ClientRecord_with_state(ClientRecord_word_state(c)[0], CLIENT_STATE_DEAD)
    td_put(&a.tx, ClientRecord_word_state(c), ClientRecord_with_flags(word, flags))
    td_put(&a.tx, &c.died_ns, a.turn.now_ns)
    stage_calls(a, c, 0, 0)
    if c.group and a.groups[c.group - 1].members == 1:
        td_put(&a.tx, &a.groups[c.group - 1].empty_since_ns, a.turn.now_ns)
    journal_client(a, slot, CLIENT_STATE_DEAD, flags, c.orphans, c.group, c.pid)
    commit(a)
    drop_blob(a, names)
    end_checks(a, slot)
    leave_group(a, slot)
    a.turn.sweeping = 1


cdef inline void end_tombstones(Arena *a) noexcept nogil:
    """Free the slots of clients that did not come back within the hour."""
    cdef uint32_t slot
    cdef ClientRecord *c
    if a.turn.now_ns < a.members.tombstones_due_ns:
        return
    a.members.tombstones_due_ns = NO_DEADLINE
    for slot in range(a.regions[REGION_CLIENTS].count):
        c = a.clients + slot
        if c.state != CLIENT_STATE_TOMBSTONE:
            continue
        a.turn.touched += 1
        if c.died_ns + TOMBSTONE_KEPT_NS <= a.turn.now_ns:
            free_client(a, slot)
        elif c.died_ns + TOMBSTONE_KEPT_NS < a.members.tombstones_due_ns:
            a.members.tombstones_due_ns = c.died_ns + TOMBSTONE_KEPT_NS
