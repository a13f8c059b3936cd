"""Copies of the arena between two turns: made for clients that ask, and removed by the daemon itself.

There is one copy at a time, under a name of its own. It answers every client that had asked when it was made. A client
that asks again gets the same answer: its first answer was lost, or it asked again while the daemon was copying.

The copy is removed when all these clients have ended, or KEEP_NS after it was made, or at the daemon's end. A client
that has opened the copy keeps it. A copy that a killed daemon has left is removed at the next start. So no other
process needs the right to remove copies, and no copy is made for a client that has ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Protocol

from timerd.arena.arena import Arena
from timerd.arena.snapshot import write_snapshot
from timerd.clients.session import Session
from timerd.clients.sessions import Sessions
from timerd_shm.declare.errors import ResourceLimitError
from timerd_shm.host.paths import InstancePaths

from .clock import Clock
from .core import NEVER

WANTED_MAX = 8  # questions of one client; beyond that it asks again
REST = 9  # until the next copy, times as long as the last one took: copies take a tenth of the time at most
KEEP_NS = 10_000_000_000  # the time in which a client opens the copy


class Files(Protocol):
    """What writes and removes the copy."""

    def make(self) -> str:
        """Copy the arena; the path. Raises OSError, and leaves nothing then."""

    def remove(self) -> None:
        """Remove the copy that was made."""


class CopyFiles:
    """Copies in the runtime directory, readable as the arena is. Copies that an earlier daemon left are removed."""

    def __init__(self, arena: Arena, paths: InstancePaths, group_id: int | None) -> None:
        self._arena = arena
        self._paths = paths
        self._group_id = group_id
        self._number = 0
        self.remove()

    def make(self) -> str:
        """Copy the arena; the path, which no copy of this daemon had before."""
        self._number += 1
        path = self._paths.snapshot(self._number)
        write_snapshot(self._arena.memory, path, self._group_id)
        return str(path)

    def remove(self) -> None:
        """Remove every copy."""
        for path in self._paths.snapshots():
            with suppress(OSError):  # the directory has become read-only; the next copy has another name
                path.unlink()


class Snapshots:
    """The clients that ask for a copy, and the copy that there is."""

    def __init__(self, files: Files, sessions: Sessions, clock: Clock) -> None:
        self._files = files
        self._sessions = sessions
        self._clock = clock
        self._wanted: dict[Session, dict[int, None]] = {}  # by whom, and the numbers of its questions
        self._answer: str | ResourceLimitError | None = None  # the copy's path, or why there is none
        self._answered: dict[Session, dict[int, None]] = {}  # the clients that have the answer
        self._until_ns = NEVER  # the answer holds, and the copy stays
        self._rest_ns = 0  # no copy is made before this time

    def ask(self, session: Session, number: int) -> str | ResourceLimitError | None:
        """Take a question; the answer, if it was given before. None: `tend` gives it later."""
        if number in self._answered.get(session, ()):
            return self._answer
        numbers = self._wanted.setdefault(session, {})
        if len(numbers) < WANTED_MAX:
            numbers[number] = None
        return None

    def tend(self, now_ns: int) -> Iterator[tuple[Session, int, str | ResourceLimitError]]:
        """After a turn, when the arena is at rest: remove the copy, make the next one. Yields answers."""
        if self._answer is not None and (now_ns >= self._until_ns or not any(map(self._is_there, self._answered))):
            self._files.remove()
            self._answer, self._answered, self._until_ns = None, {}, NEVER
        if not self._wanted or self._answer is not None or now_ns < self._rest_ns:
            return
        wanted = {session: numbers for session, numbers in self._wanted.items() if self._is_there(session)}
        self._wanted = {}
        if not wanted:
            return
        answer: str | ResourceLimitError
        began_ns = self._clock.now_ns()
        try:
            answer = self._files.make()
        except OSError as failure:
            answer = ResourceLimitError(f"the snapshot cannot be written: {failure.strerror}")
        ended_ns = self._clock.now_ns()
        self._rest_ns = ended_ns + REST * (ended_ns - began_ns)
        self._until_ns = ended_ns + KEEP_NS if isinstance(answer, str) else self._rest_ns
        self._answer, self._answered = answer, wanted
        for session, numbers in wanted.items():
            for number in numbers:
                yield session, number, answer

    @property
    def due_ns(self) -> int:
        """When `tend` has something to do, if no client ends before."""
        if self._answer is not None:
            return self._until_ns
        return self._rest_ns if self._wanted else NEVER

    def _is_there(self, session: Session) -> bool:
        return self._sessions.at(session.slot) is session
