"""The hierarchical timing wheel: which operation is due when, with bounded work in every tick.

Level l has BUCKETS buckets of SPAN ** l ticks each. With T the wheel's own time (header.wheel_tick), an operation due
at tick D stands in the lowest level l where (D >> 6l) - (T >> 6l) < BUCKETS, in bucket (D >> 6l) mod BUCKETS. With
ticks of 1 ms:

    level 0    1 ms buckets, reaches    128 ms        level 3    262 s, reaches  9.3 h
    level 1   64 ms,         reaches      8 s         level 4    4.7 h, reaches 24.9 d
    level 2    4 s,          reaches      9 min       levels 5 and 6           4.4 y, 279 y

When the wheel comes to tick n, level 0's bucket of n is emptied: its operations expire. On the levels above, the
*coming* bucket (the one after the present bucket) is swept before its start, a share of it in each tick. So no tick
moves a whole bucket (a plain wheel of 64 buckets moves up to 44 % of all operations in one tick). Swept operations go
to lower levels, beside the operations of the present span: for this a level has two spans. The rule above inserts
nothing into a bucket under sweep, because the bucket's ticks are within two spans of the level below. So a sweep always
takes from the head, and ends.

The clock advances on demand: occupancy bitmaps give the next tick with work, and the wheel jumps there. Insert and
remove are O(1), next_tick is O(LEVELS). No operation expires early: deadlines round up to a tick.
"""

from libc.stdint cimport uint32_t, uint64_t
from timerd.purgatory.memory.arena cimport Arena, may_touch
from timerd.purgatory.memory.builtins cimport WORD_BITS, __builtin_clzll, __builtin_ctzll, __builtin_prefetch
from timerd.purgatory.memory.list cimport append, at, link_of, op_at, unlink
from timerd.purgatory.memory.transaction cimport TD_DEFECT
from timerd_shm.generated.records cimport *

from .state cimport JOINED, Joined


cdef extern from *:
    """
    #define SWEEP_CHUNK 512  /* a sweep asks for a turn of its own when it owes this many records: about 50 us */
    #define HIGH_HALF(x, y) ((uint64_t)(((unsigned __int128)(x) * (y)) >> 64))
    _Static_assert(SPAN == 1 << LEVEL_BITS && BUCKETS == 2 * SPAN, "a level has two spans of 2 ** LEVEL_BITS buckets");
    _Static_assert(BUCKETS == 2 * WORD_BITS && sizeof(LevelRecord) == BUCKETS / 8, "a level's bitmap is two words");
    _Static_assert(offsetof(LevelRecord, occupied_low) == 0 && offsetof(LevelRecord, occupied_high) == 8, "low word first");
    """
    enum:
        SWEEP_CHUNK
    uint64_t HIGH_HALF(uint64_t x, uint64_t y) noexcept nogil


cdef inline uint64_t due_tick(Arena *a, uint64_t deadline_ns) noexcept nogil:
    """The first tick that does not begin before the deadline."""
    # A multiplication by 2**64 // tick_ns, because a division takes long. The result is at most one too low.
    cdef uint64_t tick = HIGH_HALF(deadline_ns, a.wheel.ticks_per_2_64), rest = deadline_ns - tick * a.wheel.tick_ns
    if rest >= a.wheel.tick_ns:
        tick += 1
        rest -= a.wheel.tick_ns
    if TD_DEFECT(DEFECT_EARLY_BY_A_TICK):
        return tick
    return tick + (rest != 0)


cdef inline uint32_t bucket_for(Arena *a, uint64_t deadline_ns) noexcept nogil:
    """The bucket (index) of a deadline, seen from the wheel's time."""
    cdef uint64_t tick = a.header.wheel_tick, due = due_tick(a, deadline_ns)
    cdef uint32_t level, shift
    if due <= tick:
        due = tick + 1
    # The level follows from the bits of the distance. Rounding may make it one level more.
    level = (WORD_BITS - __builtin_clzll((due - tick) | 2) + LEVEL_BITS - 2) // LEVEL_BITS - 1
    shift = LEVEL_BITS * level
    if (due >> shift) - (tick >> shift) >= BUCKETS:
        level += 1
        shift += LEVEL_BITS
    if level >= LEVELS:
        # Beyond the wheel: the farthest bucket. From there a sweep gives it a new bucket.
        return LEVELS * BUCKETS - BUCKETS + <uint32_t>(((tick >> LEVEL_BITS * (LEVELS - 1)) + BUCKETS - 1) & (BUCKETS - 1))
    return level * BUCKETS + <uint32_t>((due >> shift) & (BUCKETS - 1))


