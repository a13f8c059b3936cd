"""The memory of the journal beside its buffer. arena.pxd composes it into the Arena."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free
from timerd_shm.generated.records cimport *


ctypedef struct SeenText:
    # A text that stands in the journal's present segment.
    uint64_t hash
    uint64_t row


ctypedef struct OwnerText:
    # A client's text in the journal's present segment.
    uint64_t row
    uint64_t generation


ctypedef struct Journal:
    # The memory of journal/rows.pxd. `level` 0 = there is no journal, and no other field is valid.
    uint32_t level
    uint32_t staged  # rows of the transaction being staged
    uint32_t dropping  # rows for which there was no room, of the same transaction
    char *rows  # the rows of the buffer
    uint64_t capacity  # rows it holds, a power of two
    uint64_t head  # number of the next row, as in the header
    uint64_t tail  # rows below it stand in files, and may be overwritten
    uint64_t room  # rows up to this number may be staged without a look at other fields; 0 = look at them
    uint64_t turn_ns  # the clock that the newest TURN row has; 0 = the present segment has none
    uint64_t turn_effective_ns  # the effective time that the newest TURN row has
    uint64_t newest  # sequence of the newest EVENT row, staged ones included
    uint64_t segment  # row with which the present segment begins
    uint64_t segment_rows  # rows of a segment
    uint64_t reported  # dropped rows that GAP rows have counted
    uint64_t lost  # dropped rows that no GAP row has counted yet
    uint64_t lost_from_ns
    uint64_t lost_to_ns
    uint32_t opening  # RowFlag of a segment that is to begin before the next row; 0 = none
    uint8_t snapshotting  # rows of what existed when the journal began are still missing
    uint32_t snapshot_op  # index of the operation that the snapshot looks at next
    uint32_t snapshot_watermark
    uint64_t snapshot_last  # newest registration when the journal began
    SeenText *texts
    OwnerText *owners
    uint64_t purgatories[PURGATORIES_MAX]  # the row of each purgatory's text


cdef inline void drop_journal(Journal *j) noexcept nogil:
    free(j.texts)
    free(j.owners)
