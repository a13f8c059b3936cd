"""Kafka's purgatory as it was before its timing wheels (see old_purgatory.pyi). All loops run without the GIL.

    check_and_watch   try; stand on the list of every key; try again; join the delay queue
    complete          a compare-and-swap on the operation's state; it stays on its lists and in the queue
    reap              take what is due from the delay queue and expire it; then the two purges

Each key's list and the delay queue have a lock, as there. Records are as large as timerd's, names are hashed and payloads
copied by the same code. Kinder than the original: an operation's record is free again when the last list lets go of it
(there: at a collection), the queue's heap holds deadlines itself, and a purge of it is one pass (there: an iterator that
searches the queue for each that it removes).
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec
from timerd.hash cimport key_hash
from timerd.short cimport copy_short, same_short
from timerd_shm.records cimport (
    BLOCK_DATA, KEY_INLINE, KEYS_MAX, Block, KeyRecord, OpRecord, RegisterCommand, WatchNode,
)

cdef extern from *:
    """
    #include <pthread.h>
    #include <stdint.h>
    #include <time.h>

    static inline uint32_t read32(const uint32_t *at) { return __atomic_load_n(at, __ATOMIC_ACQUIRE); }
    static inline int64_t read64(const int64_t *at) { return __atomic_load_n(at, __ATOMIC_ACQUIRE); }
    static inline void write32(uint32_t *at, uint32_t value) { __atomic_store_n(at, value, __ATOMIC_RELEASE); }
    static inline void write64(int64_t *at, int64_t value) { __atomic_store_n(at, value, __ATOMIC_RELEASE); }
    static inline uint32_t add32(uint32_t *at, uint32_t n) { return __atomic_add_fetch(at, n, __ATOMIC_ACQ_REL); }
    static inline uint32_t take32(uint32_t *at) { return __atomic_exchange_n(at, 0, __ATOMIC_ACQ_REL); }
    static inline int swap32(uint32_t *at, uint32_t from, uint32_t to)
    {
        return __atomic_compare_exchange_n(at, &from, to, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    }
    static inline void make_condition(pthread_cond_t *condition)
    {
        pthread_condattr_t attributes;
        pthread_condattr_init(&attributes);
        pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
        pthread_cond_init(condition, &attributes);
        pthread_condattr_destroy(&attributes);
    }
    static inline void sleep_until(uint64_t at_ns)
    {
        struct timespec at = {.tv_sec = at_ns / 1000000000, .tv_nsec = at_ns % 1000000000};
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
    }
    #define MILLISECOND 1000000
    #define POLL_NS 200000000  /* the reaper looks at its purges that often when nothing expires */
    #define BETWEEN_CLOCKS 32  /* requests of one reading of the clock */
    #define PURGATORY_KEYS 4096  /* a power of two */
    #define AT_NO_TIME INT64_MAX
    """
    ctypedef struct pthread_mutex_t:
        pass
    ctypedef struct pthread_cond_t:
        pass
    void pthread_mutex_init(pthread_mutex_t *, void *) nogil
    void pthread_mutex_lock(pthread_mutex_t *) nogil
    void pthread_mutex_unlock(pthread_mutex_t *) nogil
    void pthread_mutex_destroy(pthread_mutex_t *) nogil
    void pthread_cond_signal(pthread_cond_t *) nogil
    void pthread_cond_destroy(pthread_cond_t *) nogil
    void pthread_cond_timedwait(pthread_cond_t *, pthread_mutex_t *, timespec *) nogil
    void make_condition(pthread_cond_t *) nogil
    void sleep_until(uint64_t at_ns) nogil
    uint32_t read32(const uint32_t *at) nogil
    int64_t read64(const int64_t *at) nogil
    void write32(uint32_t *at, uint32_t value) nogil
    void write64(int64_t *at, int64_t value) nogil
    uint32_t add32(uint32_t *at, uint32_t n) nogil
    uint32_t take32(uint32_t *at) nogil
    bint swap32(uint32_t *at, uint32_t old, uint32_t new) nogil
    enum:
        MILLISECOND
        POLL_NS
        BETWEEN_CLOCKS
        PURGATORY_KEYS
    int64_t AT_NO_TIME

cdef enum:
    IS_PENDING = 0
    IS_COMPLETED = 1
    IS_EXPIRED = 2
    IS_REFUSED = 3

PENDING, COMPLETED, EXPIRED, REFUSED = IS_PENDING, IS_COMPLETED, IS_EXPIRED, IS_REFUSED
NEVER = AT_NO_TIME

# Records. References name a record by its index + 1; 0 is none. The first word of a free one leads to the next.

cdef struct Operation:
    uint32_t state
    uint32_t references  # lists, the queue, whoever will complete it, and its registration while that runs
    uint32_t payload
    uint32_t reserved
    uint64_t number
    int64_t deadline_ns
    int64_t completes_ns

cdef struct Watcher:
    uint32_t operation
    uint32_t reserved
    uint32_t next
    uint32_t prev

cdef struct Key:
    uint64_t hash
    uint8_t name_length
    uint8_t name[KEY_INLINE]
    uint32_t chain
    uint32_t first
    uint32_t last
    uint32_t watched

cdef struct Waiting:
    int64_t deadline_ns
    uint32_t operation

cdef struct Pool:
    char *base
    uint64_t size  # bytes of a record
    uint32_t count
    uint32_t used  # were ever taken
    uint32_t taken  # free ones, for the one thread that takes
    uint32_t given  # free ones, from all threads

cdef struct Purgatory:
    Pool operations
    Pool watchers
    Pool blocks
    Key *keys
    pthread_mutex_t *locks  # of the keys' lists
    uint32_t *heads  # of the keys' chains
    uint32_t keys_used
    Waiting *queue  # a heap, the earliest deadline first
    uint32_t waiting
    uint32_t waiting_max
    pthread_mutex_t queue_lock
    pthread_cond_t queue_news
    uint32_t purge_interval
    # What became of each request, by its number.
    uint32_t requests
    uint32_t *of_number
    uint8_t *states
    uint8_t *settlings
    int64_t *registered_ns
    int64_t *settled_ns
    # Between the threads.
    uint32_t registered
    uint32_t refused
    uint32_t settled
    uint32_t stopping
    int64_t next_due_ns
    int64_t last_ns
    # Counted by the reaper.
    uint64_t list_purges
    uint64_t watchers_visited
    uint64_t queue_purges
    uint64_t waiting_visited
    uint64_t dead_polls
    uint64_t empty_wakeups


cdef int64_t clock_ns() noexcept nogil:
    cdef timespec at
    clock_gettime(CLOCK_MONOTONIC, &at)
    return <int64_t>at.tv_sec * 1000000000 + at.tv_nsec


# Pools. One thread takes; any thread gives, without a lock.


cdef int make_pool(Pool *pool, uint64_t size, uint32_t count) except -1:
    pool.base = <char *>calloc(count, size)
    if pool.base == NULL:
        raise MemoryError(f"no memory for {count} records of {size} bytes")
    memset(pool.base, 0, count * size)  # every page is there before anything is measured
    pool.size = size
    pool.count = count
    return 0


cdef inline void *record(Pool *pool, uint32_t name) noexcept nogil:
    return pool.base + (name - 1) * pool.size


cdef inline uint32_t take(Pool *pool) noexcept nogil:
    """A free record, or 0."""
    cdef uint32_t name
    if pool.taken == 0:
        pool.taken = take32(&pool.given)
    name = pool.taken
    if name:
        pool.taken = (<uint32_t *>record(pool, name))[0]
        return name
    if pool.used == pool.count:
        return 0
    pool.used += 1
    return pool.used


cdef inline void give(Pool *pool, uint32_t name) noexcept nogil:
    cdef uint32_t head
    while True:
        head = read32(&pool.given)
        (<uint32_t *>record(pool, name))[0] = head
        if swap32(&pool.given, head, name):
            return


cdef uint32_t in_use(Pool *pool) noexcept nogil:
    """How many are not free. Nothing else may run."""
    cdef uint32_t unused = 0, name = pool.taken
    while name:
        unused += 1
        name = (<uint32_t *>record(pool, name))[0]
    name = pool.given
    while name:
        unused += 1
        name = (<uint32_t *>record(pool, name))[0]
    return pool.used - unused


# Operations.


cdef inline Operation *operation(Purgatory *p, uint32_t name) noexcept nogil:
    return <Operation *>record(&p.operations, name)


cdef inline void let_go(Purgatory *p, uint32_t name) noexcept nogil:
    """One reference less; the last one frees the operation and its payload."""
    cdef Operation *op = operation(p, name)
    cdef uint32_t block, next
    if add32(&op.references, <uint32_t>-1):
        return
    block = op.payload
    while block:
        next = (<Block *>record(&p.blocks, block)).next
        give(&p.blocks, block)
        block = next
    give(&p.operations, name)


cdef inline bint settle(Purgatory *p, Operation *op, uint32_t state, int64_t now_ns) noexcept nogil:
    """Whether this caller is the one who settles it."""
    if not swap32(&op.state, IS_PENDING, state):
        return False
    p.states[op.number] = state
    p.settlings[op.number] += 1
    p.settled_ns[op.number] = now_ns
    add32(&p.settled, 1)
    return True


cdef inline bint try_complete(Purgatory *p, Operation *op, int64_t now_ns) noexcept nogil:
    """The benchmark's condition: its time has come."""
    return now_ns >= op.completes_ns and settle(p, op, IS_COMPLETED, now_ns)


cdef uint32_t copy_payload(Purgatory *p, const uint8_t *data, uint32_t length) noexcept nogil:
    """A chain of blocks. There are enough: as many as all operations can have."""
    cdef uint32_t first = 0, previous = 0, name, piece, rest = length
    cdef Block *block
    while rest:
        piece = rest if rest < BLOCK_DATA else BLOCK_DATA
        name = take(&p.blocks)
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


cdef uint32_t find_key(Purgatory *p, const uint8_t *name, uint8_t length) noexcept nogil:
    """Index + 1 of that key; 0 if nobody ever watched it."""
    cdef uint64_t hash = key_hash(0, 0, name, length)
    cdef uint32_t at = read32(&p.heads[hash & (PURGATORY_KEYS - 1)])
    cdef Key *key
    while at:
        key = p.keys + at - 1
        if key.hash == hash and key.name_length == length and same_short(key.name, name, length):
            return at
        at = key.chain
    return 0


cdef uint32_t find_or_make_key(Purgatory *p, const uint8_t *name, uint8_t length) noexcept nogil:
    """Index + 1 of that key; 0 when there are as many as may be. Only the thread that registers makes keys."""
    cdef uint32_t at = find_key(p, name, length), *head
    cdef Key *key
    if at or p.keys_used == PURGATORY_KEYS:
        return at
    key = p.keys + p.keys_used
    key.hash = key_hash(0, 0, name, length)
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
    """Stand at the end of a key's list; False if the operation has settled, so that no more is needed."""
    cdef Key *key = p.keys + at - 1
    cdef uint32_t made
    cdef Watcher *w
    if read32(&operation(p, name).state) != IS_PENDING:
        return False
    add32(&operation(p, name).references, 1)
    made = take(&p.watchers)
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


cdef inline uint32_t drop(Purgatory *p, Key *key, uint32_t name) noexcept nogil:
    """Take a watcher out of its list, whose lock is held; the one after it."""
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
    let_go(p, w.operation)
    give(&p.watchers, name)
    return next


cdef uint32_t purge_list(Purgatory *p, uint32_t at) noexcept nogil:
    """Drop those that have settled from a key's list; how many stood in it."""
    cdef Key *key = p.keys + at
    cdef uint32_t name, visited = 0
    pthread_mutex_lock(p.locks + at)
    name = key.first
    while name:
        visited += 1
        if read32(&operation(p, watcher(p, name).operation).state) != IS_PENDING:
            name = drop(p, key, name)
        else:
            name = watcher(p, name).next
    pthread_mutex_unlock(p.locks + at)
    return visited


cdef uint32_t check_list(Purgatory *p, uint32_t at, int64_t now_ns) noexcept nogil:
    """Try all that stand in a key's list; drop the settled ones; how many this call completed."""
    cdef Key *key = p.keys + at - 1
    cdef Operation *op
    cdef uint32_t name, completed = 0
    pthread_mutex_lock(p.locks + at - 1)
    name = key.first
    while name:
        op = operation(p, watcher(p, name).operation)
        if read32(&op.state) != IS_PENDING:
            name = drop(p, key, name)
        elif try_complete(p, op, now_ns):
            completed += 1
            name = drop(p, key, name)
        else:
            name = watcher(p, name).next
    pthread_mutex_unlock(p.locks + at - 1)
    return completed


cdef uint64_t watched(Purgatory *p) noexcept nogil:
    """Length of all lists together, settled ones among them."""
    cdef uint64_t total = 0
    cdef uint32_t at
    for at in range(read32(&p.keys_used)):
        total += read32(&p.keys[at].watched)
    return total


# The delay queue.


cdef inline void sift_up(Waiting *heap, uint32_t at, Waiting entry) noexcept nogil:
    cdef uint32_t parent
    while at:
        parent = (at - 1) >> 1
        if heap[parent].deadline_ns <= entry.deadline_ns:
            break
        heap[at] = heap[parent]
        at = parent
    heap[at] = entry


cdef inline void sift_down(Waiting *heap, uint32_t count, uint32_t at, Waiting entry) noexcept nogil:
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
    cdef Waiting entry
    entry.deadline_ns = operation(p, name).deadline_ns
    entry.operation = name
    add32(&operation(p, name).references, 1)
    pthread_mutex_lock(&p.queue_lock)
    sift_up(p.queue, p.waiting, entry)
    write32(&p.waiting, p.waiting + 1)
    if p.waiting > p.waiting_max:
        p.waiting_max = p.waiting
    if p.queue[0].operation == name:
        pthread_cond_signal(&p.queue_news)
    pthread_mutex_unlock(&p.queue_lock)


cdef uint32_t poll(Purgatory *p, int64_t now_ns, bint waits) noexcept nogil:
    """The first operation that is due, out of the queue; 0 if none is, or becomes so within POLL_NS."""
    cdef int64_t limit_ns = now_ns + POLL_NS, until_ns
    cdef uint32_t name = 0
    cdef timespec until
    pthread_mutex_lock(&p.queue_lock)
    while True:
        if p.waiting and p.queue[0].deadline_ns <= now_ns:
            name = p.queue[0].operation
            write32(&p.waiting, p.waiting - 1)
            if p.waiting:
                sift_down(p.queue, p.waiting, 0, p.queue[p.waiting])
            break
        if not waits or now_ns >= limit_ns or read32(&p.stopping):
            break
        until_ns = limit_ns
        if p.waiting and p.queue[0].deadline_ns < limit_ns:
            until_ns = p.queue[0].deadline_ns
        until.tv_sec = until_ns // 1000000000
        until.tv_nsec = until_ns % 1000000000
        pthread_cond_timedwait(&p.queue_news, &p.queue_lock, &until)
        now_ns = clock_ns()
    pthread_mutex_unlock(&p.queue_lock)
    return name


cdef void purge_queue(Purgatory *p) noexcept nogil:
    """Drop those that have settled from the delay queue."""
    cdef uint32_t at, kept = 0
    pthread_mutex_lock(&p.queue_lock)
    p.waiting_visited += p.waiting
    for at in range(p.waiting):
        if read32(&operation(p, p.queue[at].operation).state) != IS_PENDING:
            let_go(p, p.queue[at].operation)
        else:
            p.queue[kept] = p.queue[at]
            kept += 1
    write32(&p.waiting, kept)
    at = kept // 2
    while at:
        at -= 1
        sift_down(p.queue, kept, at, p.queue[at])
    pthread_mutex_unlock(&p.queue_lock)


# What the threads do.


cdef uint32_t check_and_watch(Purgatory *p, const uint8_t *data, int64_t now_ns, int64_t delay_ns) noexcept nogil:
    """Register the request that a REGISTER command tells of; its state at the end of it."""
    cdef RegisterCommand *command = <RegisterCommand *>data
    cdef const uint8_t *at = data + sizeof(RegisterCommand)
    cdef uint32_t name = 0, number = p.registered, state, i
    cdef uint32_t[KEYS_MAX] keys
    cdef Operation *op
    p.registered_ns[number] = now_ns
    for i in range(command.keys):
        keys[i] = find_or_make_key(p, at + 2, at[0])
        if keys[i] == 0:
            break
        at += 2 + at[0]
    else:
        name = take(&p.operations)
    if name == 0:
        p.states[number] = IS_REFUSED
        add32(&p.refused, 1)
        write32(&p.registered, number + 1)
        return IS_REFUSED
    op = operation(p, name)
    op.state = IS_PENDING
    op.references = 1
    op.number = number
    op.deadline_ns = now_ns + <int64_t>command.timeout_ns
    op.completes_ns = AT_NO_TIME if delay_ns == AT_NO_TIME else now_ns + delay_ns
    op.payload = copy_payload(p, at, command.payload_length)
    if delay_ns != AT_NO_TIME:
        op.references = 2
        p.of_number[number] = name
    if not try_complete(p, op, now_ns):
        for i in range(command.keys):
            if not watch(p, keys[i], name):
                break
        else:
            if not try_complete(p, op, now_ns):
                offer(p, name)
    write32(&p.registered, number + 1)
    state = read32(&op.state)
    let_go(p, name)
    return state


cdef bint complete(Purgatory *p, uint32_t number, int64_t now_ns) noexcept nogil:
    """Settle a request as completed, whatever its keys say; whether this call did."""
    cdef uint32_t name = p.of_number[number]
    cdef bint won
    if name == 0:
        return False
    won = settle(p, operation(p, name), IS_COMPLETED, now_ns)
    p.of_number[number] = 0
    let_go(p, name)
    return won


cdef bint reap(Purgatory *p, int64_t now_ns, bint waits) noexcept nogil:
    """One round of the reaper; whether it expired an operation."""
    cdef uint32_t name, at
    cdef bint expired = False
    while not expired:
        name = poll(p, clock_ns() if waits else now_ns, waits)
        if name == 0:
            p.empty_wakeups += 1
            break
        expired = settle(p, operation(p, name), IS_EXPIRED, clock_ns() if waits else now_ns)
        if not expired:
            p.dead_polls += 1
        let_go(p, name)
    if p.purge_interval and watched(p) >= p.purge_interval:
        p.list_purges += 1
        for at in range(read32(&p.keys_used)):
            p.watchers_visited += purge_list(p, at)
    if p.purge_interval and read32(&p.waiting) >= p.purge_interval:
        p.queue_purges += 1
        purge_queue(p)
    return expired


cdef void generate(
    Purgatory *p, const uint8_t *commands, uint32_t count, const int64_t *due_ns, const int64_t *delay_ns,
    int64_t start_ns, int64_t give_up_ns
) noexcept nogil:
    """Register requests as they become due, those of a millisecond together."""
    cdef uint32_t at = 0, left
    cdef int64_t now_ns
    write64(&p.next_due_ns, due_ns[0])
    while at < count:
        now_ns = clock_ns()
        if now_ns >= give_up_ns or read32(&p.stopping):
            break
        left = BETWEEN_CLOCKS
        while left and at < count and start_ns + due_ns[at] <= now_ns:
            check_and_watch(p, commands, now_ns, delay_ns[at])
            commands += (<RegisterCommand *>commands).length
            at += 1
            left -= 1
            write64(&p.next_due_ns, due_ns[at] if at < count else AT_NO_TIME)
        if left and at < count:
            sleep_until(start_ns + (due_ns[at] // MILLISECOND + 1) * MILLISECOND)
    p.last_ns = clock_ns()
    write64(&p.next_due_ns, AT_NO_TIME)


cdef void complete_all(
    Purgatory *p, const uint32_t *numbers, uint32_t count, const int64_t *due_ns, int64_t start_ns
) noexcept nogil:
    """Complete requests as they become due, but none before those that came until then are registered."""
    cdef uint32_t at = 0
    cdef int64_t now_ns
    while at < count and not read32(&p.stopping):
        now_ns = clock_ns()
        while at < count and start_ns + due_ns[at] <= now_ns and due_ns[at] < read64(&p.next_due_ns):
            if numbers[at] < read32(&p.registered):
                complete(p, numbers[at], now_ns)
            at += 1
        if at < count:
            now_ns = clock_ns() - start_ns
            sleep_until(start_ns + (max(now_ns, due_ns[at]) // MILLISECOND + 1) * MILLISECOND)


cdef class OldPurgatory:
    cdef Purgatory p
    cdef uint32_t keys_per_op
    cdef uint32_t payload_max

    def __cinit__(
        self, uint32_t capacity, *, uint32_t keys_per_op, uint32_t payload_max, uint32_t requests, uint32_t purge_interval
    ):
        cdef Purgatory *p = &self.p
        cdef uint32_t at
        assert sizeof(Operation) <= sizeof(OpRecord) and sizeof(Watcher) <= sizeof(WatchNode)
        assert sizeof(Key) <= sizeof(KeyRecord)
        self.keys_per_op = keys_per_op
        self.payload_max = payload_max
        make_pool(&p.operations, sizeof(OpRecord), capacity)
        make_pool(&p.watchers, sizeof(WatchNode), capacity * keys_per_op)
        make_pool(&p.blocks, sizeof(Block), capacity * ((payload_max + BLOCK_DATA - 1) // BLOCK_DATA))
        p.keys = <Key *>calloc(PURGATORY_KEYS, sizeof(Key))
        p.locks = <pthread_mutex_t *>calloc(PURGATORY_KEYS, sizeof(pthread_mutex_t))
        p.heads = <uint32_t *>calloc(PURGATORY_KEYS, sizeof(uint32_t))
        p.queue = <Waiting *>calloc(capacity + 1, sizeof(Waiting))
        p.of_number = <uint32_t *>calloc(requests, sizeof(uint32_t))
        p.states = <uint8_t *>calloc(requests, 1)
        p.settlings = <uint8_t *>calloc(requests, 1)
        p.registered_ns = <int64_t *>calloc(requests, sizeof(int64_t))
        p.settled_ns = <int64_t *>calloc(requests, sizeof(int64_t))
        if (
            p.keys == NULL or p.locks == NULL or p.heads == NULL or p.queue == NULL or p.of_number == NULL
            or p.states == NULL or p.settlings == NULL or p.registered_ns == NULL or p.settled_ns == NULL
        ):
            raise MemoryError(f"no memory for {capacity} operations and {requests} requests")
        for at in range(PURGATORY_KEYS):
            pthread_mutex_init(p.locks + at, NULL)
        pthread_mutex_init(&p.queue_lock, NULL)
        make_condition(&p.queue_news)
        # Written here, so that no page is new when a request is first told of.
        memset(p.queue, 0, (<uint64_t>capacity + 1) * sizeof(Waiting))
        memset(p.of_number, 0, requests * sizeof(uint32_t))
        memset(p.states, 0, requests)
        memset(p.settlings, 0, requests)
        memset(p.registered_ns, 0, requests * sizeof(int64_t))
        memset(p.settled_ns, 0, requests * sizeof(int64_t))
        p.requests = requests
        p.purge_interval = purge_interval

    def __dealloc__(self):
        cdef Purgatory *p = &self.p
        free(p.operations.base)
        free(p.watchers.base)
        free(p.blocks.base)
        free(p.keys)
        free(p.locks)
        free(p.heads)
        free(p.queue)
        free(p.of_number)
        free(p.states)
        free(p.settlings)
        free(p.registered_ns)
        free(p.settled_ns)

    @staticmethod
    def bytes_for(uint32_t keys_per_op, uint32_t payload_max):
        cdef uint64_t blocks = (payload_max + BLOCK_DATA - 1) // BLOCK_DATA
        return sizeof(OpRecord) + keys_per_op * sizeof(WatchNode) + blocks * sizeof(Block) + sizeof(Waiting)

    cdef uint32_t _check(self, const uint8_t[::1] commands, uint32_t count) except? 0xFFFFFFFF:
        """The commands are REGISTER commands that fit; how many bytes they have."""
        cdef uint64_t at = 0
        cdef RegisterCommand *command
        if self.p.registered + count > self.p.requests:
            raise ValueError(f"{self.p.registered + count} requests, and it was made for {self.p.requests}")
        for _ in range(count):
            if at + sizeof(RegisterCommand) > <uint64_t>commands.shape[0]:
                raise ValueError(f"{commands.shape[0]} bytes are less than {count} commands")
            command = <RegisterCommand *>&commands[at]
            if not 1 <= command.keys <= self.keys_per_op or command.payload_length > self.payload_max:
                raise ValueError(f"{command.keys} keys and {command.payload_length} bytes of payload are too many")
            at += command.length
        return at

    # One step at a time, for tests.

    def register(self, const uint8_t[::1] command, int64_t now_ns, int64_t delay_ns=AT_NO_TIME):
        self._check(command, 1)
        return check_and_watch(&self.p, &command[0], now_ns, delay_ns)

    def complete(self, uint32_t number, int64_t now_ns):
        if number >= self.p.registered:
            raise ValueError(f"{number} is not registered: there are {self.p.registered}")
        return bool(complete(&self.p, number, now_ns))

    def check_and_complete(self, bytes key not None, int64_t now_ns):
        cdef uint32_t at = find_key(&self.p, <const uint8_t *><const char *>key, <uint8_t>len(key))
        return check_list(&self.p, at, now_ns) if at else 0

    def reap(self, int64_t now_ns):
        return bool(reap(&self.p, now_ns, False))

    # What its threads do.

    def generate(
        self, const uint8_t[::1] commands, const int64_t[::1] due_ns, const int64_t[::1] delay_ns, int64_t start_ns,
        int64_t give_up_ns,
    ):
        cdef uint32_t count = <uint32_t>due_ns.shape[0]
        if count == 0 or count != <uint32_t>delay_ns.shape[0]:
            raise ValueError(f"{count} times and {delay_ns.shape[0]} delays: as many of both, and some, are needed")
        self._check(commands, count)
        with nogil:
            generate(&self.p, &commands[0], count, &due_ns[0], &delay_ns[0], start_ns, give_up_ns)

    def complete_all(self, const uint32_t[::1] numbers, const int64_t[::1] due_ns, int64_t start_ns):
        cdef uint32_t count = <uint32_t>numbers.shape[0]
        if count != <uint32_t>due_ns.shape[0]:
            raise ValueError(f"{count} requests and {due_ns.shape[0]} times: as many of both are needed")
        if count:
            with nogil:
                complete_all(&self.p, &numbers[0], count, &due_ns[0], start_ns)

    def reap_until_stopped(self):
        with nogil:
            while not read32(&self.p.stopping):
                reap(&self.p, 0, True)

    def stop(self):
        write32(&self.p.stopping, 1)
        with nogil:
            pthread_mutex_lock(&self.p.queue_lock)
            pthread_cond_signal(&self.p.queue_news)
            pthread_mutex_unlock(&self.p.queue_lock)

    # What there is, and what was.

    @property
    def registered(self):
        return read32(&self.p.registered)

    @property
    def refused(self):
        return read32(&self.p.refused)

    @property
    def settled(self):
        return read32(&self.p.settled)

    @property
    def watched(self):
        return watched(&self.p)

    @property
    def delayed(self):
        return read32(&self.p.waiting)

    @property
    def last_ns(self):
        return self.p.last_ns

    @property
    def bytes_max(self):
        cdef Purgatory *p = &self.p
        return (
            p.operations.used * p.operations.size + p.watchers.used * p.watchers.size + p.blocks.used * p.blocks.size
            + p.waiting_max * sizeof(Waiting)
        )

    def in_use(self):
        return in_use(&self.p.operations), in_use(&self.p.watchers), in_use(&self.p.blocks)

    def counters(self):
        cdef Purgatory *p = &self.p
        return {
            "list_purges": p.list_purges,
            "watchers_visited": p.watchers_visited,
            "queue_purges": p.queue_purges,
            "waiting_visited": p.waiting_visited,
            "dead_polls": p.dead_polls,
            "empty_wakeups": p.empty_wakeups,
        }

    def states(self):
        return (<char *>self.p.states)[:self.p.registered]

    def settlings(self):
        return (<char *>self.p.settlings)[:self.p.registered]

    def registered_ns(self):
        return (<char *>self.p.registered_ns)[:self.p.registered * sizeof(int64_t)]

    def settled_ns(self):
        return (<char *>self.p.settled_ns)[:self.p.registered * sizeof(int64_t)]
