"""Circular doubly linked lists inside the arena, by offset: any process sees the same list wherever it maps the memory.

A *link* is the offset of a (next, prev) pair in units of LINK_UNIT bytes. The head of a list is such a pair too. So an
item leaves its list without knowing which list it is in. Every function is O(1). Links are derived: a start makes every
list anew.
"""

from libc.stdint cimport uint32_t, uint64_t
from timerd_shm.generated.records cimport LINK_UNIT, OpRecord, WatchNode, AnswerRecord, IdRecord

from .arena cimport Arena


ctypedef struct Links:
    uint32_t next
    uint32_t prev


cdef inline Links *at(Arena *a, uint32_t link) noexcept nogil:
    return <Links *>(a.base + <uint64_t>link * LINK_UNIT)


cdef inline uint32_t link_of(Arena *a, const void *pair) noexcept nogil:
    return <uint32_t>(<uint64_t>(<const char *>pair - a.base) // <uint64_t>LINK_UNIT)


cdef inline void make_empty(Arena *a, void *head) noexcept nogil:
    (<Links *>head).next = (<Links *>head).prev = link_of(a, head)


cdef inline bint is_empty(Arena *a, void *head) noexcept nogil:
    return (<Links *>head).next == link_of(a, head)


cdef inline void append(Arena *a, void *head, void *item) noexcept nogil:
    cdef uint32_t own = link_of(a, item), tail = (<Links *>head).prev
    (<Links *>item).next = link_of(a, head)
    (<Links *>item).prev = tail
    at(a, tail).next = own
    (<Links *>head).prev = own


cdef inline void unlink(Arena *a, void *item) noexcept nogil:
    cdef uint32_t next = (<Links *>item).next, prev = (<Links *>item).prev
    at(a, prev).next = next
    at(a, next).prev = prev


# From a link back to the record with the pair.


cdef inline OpRecord *op_at(Arena *a, uint32_t link) noexcept nogil:
    return <OpRecord *>(<char *>at(a, link) - <uint64_t>&(<OpRecord *>NULL).next)


cdef inline WatchNode *node_at(Arena *a, uint32_t link) noexcept nogil:
    return <WatchNode *>(<char *>at(a, link) - <uint64_t>&(<WatchNode *>NULL).next)


cdef inline AnswerRecord *answer_at(Arena *a, uint32_t link) noexcept nogil:
    return <AnswerRecord *>(<char *>at(a, link) - <uint64_t>&(<AnswerRecord *>NULL).next)


cdef inline IdRecord *id_at(Arena *a, uint32_t link) noexcept nogil:
    return <IdRecord *>(<char *>at(a, link) - <uint64_t>&(<IdRecord *>NULL).next)
