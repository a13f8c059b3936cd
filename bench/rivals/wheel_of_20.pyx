"""The timing wheels of Confluent's article (see wheel_of_20.pyi): 20 buckets in each. Bulk calls, without the GIL.

A wheel of level l has SIZE buckets of SIZE ** l ms. A task is in the lowest wheel that reaches its deadline, in bucket
(deadline / width) mod SIZE. The delay queue is a heap of buckets, not of tasks: a bucket enters it when its beginning
changes. When a bucket's beginning is due, the clocks of the wheels move to this beginning. Then each task of the bucket
expires if it is due, and otherwise is inserted again, into a lower wheel.
"""

from array import array

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from timerd.purgatory.memory.hash cimport Seed, key_hash
from timerd.purgatory.memory.bytes cimport copy_short, same_short

cdef extern from *:
    """
    #define SIZE 20
    #define WHEELS 10 /* 20 ** 10 ms are more than 63 bits of ns: enough for any deadline */
    #define NAME_MAX_BYTES 16
    """
    enum:
        SIZE
        WHEELS
        NAME_MAX_BYTES

# A reference is the index + 1 of a task or a bucket; 0 is none.

cdef struct Task:
    int64_t deadline_ms
    uint64_t hash
    uint8_t[16] name
    uint32_t chain  # the next task in the same entry of the table of names; in a free task, the next free task
    uint32_t bucket  # 0: it is not in a wheel
    uint32_t next
    uint32_t prev

cdef struct Bucket:
    int64_t begins_ms  # -1: it is not in the delay queue
    uint32_t first
    uint32_t last

cdef struct Wheels:
    Task *tasks
    uint32_t capacity
    uint32_t used
    uint32_t unused  # first free task
    uint32_t pending
    uint32_t *heads
    uint64_t mask
    Bucket buckets[WHEELS * SIZE]
    uint32_t levels  # wheels that were made
    int64_t width_ms[WHEELS]  # of a bucket
    int64_t clock_ms[WHEELS]
    uint32_t queue[WHEELS * SIZE]  # a heap of buckets
    uint32_t queued
    uint32_t *expired  # tasks that have expired. The next advance() returns them
    uint32_t expired_count
    uint64_t visits
    uint64_t empty_visits
    uint64_t reinserted


# The delay queue.


cdef inline int64_t begin_of(Wheels *w, uint32_t at) noexcept nogil:
    return w.buckets[w.queue[at]].begins_ms


cdef void offer(Wheels *w, uint32_t bucket) noexcept nogil:
    cdef uint32_t at = w.queued, parent
    cdef int64_t begins_ms = w.buckets[bucket].begins_ms
    w.queued += 1
    while at:
        parent = (at - 1) >> 1
        if begin_of(w, parent) <= begins_ms:
            break
        w.queue[at] = w.queue[parent]
        at = parent
    w.queue[at] = bucket


cdef uint32_t poll(Wheels *w) noexcept nogil:
    """Remove the bucket that begins first from the queue. The queue must not be empty."""
    cdef uint32_t bucket = w.queue[0], last, at = 0, child
    w.queued -= 1
    last = w.queue[w.queued]
    while True:
        child = 2 * at + 1
        if child >= w.queued:
            break
        if child + 1 < w.queued and begin_of(w, child + 1) < begin_of(w, child):
            child += 1
        if w.buckets[last].begins_ms <= begin_of(w, child):
            break
        w.queue[at] = w.queue[child]
        at = child
    w.queue[at] = last
    return bucket


# The wheels.


cdef inline bint insert(Wheels *w, uint32_t name) noexcept nogil:
    """Put a task into the bucket of its deadline. Returns False if the task is due."""
    cdef Task *task = w.tasks + name - 1
    cdef Bucket *bucket
    cdef uint32_t level = 0, at
    cdef int64_t number
    if task.deadline_ms < w.clock_ms[0] + 1:
        return False
    while level < WHEELS - 1 and task.deadline_ms >= w.clock_ms[level] + SIZE * w.width_ms[level]:
        level += 1
        if level == w.levels:
            w.width_ms[level] = SIZE * w.width_ms[level - 1]
            w.clock_ms[level] = w.clock_ms[level - 1] - w.clock_ms[level - 1] % w.width_ms[level]
            w.levels += 1
    number = task.deadline_ms // w.width_ms[level]
    at = level * SIZE + <uint32_t>(number % SIZE)
    bucket = w.buckets + at
    task.bucket = at + 1
    task.next = 0
    task.prev = bucket.last
    if bucket.last:
        w.tasks[bucket.last - 1].next = name
    else:
        bucket.first = name
    bucket.last = name
    if bucket.begins_ms != number * w.width_ms[level]:
        bucket.begins_ms = number * w.width_ms[level]
        offer(w, at)
    return True


