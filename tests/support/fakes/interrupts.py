"""KeyboardInterrupt at a chosen place of the code, as if a signal handler raised it there."""

from __future__ import annotations

import dis
import sys
from types import FrameType
from typing import Any


class Interrupt:
    """Raises KeyboardInterrupt once in the traced files, where a signal handler may run.

    That is at the start of a function, after a call, and in a loop: CPython looks for signals after the instructions of
    `LOOKS`, and nowhere else.
    """

    LOOKS = ("CALL", "RESUME", "JUMP_BACKWARD")

    def __init__(self, at: int, traced: tuple[str, ...]) -> None:
        """Raises at the `at`-th such place, counted in files whose paths contain one of the strings in `traced`."""
        self.left = at
        self._traced = traced
        self.where = ""
        self._before: dict[FrameType, str] = {}

    def __enter__(self) -> Interrupt:
        sys.settrace(self._begin)
        return self

    def __exit__(self, *error: object) -> None:
        sys.settrace(None)

    def _begin(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not any(part in frame.f_code.co_filename for part in self._traced):
            return None
        frame.f_trace_opcodes = True
        return self._step

    def _step(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "opcode":
            before = self._before.get(frame, "")
            self._before[frame] = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            if before.startswith(self.LOOKS):
                self.left -= 1
                if self.left == 0:
                    self.where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                    raise KeyboardInterrupt
        return self._step
