"""The old purgatory that the suite `article` runs beside the core behaves like Kafka's first one, and like a model.

Comments have the codes of tests/core/test_kafka.py, such as P1.
"""

from __future__ import annotations

import random
import threading
import time
from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pytest

from bench.rivals.old_purgatory import COMPLETED, EXPIRED, NEVER, PENDING, REFUSED, OldPurgatory
from timerd_shm.declare.fields import size_of, struct_of
from timerd_shm.declare.records import Block, OpRecord, WatchNode
from timerd_shm.declare.states import Condition, KeyKind
from timerd_shm.declare.wire import CommandKind, RegisterCommand

MS = 1_000_000
KEYS = tuple(b"key%d" % number for number in range(5))


def command(keys: Sequence[bytes], timeout_ns: int, payload: bytes = b"") -> bytes:
    """The bytes of a registration on the wire."""
    names = b"".join(bytes((len(key), KeyKind.EVENT)) + key for key in keys)
    size = size_of(RegisterCommand) + len(names) + len(payload)
    fixed = struct_of(RegisterCommand).pack(
        CommandKind.REGISTER, 0, 0, size, Condition.AT_LEAST, 1, len(keys), 0, len(payload), 0, timeout_ns, 0, 0, 0
    )
    return fixed + names + payload


def purgatory(*, capacity: int = 1_000, requests: int = 1_000, purge_interval: int = 0) -> OldPurgatory:
    return OldPurgatory(capacity, keys_per_op=3, payload_max=200, requests=requests, purge_interval=purge_interval)


# one behaviour each --------------------------------------------------------------------------------------------------


def test_an_operation_that_completes_at_once_is_neither_watched_nor_delayed() -> None:  # P1
    old = purgatory()
    assert old.register(command(KEYS[:3], 100 * MS), 0, 0) == COMPLETED
    assert (old.watched, old.delayed, old.settled) == (0, 0, 1)


def test_a_completed_operation_stays_in_the_queue_and_on_every_list() -> None:
    old = purgatory()
    for keys in (KEYS[:1], KEYS[:2], KEYS[:3]):
        assert old.register(command(keys, 100 * MS), 0, 50 * MS) == PENDING
    assert (old.watched, old.delayed) == (6, 3)  # P3
    assert old.complete(1, 10 * MS) and not old.complete(1, 11 * MS)  # O1
    assert (old.watched, old.delayed, old.settled) == (6, 3, 1)
    assert old.check_and_complete(KEYS[1], 20 * MS) == 0  # P2: completed ones are dropped, and not counted
    assert (old.watched, old.delayed) == (5, 3)


def test_a_check_completes_the_due_operations_of_its_key_alone() -> None:  # P2
    old = purgatory()
    old.register(command(KEYS[:1], 100 * MS), 0, 10 * MS)
    old.register(command(KEYS[:2], 100 * MS), 0, 30 * MS)
    old.register(command(KEYS[1:2], 100 * MS), 0, 10 * MS)
    assert old.check_and_complete(b"nobody's", 50 * MS) == 0
    assert old.check_and_complete(KEYS[0], 20 * MS) == 1
    assert old.check_and_complete(KEYS[0], 20 * MS) == 0
    assert list(old.states()) == [COMPLETED, PENDING, PENDING]
    assert old.check_and_complete(KEYS[1], 30 * MS) == 2


def test_the_reaper_expires_one_operation_at_a_time_and_skips_completed_ones() -> None:  # O2
    old = purgatory()
    for timeout in (30, 10, 20):
        old.register(command(KEYS[:1], timeout * MS), 0, 500 * MS)
    old.complete(1, 5 * MS)
    assert not old.reap(15 * MS) and old.counters()["dead_polls"] == 1
    assert not old.reap(20 * MS - 1), "never early"
    assert old.reap(20 * MS) and list(old.states()) == [PENDING, COMPLETED, EXPIRED]
    assert old.reap(40 * MS) and not old.reap(40 * MS)
    assert old.delayed == 0 and not old.complete(0, 41 * MS)
    assert list(old.settlings()) == [1, 1, 1]


def test_lists_and_the_queue_are_purged_at_their_limits() -> None:  # P5, in its first form
    old = purgatory(purge_interval=4)
    old.register(command(KEYS[:3], 100 * MS), 0, 50 * MS)
    old.complete(0, 1 * MS)
    old.reap(2 * MS)
    assert (old.watched, old.delayed) == (3, 1), "both numbers are below the interval"
    old.register(command(KEYS[:1], 100 * MS), 2 * MS, 50 * MS)
    old.reap(3 * MS)
    assert (old.watched, old.delayed) == (1, 2), "there were four watchers, and the purge left one"
    assert old.counters()["list_purges"] == 1 and old.counters()["watchers_visited"] == 4
    for _ in range(2):
        old.register(command(KEYS[:1], 100 * MS), 3 * MS, 50 * MS)
    old.reap(4 * MS)
    assert (old.watched, old.delayed) == (3, 3), "four operations were delayed, and one of them was complete"
    assert old.counters()["queue_purges"] == 1 and old.counters()["waiting_visited"] == 4