cdef inline void remove(Wheels *w, Task *task) noexcept nogil:
    cdef Bucket *bucket = w.buckets + task.bucket - 1
    if task.prev:
        w.tasks[task.prev - 1].next = task.next
    else:
        bucket.first = task.next
    if task.next:
        w.tasks[task.next - 1].prev = task.prev
    else:
        bucket.last = task.prev
    task.bucket = 0


cdef void advance(Wheels *w, int64_t now_ms) noexcept nogil:
    """Handle every bucket that begins by now."""
    cdef uint32_t at, name, next, level
    cdef int64_t begins_ms
    while w.queued and begin_of(w, 0) <= now_ms:
        at = poll(w)
        begins_ms = w.buckets[at].begins_ms
        for level in range(w.levels):
            if begins_ms < w.clock_ms[level] + w.width_ms[level]:
                break
            w.clock_ms[level] = begins_ms - begins_ms % w.width_ms[level]
        name = w.buckets[at].first
        w.visits += 1
        if name == 0:
            w.empty_visits += 1
        w.buckets[at].first = w.buckets[at].last = 0
        w.buckets[at].begins_ms = -1
        while name:
            next = w.tasks[name - 1].next
            if insert(w, name):
                w.reinserted += 1
            else:
                expire(w, name)
            name = next


# Tasks and their names.


cdef inline uint32_t *head_of(Wheels *w, uint64_t hash) noexcept nogil:
    return w.heads + (hash & w.mask)


cdef inline void forget(Wheels *w, uint32_t name) noexcept nogil:
    """Remove a task from the table of names."""
    cdef uint32_t *at = head_of(w, w.tasks[name - 1].hash)
    while at[0] != name:
        at = &w.tasks[at[0] - 1].chain
    at[0] = w.tasks[name - 1].chain
    w.pending -= 1


cdef inline void free_record(Wheels *w, uint32_t name) noexcept nogil:
    w.tasks[name - 1].chain = w.unused
    w.unused = name


cdef inline void expire(Wheels *w, uint32_t name) noexcept nogil:
    w.tasks[name - 1].bucket = 0
    forget(w, name)
    w.expired[w.expired_count] = name
    w.expired_count += 1


cdef inline uint32_t find(Wheels *w, const uint8_t *name, uint32_t length) noexcept nogil:
    """A pending task of this name; 0 if there is none."""
    cdef uint64_t hash = key_hash(Seed(0, 0), 0, name, length)
    cdef uint32_t at = head_of(w, hash)[0]
    while at and not (w.tasks[at - 1].hash == hash and same_short(w.tasks[at - 1].name, name, length)):
        at = w.tasks[at - 1].chain
    return at


cdef inline uint32_t add(Wheels *w, const uint8_t *name, uint32_t length, int64_t deadline_ms) noexcept nogil:
    """Insert a new task. The caller has checked that a record is free."""
    cdef uint32_t made = w.unused
    cdef uint32_t *head
    cdef Task *task
    if made:
        w.unused = w.tasks[made - 1].chain
    else:
        w.used += 1
        made = w.used
    task = w.tasks + made - 1
    task.deadline_ms = deadline_ms
    task.hash = key_hash(Seed(0, 0), 0, name, length)
    copy_short(task.name, name, length)
    head = head_of(w, task.hash)
    task.chain = head[0]
    head[0] = made
    w.pending += 1
    if not insert(w, made):
        expire(w, made)
    return made


cdef inline void settle(Wheels *w, uint32_t name) noexcept nogil:
    """End a pending task before its deadline."""
    remove(w, w.tasks + name - 1)
    forget(w, name)
    free_record(w, name)


cdef inline bint is_pending(Wheels *w, uint32_t name) noexcept nogil:
    return name - 1 < w.used and w.tasks[name - 1].bucket != 0


cdef uint64_t heads_for(uint32_t capacity):
    cdef uint64_t heads = 1
    while heads < 2 * <uint64_t>capacity:
        heads *= 2
    return heads


