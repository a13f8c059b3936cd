"""Names that are near a name: if the name is misspelt, one of them may have been meant.

near(b"write/7/R2", watched)      # [b"write/7/r2"]

The work is bounded. A name that differs by one edit, or by case alone, is found among any number of names: each of them
costs a lookup in a set. For names that differ by two edits, at most COMPARED_BYTES of names are compared in full.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from timerd_shm.declare.limits import KEY_SIZE_MAX

NEAR_MAX = 3
COMPARED_BYTES = 400_000
# A name of fewer bytes than these has no near names at one edit (but for an edit of a number), or at two. Almost all
# short names would be near each other: s2 and r2 differ by one edit, inbox and index by two.
ONE_EDIT_FROM = 3
TWO_EDITS_FROM = 6
DIGITS = re.compile(rb"[0-9]+")


def near(name: bytes, names: Iterable[bytes], *, numbers: bool = True) -> list[bytes]:
    """Up to NEAR_MAX of `names` that are near `name`, the nearest first.

    An edit changes, adds or removes a byte, or swaps two adjacent bytes. A name that differs only in its numbers
    usually names another thing: it comes last, or without `numbers` is left out.
    """
    if len(name) > KEY_SIZE_MAX + 2:  # two edits do not make a name of it, and there are too many texts at one edit
        return []
    folded = name.lower()
    numberless = DIGITS.sub(b"0", folded)
    by_one = frozenset(one_edit(name))
    found: dict[bytes, int] = {}
    compared: set[bytes] = set()
    left = COMPARED_BYTES if len(name) >= TWO_EDITS_FROM else 0
    third = len(name) // 3
    head, middle, tail = name[:third], name[third : -third or None], name[-third:]
    # Two edits leave one of three parts as it is, unless one of them swaps bytes of two parts. Then the name begins or
    # ends as it would after this swap alone.
    heads, tails = (head, _swapped(name, third)[: -third - 1]), (tail, _swapped(name, len(name) - third)[third + 1 :])
    for other in names:
        if other in found or other == name:
            continue
        if other.lower() == folded:
            found[other] = 0
        elif other in by_one:
            found[other] = 1
        elif (
            left > 0
            and abs(len(other) - len(name)) <= 2
            and (other.startswith(heads) or other.endswith(tails) or middle in other)
            and other not in compared
        ):
            compared.add(other)
            left -= len(other)
            if _within_two(name, other):
                found[other] = 2
    numbers_alone = {other for other in found if found[other] and DIGITS.sub(b"0", other.lower()) == numberless}
    if len(name) < ONE_EDIT_FROM:
        found = {other: edits for other, edits in found.items() if edits == 0 or other in numbers_alone}
    if not numbers:
        found = {other: edits for other, edits in found.items() if other not in numbers_alone}
    return sorted(found, key=lambda other: (other in numbers_alone, found[other], other))[:NEAR_MAX]


def one_edit(name: bytes, alphabet: Iterable[int] = range(256)) -> Iterator[bytes]:
    """All names that differ by one edit, with letters of this alphabet."""
    letters = [bytes((letter,)) for letter in alphabet]
    for at in range(len(name) + 1):
        before, rest = name[:at], name[at:]
        yield from (before + letter + rest for letter in letters)
        if rest:
            yield before + rest[1:]
            yield from (before + letter + rest[1:] for letter in letters)
        if len(rest) > 1:
            yield _swapped(name, at + 1)


def _swapped(name: bytes, at: int) -> bytes:
    """The name with its bytes before and after this place swapped."""
    return name[: at - 1] + name[at : at + 1] + name[at - 1 : at] + name[at + 1 :]


def _within_two(one: bytes, other: bytes) -> bool:
    """Whether two edits at most lead from one name to the other.

    Computes the matrix of edit distances row by row, but only near its diagonal.
    """
    far = 3
    last: dict[int, int] = {}
    row = {at: at for at in range(3)}
    for number, letter in enumerate(one, start=1):
        before, last, row = last, row, {}
        for at in range(max(number - 2, 0), min(number + 2, len(other)) + 1):
            if at == 0:
                row[at] = number
                continue
            same = letter == other[at - 1]
            steps = min(last.get(at - 1, far) + (not same), last.get(at, far) + 1, row.get(at - 1, far) + 1)
            if number > 1 and at > 1 and letter == other[at - 2] and one[number - 2] == other[at - 1]:
                steps = min(steps, before.get(at - 2, far) + 1)
            row[at] = steps
        if min(row.values(), default=far) >= far:
            return False
    return row.get(len(other), far) < far
