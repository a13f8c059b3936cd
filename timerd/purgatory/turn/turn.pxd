"""A turn: what the last one left is done first, in this order."""

from libc.stdint cimport uint32_t
from timerd.purgatory.memory.arena cimport Arena
from timerd.purgatory.index.ids cimport forget_old_ids
from timerd.purgatory.members.groups cimport hand_out
from timerd.purgatory.operation.delivery cimport deliver
from timerd_shm.generated.records cimport *

from .acknowledge cimport free_acknowledged
from .retention cimport drop_kept, end_tombstones
from .sweep cimport sweep


cdef inline bint resume_work(Arena *a) noexcept nogil:
    """Go on with whatever a turn's bound has cut; True if work is left."""
    cdef uint32_t slot
    cdef bint left = False
    if a.header.unfinished and not deliver(a):
        return True
    if a.turn.acknowledging:
        a.turn.acknowledging = 0
        for slot in range(a.regions[REGION_CLIENTS].count):
            if a.clients[slot].state != CLIENT_STATE_FREE and not free_acknowledged(a, slot):
                a.turn.acknowledging = 1
                left = True
                break
    if not drop_kept(a):
        left = True
    if not sweep(a):
        left = True
    end_tombstones(a)
    forget_old_ids(a)
    if not hand_out(a):
        left = True
    # The sweep fires again what was handed over to the dead.
    return left or a.header.unfinished != 0
