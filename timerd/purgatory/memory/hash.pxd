"""The hashes of the arena. timerd_shm.read.hashing is the same arithmetic in Python."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy
from timerd_shm.generated.records cimport HANDLE_LANE_BITS, HANDLE_LANES

from .bytes cimport copy_short


cdef inline uint64_t mix(uint64_t h) noexcept nogil:
    h ^= h >> 33
    h *= <uint64_t>0xFF51AFD7ED558CCD
    h ^= h >> 33
    h *= <uint64_t>0xC4CEB9FE1A85EC53
    return h ^ (h >> 33)


cdef inline uint64_t key_hash(uint64_t seed, uint32_t purgatory, const uint8_t *name, uint32_t length) noexcept nogil:
    """Keyed hash of a watch key within its purgatory; the last chunk is padded with zeros."""
    cdef uint64_t h = seed ^ (purgatory * <uint64_t>0x9E3779B97F4A7C15) ^ length
    cdef uint64_t chunk = 0
    if length < 8:
        copy_short(<uint8_t *>&chunk, name, length)
        return mix(h ^ chunk)
    while length >= 8:
        memcpy(&chunk, name, 8)
        h = mix(h ^ chunk)
        name += 8
        length -= 8
    if length:
        # The last 8 bytes of the name, without the bytes that are hashed already: a copy of known size is one load.
        memcpy(&chunk, name + length - 8, 8)
        h = mix(h ^ (chunk >> (8 * (8 - length))))
    return h


cdef inline uint64_t handle_line(uint32_t client, uint64_t command) noexcept nogil:
    """The hash of the line in the handle table that sixteen neighbouring commands of a client share."""
    return mix(((command >> HANDLE_LANE_BITS) * <uint64_t>0x9E3779B97F4A7C15) ^ client)


cdef inline uint32_t tag_in(uint64_t line, uint64_t command) noexcept nogil:
    """A command's tag: its line, and its lane."""
    return <uint32_t>((line << HANDLE_LANE_BITS) | ((command ^ (line >> 32)) & (HANDLE_LANES - 1)))


cdef inline uint32_t handle_tag(uint32_t client, uint64_t command) noexcept nogil:
    """An operation's tag in the handle table."""
    return tag_in(handle_line(client, command), command)
