"""The old purgatory's operations, the watcher lists of its keys, and its delay queue."""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from bench.rivals.old_records cimport *
from posix.time cimport timespec
from timerd.purgatory.memory.hash cimport Seed, key_hash
from timerd.purgatory.memory.bytes cimport copy_short, same_short
from timerd_shm.generated.records cimport BLOCK_DATA, Block


# Operations.


cdef inline Operation *operation(Purgatory *p, uint32_t name) noexcept nogil:
    return <Operation *>record(&p.operations, name)


cdef inline void release(Purgatory *p, uint32_t name) noexcept nogil:
    """Drop a reference. The last one frees the operation and its payload."""
    cdef Operation *op = operation(p, name)
    cdef uint32_t block, next
    if add32(&op.references, <uint32_t>-1):
        return
    block = op.payload
    while block:
        next = (<Block *>record(&p.blocks, block)).next
        free_record(&p.blocks, block)
        block = next
    free_record(&p.operations, name)


cdef inline bint settle(Purgatory *p, Operation *op, uint32_t state, int64_t now_ns) noexcept nogil:
    """Settle the operation, unless another thread has settled it. Returns whether this call settled it."""
    if not swap32(&op.state, IS_PENDING, state):
        return False
    p.states[op.number] = state
    p.settlings[op.number] += 1
    p.settled_ns[op.number] = now_ns
    add32(&p.settled, 1)
    return True


cdef inline bint try_complete(Purgatory *p, Operation *op, int64_t now_ns) noexcept nogil:
    """Settle the operation if the benchmark's condition holds: its time has come."""
    return now_ns >= op.completes_ns and settle(p, op, IS_COMPLETED, now_ns)


cdef inline uint32_t copy_payload(Purgatory *p, const uint8_t *data, uint32_t length) noexcept nogil:
    """Copy a payload into a chain of blocks. Returns the first block. The pool has enough for all operations."""
    cdef uint32_t first = 0, previous = 0, name, piece, rest = length
    cdef Block *block
    while rest:
        piece = rest if rest < BLOCK_DATA else BLOCK_DATA
        name = allocate(&p.blocks)
        block = <Block *>record(&p.blocks, name)
        copy_short(block.data, data, piece)
        block.next = 0
        if previous:
            (<Block *>record(&p.blocks, previous)).next = name
        else:
            first = name
            block.length = length
            block.refs = 1
        previous = name
        data += piece
        rest -= piece
    return first

# Watcher lists.


cdef inline uint32_t find_key(Purgatory *p, const uint8_t *name, uint8_t length) noexcept nogil:
    """Index + 1 of the key; 0 if no operation ever watched it."""
    cdef uint64_t hash = key_hash(Seed(0, 0), 0, name, length)
    cdef uint32_t at = read32(&p.heads[hash & (PURGATORY_KEYS - 1)])
    cdef Key *key
    while at:
        key = p.keys + at - 1
        if key.hash == hash and key.name_length == length and same_short(key.name, name, length):
            return at
        at = key.chain
    return 0


cdef inline uint32_t find_or_make_key(Purgatory *p, const uint8_t *name, uint8_t length) noexcept nogil:
    """Index + 1 of the key; 0 if it is new and the table is full. Only the thread that registers makes keys."""
    cdef uint32_t at = find_key(p, name, length)
    cdef uint32_t *head
    cdef Key *key
    if at or p.keys_used == PURGATORY_KEYS:
        return at
    key = p.keys + p.keys_used
    key.hash = key_hash(Seed(0, 0), 0, name, length)
    key.name_length = length
    copy_short(key.name, name, length)
    head = &p.heads[key.hash & (PURGATORY_KEYS - 1)]
    key.chain = head[0]
    write32(&p.keys_used, p.keys_used + 1)
    write32(head, p.keys_used)
    return p.keys_used


cdef inline Watcher *watcher(Purgatory *p, uint32_t name) noexcept nogil:
    return <Watcher *>record(&p.watchers, name)


cdef inline bint watch(Purgatory *p, uint32_t at, uint32_t name) noexcept nogil:
    """Append the operation to a key's list. Returns False, and appends nothing, if it has settled already."""
    cdef Key *key = p.keys + at - 1
    cdef uint32_t made
    cdef Watcher *w
    if read32(&operation(p, name).state) != IS_PENDING:
        return False
    add32(&operation(p, name).references, 1)
    made = allocate(&p.watchers)
    w = watcher(p, made)
    w.operation = name
    w.next = 0
    pthread_mutex_lock(p.locks + at - 1)
    w.prev = key.last
    if key.last:
        watcher(p, key.last).next = made
    else:
        key.first = made
    key.last = made
    write32(&key.watched, key.watched + 1)
    pthread_mutex_unlock(p.locks + at - 1)
    return True


cdef inline uint32_t remove_watcher(Purgatory *p, Key *key, uint32_t name) noexcept nogil:
    """Remove a watcher from its list. Returns the next watcher. The caller holds the list's lock."""
    cdef Watcher *w = watcher(p, name)
    cdef uint32_t next = w.next
    if w.prev:
        watcher(p, w.prev).next = next
    else:
        key.first = next
    if next:
        watcher(p, next).prev = w.prev
    else:
        key.last = w.prev
    write32(&key.watched, key.watched - 1)
    release(p, w.operation)
    free_record(&p.watchers, name)
    return next


