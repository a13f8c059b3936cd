"""Short runs of bytes (names, the pieces of a blob), copied and compared in words.

Where a compiler knows that the length is small, it turns memcpy into a string instruction, which costs more than the
copying. Elsewhere it calls memcpy, and memcmp is always a call.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy
cdef inline uint64_t word_at(const uint8_t *at) noexcept nogil:
    cdef uint64_t word
    memcpy(&word, at, 8)
    return word


cdef inline void copy_short(uint8_t *out, const uint8_t *data, uint32_t length) noexcept nogil:
    cdef uint32_t i = 0
    if length >= 16:
        while i + 16 < length:  # bound: the bytes that the caller copies
            memcpy(out + i, data + i, 16)
            i += 16
        memcpy(out + length - 16, data + length - 16, 16)  # the last 16 bytes; some of them are copied twice
    elif length >= 8:
        memcpy(out, data, 8)
        memcpy(out + length - 8, data + length - 8, 8)
    elif length >= 4:
        memcpy(out, data, 4)
        memcpy(out + length - 4, data + length - 4, 4)
    elif length:
        out[0] = data[0]
        out[length // 2] = data[length // 2]
        out[length - 1] = data[length - 1]


cdef inline bint same_short(const uint8_t *one, const uint8_t *other, uint32_t length) noexcept nogil:
    cdef uint32_t i = 0
    if length >= 8:
        while i + 8 < length:  # bound: the bytes that the caller compares
            if word_at(one + i) != word_at(other + i):
                return False
            i += 8
        return word_at(one + length - 8) == word_at(other + length - 8)
    while i < length:  # bound: 8 bytes
        if one[i] != other[i]:
            return False
        i += 1
    return True
