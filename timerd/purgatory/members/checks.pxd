"""Checks: a client asks all owners that watch a key to look, and counts the operations that they complete.

For example, three operations of two clients watch "orders". A CHECK of that key is an event, by which three looks are
due, and each of the three operations gets a ticket. The owner gives the ticket back when it has looked, or has
completed the operation. When all three are back, the check has finished, and the query "check" is answered.

An operation that completes counts once, for the check that waits for it longest. A check does not finish if there was
no ticket for one of its operations, or if an owner does not look. Then its client ends it. (Kafka: checkAndComplete.)
"""

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc
from timerd.purgatory.memory.arena cimport Arena
from timerd_shm.generated.records cimport *

from .state cimport CHECK_DELIVERED, CHECK_FREE, CHECK_IN_DELIVERY, TICKETS_OF_OPERATION, Check, Look, Members, Ticket


cdef inline bint has_check(Arena *a) noexcept nogil:
    return a.members.free_check != 0


cdef inline void begin_check(Arena *a, uint32_t slot, uint64_t command, uint64_t sequence) noexcept nogil:
    """The event of a CHECK is in the ring, and its delivery begins. The caller has asked has_check()."""
    cdef Members *m = &a.members
    cdef Check *check = m.checks + (m.free_check - 1)
    m.check_in_delivery = m.free_check
    m.free_check = check.next
    check.command = command
    check.sequence = sequence
    check.slot = slot
    check.remaining = check.completed = 0
    check.state = CHECK_IN_DELIVERY
    m.report_states[slot].checks += 1


cdef inline Check *check_of(Arena *a, EventRecord *e) noexcept nogil:
    """The check of the event in delivery; NULL if an earlier daemon began the check, or its client has ended."""
    cdef Check *check
    if a.members.check_in_delivery == 0:
        return NULL
    check = a.members.checks + (a.members.check_in_delivery - 1)
    return check if check.state == CHECK_IN_DELIVERY and check.sequence == e.sequence else NULL


cdef inline bint has_finished(Check *check) noexcept nogil:
    return check.state == CHECK_DELIVERED and check.remaining == 0


cdef inline void end_check_delivery(Arena *a, EventRecord *e) noexcept nogil:
    """The check's event has reached every watcher."""
    cdef Check *check = check_of(a, e)
    a.members.check_in_delivery = 0
    if check != NULL:
        check.state = CHECK_DELIVERED
        if has_finished(check):
            a.members.checks_finished = True


cdef inline void end_check(Arena *a, Check *check) noexcept nogil:
    """The check's client no longer waits. Tickets of the check are void from now on."""
    cdef Members *m = &a.members
    m.report_states[check.slot].checks -= 1
    check.state = CHECK_FREE
    check.serial += 1
    check.next = m.free_check
    m.free_check = <uint32_t>(check - m.checks) + 1


cdef inline Check *find_check(Arena *a, uint32_t slot, uint64_t command) noexcept nogil:
    cdef uint32_t i
    if a.members.report_states[slot].checks:
        for i in range(CHECKS_MAX):
            if (
                a.members.checks[i].state != CHECK_FREE and a.members.checks[i].slot == slot
                and a.members.checks[i].command == command
            ):
                return a.members.checks + i
    return NULL


cdef inline void end_checks(Arena *a, uint32_t slot) noexcept nogil:
    """The client of that slot has died."""
    cdef uint32_t i
    if a.members.report_states[slot].checks:
        for i in range(CHECKS_MAX):
            if a.members.checks[i].state != CHECK_FREE and a.members.checks[i].slot == slot:
                end_check(a, a.members.checks + i)


cdef inline void free_ticket(Arena *a, uint32_t number) noexcept nogil:
    a.members.tickets[number - 1].next = a.members.free_ticket
    a.members.free_ticket = number


cdef inline uint32_t take_ticket(Arena *a) noexcept nogil:
    """A ticket (index + 1) that nothing names; 0 = they are used up."""
    cdef Members *m = &a.members
    cdef uint32_t number = m.free_ticket
    if m.tickets == NULL:
        m.tickets = <Ticket *>calloc(TICKETS_MAX, sizeof(Ticket))  # untouched pages take no memory
        if m.tickets == NULL:
            return 0
    if number:
        m.free_ticket = m.tickets[number - 1].next
    elif m.tickets_used < TICKETS_MAX:
        m.tickets_used += 1
        number = m.tickets_used
    return number


cdef inline void give_ticket(Arena *a, OpRecord *op, EventRecord *e) noexcept nogil:
    """Give the operation a ticket for the check of this event: its owner is to look.

    The operation's tickets of ended checks are freed.
    """
    cdef Check *check = check_of(a, e)
    cdef Look *at = a.members.looks + (op - a.ops)
    cdef uint32_t *link = &at.ticket
    cdef uint32_t count = 0, number
    cdef Ticket *ticket
    if check == NULL:
        return
    check.remaining += 1
    while link[0]:
        number = link[0]
        ticket = a.members.tickets + (number - 1)
        a.turn.touched += 1
        if a.members.checks[ticket.check].serial != ticket.serial:
            link[0] = ticket.next
            free_ticket(a, number)
        else:
            count += 1
            link = &ticket.next
    number = take_ticket(a) if count < TICKETS_OF_OPERATION else 0
    if number == 0:
        return  # so the check does not finish
    ticket = a.members.tickets + (number - 1)
    ticket.check = <uint32_t>(check - a.members.checks)
    ticket.serial = check.serial
    ticket.next = 0
    link[0] = number


cdef inline void take_tickets_back(Arena *a, OpRecord *op, uint64_t looked, bint completed) noexcept nogil:
    """Take back an operation's tickets for events up to this sequence. `completed`: its owner has completed it."""
    cdef Look *at = a.members.looks + (op - a.ops)
    cdef uint32_t number
    cdef Ticket *ticket
    cdef Check *check
    while at.ticket:
        number = at.ticket
        ticket = a.members.tickets + (number - 1)
        check = a.members.checks + ticket.check
        if check.serial == ticket.serial:
            if check.sequence > looked:
                break
            check.remaining -= 1
            check.completed += completed
            completed = False
            if has_finished(check):
                a.members.checks_finished = True
        a.turn.touched += 1
        at.ticket = ticket.next
        free_ticket(a, number)