cdef class WheelOf20:
    cdef Wheels w
    cdef uint32_t length
    cdef uint8_t[::1] memory  # the buffer, kept until the object ends

    @staticmethod
    def size(uint32_t capacity):
        return capacity * sizeof(Task) + (heads_for(capacity) + capacity) * sizeof(uint32_t)

    def __cinit__(self, uint32_t capacity, uint32_t name_length, int64_t now_ms, uint8_t[::1] memory):
        cdef Wheels *w = &self.w
        cdef uint32_t at
        if not 1 <= name_length <= NAME_MAX_BYTES:
            raise ValueError(f"names have 1 to {NAME_MAX_BYTES} bytes, not {name_length}")
        if <uint64_t>memory.shape[0] < <uint64_t>WheelOf20.size(capacity):
            raise ValueError(f"{capacity} tasks need {WheelOf20.size(capacity)} bytes of memory, not {memory.shape[0]}")
        self.memory, self.length = memory, name_length
        w.capacity = capacity
        w.mask = heads_for(capacity) - 1
        w.tasks = <Task *>&memory[0]
        w.heads = <uint32_t *>(w.tasks + capacity)
        w.expired = w.heads + w.mask + 1
        for at in range(WHEELS * SIZE):
            w.buckets[at].begins_ms = -1
        w.levels = 1
        w.width_ms[0] = 1
        w.clock_ms[0] = now_ms

    cdef uint32_t _count(self, const uint8_t[::1] names) except? 0xFFFFFFFF:
        if names.shape[0] % self.length:
            raise ValueError(f"{names.shape[0]} bytes are not a whole number of names of {self.length} bytes")
        return <uint32_t>(names.shape[0] // self.length)

    def insert(self, const uint8_t[::1] names, const int64_t[::1] deadlines_ms):
        cdef Wheels *w = &self.w
        cdef uint32_t count = self._count(names), at
        cdef uint32_t[::1] handles
        if count != <uint32_t>deadlines_ms.shape[0]:
            raise ValueError(f"{count} names and {deadlines_ms.shape[0]} deadlines: give equal numbers of both")
        if <uint64_t>w.pending + w.expired_count + count > w.capacity:
            raise ValueError(f"{w.pending + w.expired_count} of {w.capacity} tasks are in use: {count} more do not fit")
        made = array("I", bytes(4 * count))
        handles = made
        with nogil:
            for at in range(count):
                handles[at] = add(w, &names[at * self.length], self.length, deadlines_ms[at])
        return made

    def cancel(self, const uint32_t[::1] handles):
        cdef uint32_t at, done = 0
        with nogil:
            for at in range(<uint32_t>handles.shape[0]):
                if is_pending(&self.w, handles[at]):
                    settle(&self.w, handles[at])
                    done += 1
        return done

    def complete(self, const uint8_t[::1] names):
        cdef uint32_t count = self._count(names), at, name, done = 0
        with nogil:
            for at in range(count):
                name = find(&self.w, &names[at * self.length], self.length)
                if name:
                    settle(&self.w, name)
                    done += 1
        return done

    def reschedule(self, const uint32_t[::1] handles, const int64_t[::1] deadlines_ms):
        cdef Wheels *w = &self.w
        cdef uint32_t at, done = 0
        if handles.shape[0] != deadlines_ms.shape[0]:
            raise ValueError(f"{handles.shape[0]} tasks, {deadlines_ms.shape[0]} deadlines: give equal numbers of both")
        with nogil:
            for at in range(<uint32_t>handles.shape[0]):
                if is_pending(w, handles[at]):
                    remove(w, w.tasks + handles[at] - 1)
                    w.tasks[handles[at] - 1].deadline_ms = deadlines_ms[at]
                    if not insert(w, handles[at]):
                        expire(w, handles[at])
                    done += 1
        return done

    def advance(self, int64_t now_ms):
        cdef uint32_t at
        cdef uint32_t[::1] handles
        with nogil:
            advance(&self.w, now_ms)
        expired = array("I", bytes(4 * self.w.expired_count))
        if self.w.expired_count:
            handles = expired
            with nogil:
                for at in range(self.w.expired_count):
                    handles[at] = self.w.expired[at]
                    free_record(&self.w, self.w.expired[at])
        self.w.expired_count = 0
        return expired

    @property
    def next_ms(self):
        if self.w.expired_count:
            return self.w.clock_ms[0]
        return begin_of(&self.w, 0) if self.w.queued else None

    @property
    def pending(self):
        return self.w.pending

    @property
    def wheels(self):
        return self.w.levels

    @property
    def bytes_per_task(self):
        return sizeof(Task) + (self.w.mask + 1) * sizeof(uint32_t) / <double>self.w.capacity

    def counters(self):
        return {"visits": self.w.visits, "empty_visits": self.w.empty_visits, "reinserted": self.w.reinserted}
