"""The rivals of timerd's core, each as a user would write it, and one measurement of one rival.

    python -m bench.rivals.timers CONTESTANT PENDING SEED WORK small|huge # prints JSON

Each rival keeps timers with a name of 12 bytes and a deadline in ms. Each has the same operations: insert; cancel, by
the handle that insert returned; complete, by name; reschedule; expire. A measurement is a loop over many timers,
without a function call for each. So a figure holds the rival's own work, a dict for the names, and one pass of Python's
loop. Each rival runs in a process of its own, so that its memory can be measured. Once the timers that stay are
inserted, gc.freeze() is called, so that no garbage collection walks them. `small` or `huge` is the size of the memory's
pages; only the compiled rivals can use huge pages.

    timerd            compiled, frames of 4,096 commands (bench/suites/core.py)
    wheel of 20       compiled, in bulk: the article's timing wheels (wheel_of_20.pyx); no locks, no outcomes
    bare              compiled, in bulk: the core's records and lists alone (bare.pyx); the floor, and no rival
    heapq             Python's recipe: a cancelled entry is marked, and stays in the heap until it is the first
    asyncio           call_at and cancel; its clock is moved by hand
    uvloop            call_later and cancel, compiled; real clock, so all timers are overdue when they expire
    sortedcontainers  a SortedList of entries; a cancelled entry is removed at once
"""

from __future__ import annotations

import asyncio
import gc
import heapq
import json
import random
import statistics
import sys
import time
from array import array
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import psutil

from bench.lib import core_rig as core
from bench.lib.core_rig import key
from bench.lib.memory import huge_share, make_memory
from bench.rivals.bare import Bare
from bench.rivals.wheel_of_20 import WheelOf20

SPREAD_MS = 60_000
LEAST_MS = 1_000
FAR_MS = 1_000 * SPREAD_MS
WORK = 20_000
ROUNDS = 5
EXPIRED = 300_000  # the earliest timers. The rivals in Python let only these expire
OVERDUE_S = 0.05  # timeout of the timers that expire on a real clock


class Timers:
    """The interface of a rival. insert, cancel, complete, reschedule and expire are measured; the rest is preparation.

    Deadlines are in ms of the rival's own clock, which begins at 0. names() and times() return names and deadlines as
    the rival's calls take them.
    """

    def fill(self, numbers: range, deadlines_ms: Sequence[int]) -> None:
        """Insert timers that stay."""
        self.keep(numbers, self.insert(self.names(numbers), self.times(deadlines_ms)))

    def names(self, numbers: Sequence[int]) -> Any:
        return [key(number) for number in numbers]

    def times(self, deadlines_ms: Sequence[int]) -> Any:
        return list(deadlines_ms)

    def keep(self, numbers: Sequence[int], handles: Any) -> None:
        """Remember the handles that insert returned for these timers."""

    def handles(self, numbers: Sequence[int]) -> Any:
        """The handles that insert returned for these timers."""
        raise NotImplementedError

    def insert(self, names: Any, deadlines: Any) -> Any:
        raise NotImplementedError

    def cancel(self, names: Any, handles: Any) -> None:
        raise NotImplementedError

    def complete(self, names: Any) -> None:
        raise NotImplementedError

    def reschedule(self, names: Any, handles: Any, deadlines: Any) -> None:
        raise NotImplementedError

    def expire(self, ticks_ms: Sequence[int]) -> tuple[int, list[float]]:
        """Expire the timers that are due at these ms. Returns the number expired, and the seconds that each ms took."""
        raise NotImplementedError

    def pending(self) -> int:
        raise NotImplementedError

    def bytes_per_timer(self) -> float | None:
        """Bytes for a timer; None if the rival cannot tell. Then the process's memory is measured."""
        return None

    def huge_share(self) -> float | None:
        """The share of the rival's memory that is on huge pages; None if the rival cannot use them."""
        return None


class Listed(Timers):
    """The base of the rivals in Python: a dict from names to handles."""

    def __init__(self) -> None:
        self.by_name: dict[bytes, Any] = {}

    def handles(self, numbers: Sequence[int]) -> list[Any]:
        return [self.by_name[key(number)] for number in numbers]

    def pending(self) -> int:
        return len(self.by_name)