cdef inline void note_joined(Arena *a, Joined *joined, uint32_t op, uint32_t count) noexcept nogil:
    """Let the operation that joined a bucket JOINED positions earlier lead to this one.

    A walk over a list has a cache miss at each link. With the hint, an operation is loaded while those before it are
    swept.
    """
    cdef uint32_t before = joined.op[joined.at]
    if count < JOINED:
        joined.first[count] = op
    joined.op[joined.at] = op
    joined.at = joined.at + 1 if joined.at + 1 < JOINED else 0
    if before:
        a.ops[before - 1].prefetch_hint = op
    if joined.op[joined.at]:
        __builtin_prefetch(&a.ops[joined.op[joined.at] - 1].prefetch_hint)  # for the next operation to join


cdef inline uint64_t *occupied_word(Arena *a, uint32_t bucket) noexcept nogil:
    """The word with the bucket's bit, in its level's bitmap: occupied_low, then occupied_high."""
    return <uint64_t *>a.levels + bucket // WORD_BITS


cdef inline void wheel_insert(Arena *a, OpRecord *op) noexcept nogil:
    """Put an operation in the bucket of its deadline. Without a deadline it is in no bucket."""
    cdef uint32_t bucket
    if op.deadline_ns == NO_DEADLINE:
        op.bucket = 0
        return
    bucket = bucket_for(a, op.deadline_ns)
    append(a, &a.buckets[bucket].next, &op.next)
    note_joined(a, a.wheel.joined + bucket, <uint32_t>(op - a.ops) + 1, a.buckets[bucket].count)
    a.buckets[bucket].count += 1
    op.bucket = bucket + 1
    occupied_word(a, bucket)[0] |= <uint64_t>1 << (bucket & (WORD_BITS - 1))


cdef inline void wheel_remove(Arena *a, OpRecord *op) noexcept nogil:
    cdef uint32_t bucket = op.bucket
    if bucket == 0:
        return
    bucket -= 1
    unlink(a, &op.next)
    op.bucket = 0
    a.buckets[bucket].count -= 1
    if a.buckets[bucket].count == 0:
        occupied_word(a, bucket)[0] &= ~(<uint64_t>1 << (bucket & (WORD_BITS - 1)))


cdef inline uint32_t next_occupied(LevelRecord *level, uint64_t position) noexcept nogil:
    """The distance from `position` to the next occupied bucket, 1..BUCKETS; 0 = none."""
    cdef uint32_t shift = <uint32_t>((position + 1) & (BUCKETS - 1))
    cdef uint64_t low = level.occupied_low, high = level.occupied_high, swap
    if shift >= WORD_BITS:
        swap = low
        low = high
        high = swap
        shift -= WORD_BITS
    if shift:
        swap = low
        low = (low >> shift) | (high << (WORD_BITS - shift))
        high = (high >> shift) | (swap << (WORD_BITS - shift))
    if low:
        return __builtin_ctzll(low) + 1
    if high:
        return __builtin_ctzll(high) + WORD_BITS + 1
    return 0


