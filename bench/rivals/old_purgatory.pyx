"""Kafka's purgatory as it was before its timing wheels (see old_purgatory.pyi). All loops run without the GIL.

    check_and_watch   try the operation; append it to the list of each key; try again; put it in the delay queue
    complete          a compare-and-swap on the operation's state; it stays in its lists and in the queue
    reap              remove what is due from the delay queue, and expire it; then the two purges

Each key's list and the delay queue have a lock, as in Kafka. Records are as large as timerd's. Names are hashed by
timerd's code, and payloads are copied as in timerd. In three points this design is better off than in Kafka. An
operation's record is free again when the last list and the queue have dropped it (Kafka: at a garbage collection). The
queue's heap holds the deadlines itself. A purge of the queue is one pass (Kafka: an iterator that searches the queue
for each entry that it removes).
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset
from bench.rivals.old_lists cimport *
from bench.rivals.old_records cimport *
from timerd_shm.generated.records cimport BLOCK_DATA, KEYS_MAX, Block, OpRecord, RegisterCommand, WatchNode

PENDING, COMPLETED, EXPIRED, REFUSED = IS_PENDING, IS_COMPLETED, IS_EXPIRED, IS_REFUSED
NEVER = AT_NO_TIME

# The work of the threads.


cdef uint32_t check_and_watch(Purgatory *p, const uint8_t *data, int64_t now_ns, int64_t delay_ns) noexcept nogil:
    """Register the request of a REGISTER command. Returns its state."""
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
        name = allocate(&p.operations)
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
    release(p, name)
    return state


cdef bint complete(Purgatory *p, uint32_t number, int64_t now_ns) noexcept nogil:
    """Complete a request, whether or not its keys are satisfied. Returns whether this call completed it."""
    cdef uint32_t name = p.of_number[number]
    cdef bint won
    if name == 0:
        return False
    won = settle(p, operation(p, name), IS_COMPLETED, now_ns)
    p.of_number[number] = 0
    release(p, name)
    return won


cdef bint reap(Purgatory *p, int64_t now_ns, bint waits) noexcept nogil:
    """One round of the reaper. Returns whether it expired an operation."""
    cdef uint32_t name, at
    cdef bint expired = False
    cdef int64_t began_ns
    while not expired:
        name = poll(p, clock_ns() if waits else now_ns, waits)
        if name == 0:
            p.empty_wakeups += 1
            break
        expired = settle(p, operation(p, name), IS_EXPIRED, clock_ns() if waits else now_ns)
        if not expired:
            p.dead_polls += 1
        release(p, name)
    if p.purge_interval and watched(p) >= p.purge_interval:
        p.list_purges += 1
        began_ns = clock_ns()
        for at in range(read32(&p.keys_used)):
            p.watchers_visited += purge_list(p, at)
        p.purge_ns += clock_ns() - began_ns
    if p.purge_interval and read32(&p.queued) >= p.purge_interval:
        p.queue_purges += 1
        began_ns = clock_ns()
        purge_queue(p)
        p.purge_ns += clock_ns() - began_ns
    return expired


cdef void generate(
    Purgatory *p, const uint8_t *commands, uint32_t count, const int64_t *due_ns, const int64_t *delay_ns,
    int64_t start_ns, int64_t give_up_ns
) noexcept nogil:
    """Register requests when they are due; requests of one millisecond go together."""
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
    """Complete requests when they are due. Each waits until the registrations that were planned before it are done."""
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
        assert sizeof(Key) <= sizeof(WatchNode)
        self.keys_per_op = keys_per_op
        self.payload_max = payload_max
        make_pool(&p.operations, sizeof(OpRecord), capacity)
        make_pool(&p.watchers, sizeof(WatchNode), capacity * keys_per_op)
        make_pool(&p.blocks, sizeof(Block), capacity * ((payload_max + BLOCK_DATA - 1) // BLOCK_DATA))
        p.keys = <Key *>calloc(PURGATORY_KEYS, sizeof(Key))
        p.locks = <pthread_mutex_t *>calloc(PURGATORY_KEYS, sizeof(pthread_mutex_t))
        p.heads = <uint32_t *>calloc(PURGATORY_KEYS, sizeof(uint32_t))
        p.queue = <QueueEntry *>calloc(capacity + 1, sizeof(QueueEntry))
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
        make_condition(&p.queue_changed)
        # Written here, so that all pages are mapped before the first request comes.
        memset(p.queue, 0, (<uint64_t>capacity + 1) * sizeof(QueueEntry))
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
        return sizeof(OpRecord) + keys_per_op * sizeof(WatchNode) + blocks * sizeof(Block) + sizeof(QueueEntry)

    cdef uint32_t _check(self, const uint8_t[::1] commands, uint32_t count) except? 0xFFFFFFFF:
        """Check that these are REGISTER commands that fit. Returns their bytes."""
        cdef uint64_t at = 0
        cdef RegisterCommand *command
        if self.p.registered + count > self.p.requests:
            raise ValueError(f"{self.p.registered + count} requests, and this purgatory was made for {self.p.requests}")
        for _ in range(count):
            if at + sizeof(RegisterCommand) > <uint64_t>commands.shape[0]:
                raise ValueError(f"{commands.shape[0]} bytes are too few for {count} commands")
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

    # The work of its threads.

    def generate(
        self, const uint8_t[::1] commands, const int64_t[::1] due_ns, const int64_t[::1] delay_ns, int64_t start_ns,
        int64_t give_up_ns,
    ):
        cdef uint32_t count = <uint32_t>due_ns.shape[0]
        if count == 0 or count != <uint32_t>delay_ns.shape[0]:
            raise ValueError(f"{count} times and {delay_ns.shape[0]} delays: give equal numbers of both, not 0")
        self._check(commands, count)
        with nogil:
            generate(&self.p, &commands[0], count, &due_ns[0], &delay_ns[0], start_ns, give_up_ns)

    def complete_all(self, const uint32_t[::1] numbers, const int64_t[::1] due_ns, int64_t start_ns):
        cdef uint32_t count = <uint32_t>numbers.shape[0]
        if count != <uint32_t>due_ns.shape[0]:
            raise ValueError(f"{count} requests and {due_ns.shape[0]} times: give equal numbers of both")
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
            pthread_cond_signal(&self.p.queue_changed)
            pthread_mutex_unlock(&self.p.queue_lock)

    # State and counters.

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
        return read32(&self.p.queued)

    @property
    def last_ns(self):
        return self.p.last_ns

    @property
    def bytes_max(self):
        cdef Purgatory *p = &self.p
        return (
            p.operations.used * p.operations.size + p.watchers.used * p.watchers.size + p.blocks.used * p.blocks.size
            + p.queued_max * sizeof(QueueEntry)
        )

    def in_use(self):
        return in_use(&self.p.operations), in_use(&self.p.watchers), in_use(&self.p.blocks)

    def counters(self):
        cdef Purgatory *p = &self.p
        return {
            "purge_ns": p.purge_ns,
            "list_purges": p.list_purges,
            "watchers_visited": p.watchers_visited,
            "queue_purges": p.queue_purges,
            "waiting_visited": p.queue_visited,
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
