"""The core's records and lists in a bare loop (see bare.pyi). Bulk calls, without the GIL."""

from array import array

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from timerd.purgatory.memory.builtins cimport __builtin_prefetch
from timerd.purgatory.memory.hash cimport Seed, key_hash
from timerd.purgatory.memory.bytes cimport copy_short, same_short
from timerd_shm.generated.records cimport *

cdef extern from *:
    """
    #define REACH (1u << 17) /* buckets of 1 ms */
    #define GROUP 32 /* names whose records are prefetched together */
    """
    enum:
        REACH
        GROUP

# Links are indexes + 1; 0 is none.

cdef struct Bucket:
    uint32_t first
    uint32_t last

cdef struct Lists:
    OpRecord *ops
    uint32_t *heads  # of the chains of keys
    Bucket *buckets
    uint64_t mask
    uint64_t now_ms
    Seed seed  # of the hash, the same function as the core's
    uint32_t used  # records that were ever used
    uint32_t *unused  # free records that were used before: the record freed last is allocated first
    uint32_t unused_count
    uint32_t pending


cdef inline Bucket *bucket_of(Lists *l, OpRecord *op) noexcept nogil:
    return l.buckets + (op.deadline_ns & (REACH - 1))


cdef inline void prefetch_bucket(Lists *l, uint64_t deadline_ms) noexcept nogil:
    __builtin_prefetch(l.buckets + (deadline_ms & (REACH - 1)))


cdef inline void prefetch_last(Lists *l, uint64_t deadline_ms) noexcept nogil:
    cdef Bucket *bucket = l.buckets + (deadline_ms & (REACH - 1))
    if bucket.last:
        __builtin_prefetch(&l.ops[bucket.last - 1].next)


cdef inline void prefetch_op(Lists *l, uint32_t index) noexcept nogil:
    cdef char *op = <char *>(l.ops + index)
    __builtin_prefetch(op)
    __builtin_prefetch(op + 64)
    __builtin_prefetch(op + 128)


cdef inline void prefetch_neighbours(Lists *l, uint32_t index) noexcept nogil:
    cdef OpRecord *op = l.ops + index
    if op.prev:
        __builtin_prefetch(&l.ops[op.prev - 1].next)
    if op.next:
        __builtin_prefetch(&l.ops[op.next - 1].next)
    __builtin_prefetch(l.heads + ((<WatchNode *>op.first_node).hash & l.mask))
    __builtin_prefetch(bucket_of(l, op))


cdef inline void join(Lists *l, uint32_t index) noexcept nogil:
    cdef OpRecord *op = l.ops + index
    cdef Bucket *bucket = bucket_of(l, op)
    op.next = 0
    op.prev = bucket.last
    if bucket.last:
        l.ops[bucket.last - 1].next = index + 1
    else:
        bucket.first = index + 1
    bucket.last = index + 1


cdef inline void leave(Lists *l, uint32_t index) noexcept nogil:
    cdef OpRecord *op = l.ops + index
    cdef Bucket *bucket = bucket_of(l, op)
    if op.prev:
        l.ops[op.prev - 1].next = op.next
    else:
        bucket.first = op.next
    if op.next:
        l.ops[op.next - 1].prev = op.prev
    else:
        bucket.last = op.prev


cdef inline uint32_t add(Lists *l, uint64_t hash, const uint8_t *name, uint32_t length, uint64_t deadline_ms) noexcept nogil:
    cdef uint32_t index = l.unused[l.unused_count - 1] if l.unused_count else l.used
    cdef uint32_t *head = l.heads + (hash & l.mask)
    cdef OpRecord *op = l.ops + index
    cdef WatchNode *node = <WatchNode *>op.first_node
    if l.unused_count:
        l.unused_count -= 1
    else:
        l.used += 1
    # Field by field: a memset of a known size becomes a string instruction, which takes longer.
    op.generation += 1
    op.seen = op.progress = op.failed = 0
    op.registered_ns = op.deadline_ns
    op.id_record = op.payload = op.value = 0
    op.state = OP_STATE_PENDING
    op.keys = op.needed = 1
    op.deadline_ns = deadline_ms
    node.hash = hash
    node.target = 0
    node.op = index
    node.next_of_op = node.ordinal = 0
    node.name_length = length
    copy_short(node.name, name, length)
    node.chain = head[0]
    head[0] = index + 1
    join(l, index)
    l.pending += 1
    return index


cdef inline uint32_t find(Lists *l, uint64_t hash, const uint8_t *name, uint32_t length) noexcept nogil:
    cdef uint32_t found = l.heads[hash & l.mask]
    cdef WatchNode *node
    while found:
        node = <WatchNode *>l.ops[found - 1].first_node
        if node.hash == hash and node.name_length == length and same_short(node.name, name, length):
            break
        found = node.chain
    return found


cdef inline void end(Lists *l, uint32_t index) noexcept nogil:
    cdef WatchNode *node = <WatchNode *>l.ops[index].first_node
    cdef uint32_t *link = l.heads + (node.hash & l.mask)
    leave(l, index)
    while link[0] != index + 1:
        link = &(<WatchNode *>l.ops[link[0] - 1].first_node).chain
    link[0] = node.chain
    l.ops[index].state = OP_STATE_FREE
    l.unused[l.unused_count] = index
    l.unused_count += 1
    l.pending -= 1


cdef uint64_t heads_for(uint32_t capacity):
    cdef uint64_t heads = 1
    while heads < 2 * <uint64_t>capacity:
        heads *= 2
    return heads


