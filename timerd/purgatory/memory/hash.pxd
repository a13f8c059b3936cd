"""The hashes of the arena: SipHash-1-3 (hash.h) under a seed that no client has.

A client that knew the seed could aim its keys at one chain. So the seed is not in the arena, which clients read. The
header has a check value, which shows whether the stored hashes have this seed. timerd_shm.read.hashing has the same
hashes in Python.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from timerd_shm.generated.records cimport HANDLE_LANE_BITS, HANDLE_LANES


cdef extern from "hash.h" nogil:
    ctypedef struct Seed:
        uint64_t k0
        uint64_t k1

    uint64_t td_sip_short(Seed seed, uint64_t message, uint32_t length)
    uint64_t td_sip_marked(Seed seed, const uint8_t *bytes, uint32_t length, uint8_t mark)


cdef inline uint64_t check_of(Seed seed) noexcept nogil:
    """The check value of the seed in the header: the hash of an empty message, and never 0 (see rehash.pxd)."""
    return td_sip_short(seed, 0, 0) | 1


cdef inline uint64_t key_hash(Seed seed, uint32_t purgatory, const uint8_t *name, uint32_t length) noexcept nogil:
    """Keyed hash of a watch key: of its name, followed by the index of its purgatory (one byte)."""
    return td_sip_marked(seed, name, length, <uint8_t>purgatory)


cdef inline uint64_t name_hash(uint32_t purgatory, const uint8_t *name, uint32_t length) noexcept nogil:
    """Hash of a call's name, without a seed. It stands for the name, and no table is indexed by it.

    So the hashes of members' names in the arena stay valid when the seed is lost. The table of the names of waiting
    calls is indexed by a keyed hash of this hash (call_names.pxd).
    """
    return td_sip_marked(Seed(0, 0), name, length, <uint8_t>purgatory)


cdef inline uint32_t id_hash(Seed seed, uint32_t purgatory, uint64_t low, uint64_t high) noexcept nogil:
    """Keyed hash of an id's 16 bytes, as key_hash(). The client chooses all of them."""
    cdef uint64_t words[2]
    words[0] = low
    words[1] = high
    return <uint32_t>td_sip_marked(seed, <const uint8_t *>&words[0], 16, <uint8_t>purgatory)


cdef inline uint64_t handle_line(Seed seed, uint32_t client, uint64_t command) noexcept nogil:
    """The hash of the line in the handle table that sixteen neighbouring commands of a client share.

    Hashed are 7 bytes: two for the slot, five for the line's number.
    """
    cdef uint64_t line = (command >> HANDLE_LANE_BITS) & <uint64_t>0xFFFFFFFFFF
    return td_sip_short(seed, line << 16 | client, 7)


cdef inline uint32_t tag_in(uint64_t line, uint64_t command) noexcept nogil:
    """A command's tag: its line, and its lane."""
    return <uint32_t>((line << HANDLE_LANE_BITS) | ((command ^ (line >> 32)) & (HANDLE_LANES - 1)))


cdef inline uint32_t handle_tag(Seed seed, uint32_t client, uint64_t command) noexcept nogil:
    """An operation's tag in the handle table."""
    return tag_in(handle_line(seed, client, command), command)
