"""The floor under timerd's core, for bench/rivals.py: its records and lists, filled and emptied by a bare loop.

An operation with its key and its node is the core's place in memory, and stands in a chain of the table of keys and in
the bucket of its ms. Buckets reach so far that nothing is ever swept. There are neither frames, clients, quotas,
handles and outcomes nor a transaction: what the core takes longer is what those cost. It is built in development
builds (TIMERD_BENCH in timerd/CMakeLists.txt). Calls are in bulk, as the core's are.
"""

from array import array

from _typeshed import ReadableBuffer, WriteableBuffer

class Bare:
    """Room for `capacity` operations with keys of `name_length` bytes, 16 at most, in memory that is all 0.

    Raises ValueError.
    """

    def __init__(self, capacity: int, name_length: int, now_ms: int, memory: WriteableBuffer) -> None: ...
    @staticmethod
    def size(capacity: int) -> int:
        """Bytes of memory that so many operations need."""
    def insert(self, names: ReadableBuffer, deadlines_ms: ReadableBuffer) -> array[int]:
        """New operations, from names one after the other and as many int64, each later than now: a handle of each."""
    def cancel(self, handles: ReadableBuffer) -> int:
        """Drop these operations (uint32), which are pending; how many."""
    def complete(self, names: ReadableBuffer) -> int:
        """Drop the operation of each of these names; how many there were."""
    def reschedule(self, handles: ReadableBuffer, deadlines_ms: ReadableBuffer) -> int:
        """Give these operations, which are pending, new deadlines; how many."""
    def advance(self, now_ms: int) -> array[int]:
        """Handles of the operations that have expired, ms by ms, in the order in which they joined it."""
    @property
    def next_ms(self) -> int | None:
        """When the next operation is due; None if there is none."""
    @property
    def pending(self) -> int: ...
    @property
    def bytes_per_task(self) -> float:
        """Of its place, and its share of the table of keys."""
