"""The compiled purgatory, as Python sees it: each method calls one function of a room.

core.pyi has the interface. purgatory/__init__.pxd says which rooms there are; the room binding/ checks arguments and
raises errors.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint32_t, uint64_t
from timerd.purgatory.memory.arena cimport Arena
from timerd.purgatory.memory.counters cimport histogram_add
from timerd.purgatory.memory.error_log cimport log_error
from timerd.purgatory.memory.faults cimport (
    FAULTS_BUILT, faults_copies, faults_count, faults_record, faults_set_defect, faults_size,
)
from timerd.purgatory.memory.list cimport is_empty
from timerd.purgatory.journal.rows cimport end_journal, renew_journal
from timerd.purgatory.members.state cimport Members
from timerd.purgatory.members.clients cimport is_live, queue_report, topic_of
from timerd.purgatory.members.groups cimport find_held, give_back
from timerd.purgatory.members.membership cimport set_silence
from timerd.purgatory.members.reports cimport Round
from timerd.purgatory.members.looks cimport has_looks, send_looks_again
from timerd.purgatory.members.lifecycle cimport Facts, close_client, resume_client
from timerd.purgatory.commands.acknowledge cimport acknowledge_client
from timerd.purgatory.commands.frame cimport FRAME_APPLIED, FRAME_EXPECTED, FRAME_MALFORMED, FRAME_UNFINISHED
from timerd.purgatory.turn.expiry cimport advance
from timerd.purgatory.turn.new_plans cimport set_wall_clock
from timerd.purgatory.turn.duty_cycle cimport (
    allow, begin_turn, end_turn, last_turn_ns, next_wake, resume_work, take_time,
)
from timerd.purgatory.binding.arguments cimport (
    PRESENT, accept_calls, accept_outcomes, check_share, daemon_counter, facts_of, group_named, is_maker, live_slot,
    open_slot, purgatory_named, refusals, slot_of, tombstone_slot, watermark_found,
)
from timerd.purgatory.binding.buffers cimport (
    Taken, attach_memory, begin_log, end_log, open_buffer, receive, release_memory, tend_buffer,
)
from timerd.purgatory.binding.report_frames cimport check_asked, refusal_found, report_again, report_frames
from timerd.purgatory.binding.waits cimport commands_unknown
from timerd_shm.generated.records cimport *

from timerd_shm.declare import layout as _layout

APPLIED = FRAME_APPLIED
EXPECTED = FRAME_EXPECTED
UNFINISHED = FRAME_UNFINISHED
MALFORMED = FRAME_MALFORMED
NEVER = NO_DEADLINE
_FINGERPRINT = LAYOUT_FINGERPRINT
globals()["LAYOUT_FINGERPRINT"] = _FINGERPRINT

if _FINGERPRINT != _layout.fingerprint():
    raise ImportError(
        f"timerd.core was compiled from other declarations (fingerprint 0x{_FINGERPRINT:08x}) than timerd_shm has "
        f"(0x{_layout.fingerprint():08x}): run `make generate build`"
    )


cdef class Core:
    cdef Arena arena
    cdef Taken memory, journal, images
    cdef readonly uint64_t redo_replayed, reports_due_ns

    def __init__(self, memory, uint64_t now_ns, bytes seed not None):
        self.redo_replayed = attach_memory(&self.arena, &self.memory, memory, now_ns, seed)

    def __dealloc__(self):
        release_memory(&self.arena, &self.memory, &self.journal, &self.images)

    def release(self):
        release_memory(&self.arena, &self.memory, &self.journal, &self.images)

    cdef Arena *_here(self) except NULL:
        if not self.memory.taken:
            raise refusals().released()
        return &self.arena

    cdef Arena *_at(self, uint64_t now_ns) except NULL:
        cdef Arena *a = self._here()
        take_time(a, now_ns)
        return a

    cdef uint32_t _live(self, int slot) except? 0xFFFFFFFF:
        return live_slot(self._here(), slot)

    cdef uint32_t _live_at(self, int slot, uint64_t now_ns) except? 0xFFFFFFFF:
        cdef uint32_t live = self._live(slot)
        take_time(&self.arena, now_ns)
        return live

    cdef ClientRecord *_client(self, int slot) except NULL:
        return self.arena.clients + self._live(slot)

    @property
    def incarnation(self):
        return self._here().header.incarnation

    @property
    def rehashed(self):
        return self._here().rehashed

    @property
    def newest(self):
        return self._here().header.newest

    @property
    def last_turn_ns(self):
        return last_turn_ns(self._here())

    @property
    def tick_ns(self):
        return self._here().wheel.tick_ns

    # Clients.

    def open_client(
        self, bytes incarnation not None, bytes session_hash not None, *, bytes name=b"", uint32_t pid=0,
        uint64_t start_ticks=0, uint64_t pid_namespace=0, uint32_t orphans=0, uint64_t lease_ns=LEASE_NS,
        uint32_t takeover_ms=TAKEOVER_MS, uint64_t now_ns, uint64_t wall_ns=0, uint32_t group=0, bint listens=False,
        uint32_t maker_pid=0, uint64_t maker_start_ticks=0, uint32_t uid=UID_UNKNOWN,
    ):
        cdef Facts facts = facts_of(
            self._here(), name, pid, start_ticks, pid_namespace, orphans, lease_ns, takeover_ms, wall_ns, group,
            listens, maker_pid, maker_start_ticks, uid,
        )
        return open_slot(&self.arena, incarnation, session_hash, &facts, now_ns)

    def resume_client(
        self, int slot, *, bytes name=b"", uint32_t pid=0, uint64_t start_ticks=0, uint64_t pid_namespace=0,
        uint32_t orphans=0, uint64_t lease_ns=LEASE_NS, uint32_t takeover_ms=TAKEOVER_MS, uint64_t now_ns,
        uint64_t wall_ns=0, uint32_t group=0, bint listens=False, uint32_t maker_pid=0, uint64_t maker_start_ticks=0,
        uint32_t uid=UID_UNKNOWN,
    ):
        cdef uint32_t tombstone = tombstone_slot(self._here(), slot)
        cdef Facts facts = facts_of(
            &self.arena, name, pid, start_ticks, pid_namespace, orphans, lease_ns, takeover_ms, wall_ns, group,
            listens, maker_pid, maker_start_ticks, uid,
        )
        take_time(&self.arena, now_ns)
        if not is_maker(&self.arena, tombstone, &facts):
            check_share(&self.arena, &facts)
        resume_client(&self.arena, tombstone, &facts)

    def find_session(self, bytes session_hash not None):
        return slot_of(self._here(), session_hash, True, PRESENT)

    def find_incarnation(self, bytes incarnation not None):
        return slot_of(self._here(), incarnation, False, PRESENT)

    def find_tombstone(self, bytes session_hash not None):
        return slot_of(self._here(), session_hash, True, 1 << CLIENT_STATE_TOMBSTONE)

    def is_dying(self, bytes session_hash not None):
        return slot_of(self._here(), session_hash, True, 1 << CLIENT_STATE_DEAD) >= 0

    def close_client(self, int slot, uint64_t now_ns, *, bint goodbye=False):
        close_client(&self.arena, self._live_at(slot, now_ns), goodbye)

    def group(self, bytes name not None, uint32_t pid=0, uint64_t start_ticks=0, uint32_t uid=UID_UNKNOWN):
        return group_named(self._here(), name, pid, start_ticks, uid)

    def set_listening(self, int slot, bint listens, uint64_t now_ns):
        return accept_outcomes(&self.arena, self._live(slot), listens, now_ns) != 0

    def set_calls(self, int slot, int most, int purgatory, list names not None, uint64_t now_ns):
        return accept_calls(&self.arena, self._live(slot), most, purgatory, names, now_ns)

    def give_back(self, int slot, list operations not None, uint64_t now_ns):
        cdef uint32_t live = self._live_at(slot, now_ns)
        return [operation for operation in operations if give_back(&self.arena, live, operation)]

    def silence(self, int slot, uint64_t now_ns, *, bint keeps=False):
        set_silence(&self.arena, self._live_at(slot, now_ns), CLIENT_STATE_SILENT, keeps)

    def revive(self, int slot, uint64_t now_ns):
        set_silence(&self.arena, self._live_at(slot, now_ns), CLIENT_STATE_LIVE, False)

    def holds(self, int slot):
        cdef ClientRecord *c = self._client(slot)
        return c.held != 0 or c.calls_held != 0

    def set_silent_ns(self, int slot, uint64_t silent_ns):
        self._client(slot).silent_ns = silent_ns

    def held(self, int slot, list operations not None):
        cdef uint32_t live = self._live(slot)
        return [operation for operation in operations if find_held(&self.arena, live, operation) != NULL]

    def topic(self, int slot):
        return topic_of(&self.arena, self._live(slot))

    def heard(self, int slot, uint64_t now_ns):
        self._client(slot).last_frame_ns = now_ns

    def live_slots(self):
        cdef Arena *a = self._here()
        return [slot for slot in range(a.regions[REGION_CLIENTS].count) if is_live(a, slot)]

    def last_command(self, int slot):
        return self._client(slot).last_command

    def unknown_waits(self, int slot, list commands not None):
        cdef uint32_t live = self._live(slot)
        return commands_unknown(&self.arena, live, commands)

    def purgatory(self, bytes name not None, int slot=-1):
        return purgatory_named(self._here(), name, slot)

    def watermark(self, int purgatory, bytes key not None):
        return watermark_found(self._here(), purgatory, key)

    @property
    def is_delivering(self):
        return self._here().header.unfinished != 0

    @property
    def touched(self):
        return self._here().turn.touched

    # A turn.

    def begin_turn(self, uint64_t now_ns, uint64_t before_gap_ns=NO_DEADLINE):
        cdef Arena *a = self._at(now_ns)
        with nogil:
            begin_turn(a, before_gap_ns)

    def set_wall_clock(self, int64_t ahead_ns):
        set_wall_clock(self._here(), <uint64_t>ahead_ns)

    def apply(self, int slot, frame, uint64_t now_ns, uint64_t budget=65536):
        cdef uint32_t live = self._live_at(slot, now_ns)
        allow(&self.arena, budget)
        return receive(&self.arena, live, frame)

    def acknowledge(self, int slot, uint64_t outcome, uint64_t answer, uint64_t budget=65536):
        cdef uint32_t live = self._live(slot)
        cdef Arena *a = &self.arena
        cdef bint done
        allow(a, budget)
        with nogil:
            done = acknowledge_client(a, live, outcome, answer)
        return not done

    def resume(self, uint64_t now_ns, uint64_t budget=65536):
        cdef Arena *a = self._at(now_ns)
        cdef bint left
        allow(a, budget)
        with nogil:
            left = resume_work(a)
        return left

    def advance(self, uint64_t now_ns, uint64_t budget=65536):
        cdef Arena *a = self._at(now_ns)
        cdef bint done
        allow(a, budget)
        with nogil:
            done = advance(a)
        return not done

    def has_reports(self):
        return self._here().members.queued != 0

    def confirm(self, int slot):
        queue_report(self._here(), self._live(slot))

    def reports(
        self, uint64_t now_ns, uint32_t outcomes_max=16384, uint64_t bytes_max=0xFFFFFFFFFFFFFFFF,
        uint64_t confirm_ns=0,
    ):
        cdef Round round
        round.confirm_ns, round.outcomes_max = confirm_ns, outcomes_max
        frames = report_frames(self._at(now_ns), &round, bytes_max)
        self.reports_due_ns = round.due_ns
        return frames

    def report(self, int slot, uint64_t outcome_after, uint64_t answer_after, uint64_t now_ns, uint32_t kind=1):
        return report_again(&self.arena, self._live_at(slot, now_ns), outcome_after, answer_after, kind)

    def unacknowledged(self, int slot):
        cdef ClientRecord *c = self._client(slot)
        return c.answers != 0 or not is_empty(&self.arena, &c.next) or has_looks(&self.arena, slot)

    def send_looks_again(self, int slot):
        send_looks_again(self._here(), self._live(slot))

    def check(self, int slot, uint64_t command, bint end):
        return check_asked(self._here(), self._live(slot), command, end)

    def take_finished(self):
        cdef Members *m = &self._here().members
        cdef bint finished = m.checks_finished
        m.checks_finished = False
        return finished

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
        return open_buffer(self._here(), &self.journal, buffer, level, segment_rows, written, now_ns)

    def tend_journal(self, uint64_t written, uint64_t wall_ns=0, uint64_t records=4096):
        return tend_buffer(self._here(), written, wall_ns, records)

    def renew_journal(self):
        renew_journal(self._here())

    def end_journal(self, uint64_t now_ns):
        cdef Arena *a = self._at(now_ns)
        if a.journal.level:
            end_journal(a)

    # A copy of the arena.

    def begin_copy(self, log):
        begin_log(self._here(), &self.images, log)

    def end_copy(self):
        end_log(&self.images)

    # Counters, and the log of errors.

    def count(self, uint32_t counter, uint64_t amount=1):
        daemon_counter(self._here(), counter)[0] += amount

    def set_count(self, uint32_t counter, uint64_t value):
        daemon_counter(self._here(), counter)[0] = value

    def count_max(self, uint32_t counter, uint64_t value):
        cdef uint64_t *most = daemon_counter(self._here(), counter)
        most[0] = max(most[0], value)

    def note_turn_cpu(self, uint64_t cpu_ns):
        histogram_add(self._here().daemon_histograms + DAEMON_HISTOGRAM_TURN_CPU, cpu_ns)

    def take_refusals(self):
        cdef Members *m = &self._here().members
        taken = [refusal_found(m.refusals + at) for at in range(m.refused)]
        m.refused = 0
        return taken

    def log_error(self, uint32_t code, bytes message not None, uint64_t wall_ns, uint64_t count=1):
        log_error(self._here(), code, PyBytes_AS_STRING(message), len(message), wall_ns, count)


def record(uint64_t limit, uint64_t chance=0):
    if not FAULTS_BUILT:
        raise refusals().not_built("crash points")
    faults_record(1 if chance else limit, chance)


def snapshots():
    cdef uint64_t i
    copies = [PyBytes_FromStringAndSize(faults_copies + i * faults_size, faults_size) for i in range(faults_count)]
    faults_record(0, 0)
    return copies


def set_defect(int number):
    if not FAULTS_BUILT and number:
        raise refusals().not_built("defects to seed")
    faults_set_defect(number)
