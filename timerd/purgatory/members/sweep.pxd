"""What a turn does besides commands: the wheel moves, long deliveries go on, outcomes are freed, the dead are dealt with.

Every loop here ends when the call has touched as many records as it may (spent); what is left goes on in the next turn.
"""

from libc.stdint cimport uint32_t, uint64_t
from timerd.purgatory.memory.arena cimport Arena, commit, spent
from timerd.purgatory.memory.blob cimport blob_length
from timerd.purgatory.memory.list cimport answer_at, is_empty, make_empty, op_at
from timerd.purgatory.memory.transaction cimport TD_DEFECT, td_put
from timerd.purgatory.journal.rows cimport journal_group, journal_state
from timerd.purgatory.index.ids cimport forget_old_ids
from timerd.purgatory.index.operation_table cimport handle_remove
from timerd.purgatory.wheel.wheel cimport next_tick, owe_sweeps, pay_sweeps, wheel_insert
from timerd.purgatory.operation.settle cimport (
    deliver, drop_settled, finish_free, free_settled, hand_on, settle, stage_free,
)
from timerd.purgatory.commands.batch cimport expire_run, free_run
from timerd.purgatory.commands.prefetch cimport look_at_due, look_at_joined
from timerd_shm.generated.records cimport *

from .clients cimport following, free_answer, leave_outcomes
from .groups cimport (
    adopt, after_retention, hand_out, holds_what_it_does_not_take, is_abandoned, is_handled, kept_until, kind_of,
    look_again_at, take_back, takes,
)


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
        while bucket.count:
            if spent(a):
                return False
            if looked_at == 0:
                looked_at = look_at_due(a, bucket)
            looked_at -= expire_run(a, bucket, looked_at)
        a.header.wheel_tick = tick
        # Those that come next: they arrive while the sweeps are paid.
        look_at_joined(a, <uint32_t>((tick + 1) & (BUCKETS - 1)))
        owe_sweeps(a)


cdef inline bint free_acknowledged(Arena *a, uint32_t slot) noexcept nogil:
    """Free what the client has acknowledged; False if some is left."""
    cdef ClientRecord *c = a.clients + slot
    cdef OpRecord *op
    cdef uint64_t last = a.news[slot].outcome
    if c.acknowledged < last and not TD_DEFECT(DEFECT_FREED_UNACKNOWLEDGED):
        last = c.acknowledged
    while not is_empty(a, &c.next):
        op = op_at(a, c.next)
        if op.outcome_number > last:
            break
        if spent(a):
            return False
        if op.group:
            # Received, not done: held, in no list.
            a.touched += 1
            leave_outcomes(a, op)
            make_empty(a, &op.next)
        else:
            free_run(a, slot, last)
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


cdef inline bint sweep_own(Arena *a, OpRecord *op, ClientRecord *c) noexcept nogil:
    """Deal with an operation of a dead client; False if it must wait for the event in delivery."""
    cdef bint endless = op.deadline_ns == NO_DEADLINE
    if op.state == OP_STATE_SETTLED and op.outcome_number <= c.acknowledged:
        free_settled(a, op)
    elif op.orphans == ORPHANS_GROUP:
        adopt(a, op)
    elif op.state == OP_STATE_SETTLED:
        if not op.flags & OP_FLAG_HANDED_OVER or TD_DEFECT(DEFECT_CREDIT_DROPPED):
            drop_settled(a, op)
        elif a.header.unfinished:
            return False
        else:
            hand_on(a, op, 0, 0, NULL, NULL)
    elif op.orphans == ORPHANS_CANCEL:
        settle(a, op, OUTCOME_CANCELLED)
        a.daemon[DAEMON_ORPHANS_CANCELLED] += 1
    else:
        # It runs on as nobody's: no slot has generation 0. Nobody would ever miss it, so it gets an end.
        if endless:
            td_put(&a.tx, &op.deadline_ns, after_retention(a, c.died_ns))
        td_put(
            &a.tx, OpRecord_word_client_generation(op),
            OpRecord_with_client_generation(OpRecord_word_client_generation(op)[0], 0),
        )
        commit(a)
        handle_remove(a, <uint32_t>(op - a.ops))
        if endless:
            wheel_insert(a, op)
        c.pending -= 1
        c.nodes -= op.keys
        c.bytes_held -= blob_length(a, op.payload)
    return True


