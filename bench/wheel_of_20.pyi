"""The hierarchical timing wheels of Kafka's article, compiled as timerd's core is: for bench/rivals.py.

Wheels of 20 buckets, the lowest of 1 ms; overflow wheels made on demand, each bucket as wide as the whole wheel below;
a delay queue of buckets, so that no thread ticks; the tasks of a bucket that comes due are inserted again, or expire.
Removal is at once, by the links that a task keeps. A name leads to its task by a table, as a watcher list of one.

There are neither locks nor threads, clients nor a log: a timer, and no more. It is built in development builds
(TIMERD_BENCH in timerd/CMakeLists.txt). Times are whole ms of any clock. Calls are in bulk, as the core's are.
"""

from array import array

from _typeshed import ReadableBuffer, WriteableBuffer

class WheelOf20:
    """Room for `capacity` tasks with names of `name_length` bytes, 16 at most, in memory that is all 0.

    Raises ValueError.
    """

    def __init__(self, capacity: int, name_length: int, now_ms: int, memory: WriteableBuffer) -> None: ...
    @staticmethod
    def size(capacity: int) -> int:
        """Bytes of memory that so many tasks need."""
    def insert(self, names: ReadableBuffer, deadlines_ms: ReadableBuffer) -> array[int]:
        """New tasks, from names one after the other and as many int64: a handle of each, good until it has settled.

        What is due already is told by the next advance(). Raises ValueError when they do not fit.
        """
    def cancel(self, handles: ReadableBuffer) -> int:
        """Drop these tasks (uint32); how many were pending."""
    def complete(self, names: ReadableBuffer) -> int:
        """Drop the task of each of these names; how many there were."""
    def reschedule(self, handles: ReadableBuffer, deadlines_ms: ReadableBuffer) -> int:
        """Give these tasks new deadlines; how many were pending."""
    def advance(self, now_ms: int) -> array[int]:
        """Handles of the tasks that have expired, bucket by bucket, in the order of insertion within one."""
    @property
    def next_ms(self) -> int | None:
        """When the next bucket begins, though all that stood in it may be gone; None if none is queued."""
    @property
    def pending(self) -> int: ...
    @property
    def wheels(self) -> int:
        """Wheels that were made."""
    @property
    def bytes_per_task(self) -> float:
        """Of its record, and its share of the table of names."""
    def counters(self) -> dict[str, int]:
        """Visits to buckets, those to empty ones, and tasks inserted again."""