cdef class Bare:
    cdef Lists l
    cdef uint32_t length, capacity
    cdef uint8_t[::1] memory  # the buffer, kept until the object ends

    @staticmethod
    def size(uint32_t capacity):
        return (
            capacity * sizeof(OpRecord) + (heads_for(capacity) + capacity) * sizeof(uint32_t) + REACH * sizeof(Bucket)
        )

    def __cinit__(self, uint32_t capacity, uint32_t name_length, uint64_t now_ms, uint8_t[::1] memory):
        if not 1 <= name_length <= KEY_INLINE:
            raise ValueError(f"names have 1 to {KEY_INLINE} bytes, not {name_length}")
        if <uint64_t>memory.shape[0] < <uint64_t>Bare.size(capacity):
            raise ValueError(f"{capacity} operations need {Bare.size(capacity)} bytes of memory, not {memory.shape[0]}")
        self.memory, self.length, self.capacity = memory, name_length, capacity
        self.l.mask, self.l.now_ms = heads_for(capacity) - 1, now_ms
        self.l.ops = <OpRecord *>&memory[0]
        self.l.buckets = <Bucket *>(self.l.ops + capacity)
        self.l.heads = <uint32_t *>(self.l.buckets + REACH)
        self.l.unused = self.l.heads + self.l.mask + 1
        self.l.seed = Seed(now_ms, <uint64_t>memory.shape[0])  # any values that the compiler cannot know

    def insert(self, const uint8_t[::1] names, const int64_t[::1] deadlines_ms):
        cdef Lists *l = &self.l
        cdef uint32_t count = <uint32_t>deadlines_ms.shape[0], at = 0, i, length = self.length
        cdef uint64_t hashes[GROUP]
        cdef uint32_t[::1] handles
        if <uint64_t>names.shape[0] != <uint64_t>count * length or l.pending + count > self.capacity:
            raise ValueError(f"{names.shape[0]} bytes of names for {count} operations; {l.pending} of {self.capacity} are pending")
        for i in range(count):
            if not l.now_ms < <uint64_t>deadlines_ms[i] < l.now_ms + REACH:
                raise ValueError(f"{deadlines_ms[i]} ms is not within {REACH} ms from {l.now_ms}")
        made = array("I", bytes(4 * count))
        handles = made
        with nogil:
            while at < count:
                for i in range(min(GROUP, count - at)):
                    hashes[i] = key_hash(l.seed, 0, &names[(at + i) * length], length)
                    __builtin_prefetch(l.heads + (hashes[i] & l.mask))
                    prefetch_bucket(l, deadlines_ms[at + i])
                    if i < l.unused_count:
                        prefetch_op(l, l.unused[l.unused_count - 1 - i])
                for i in range(min(GROUP, count - at)):
                    prefetch_last(l, deadlines_ms[at + i])
                for i in range(min(GROUP, count - at)):
                    handles[at + i] = add(l, hashes[i], &names[(at + i) * length], length, deadlines_ms[at + i])
                at += GROUP
        return made

    def cancel(self, const uint32_t[::1] handles):
        cdef uint32_t count = <uint32_t>handles.shape[0], at = 0, i
        with nogil:
            while at < count:
                for i in range(at, min(at + GROUP, count)):
                    prefetch_op(&self.l, handles[i])
                for i in range(at, min(at + GROUP, count)):
                    prefetch_neighbours(&self.l, handles[i])
                for i in range(at, min(at + GROUP, count)):
                    end(&self.l, handles[i])
                at += GROUP
        return count

    def complete(self, const uint8_t[::1] names):
        cdef uint32_t count = <uint32_t>(names.shape[0] // self.length), at = 0, i, found, done = 0
        cdef uint64_t hashes[GROUP]
        with nogil:
            while at < count:
                for i in range(min(GROUP, count - at)):
                    hashes[i] = key_hash(self.l.seed, 0, &names[(at + i) * self.length], self.length)
                    __builtin_prefetch(self.l.heads + (hashes[i] & self.l.mask))
                for i in range(min(GROUP, count - at)):
                    found = self.l.heads[hashes[i] & self.l.mask]
                    if found:
                        prefetch_op(&self.l, found - 1)
                for i in range(min(GROUP, count - at)):
                    found = self.l.heads[hashes[i] & self.l.mask]
                    if found:
                        prefetch_neighbours(&self.l, found - 1)
                for i in range(min(GROUP, count - at)):
                    found = find(&self.l, hashes[i], &names[(at + i) * self.length], self.length)
                    if found:
                        end(&self.l, found - 1)
                        done += 1
                at += GROUP
        return done

    def reschedule(self, const uint32_t[::1] handles, const int64_t[::1] deadlines_ms):
        cdef uint32_t at
        with nogil:
            for at in range(<uint32_t>handles.shape[0]):
                leave(&self.l, handles[at])
                self.l.ops[handles[at]].deadline_ns = deadlines_ms[at]
                join(&self.l, handles[at])
        return handles.shape[0]

    def advance(self, uint64_t now_ms):
        cdef Lists *l = &self.l
        expired = array("I")
        while l.now_ms < now_ms:
            l.now_ms += 1
            while l.buckets[l.now_ms & (REACH - 1)].first:
                expired.append(l.buckets[l.now_ms & (REACH - 1)].first - 1)
                end(l, l.buckets[l.now_ms & (REACH - 1)].first - 1)
        return expired

    @property
    def next_ms(self):
        cdef uint64_t at
        for at in range(self.l.now_ms + 1, self.l.now_ms + REACH):
            if self.l.buckets[at & (REACH - 1)].first:
                return at
        return None

    @property
    def pending(self):
        return self.l.pending

    @property
    def bytes_per_task(self):
        return sizeof(OpRecord) + (self.l.mask + 1 + self.capacity) * sizeof(uint32_t) / <double>self.capacity
