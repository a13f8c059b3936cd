"""The memory for the frames of all connections: one budget, which the processes share.

    frames that come in     large ones from their beginning, small ones until the conductor takes them
    frames that wait        to be sent (chunks.py), or to be applied (conductor/deferred.py)
    ended connections       their chunks, which are freed in pieces, over several turns

A process may have three quarters of the budget while nobody else needs it. Its *share* is seven eighths of the budget,
divided by the number of processes that hold memory. For example, with 32 MiB two processes hold 14 MiB each, and a
third one gets an outcome of 100 KB. These seven eighths are spent, and the third process is below its share. So one of
the first two loses the connection that holds the most memory. If the two want more themselves, they do not get it: a
large frame waits in the kernel, and an outcome is dropped and asked for again. So a process loses nothing because of
others while it is below its share (McKenney, 1990, and Suter et al., 1998: drop from the longest queue).

There is one exception. Eight processes that hold an eighth each could keep the ninth from sending a frame of 4 MiB for
ever. So when a process that holds next to nothing has lacked memory for STARVED_NS, the processes that hold the most
give way, whatever their share is.

Small frames that come in, and frames that are deferred, are in memory already when they are charged. The last eighth of
the budget is for them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from timerd.host.chunks import CHUNK_COST, Chunk
from timerd_shm.declare.limits import NO_DEADLINE

NEXT_TO_NOTHING = 65_536  # bytes
BEGINNING = 32_768  # bytes of a frame that waits for memory: they were read already, and are charged
BEGINNINGS_MAX = 8  # that count as nothing
RELEASED_PER_TURN = 2 << 20  # bytes; to free them takes some 0.2 ms
STARVED_NS = 5_000_000_000
TRIM_SIZE = 4 << 20  # bytes that were freed, before malloc is asked to give memory back to the system
TRIM_NS = 1_000_000_000  # from one trim to the next, at least


class Waiter(Protocol):
    """Somebody who waits for memory."""

    @property
    def wanted_memory(self) -> int:
        """The memory that it needs to go on."""

    def wake(self) -> None:
        """Go on: there may be memory."""


class Account:
    """The memory of one process."""

    __slots__ = ("_budget", "asked_ns", "memory", "starved_ns", "waiting")

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self.memory = 0
        self.starved_ns = 0  # since when it holds next to nothing and gets no memory; 0: it is not starved
        self.asked_ns = 0  # when it last asked for memory and got none
        self.waiting: deque[Waiter] = deque()

    def has_room(self, size: int) -> bool:
        """Whether take() would give this now."""
        return self._budget.has_room(self, size)

    @property
    def is_short(self) -> bool:
        """Whether the process should do without more: it is over its share, and most of the budget is in use."""
        return self._budget.is_short(self)

    def take(self, size: int) -> bool:
        """Take memory. False: there is none for this process."""
        return self._budget.take(self, size)

    def charge(self, size: int) -> None:
        """Charge the process for memory that is in use already."""
        self._budget.charge(self, size)

    def give(self, size: int) -> None:
        """Give memory back. Those that wait for it go on at the next tend()."""
        self._budget.give(self, size)

    def give_later(self, chunks: deque[Chunk], size: int) -> None:
        """Give back the memory of chunks that nobody needs. They are freed in pieces."""
        self._budget.end(self, chunks, size)

    def wait(self, waiter: Waiter) -> None:
        """Wake somebody when there may be memory."""
        self._budget.wait(self, waiter)

    def shed(self) -> None:
        """Give back the largest piece of memory: others need it, and this process is over its share."""
        raise NotImplementedError


class Budget:
    """The memory of all processes. `trim` has malloc give freed memory back to the system."""

    def __init__(self, most: int, trim: Callable[[], None] = lambda: None) -> None:
        self.most = most
        self.process_max = most // 4 * 3
        self.taken = 0  # by all accounts
        self._for_takers = most - most // 8
        self._trim = trim
        self._holding: dict[Account, None] = {}  # accounts that have memory
        self._waited: dict[Account, None] = {}  # accounts for which somebody waits
        self._has_given = False  # whether memory was given back since wake()
        self._now_ns = 0  # the time of the last tend()
        self._ended: deque[tuple[deque[Chunk], int]] = deque()  # chunks to be freed, and what they take
        self._ended_size = 0
        self._peak = 0  # the most that was in use since the last trim
        self._trim_ns = 0  # malloc is not asked before this time

    @property
    def used(self) -> int:
        """Bytes that are in use, also those that nobody needs any more."""
        return self.taken + self._ended_size

    @property
    def is_releasing(self) -> bool:
        """Whether the next tend() has something to free."""
        return bool(self._ended)

    @property
    def due_ns(self) -> int:
        """When to call tend() even if nothing has come."""
        due_ns = self._trim_due_ns
        if self._waited:
            if self._has_given:
                return 0
            due_ns = min([due_ns, *(each.starved_ns + STARVED_NS for each in self._waited if each.starved_ns)])
        return due_ns

    @property
    def _trim_due_ns(self) -> int:
        return NO_DEADLINE if self._ended or self._peak - self.used < TRIM_SIZE else self._trim_ns

    def tend(self, now_ns: int) -> None:
        """Free some chunks of ended connections, wake those for which there is room, and give memory to the system."""
        self._now_ns = now_ns
        if self._ended:
            self.release()
        if self._waited:
            self.wake()
        if self._trim_due_ns <= now_ns:
            self._peak, self._trim_ns = self.used, now_ns + TRIM_NS
            self._trim()

    def share_of(self, account: Account) -> int:
        """The share of a process: what it may have whatever the others want."""
        return self._for_takers // max(len(self._holding) + (account not in self._holding), 1)

    def has_room(self, account: Account, size: int) -> bool:
        """Whether a process may have `size` bytes more, if those that are over their share give way."""
        return self._is_allowed(account, size) and (
            self.used + size <= self._for_takers
            or (self._has_right(account, size) and self._lacking(size) <= self._excess(account, self.share_of(account)))
        )

    def is_short(self, account: Account) -> bool:
        """Whether a process should do without more: it is over its share, and three quarters are in use."""
        return self.used > self.process_max and account.memory > self.share_of(account)

    def take(self, account: Account, size: int) -> bool:
        share = self.share_of(account)
        if not self.has_room(account, size):
            if not (self._is_allowed(account, size) and self._is_starved(account)):
                return False
            share = 0
        while (lacking := self.used + size - self._for_takers) > 0:
            if self._ended:
                self.release(lacking)
            elif not self._shed_for(account, share):
                account.starved_ns = self._now_ns
                return False
        account.starved_ns = 0
        self._add(account, size)
        return True

    def charge(self, account: Account, size: int) -> None:
        self._add(account, size)
        while (lacking := self.used - self.most) > 0:
            if self._ended:
                self.release(lacking)
            elif not self._shed_for(None, 0):
                return

    def give(self, account: Account, size: int) -> None:
        account.memory -= size
        self.taken -= size
        if not account.memory:
            self._holding.pop(account, None)
        self._has_given = True

    def end(self, account: Account, chunks: deque[Chunk], size: int) -> None:
        if chunks:
            self._ended.append((chunks, size))
            self._ended_size += size
        self.give(account, size)

    def release(self, size: int = RELEASED_PER_TURN) -> None:
        """Free `size` bytes of ended connections, or a little more."""
        while self._ended and size > 0:
            chunks, left = self._ended[0]
            freed = chunks.popleft().__sizeof__() + CHUNK_COST if chunks else 0
            if chunks:
                self._ended[0] = chunks, left - freed
            else:  # all chunks are freed; what is left is memory that the sizes of objects do not show
                self._ended.popleft()
                freed = left
            self._ended_size -= freed
            size -= freed

    def wait(self, account: Account, waiter: Waiter) -> None:
        account.waiting.append(waiter)
        self._waited[account] = None

    def wake(self) -> None:
        """Wake those that wait, as far as there is room for all of them; and one of each process that is starved."""
        promised = 0
        most = self._excess(None, self.share_of(next(iter(self._waited)))) - self._lacking(0) if self._has_given else 0
        self._has_given = False
        for account in list(self._waited):
            waiting = account.waiting
            if waiting and account.starved_ns and self._now_ns - account.starved_ns >= STARVED_NS:
                waiting.popleft().wake()
            while waiting and (size := promised + waiting[0].wanted_memory) <= most and self.has_room(account, size):
                promised = size
                waiting.popleft().wake()
            if not waiting:
                self._waited.pop(account, None)

    def _is_allowed(self, account: Account, size: int) -> bool:
        """Whether a process stays within what one process may have. If it holds nothing, any size is allowed."""
        return not account.memory or account.memory + size <= self.process_max

    def _lacking(self, size: int) -> int:
        """How much memory is missing for `size` bytes more, when what has ended is freed."""
        return self.taken + size - self._for_takers

    def _excess(self, account: Account | None, share: int) -> int:
        """The memory that all other processes hold beyond the share."""
        return sum(each.memory - share for each in self._holding if each.memory > share and each is not account)

    def _is_starved(self, account: Account) -> bool:
        """Whether a process that gets no memory, and holds next to nothing, has been waiting for too long."""
        if not self._holds_next_to_nothing(account):
            account.starved_ns = 0
            return False
        if not account.starved_ns or self._now_ns - account.asked_ns > 2 * STARVED_NS:
            account.starved_ns = self._now_ns
        account.asked_ns = self._now_ns
        return self._now_ns - account.starved_ns >= STARVED_NS

    def _has_right(self, account: Account, size: int) -> bool:
        """Whether others have to give way: this process stays below its share, or it holds next to nothing."""
        return self._holds_next_to_nothing(account) or account.memory + size <= self.share_of(account)

    def _holds_next_to_nothing(self, account: Account) -> bool:
        beginnings = min(len(account.waiting), BEGINNINGS_MAX) * BEGINNING
        return account.memory <= NEXT_TO_NOTHING + beginnings

    def _add(self, account: Account, size: int) -> None:
        if size:
            account.memory += size
            self.taken += size
            self._holding[account] = None
            self._peak = max(self._peak, self.used)

    def _shed_for(self, needy: Account | None, share: int) -> bool:
        """Have the process that holds the most give some back. False: nobody else holds more than `share`."""
        fattest = max(self._holding, key=_memory_of, default=None)
        if fattest is None or fattest is needy:
            return False
        before = fattest.memory
        if before <= share:
            return False
        fattest.shed()
        return fattest.memory < before


def _memory_of(account: Account) -> int:
    return account.memory
