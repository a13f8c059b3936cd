"""The sweep: operations of dead clients, and outcomes that members may not keep, go to others or end.

Every loop here ends when the call has touched as many records as it may (spent). The next turn goes on.

The sweep goes round until the counts of the dead clients are zero. Counts are derived, and a count that is too high
would keep the sweep going for ever. So if a client's counts have not changed while the sweep has looked at each
operation twice, the client holds nothing. Its counts become zero, and the log of errors gets an entry.
"""

from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memset
from timerd.purgatory.memory.arena cimport Arena, spent
from timerd.purgatory.memory.blob cimport blob_length
from timerd.purgatory.memory.commit cimport commit
from timerd.purgatory.memory.list cimport answer_at, is_empty
from timerd.purgatory.memory.nodes cimport names_of
from timerd.purgatory.memory.transaction cimport TD_DEFECT, td_put
from timerd.purgatory.index.operation_table cimport handle_remove
from timerd.purgatory.wheel.wheel cimport wheel_insert
from timerd.purgatory.members.accounts cimport clear_account, has_made, is_left, kept_account, stage_account
from timerd.purgatory.members.answers cimport free_answer, note_refusal
from timerd.purgatory.members.clients cimport bury_client, charge, free_client, further_keys
from timerd.purgatory.members.groups cimport (
    adopt, after_retention, has_to_lose, is_abandoned, kind_of, leave_to_user, may_keep, requeue_outcome,
)
from timerd.purgatory.members.looks cimport leave_looks
from timerd.purgatory.members.state cimport CALLS, Holdings, OUTCOMES
from timerd.purgatory.operation.apply_event cimport requeue_grant
from timerd.purgatory.operation.settle cimport drop_settled, free_settled, settle
from timerd_shm.generated.records cimport *

cdef extern from *:
    """
    #define NO_COUNTS UINT64_MAX  /* next_outcome of no client */
    """
    uint64_t NO_COUNTS


cdef inline bint sweep_own(Arena *a, OpRecord *op, ClientRecord *c) noexcept nogil:
    """Deal with an operation of a dead client; False if it must wait for the event in delivery."""
    cdef bint endless = op.deadline_ns == NO_DEADLINE
    if op.state == OP_STATE_SETTLED and op.outcome_number <= c.acknowledged:
        free_settled(a, op)
    elif op.orphans == ORPHANS_GROUP:
        adopt(a, op)
    elif op.state == OP_STATE_SETTLED:
        if not op.flags & OP_FLAG_GRANTED or TD_DEFECT(DEFECT_GRANT_DROPPED):
            drop_settled(a, op)
        elif a.header.unfinished:
            return False
        else:
            requeue_grant(a, op, 0, 0, NULL)
    elif op.orphans == ORPHANS_CANCEL:
        settle(a, op, OUTCOME_CANCELLED)
        a.daemon[DAEMON_ORPHANS_CANCELLED] += 1
    else:
        # It goes on without an owner: no slot has generation 0. Perhaps nobody ever cancels it, so it gets a deadline
        # if it has none. Its owner's user pays for it.
        if endless:
            td_put(&a.tx, &op.deadline_ns, after_retention(a, c.died_ns))
        td_put(
            &a.tx, OpRecord_word_client_generation(op),
            OpRecord_with_client_generation(OpRecord_word_client_generation(op)[0], 0),
        )
        stage_account(a, op, kept_account(a, a.accounts[op.client].user))
        commit(a)
        leave_looks(a, op)
        handle_remove(a, <uint32_t>(op - a.ops))
        if endless:
            wheel_insert(a, op)
        c.pending -= 1
        c.ids -= op.id_record != 0
        c.nodes -= further_keys(op)
        c.bytes_held -= blob_length(a, op.payload) + names_of(a, op)
        charge(a, op, 1, 0, further_keys(op), blob_length(a, op.payload) + names_of(a, op))
    return True


cdef inline bint sweep_operation(Arena *a, OpRecord *op) noexcept nogil:
    """Deal with an operation if its owner is dead, or if the member that holds it may not keep it.

    Also charges a group's operation to its maker's user if the maker has ended, and cancels one that is pending for
    ever in a group without members.
    """
    cdef ClientRecord *c = a.clients + op.client
    if op.state == OP_STATE_FREE:
        return True
    if op.group and is_left(a, op):
        leave_to_user(a, op)
    if op.state == OP_STATE_PENDING and op.group:
        if op.deadline_ns == NO_DEADLINE and is_abandoned(a, a.groups + (op.group - 1)):
            settle(a, op, OUTCOME_CANCELLED)
            a.daemon[DAEMON_ORPHANS_CANCELLED] += 1
        return True
    if op.client_generation == 0 or op.client_generation != c.generation:
        return True
    if op.group == 0:
        return c.state != CLIENT_STATE_DEAD or sweep_own(a, op, c)
    if not may_keep(c, kind_of(op)) or TD_DEFECT(DEFECT_DELIVERED_TO_TWO_MEMBERS):
        requeue_outcome(a, op)
    return True


