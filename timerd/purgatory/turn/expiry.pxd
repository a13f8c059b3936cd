"""Expiry: the wheel moves to the present, and due operations settle, a batch at a time."""

from libc.stdint cimport uint32_t, uint64_t
from timerd.purgatory.memory.arena cimport Arena, spent
from timerd.purgatory.memory.builtins cimport TOUCH, __builtin_prefetch
from timerd.purgatory.memory.list cimport at, link_of, op_at
from timerd.purgatory.memory.nodes cimport first_node, next_node
from timerd.purgatory.wheel.state cimport JOINED, Joined
from timerd.purgatory.wheel.wheel cimport next_tick, owe_sweeps, pay_sweeps
from timerd.purgatory.events.ring cimport event_at
from timerd.purgatory.members.groups cimport dispatch_outcomes
from timerd.purgatory.operation.settle_batch cimport finish_batch, has_live_owner, is_plain, owner_word_of, stage_plain
from timerd.purgatory.operation.apply_event cimport is_of_key, visit
from timerd.purgatory.operation.condition cimport is_used_up
from timerd.purgatory.operation.settle cimport settle
from timerd.purgatory.commands.prefetch cimport FEW_KEYS, PREFETCH_GROUP, second_node, touch_node, touch_op
from timerd_shm.generated.records cimport *

from .new_plans cimport plan_anew


cdef inline void expire(Arena *a, OpRecord *op) noexcept nogil:
    """An operation is due. If it watches the key of the event in delivery, it gets the event first."""
    cdef EventRecord *e
    cdef WatchNode *node = first_node(op)
    cdef uint32_t number = <uint32_t>(op - a.ops) + 1, generation = op.generation
    a.turn.touched += 1
    if a.header.unfinished:
        e = event_at(a, a.header.unfinished)
        while node != NULL:  # bound: KEYS_MAX
            if node.place != PLACE_NOWHERE and is_of_key(a, node, e):
                if not is_used_up(e, node.kind):
                    visit(a, e, node, number)
                break
            number = node.next_of_op
            node = next_node(a, node)
        if op.generation != generation or op.state != OP_STATE_PENDING:
            return
    elif a.turn.planning and plan_anew(a, op):
        return
    settle(a, op, OUTCOME_EXPIRED)


cdef inline uint32_t expire_batch(Arena *a, BucketRecord *bucket, uint32_t count) noexcept nogil:
    """Expire the first operations of a due bucket: `count` at most, one at least. Returns the number of them."""
    cdef OpRecord *ops[BATCH_MAX]
    cdef OpRecord *op = op_at(a, bucket.next)
    cdef uint32_t n = 0, most = min(count, BATCH_MAX), link = bucket.next, head = link_of(a, &bucket.next)
    cdef uint32_t purgatory = op.purgatory
    cdef uint64_t owner = owner_word_of(op), next_outcome = a.clients[op.client].next_outcome
    if a.header.unfinished == 0 and has_live_owner(a, op):
        while n < most and link != head:  # bound: BATCH_MAX
            op = op_at(a, link)
            if not is_plain(op, owner, purgatory):
                break
            stage_plain(a, op, OUTCOME_EXPIRED, 0, NULL, next_outcome + n)
            ops[n] = op
            n += 1
            link = op.next
    if n == 0:
        expire(a, op_at(a, bucket.next))
        return 1
    finish_batch(a, ops, n, OUTCOME_EXPIRED, purgatory)
    return n


cdef inline void prefetch_joined(Arena *a, uint32_t bucket) noexcept nogil:
    """Prefetch the operations that joined a bucket first and last. A bucket of one tick has few others, as a rule."""
    cdef Joined *joined = a.wheel.joined + bucket
    cdef uint32_t i, count = a.buckets[bucket].count
    for i in range(min(count, JOINED)):
        if joined.first[i]:
            __builtin_prefetch(&a.ops[joined.first[i] - 1].next)
    if count > JOINED:
        for i in range(JOINED):
            if joined.op[i]:
                __builtin_prefetch(&a.ops[joined.op[i] - 1].next)


cdef inline uint32_t prefetch_due(Arena *a, BucketRecord *bucket) noexcept nogil:
    """Touch the memory that the expiry of a bucket's first operations will need. Returns the number of operations."""
    cdef uint32_t ops[PREFETCH_GROUP]
    cdef WatchNode *nodes[PREFETCH_GROUP]
    cdef bint more
    cdef uint32_t link = bucket.next, head = link_of(a, &bucket.next), seen = 0, i, key
    while link != head and seen < PREFETCH_GROUP:  # bound: PREFETCH_GROUP
        ops[seen] = <uint32_t>(op_at(a, link) - a.ops) + 1
        if a.ops[ops[seen] - 1].prefetch_hint:
            __builtin_prefetch(&a.ops[a.ops[ops[seen] - 1].prefetch_hint - 1].next)
        seen += 1
        link = at(a, link).next
    for i in range(seen):  # bound: PREFETCH_GROUP
        touch_op(a, ops[i])
    for i in range(seen):  # bound: PREFETCH_GROUP
        TOUCH(a.key_heads + (first_node(a.ops + (ops[i] - 1)).hash & a.key_mask))
        nodes[i] = second_node(a, ops[i])
    for key in range(1, FEW_KEYS):
        more = False
        for i in range(seen):  # bound: PREFETCH_GROUP
            if nodes[i] != NULL:
                nodes[i] = touch_node(a, nodes[i])
                more = True
        if not more:
            break
    return seen


cdef inline bint advance_wheel(Arena *a) noexcept nogil:
    """Move the wheel to a.turn.now_ns, from one tick with work to the next; False if work is left."""
    cdef uint64_t target = a.turn.now_ns // a.wheel.tick_ns, tick
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
                looked_at = prefetch_due(a, bucket)
            looked_at -= expire_batch(a, bucket, looked_at)
        a.header.wheel_tick = tick
        # The next tick's operations arrive in the cache while the sweeps are paid.
        prefetch_joined(a, <uint32_t>((tick + 1) & (BUCKETS - 1)))
        owe_sweeps(a)


cdef inline bint advance(Arena *a) noexcept nogil:
    """Move the wheel, and deliver expired operations of groups in the same turn; False if work is left."""
    cdef bint done = advance_wheel(a)
    return dispatch_outcomes(a) and done
