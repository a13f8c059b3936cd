"""Frames: commands are numbered one by one, and each is applied exactly once (DESIGN.md, rule 7).

A frame enters the core in receive_frame(), at the end of this file.

Bytes from a socket are not trusted until they are checked. Nothing beyond the frame is read. Every length is compared
with the bytes that are left, every index with the existing records. A command with a wrong structure ends the frame
(MALFORMED). A command with a wrong value is refused with a code, and its number counts as applied.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from timerd.purgatory.memory.arena cimport Arena, spent
from timerd.purgatory.memory.builtins cimport __builtin_prefetch
from timerd.purgatory.memory.hash cimport handle_line, tag_in
from timerd.purgatory.memory.transaction cimport TD_DEFECT
from timerd.purgatory.index.purgatories cimport in_mask, purgatory_is_open
from timerd.purgatory.members.answers cimport can_answer
from timerd.purgatory.members.clients cimport confirm_later, queue_report
from timerd_shm.generated.records cimport *

from .acknowledge cimport acknowledge_client
from .command_batch cimport cancel_batch, fire_batch, register_batch
from .commands cimport apply_command
from .prefetch cimport (
    PREFETCH_GROUP, Prefetched, length_of, prefetch_event, prefetch_operation, prefetch_registration, prefetch_further,
)


cdef extern from *:
    """
    enum { FRAME_APPLIED = 0, FRAME_EXPECTED = 1, FRAME_UNFINISHED = 2, FRAME_MALFORMED = 3 };
    #define FRAME_AHEAD 512 /* a frame is prefetched this many bytes ahead of the command that is looked at */
    """
    enum:
        FRAME_AHEAD
        FRAME_APPLIED
        FRAME_EXPECTED
        FRAME_UNFINISHED
        FRAME_MALFORMED


cdef inline uint32_t prefetch_commands(
    Arena *a, uint32_t slot, uint64_t number, const uint8_t *p, const uint8_t *end, uint32_t count, Prefetched *ahead
) noexcept nogil:
    """Prefetch for PREFETCH_GROUP commands at most, up to the first with a wrong length. Returns their number.

    The first stage touches the table entries by which the commands find their records.
    """
    # `line`: where the handles of sixteen neighbouring numbers stand. `last`: the last of these numbers.
    cdef uint64_t line = handle_line(a.seed, slot, number), last = number | (HANDLE_LANES - 1)
    cdef uint32_t seen = 0, most = min(count, PREFETCH_GROUP)
    cdef Prefetched *x = ahead
    while seen < most and end - p >= <int>sizeof(uint64_t):  # bound: PREFETCH_GROUP
        __builtin_prefetch(p + FRAME_AHEAD)
        x.at = p
        x.length = length_of(p)
        if x.length < sizeof(uint64_t) or <uint64_t>(end - p) < x.length:
            break
        x.kind = x.key = x.op = 0
        x.keys = 0
        x.node = NULL
        if p[0] == COMMAND_KIND_REGISTER:
            if number + seen > last:
                line, last = handle_line(a.seed, slot, number + seen), (number + seen) | (HANDLE_LANES - 1)
            prefetch_registration(a, x, tag_in(line, number + seen))
        elif COMMAND_KIND_FIRE <= p[0] <= COMMAND_KIND_CHECK:
            prefetch_event(a, x)
        elif p[0] == COMMAND_KIND_CANCEL or p[0] == COMMAND_KIND_RESCHEDULE:
            prefetch_operation(a, x, slot)
        p += x.length
        seen += 1
        x += 1
    if count > 1:
        prefetch_further(a, ahead, seen)
    return seen


cdef inline uint32_t apply_batch(Arena *a, uint32_t slot, uint64_t number, Prefetched *ahead, uint32_t count) noexcept nogil:
    """Apply usual commands from the first on, `count` at most, in one transaction. Returns how many were applied.

    0: the first command needs the general path.
    """
    if not purgatory_is_open(a, ahead.at[1]):
        return 0
    if ahead.keys:
        return register_batch(a, slot, number, ahead, count)
    if ahead.kind == COMMAND_KIND_CANCEL:
        return cancel_batch(a, slot, number, ahead, count)
    if ahead.kind == COMMAND_KIND_FIRE:
        return fire_batch(a, slot, number, ahead, count)
    return 0


cdef inline int apply_frame(Arena *a, uint32_t slot, const uint8_t *data, uint64_t size) noexcept nogil:
    """Apply a COMMANDS frame. The caller has checked the kind and the session in its header."""
    cdef CommandHeader *header = <CommandHeader *>data
    cdef ClientRecord *c = a.clients + slot
    cdef const uint8_t *p = data + sizeof(CommandHeader)
    cdef const uint8_t *end = data + size
    cdef Prefetched ahead[PREFETCH_GROUP]
    cdef uint64_t number
    cdef uint32_t i = 0, at = 0, seen = 0, applied
    if header.count > COMMANDS_PER_FRAME_MAX:
        return FRAME_MALFORMED
    if header.flags & FRAME_FLAG_CONFIRM:
        queue_report(a, slot)
    else:
        confirm_later(a, slot)
    while i < header.count:
        number = header.first_command + i
        if at == seen:
            seen = prefetch_commands(a, slot, number, p, end, header.count - i, ahead)
            at = 0
            if seen == 0:
                return FRAME_MALFORMED
        if number <= c.last_command and not TD_DEFECT(DEFECT_APPLIED_AGAIN):
            a.daemon[DAEMON_COMMANDS_SKIPPED] += 1
            applied = 1
        elif number > c.last_command + 1 and not TD_DEFECT(DEFECT_APPLY_IF_NEWER):
            a.daemon[DAEMON_COMMANDS_OUT_OF_ORDER] += 1
            return FRAME_EXPECTED
        elif not can_answer(a, slot):
            return FRAME_EXPECTED
        elif a.header.unfinished or spent(a):
            return FRAME_UNFINISHED
        else:
            a.turn.kept |= in_mask(ahead[at].at[1])
            applied = apply_batch(a, slot, number, ahead + at, seen - at)
            if applied == 0:
                if not apply_command(a, slot, number, ahead + at):
                    return FRAME_MALFORMED
                applied = 1
            a.daemon[DAEMON_COMMANDS] += applied
        i += applied
        at += applied
        p = ahead[at - 1].at + ahead[at - 1].length
    if p != end:
        return FRAME_MALFORMED
    return FRAME_UNFINISHED if a.header.unfinished else FRAME_APPLIED


cdef inline int receive_frame(Arena *a, uint32_t slot, const uint8_t *data, uint64_t size) noexcept nogil:
    """Free the outcomes and answers that a COMMANDS frame acknowledges, then apply its commands."""
    cdef CommandHeader *header = <CommandHeader *>data
    if size < sizeof(CommandHeader) or size > FRAME_SIZE_MAX:
        return FRAME_MALFORMED
    acknowledge_client(a, slot, header.acknowledged_outcome, header.acknowledged_answer)
    return apply_frame(a, slot, data, size)
