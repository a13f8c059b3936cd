"""Which of the operations that a client waits for are unknown. The client's hello names these operations."""

from libc.stdint cimport uint32_t, uint64_t
from timerd.purgatory.memory.arena cimport Arena
from timerd.purgatory.memory.hash cimport handle_tag
from timerd.purgatory.memory.list cimport answer_at, link_of
from timerd.purgatory.index.operation_table cimport find_operation
from timerd_shm.generated.records cimport *


cdef inline list commands_unknown(Arena *a, uint32_t slot, list commands):
    """The numbers in `commands`, each of a registration, that have neither an operation nor a refusal.

    A hello may name 100,000 registrations, and a client may have 1,024 refusals. So the refusals are gathered once, and
    not searched for each registration.
    """
    cdef uint32_t link = a.clients[slot].answers_next
    cdef uint64_t command
    cdef set refused = set()
    cdef list unknown = []
    while link != link_of(a, &a.clients[slot].answers_next):
        a.turn.touched += 1
        if answer_at(a, link).code:
            refused.add(answer_at(a, link).command)
        link = answer_at(a, link).next
    for command in commands:
        a.turn.touched += 1
        if find_operation(a, slot, command, handle_tag(a.seed, slot, command)) == NULL and command not in refused:
            unknown.append(command)
    return unknown