cdef inline uint64_t next_tick(Arena *a) noexcept nogil:
    """The next tick after the wheel's time in which a bucket is to be emptied or swept; NO_DEADLINE = none."""
    cdef uint64_t tick = a.header.wheel_tick, best = NO_DEADLINE, candidate, start, since, position
    cdef uint32_t level, ahead, count
    if TD_DEFECT(DEFECT_WAKES_EVERY_TICK):
        return tick + 1
    ahead = next_occupied(a.levels, tick)
    if ahead:
        best = tick + ahead
    for level in range(1, LEVELS):
        position = tick >> (LEVEL_BITS * level)
        ahead = next_occupied(a.levels + level, position)
        if ahead == 0:
            continue
        if ahead > 1:
            # The sweep of that bucket begins when the bucket before it becomes the present one.
            candidate = (position + ahead - 1) << (LEVEL_BITS * level)
        else:
            # The bucket is under sweep. The sweep works when it owes a chunk, or at the last tick before the start.
            count = a.buckets[level * BUCKETS + ((position + 1) & (BUCKETS - 1))].count
            # The time counts from the last share. If it counted from now, each turn would put off the next share.
            start = (position + 1) << (LEVEL_BITS * level)
            since = position << (LEVEL_BITS * level)
            if since < a.wheel.visited_tick:
                since = a.wheel.visited_tick
            candidate = since + (start - since) * SWEEP_CHUNK // count
            if candidate >= start:
                candidate = start - 1
            if candidate <= tick:
                candidate = tick + 1
        if candidate < best:
            best = candidate
    return best


cdef inline void owe_sweeps(Arena *a) noexcept nogil:
    """The wheel has come to a tick: compute how much of each level's coming bucket is to be moved in this tick."""
    cdef uint64_t tick = a.header.wheel_tick, position, begin, elapsed, left
    cdef uint32_t level, count
    for level in range(1, LEVELS):
        position = tick >> (LEVEL_BITS * level)
        count = a.buckets[level * BUCKETS + ((position + 1) & (BUCKETS - 1))].count
        if count == 0:
            a.wheel.owed[level] = 0
            continue
        begin = position << (LEVEL_BITS * level)
        elapsed = tick - a.wheel.visited_tick
        if elapsed > tick - begin + 1:
            elapsed = tick - begin + 1
        if elapsed == 0:
            elapsed = 1
        left = ((position + 1) << (LEVEL_BITS * level)) - tick
        a.wheel.owed[level] = (count * elapsed + left + elapsed - 2) // (left + elapsed - 1)
        a.daemon[DAEMON_BUCKET_VISITS] += 1
    a.wheel.visited_tick = tick


cdef inline void sweep_bucket(Arena *a, uint32_t number, uint64_t count) noexcept nogil:
    """Move the first `count` operations of a bucket, which has that many, to the buckets of their deadlines.

    None of them belongs into this bucket again, so they leave it together.
    """
    cdef BucketRecord *bucket = a.buckets + number
    cdef uint32_t link = bucket.next
    cdef uint64_t i
    cdef OpRecord *op
    for i in range(count):  # bound: charged by its caller
        op = op_at(a, link)
        link = op.next
        if op.prefetch_hint:
            __builtin_prefetch(&a.ops[op.prefetch_hint - 1].next)
        wheel_insert(a, op)
    bucket.next = link
    at(a, link).prev = link_of(a, &bucket.next)
    bucket.count -= <uint32_t>count
    if bucket.count == 0:
        occupied_word(a, number)[0] &= ~(<uint64_t>1 << (number & (WORD_BITS - 1)))


cdef inline bint pay_sweeps(Arena *a) noexcept nogil:
    """Move the operations that the sweeps have still to move in this tick; False if the turn's bound came first."""
    cdef uint64_t position, count
    cdef uint32_t level, number
    for level in range(1, LEVELS):
        if a.wheel.owed[level] == 0:
            continue
        position = a.header.wheel_tick >> (LEVEL_BITS * level)
        number = level * BUCKETS + <uint32_t>((position + 1) & (BUCKETS - 1))
        if a.wheel.owed[level] > a.buckets[number].count:
            a.wheel.owed[level] = a.buckets[number].count
        count = min(a.wheel.owed[level], may_touch(a))
        if count:
            sweep_bucket(a, number, count)
            a.wheel.owed[level] -= count
            a.turn.touched += count
            a.daemon[DAEMON_CASCADED] += count
        if a.wheel.owed[level]:
            return False
    return True


cdef inline void wheel_jump(Arena *a, uint64_t target) noexcept nogil:
    """Let the wheel's time pass over ticks without work, up to `target`."""
    cdef uint64_t next
    cdef uint32_t level
    if target <= a.header.wheel_tick:
        return
    for level in range(1, LEVELS):
        if a.wheel.owed[level]:
            return
    next = next_tick(a)
    a.header.wheel_tick = target if next > target else next - 1
