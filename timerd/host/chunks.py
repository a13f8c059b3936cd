"""Bytes that wait to be sent, in chunks. Small messages share a chunk, and a large one is a chunk of its own.

For example, 100,000 messages of 97 bytes are 300 chunks: they take the memory of their bytes, and are freed at once. A
list of 100,000 objects takes three times that memory, and 10 ms to free.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from sys import getsizeof

CHUNK_SIZE = 32_768
OWN_SIZE = 4_096  # from this size on, a message is a chunk of its own: it is not copied
CHUNK_COST = 32  # bytes of a chunk for malloc and the queue, beside what getsizeof() says

Chunk = bytes | bytearray


class Chunks:
    """Bytes in order. `memory`: what they take, overhead included. A chunk is freed when all of it was sent."""

    __slots__ = ("_at", "_chunks", "memory")

    def __init__(self) -> None:
        self._chunks: deque[Chunk] = deque()
        self._at = 0  # of the first chunk: where the bytes begin that are not dropped yet
        self.memory = 0

    def __bool__(self) -> bool:
        return bool(self._chunks)

    def add(self, data: bytes) -> None:
        """Add bytes after the others. They stay together, in one chunk."""
        chunks = self._chunks
        if len(data) < OWN_SIZE:
            if not data:
                return
            last = chunks[-1] if chunks else b""
            if isinstance(last, bytearray) and len(last) + len(data) <= CHUNK_SIZE:
                self.memory -= getsizeof(last)
                last.extend(data)
                self.memory += getsizeof(last)
                return
            chunks.append(bytearray(data))
        else:
            chunks.append(data)
        self.memory += getsizeof(chunks[-1]) + CHUNK_COST

    def first(self, count: int) -> list[Chunk | memoryview]:
        """The bytes of the first `count` chunks. Do not keep them beyond the next add()."""
        found: list[Chunk | memoryview] = list(islice(self._chunks, count))
        if self._at:
            found[0] = memoryview(self._chunks[0])[self._at :]
        return found

    def drop(self, size: int) -> None:
        """Forget the first `size` bytes: they were sent."""
        chunks = self._chunks
        at = self._at + size
        while chunks and at >= len(chunks[0]):
            at -= len(chunks[0])
            self.memory -= getsizeof(chunks.popleft()) + CHUNK_COST
        self._at = at

    def take_all(self) -> deque[Chunk]:
        """Take all chunks out: somebody else frees them."""
        taken, self._chunks = self._chunks, deque()
        self._at = self.memory = 0
        return taken
