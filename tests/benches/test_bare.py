"""The core's lists in a bare loop, which bench/suites/rivals.py measures, behave like a simple model."""

from __future__ import annotations

import random
from array import array

import pytest

from bench.rivals.bare import Bare


def names(numbers: list[int]) -> bytes:
    return b"".join(b"key/%08x" % number for number in numbers)


def test_the_bare_wheel_behaves_like_a_dict(seed: int) -> None:
    choose = random.Random(seed)
    bare = Bare(400, 12, 0, bytearray(Bare.size(400)))
    deadline_of: dict[int, int] = {}  # of each pending operation
    handle_of: dict[int, int] = {}
    number = now_ms = 0
    for _ in range(400):
        fresh = list(range(number, number + choose.randrange(min(90, 400 - len(deadline_of)) + 1)))
        number += len(fresh)
        deadlines = [now_ms + choose.randrange(1, 3_000) for _ in fresh]
        deadline_of.update(zip(fresh, deadlines, strict=True))
        handle_of.update(zip(fresh, bare.insert(names(fresh), array("q", deadlines)), strict=True))
        some = choose.sample(sorted(deadline_of), len(deadline_of) // 8)
        assert bare.cancel(array("I", (handle_of[n] for n in some))) == len(some)
        for n in some:
            del deadline_of[n]
        some = choose.sample(range(number), min(number, 40))
        assert bare.complete(names(some)) == len(set(some) & set(deadline_of))
        for n in some:
            deadline_of.pop(n, None)
        some = choose.sample(sorted(deadline_of), len(deadline_of) // 4)
        deadlines = [now_ms + choose.randrange(1, 3_000) for _ in some]
        assert bare.reschedule(array("I", (handle_of[n] for n in some)), array("q", deadlines)) == len(some)
        deadline_of.update(zip(some, deadlines, strict=True))
        assert bare.pending == len(deadline_of)
        assert bare.next_ms == min(deadline_of.values(), default=None)
        now_ms += choose.randrange(400)
        due = [n for n, deadline in deadline_of.items() if deadline <= now_ms]
        assert sorted(bare.advance(now_ms)) == sorted(handle_of[n] for n in due)
        for n in due:
            del deadline_of[n]


def test_the_bare_wheel_refuses_values_that_it_cannot_hold() -> None:
    with pytest.raises(ValueError, match="names have 1 to 16 bytes"):
        Bare(1, 17, 0, bytearray(Bare.size(1)))
    with pytest.raises(ValueError, match=r"1 operations need .* bytes of memory, not 64"):
        Bare(1, 12, 0, bytearray(64))
    bare = Bare(1, 12, 0, bytearray(Bare.size(1)))
    for deadlines in ([1, 1], [0], [1 << 17]):
        with pytest.raises(ValueError, match=r"are pending|is not within"):
            bare.insert(names(list(range(len(deadlines)))), array("q", deadlines))
