"""The budget for the memory of all processes: who gets some, who waits, and who has to give some back."""

from __future__ import annotations

import random
from collections import deque

import pytest

from timerd.host.budget import (
    BEGINNING,
    NEXT_TO_NOTHING,
    RELEASED_PER_TURN,
    STARVED_NS,
    TRIM_NS,
    TRIM_SIZE,
    Account,
    Budget,
)
from timerd.host.chunks import Chunk, Chunks
from timerd_shm.declare.limits import NO_DEADLINE

MIB = 1 << 20
MOST = 32 * MIB
FOR_TAKERS = MOST - MOST // 8


class Process(Account):
    """A process whose pieces of memory are numbers. The largest piece is shed first."""

    __slots__ = ("lost", "pieces")

    def __init__(self, budget: Budget) -> None:
        super().__init__(budget)
        self.pieces: list[int] = []
        self.lost = 0

    def get(self, size: int) -> bool:
        if self.take(size):
            self.pieces.append(size)
            return True
        return False

    def put(self) -> None:
        self.give(self.pieces.pop())

    def shed(self) -> None:
        largest = max(self.pieces)
        self.pieces.remove(largest)
        self.lost += 1
        self.give(largest)


class Waiting:
    """A frame that waits for memory, and takes it when it is woken."""

    def __init__(self, process: Process, size: int) -> None:
        self.process, self.wanted_memory = process, size
        self.is_awake = False
        process.wait(self)

    def wake(self) -> None:
        self.is_awake = True


@pytest.fixture
def budget() -> Budget:
    return Budget(MOST)


def test_a_process_alone_gets_three_quarters(budget: Budget) -> None:
    one = Process(budget)
    while one.get(MIB):
        pass
    assert one.memory == budget.process_max == MOST // 4 * 3 and not one.lost


def test_processes_over_their_share_get_nothing_more_and_lose_nothing(budget: Budget) -> None:
    processes = [Process(budget) for _ in range(8)]
    for _ in range(100):
        for each in processes:
            each.get(MIB)
    assert budget.used <= FOR_TAKERS and not any(each.lost for each in processes)


def test_a_process_below_its_share_gets_memory_from_the_process_that_holds_the_most(budget: Budget) -> None:
    hogs, late = [Process(budget) for _ in range(2)], Process(budget)
    while any([hog.get(MIB) for hog in hogs]):
        pass
    assert late.get(100_000)
    assert [hog.lost for hog in hogs] in ([1, 0], [0, 1]) and budget.used <= FOR_TAKERS
    while late.memory + MIB <= budget.share_of(late):
        assert late.get(MIB)
    assert not late.lost