class Heap(Listed):
    """heapq, by the recipe of its documentation. An entry is [deadline, number, name]; a cancelled one has no name."""

    def __init__(self) -> None:
        super().__init__()
        self.heap: list[list[Any]] = []
        self.numbers = count()

    def fill(self, numbers: range, deadlines_ms: Sequence[int]) -> None:
        for number, deadline in zip(numbers, deadlines_ms, strict=True):
            name = key(number)
            self.by_name[name] = entry = [deadline, next(self.numbers), name]
            self.heap.append(entry)
        heapq.heapify(self.heap)

    def insert(self, names: Sequence[bytes], deadlines_ms: Sequence[int]) -> None:
        by_name, heap, push, number = self.by_name, self.heap, heapq.heappush, self.numbers
        for name, deadline in zip(names, deadlines_ms, strict=True):
            by_name[name] = entry = [deadline, next(number), name]
            push(heap, entry)

    def cancel(self, names: Sequence[bytes], handles: Sequence[list[Any]]) -> None:
        by_name = self.by_name
        for name, entry in zip(names, handles, strict=True):
            entry[2] = None
            del by_name[name]

    def complete(self, names: Sequence[bytes]) -> None:
        pop = self.by_name.pop
        for name in names:
            pop(name)[2] = None

    def reschedule(self, names: Sequence[bytes], handles: Sequence[list[Any]], deadlines_ms: Sequence[int]) -> None:
        by_name, heap, push, number = self.by_name, self.heap, heapq.heappush, self.numbers
        for name, entry, deadline in zip(names, handles, deadlines_ms, strict=True):
            entry[2] = None
            by_name[name] = fresh = [deadline, next(number), name]
            push(heap, fresh)

    def expire(self, ticks_ms: Sequence[int]) -> tuple[int, list[float]]:
        by_name, heap, pop, clock = self.by_name, self.heap, heapq.heappop, time.perf_counter
        spent, before = [], len(by_name)
        for tick in ticks_ms:
            began = clock()
            while heap and heap[0][0] <= tick:
                name = pop(heap)[2]
                if name is not None:
                    del by_name[name]
            spent.append(clock() - began)
        return before - len(by_name), spent


class Sorted(Listed):
    """sortedcontainers.SortedList of (deadline, number, name)."""

    def __init__(self) -> None:
        super().__init__()
        from sortedcontainers import SortedList

        self.entries = SortedList()
        self.numbers = count()

    def fill(self, numbers: range, deadlines_ms: Sequence[int]) -> None:
        for number, deadline in zip(numbers, deadlines_ms, strict=True):
            name = key(number)
            self.by_name[name] = (deadline, next(self.numbers), name)
        self.entries.update(self.by_name.values())

    def insert(self, names: Sequence[bytes], deadlines_ms: Sequence[int]) -> None:
        by_name, add, number = self.by_name, self.entries.add, self.numbers
        for name, deadline in zip(names, deadlines_ms, strict=True):
            by_name[name] = entry = (deadline, next(number), name)
            add(entry)

    def cancel(self, names: Sequence[bytes], handles: Sequence[tuple[int, int, bytes]]) -> None:
        by_name, remove = self.by_name, self.entries.remove
        for name, entry in zip(names, handles, strict=True):
            remove(entry)
            del by_name[name]

    def complete(self, names: Sequence[bytes]) -> None:
        pop, remove = self.by_name.pop, self.entries.remove
        for name in names:
            remove(pop(name))

    def reschedule(
        self, names: Sequence[bytes], handles: Sequence[tuple[int, int, bytes]], deadlines_ms: Sequence[int]
    ) -> None:
        by_name, remove, add, number = self.by_name, self.entries.remove, self.entries.add, self.numbers
        for name, entry, deadline in zip(names, handles, deadlines_ms, strict=True):
            remove(entry)
            by_name[name] = fresh = (deadline, next(number), name)
            add(fresh)

    def expire(self, ticks_ms: Sequence[int]) -> tuple[int, list[float]]:
        by_name, entries, clock = self.by_name, self.entries, time.perf_counter
        spent, before = [], len(by_name)
        for tick in ticks_ms:
            began = clock()
            due = entries.bisect_left((tick + 1,))
            for _, _, name in entries[:due]:
                del by_name[name]
            del entries[:due]
            spent.append(clock() - began)
        return before - len(by_name), spent


class Loop(Listed):
    """An event loop's timers: call_at or call_later, and cancel. A callback forgets the name."""

    loop: asyncio.AbstractEventLoop
    at: Callable[..., asyncio.TimerHandle]  # (seconds, callback, name)

    def times(self, deadlines_ms: Sequence[int]) -> list[float]:
        return [deadline / 1e3 for deadline in deadlines_ms]

    def fill(self, numbers: range, deadlines_ms: Sequence[int]) -> None:
        by_name, at, expired = self.by_name, self.at, self.by_name.__delitem__
        for number, deadline in zip(numbers, deadlines_ms, strict=True):
            name = key(number)
            by_name[name] = at(deadline / 1e3, expired, name)

    def insert(self, names: Sequence[bytes], deadlines_s: Sequence[float]) -> None:
        by_name, at, expired = self.by_name, self.at, self.by_name.__delitem__
        for name, deadline in zip(names, deadlines_s, strict=True):
            by_name[name] = at(deadline, expired, name)

    def cancel(self, names: Sequence[bytes], handles: Sequence[asyncio.TimerHandle]) -> None:
        by_name = self.by_name
        for name, handle in zip(names, handles, strict=True):
            handle.cancel()
            del by_name[name]

    def complete(self, names: Sequence[bytes]) -> None:
        pop = self.by_name.pop
        for name in names:
            pop(name).cancel()

    def reschedule(
        self, names: Sequence[bytes], handles: Sequence[asyncio.TimerHandle], deadlines_s: Sequence[float]
    ) -> None:
        by_name, at, expired = self.by_name, self.at, self.by_name.__delitem__
        for name, handle, deadline in zip(names, handles, deadlines_s, strict=True):
            handle.cancel()
            by_name[name] = at(deadline, expired, name)


