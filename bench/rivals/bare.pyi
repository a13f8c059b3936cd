"""The floor under timerd's core, for bench/suites/rivals.py: its records and lists, filled and emptied by a bare loop.

An operation lies with its key and its node in one record, as in the core. It is in a chain of the table of keys, and in
the bucket of its deadline. There are enough buckets for all deadlines, so no operation is ever swept. There are no
frames, clients, quotas, handles, outcomes or transactions: the core's extra time is their cost. Calls are in bulk, as
the core's are. Only development builds have this module (TIMERD_BENCH in timerd/CMakeLists.txt).
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
        """Bytes of memory that `capacity` operations need."""
    def insert(self, names: ReadableBuffer, deadlines_ms: ReadableBuffer) -> array[int]:
        """Insert operations: names without gaps, and a later deadline (int64) for each. Returns their handles."""
    def cancel(self, handles: ReadableBuffer) -> int:
        """Drop these operations (uint32), all of them pending. Returns their number."""
    def complete(self, names: ReadableBuffer) -> int:
        """Drop the operation of each of these names. Returns the number of operations dropped."""
    def reschedule(self, handles: ReadableBuffer, deadlines_ms: ReadableBuffer) -> int:
        """Give these operations, all of them pending, new deadlines. Returns their number."""
    def advance(self, now_ms: int) -> array[int]:
        """Expire operations that are due by now. Returns the handles, ms by ms, and within a ms first in, first out."""
    @property
    def next_ms(self) -> int | None:
        """The ms at which the next operation is due; None if there is none."""
    @property
    def pending(self) -> int: ...
    @property
    def bytes_per_task(self) -> float:
        """Bytes of an operation: its record, and its share of the table of keys and of the room for free records."""
