"""What a turn remembers: its time, its bound, and which work was cut. arena.pxd composes it into the Arena."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from timerd_shm.generated.records cimport *


ctypedef struct Turn:
    uint64_t now_ns
    uint64_t touched  # records, since the start
    uint64_t limit  # of `touched`, for this call
    uint64_t began  # `touched` when the turn began
    # What a turn's bound has cut: acknowledgements, the sweep over what dead and silent clients hold, and a look at what
    # was kept too long.
    uint8_t acknowledging
    uint8_t sweeping  # some client is dead, or holds outcomes of its group that others are to be told
    uint8_t dropping
    uint32_t sweep_at
