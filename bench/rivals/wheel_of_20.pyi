"""The timing wheels of Confluent's article (see article.py), compiled as timerd's core is, for bench/suites/rivals.py.

A wheel has 20 buckets; in the lowest wheel a bucket is 1 ms wide. Overflow wheels are made on demand: each of their
buckets is as wide as the whole wheel below. Buckets wait in a delay queue, so no thread ticks. When a bucket is due,
its tasks are inserted again, or expire. A task is removed at once, by its links. A table leads from a name to its task,
like a watcher list with one entry.

The wheels are only a timer: there are no locks, threads, clients or log. Times are whole ms of any clock. Calls are in
bulk, as the core's are. Only development builds have this module (TIMERD_BENCH in timerd/CMakeLists.txt).
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
        """Bytes of memory that `capacity` tasks need."""
    def insert(self, names: ReadableBuffer, deadlines_ms: ReadableBuffer) -> array[int]:
        """Insert tasks: names without gaps, and for each a deadline (int64). Returns their handles.

        A handle is valid until its task settles. The next advance() returns tasks that are already due. Raises
        ValueError when there is no room for all.
        """
    def cancel(self, handles: ReadableBuffer) -> int:
        """Drop these tasks (uint32), except those that are no longer pending. Returns the number dropped."""
    def complete(self, names: ReadableBuffer) -> int:
        """Drop the task of each of these names. Returns the number of tasks dropped."""
    def reschedule(self, handles: ReadableBuffer, deadlines_ms: ReadableBuffer) -> int:
        """Give new deadlines to these tasks, except those that are no longer pending. Returns the number changed."""
    def advance(self, now_ms: int) -> array[int]:
        """Expire tasks. Returns their handles, bucket by bucket; the order within a bucket is that of insertion."""
    @property
    def next_ms(self) -> int | None:
        """The ms at which the next bucket begins, also if all its tasks were removed; None if no bucket is queued.

        If tasks were due when they were inserted: the wheels' present ms, because advance() has to return these tasks.
        """
    @property
    def pending(self) -> int: ...
    @property
    def wheels(self) -> int:
        """The number of wheels that were made."""
    @property
    def bytes_per_task(self) -> float:
        """Bytes of a task: its record, and its share of the table of names."""
    def counters(self) -> dict[str, int]:
        """Visits to buckets, visits to empty buckets, and tasks inserted again."""