def test_a_frame_larger_than_a_share_gets_room_while_its_process_holds_nothing(budget: Budget) -> None:
    hogs, late = [Process(budget) for _ in range(12)], Process(budget)
    while any([hog.get(MIB // 2) for hog in hogs]):
        pass
    for hog in hogs[4:]:
        hog.put()
        hog.put()
    for hog in hogs[:4]:
        while hog.get(MIB // 2):
            pass
    share = budget.share_of(late)
    beyond = sum(max(hog.memory - share, 0) for hog in hogs)
    assert share < 4 * MIB <= FOR_TAKERS - budget.used + beyond, "four processes hold enough beyond their share"
    assert late.get(4 * MIB) and budget.used <= FOR_TAKERS
    assert not any(hog.lost for hog in hogs[4:])


def test_a_frame_for_which_nobody_is_over_its_share_waits_in_peace_and_gets_its_room_after_a_time() -> None:
    """In an earlier version, such a frame woke its connection in each turn, in vain: the daemon was busy, and the frame
    never came.
    """
    budget = Budget(8 * MIB)
    hogs, late = [Process(budget) for _ in range(30)], Process(budget)
    for hog in hogs:
        assert hog.get(220_000)
    assert late.get(100), "the beginning of the frame"
    assert not late.has_room(2 * MIB) and not late.get(2 * MIB)
    waiting = Waiting(late, 2 * MIB)
    budget.tend(1)
    assert not late.get(2 * MIB), "from now on its time counts"
    hogs[0].put()
    assert budget.due_ns == 0
    budget.tend(2)
    assert not waiting.is_awake and budget.due_ns == 1 + STARVED_NS
    assert hogs[0].get(220_000)
    budget.tend(1 + STARVED_NS)
    assert waiting.is_awake and late.get(2 * MIB) and budget.used <= FOR_TAKERS // 4
    assert sum(hog.lost for hog in hogs) < 10 and not late.starved_ns


def test_several_frames_of_a_process_that_holds_their_beginnings_alone_get_their_room_after_a_time() -> None:
    """In an earlier version, a process with the beginnings of three frames was taken to hold more than next to nothing.

    So it was never starved: no frame came, and the daemon's next turn was overdue.
    """
    budget = Budget(8 * MIB)
    hogs, late = [Process(budget) for _ in range(30)], Process(budget)
    for hog in hogs:
        assert hog.get(220_000)
    budget.tend(1)
    waiting = []
    for _ in range(4):
        late.charge(BEGINNING - 9)
        late.pieces.append(BEGINNING - 9)
        assert not late.get(MIB)
        waiting.append(Waiting(late, MIB))
    now_ns = 1
    while waiting and now_ns < 30 * STARVED_NS:
        now_ns += STARVED_NS // 4
        budget.tend(now_ns)
        for each in [each for each in waiting if each.is_awake]:
            each.is_awake = False
            if late.get(MIB):
                late.put()  # the frame is applied
                waiting.remove(each)
            else:
                late.wait(each)
        assert budget.due_ns > now_ns or budget._has_given, "the next turn is not overdue"
    assert not waiting and not late.lost


def test_a_process_that_holds_more_meanwhile_is_not_starved_any_more() -> None:
    """In an earlier version, its time went on, and was over in each turn: every turn looked like a gap."""
    budget = Budget(8 * MIB)
    hogs, late = [Process(budget) for _ in range(30)], Process(budget)
    for hog in hogs:
        assert hog.get(220_000)
    budget.tend(1)
    assert not late.get(2 * MIB) and late.starved_ns
    waiting = [Waiting(late, 2 * MIB) for _ in range(3)]
    late.charge(NEXT_TO_NOTHING + 4 * BEGINNING)
    for turn in range(1, 6):
        now_ns = 2 * turn * STARVED_NS
        budget.tend(now_ns)
        for each in [each for each in waiting if each.is_awake]:
            each.is_awake = False
            assert not late.get(2 * MIB)
            late.wait(each)
        assert budget.due_ns > now_ns


def test_who_has_stopped_asking_is_not_starved() -> None:
    budget = Budget(8 * MIB)
    hogs, late = [Process(budget) for _ in range(32)], Process(budget)
    for hog in hogs:
        assert hog.get(220_000)
    budget.tend(1)
    assert not late.get(2 * MIB)
    budget.tend(1 + 3 * STARVED_NS)
    assert not late.get(2 * MIB) and not any(hog.lost for hog in hogs)


def test_frames_that_are_in_memory_already_are_charged_and_the_largest_process_gives_way(budget: Budget) -> None:
    hog, others = Process(budget), [Process(budget) for _ in range(20)]
    while hog.get(MIB):
        pass
    for other in others:
        other.charge(MIB // 2)
        other.pieces.append(MIB // 2)
        assert budget.used <= MOST
    assert hog.lost > 0 and not any(other.lost for other in others)


def test_a_process_is_short_when_it_is_over_its_share_and_most_is_in_use(budget: Budget) -> None:
    hog, light = Process(budget), Process(budget)
    light.get(MIB)
    assert not hog.is_short
    while hog.get(MIB):
        pass
    assert hog.is_short and not light.is_short


def test_nobody_below_its_share_loses_or_lacks_anything_whatever_the_others_do(
    budget: Budget, rng: random.Random
) -> None:
    """A dumb model: processes take, give and are charged at random. Each loss and each refusal must have a reason."""
    processes = [Process(budget) for _ in range(10)]
    for _ in range(4_000):
        each = rng.choice(processes)
        size = rng.choice((100, 10_000, MIB // 3, MIB, 4 * MIB))
        share, before = budget.share_of(each), [other.memory for other in processes]
        lost = [other.lost for other in processes]
        act = rng.random()
        if act < 0.6:
            was = each.memory
            if not each.get(size):
                assert was + size > share, "a process was refused below its share"
        elif act < 0.7 and size <= MIB:
            each.pieces.append(size)
            each.charge(size)
        elif each.pieces:
            each.put()
        for other, memory, lost_before in zip(processes, before, lost, strict=True):
            assert other.lost == lost_before or memory + size * (other is each) > share - 1, (
                "a process lost memory below its share"
            )
            assert other.memory == sum(other.pieces)
        assert budget.used <= MOST
        assert budget.taken == sum(other.memory for other in processes)


def test_waiting_frames_are_woken_as_far_as_there_is_room(budget: Budget) -> None:
    one, other = Process(budget), Process(budget)
    for _ in range(7):
        one.get(2 * MIB)
        other.get(2 * MIB)
    waiting = [Waiting(one, 4 * MIB), Waiting(other, 4 * MIB)]
    assert not any(each.is_awake for each in waiting)
    one.put()
    one.put()
    budget.tend(0)
    assert [each.is_awake for each in waiting] == [True, False], "there is room for one of them"
    assert not one.waiting


def test_memory_of_an_ended_process_is_freed_in_pieces_and_at_once_if_another_needs_it(budget: Budget) -> None:
    ended, late = Process(budget), Process(budget)
    chunks = filled(20 * MIB)
    size = chunks.memory
    assert ended.take(size)
    ended.give_later(chunks.take_all(), size)
    assert ended.memory == 0 and budget.used == size and budget.is_releasing
    budget.tend(0)
    assert size - RELEASED_PER_TURN - 100_000 < budget.used <= size - RELEASED_PER_TURN
    before = budget.used
    assert late.get(FOR_TAKERS - before + 3 * MIB)
    assert budget.used <= FOR_TAKERS
    for now_ns in range(20):
        budget.tend(now_ns)
    assert not budget.is_releasing and budget.used == late.memory


def filled(size: int) -> Chunks:
    chunks = Chunks()
    while chunks.memory < size:
        chunks.add(bytes(30_000))
    return chunks


def test_an_end_without_chunks_leaves_nothing_to_free(budget: Budget) -> None:
    nothing: deque[Chunk] = deque()
    Process(budget).give_later(nothing, 0)
    assert not budget.is_releasing and budget.used == 0


def test_memory_goes_back_to_the_system_once_a_second_after_much_was_freed() -> None:
    trims: list[int] = []
    budget = Budget(MOST, lambda: trims.append(1))
    one = Process(budget)
    for size in (TRIM_SIZE - 1, TRIM_SIZE):
        one.get(size)
        budget.tend(5 * TRIM_NS)
        assert not trims and budget.due_ns == NO_DEADLINE
        one.put()
        budget.tend(5 * TRIM_NS)
    assert len(trims) == 1
    one.get(TRIM_SIZE)
    one.put()
    assert budget.due_ns == 6 * TRIM_NS
    budget.tend(6 * TRIM_NS - 1)
    assert len(trims) == 1
    budget.tend(6 * TRIM_NS)
    assert len(trims) == 2 and budget.due_ns == NO_DEADLINE