cdef inline bint sweep_operation(Arena *a, OpRecord *op) noexcept nogil:
    """Deal with an operation, if its owner is dead, or if who was told of it for its group is not there any more.

    Or if it is a group's that nobody has been there for, and would wait for ever.
    """
    cdef ClientRecord *c = a.clients + op.client
    if op.state == OP_STATE_FREE:
        return True
    if op.state == OP_STATE_PENDING and op.group:
        if op.deadline_ns == NO_DEADLINE and is_abandoned(a, a.groups + (op.group - 1)):
            settle(a, op, OUTCOME_CANCELLED)
            a.daemon[DAEMON_ORPHANS_CANCELLED] += 1
        return True
    if op.client_generation == 0 or op.client_generation != c.generation:
        return True
    if op.group == 0:
        return c.state != CLIENT_STATE_DEAD or sweep_own(a, op, c)
    if not takes(c, kind_of(op)) or TD_DEFECT(DEFECT_TOLD_TO_TWO_MEMBERS):
        take_back(a, op)
    return True


cdef inline void free_client(Arena *a, uint32_t slot) noexcept nogil:
    """Nothing is left of the client: its slot is free."""
    cdef ClientRecord *c = a.clients + slot
    if c.state == CLIENT_STATE_TOMBSTONE:
        a.tombstones -= 1
    td_put(&a.tx, ClientRecord_word_state(c), ClientRecord_with_state(ClientRecord_word_state(c)[0], CLIENT_STATE_FREE))
    journal_state(a, slot, CLIENT_STATE_FREE)
    commit(a)
    a.regions[REGION_CLIENTS].in_use -= 1


cdef inline void bury_client(Arena *a, uint32_t slot) noexcept nogil:
    """Of a dead client only its numbering is left, in case that it comes back within the hour."""
    cdef ClientRecord *c = a.clients + slot
    td_put(
        &a.tx, ClientRecord_word_state(c),
        ClientRecord_with_state(ClientRecord_word_state(c)[0], CLIENT_STATE_TOMBSTONE),
    )
    td_put(&a.tx, ClientRecord_word_group(c), ClientRecord_with_group(ClientRecord_word_group(c)[0], 0))
    journal_state(a, slot, CLIENT_STATE_TOMBSTONE)
    commit(a)
    a.tombstones += 1
    if c.died_ns + TOMBSTONE_KEPT_NS < a.tombstones_due_ns:
        a.tombstones_due_ns = c.died_ns + TOMBSTONE_KEPT_NS


cdef inline bint end_dead_clients(Arena *a) noexcept nogil:
    """Free the answers of dead clients, and end those that hold nothing any more; False if the turn's bound came first.

    a.sweeping says then whether the sweep has anything to look for.
    """
    cdef uint32_t slot, group
    cdef ClientRecord *c
    cdef bint wanted = False
    for slot in range(a.regions[REGION_CLIENTS].count):
        c = a.clients + slot
        if holds_what_it_does_not_take(c):
            wanted = True
        if c.state != CLIENT_STATE_DEAD:
            continue
        while not is_empty(a, &c.answers_next):
            if spent(a):
                return False
            a.touched += 1
            free_answer(a, answer_at(a, c.answers_next))
        if c.pending or c.unacknowledged or c.held or c.calls_held:
            wanted = True
        elif c.flags & CLIENT_FLAG_GOODBYE:
            free_client(a, slot)
        else:
            bury_client(a, slot)
    for group in range(a.regions[REGION_GROUPS].count):
        if a.groups[group].endless and is_abandoned(a, a.groups + group):
            wanted = True
    a.sweeping = wanted
    return True