def test_a_purge_runs_even_without_anything_to_purge() -> None:
    """The defect that the article names: with many pending operations, the lists are walked at each turn."""
    old = purgatory(purge_interval=10)
    for _ in range(20):
        old.register(command(KEYS[:1], 100 * MS), 0, 50 * MS)
    for turn in range(5):
        old.reap(turn * MS)
    assert old.counters()["list_purges"] == 5 and old.counters()["watchers_visited"] == 100


def test_without_purges_settled_operations_stay_queued_until_due_and_listed_for_ever() -> None:
    old = purgatory()
    for _ in range(10):
        old.register(command(KEYS[:3], 100 * MS, b"x" * 200), 0, 50 * MS)
    for number in range(10):
        old.complete(number, 1 * MS)
    old.reap(200 * MS)
    assert (old.delayed, old.watched) == (0, 30)
    assert old.in_use() == (10, 30, 20), "each payload takes two blocks"
    for key in KEYS[:3]:
        old.check_and_complete(key, 201 * MS)
    assert old.watched == 0 and old.in_use() == (0, 0, 0)


def test_operations_beyond_the_capacity_are_refused_and_counted() -> None:
    old = purgatory(capacity=2)
    assert [old.register(command(KEYS[:1], 10 * MS), 0, 5 * MS) for _ in range(3)] == [PENDING, PENDING, REFUSED]
    assert old.refused == 1 and old.registered == 3 and not old.complete(2, 1)
    old.complete(0, 1)
    assert old.register(command(KEYS[:1], 10 * MS), 1) == REFUSED, "a completed one keeps its record until a purge"
    old.check_and_complete(KEYS[0], 2)
    old.reap(20 * MS)
    assert old.register(command(KEYS[:1], 10 * MS), 20 * MS) == PENDING


def test_records_are_as_large_as_those_of_the_core() -> None:
    assert OldPurgatory.bytes_for(3, 112) == size_of(OpRecord) + 3 * size_of(WatchNode) + size_of(Block) + 16
    old = purgatory()
    old.register(command(KEYS[:2], 10 * MS, b"x" * 100), 0)
    assert old.bytes_max == size_of(OpRecord) + 2 * size_of(WatchNode) + size_of(Block) + 16


def test_a_command_beyond_the_sizes_of_the_old_purgatory_is_refused() -> None:
    old = purgatory(requests=1)
    for wrong in (command(KEYS[:4], 1), command(KEYS[:1], 1, b"x" * 201), command(KEYS[:1], 1)[:40], b"\0" * 56):
        with pytest.raises(ValueError):
            old.register(wrong, 0)
    assert old.registered == 0
    old.register(command(KEYS[:1], 1), 0)
    with pytest.raises(ValueError, match="made for 1"):
        old.register(command(KEYS[:1], 1), 0)


# against a dumb model ------------------------------------------------------------------------------------------------


class Entry(NamedTuple):
    number: int
    keys: tuple[bytes, ...]
    deadline_ns: int
    completes_ns: int


class Model:
    """A simple model of the purgatory: lists, which it searches."""

    def __init__(self, purge_interval: int) -> None:
        self.purge_interval = purge_interval
        self.states: list[int] = []
        self.settled_ns: list[int] = []
        self.entries: list[Entry] = []
        self.lists: dict[bytes, list[Entry]] = {key: [] for key in KEYS}
        self.queue: list[Entry] = []

    def settle(self, entry: Entry, state: int, now_ns: int) -> bool:
        if self.states[entry.number] != PENDING:
            return False
        self.states[entry.number], self.settled_ns[entry.number] = state, now_ns
        return True

    def register(self, keys: tuple[bytes, ...], timeout_ns: int, now_ns: int, delay_ns: int) -> int:
        entry = Entry(len(self.entries), keys, now_ns + timeout_ns, now_ns + delay_ns)
        self.entries.append(entry)
        self.states.append(PENDING)
        self.settled_ns.append(0)
        if delay_ns <= 0:
            self.settle(entry, COMPLETED, now_ns)
        else:
            for key in keys:
                self.lists[key].append(entry)
            self.queue.append(entry)
        return self.states[-1]

    def check(self, key: bytes, now_ns: int) -> int:
        done = [
            entry for entry in self.lists[key] if entry.completes_ns <= now_ns and self.settle(entry, COMPLETED, now_ns)
        ]
        self.lists[key] = self.pending(self.lists[key])
        return len(done)

    def pending(self, entries: list[Entry]) -> list[Entry]:
        return [entry for entry in entries if self.states[entry.number] == PENDING]

    def reap(self, now_ns: int) -> bool:
        expired = False
        while not expired:
            due = min(
                (entry for entry in self.queue if entry.deadline_ns <= now_ns),
                key=lambda e: e.deadline_ns,
                default=None,
            )
            if due is None:
                break
            self.queue.remove(due)
            expired = self.settle(due, EXPIRED, now_ns)
        if self.purge_interval and self.watched() >= self.purge_interval:
            self.lists = {key: self.pending(entries) for key, entries in self.lists.items()}
        if self.purge_interval and len(self.queue) >= self.purge_interval:
            self.queue = self.pending(self.queue)
        return expired

    def watched(self) -> int:
        return sum(map(len, self.lists.values()))


