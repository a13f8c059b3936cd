"""Kafka's purgatory as it was before its timing wheels: a delay queue ordered by a heap, watcher lists, and a reaper.

For the suite `article`. Only development builds have it (TIMERD_BENCH in timerd/CMakeLists.txt). It follows the source
walk-through in Kafka's wiki, and Confluent's article "Apache Kafka, Purgatory, and Hierarchical Timing Wheels":

* A new request is tried, which means that its condition is evaluated. If the condition does not hold, the request is
  put in the list of each of its keys, tried again, and put in the delay queue.
* A request completes once, by a compare-and-swap. It still stays in the queue and in its lists.
* A completed request leaves a list when the list is checked or purged. It leaves the queue when it is due, or at a
  purge.
* The reaper removes due requests from the queue, one at a time. After each request that expires, or after 200 ms
  without a due request, it purges: every list if the lists together hold purge_interval watchers or more, and the queue
  if it holds purge_interval requests or more.

Operations, watchers and payload blocks are records as large as timerd's, in pools of fixed size. Time is
CLOCK_MONOTONIC in ns. Only one thread may register. generate(), complete_all() and reap_until_stopped() need a thread
each, and run without the GIL.
"""

from typing import Final

from _typeshed import ReadableBuffer

PENDING: Final = 0
COMPLETED: Final = 1
EXPIRED: Final = 2
REFUSED: Final = 3  # no record was free
NEVER: Final = 0x7FFF_FFFF_FFFF_FFFF

class OldPurgatory:
    """Has records for `capacity` operations, and room for the outcomes of `requests` requests.

    `purge_interval` 0: nothing is ever purged. Requests are numbered from 0. Raises MemoryError.
    """

    def __init__(
        self, capacity: int, *, keys_per_op: int, payload_max: int, requests: int, purge_interval: int
    ) -> None: ...
    @staticmethod
    def bytes_for(keys_per_op: int, payload_max: int) -> int:
        """Bytes of an operation, with its watchers, its payload and its entry in the queue."""

    # one step at a time, for tests: the caller's clock ----------------------------------------------------------------
    def register(self, command: ReadableBuffer, now_ns: int, delay_ns: int = ...) -> int:
        """Register the request of a REGISTER command, which will be complete `delay_ns` from now. Returns its state.

        Raises ValueError for more keys, payload or requests than this purgatory was made for.
        """
    def complete(self, number: int, now_ns: int) -> bool:
        """Complete a request with a delay, even before the delay is over. Returns whether this call completed it."""
    def check_and_complete(self, key: bytes, now_ns: int) -> int:
        """Try all requests that watch this key. Returns the number that completed."""
    def reap(self, now_ns: int) -> bool:
        """One round of the reaper, without waiting. Returns whether it expired a request."""

    # the work of its threads -----------------------------------------------------------------------------------------
    def generate(
        self, commands: ReadableBuffer, due_ns: ReadableBuffer, delay_ns: ReadableBuffer, start_ns: int, give_up_ns: int
    ) -> None:
        """Register a request at each time of `due_ns` (int64, from `start_ns`); those of one millisecond go together.

        Ends when all are registered, or at `give_up_ns`. No thread completes a request whose delay is NEVER.
        """
    def complete_all(self, numbers: ReadableBuffer, due_ns: ReadableBuffer, start_ns: int) -> None:
        """Complete these requests (uint32) at these times. Each waits until all due before it are registered."""
    def reap_until_stopped(self) -> None: ...
    def stop(self) -> None:
        """End the work of the threads."""

    # state and counters ----------------------------------------------------------------------------------------------
    @property
    def registered(self) -> int:
        """Requests so far, refused requests included."""
    @property
    def refused(self) -> int: ...
    @property
    def settled(self) -> int: ...
    @property
    def watched(self) -> int:
        """Length of all lists together, with the settled requests that no purge has removed yet."""
    @property
    def delayed(self) -> int:
        """Length of the delay queue, with the settled requests in it."""
    @property
    def last_ns(self) -> int:
        """The time at which generate() ended."""
    @property
    def bytes_max(self) -> int:
        """Bytes of all records that were ever in use, and of the queue at its longest."""
    def in_use(self) -> tuple[int, int, int]:
        """The number of operations, watchers and blocks that are not free. No other thread may run."""
    def counters(self) -> dict[str, int]:
        """The reaper's work: purges, records that they visited, settled requests found in the queue, waits in vain."""
    def states(self) -> bytes:
        """A byte for each request: how it settled."""
    def settlings(self) -> bytes:
        """A byte for each request: how often it settled."""
    def registered_ns(self) -> bytes:
        """An int64 for each request."""
    def settled_ns(self) -> bytes:
        """An int64 for each request; 0 if it has not settled."""
