"""Conditions: the meaning of an event to an operation that watches its key. Nothing here changes a record.

For example, an operation waits for any 2 of 3 keys. A fire on its first key sets a bit of `progress`, and the verdict
is OUTCOME_NONE. A fire on its second key sets another bit, and the verdict is OUTCOME_COMPLETED.

Which keys complete an operation is declared in shm_layout (RULES in states.py): condition_verdict() is generated from
there. Under OWNER an event decides nothing: the verdict is that the owner is to look (members/looks.pxd).
"""

from libc.stdint cimport uint32_t, uint64_t
from timerd_shm.generated.records cimport *


ctypedef struct Verdict:
    # The meaning of an event to an operation: OUTCOME_NONE = it stays pending, with these masks if `changed`.
    uint32_t outcome
    bint changed
    uint64_t progress
    uint64_t failed


cdef inline Verdict unmoved(OpRecord *op) noexcept nogil:
    cdef Verdict v
    v.outcome = OUTCOME_NONE
    v.changed = False
    v.progress = op.progress
    v.failed = op.failed
    return v


cdef inline uint64_t settled_keys(OpRecord *op) noexcept nogil:
    """The keys that are satisfied or failed. Further events on them mean nothing to the operation."""
    if op.condition == CONDITION_TOTAL:
        return op.failed
    if op.condition == CONDITION_OWNER:
        return 0
    return op.progress | op.failed


cdef inline bint has_failures(OpRecord *op, uint64_t failed) noexcept nogil:
    """Whether that mask names failed keys: under OBSERVE and OWNER it never does."""
    return failed != 0 and not CONDITIONS_OBSERVE >> op.condition & 1


cdef inline Verdict satisfy(OpRecord *op, uint32_t ordinal) noexcept nogil:
    """The verdict when the key's own part of the condition holds."""
    cdef Verdict v = unmoved(op)
    cdef uint64_t bit = <uint64_t>1 << ordinal
    if settled_keys(op) & bit:
        return v
    v.changed = True
    v.progress |= bit
    v.outcome = condition_verdict(op.condition, op.keys, op.needed, v.progress, v.failed)
    return v


cdef inline Verdict judge_fire(OpRecord *op, uint32_t ordinal, EventRecord *e) noexcept nogil:
    cdef Verdict v
    if op.condition == CONDITION_TOTAL:
        v = unmoved(op)
        if settled_keys(op) & (<uint64_t>1 << ordinal):
            return v
        v.changed = e.amount != 0
        v.progress -= min(e.amount, v.progress)
        v.outcome = condition_verdict(op.condition, op.keys, op.needed, v.progress, v.failed)
    else:
        v = satisfy(op, ordinal)
    # A limited event completes an operation or does not touch it.
    if e.flags & EVENT_FLAG_LIMITED and v.outcome != OUTCOME_COMPLETED:
        return unmoved(op)
    return v


cdef inline bint is_completed_by_one(OpRecord *op, WatchNode *node) noexcept nogil:
    """Whether any fire on that key completes the operation."""
    return (
        op.condition == CONDITION_AT_LEAST and op.needed == 1 and node.kind == KEY_KIND_EVENT
        and op.progress == 0 and op.failed == 0
    )


cdef inline Verdict judge_fail(OpRecord *op, uint32_t ordinal) noexcept nogil:
    cdef Verdict v = unmoved(op)
    cdef uint64_t bit = <uint64_t>1 << ordinal
    if settled_keys(op) & bit:
        return v
    v.changed = True
    v.failed |= bit
    v.outcome = condition_verdict(op.condition, op.keys, op.needed, v.progress, v.failed)
    return v


cdef inline bint is_observed(EventRecord *e) noexcept nogil:
    """Whether the event counts for an operation that observes. A requeued grant's event does not: the first one did."""
    return EVENT_KIND_FIRE <= e.kind <= EVENT_KIND_FAIL and not e.flags & EVENT_FLAG_REDELIVERED


cdef inline bint is_to_look_at(EventRecord *e) noexcept nogil:
    """Whether the event makes an owner look. A limited event does not, because a look takes nothing."""
    if e.kind == EVENT_KIND_CHECK:
        return True
    return EVENT_KIND_FIRE <= e.kind <= EVENT_KIND_FAIL and not e.flags & EVENT_FLAG_LIMITED


cdef inline bint concerns(OpRecord *op, EventRecord *e) noexcept nogil:
    """Whether the event means something to an operation that observes its key: under OBSERVE, or under OWNER."""
    if op.condition == CONDITION_OWNER:
        return is_to_look_at(e) or e.kind == EVENT_KIND_CANCEL_FOR_KEY
    return is_observed(e)


cdef inline bint is_used_up(EventRecord *e, uint32_t kind) noexcept nogil:
    """Whether a limited event has nothing left for watchers of that kind. A watcher that observes takes nothing."""
    return e.flags & EVENT_FLAG_LIMITED and e.left == 0 and kind != KEY_KIND_OBSERVE


cdef inline Verdict judge_observed(OpRecord *op, EventRecord *e) noexcept nogil:
    """A fire, an advance or a fail completes an operation that observes its key, and stands in the outcome."""
    cdef Verdict v = unmoved(op)
    if is_observed(e):
        v.outcome = OUTCOME_COMPLETED
        v.progress = e.amount
        v.failed = e.kind
    return v


cdef inline Verdict judge(OpRecord *op, uint32_t kind, uint32_t ordinal, uint64_t target, EventRecord *e) noexcept nogil:
    """The meaning of the event to the operation through its key `ordinal`. Changes nothing."""
    cdef Verdict v = unmoved(op)
    if op.condition == CONDITION_OWNER:
        if e.kind == EVENT_KIND_CANCEL_FOR_KEY:
            v.outcome = OUTCOME_CANCELLED
        elif is_to_look_at(e):
            v.changed = True
            v.progress = e.sequence
        return v
    if kind == KEY_KIND_OBSERVE:
        return judge_observed(op, e)
    if e.kind == EVENT_KIND_FIRE:
        if kind == KEY_KIND_EVENT:
            return judge_fire(op, ordinal, e)
    elif e.kind == EVENT_KIND_ADVANCE:
        if kind == KEY_KIND_WATERMARK and e.amount >= target:
            return satisfy(op, ordinal)
    elif e.kind == EVENT_KIND_FAIL:
        return judge_fail(op, ordinal)
    elif e.kind == EVENT_KIND_CANCEL_FOR_KEY:
        if not settled_keys(op) & (<uint64_t>1 << ordinal):
            v.outcome = OUTCOME_CANCELLED
    return v
