"""The state of a turn: its time, its bound, the work that its bound has cut off. arena.pxd puts it into the Arena."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from timerd_shm.generated.records cimport *


ctypedef struct Turn:
    uint64_t now_ns
    uint64_t before_gap_ns  # the time of the last turn before an open gap; NO_DEADLINE = no gap is open
    uint64_t touched  # records, since the start
    uint64_t limit  # of `touched`, for this call
    uint64_t began  # `touched` when the turn began
    # Work that a turn's bound has cut off: acknowledgements, the sweep over what dead and silent clients hold, and
    # retention.
    uint8_t acknowledging
    uint8_t sweeping  # some client is dead, or holds outcomes of its group that are to be requeued
    uint8_t dropping
    uint32_t sweep_at
    uint8_t reclaiming  # which records the walk for purgatories that hold nothing is at (reclaim.pxd)
    uint64_t reclaim_at
    uint64_t kept  # the purgatories that hold something, as far as that walk knows; a mask
    # How far the wall clock is ahead, to plan calls by it (wall_time.pxd); the walk that plans anew (new_plans.pxd).
    uint64_t wall_ahead_ns  # 0 = not known
    uint32_t planned  # operations that the walk has looked at
    uint8_t planning
    uint64_t swept  # operations that the sweep has looked at, since the start
