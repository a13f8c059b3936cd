"""Reports as bytes: one frame for each client whose report is due, up to a number of bytes in each call.

Here also: the refusals for the log of errors, and the result of a check.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from timerd.purgatory.memory.arena cimport Arena
from timerd.purgatory.members.state cimport Check, Refusal
from timerd.purgatory.members.checks cimport end_check, find_check, has_finished
from timerd.purgatory.members.clients cimport queue_report
from timerd.purgatory.members.reports cimport (
    Extent, Round, begin_round, measure_again, next_report, note_reported, report_size, write_report,
)
from timerd_shm.generated.records cimport *


cdef inline bytes report_frame(Arena *a, uint32_t slot, uint32_t kind, Extent *x):
    """The frame of a measured report."""
    cdef bytes frame = PyBytes_FromStringAndSize(NULL, report_size(x))
    cdef uint8_t *out = <uint8_t *>PyBytes_AS_STRING(frame)
    with nogil:
        write_report(a, slot, kind, x, out)
    return frame


cdef inline list report_frames(Arena *a, Round *round, uint64_t bytes_max):
    """(slot, frame) of each client whose report is due. Sets `round.due_ns`: when to ask for the rest."""
    cdef Extent x
    cdef int slot
    cdef uint64_t size = 0
    cdef bytes frame
    cdef list frames = [], more = []
    begin_round(a, round)
    while True:  # bound: the reports that are due, one for each client
        with nogil:
            slot = next_report(a, round, size >= bytes_max, &x)
        if slot < 0:
            break
        frame = report_frame(a, slot, DOWN_KIND_REPORT, &x)
        note_reported(a, slot, &x)
        if x.more or x.behind_looks:
            more.append(slot)
        frames.append((slot, frame))
        size += <uint64_t>len(frame)
    if more:
        round.due_ns = a.turn.now_ns
    for slot in more:  # bound: clients
        queue_report(a, slot)
    return frames


cdef inline bytes report_again(Arena *a, uint32_t slot, uint64_t outcome_after, uint64_t answer_after, uint32_t kind):
    """The frame with the outcomes and answers after these numbers, for a client that asks again."""
    cdef Extent x
    with nogil:
        measure_again(a, slot, outcome_after, answer_after, &x)
    return report_frame(a, slot, kind, &x)


cdef inline object check_asked(Arena *a, uint32_t slot, uint64_t command, bint end):
    """(whether the client's check has finished, operations that it completed), or None if there is no such check.

    A finished check ends with this call. With `end`, an unfinished check ends too.
    """
    cdef Check *check = find_check(a, slot, command)
    cdef tuple found
    if check == NULL:
        return None
    found = has_finished(check), check.completed
    if end or found[0]:
        end_check(a, check)
    return found


cdef inline tuple refusal_found(Refusal *r):
    """Why commands were refused: (code, limit, count, holder of the share). The holder is None, or five values."""
    cdef bytes name
    if r.who == 0:
        return r.code, r.value, r.count, None
    name = PyBytes_FromStringAndSize(r.name, min(r.name_length, NAME_SIZE_MAX))
    return r.code, r.value, r.count, (r.who - 1, name, r.group != 0, r.pid, r.bytes_held)
