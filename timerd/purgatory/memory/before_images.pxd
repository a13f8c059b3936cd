"""The log of before-images while the arena is copied (before_images.h). purgatory/twins.py makes its callers."""

from libc.stdint cimport uint64_t
cdef extern from "before_images.h" nogil:
    ctypedef struct TdImageLog:
        pass

    TdImageLog *td_images
    void td_begin_images(void *memory, uint64_t size, const char *base, uint64_t arena_size)
    void td_end_images(const void *memory)
    uint64_t td_image_room(uint64_t size, uint64_t lines)