class Asyncio(Loop):
    """asyncio's own loop, with a clock that is moved by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.loop = asyncio.SelectorEventLoop()
        self.loop.time = lambda: self.now_s  # type: ignore[method-assign]
        self.at = self.loop.call_at

    def expire(self, ticks_ms: Sequence[int]) -> tuple[int, list[float]]:
        spent: list[float] = []
        before = len(self.by_name)

        async def drive() -> None:
            """Move the clock. A timer runs a step after it is due, so two more steps follow the last tick."""
            clock, last = time.perf_counter, time.perf_counter()
            for tick in [*ticks_ms, ticks_ms[-1], ticks_ms[-1]]:
                self.now_s = tick / 1e3 + 1e-6
                await asyncio.sleep(0)
                now = clock()
                spent.append(now - last)
                last = now

        self.loop.run_until_complete(drive())
        self.loop.close()
        return before - len(self.by_name), spent


class Uvloop(Loop):
    """uvloop, on the real clock. Timers that must not expire have far deadlines (FAR_MS)."""

    def __init__(self) -> None:
        super().__init__()
        import uvloop

        self.loop = uvloop.new_event_loop()
        self.at = self.loop.call_later

    def fill(self, numbers: range, deadlines_ms: Sequence[int]) -> None:
        super().fill(numbers, array("q", (deadline + FAR_MS for deadline in deadlines_ms)))

    def times(self, deadlines_ms: Sequence[int]) -> list[float]:
        return [(deadline + FAR_MS) / 1e3 for deadline in deadlines_ms]

    def expire(self, ticks_ms: Sequence[int]) -> tuple[int, list[float]]:
        """Insert timers beside those that stay, wait until they are overdue, and measure how long all expiries take."""
        stay = len(self.by_name)
        names = [b"due/%08x" % number for number in range(min(stay, EXPIRED))]
        self.insert(names, [OVERDUE_S] * len(names))
        time.sleep(OVERDUE_S + 2e-3)
        began = time.perf_counter()
        while len(self.by_name) > stay:
            self.loop.call_soon(self.loop.stop)
            self.loop.run_forever()
        took = time.perf_counter() - began
        self.loop.close()
        return len(names), [took]


class Wheels(Timers):
    """The compiled contestants with bulk calls: the article's timing wheels, or the bare lists of the core."""

    def __init__(self, kind: type[WheelOf20] | type[Bare], capacity: int, huge: bool) -> None:
        self.size = kind.size(capacity)
        self.wheel = kind(capacity, len(key(0)), 0, make_memory(self.size, huge))
        self.handle_of: dict[int, int] = {}

    def names(self, numbers: Sequence[int]) -> bytes:
        return b"".join(map(key, numbers))

    def times(self, deadlines_ms: Sequence[int]) -> array[int]:
        return array("q", deadlines_ms)

    def keep(self, numbers: Sequence[int], handles: array[int]) -> None:
        self.handle_of.update(zip(numbers, handles, strict=True))

    def handles(self, numbers: Sequence[int]) -> array[int]:
        return array("I", map(self.handle_of.__getitem__, numbers))

    def insert(self, names: bytes, deadlines: array[int]) -> array[int]:
        return self.wheel.insert(names, deadlines)

    def cancel(self, names: bytes, handles: array[int]) -> None:
        self.wheel.cancel(handles)

    def complete(self, names: bytes) -> None:
        self.wheel.complete(names)

    def reschedule(self, names: bytes, handles: array[int], deadlines: array[int]) -> None:
        self.wheel.reschedule(handles, deadlines)

    def expire(self, ticks_ms: Sequence[int]) -> tuple[int, list[float]]:
        """Expire all. The clock moves to each bucket's beginning in turn. A wheel of 20 also has empty buckets."""
        spent, before = [], self.wheel.pending
        while (tick := self.wheel.next_ms) is not None:
            began = time.perf_counter()
            self.wheel.advance(tick)
            spent.append(time.perf_counter() - began)
        return before - self.wheel.pending, spent

    def pending(self) -> int:
        return self.wheel.pending

    def bytes_per_timer(self) -> float:
        return self.wheel.bytes_per_task

    def huge_share(self) -> float:
        return huge_share(self.size)


