"""The compiled purgatory's Python face (see core.pyi for the interface, operation/settle.pxd and wheel.pxd for how it works)."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy, memset
from timerd.purgatory.memory.state cimport drop_slab, make_slab
from timerd.purgatory.memory.arena cimport Arena
from timerd.purgatory.memory.blob cimport blocks_for, drop_blob, fill_blob
from timerd.purgatory.memory.commit cimport commit
from timerd.purgatory.memory.hash cimport handle_tag, key_hash
from timerd.purgatory.memory.list cimport answer_at, is_empty, link_of
from timerd.purgatory.memory.transaction cimport TD_DEFECT, TD_ORDERED_STORE, td_put
from timerd.purgatory.journal.state cimport Journal, OwnerText, SeenText, drop_journal
from timerd.purgatory.journal.rows cimport TEXTS_SEEN, journal_client, journal_state, open_journal, tend_journal
from timerd.purgatory.index.operation_table cimport find_operation
from timerd.purgatory.wheel.state cimport drop_wheel, make_wheel
from timerd.purgatory.wheel.wheel cimport next_tick, wheel_jump
from timerd.purgatory.events.state cimport drop_delivery, make_delivery
from timerd.purgatory.events.ring cimport make_room
from timerd.purgatory.members.state cimport drop_members, make_members
from timerd.purgatory.members.clients cimport forget_news, free_client, is_live, tell, topic_of
from timerd.purgatory.members.groups cimport (
    find_held, hand_out, holds_what_it_does_not_take, is_used, join_group, leave_group, look_at_calls, place_in_rings,
)
from timerd.purgatory.members.reports cimport Extent, measure, note_reported, only_confirms, report_size, write_report
from timerd.purgatory.commands.frame cimport (
    FRAME_APPLIED, FRAME_EXPECTED, FRAME_MALFORMED, FRAME_UNFINISHED, apply_frame,
)
from timerd.purgatory.turn.acknowledge cimport acknowledge_client
from timerd.purgatory.turn.expiry cimport advance_wheel
from timerd.purgatory.turn.turn cimport resume_work
from timerd.purgatory.start.rebuild cimport finish_transaction, rebuild, redo_is_sound
from timerd.purgatory.start.validate cimport Damage
from timerd_shm.generated.records cimport *

from timerd_shm.declare import errors as _errors, layout as _layout

cdef extern from "faults.h":
    enum:
        FAULTS_BUILT
    char *faults_copies
    uint64_t faults_size
    uint64_t faults_count
    void faults_record(uint64_t limit, uint64_t chance)
    void faults_set_defect(int number)
    void faults_beside(const char *memory, uint64_t size)

cdef extern from "<time.h>" nogil:
    ctypedef long time_t
    ctypedef int clockid_t
    struct timespec:
        time_t tv_sec
        long tv_nsec
    int CLOCK_MONOTONIC
    int clock_gettime(clockid_t clock, timespec *at)

APPLIED = FRAME_APPLIED
EXPECTED = FRAME_EXPECTED
UNFINISHED = FRAME_UNFINISHED
MALFORMED = FRAME_MALFORMED
NEVER = NO_DEADLINE
_FINGERPRINT = LAYOUT_FINGERPRINT
globals()["LAYOUT_FINGERPRINT"] = _FINGERPRINT

cdef uint32_t PRESENT = 1 << CLIENT_STATE_LIVE | 1 << CLIENT_STATE_SILENT
cdef uint64_t OUTCOMES_IN_ANSWER = 4096  # a frame's worth of outcomes, when a client asks again

if _FINGERPRINT != _layout.fingerprint():
    raise ImportError(
        f"timerd.core was compiled from other declarations (fingerprint 0x{_FINGERPRINT:08x}) than timerd_shm has "
        f"(0x{_layout.fingerprint():08x}): run `make generate build`"
    )


def _damaged(str what):
    return _errors.ArenaDamagedError(
        f"the arena is damaged: {what} names what is not there; `timerctl check` says more, `timerctl destroy` removes "
        "the arena with the operations in it"
    )


cdef class Core:
    cdef Arena arena
    cdef Py_buffer buffer, journal
    cdef bint attached, journaling
    cdef readonly uint64_t redo_replayed
    cdef readonly uint64_t reports_due_ns

    def __cinit__(self):
        memset(&self.arena, 0, sizeof(Arena))
        self.attached = self.journaling = False

    def __init__(self, memory, uint64_t now_ns):
        cdef Arena *a = &self.arena
        if self.attached:
            raise _errors.ClosedError("this Core is attached already; make another one")
        PyObject_GetBuffer(memory, &self.buffer, PyBUF_SIMPLE | PyBUF_WRITABLE)
        self.attached = True
        try:
            self._attach(now_ns)
        except BaseException:
            self.release()
            raise

    cdef _attach(self, uint64_t now_ns):
        cdef Arena *a = &self.arena
        cdef uint64_t size = self.buffer.len
        cdef ArenaHeader *header
        cdef uint64_t expected = LAYOUT_FINGERPRINT ^ (1 if TD_DEFECT(DEFECT_STALE_CONSTANT) else 0)
        cdef uint64_t end = HEADER_SIZE
        cdef int region
        cdef bint made
        cdef Damage damage
        memset(&damage, 0, sizeof(damage))
        if size < HEADER_SIZE:
            raise _errors.ArenaTruncatedError(f"the arena has {size} bytes, its header alone {HEADER_SIZE}")
        a.base = <char *>self.buffer.buf
        header = a.header = <ArenaHeader *>a.base
        if header.layout_version == 0:
            raise _errors.ArenaNotReadyError("the arena was never finished (layout version 0): make it anew")
        if memcmp(header.magic, PyBytes_AS_STRING(_layout.MAGIC), 8) != 0:
            raise _errors.LayoutMismatchError(f"magic is {bytes(header.magic[:8])!r}, not {_layout.MAGIC!r}")
        if header.layout_version != LAYOUT_VERSION or header.fingerprint != expected:
            raise _errors.LayoutMismatchError(
                f"the arena has layout {header.layout_version} (fingerprint 0x{header.fingerprint:08x}), "
                f"this timerd {LAYOUT_VERSION} (0x{expected:08x}): `timerctl destroy` it, or run the version that made it"
            )
        if header.size > size:
            raise _errors.ArenaTruncatedError(f"the arena says {header.size} bytes, there are {size}")
        # Before anything is made of what it may change.
        if not redo_is_sound(a):
            raise _damaged(f"its redo slot (count {header.redo_count})")
        self.redo_replayed = finish_transaction(a)
        if header.size > size:
            raise _damaged(f"its redo slot (by it there are {header.size} bytes)")
        a.regions = <RegionRecord *>(a.base + REGIONS_OFFSET)
        for region in range(REGION_COUNT):
            end = self._check_region(region, end)
        a.ops = <OpRecord *>self._region(REGION_OPS)
        a.more_nodes = <WatchNode *>self._region(REGION_NODES)
        a.more_keys = <KeyRecord *>self._region(REGION_KEYS)
        a.blocks = <Block *>self._region(REGION_BLOCKS)
        a.clients = <ClientRecord *>self._region(REGION_CLIENTS)
        a.levels = <LevelRecord *>self._region(REGION_LEVELS)
        a.buckets = <BucketRecord *>self._region(REGION_BUCKETS)
        a.events = <EventRecord *>self._region(REGION_EVENTS)
        a.slots = <SlotRecord *>self._region(REGION_SLOTS)
        a.nodes_beside = min(a.regions[REGION_NODES].count, a.regions[REGION_OPS].count)
        a.keys_beside = min(a.regions[REGION_KEYS].count, a.regions[REGION_OPS].count)
        a.key_heads = <uint32_t *>self._region(REGION_KEY_TABLE)
        a.handles = <HandleRecord *>self._region(REGION_HANDLES)
        a.ids = <IdRecord *>self._region(REGION_IDS)
        a.id_heads = <uint32_t *>self._region(REGION_ID_TABLE)
        a.answers = <AnswerRecord *>self._region(REGION_ANSWERS)
        a.groups = <GroupRecord *>self._region(REGION_GROUPS)
        a.purgatories = <PurgatoryRecord *>self._region(REGION_PURGATORIES)
        a.counters = <uint64_t *>self._region(REGION_PURGATORY_COUNTERS)
        a.daemon = <uint64_t *>self._region(REGION_DAEMON_COUNTERS)
        a.histograms = <HistogramRecord *>self._region(REGION_HISTOGRAMS)
        a.key_mask = 2 * <uint64_t>a.regions[REGION_KEY_TABLE].count - 1
        a.id_mask = 2 * <uint64_t>a.regions[REGION_ID_TABLE].count - 1
        a.slot_mask = a.regions[REGION_SLOTS].count - 1
        a.event_mask = a.regions[REGION_EVENTS].count - 1
        a.handle_mask = a.regions[REGION_HANDLES].count - 1
        a.tx.base = a.base
        a.turn.now_ns = now_ns
        a.turn.limit = NO_DEADLINE
        if not (
            make_slab(&a.slab, a.regions[REGION_NODES].count, a.regions[REGION_KEYS].count)
            and make_wheel(&a.wheel, header.tick_ns, a.regions[REGION_BUCKETS].count)
            and make_delivery(&a.delivery)
            and make_members(&a.members, a.regions[REGION_CLIENTS].count, a.regions[REGION_GROUPS].count)
        ):
            raise MemoryError("no memory for what the core remembers beside the arena")
        with nogil:
            made = rebuild(a, &damage)
        if damage.found and damage.region == REGION_COUNT:
            raise _damaged("its header")
        if damage.found:
            raise _damaged(f"record {damage.index} of region {_layout.Region(damage.region).name}")
        if not made:
            raise MemoryError("no memory for rebuilding the arena's lists")
        if self.redo_replayed:
            a.daemon[DAEMON_REDO_REPLAYED] += 1
        a.daemon[DAEMON_STARTS] += 1

    cdef uint64_t _check_region(self, int region, uint64_t free) except 0:
        """The region lies within the arena, from `free` on, and has records of the size that this core knows; its end."""
        cdef RegionRecord *r = self.arena.regions + region
        cdef uint64_t known = _layout.size_of(_layout.REGION_RECORDS[_layout.Region(region)])
        cdef bint power = r.count != 0 and (r.count & (r.count - 1)) == 0
        cdef uint64_t own = _layout.records_apart(_layout.Region(region), r.count, self.arena.regions[REGION_OPS].count)
        if r.free_link != _layout.free_link(_layout.Region(region)) or r.count < self._least(region):
            raise _damaged(f"row {region} of its region table")
        if r.record_size != known or r.count == 0 or r.high_water > r.count:
            raise _errors.LayoutMismatchError(
                f"region {region}: {r.count} records of {r.record_size} bytes ({r.high_water} used), expected size {known}"
            )
        if r.offset % 8 or r.offset < HEADER_SIZE or r.offset + own * r.record_size > self.arena.header.size:
            raise _errors.ArenaTruncatedError(f"region {region} at {r.offset} does not lie within {self.arena.header.size} bytes")
        if r.offset < free:
            raise _damaged(f"row {region} of its region table (it lies at {r.offset}, where another does)")
        if region in (REGION_EVENTS, REGION_SLOTS, REGION_KEY_TABLE, REGION_HANDLES, REGION_ID_TABLE) and not power:
            raise _errors.LayoutMismatchError(f"region {region} has {r.count} records, not a power of two")
        return r.offset + own * r.record_size

    cdef uint64_t _least(self, int region):
        """Records that the core takes for granted."""
        if region == REGION_LEVELS:
            return LEVELS
        if region == REGION_BUCKETS:
            return LEVELS * BUCKETS
        if region == REGION_DAEMON_COUNTERS:
            return DAEMON_COUNTERS_MAX
        if region == REGION_PURGATORY_COUNTERS:
            return <uint64_t>self.arena.regions[REGION_PURGATORIES].count * PURGATORY_COUNTERS_MAX
        if region == REGION_HISTOGRAMS:
            return <uint64_t>self.arena.regions[REGION_PURGATORIES].count * HISTOGRAM_COUNT
        return 1

    cdef void *_region(self, int region) noexcept:
        return self.arena.base + self.arena.regions[region].offset

    def __dealloc__(self):
        self._let_go()

    cdef void _let_go(self):
        if self.attached:
            drop_slab(&self.arena.slab)
            drop_wheel(&self.arena.wheel)
            drop_delivery(&self.arena.delivery)
            drop_members(&self.arena.members)
            drop_journal(&self.arena.journal)
            if self.journaling:
                faults_beside(NULL, 0)
                PyBuffer_Release(&self.journal)
                self.journaling = False
            memset(&self.arena, 0, sizeof(Arena))
            PyBuffer_Release(&self.buffer)
            self.attached = False

    def release(self):
        self._let_go()

    cdef Arena *_here(self) except NULL:
        if not self.attached:
            raise _errors.ClosedError("the arena was released")
        return &self.arena

    cdef uint32_t _live(self, int slot) except? 0xFFFFFFFF:
        cdef Arena *a = self._here()
        if slot < 0 or slot >= <int>a.regions[REGION_CLIENTS].count or not is_live(a, slot):
            raise _errors.SessionGoneError(f"slot {slot} is no live client's")
        return slot

    @property
    def incarnation(self):
        return self._here().header.incarnation

    @property
    def newest(self):
        return self._here().header.newest

    @property
    def tick_ns(self):
        return self._here().wheel.tick_ns

    # Clients.

    def open_client(
        self, bytes incarnation not None, bytes session_hash not None, *, bytes name=b"", uint32_t pid=0,
        uint64_t start_ticks=0, uint64_t pid_namespace=0, uint32_t orphans=0, uint64_t lease_ns=LEASE_NS,
        uint64_t now_ns, uint64_t wall_ns=0, uint32_t group=0, bint listens=False,
    ):
        cdef Arena *a = self._here()
        cdef ClientRecord *c
        cdef uint64_t low, high
        cdef int slot
        if len(incarnation) != 16 or len(session_hash) != 16:
            raise _errors.InvalidValueError("a client needs 16 bytes of incarnation and of session")
        self._check_client(name, orphans, group, listens)
        self._turn_at(now_ns)
        slot = self._find(incarnation, False, PRESENT)
        if slot >= 0:
            c = a.clients + slot
            memcpy(&low, PyBytes_AS_STRING(session_hash), 8)
            memcpy(&high, PyBytes_AS_STRING(session_hash) + 8, 8)
            td_put(&a.tx, &c.session_low, low)
            td_put(&a.tx, &c.session_high, high)
            commit(a)
            c.heard_ns = now_ns
            tell(a, slot)
            return slot
        slot = self._free_slot()
        c = a.clients + slot
        fill_client(c, incarnation, session_hash, name, pid, start_ticks, pid_namespace, orphans, lease_ns, now_ns, wall_ns)
        fill_membership(c, group, listens)
        forget_news(a, slot)
        td_put(&a.tx, ClientRecord_word_state(c), ClientRecord_with_state(ClientRecord_word_state(c)[0], CLIENT_STATE_LIVE))
        journal_state(a, slot, CLIENT_STATE_LIVE)
        commit(a)
        a.regions[REGION_CLIENTS].in_use += 1
        join_group(a, slot)
        tell(a, slot)
        return slot

    cdef int _check_client(self, bytes name, uint32_t orphans, uint32_t group, bint listens) except -1:
        """What open_client() and resume_client() are told about a client."""
        cdef Arena *a = self._here()
        if len(name) > NAME_SIZE_MAX or orphans >= ORPHANS_COUNT:
            raise _errors.InvalidValueError(f"a client has a name of {NAME_SIZE_MAX} bytes at most, and a known orphans policy")
        if group > a.regions[REGION_GROUPS].count or (group and not a.groups[group - 1].state):
            raise _errors.InvalidValueError(f"there is no group {group}")
        if not group and (listens or orphans == ORPHANS_GROUP):
            raise _errors.NotAMemberError("orphans=\"group\" and listening need a group")
        return 0

    cdef int _free_slot(self) except -1:
        """A free slot; the oldest tombstone gives way when there is none."""
        cdef Arena *a = self._here()
        cdef int slot, oldest = -1
        for slot in range(a.regions[REGION_CLIENTS].count):
            if a.clients[slot].state == CLIENT_STATE_FREE:
                return slot
            if a.clients[slot].state == CLIENT_STATE_TOMBSTONE:
                if oldest < 0 or a.clients[slot].died_ns < a.clients[oldest].died_ns:
                    oldest = slot
        if oldest < 0:
            count = a.regions[REGION_CLIENTS].count
            raise _errors.ArenaFullError(
                f"{count} of {count} clients are connected: close some, or start the daemon with more --clients"
            )
        free_client(a, oldest)
        return oldest

    cdef int _find(self, bytes wanted, bint by_session, uint32_t states) except -2:
        """Slot of the client of that session hash, or incarnation, that is in one of these states (a bit each); or -1."""
        cdef Arena *a = self._here()
        cdef uint64_t low, high
        cdef ClientRecord *c
        cdef int slot
        if len(wanted) != 16:
            raise _errors.InvalidValueError(f"{len(wanted)} bytes, not 16")
        memcpy(&low, PyBytes_AS_STRING(wanted), 8)
        memcpy(&high, PyBytes_AS_STRING(wanted) + 8, 8)
        for slot in range(a.regions[REGION_CLIENTS].count):
            c = a.clients + slot
            if not states >> c.state & 1:
                continue
            if by_session and c.session_low == low and c.session_high == high:
                return slot
            if not by_session and c.incarnation_low == low and c.incarnation_high == high:
                return slot
        return -1

    def find_session(self, bytes session_hash not None):
        return self._find(session_hash, True, PRESENT)

    def find_incarnation(self, bytes incarnation not None):
        return self._find(incarnation, False, PRESENT)

    def find_tombstone(self, bytes session_hash not None):
        return self._find(session_hash, True, 1 << CLIENT_STATE_TOMBSTONE)

    def is_dying(self, bytes session_hash not None):
        return self._find(session_hash, True, 1 << CLIENT_STATE_DEAD) >= 0

    def resume_client(
        self, int slot, *, bytes name=b"", uint32_t pid=0, uint64_t start_ticks=0, uint64_t pid_namespace=0,
        uint32_t orphans=0, uint64_t lease_ns=LEASE_NS, uint64_t now_ns, uint64_t wall_ns=0, uint32_t group=0,
        bint listens=False,
    ):
        cdef Arena *a = self._here()
        cdef ClientRecord *c
        cdef uint64_t word
        if slot < 0 or slot >= <int>a.regions[REGION_CLIENTS].count or a.clients[slot].state != CLIENT_STATE_TOMBSTONE:
            raise _errors.SessionGoneError(f"slot {slot} is no tombstone")
        self._check_client(name, orphans, group, listens)
        self._turn_at(now_ns)
        c = a.clients + slot
        word = ClientRecord_with_state(ClientRecord_word_state(c)[0], CLIENT_STATE_LIVE)
        word = ClientRecord_with_flags(ClientRecord_with_orphans(word, orphans), CLIENT_FLAG_LISTENS if listens else 0)
        td_put(&a.tx, ClientRecord_word_state(c), word)
        word = ClientRecord_with_pid(ClientRecord_word_pid(c)[0], pid)
        td_put(&a.tx, ClientRecord_word_pid(c), ClientRecord_with_group(word, group))
        td_put(&a.tx, &c.start_ticks, start_ticks)
        td_put(&a.tx, &c.pid_namespace, pid_namespace)
        td_put(&a.tx, &c.connected_wall_ns, wall_ns)
        td_put(&a.tx, &c.lease_ns, lease_ns)
        journal_client(a, slot, CLIENT_STATE_LIVE, CLIENT_FLAG_LISTENS if listens else 0, orphans, group, pid)
        commit(a)
        a.members.tombstones -= 1
        c.heard_ns = a.turn.now_ns
        c.silent_ns = 0
        # What it had not acknowledged is gone: its first report says that those numbers are void.
        forget_news(a, slot)
        a.members.news[slot].outcome = c.acknowledged
        a.members.news[slot].answer = c.answers_acknowledged
        join_group(a, slot)
        tell(a, slot)

    def close_client(self, int slot, uint64_t now_ns, *, bint goodbye=False):
        cdef Arena *a = self._here()
        cdef ClientRecord *c = a.clients + self._live(slot)
        cdef uint64_t word = ClientRecord_with_state(ClientRecord_word_state(c)[0], CLIENT_STATE_DEAD)
        cdef uint32_t names = c.names
        self._turn_at(now_ns)
        td_put(&a.tx, ClientRecord_word_state(c), ClientRecord_with_flags(word, CLIENT_FLAG_GOODBYE if goodbye else 0))
        td_put(&a.tx, &c.died_ns, a.turn.now_ns)
        stage_calls(a, c, 0, 0)
        if c.group and a.groups[c.group - 1].members == 1:
            td_put(&a.tx, &a.groups[c.group - 1].empty_since_ns, a.turn.now_ns)
        journal_client(a, slot, CLIENT_STATE_DEAD, CLIENT_FLAG_GOODBYE if goodbye else 0, c.orphans, c.group, c.pid)
        commit(a)
        drop_blob(a, names)
        leave_group(a, slot)
        a.turn.sweeping = 1

    def group(self, bytes name not None, uint32_t pid=0, uint64_t start_ticks=0):
        cdef Arena *a = self._here()
        cdef GroupRecord *g
        cdef uint32_t index, unused = 0xFFFFFFFF, count = a.regions[REGION_GROUPS].count, made = 0
        if not 1 <= len(name) <= NAME_SIZE_MAX:
            raise _errors.InvalidNameError(f"a group's name has {len(name)} bytes, not 1 to {NAME_SIZE_MAX}")
        for index in range(count):
            g = a.groups + index
            if g.state == 0:
                unused = index if unused == 0xFFFFFFFF else unused
            elif g.name_length == len(name) and memcmp(g.name, PyBytes_AS_STRING(name), len(name)) == 0:
                return index + 1
            elif pid and g.maker_pid == pid and g.maker_start_ticks == start_ticks and is_used(a, index):
                made += 1
        if made >= max(count // 2, 1):
            raise _errors.QuotaExceededError(
                f"process {pid} has made {made} of {count} groups that have members or operations, as many as one "
                "process may: use fewer names, or let the operations of old ones settle"
            )
        if unused == 0xFFFFFFFF:
            for index in range(count):
                if not is_used(a, index):
                    break
            else:
                raise _errors.ArenaFullError(f"{count} of {count} groups have members or operations")
            unused = index
            g = a.groups + unused
            td_put(&a.tx, GroupRecord_word_state(g), GroupRecord_with_state(GroupRecord_word_state(g)[0], 0))
            commit(a)
            a.regions[REGION_GROUPS].in_use -= 1
        g = a.groups + unused
        fill_group(g, name, a.turn.now_ns, pid, start_ticks)
        td_put(&a.tx, GroupRecord_word_state(g), GroupRecord_with_state(GroupRecord_word_state(g)[0], 1))
        commit(a)
        a.regions[REGION_GROUPS].in_use += 1
        return unused + 1

    def set_listening(self, int slot, bint listens, uint64_t now_ns):
        cdef Arena *a = self._here()
        cdef ClientRecord *c = a.clients + self._live(slot)
        cdef uint64_t word = ClientRecord_word_state(c)[0]
        if c.group == 0:
            raise _errors.NotAMemberError("the client is in no group whose outcomes it could take: connect with group=NAME")
        if listens and c.held and not c.flags & CLIENT_FLAG_LISTENS:
            return False  # it was told that it holds nothing any more, and the sweep has not found all of that yet
        self._turn_at(now_ns)
        td_put(&a.tx, ClientRecord_word_state(c), ClientRecord_with_flags(word, CLIENT_FLAG_LISTENS if listens else 0))
        if listens != (c.flags & CLIENT_FLAG_LISTENS != 0):
            journal_client(a, slot, c.state, CLIENT_FLAG_LISTENS if listens else 0, c.orphans, c.group, c.pid)
        commit(a)
        self._placed(slot)
        return listens

    def set_calls(self, int slot, int most, int purgatory, list names not None, uint64_t now_ns):
        cdef Arena *a = self._here()
        cdef ClientRecord *c = a.clients + self._live(slot)
        cdef uint64_t hashes[HANDLED_NAMES_MAX]
        cdef uint32_t count = 0, old = c.names, blob
        if c.group == 0:
            raise _errors.NotAMemberError("the client is in no group whose calls it could take: connect with group=NAME")
        if not 0 <= most <= GROUP_HELD_MAX or len(names) > HANDLED_NAMES_MAX:
            raise _errors.InvalidValueError(
                f"{len(names)} of {HANDLED_NAMES_MAX} names, {most} of {GROUP_HELD_MAX} calls at a time: name fewer"
            )
        if purgatory < 0 or purgatory >= <int>a.regions[REGION_PURGATORIES].count or not a.purgatories[purgatory].state:
            raise _errors.InvalidValueError(f"there is no purgatory {purgatory}")
        if most and c.calls_held and not c.calls:
            return 0  # it was told that it holds nothing any more, and the sweep has not found all of that yet
        for name in names if most else ():
            if not 1 <= len(name) <= KEY_SIZE_MAX:
                raise _errors.InvalidKeyError(f"a name has {len(name)} bytes, not 1 to {KEY_SIZE_MAX}")
            hashes[count] = key_hash(a.header.hash_seed, purgatory, <const uint8_t *>PyBytes_AS_STRING(name), len(name))
            count += 1
        self._turn_at(now_ns)
        if not make_room(a, blocks_for(count * sizeof(uint64_t))):
            blocks = a.regions[REGION_BLOCKS].count
            raise _errors.ArenaFullError(f"no room in {blocks} blocks for {count} names: retry later, or enlarge --blocks")
        blob = fill_blob(a, <const uint8_t *>hashes, count * sizeof(uint64_t))
        stage_calls(a, c, most, blob)
        commit(a)
        drop_blob(a, old)
        self._placed(slot)
        look_at_calls(a, c.group)
        return most

    cdef int _placed(self, uint32_t slot) except -1:
        """What the client takes of its group may have changed: what it holds stays with it, or goes on."""
        cdef Arena *a = self._here()
        place_in_rings(a, slot)
        if holds_what_it_does_not_take(a.clients + slot):
            a.turn.sweeping = 1
        return 0

    cdef int _set_state(self, int slot, uint32_t state, uint64_t now_ns) except -1:
        cdef Arena *a = self._here()
        cdef ClientRecord *c = a.clients + self._live(slot)
        self._turn_at(now_ns)
        if c.state != state:
            td_put(&a.tx, ClientRecord_word_state(c), ClientRecord_with_state(ClientRecord_word_state(c)[0], state))
            journal_state(a, slot, state)
            commit(a)
            self._placed(slot)
        return 0

    def silence(self, int slot, uint64_t now_ns):
        self._set_state(slot, CLIENT_STATE_SILENT, now_ns)

    def revive(self, int slot, uint64_t now_ns):
        self._set_state(slot, CLIENT_STATE_LIVE, now_ns)

    def set_silent_ns(self, int slot, uint64_t silent_ns):
        self._here().clients[self._live(slot)].silent_ns = silent_ns

    def held(self, int slot, list operations not None):
        cdef Arena *a = self._here()
        cdef uint32_t live = self._live(slot)
        return [operation for operation in operations if find_held(a, live, operation) != NULL]

    def topic(self, int slot):
        cdef Arena *a = self._here()
        return topic_of(a, self._live(slot))

    def heard(self, int slot, uint64_t now_ns):
        self._here().clients[self._live(slot)].heard_ns = now_ns

    def live_slots(self):
        cdef Arena *a = self._here()
        return [slot for slot in range(a.regions[REGION_CLIENTS].count) if is_live(a, slot)]

    def last_command(self, int slot):
        return self._here().clients[self._live(slot)].last_command

    def unknown_waits(self, int slot, list commands not None):
        cdef Arena *a = self._here()
        cdef uint32_t live = self._live(slot), link = a.clients[live].answers_next
        cdef set refused = set()  # and not told yet
        while link != link_of(a, &a.clients[live].answers_next):
            if answer_at(a, link).code:
                refused.add(answer_at(a, link).command)
            link = answer_at(a, link).next
        return [c for c in commands if find_operation(a, live, c, handle_tag(live, c)) == NULL and c not in refused]

    def purgatory(self, bytes name not None):
        cdef Arena *a = self._here()
        cdef PurgatoryRecord *p
        cdef uint32_t index, unused = 0xFFFFFFFF
        if not 1 <= len(name) <= NAME_SIZE_MAX:
            raise _errors.InvalidNameError(f"a purgatory's name has {len(name)} bytes, not 1 to {NAME_SIZE_MAX}")
        for index in range(a.regions[REGION_PURGATORIES].count):
            p = a.purgatories + index
            if p.state == 0:
                unused = index if unused == 0xFFFFFFFF else unused
            elif p.name_length == len(name) and memcmp(p.name, PyBytes_AS_STRING(name), len(name)) == 0:
                return index
        if unused == 0xFFFFFFFF:
            count = a.regions[REGION_PURGATORIES].count
            raise _errors.ArenaFullError(
                f"{count} of {count} purgatories are in use, and each is for good: use one that there is, with longer keys"
            )
        p = a.purgatories + unused
        fill_purgatory(p, name)
        td_put(&a.tx, PurgatoryRecord_word_state(p), PurgatoryRecord_with_state(PurgatoryRecord_word_state(p)[0], 1))
        commit(a)
        a.regions[REGION_PURGATORIES].in_use += 1
        return unused

    # A turn.

    cdef int _turn_at(self, uint64_t now_ns) except -1:
        """Take the time that was passed in; it never goes back."""
        cdef Arena *a = self._here()
        cdef timespec at
        if TD_DEFECT(DEFECT_TAKES_ITS_OWN_TIME):
            clock_gettime(CLOCK_MONOTONIC, &at)
            now_ns = <uint64_t>at.tv_sec * 1000000000 + at.tv_nsec
        if now_ns > a.turn.now_ns:
            a.turn.now_ns = now_ns
        return 0

    cdef int _allow(self, uint64_t budget) except -1:
        self.arena.turn.limit = self.arena.turn.touched + budget
        return 0

    def begin_turn(self, uint64_t now_ns):
        cdef Arena *a = self._here()
        self._turn_at(now_ns)
        if a.journal.level == 0 and a.header.journal_level:
            # What happens from now on, no journal tells.
            TD_ORDERED_STORE(a.base, &a.header.journal_level, 0)
        TD_ORDERED_STORE(a.base, &a.header.turn, a.header.turn | 1)
        a.turn.began = a.turn.touched
        with nogil:
            wheel_jump(a, a.turn.now_ns // a.wheel.tick_ns)

    def apply(self, int slot, frame, uint64_t now_ns, uint64_t budget=65536):
        cdef Arena *a = self._here()
        cdef Py_buffer view
        cdef CommandHeader *header
        cdef uint32_t live = self._live(slot)
        cdef int status
        self._turn_at(now_ns)
        self._allow(budget)
        PyObject_GetBuffer(frame, &view, PyBUF_SIMPLE)
        try:
            if <uint64_t>view.len < sizeof(CommandHeader) or <uint64_t>view.len > FRAME_SIZE_MAX:
                return MALFORMED
            header = <CommandHeader *>view.buf
            with nogil:
                acknowledge_client(a, live, header.acknowledged_outcome, header.acknowledged_answer)
                status = apply_frame(a, live, <const uint8_t *>view.buf, view.len)
            return status
        finally:
            PyBuffer_Release(&view)

    def acknowledge(self, int slot, uint64_t outcome, uint64_t answer, uint64_t budget=65536):
        cdef Arena *a = self._here()
        cdef uint32_t live = self._live(slot)
        cdef bint done
        self._allow(budget)
        with nogil:
            done = acknowledge_client(a, live, outcome, answer)
        return not done

    def resume(self, uint64_t now_ns, uint64_t budget=65536):
        cdef Arena *a = self._here()
        cdef bint left
        self._turn_at(now_ns)
        self._allow(budget)
        with nogil:
            left = resume_work(a)
        return left

    def advance(self, uint64_t now_ns, uint64_t budget=65536):
        cdef Arena *a = self._here()
        cdef bint done
        self._turn_at(now_ns)
        self._allow(budget)
        with nogil:
            done = advance_wheel(a)
            # What has settled in this turn is told in it.
            done = hand_out(a) and done
        return not done

    def has_reports(self):
        return self._here().members.queued != 0

    def reports(
        self, uint64_t now_ns, uint32_t outcomes_max=16384, uint64_t bytes_max=0xFFFFFFFFFFFFFFFF,
        uint64_t confirm_ns=0,
    ):
        cdef Arena *a = self._here()
        cdef Extent x
        cdef uint32_t i, slot, count = a.members.queued
        cdef uint64_t size = 0, at_ns
        cdef bytes frame
        cdef uint8_t *out
        cdef list frames = [], more = []
        self._turn_at(now_ns)
        a.members.queued = 0
        self.reports_due_ns = NO_DEADLINE
        for i in range(count):
            slot = a.members.queue[i]
            if size >= bytes_max:
                # Next time it is the first; a.members.queued is at most i here, so what is read next is not overwritten.
                a.members.queue[a.members.queued] = slot
                a.members.queued += 1
                self.reports_due_ns = a.turn.now_ns
                continue
            at_ns = a.members.news[slot].told_ns + confirm_ns
            if a.turn.now_ns < at_ns and is_live(a, slot) and only_confirms(a, slot):
                a.members.queue[a.members.queued] = slot
                a.members.queued += 1
                self.reports_due_ns = min(self.reports_due_ns, at_ns)
                continue
            a.members.news[slot].queued = 0
            a.members.news[slot].told_ns = a.turn.now_ns
            if not is_live(a, slot):
                continue
            with nogil:
                measure(a, slot, a.members.news[slot].unreported, a.members.news[slot].outcome, a.members.news[slot].answer, outcomes_max, &x)
            frame = PyBytes_FromStringAndSize(NULL, report_size(&x))
            out = <uint8_t *>PyBytes_AS_STRING(frame)
            with nogil:
                write_report(a, slot, DOWN_KIND_REPORT, &x, out)
                note_reported(a, slot, &x)
            if x.more:
                more.append(slot)
            frames.append((slot, frame))
            size += <uint64_t>len(frame)
        for slot in more:
            tell(a, slot)
            self.reports_due_ns = a.turn.now_ns
        return frames

    def report(self, int slot, uint64_t outcome_after, uint64_t answer_after, uint64_t now_ns, uint32_t kind=1):
        cdef Arena *a = self._here()
        cdef Extent x
        cdef uint32_t live = self._live(slot)
        cdef bytes frame
        cdef uint8_t *out
        cdef uint32_t first = a.clients[live].next
        self._turn_at(now_ns)
        if outcome_after >= a.clients[live].next_outcome - 1:
            # Nothing follows: the unacknowledged ones need not be walked.
            outcome_after = a.clients[live].next_outcome - 1
            first = 0
        with nogil:
            measure(a, live, first, outcome_after, answer_after, OUTCOMES_IN_ANSWER, &x)
        frame = PyBytes_FromStringAndSize(NULL, report_size(&x))
        out = <uint8_t *>PyBytes_AS_STRING(frame)
        with nogil:
            write_report(a, live, kind, &x, out)
        return frame

    def unacknowledged(self, int slot):
        cdef Arena *a = self._here()
        cdef ClientRecord *c = a.clients + self._live(slot)
        return c.answers != 0 or not is_empty(a, &c.next)

    def end_turn(self, uint64_t now_ns):
        cdef Arena *a = self._here()
        cdef uint64_t touched = a.turn.touched - a.turn.began
        self._turn_at(now_ns)
        a.daemon[DAEMON_TURNS] += 1
        a.daemon[DAEMON_RECORDS_TOUCHED] += touched
        if touched > a.daemon[DAEMON_RECORDS_TOUCHED_MAX]:
            a.daemon[DAEMON_RECORDS_TOUCHED_MAX] = touched
        a.daemon[DAEMON_CLIENTS] = a.regions[REGION_CLIENTS].in_use - a.members.tombstones
        a.header.turn_at_ns = a.turn.now_ns
        TD_ORDERED_STORE(a.base, &a.header.turn, (a.header.turn | 1) + 1)
        return touched

    def next_wake_ns(self):
        cdef Arena *a = self._here()
        cdef uint64_t tick = next_tick(a), due
        cdef int level
        if a.turn.sweeping or a.members.handing or a.turn.dropping:
            return a.turn.now_ns
        for level in range(1, LEVELS):
            if a.wheel.owed[level]:
                return a.turn.now_ns
        due = NO_DEADLINE if tick == NO_DEADLINE else tick * a.wheel.tick_ns
        return min(due, a.members.groups_due_ns, a.members.tombstones_due_ns)

    # The journal.

    @property
    def journal_rows(self):
        return self._here().header.journal_rows

    @property
    def journal_dropped(self):
        return self._here().daemon[DAEMON_JOURNAL_ROWS_DROPPED]

    def open_journal(self, buffer, uint32_t level, uint64_t segment_rows, uint64_t written, uint64_t now_ns):
        cdef Arena *a = self._here()
        cdef Journal *j = &a.journal
        cdef BufferHeader *header
        cdef bint continues
        if self.journaling or not JOURNAL_LEVEL_NONE < level < JOURNAL_LEVEL_COUNT:
            raise _errors.InvalidValueError(f"a core has one journal, of level 1 or 2, not {level}")
        PyObject_GetBuffer(buffer, &self.journal, PyBUF_SIMPLE | PyBUF_WRITABLE)
        self.journaling = True
        header = <BufferHeader *>self.journal.buf
        if (
            <uint64_t>self.journal.len < BUFFER_HEADER_SIZE
            or <uint64_t>self.journal.len < BUFFER_HEADER_SIZE + <uint64_t>header.rows * ROW_SIZE
            or header.rows < BUFFER_ROWS_MIN
            or header.rows & (header.rows - 1)
            or header.fingerprint != JOURNAL_FINGERPRINT
            or header.incarnation != a.header.incarnation
            or segment_rows == 0
            or segment_rows % BLOCK_ROWS
        ):
            raise _errors.LayoutMismatchError(f"{self.journal.len} bytes are no journal's buffer of this arena")
        if not written <= a.header.journal_rows <= written + header.rows:
            raise _errors.LayoutMismatchError(
                f"the journal has {written} rows, and its buffer ends with {a.header.journal_rows} of {header.rows}"
            )
        self._turn_at(now_ns)
        j.rows = <char *>self.journal.buf + BUFFER_HEADER_SIZE
        j.capacity = header.rows
        j.texts = <SeenText *>calloc(TEXTS_SEEN, sizeof(SeenText))
        j.owners = <OwnerText *>calloc(a.regions[REGION_CLIENTS].count, sizeof(OwnerText))
        if j.texts == NULL or j.owners == NULL:
            raise MemoryError("no memory for the journal's texts")
        faults_beside(<const char *>self.journal.buf, self.journal.len)
        with nogil:
            continues = open_journal(a, level, segment_rows, written)
        return continues

    def tend_journal(self, uint64_t written, uint64_t wall_ns=0, uint64_t records=4096):
        cdef Arena *a = self._here()
        cdef bint left
        if a.journal.level == 0 or not a.journal.tail <= written <= a.journal.head:
            raise _errors.InvalidValueError(
                f"{written} rows written, of {a.journal.tail} to {a.journal.head} in the buffer of level {a.journal.level}"
            )
        with nogil:
            left = tend_journal(a, written, wall_ns, records)
        return left

    def renew_journal(self):
        cdef Arena *a = self._here()
        if a.journal.opening == 0:
            a.journal.opening = ROW_FLAG_CONTINUES

    # Counters.

    def count(self, uint32_t counter, uint64_t amount=1):
        if counter >= DAEMON_COUNTERS_MAX:
            raise _errors.InvalidValueError(f"counter {counter} is not below {DAEMON_COUNTERS_MAX}")
        self._here().daemon[counter] += amount

    def count_max(self, uint32_t counter, uint64_t value):
        if counter >= DAEMON_COUNTERS_MAX:
            raise _errors.InvalidValueError(f"counter {counter} is not below {DAEMON_COUNTERS_MAX}")
        if value > self._here().daemon[counter]:
            self._here().daemon[counter] = value

    def take_refusals(self):
        cdef Arena *a = self._here()
        cdef uint32_t at
        if a.members.refused == 0:
            return []
        taken = [(a.members.refusals[at].code, a.members.refusals[at].value, a.members.refusals[at].count) for at in range(a.members.refused)]
        a.members.refused = 0
        return taken

    def log_error(self, uint32_t code, bytes message not None, uint64_t wall_ns, uint64_t count=1):
        cdef Arena *a = self._here()
        cdef ErrorRecord *errors = <ErrorRecord *>self._region(REGION_ERRORS)
        cdef ErrorRecord *error
        cdef ErrorRecord *oldest = errors
        cdef uint32_t index, length = min(len(message), sizeof(errors.message) - 1)
        for index in range(a.regions[REGION_ERRORS].count):
            error = errors + index
            if error.count == 0 or (
                error.code == code
                and memcmp(error.message, PyBytes_AS_STRING(message), length) == 0
                and error.message[length] == 0
            ):
                break
            if error.last_wall_ns < oldest.last_wall_ns:
                oldest = error
        else:
            # The log is full of other errors: the one that was seen longest ago makes room.
            error = oldest
            error.count = 0
        if error.count == 0:
            memset(error, 0, sizeof(ErrorRecord))
            error.code = code
            error.first_wall_ns = wall_ns
            memcpy(error.message, PyBytes_AS_STRING(message), length)
            a.regions[REGION_ERRORS].in_use = max(a.regions[REGION_ERRORS].in_use, <uint32_t>(error - errors) + 1)
        error.count += count
        error.last_wall_ns = wall_ns


cdef void fill_client(
    ClientRecord *c, bytes incarnation, bytes session_hash, bytes name, uint32_t pid, uint64_t start_ticks,
    uint64_t pid_namespace, uint32_t orphans, uint64_t lease_ns, uint64_t now_ns, uint64_t wall_ns,
):
    """A free slot becomes this client's; its state word makes it true. Its lists are empty: a slot is freed when they are."""
    c.generation = c.generation + 1 if c.generation + 1 else 1
    c.orphans = orphans
    c.name_length = len(name)
    c.flags = 0
    memcpy(&c.incarnation_low, PyBytes_AS_STRING(incarnation), 8)
    memcpy(&c.incarnation_high, PyBytes_AS_STRING(incarnation) + 8, 8)
    memcpy(&c.session_low, PyBytes_AS_STRING(session_hash), 8)
    memcpy(&c.session_high, PyBytes_AS_STRING(session_hash) + 8, 8)
    c.last_command = 0
    c.next_outcome = 1
    c.acknowledged = 0
    c.answers_acknowledged = 0
    c.pid = pid
    c.group = 0
    c.start_ticks = start_ticks
    c.pid_namespace = pid_namespace
    c.connected_wall_ns = wall_ns
    memset(c.name, 0, NAME_SIZE_MAX)
    memcpy(c.name, PyBytes_AS_STRING(name), len(name))
    c.heard_ns = now_ns
    c.silent_ns = 0
    c.lease_ns = lease_ns
    c.watermarks = 0
    c.bytes_held = 0
    c.died_ns = 0
    c.calls = 0
    c.names = 0


