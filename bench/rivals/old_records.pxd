"""The old purgatory's records, the pools that they come from, and the state that its threads share."""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc
from libc.string cimport memset
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec
from timerd_shm.generated.records cimport KEY_INLINE

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
    static inline uint32_t fetch_and_clear32(uint32_t *at) { return __atomic_exchange_n(at, 0, __ATOMIC_ACQ_REL); }
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
    #define POLL_NS 200000000  /* when nothing expires, the reaper checks this often whether to purge */
    #define BETWEEN_CLOCKS 32  /* requests that are registered by one reading of the clock, at most */
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
    uint32_t fetch_and_clear32(uint32_t *at) nogil
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

# Records. A reference is a record's index + 1; 0 is none. The first word of a free record leads to the next one.

cdef struct Operation:
    uint32_t state
    uint32_t references  # from lists, the queue, the thread that will complete it, and a registration that still runs
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

cdef struct QueueEntry:
    int64_t deadline_ns
    uint32_t operation

cdef struct Pool:
    char *base
    uint64_t size  # bytes of a record
    uint32_t count
    uint32_t used  # records that were ever allocated
    uint32_t free_list  # free records, for the one thread that allocates
    uint32_t freed  # free records, from all threads

cdef struct Purgatory:
    Pool operations
    Pool watchers
    Pool blocks
    Key *keys
    pthread_mutex_t *locks  # of the keys' lists
    uint32_t *heads  # of the keys' chains
    uint32_t keys_used
    QueueEntry *queue  # a heap, the earliest deadline first
    uint32_t queued
    uint32_t queued_max
    pthread_mutex_t queue_lock
    pthread_cond_t queue_changed
    uint32_t purge_interval
    # The outcome of each request, by its number.
    uint32_t requests
    uint32_t *of_number
    uint8_t *states
    uint8_t *settlings
    int64_t *registered_ns
    int64_t *settled_ns
    # Shared by the threads.
    uint32_t registered
    uint32_t refused
    uint32_t settled
    uint32_t stopping
    int64_t next_due_ns
    int64_t last_ns
    # Counted by the reaper.
    uint64_t list_purges
    uint64_t purge_ns
    uint64_t watchers_visited
    uint64_t queue_purges
    uint64_t queue_visited
    uint64_t dead_polls
    uint64_t empty_wakeups

cdef inline int64_t clock_ns() noexcept nogil:
    cdef timespec at
    clock_gettime(CLOCK_MONOTONIC, &at)
    return <int64_t>at.tv_sec * 1000000000 + at.tv_nsec

# Pools. One thread allocates records; any thread frees them, without a lock.


cdef inline int make_pool(Pool *pool, uint64_t size, uint32_t count) except -1:
    pool.base = <char *>calloc(count, size)
    if pool.base == NULL:
        raise MemoryError(f"no memory for {count} records of {size} bytes")
    memset(pool.base, 0, count * size)  # so that every page is mapped before the measurement
    pool.size = size
    pool.count = count
    return 0


cdef inline void *record(Pool *pool, uint32_t name) noexcept nogil:
    return pool.base + (name - 1) * pool.size


cdef inline uint32_t allocate(Pool *pool) noexcept nogil:
    """Allocate a record. 0 if none is free."""
    cdef uint32_t name
    if pool.free_list == 0:
        pool.free_list = fetch_and_clear32(&pool.freed)
    name = pool.free_list
    if name:
        pool.free_list = (<uint32_t *>record(pool, name))[0]
        return name
    if pool.used == pool.count:
        return 0
    pool.used += 1
    return pool.used


cdef inline void free_record(Pool *pool, uint32_t name) noexcept nogil:
    cdef uint32_t head
    while True:
        head = read32(&pool.freed)
        (<uint32_t *>record(pool, name))[0] = head
        if swap32(&pool.freed, head, name):
            return


cdef inline uint32_t in_use(Pool *pool) noexcept nogil:
    """The number of records that are not free. No other thread may run."""
    cdef uint32_t unused = 0, name = pool.free_list
    while name:
        unused += 1
        name = (<uint32_t *>record(pool, name))[0]
    name = pool.freed
    while name:
        unused += 1
        name = (<uint32_t *>record(pool, name))[0]
    return pool.used - unused