cdef inline bint is_stuck(Arena *a, uint32_t at, Holdings *now) noexcept nogil:
    """Whether the sweep has looked at each operation twice while these counts stayed the same. Otherwise keep them."""
    cdef Holdings *kept = a.members.holdings + at
    if (
        kept.next_outcome == now.next_outcome and kept.generation == now.generation and kept.pending == now.pending
        and kept.settled == now.settled and kept.held == now.held and kept.calls_held == now.calls_held
        and kept.made_pending == now.made_pending and kept.made_settled == now.made_settled
    ):
        return a.turn.swept - kept.step >= 2 * <uint64_t>max(a.regions[REGION_OPS].high_water, 1)
    kept[0] = now[0]
    kept.step = a.turn.swept
    return False


cdef inline void forget_counts(Arena *a, uint32_t at) noexcept nogil:
    """The sweep has no work for this client or group now, so the counts that were kept for it belong to an earlier end.

    A client that dies, comes back and dies again may have the same counts as the first time. Then equal counts do not
    mean that the sweep is stuck.
    """
    a.members.holdings[at].next_outcome = NO_COUNTS


cdef inline void note_recount(Arena *a) noexcept nogil:
    a.daemon[DAEMON_SWEEPS_RECOUNTED] += 1
    note_refusal(a, 0, 0, ERROR_CODE_ARENA_DAMAGED, 0)


cdef inline bint recount_client(Arena *a, uint32_t slot) noexcept nogil:
    """Set the counts of a client to zero if two rounds have found nothing that it holds; True if something may be left.

    A silent member may come back, so only the counts of what the sweep looks for become zero.
    """
    cdef ClientRecord *c = a.clients + slot
    cdef Holdings now
    memset(&now, 0, sizeof(now))
    now.next_outcome, now.generation = c.next_outcome, c.generation
    now.pending, now.settled, now.held, now.calls_held = c.pending, c.unacknowledged, c.held, c.calls_held
    now.made_pending, now.made_settled = a.accounts[slot].pending, a.accounts[slot].outcomes
    if not is_stuck(a, slot, &now):
        return True
    if c.state == CLIENT_STATE_DEAD:
        c.pending = c.unacknowledged = c.nodes = c.ids = 0
        c.bytes_held = 0
        clear_account(a.accounts + slot)
    if not may_keep(c, OUTCOMES):
        c.held = 0
    if not may_keep(c, CALLS):
        c.calls_held = 0
    note_recount(a)
    return False


cdef inline bint recount_group(Arena *a, uint32_t group) noexcept nogil:
    """As recount_client(), for the endless operations of a group without members."""
    cdef GroupRecord *g = a.groups + group
    cdef Holdings now
    memset(&now, 0, sizeof(now))
    now.pending, now.settled, now.held, now.calls_held = g.pending, g.unacknowledged, g.endless, g.nodes
    if not is_stuck(a, a.regions[REGION_CLIENTS].count + group, &now):
        return True
    g.endless = 0
    note_recount(a)
    return False


cdef inline bint end_dead_clients(Arena *a) noexcept nogil:
    """Free the answers of dead clients, and end dead clients that hold nothing any more; False if the bound came first.

    If it returns True, a.turn.sweeping says whether the sweep has work.
    """
    cdef uint32_t slot, group
    cdef ClientRecord *c
    cdef bint wanted = False
    for slot in range(a.regions[REGION_CLIENTS].count):
        c = a.clients + slot
        if c.state != CLIENT_STATE_DEAD:
            if has_to_lose(c) and recount_client(a, slot):
                wanted = True
            else:
                forget_counts(a, slot)
            continue
        while not is_empty(a, &c.answers_next):
            if spent(a):
                return False
            a.turn.touched += 1
            free_answer(a, answer_at(a, c.answers_next))
        if (c.pending or c.unacknowledged or c.held or c.calls_held or has_made(a, slot)) and recount_client(a, slot):
            wanted = True
            continue
        forget_counts(a, slot)
        if c.flags & CLIENT_FLAG_GOODBYE:
            free_client(a, slot)
        else:
            bury_client(a, slot)
    for group in range(a.regions[REGION_GROUPS].count):  # bound: groups
        if a.groups[group].endless and is_abandoned(a, a.groups + group) and recount_group(a, group):
            wanted = True
        else:
            forget_counts(a, a.regions[REGION_CLIENTS].count + group)
    a.turn.sweeping = wanted
    return True


cdef inline bint sweep(Arena *a) noexcept nogil:
    """Walk over the operations in the order of their records, round and round, until no client has to lose one.

    One walk serves all clients, also those that die during it. It ends when all their operations have been found: the
    clients' counts show that. Returns False if work is left.
    """
    cdef uint32_t high_water = a.regions[REGION_OPS].high_water, stretch
    while a.turn.sweeping:
        if not end_dead_clients(a):
            return False
        if not a.turn.sweeping:
            break
        for stretch in range(1024):
            if spent(a):
                return False
            if a.turn.sweep_at >= high_water:
                a.turn.sweep_at = 0
            a.turn.touched += 1
            if not sweep_operation(a, a.ops + a.turn.sweep_at):
                return False
            a.turn.sweep_at += 1
            a.turn.swept += 1
    return True
