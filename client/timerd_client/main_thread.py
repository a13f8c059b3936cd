"""Whether the main thread has ended. After its end, atexit handlers run, and CPython (3.12 or newer) starts no thread.

`threading` knows of the end only if it was imported before the end. So the client imports this module first. This
module notes whether `threading` was imported already, and if not, whether the end has come.
"""

from __future__ import annotations

import sys

_IS_FIRST = "threading" not in sys.modules

import threading  # noqa: E402
from types import FrameType  # noqa: E402
from typing import Final  # noqa: E402


def main_has_ended() -> bool:
    """Whether the main thread has ended.

    With gevent, asking the main thread whether it is alive would switch greenlets. So this function reads the flag
    that CPython's own threads read.
    """
    is_shutting_down = getattr(threading, "_SHUTTING_DOWN", None)
    has_ended = not threading.main_thread().is_alive() if is_shutting_down is None else bool(is_shutting_down)
    return has_ended or _IS_LATE


def _is_late() -> bool:
    """Whether a handler of atexit has imported `threading`, by its first use of timerd.

    Then `threading` reports the main thread as alive. But the outermost frame of that thread is no longer a module.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_back is not None:
        frame = frame.f_back
    return frame is not None and frame.f_code.co_name != "<module>" and frame.f_globals.get("__name__") != "runpy"


_IS_LATE: Final = _IS_FIRST and _is_late()
