"""What a turn does besides commands: the wheel moves, long deliveries go on, outcomes are freed, orphans are dealt with.

Every loop here ends when the call has touched as many records as it may (spent); what is left goes on in the next turn.
"""

from libc.stdint cimport uint32_t, uint64_t
from timerd.arena cimport Arena, commit, spent
from timerd.blobs cimport blob_length
from timerd.clients cimport free_answer
from timerd.dlist cimport answer_at, is_empty, op_at
from timerd.handles cimport handle_remove
from timerd.ids cimport forget_old_ids
from timerd.lookahead cimport look_at_due, look_at_joined
from timerd.purgatory cimport deliver, expire, free_settled, settle
from timerd.wheel cimport next_tick, owe_sweeps, pay_sweeps, wheel_jump
from timerd_shm.records cimport *


cdef inline bint advance_wheel(Arena *a) noexcept nogil:
    """Move the wheel to a.now_ns, from one tick that wants something to the next; False if work is left."""
    cdef uint64_t target = a.now_ns // a.tick_ns, tick
    cdef uint32_t looked_at = 0
    cdef BucketRecord *bucket
    while True:
        if not pay_sweeps(a):
            return False
        tick = next_tick(a)
        if tick > target:
            if target > a.header.wheel_tick:
                a.header.wheel_tick = target
            return True
        bucket = a.buckets + (tick & (BUCKETS - 1))
        if bucket.count:
            a.daemon[DAEMON_BUCKET_VISITS] += 1
            look_at_joined(a, a.joined + (tick & (BUCKETS - 1)))
        while bucket.count:
            if spent(a):
                return False
            if looked_at == 0:
                looked_at = look_at_due(a, bucket)
            expire(a, op_at(a, bucket.next))
            looked_at -= 1
        a.header.wheel_tick = tick
        owe_sweeps(a)


cdef inline bint free_acknowledged(Arena *a, uint32_t slot) noexcept nogil:
    """Free what the client has acknowledged; False if some is left."""
    cdef ClientRecord *c = a.clients + slot
    cdef OpRecord *op
    while not is_empty(a, &c.next):
        op = op_at(a, c.next)
        if op.outcome_number > c.acknowledged and not TD_DEFECT(DEFECT_FREED_UNACKNOWLEDGED):
            break
        if op.outcome_number > a.news[slot].outcome:
            break
        if spent(a):
            return False
        a.touched += 1
        free_settled(a, op)
    while not is_empty(a, &c.answers_next) and answer_at(a, c.answers_next).command <= c.answers_acknowledged:
        if spent(a):
            return False
        a.touched += 1
        free_answer(a, answer_at(a, c.answers_next))
    return True


cdef inline bint acknowledge_client(Arena *a, uint32_t slot, uint64_t outcome, uint64_t answer) noexcept nogil:
    """Note what the client has received (cumulative, never more than was given) and free it; False if some is left."""
    cdef ClientRecord *c = a.clients + slot
    if outcome >= c.next_outcome:
        outcome = c.next_outcome - 1
    if answer > c.last_command:
        answer = c.last_command
    if outcome > c.acknowledged:
        td_put(&a.tx, &c.acknowledged, outcome)
        if outcome > a.news[slot].outcome:
            a.news[slot].outcome = outcome
    if answer > c.answers_acknowledged:
        td_put(&a.tx, &c.answers_acknowledged, answer)
    commit(a)
    if free_acknowledged(a, slot):
        return True
    a.acknowledging = 1
    return False


cdef inline void sweep_orphan(Arena *a, OpRecord *op) noexcept nogil:
    """Deal with one operation, if its owner is dead."""
    cdef ClientRecord *c = a.clients + op.client
    if op.state == OP_STATE_FREE or c.state != CLIENT_STATE_DEAD or c.generation != op.client_generation:
        return
    if op.state == OP_STATE_SETTLED:
        free_settled(a, op)
    elif op.orphans == ORPHANS_CANCEL:
        settle(a, op, OUTCOME_CANCELLED)
        a.daemon[DAEMON_ORPHANS_CANCELLED] += 1
    else:
        # It runs on as nobody's: no slot has generation 0.
        handle_remove(a, <uint32_t>(op - a.ops))
        c.pending -= 1
        c.bytes_held -= blob_length(a, op.payload)
        td_put(
            &a.tx, OpRecord_word_client_generation(op),
            OpRecord_with_client_generation(OpRecord_word_client_generation(op)[0], 0),
        )
        commit(a)


cdef inline void free_client(Arena *a, uint32_t slot) noexcept nogil:
    """No operation is the dead client's any more: its slot is free."""
    cdef ClientRecord *c = a.clients + slot
    td_put(&a.tx, ClientRecord_word_state(c), ClientRecord_with_state(ClientRecord_word_state(c)[0], CLIENT_STATE_FREE))
    commit(a)
    a.regions[REGION_CLIENTS].in_use -= 1
    a.dead -= 1


cdef inline bint free_dead_clients(Arena *a) noexcept nogil:
    """Free the answers of dead clients, and the slots of those that hold nothing; False if the turn's bound came first."""
    cdef uint32_t slot
    cdef ClientRecord *c
    for slot in range(a.regions[REGION_CLIENTS].count):
        c = a.clients + slot
        if c.state != CLIENT_STATE_DEAD:
            continue
        while not is_empty(a, &c.answers_next):
            if spent(a):
                return False
            a.touched += 1
            free_answer(a, answer_at(a, c.answers_next))
        if c.pending == 0 and c.unacknowledged == 0:
            free_client(a, slot)
    return True


cdef inline bint sweep_orphans(Arena *a) noexcept nogil:
    """Walk over the operations in the order of their records, for all dead clients at once; False if work is left."""
    cdef uint32_t high_water = a.regions[REGION_OPS].high_water, stretch
    while a.dead:
        if not free_dead_clients(a):
            return False
        if a.dead == 0:
            break
        for stretch in range(1024):
            if spent(a):
                return False
            a.touched += 1
            a.sweep_at = a.sweep_at + 1 if a.sweep_at + 1 < high_water else 0
            sweep_orphan(a, a.ops + a.sweep_at)
    return True


cdef inline bint resume_work(Arena *a) noexcept nogil:
    """Go on with whatever a turn's bound has cut; True if work is left."""
    cdef uint32_t slot
    cdef bint left = False
    if a.header.unfinished and not deliver(a):
        return True
    if a.acknowledging:
        a.acknowledging = 0
        for slot in range(a.regions[REGION_CLIENTS].count):
            if a.clients[slot].state != CLIENT_STATE_FREE and not free_acknowledged(a, slot):
                a.acknowledging = 1
                left = True
                break
    if not sweep_orphans(a):
        left = True
    forget_old_ids(a)
    return left
