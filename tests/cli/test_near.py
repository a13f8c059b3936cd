"""near(): a plain matrix of edit distances finds the same names, and the work is bounded."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from timerd_shm.declare.limits import KEY_SIZE_MAX
from timerd_shm.read.near import COMPARED_BYTES, near, one_edit

NAMES = st.lists(st.sampled_from(b"ab1/"), max_size=9).map(bytes)


def edits(one: bytes, other: bytes) -> int:
    """The edits from one name to the other: changes, additions, removals, and swaps of adjacent bytes."""
    table = {(at, 0): at for at in range(len(one) + 1)} | {(0, at): at for at in range(len(other) + 1)}
    for i, j in itertools.product(range(1, len(one) + 1), range(1, len(other) + 1)):
        steps = [table[i - 1, j] + 1, table[i, j - 1] + 1, table[i - 1, j - 1] + (one[i - 1] != other[j - 1])]
        if i > 1 and j > 1 and one[i - 2 : i] == other[j - 2 : j][::-1]:
            steps.append(table[i - 2, j - 2] + 1)
        table[i, j] = min(steps)
    return table[len(one), len(other)]


@settings(deadline=None)
@given(NAMES, NAMES)
def test_a_name_is_near_by_one_edit_and_a_longer_name_by_two(name: bytes, other: bytes) -> None:
    most = 0 if len(name) < 3 else 1 if len(name) < 6 else 2
    if edits(name, other) <= most and name != other:
        assert near(name, [other]) == [other]
    elif len(name) >= 3:
        assert near(name, [other]) == []


@pytest.mark.long
def test_two_edits_are_found_wherever_they_swap_bytes() -> None:
    for name in (b"abcdef", b"abcdefg", b"abcdefghi"):
        for other in {other for one in one_edit(name, b"X") for other in one_edit(one, b"X")} - {name}:
            if edits(name, other) <= 2:  # else the second edit changes what the first one has swapped
                assert near(name, [other]) == [other], (name, other)


def test_the_nearest_name_comes_first_and_a_name_with_another_number_last() -> None:
    names = [b"write/8/r2", b"write/7/r2", b"write/7/R1", b"writes/7/R2", b"wire/7/R", b"inbox"]
    assert near(b"write/7/R2", names) == [b"write/7/r2", b"writes/7/R2", b"write/7/R1"]
    assert near(b"INBOX/7", [b"inbox/7", b"inbox/8"]) == [b"inbox/7"]
    assert near(b"p0", [b"P0", b"p1", b"k0"]) == [b"P0", b"p1"]
    assert near(b"inbox/7", [b"inbox/8"]) == [b"inbox/8"]
    assert near(b"inbox/7", [b"inbox/8"], numbers=False) == []
    assert near(b"k", [b"k"]) == [] == near(b"k", [])


@pytest.mark.long
def test_a_name_of_one_edit_is_found_behind_more_names_than_are_compared_in_full() -> None:
    far = [b"orders/%06d" % number for number in range(COMPARED_BYTES // 13 + 100)]
    assert near(b"orders/xyzuvw", [*far, b"orders/xyzuv"]) == [b"orders/xyzuv"]
    assert near(b"orders/xyzuvw", [*far, b"ORDERS/xyzuvw"]) == [b"ORDERS/xyzuvw"]


def test_the_longest_names_are_compared_too() -> None:
    long = b"\xff" * 255
    assert near(long, [long[:-1], long[:-2], b"a" * 255]) == [long[:-1], long[:-2]]


def test_a_text_that_is_too_long_for_a_name_has_no_near_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command line may have any text. All texts at one edit from 10,000 bytes would take 50 GB."""

    def one_edit(name: bytes) -> Iterator[bytes]:
        raise AssertionError(f"{len(name)} bytes")

    monkeypatch.setattr("timerd_shm.read.near.one_edit", one_edit)
    assert near(b"x" * 10_000, [b"x" * KEY_SIZE_MAX]) == []
