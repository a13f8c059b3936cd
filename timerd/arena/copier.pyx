"""Copies an arena while turns change it (see copier.pyi). For the order of reads and stores, see before_images.h."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.exc cimport PyErr_SetFromErrno
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcmp
from timerd.host.write_all cimport write_all

cdef extern from "<sys/mman.h>" nogil:
    enum:
        PROT_READ, PROT_WRITE, MAP_PRIVATE, MAP_ANONYMOUS
    void *MAP_FAILED
    void *mmap(void *address, size_t size, int protection, int flags, int fd, int64_t offset)
    int munmap(void *address, size_t size)

cdef extern from "before_images.h" nogil:
    """
    enum { COPY_STEP = 1 << 18, DRAIN_STEP = 1 << 10 };
    #define ACQUIRE_FENCE() __atomic_thread_fence(__ATOMIC_ACQUIRE)
    #define LOAD_ACQUIRE(word) __atomic_load_n(word, __ATOMIC_ACQUIRE)
    #define LOAD(word) __atomic_load_n(word, __ATOMIC_RELAXED)
    #define STORE_RELEASE(word, value) __atomic_store_n(word, value, __ATOMIC_RELEASE)
    """
    ctypedef struct TdImage:
        uint64_t line
        uint8_t *bytes

    ctypedef struct TdImageLog:
        const char *base
        uint64_t lines, room, count, overrun, drained, stopped
        uint64_t *marks
        TdImage *images

    enum:
        COPY_STEP
        DRAIN_STEP
        IMAGE_LINE
        IMAGE_LOG_HEADER

    uint64_t td_mark_words(uint64_t lines)
    void ACQUIRE_FENCE()
    uint64_t LOAD_ACQUIRE(uint64_t *word)
    uint64_t LOAD(uint64_t *word)
    void STORE_RELEASE(uint64_t *word, uint64_t value)


class CopyOverrunError(Exception):
    pass


cdef enum Status:
    GOES_ON
    COPIED
    STOPPED
    OVERRUN
    FAILED


cdef bint is_zero(const uint8_t *data, uint64_t size) noexcept nogil:
    return data[0] == 0 and memcmp(data, data + 1, size - 1) == 0


cdef class Copier:
    cdef Py_buffer memory
    cdef bint taken
    cdef TdImageLog *log
    cdef uint64_t log_size
    cdef int fd, exports
    cdef uint64_t line  # all lines before this one are copied, or logged

    def __init__(self, memory, int fd, uint64_t images_max):
        cdef uint64_t lines
        assert not self.taken
        PyObject_GetBuffer(memory, &self.memory, PyBUF_SIMPLE)
        self.taken = True
        self.fd = fd
        lines = self.memory.len // IMAGE_LINE
        self.log_size = IMAGE_LOG_HEADER + td_mark_words(lines) * 8 + min(images_max, lines) * sizeof(TdImage)
        self.log = <TdImageLog *>mmap(NULL, self.log_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
        if self.log == MAP_FAILED:
            self.log = NULL
            PyErr_SetFromErrno(OSError)

    def __dealloc__(self):
        self.release()

    def __getbuffer__(self, Py_buffer *view, int flags):
        if self.log == NULL:
            raise BufferError("the log was released")
        PyBuffer_FillInfo(view, self, self.log, self.log_size, 0, flags)
        self.exports += 1

    def __releasebuffer__(self, Py_buffer *view):
        self.exports -= 1

    def release(self):
        if self.exports:
            raise BufferError("a core still writes the log")
        if self.log != NULL:
            with nogil:
                munmap(self.log, self.log_size)  # takes some ms
            self.log = NULL
        if self.taken:
            self.taken = False
            PyBuffer_Release(&self.memory)

    cdef Status _copy(self, uint64_t lines) noexcept nogil:
        """Copy the next lines that have no mark, in runs. The others are in the log."""
        cdef TdImageLog *log = self.log
        cdef const uint8_t *memory = <const uint8_t *>self.memory.buf
        cdef uint64_t at = self.line, last = min(self.line + lines, log.lines), first, word
        while at < last:
            word = LOAD(log.marks + at // 64) >> (at & 63)
            if word & 1:
                at += 1
                continue
            first = at
            while at < last:
                word = LOAD(log.marks + at // 64) >> (at & 63)
                if word & 1:
                    break
                if word == 0:
                    at = min((at | 63) + 1, last)
                else:
                    at += 1
            if is_zero(memory + first * IMAGE_LINE, (at - first) * IMAGE_LINE):
                continue
            if write_all(self.fd, memory + first * IMAGE_LINE, (at - first) * IMAGE_LINE, first * IMAGE_LINE) != 0:
                return FAILED
        self.line = last
        return GOES_ON

    cdef Status _drain(self) noexcept nogil:
        """Write the images that are in the log. Each line that was copied before is then as it was at the beginning."""
        cdef TdImageLog *log = self.log
        cdef TdImage *image
        cdef uint64_t drained = log.drained, count
        ACQUIRE_FENCE()  # the lines were read before the count
        count = LOAD_ACQUIRE(&log.count)
        while drained < count:
            image = log.images + drained % log.room
            if write_all(self.fd, image.bytes, IMAGE_LINE, image.line * IMAGE_LINE) != 0:
                return FAILED
            drained += 1
            if drained % DRAIN_STEP == 0:
                STORE_RELEASE(&log.drained, drained)
        STORE_RELEASE(&log.drained, drained)
        return OVERRUN if LOAD_ACQUIRE(&log.overrun) else GOES_ON

    cdef Status _step(self, uint64_t lines) noexcept nogil:
        cdef Status status
        if LOAD_ACQUIRE(&self.log.stopped):
            return STOPPED
        status = self._copy(lines)
        if status == GOES_ON:
            status = self._drain()
        if status == GOES_ON and self.line == self.log.lines:
            status = COPIED
        return status

    cdef bint _went_on(self, Status status) except? True:
        if status == FAILED:
            PyErr_SetFromErrno(OSError)
        if status == OVERRUN:
            raise CopyOverrunError(f"more than {self.log.room} lines of the arena wait to be copied")
        return status == GOES_ON

    cdef int _check(self) except -1:
        assert self.log != NULL and self.log.base == <const char *>self.memory.buf, "no core fills the log"
        return 0

    @property
    def logged(self):
        return 0 if self.log == NULL else LOAD_ACQUIRE(&self.log.count)

    def step(self, uint64_t size=COPY_STEP):
        cdef Status status
        self._check()
        with nogil:
            status = self._step(max(size // IMAGE_LINE, <uint64_t>1))
        return self._went_on(status)

    def run(self):
        cdef Status status = GOES_ON
        self._check()
        with nogil:
            while status == GOES_ON:
                status = self._step(COPY_STEP // IMAGE_LINE)
        self._went_on(status)
        return status == COPIED

    def stop(self):
        if self.log != NULL:
            STORE_RELEASE(&self.log.stopped, 1)
