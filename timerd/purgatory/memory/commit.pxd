"""The end of a transaction. Its commit also makes the client's next outcome number and the journal's rows true.

For example, two settlements of one client stage their own words. commit() then adds the client's next outcome number
and the number of rows in the journal, once for both.
"""

from libc.stdint cimport uint32_t, uint64_t
from timerd_shm.generated.records cimport *

from .arena cimport Arena
from .transaction cimport TD_DEFECT, TD_ORDERED_STORE, td_commit, td_put


cdef inline void stage_numbers(Arena *a) noexcept nogil:
    """Stage the next outcome number of the client whose outcomes are staged."""
    cdef ClientRecord *c = a.clients + a.staged_client
    td_put(&a.tx, &c.next_outcome, c.next_outcome + a.staged_outcomes)
    a.staged_outcomes = 0


cdef inline void commit(Arena *a) noexcept nogil:
    """Make the staged words true, all or none, together with the outcomes' numbers and the journal's rows."""
    if a.staged_outcomes:
        stage_numbers(a)
    if a.journal.staged:
        if TD_DEFECT(DEFECT_ROWS_APART):
            TD_ORDERED_STORE(a.base, &a.header.journal_rows, a.journal.head + a.journal.staged)
        td_put(&a.tx, &a.header.journal_rows, a.journal.head + a.journal.staged)
        if a.journal.segment != a.header.journal_segment:
            td_put(&a.tx, &a.header.journal_segment, a.journal.segment)
        if a.journal.reported != a.header.journal_gaps:
            td_put(&a.tx, &a.header.journal_gaps, a.journal.reported)
        a.journal.head += a.journal.staged
        a.journal.staged = 0
    if a.journal.dropping:
        td_put(&a.tx, &a.daemon[DAEMON_JOURNAL_ROWS_DROPPED], a.daemon[DAEMON_JOURNAL_ROWS_DROPPED] + a.journal.dropping)
        a.journal.dropping = 0
    td_commit(&a.tx)


cdef inline uint64_t next_number(Arena *a, uint32_t client) noexcept nogil:
    """The number of one more outcome of the client in this transaction. commit() moves the client's next number."""
    if a.staged_outcomes and a.staged_client != client:
        stage_numbers(a)
    a.staged_client = client
    a.staged_outcomes += 1
    return a.clients[client].next_outcome + a.staged_outcomes - 1
