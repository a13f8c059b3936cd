"""The errors of clients: counted in the arena's log of errors (`timerctl errors`), and logged, each kind once.

For example: a client that sends 10,000 malformed frames makes one line in the daemon's log, and one entry with the
count 10,000 in the arena. The line names the client. If a quota was met, the line names the client or group that has
used up its quota:

    refused: QuotaExceededError: client 'billing' (slot 3, process 1234) holds 500 operations, ...

A message may quote a frame, so a client can make ever new messages. Each process gets 16 different messages. Then one
line reports that there are more, and all further errors of the process have one entry. So no process hides the errors
of others. New processes may keep coming, too: in each minute 8 new processes have messages of their own, and all other
new ones share 16.
"""

from __future__ import annotations

import logging
from collections import deque

from timerd.clients.session import client_name
from timerd.clock import Clock
from timerd.core import Core
from timerd_shm.declare.errors import ErrorCode, TimerdError
from timerd_wire.refusals import NO_SUBJECT, Subject, refusal

MESSAGES_PER_SOURCE_MAX = 16
NEW_SOURCES_MAX = 8  # processes that begin to have errors, within NEW_SOURCES_NS
NEW_SOURCES_NS = 60_000_000_000
COME_AND_GO = -1  # the source that all other new processes of that time share
SOURCES_MAX = 64  # processes whose messages are remembered; beyond it the oldest is forgotten
RECOUNTED = "the counts of a client or group that ended were too high: they were set to what two sweeps found"
MANY_CLIENTS = NO_SUBJECT._replace(holder="one of many clients at once")
KINDS = ("client", "group")
WHO = {0: "processes that the daemon cannot see", COME_AND_GO: "processes that come and go"}
Holder = tuple[int, bytes, bool, int, int]  # slot, name, whether it is a group's, pid, bytes held: Core.take_refusals()

log = logging.getLogger("timerd")


def group_name(name: bytes, pid: int) -> str:
    """A group as a message names it. `pid`: the process that first named it; 0 = not known."""
    return f"group {name.decode(errors='replace')!r} (made by {f'process {pid}' if pid else 'a process not seen'})"


class ErrorLog:
    """The log of refusals. A message holds no payload and no session."""

    def __init__(self, core: Core, clock: Clock) -> None:
        self._core = core
        self._clock = clock
        self._of_commands: set[str] = set()
        self._by_source: dict[int, set[str]] = {}  # by pid; 0: all unknown processes
        self._new_ns: deque[int] = deque(maxlen=NEW_SOURCES_MAX)  # when the newest sources came
        self._held: dict[
            tuple[int, int, int, bytes, bool, int], str
        ] = {}  # messages about quotas, as they were at the first refusal

    def note(self, error: TimerdError, source: int, client: str = "") -> None:
        """Count an error of a frame; `source`: the process that has sent it, as the kernel says, 0 = not known.

        `client`: the client of the frame, as Sessions.named() names it, if it has a session.
        """
        self._note(error, f"{client}: {error}" if client else str(error), source, 1)

    def _note(self, error: TimerdError, message: str, source: int, count: int) -> None:
        source = self._source_of(source)
        seen = self._by_source[source]
        if message not in seen and len(seen) >= MESSAGES_PER_SOURCE_MAX:
            who = WHO.get(source, f"process {source}")
            message = f"further errors of {who}: {MESSAGES_PER_SOURCE_MAX} different ones stand in the log"
        self._count(error, message, seen, count)

    def _source_of(self, source: int) -> int:
        """The source of a process's messages: the process itself, or COME_AND_GO, which other new processes share."""
        if source in self._by_source:
            return source
        now_ns = self._clock.now_ns()
        if source and len(self._new_ns) == NEW_SOURCES_MAX and now_ns < self._new_ns[0] + NEW_SOURCES_NS:
            source = COME_AND_GO
        elif source:
            self._new_ns.append(now_ns)
        if source not in self._by_source:
            if len(self._by_source) == SOURCES_MAX:
                del self._by_source[next(iter(self._by_source))]
            self._by_source[source] = set()
        return source

    def _count(self, error: TimerdError, message: str, seen: set[str], count: int) -> None:
        self._core.log_error(error.code, message.encode(), self._clock.wall_ns(), count)
        if message not in seen:
            seen.add(message)
            log.warning("refused: %s: %s", type(error).__name__, message)

    def note_refusals(self, refusals: list[tuple[int, int, int, Holder | None]]) -> None:
        """Count the commands that the core has refused: for each kind (code, limit, count, holder of the quota)."""
        for code, value, count, holder in refusals:
            if code == ErrorCode.ARENA_DAMAGED:  # from the sweep; nothing was refused
                self._core.log_error(code, RECOUNTED.encode(), self._clock.wall_ns(), count)
                log.error("%s", RECOUNTED)
            elif holder is None:
                # These messages quote no client. There is one for each code and limit.
                error = refusal(code, value, MANY_CLIENTS)
                self._count(error, str(error), self._of_commands, count)
            else:
                self._note_quota(code, value, count, holder)

    def _note_quota(self, code: int, value: int, count: int, holder: Holder) -> None:
        """Count refusals by the quota of one client, or group. The message shows what it held at the first refusal."""
        slot, name, is_group, pid, bytes_held = holder
        who = group_name(name, pid) if is_group else client_name(slot, name, pid)
        error = refusal(code, value, Subject(holder=who, kind=KINDS[is_group], bytes_held=bytes_held))
        key = code, value, slot, name, is_group, pid
        message = self._held.get(key)
        if message is None:
            if len(self._held) == SOURCES_MAX * MESSAGES_PER_SOURCE_MAX:
                del self._held[next(iter(self._held))]
            message = self._held[key] = str(error)
        self._note(error, message, pid, count)