cdef inline uint32_t purge_list(Purgatory *p, uint32_t at) noexcept nogil:
    """Remove the settled operations from a key's list. Returns the number of operations visited."""
    cdef Key *key = p.keys + at
    cdef uint32_t name, visited = 0
    pthread_mutex_lock(p.locks + at)
    name = key.first
    while name:
        visited += 1
        if read32(&operation(p, watcher(p, name).operation).state) != IS_PENDING:
            name = remove_watcher(p, key, name)
        else:
            name = watcher(p, name).next
    pthread_mutex_unlock(p.locks + at)
    return visited


cdef inline uint32_t check_list(Purgatory *p, uint32_t at, int64_t now_ns) noexcept nogil:
    """Try all operations in a key's list, and remove settled operations. Returns how many this call completed."""
    cdef Key *key = p.keys + at - 1
    cdef Operation *op
    cdef uint32_t name, completed = 0
    pthread_mutex_lock(p.locks + at - 1)
    name = key.first
    while name:
        op = operation(p, watcher(p, name).operation)
        if read32(&op.state) != IS_PENDING:
            name = remove_watcher(p, key, name)
        elif try_complete(p, op, now_ns):
            completed += 1
            name = remove_watcher(p, key, name)
        else:
            name = watcher(p, name).next
    pthread_mutex_unlock(p.locks + at - 1)
    return completed


cdef inline uint64_t watched(Purgatory *p) noexcept nogil:
    """Length of all lists together, with the settled operations in them."""
    cdef uint64_t total = 0
    cdef uint32_t at
    for at in range(read32(&p.keys_used)):
        total += read32(&p.keys[at].watched)
    return total

# The delay queue.


cdef inline void sift_up(QueueEntry *heap, uint32_t at, QueueEntry entry) noexcept nogil:
    cdef uint32_t parent
    while at:
        parent = (at - 1) >> 1
        if heap[parent].deadline_ns <= entry.deadline_ns:
            break
        heap[at] = heap[parent]
        at = parent
    heap[at] = entry


cdef inline void sift_down(QueueEntry *heap, uint32_t count, uint32_t at, QueueEntry entry) noexcept nogil:
    cdef uint32_t child
    while True:
        child = 2 * at + 1
        if child >= count:
            break
        if child + 1 < count and heap[child + 1].deadline_ns < heap[child].deadline_ns:
            child += 1
        if entry.deadline_ns <= heap[child].deadline_ns:
            break
        heap[at] = heap[child]
        at = child
    heap[at] = entry


cdef inline void offer(Purgatory *p, uint32_t name) noexcept nogil:
    cdef QueueEntry entry
    entry.deadline_ns = operation(p, name).deadline_ns
    entry.operation = name
    add32(&operation(p, name).references, 1)
    pthread_mutex_lock(&p.queue_lock)
    sift_up(p.queue, p.queued, entry)
    write32(&p.queued, p.queued + 1)
    if p.queued > p.queued_max:
        p.queued_max = p.queued
    if p.queue[0].operation == name:
        pthread_cond_signal(&p.queue_changed)
    pthread_mutex_unlock(&p.queue_lock)


cdef inline uint32_t poll(Purgatory *p, int64_t now_ns, bint waits) noexcept nogil:
    """Remove the first due operation from the queue. 0 if none is due; with `waits`, if none is due within POLL_NS."""
    cdef int64_t limit_ns = now_ns + POLL_NS, until_ns
    cdef uint32_t name = 0
    cdef timespec until
    pthread_mutex_lock(&p.queue_lock)
    while True:
        if p.queued and p.queue[0].deadline_ns <= now_ns:
            name = p.queue[0].operation
            write32(&p.queued, p.queued - 1)
            if p.queued:
                sift_down(p.queue, p.queued, 0, p.queue[p.queued])
            break
        if not waits or now_ns >= limit_ns or read32(&p.stopping):
            break
        until_ns = limit_ns
        if p.queued and p.queue[0].deadline_ns < limit_ns:
            until_ns = p.queue[0].deadline_ns
        until.tv_sec = until_ns // 1000000000
        until.tv_nsec = until_ns % 1000000000
        pthread_cond_timedwait(&p.queue_changed, &p.queue_lock, &until)
        now_ns = clock_ns()
    pthread_mutex_unlock(&p.queue_lock)
    return name


cdef inline void purge_queue(Purgatory *p) noexcept nogil:
    """Remove the settled operations from the delay queue."""
    cdef uint32_t at, kept = 0
    pthread_mutex_lock(&p.queue_lock)
    p.queue_visited += p.queued
    for at in range(p.queued):
        if read32(&operation(p, p.queue[at].operation).state) != IS_PENDING:
            release(p, p.queue[at].operation)
        else:
            p.queue[kept] = p.queue[at]
            kept += 1
    write32(&p.queued, kept)
    at = kept // 2
    while at:
        at -= 1
        sift_down(p.queue, kept, at, p.queue[at])
    pthread_mutex_unlock(&p.queue_lock)
