"""Where a thread stands: the code of a user that keeps the client's own thread from its work."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Final

OURS: Final = ("timerd_client", "timerd_wire", "timerd_shm")
OWNER_LOCK: Final = "timerd_client.threaded.delayed"  # takes the lock of a delayed operation, which is the user's


def place_of(thread: int) -> str:
    """Where this thread is in a callback: the innermost frame outside of timerd, or the lock of a delayed operation.

    Empty if the thread is in no callback.

    The outermost frames, up to the first one of this package, are those of the thread itself.
    """
    frame: FrameType | None = sys._current_frames().get(thread)
    place, owner_lock = "", ""
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name.partition(".")[0] in OURS:
            if name == OWNER_LOCK and not place:
                owner_lock = "at the lock of a delayed operation"
            if name.endswith(".io_thread"):
                return place or owner_lock
        elif not place:
            place = f"in {frame.f_code.co_name}() at {frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
