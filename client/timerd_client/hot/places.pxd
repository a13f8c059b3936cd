"""Who waits for what, by command number: an open hash table, which holds a reference to each.

Linear probing; four numbers that follow each other have their places side by side, in one line of the cache.
"""

from cpython.object cimport PyObject
from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free

cdef extern from *:
    """
    #define PLACES_FIRST 64u               /* of an empty table */
    #define GOLDEN 0x9E3779B97F4A7C15ull   /* 2^64 / golden ratio: spreads numbers that follow each other */
    #define look_ahead(at) __builtin_prefetch((const void *)(at), 1)
    """
    const uint64_t PLACES_FIRST, GOLDEN
    void look_ahead(const void *at) noexcept nogil


cdef struct Place:
    uint64_t number  # 0 = free
    PyObject *waiter


cdef struct Places:
    Place *row
    uint64_t mask
    uint64_t used
    int shift


cdef inline int places_begin(Places *places, uint64_t size) except -1:
    """An empty table of that size, a power of two; what there was before is the caller's to free."""
    cdef Place *made = <Place *>calloc(size, sizeof(Place))
    if made == NULL:
        raise MemoryError(f"a table of {size} places")
    places.row, places.mask, places.shift = made, size - 1, 66
    while size > 1:
        size >>= 1
        places.shift -= 1
    return 0


cdef inline uint64_t place_home(Places *places, uint64_t number) noexcept nogil:
    """Where probing for it begins."""
    return ((((number >> 2) * GOLDEN) >> places.shift) << 2 | (number & 3)) & places.mask


cdef inline Place *place_of(Places *places, uint64_t number) noexcept nogil:
    """The place of that number, or the free one where it would be."""
    cdef uint64_t at = place_home(places, number)
    while places.row[at].number != number and places.row[at].number:
        at = (at + 1) & places.mask
    return places.row + at


cdef inline int places_room(Places *places, uint64_t rows) except -1:
    """After this so many can be added, which cannot fail."""
    cdef Place *old = places.row
    cdef uint64_t size = places.mask + 1, at, needed = PLACES_FIRST
    if (places.used + rows) * 2 <= size and ((places.used + rows) * 16 >= size or size == PLACES_FIRST):
        return 0
    while (places.used + rows) * 4 > needed:
        needed *= 2
    places_begin(places, needed)
    for at in range(size):
        if old[at].number:
            place_of(places, old[at].number)[0] = old[at]
    free(old)
    return 0


cdef inline void place_put(Places *places, uint64_t number, PyObject *waiter) noexcept nogil:
    """Add one that is not there, with a reference that the caller has; there is room."""
    cdef Place *place = place_of(places, number)
    place.number, place.waiter = number, waiter
    places.used += 1


cdef inline PyObject *place_take(Places *places, uint64_t number) noexcept nogil:
    """Remove it; the reference is the caller's now. NULL = nobody waits."""
    cdef uint64_t hole, at, home
    cdef Place *place
    cdef PyObject *waiter
    if number == 0:
        return NULL
    place = place_of(places, number)
    if place.number == 0:
        return NULL
    waiter = place.waiter
    places.used -= 1
    at = hole = <uint64_t>(place - places.row)
    while True:  # what probing has led past the hole moves into it
        at = (at + 1) & places.mask
        if places.row[at].number == 0:
            break
        home = place_home(places, places.row[at].number)
        if ((at - home) & places.mask) >= ((at - hole) & places.mask):
            places.row[hole] = places.row[at]
            hole = at
    places.row[hole].number = 0
    return waiter


# What waits was written long ago, and is in no cache: memory is asked for it before its turn comes.


cdef inline void ask_for_place(Places *places, uint64_t number) noexcept nogil:
    look_ahead(places.row + place_home(places, number))


cdef inline void ask_for_waiter(Places *places, uint64_t number) noexcept nogil:
    """When its place is there."""
    cdef Place *place = places.row + place_home(places, number)
    if place.number == number:  # else it is found behind it, without help
        ask_for(place.waiter)


cdef inline void ask_for(PyObject *handle) noexcept nogil:
    """The lines of a Handle."""
    look_ahead(handle)
    look_ahead(<char *>handle + 64)
    look_ahead(<char *>handle + 128)
    look_ahead(<char *>handle + 192)
