"""Rows of the journal's buffer become blocks of a segment file (see blocks.pyi). All of it runs without the GIL."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.exc cimport PyErr_SetFromErrno
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset
from timerd.host.write_all cimport write_all
from timerd_shm.generated.records cimport *

cdef extern from *:
    """
    enum { BLOCKS_AT_ONCE = 64 };
    """
    enum:
        BLOCKS_AT_ONCE

# CRC-32 (reflected 0xEDB88320, as zlib's), eight bytes in each step, by eight tables.
cdef uint32_t[8][256] crc_tables

cdef void make_crc_tables() noexcept nogil:
    cdef uint32_t byte, bit, crc, table
    for byte in range(256):
        crc = byte
        for bit in range(8):
            crc = (crc >> 1) ^ (<uint32_t>0xEDB88320 if crc & 1 else 0)
        crc_tables[0][byte] = crc
    for byte in range(256):
        crc = crc_tables[0][byte]
        for table in range(1, 8):
            crc = (crc >> 8) ^ crc_tables[0][crc & 0xFF]
            crc_tables[table][byte] = crc

make_crc_tables()


cdef uint32_t crc32(const uint8_t *data, uint64_t size) noexcept nogil:
    """CRC-32 of `size` bytes."""
    cdef uint32_t crc = <uint32_t>0xFFFFFFFF
    cdef uint64_t word
    while size >= 8:
        memcpy(&word, data, 8)
        word ^= crc
        crc = (
            crc_tables[7][word & 0xFF] ^ crc_tables[6][(word >> 8) & 0xFF] ^ crc_tables[5][(word >> 16) & 0xFF]
            ^ crc_tables[4][(word >> 24) & 0xFF] ^ crc_tables[3][(word >> 32) & 0xFF]
            ^ crc_tables[2][(word >> 40) & 0xFF] ^ crc_tables[1][(word >> 48) & 0xFF] ^ crc_tables[0][word >> 56]
        )
        data += 8
        size -= 8
    while size:
        crc = (crc >> 8) ^ crc_tables[0][(crc ^ data[0]) & 0xFF]
        data += 1
        size -= 1
    return ~crc


cdef const uint8_t *row_of(const uint8_t *buffer, uint64_t number) noexcept nogil:
    return buffer + BUFFER_HEADER_SIZE + (number & ((<const BufferHeader *>buffer).rows - 1)) * ROW_SIZE


cdef void fill_block(
    uint8_t *block, const uint8_t *buffer, uint64_t first, uint32_t count, uint64_t sequence
) noexcept nogil:
    cdef BlockHeader *header = <BlockHeader *>block
    cdef uint32_t before = count, rows = (<const BufferHeader *>buffer).rows
    if (first & (rows - 1)) + count > rows:
        before = rows - <uint32_t>(first & (rows - 1))  # the rest stands at the buffer's beginning
    memset(block, 0, sizeof(BlockHeader))
    header.count = count
    header.first_row = first
    header.sequence = sequence
    header.incarnation = (<const BufferHeader *>buffer).incarnation
    memcpy(block + ROW_SIZE, row_of(buffer, first), before * ROW_SIZE)
    memcpy(block + (1 + before) * ROW_SIZE, row_of(buffer, first + before), (count - before) * ROW_SIZE)
    memset(block + (1 + count) * ROW_SIZE, 0, (BLOCK_ROWS - count) * ROW_SIZE)
    header.crc = crc32(block + sizeof(uint32_t), BLOCK_SIZE - sizeof(uint32_t))


def write_blocks(buffer, uint64_t first, uint64_t last, int fd, uint64_t segment, uint64_t sequence):
    cdef Py_buffer view
    cdef const uint8_t *rows
    cdef uint8_t *blocks = <uint8_t *>malloc(BLOCKS_AT_ONCE * BLOCK_SIZE)
    cdef uint64_t offset
    cdef uint32_t made, count
    cdef int status = 0
    if blocks == NULL:
        raise MemoryError("no memory for the journal's blocks")
    try:
        PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
        try:
            rows = <const uint8_t *>view.buf
            with nogil:
                while first < last and status == 0:
                    made = 0
                    offset = (1 + (first - segment) // BLOCK_ROWS) * BLOCK_SIZE
                    while first < last and made < BLOCKS_AT_ONCE:
                        if first != segment and row_of(rows, first)[0] == ROW_KIND_SEGMENT:
                            break
                        count = BLOCK_ROWS if last - first > BLOCK_ROWS else <uint32_t>(last - first)
                        fill_block(blocks + made * BLOCK_SIZE, rows, first, count, sequence)
                        first += count
                        made += 1
                    if made == 0:
                        break
                    status = write_all(fd, blocks, made * BLOCK_SIZE, offset)
            if status != 0:
                PyErr_SetFromErrno(OSError)
        finally:
            PyBuffer_Release(&view)
    finally:
        free(blocks)
    return first
