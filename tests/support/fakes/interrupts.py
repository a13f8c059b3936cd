"""KeyboardInterrupt at a chosen place of the code, as if a signal handler raised it there."""

from __future__ import annotations

import dis
import sys
import threading
from types import CodeType, FrameType
from typing import Any

TOOL = 4  # a number for sys.monitoring that no known tool uses


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
        if sys.version_info >= (3, 12):
            # There a trace function no longer gets each instruction of a frame that has begun.
            self._thread = threading.get_ident()
            sys.monitoring.use_tool_id(TOOL, "interrupts")
            sys.monitoring.restart_events()
            sys.monitoring.register_callback(TOOL, sys.monitoring.events.INSTRUCTION, self._instruction)
            sys.monitoring.set_events(TOOL, sys.monitoring.events.INSTRUCTION)
        else:
            sys.settrace(self._begin)
        return self

    def __exit__(self, *error: object) -> None:
        if sys.version_info >= (3, 12):
            sys.monitoring.set_events(TOOL, 0)
            sys.monitoring.register_callback(TOOL, sys.monitoring.events.INSTRUCTION, None)
            sys.monitoring.free_tool_id(TOOL)
        else:
            sys.settrace(None)

    def _instruction(self, code: CodeType, offset: int) -> Any:
        if sys.version_info >= (3, 12):
            if not self._is_traced(code):
                return sys.monitoring.DISABLE
            if threading.get_ident() == self._thread:
                self._look(sys._getframe(1), offset)
        return None

    def _begin(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not self._is_traced(frame.f_code):
            return None
        frame.f_trace_opcodes = True
        return self._step

    def _step(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "opcode":
            self._look(frame, frame.f_lasti)
        return self._step

    def _is_traced(self, code: CodeType) -> bool:
        return any(part in code.co_filename for part in self._traced)

    def _look(self, frame: FrameType, offset: int) -> None:
        """An instruction begins. Raises KeyboardInterrupt if its place is the chosen one."""
        before = self._before.get(frame, "")
        self._before[frame] = dis.opname[frame.f_code.co_code[offset]]
        if before.startswith(self.LOOKS):
            self.left -= 1
            if self.left == 0:
                self.where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                raise KeyboardInterrupt
