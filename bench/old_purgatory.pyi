"""Kafka's purgatory as it was before its timing wheels: a delay queue ordered by a heap, watcher lists, and a reaper.

Built beside the core in development builds (TIMERD_BENCH in timerd/CMakeLists.txt), for bench/article.py. From the
source walk-through of Kafka's wiki, and the article that tells of its end:

* a request is tried, put on the list of each of its keys (until it turns out to be complete), tried again, and then
  put in the delay queue;
* it completes once, by a compare-and-swap, and nothing else is done then: it stays in the queue and on its lists;
* it leaves a list when that list is checked, or purged; the queue when it is due, or at a purge;
* the reaper takes what is due from the queue, one at a time, and after each, or after 200 ms without one, purges every
  list if these hold purge_interval watchers or more, and the queue if that holds purge_interval or more.

Operations, watchers and payload blocks are records as large as timerd's, in pools of fixed size. Time is
CLOCK_MONOTONIC in ns. One thread may register; generate(), complete_all() and reap_until_stopped() each want a thread,
and run without the GIL.
"""

from typing import Final

from _typeshed import ReadableBuffer

PENDING: Final = 0
COMPLETED: Final = 1
EXPIRED: Final = 2
REFUSED: Final = 3  # no record was free
NEVER: Final = 0x7FFF_FFFF_FFFF_FFFF

class OldPurgatory:
    """Room for `capacity` operations that are not free yet, and for what becomes of `requests` of them.

    `purge_interval` 0: nothing is ever purged. Requests are numbered from 0. Raises MemoryError.
    """

    def __init__(
        self, capacity: int, *, keys_per_op: int, payload_max: int, requests: int, purge_interval: int
    ) -> None: ...
    @staticmethod
    def bytes_for(keys_per_op: int, payload_max: int) -> int:
        """What an operation takes with its watchers, its payload and its place in the queue."""

    # one step at a time, for tests: the caller's clock ----------------------------------------------------------------
    def register(self, command: ReadableBuffer, now_ns: int, delay_ns: int = ...) -> int:
        """Register the request of a REGISTER command, which will be complete `delay_ns` from now; its state.

        Raises ValueError for one that it was not made for.
        """
    def complete(self, number: int, now_ns: int) -> bool:
        """Complete a request that has a delay, whatever that is; whether this call did."""
    def check_and_complete(self, key: bytes, now_ns: int) -> int:
        """Try all that watch that key; how many that completed."""
    def reap(self, now_ns: int) -> bool:
        """One round of the reaper, without waiting; whether it expired a request."""

    # what its threads do ---------------------------------------------------------------------------------------------
    def generate(
        self, commands: ReadableBuffer, due_ns: ReadableBuffer, delay_ns: ReadableBuffer, start_ns: int, give_up_ns: int
    ) -> None:
        """Register one request at each time of `due_ns` (int64, from `start_ns`), those of a millisecond together.

        It ends when all are registered, or at `give_up_ns`. A delay of NEVER: nobody will complete it.
        """
    def complete_all(self, numbers: ReadableBuffer, due_ns: ReadableBuffer, start_ns: int) -> None:
        """Complete these requests (uint32) at these times, but none before those due until then are registered."""
    def reap_until_stopped(self) -> None: ...
    def stop(self) -> None:
        """End what the threads do."""

    # what there is, and what was -------------------------------------------------------------------------------------
    @property
    def registered(self) -> int:
        """Requests so far, refused ones among them."""
    @property
    def refused(self) -> int: ...
    @property
    def settled(self) -> int: ...
    @property
    def watched(self) -> int:
        """Length of all lists together; settled ones that no purge has found are among them."""
    @property
    def delayed(self) -> int:
        """Length of the delay queue, settled ones among them."""
    @property
    def last_ns(self) -> int:
        """When generate() ended."""
    @property
    def bytes_max(self) -> int:
        """Bytes of all records that were ever in use, and of the longest queue."""
    def in_use(self) -> tuple[int, int, int]:
        """Operations, watchers and blocks that are not free. No thread may run."""
    def counters(self) -> dict[str, int]:
        """What the reaper did: purges, records they visited, settled ones it met in the queue, waits for nothing."""
    def states(self) -> bytes:
        """A byte for each request: how it settled."""
    def settlings(self) -> bytes:
        """A byte for each request: how often it settled."""
    def registered_ns(self) -> bytes:
        """An int64 for each request."""
    def settled_ns(self) -> bytes:
        """An int64 for each request; 0 where it has not settled."""
