"""The compiled purgatory's Python face: each method converts its arguments, calls one function of a room, converts the result.

core.pyi has the interface; purgatory/__init__.pxd says which rooms there are, and purgatory/refusals.py what is refused.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memset
from timerd.purgatory.memory.arena cimport Arena
from timerd.purgatory.memory.error_log cimport log_error
from timerd.purgatory.memory.hash cimport key_hash
from timerd.purgatory.memory.list cimport is_empty
from timerd.purgatory.memory.transaction cimport TD_DEFECT
from timerd.purgatory.journal.buffer cimport buffer_is_sound, make_texts
from timerd.purgatory.journal.rows cimport open_journal, renew_journal, tend_journal
from timerd.purgatory.index.purgatories cimport open_purgatory, purgatory_is_open
from timerd.purgatory.members.state cimport Members
from timerd.purgatory.members.answers cimport is_unknown
from timerd.purgatory.members.clients cimport is_live, queue_report, topic_of
from timerd.purgatory.members.groups cimport find_held
from timerd.purgatory.members.membership cimport may_listen, open_group, set_calls, set_client_state, set_listening
from timerd.purgatory.members.reports cimport (
    Extent, Round, begin_round, measure_again, next_report, note_reported, report_size, write_report,
)
from timerd.purgatory.members.slots cimport (
    Facts, close_client, find_client, free_slot, open_client, renew_session, resume_client,
)
from timerd.purgatory.commands.frame cimport FRAME_APPLIED, FRAME_EXPECTED, FRAME_MALFORMED, FRAME_UNFINISHED
from timerd.purgatory.turn.acknowledge cimport acknowledge_client, receive_frame
from timerd.purgatory.turn.expiry cimport advance
from timerd.purgatory.turn.duty_cycle cimport begin_turn, end_turn, next_wake, resume_work, take_time
from timerd.purgatory.start.attach cimport attach_arena, drop_rooms
from timerd.purgatory.start.redo cimport finish_transaction, redo_is_sound
from timerd.purgatory.start.validate cimport Damage
from timerd_shm.generated.records cimport *

from timerd.purgatory import refusals as _refusals
from timerd.purgatory.start import header as _header
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
    void faults_nothing_beside(const char *memory)

APPLIED = FRAME_APPLIED
EXPECTED = FRAME_EXPECTED
UNFINISHED = FRAME_UNFINISHED
MALFORMED = FRAME_MALFORMED
NEVER = NO_DEADLINE
_FINGERPRINT = LAYOUT_FINGERPRINT
globals()["LAYOUT_FINGERPRINT"] = _FINGERPRINT

cdef uint32_t PRESENT = 1 << CLIENT_STATE_LIVE | 1 << CLIENT_STATE_SILENT

if _FINGERPRINT != _layout.fingerprint():
    raise ImportError(
        f"timerd.core was compiled from other declarations (fingerprint 0x{_FINGERPRINT:08x}) than timerd_shm has "
        f"(0x{_layout.fingerprint():08x}): run `make generate build`"
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
        if self.attached:
            raise _errors.ClosedError("this Core is attached already; make another one")
        PyObject_GetBuffer(memory, &self.buffer, PyBUF_SIMPLE | PyBUF_WRITABLE)
        self.attached = True
        try:
            with memoryview(memory) as view, view.cast("B") as octets:
                self._attach(octets, now_ns)
        except BaseException:
            self.release()
            raise

    cdef _attach(self, view, uint64_t now_ns):
        cdef Arena *a = &self.arena
        cdef Damage damage
        cdef bint made
        memset(&damage, 0, sizeof(damage))
        _header.check_header(view, LAYOUT_FINGERPRINT ^ (1 if TD_DEFECT(DEFECT_STALE_CONSTANT) else 0))
        a.base = <char *>self.buffer.buf
        a.header = <ArenaHeader *>a.base
        # Before anything is made of what it may change.
        if not redo_is_sound(a):
            raise _header.damaged(f"its redo slot (count {a.header.redo_count})")
        self.redo_replayed = finish_transaction(a)
        _header.check_regions(view)
        with nogil:
            made = attach_arena(a, now_ns, &damage)
        if damage.found:
            raise _header.damaged_record(damage.region, damage.index)
        if not made:
            raise MemoryError("no memory for what the core remembers beside the arena")
        if self.redo_replayed:
            a.daemon[DAEMON_REDO_REPLAYED] += 1
        a.daemon[DAEMON_STARTS] += 1

    def __dealloc__(self):
        self._let_go()

    cdef void _let_go(self):
        if self.attached:
            drop_rooms(&self.arena)
            if self.journaling:
                faults_nothing_beside(<const char *>self.journal.buf)
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

    cdef Arena *_at(self, uint64_t now_ns) except NULL:
        cdef Arena *a = self._here()
        take_time(a, now_ns)
        return a

    cdef Arena *_allow(self, uint64_t budget) except NULL:
        cdef Arena *a = self._here()
        a.turn.limit = a.turn.touched + budget
        return a

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
        cdef Facts facts
        cdef int slot
        if len(incarnation) != 16 or len(session_hash) != 16:
            raise _errors.InvalidValueError("a client needs 16 bytes of incarnation and of session")
        facts.pid, facts.start_ticks, facts.pid_namespace = pid, start_ticks, pid_namespace
        facts.lease_ns, facts.wall_ns = lease_ns, wall_ns
        self._check(&facts, name, orphans, group, listens)
        take_time(a, now_ns)
        slot = self._find(incarnation, False, PRESENT)
        if slot >= 0:
            renew_session(a, slot, PyBytes_AS_STRING(session_hash), now_ns)
            return slot
        slot = free_slot(a)
        if slot < 0:
            raise _refusals.clients_are_full(a.regions[REGION_CLIENTS].count)
        open_client(a, slot, PyBytes_AS_STRING(incarnation), PyBytes_AS_STRING(session_hash), &facts)
        return slot

    cdef int _check(self, Facts *facts, bytes name, uint32_t orphans, uint32_t group, bint listens) except -1:
        """What open_client() and resume_client() are told about a client."""
        cdef Arena *a = self._here()
        if len(name) > NAME_SIZE_MAX or orphans >= ORPHANS_COUNT:
            raise _refusals.invalid_client()
        if group > a.regions[REGION_GROUPS].count or (group and not a.groups[group - 1].state):
            raise _refusals.unknown_group(group)
        if not group and (listens or orphans == ORPHANS_GROUP):
            raise _refusals.needs_a_group()
        facts.name, facts.name_length = PyBytes_AS_STRING(name), len(name)
        facts.orphans, facts.group, facts.listens = orphans, group, listens
        return 0

    cdef int _find(self, bytes wanted, bint by_session, uint32_t states) except -2:
        if len(wanted) != 16:
            raise _errors.InvalidValueError(f"{len(wanted)} bytes, not 16")
        return find_client(self._here(), PyBytes_AS_STRING(wanted), by_session, states)

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
        cdef Facts facts
        if slot < 0 or slot >= <int>a.regions[REGION_CLIENTS].count or a.clients[slot].state != CLIENT_STATE_TOMBSTONE:
            raise _errors.SessionGoneError(f"slot {slot} is no tombstone")
        facts.pid, facts.start_ticks, facts.pid_namespace = pid, start_ticks, pid_namespace
        facts.lease_ns, facts.wall_ns = lease_ns, wall_ns
        self._check(&facts, name, orphans, group, listens)
        take_time(a, now_ns)
        resume_client(a, slot, &facts)

    def close_client(self, int slot, uint64_t now_ns, *, bint goodbye=False):
        cdef uint32_t live = self._live(slot)
        close_client(self._at(now_ns), live, goodbye)

    def group(self, bytes name not None, uint32_t pid=0, uint64_t start_ticks=0):
        cdef Arena *a = self._here()
        cdef uint32_t made, group
        if not 1 <= len(name) <= NAME_SIZE_MAX:
            raise _refusals.invalid_name("group", len(name))
        group = open_group(a, PyBytes_AS_STRING(name), len(name), pid, start_ticks, &made)
        if made:
            raise _refusals.too_many_groups(pid, made, a.regions[REGION_GROUPS].count)
        if group == 0:
            raise _refusals.groups_are_full(a.regions[REGION_GROUPS].count)
        return group

    def set_listening(self, int slot, bint listens, uint64_t now_ns):
        cdef Arena *a = self._here()
        cdef uint32_t live = self._live(slot)
        if a.clients[live].group == 0:
            raise _refusals.in_no_group("outcomes")
        if listens and not may_listen(a.clients + live):
            return False
        take_time(a, now_ns)
        set_listening(a, live, listens)
        return listens

    def set_calls(self, int slot, int most, int purgatory, list names not None, uint64_t now_ns):
        cdef Arena *a = self._here()
        cdef uint32_t live = self._live(slot), count = 0
        cdef uint64_t hashes[HANDLED_NAMES_MAX]
        if a.clients[live].group == 0:
            raise _refusals.in_no_group("calls")
        if not 0 <= most <= GROUP_HELD_MAX or len(names) > HANDLED_NAMES_MAX:
            raise _refusals.too_many_calls(len(names), most)
        if purgatory < 0 or not purgatory_is_open(a, purgatory):
            raise _refusals.unknown_purgatory(purgatory)
        if most and a.clients[live].calls_held and not a.clients[live].calls:
            return 0  # it was told that it holds nothing any more, and the sweep has not found all of that yet
        for name in names if most else ():
            if not 1 <= len(name) <= KEY_SIZE_MAX:
                raise _refusals.invalid_call_name(len(name))
            hashes[count] = key_hash(a.header.hash_seed, purgatory, <const uint8_t *>PyBytes_AS_STRING(name), len(name))
            count += 1
        take_time(a, now_ns)
        if not set_calls(a, live, most, hashes, count):
            raise _refusals.no_room_for_names(a.regions[REGION_BLOCKS].count, count)
        return most

    def silence(self, int slot, uint64_t now_ns):
        cdef uint32_t live = self._live(slot)
        set_client_state(self._at(now_ns), live, CLIENT_STATE_SILENT)

    def revive(self, int slot, uint64_t now_ns):
        cdef uint32_t live = self._live(slot)
        set_client_state(self._at(now_ns), live, CLIENT_STATE_LIVE)

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
        cdef uint32_t live = self._live(slot)
        return [command for command in commands if is_unknown(a, live, command)]

    def purgatory(self, bytes name not None):
        cdef Arena *a = self._here()
        cdef int index
        if not 1 <= len(name) <= NAME_SIZE_MAX:
            raise _refusals.invalid_name("purgatory", len(name))
        index = open_purgatory(a, PyBytes_AS_STRING(name), len(name))
        if index < 0:
            raise _refusals.purgatories_are_full(a.regions[REGION_PURGATORIES].count)
        return index

    # A turn.

    def begin_turn(self, uint64_t now_ns):
        cdef Arena *a = self._at(now_ns)
        with nogil:
            begin_turn(a)

    def apply(self, int slot, frame, uint64_t now_ns, uint64_t budget=65536):
        cdef uint32_t live = self._live(slot)
        cdef Arena *a = self._at(now_ns)
        cdef Py_buffer view
        cdef int status
        self._allow(budget)
        PyObject_GetBuffer(frame, &view, PyBUF_SIMPLE)
        try:
            with nogil:
                status = receive_frame(a, live, <const uint8_t *>view.buf, view.len)
            return status
        finally:
            PyBuffer_Release(&view)

    def acknowledge(self, int slot, uint64_t outcome, uint64_t answer, uint64_t budget=65536):
        cdef uint32_t live = self._live(slot)
        cdef Arena *a = self._allow(budget)
        cdef bint done
        with nogil:
            done = acknowledge_client(a, live, outcome, answer)
        return not done

    def resume(self, uint64_t now_ns, uint64_t budget=65536):
        cdef Arena *a = self._at(now_ns)
        cdef bint left
        self._allow(budget)
        with nogil:
            left = resume_work(a)
        return left

    def advance(self, uint64_t now_ns, uint64_t budget=65536):
        cdef Arena *a = self._at(now_ns)
        cdef bint done
        self._allow(budget)
        with nogil:
            done = advance(a)
        return not done

    def has_reports(self):
        return self._here().members.queued != 0

    def reports(
        self, uint64_t now_ns, uint32_t outcomes_max=16384, uint64_t bytes_max=0xFFFFFFFFFFFFFFFF,
        uint64_t acknowledge_ns=0,
    ):
        cdef Arena *a = self._at(now_ns)
        cdef Round round
        cdef Extent x
        cdef int slot
        cdef uint64_t size = 0
        cdef bytes frame
        cdef list frames = [], more = []
        round.acknowledge_ns, round.outcomes_max = acknowledge_ns, outcomes_max
        begin_round(a, &round)
        while True:
            with nogil:
                slot = next_report(a, &round, size >= bytes_max, &x)
            if slot < 0:
                break
            frame = self._written(slot, DOWN_KIND_REPORT, &x)
            note_reported(a, slot, &x)
            if x.more:
                more.append(slot)
            frames.append((slot, frame))
            size += <uint64_t>len(frame)
        self.reports_due_ns = a.turn.now_ns if more else round.due_ns
        for slot in more:
            queue_report(a, slot)
        return frames

    def report(self, int slot, uint64_t outcome_after, uint64_t answer_after, uint64_t now_ns, uint32_t kind=1):
        cdef uint32_t live = self._live(slot)
        cdef Arena *a = self._at(now_ns)
        cdef Extent x
        with nogil:
            measure_again(a, live, outcome_after, answer_after, &x)
        return self._written(live, kind, &x)

    cdef bytes _written(self, uint32_t slot, uint32_t kind, Extent *x):
        """The frame of a measured report."""
        cdef bytes frame = PyBytes_FromStringAndSize(NULL, report_size(x))
        cdef uint8_t *out = <uint8_t *>PyBytes_AS_STRING(frame)
        with nogil:
            write_report(&self.arena, slot, kind, x, out)
        return frame

    def unacknowledged(self, int slot):
        cdef Arena *a = self._here()
        cdef ClientRecord *c = a.clients + self._live(slot)
        return c.answers != 0 or not is_empty(a, &c.next)

    def end_turn(self, uint64_t now_ns):
        return end_turn(self._at(now_ns))

    def next_wake_ns(self):
        return next_wake(self._here())

    # The journal.

    @property
    def journal_rows(self):
        return self._here().header.journal_rows

    @property
    def journal_dropped(self):
        return self._here().daemon[DAEMON_JOURNAL_ROWS_DROPPED]

    def open_journal(self, buffer, uint32_t level, uint64_t segment_rows, uint64_t written, uint64_t now_ns):
        cdef Arena *a = self._here()
        cdef BufferHeader *header
        cdef bint continues
        if self.journaling or not JOURNAL_LEVEL_NONE < level < JOURNAL_LEVEL_COUNT:
            raise _refusals.invalid_level(level)
        PyObject_GetBuffer(buffer, &self.journal, PyBUF_SIMPLE | PyBUF_WRITABLE)
        self.journaling = True
        header = <BufferHeader *>self.journal.buf
        if not buffer_is_sound(a, header, self.journal.len, segment_rows):
            raise _refusals.no_buffer(self.journal.len)
        if not written <= a.header.journal_rows <= written + header.rows:
            raise _refusals.buffer_ends_elsewhere(written, a.header.journal_rows, header.rows)
        take_time(a, now_ns)
        if not make_texts(a, header):
            raise MemoryError("no memory for the journal's texts")
        faults_beside(<const char *>self.journal.buf, self.journal.len)
        with nogil:
            continues = open_journal(a, level, segment_rows, written)
        return continues

    def tend_journal(self, uint64_t written, uint64_t wall_ns=0, uint64_t records=4096):
        cdef Arena *a = self._here()
        cdef bint left
        if a.journal.level == 0 or not a.journal.tail <= written <= a.journal.head:
            raise _refusals.rows_not_in_buffer(written, a.journal.tail, a.journal.head, a.journal.level)
        with nogil:
            left = tend_journal(a, written, wall_ns, records)
        return left

    def renew_journal(self):
        renew_journal(self._here())

    # Counters, and the log of errors.

    cdef uint64_t *_counter(self, uint32_t counter) except NULL:
        if counter >= DAEMON_COUNTERS_MAX:
            raise _refusals.unknown_counter(counter)
        return self._here().daemon + counter

    def count(self, uint32_t counter, uint64_t amount=1):
        self._counter(counter)[0] += amount

    def count_max(self, uint32_t counter, uint64_t value):
        cdef uint64_t *most = self._counter(counter)
        most[0] = max(most[0], value)

    def take_refusals(self):
        cdef Members *m = &self._here().members
        taken = [(m.refusals[at].code, m.refusals[at].value, m.refusals[at].count) for at in range(m.refused)]
        m.refused = 0
        return taken

    def log_error(self, uint32_t code, bytes message not None, uint64_t wall_ns, uint64_t count=1):
        log_error(self._here(), code, PyBytes_AS_STRING(message), len(message), wall_ns, count)


def record(uint64_t limit, uint64_t chance=0):
    if not FAULTS_BUILT:
        raise _refusals.not_built("crash points")
    faults_record(1 if chance else limit, chance)


def snapshots():
    cdef uint64_t i
    copies = [PyBytes_FromStringAndSize(faults_copies + i * faults_size, faults_size) for i in range(faults_count)]
    faults_record(0, 0)
    return copies


def set_defect(int number):
    if not FAULTS_BUILT and number:
        raise _refusals.not_built("defects to seed")
    faults_set_defect(number)