cdef inline void stage_calls(Arena *a, ClientRecord *c, uint32_t most, uint32_t names) noexcept:
    """The words by which a client takes so many calls, of these names (a blob)."""
    td_put(&a.tx, ClientRecord_word_pid(c), ClientRecord_with_calls(ClientRecord_word_pid(c)[0], most))
    td_put(&a.tx, ClientRecord_word_names(c), ClientRecord_with_names(ClientRecord_word_names(c)[0], names))


cdef void fill_membership(ClientRecord *c, uint32_t group, bint listens):
    c.group = group
    c.flags = CLIENT_FLAG_LISTENS if listens else 0


cdef void fill_group(GroupRecord *g, bytes name, uint64_t now_ns, uint32_t pid, uint64_t start_ticks):
    """A record that is not in use becomes this group's. It has no operations: a record is used again when it has none."""
    g.name_length = len(name)
    memset(g.name, 0, NAME_SIZE_MAX)
    memcpy(g.name, PyBytes_AS_STRING(name), len(name))
    g.empty_since_ns = now_ns
    g.maker_pid = pid
    g.maker_start_ticks = start_ticks


cdef void fill_purgatory(PurgatoryRecord *p, bytes name):
    p.name_length = len(name)
    memset(p.name, 0, NAME_SIZE_MAX)
    memcpy(p.name, PyBytes_AS_STRING(name), len(name))


def record(uint64_t limit, uint64_t chance=0):
    if not FAULTS_BUILT:
        raise _errors.NotSupportedError("this build has no crash points: build with -DTIMERD_FAULTS=ON")
    faults_record(1 if chance else limit, chance)


def snapshots():
    cdef uint64_t i
    copies = [PyBytes_FromStringAndSize(faults_copies + i * faults_size, faults_size) for i in range(faults_count)]
    faults_record(0, 0)
    return copies


def set_defect(int number):
    if not FAULTS_BUILT and number:
        raise _errors.NotSupportedError("this build has no defects to seed: build with -DTIMERD_FAULTS=ON")
    faults_set_defect(number)