cdef inline bint sweep(Arena *a) noexcept nogil:
    """Walk over the operations in the order of their records, round and round, until nobody dead or silent holds any.

    One walk serves all of them, and who dies meanwhile: it ends when all have been found, by their counts. False if work
    is left.
    """
    cdef uint32_t high_water = a.regions[REGION_OPS].high_water, stretch
    while a.sweeping:
        if not end_dead_clients(a):
            return False
        if not a.sweeping:
            break
        for stretch in range(1024):
            if spent(a):
                return False
            if a.sweep_at >= high_water:
                a.sweep_at = 0
            a.touched += 1
            if not sweep_operation(a, a.ops + a.sweep_at):
                return False
            a.sweep_at += 1
    return True


cdef inline void drop_waiting(Arena *a, OpRecord *op) noexcept nogil:
    """Nobody came to be told of it for as long as it is kept."""
    a.touched += 1
    stage_free(a, op)
    journal_group(a, op, GROUP_STEP_DROPPED, op.group, 0, 0, op.deliveries, 0, 0)
    commit(a)
    finish_free(a, op)
    a.daemon[DAEMON_GROUP_OUTCOMES_DROPPED] += 1


cdef inline bint drop_outcomes(Arena *a, GroupRecord *g) noexcept nogil:
    """Drop the outcomes of a group that has had no member for as long as they are kept; False if the bound came first."""
    cdef OpRecord *op
    while g.members == 0 and not is_empty(a, &g.next):
        op = op_at(a, g.next)
        if kept_until(a, g, op) > a.now_ns:
            look_again_at(a, kept_until(a, g, op))
            return True
        if spent(a):
            return False
        drop_waiting(a, op)
    return True


cdef inline bint drop_calls(Arena *a, uint32_t group) noexcept nogil:
    """Drop the calls that have waited so long and that no member handles; False if the bound came first."""
    cdef GroupRecord *g = a.groups + group
    cdef OpRecord *op
    while a.outdated[group]:
        op = op_at(a, a.outdated[group])
        if kept_until(a, g, op) > a.now_ns:
            look_again_at(a, kept_until(a, g, op))
            a.outdated[group] = 0
            return True
        if spent(a):
            return False
        a.touched += 1
        if g.members and is_handled(a, op):
            look_again_at(a, after_retention(a, a.now_ns))
            a.outdated[group] = following(a, op)
        else:
            drop_waiting(a, op)
    return True


cdef inline bint drop_kept(Arena *a) noexcept nogil:
    """End what groups keep, and nobody has come for; False if the bound came first."""
    cdef uint32_t group
    cdef GroupRecord *g
    if not a.dropping:
        if a.now_ns < a.groups_due_ns:
            return True
        a.groups_due_ns = NO_DEADLINE
        a.dropping = 1
        for group in range(a.regions[REGION_GROUPS].count):
            g = a.groups + group
            a.outdated[group] = 0 if is_empty(a, &g.calls_next) else g.calls_next
            if g.endless and is_abandoned(a, g):
                a.sweeping = 1
            elif g.endless and g.members == 0:
                look_again_at(a, after_retention(a, g.empty_since_ns))
    for group in range(a.regions[REGION_GROUPS].count):
        if not drop_outcomes(a, a.groups + group) or not drop_calls(a, group):
            return False
    a.dropping = 0
    return True


cdef inline void end_tombstones(Arena *a) noexcept nogil:
    """Free the slots of those that were not back within the hour."""
    cdef uint32_t slot
    cdef ClientRecord *c
    if a.now_ns < a.tombstones_due_ns:
        return
    a.tombstones_due_ns = NO_DEADLINE
    for slot in range(a.regions[REGION_CLIENTS].count):
        c = a.clients + slot
        if c.state != CLIENT_STATE_TOMBSTONE:
            continue
        a.touched += 1
        if c.died_ns + TOMBSTONE_KEPT_NS <= a.now_ns:
            free_client(a, slot)
        elif c.died_ns + TOMBSTONE_KEPT_NS < a.tombstones_due_ns:
            a.tombstones_due_ns = c.died_ns + TOMBSTONE_KEPT_NS


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
