"""The errors of clients: counted in the arena's log of errors (`timerctl errors`), the first of a kind logged as well.

For example: a client that sends 10,000 malformed frames makes one line in the daemon's log, and one entry with the
count 10,000 in the arena.
"""

from __future__ import annotations

import logging

from timerd.clock import Clock
from timerd.core import Core
from timerd_shm.declare.errors import ErrorCode, TimerdError
from timerd_wire.refusals import Subject, refusal

LOGGED_ERRORS_MAX = 64  # distinct errors in the daemon's own log
RECOUNTED = "a client or group that ended held less than its counts said: they were set to what two sweeps found"
A_CLIENT = Subject(client="a client")

log = logging.getLogger("timerd")


class ErrorLog:
    """What was refused. A message holds no payload and no session."""

    def __init__(self, core: Core, clock: Clock) -> None:
        self._core = core
        self._clock = clock
        self._logged: set[tuple[int, str]] = set()

    def note(self, error: TimerdError, count: int = 1) -> None:
        """Count an error that was met `count` times."""
        message = str(error)
        self._core.log_error(error.code, message.encode(), self._clock.wall_ns(), count)
        if (error.code, message) not in self._logged and len(self._logged) < LOGGED_ERRORS_MAX:
            self._logged.add((error.code, message))
            log.warning("refused: %s: %s", type(error).__name__, message)

    def note_refusals(self, refusals: list[tuple[int, int, int]]) -> None:
        """Count the commands that the core has refused: (code, limit met, count) of each kind."""
        for code, value, count in refusals:
            if code == ErrorCode.ARENA_DAMAGED:  # of the sweep, which refuses nobody
                self._core.log_error(code, RECOUNTED.encode(), self._clock.wall_ns(), count)
                log.error("%s", RECOUNTED)
                continue
            self.note(refusal(code, value, A_CLIENT), count)
