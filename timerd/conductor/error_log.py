"""The errors of clients: counted in the arena's log of errors (`timerctl errors`), the first of a kind logged as well.

For example: a client that sends 10,000 malformed frames makes one line in the daemon's log, and one entry with the
count 10,000 in the arena.

What a client sends may stand in a message, so a client can make ever new messages. Each process has 16 of them. Then
one line says so, and its further errors have one entry together. So no process hides the errors of others.
"""

from __future__ import annotations

import logging

from timerd.clock import Clock
from timerd.core import Core
from timerd_shm.declare.errors import ErrorCode, TimerdError
from timerd_wire.refusals import Subject, refusal

MESSAGES_PER_SOURCE_MAX = 16
SOURCES_MAX = 64  # processes whose messages are remembered; then the one that came first is forgotten
RECOUNTED = "a client or group that ended held less than its counts said: they were set to what two sweeps found"
A_CLIENT = Subject(client="a client")

log = logging.getLogger("timerd")


class ErrorLog:
    """What was refused. A message holds no payload and no session."""

    def __init__(self, core: Core, clock: Clock) -> None:
        self._core = core
        self._clock = clock
        self._of_commands: set[str] = set()
        self._by_source: dict[int, set[str]] = {}  # by pid; 0: all that are not known

    def note(self, error: TimerdError, source: int) -> None:
        """Count an error of a frame; `source`: the process that has sent it, as the kernel says, 0 = not known."""
        message = str(error)
        seen = self._by_source.get(source)
        if seen is None:
            if len(self._by_source) == SOURCES_MAX:
                del self._by_source[next(iter(self._by_source))]
            seen = self._by_source[source] = set()
        if message not in seen and len(seen) >= MESSAGES_PER_SOURCE_MAX:
            who = f"process {source}" if source else "processes that the daemon cannot see"
            message = f"further errors of {who}: {MESSAGES_PER_SOURCE_MAX} different ones stand in the log"
        self._count(error, message, seen, 1)

    def _count(self, error: TimerdError, message: str, seen: set[str], count: int) -> None:
        self._core.log_error(error.code, message.encode(), self._clock.wall_ns(), count)
        if message not in seen:
            seen.add(message)
            log.warning("refused: %s: %s", type(error).__name__, message)

    def note_refusals(self, refusals: list[tuple[int, int, int]]) -> None:
        """Count the commands that the core has refused: (code, limit met, count) of each kind."""
        for code, value, count in refusals:
            if code == ErrorCode.ARENA_DAMAGED:  # of the sweep, which refuses nobody
                self._core.log_error(code, RECOUNTED.encode(), self._clock.wall_ns(), count)
                log.error("%s", RECOUNTED)
                continue
            # These messages have nothing of a client's. There are as many as codes and limits.
            error = refusal(code, value, A_CLIENT)
            self._count(error, str(error), self._of_commands, count)
