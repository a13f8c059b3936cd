"""A copy of an arena in memory that is made step by step, and compared with the arena as it was at the start."""

from __future__ import annotations

import os
from random import Random
from typing import Any

from timerd.arena.copier import Copier

LINE = 64


class SteppedCopy:
    """Copies the arena of a core. A test calls `step` where it likes; `finish` compares each byte."""

    def __init__(self, core: Any, memory: bytearray, images_max: int = 1 << 20) -> None:
        self.before = bytes(memory)
        self._core = core
        self._file = os.memfd_create("copy")
        os.ftruncate(self._file, len(memory))
        self._copier = Copier(memory, self._file, images_max)
        core.begin_copy(self._copier)

    def step(self, size: int) -> bool:
        """Copy `size` bytes more; True while something is left. Raises CopyOverrunError."""
        return self._copier.step(size)

    def finish(self, step: int = 1 << 18) -> None:
        """Copy the rest, and assert that the copy shows the arena as it was when the copy was begun."""
        while self.step(step):
            pass
        self.compare()
        self.close()

    def compare(self) -> None:
        """Assert that the complete copy shows the arena as it was when the copy was begun."""
        made = os.pread(self._file, len(self.before), 0)
        if made != self.before:
            wrong = [at for at in range(0, len(made), LINE) if made[at : at + LINE] != self.before[at : at + LINE]]
            raise AssertionError(f"{len(wrong)} lines of the copy have changed, the first at {wrong[:5]}")

    def close(self) -> None:
        """End the copy, whole or not. A second call changes nothing."""
        self._core.end_copy()
        self._copier.release()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def random_step(rng: Random, size: int) -> int:
    """How much is copied in one step: a line, a few, or a part of the whole."""
    return rng.choice((LINE, 16 * LINE, max(LINE, size // 100), max(LINE, size // 5)))