MAKERS: dict[str, Callable[[int, bool], Timers]] = {
    "wheel of 20": lambda capacity, huge: Wheels(WheelOf20, capacity, huge),
    "bare": lambda capacity, huge: Wheels(Bare, capacity, huge),
    "heapq": lambda capacity, huge: Heap(),
    "asyncio": lambda capacity, huge: Asyncio(),
    "uvloop": lambda capacity, huge: Uvloop(),
    "sortedcontainers": lambda capacity, huge: Sorted(),
}
TIMERD = "timerd"
SMALL, HUGE = "small", "huge"


def measure(contestant: str, pending: int, seed: int, work: int = WORK, huge: bool = False) -> dict[str, float | None]:
    """Measure as bench/suites/core.py does, beside `pending` timers that stay: on recent timers, and on random ones."""
    if contestant == TIMERD:
        return {**core.measure(pending, seed, huge)}
    rng = random.Random(seed)
    timers = MAKERS[contestant](pending + 2 * work, huge)
    live = list(range(pending))
    deadline_of = array("q", rng.choices(range(LEAST_MS, SPREAD_MS), k=pending))
    before = psutil.Process().memory_info().rss
    timers.fill(range(pending), deadline_of)
    found: dict[str, float | None] = {"huge_share": timers.huge_share(), "bytes_per_op": timers.bytes_per_timer()}
    if found["bytes_per_op"] is None:
        found["bytes_per_op"] = (psutil.Process().memory_info().rss - before) / pending
    gc.collect()
    gc.freeze()
    spent: dict[str, list[float]] = {}

    def timed(figure: str, count: int, call: Callable[..., Any], *given: Any) -> Any:
        began = time.perf_counter()
        made = call(*given)
        spent.setdefault(figure, []).append((time.perf_counter() - began) / count * 1e9)
        assert timers.pending() == len(live), (figure, timers.pending(), len(live))
        return made

    def make(figure: str, count: int) -> list[int]:
        numbers = list(range(len(deadline_of), len(deadline_of) + count))
        deadlines = [rng.randrange(LEAST_MS, SPREAD_MS) for _ in numbers]
        deadline_of.extend(deadlines)
        live.extend(numbers)
        timers.keep(numbers, timed(figure, count, timers.insert, timers.names(numbers), timers.times(deadlines)))
        return numbers

    def move(figure: str, numbers: list[int]) -> None:
        deadlines = [rng.randrange(LEAST_MS, SPREAD_MS) for _ in numbers]
        for number, deadline in zip(numbers, deadlines, strict=True):
            deadline_of[number] = deadline
        given = timers.names(numbers), timers.handles(numbers), timers.times(deadlines)
        timed(figure, len(numbers), timers.reschedule, *given)

    def pick() -> int:
        """Remove a random timer from the pending ones. The caller ends it."""
        at = rng.randrange(len(live))
        live[at], live[-1] = live[-1], live[at]
        return live.pop()

    def end(figure: str, numbers: list[int]) -> None:
        names = timers.names(numbers)
        if figure.startswith("cancel"):
            timed(figure, len(numbers), timers.cancel, names, timers.handles(numbers))
        else:
            timed(figure, len(numbers), timers.complete, names)

    for _ in range(ROUNDS):
        recent = make("insert_ns", work)
        rng.shuffle(recent)
        move("reschedule_ns", recent)
        del live[-(work // 2) :]
        end("cancel_ns", recent[: work // 2])
        del live[pending:]
        end("complete_ns", recent[work // 2 :])
    for _ in range(ROUNDS):
        move("reschedule_any_ns", rng.sample(live, work // 2))
        end("cancel_any_ns", [pick() for _ in range(work // 4)])
        end("complete_any_ns", [pick() for _ in range(work // 4)])
        make("refill", work // 2)
    found.update({figure: statistics.median(values) for figure, values in spent.items() if figure != "refill"})
    due = sorted(deadline_of[number] for number in live)[:EXPIRED]
    expired, took = timers.expire(sorted(set(due)))
    assert timers.pending() in (len(live) - expired, len(live)), (timers.pending(), len(live), expired)
    found["expire_ns"] = sum(took) / expired * 1e9
    found["worst_tick_ms"] = max(took) * 1e3 if len(took) > 1 else None
    return found


if __name__ == "__main__":
    _, name, how_many, seed_of, work_of, kind = sys.argv
    print(json.dumps(measure(name, int(how_many), int(seed_of), int(work_of), kind == HUGE)))