@pytest.mark.parametrize("purge_interval", [0, 1, 7, 60])
def test_it_behaves_like_a_simple_model(purge_interval: int, seed: int) -> None:
    rng = random.Random(f"{seed}/{purge_interval}")
    steps = 3_000
    old, model = purgatory(requests=steps, capacity=steps, purge_interval=purge_interval), Model(purge_interval)
    now_ns = 0
    for _ in range(steps):
        now_ns += rng.randrange(3 * MS)
        match rng.randrange(10):
            case 0 | 1 | 2 | 3:
                keys = tuple(rng.sample(KEYS, rng.randint(1, 3)))
                # All deadlines differ, because the order of operations with equal deadlines is not defined.
                timeout, delay = rng.randrange(MS, 60 * MS), rng.choice([0, rng.randrange(1, 80 * MS)])
                if any(entry.deadline_ns == now_ns + timeout for entry in model.entries):
                    continue
                payload = rng.randbytes(rng.randint(0, 200))
                assert old.register(command(keys, timeout, payload), now_ns, delay) == model.register(
                    keys, timeout, now_ns, delay
                )
            case 4 | 5 | 6:
                if model.entries:
                    number = rng.randrange(max(0, len(model.entries) - 50), len(model.entries))
                    assert old.complete(number, now_ns) == model.settle(model.entries[number], COMPLETED, now_ns)
            case 7:
                key = rng.choice(KEYS)
                assert old.check_and_complete(key, now_ns) == model.check(key, now_ns)
            case _:
                assert old.reap(now_ns) == model.reap(now_ns)
        assert (old.watched, old.delayed) == (model.watched(), len(model.queue))
    assert list(old.states()) == model.states
    assert list(array("q", old.settled_ns())) == model.settled_ns


# its threads ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def threads() -> Iterator[list[threading.Thread]]:
    """Threads that the test starts. The fixture waits for their end."""
    started: list[threading.Thread] = []
    yield started
    for thread in started:
        thread.join(10)
        assert not thread.is_alive()


@pytest.mark.parametrize("purge_interval", [1, 100])
def test_three_threads_settle_every_request_once(
    purge_interval: int, seed: int, threads: list[threading.Thread]
) -> None:
    """A third of the requests expire at 20 ms. For all others completion and expiry race. Purges run all the time."""
    rng = random.Random(seed)
    count, timeout_ns = 6_000, 20 * MS
    due = array("q", sorted(rng.randrange(60 * MS) for _ in range(count)))
    delay = array("q", (NEVER if number % 3 == 0 else rng.randrange(MS, 40 * MS) for number in range(count)))
    times = sorted((due[number] + delay[number], number) for number in range(count) if delay[number] != NEVER)
    old = purgatory(capacity=count, requests=count, purge_interval=purge_interval)
    one = command(KEYS[:3], timeout_ns, b"x" * 100)
    start_ns = time.monotonic_ns() + 5 * MS
    threads += [
        threading.Thread(target=old.reap_until_stopped),
        threading.Thread(target=old.generate, args=(one * count, due, delay, start_ns, start_ns + 5_000 * MS)),
        threading.Thread(
            target=old.complete_all,
            args=(array("I", (number for _, number in times)), array("q", (at for at, _ in times)), start_ns),
        ),
    ]
    for thread in threads:
        thread.start()
    for thread in threads[1:]:
        thread.join(10)
    limit = time.monotonic() + 10
    while old.settled < count and time.monotonic() < limit:
        time.sleep(0.005)
    old.stop()
    threads[0].join(10)
    assert old.settled == old.registered == count and old.refused == 0
    assert set(old.settlings()) == {1}
    states, registered, settled = old.states(), array("q", old.registered_ns()), array("q", old.settled_ns())
    assert all(states[number] == EXPIRED for number in range(0, count, 3))
    assert COMPLETED in states
    early = [
        number
        for number in range(count)
        if states[number] == EXPIRED and settled[number] < registered[number] + timeout_ns
    ]
    assert not early
    for key in KEYS[:3]:
        old.check_and_complete(key, time.monotonic_ns())
    while old.delayed:
        old.reap(time.monotonic_ns() + 1_000 * MS)
    assert old.in_use() == (0, 0, 0), "all records are free again"
