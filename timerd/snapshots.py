"""Copies of the arena as it was between two turns: made for clients that ask, and removed by the daemon itself.

There is one copy at a time, under a name of its own. The copy is the answer for every client that had asked when it was
begun. If such a client asks again, because the answer was lost or the copy takes long, it gets the same answer.

A copy begins at the end of a turn, and shows the arena of that moment. A thread makes it, and turns go on meanwhile
(arena/snapshot.py). To begin a copy, to look at it and to end it takes constant time. If turns change more of the
arena than the copy's log has room for, or if the copy takes longer than COPY_NS_MAX, it is given up, and the clients
get an error: no turn ever waits for a copy.

The copy is removed when all these clients have ended, or KEEP_NS after it was made, or at the daemon's end. If a client
waits for the next copy, this copy is removed WAITED_FOR_NS after it was made. A client that has opened the copy keeps
it. A copy that a killed daemon has left is removed at the next start. So no other process needs the right to remove
copies. No copy is begun for clients that have ended.

The next copy is for all clients that wait by then. So a client that asks again and again delays another client by one
copy at most. The next copy begins after a rest (REST), and when the memory of the last copy is free: to free a gigabyte
takes 0.1 s.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import suppress
from typing import Protocol

from timerd.arena.arena import Arena
from timerd.arena.copier import CopyOverrunError
from timerd.arena.snapshot import ArenaCopy
from timerd.clients.session import Session
from timerd.clients.sessions import Sessions
from timerd_shm.declare.errors import ResourceLimitError
from timerd_shm.host.paths import InstancePaths

from .clock import Clock
from .core import NEVER, Core

WANTED_MAX = 8  # queries of one client that wait; further ones are ignored, and the client asks again
REST = 9  # the pause before the next copy, in CPU times of the copy: copies take a tenth of a processor at most
KEEP_NS = 10_000_000_000  # how long a copy stays, so that its clients can open it
WAITED_FOR_NS = 1_000_000_000  # the same, if a client waits for the next copy
LOOK_NS = 5_000_000  # from one look at the thread that copies, or frees memory, to the next
COPY_NS_MAX = 60_000_000_000  # a copy that takes longer is given up: the disk hangs, or the thread gets no processor


class CopyGivenUpError(Exception):
    """There will be no copy; the text has the reason."""


class Files(Protocol):
    """The files of copies: begins a copy, shows whether it is whole, and removes it."""

    def begin(self) -> None:
        """Begin a copy of the arena as it is now. After an OSError nothing is left."""

    def made(self) -> str | None:
        """The path of the copy that was begun, once it is whole; None before. Raises CopyGivenUpError."""

    @property
    def cpu_ns(self) -> int | None:
        """The CPU time of the copy that was begun, once it has ended; None before."""

    def remove(self) -> None:
        """Remove the copy that was begun, whole or not."""

    @property
    def is_free(self) -> bool:
        """Whether the memory of all copies that were removed is free again. No copy can begin before."""


class CopyFiles:
    """Copies in the runtime directory, readable as the arena is. Copies that an earlier daemon left are removed."""

    def __init__(self, core: Core, arena: Arena, paths: InstancePaths, group_id: int | None) -> None:
        self._core = core
        self._arena = arena
        self._paths = paths
        self._group_id = group_id
        self._number = 0
        self._copy: ArenaCopy | None = None  # the copy that is being made, or is there
        self._last: ArenaCopy | None = None  # the copy that was removed; its memory may not be free yet
        self._remove_left()

    def begin(self) -> None:
        """Begin a copy, under a name that no copy of this daemon had before."""
        if not self.is_free:
            raise OSError(errno.EBUSY, "the file of the copy before it cannot be removed: its disk does not answer")
        self._number += 1
        self._copy = ArenaCopy(self._core, self._arena.memory, self._paths.snapshot(self._number), self._group_id)
        self._copy.start()

    def made(self) -> str | None:
        """The copy's path, once its thread has copied all."""
        copy = self._copy
        assert copy is not None, "no copy was begun"
        if not copy.is_over:
            return None
        copy.end()
        if isinstance(copy.failure, CopyOverrunError):
            raise CopyGivenUpError(f"{copy.failure}: ask again when the daemon has less to do")
        if copy.failure is not None:
            raise CopyGivenUpError(getattr(copy.failure, "strerror", None) or str(copy.failure))
        return str(copy.path)

    @property
    def cpu_ns(self) -> int | None:
        """The CPU time of the copy's thread until it had copied all."""
        return self._copy.cpu_ns if self._copy is not None and self._copy.is_over else None

    def remove(self) -> None:
        """Remove the copy, and end it if it is being made. Its thread frees the memory."""
        if self._copy is not None:
            self._copy.remove()
            self._copy, self._last = None, self._copy

    @property
    def is_free(self) -> bool:
        """Whether the thread of the copy that was removed has freed its memory: 0.1 s later for a gigabyte."""
        return self._last is None or self._last.is_gone

    def close(self) -> None:
        """Remove the copy, and wait until its thread has let go of the arena."""
        self.remove()
        if self._last is not None:
            self._last.wait()
        self._remove_left()

    def _remove_left(self) -> None:
        for path in self._paths.snapshots():
            with suppress(OSError):  # the directory has become read-only
                path.unlink()


class Snapshots:
    """The clients that ask for a copy, and the present copy."""

    def __init__(self, files: Files, sessions: Sessions, clock: Clock) -> None:
        self._files = files
        self._sessions = sessions
        self._clock = clock
        self._wanted: dict[Session, dict[int, None]] = {}  # by client: the numbers of its queries
        self._asked: dict[Session, dict[int, None]] = {}  # the clients whose copy is being made
        self._began_ns = NEVER  # when the copy that is being made was begun
        self._look_ns = NEVER  # when to look at that copy
        self._answer: str | ResourceLimitError | None = None  # the copy's path, or why there is none
        self._answered: dict[Session, dict[int, None]] = {}  # the clients that have the answer
        self._answered_ns = NEVER  # when the answer was given
        self._rest_ns = 0  # no copy is made before this time
        self._removed_ns = NEVER  # when the last copy was removed; its memory may not be free yet

    @property
    def is_copying(self) -> bool:
        """Whether a copy is being made: each change of the arena costs more meanwhile."""
        return self._began_ns != NEVER

    def ask(self, session: Session, number: int) -> str | ResourceLimitError | None:
        """Take a query; returns its answer, if it was given before. None: `tend` gives it later."""
        if number in self._answered.get(session, ()):
            return self._answer
        if number in self._asked.get(session, ()):
            return None
        numbers = self._wanted.setdefault(session, {})
        if len(numbers) < WANTED_MAX:
            numbers[number] = None
        return None

    def tend(self, now_ns: int) -> Iterator[tuple[Session, int, str | ResourceLimitError]]:
        """After a turn, when the arena is at rest: look at the copy that is being made, remove it, begin the next one.

        Yields answers.
        """
        if self.is_copying:
            yield from self._look(now_ns)
        if self._answer is not None and (now_ns >= self._until_ns or not self._any_there(self._answered)):
            self._remove()
            self._answer, self._answered = None, {}
        if self._wanted and not self.is_copying and self._answer is None and now_ns >= self._rest_ns:
            if not self._files.is_free and now_ns < self._removed_ns + COPY_NS_MAX:
                self._rest_ns = now_ns + LOOK_NS
                return
            yield from self._begin()
            if self.is_copying:
                yield from self._look(now_ns)  # a small copy may be whole

    @property
    def due_ns(self) -> int:
        """When `tend` has something to do, if no client ends before."""
        if self.is_copying:
            return self._look_ns
        if self._answer is not None:
            return self._until_ns
        return self._rest_ns if self._wanted else NEVER

    @property
    def _until_ns(self) -> int:
        """Until when the copy stays, and its answer is valid. An error is valid until a copy may be made again."""
        if not isinstance(self._answer, str):
            return self._rest_ns
        return self._answered_ns + (WAITED_FOR_NS if self._any_there(self._wanted) else KEEP_NS)

    def _begin(self) -> Iterator[tuple[Session, int, str | ResourceLimitError]]:
        self._asked = {session: numbers for session, numbers in self._wanted.items() if self._is_there(session)}
        self._wanted = {}
        if not self._asked:
            return
        self._began_ns = self._clock.now_ns()
        self._look_ns = self._began_ns + LOOK_NS
        try:
            self._files.begin()
        except OSError as failure:
            yield from self._end(ResourceLimitError(f"the snapshot cannot be written: {failure.strerror}"))

    def _look(self, now_ns: int) -> Iterator[tuple[Session, int, str | ResourceLimitError]]:
        """Look whether the copy is whole, and give it up if it takes too long, or if nobody waits for it any more."""
        self._look_ns = now_ns + LOOK_NS
        answer: str | ResourceLimitError | None
        try:
            answer = self._files.made()
        except CopyGivenUpError as failure:
            answer = ResourceLimitError(f"the snapshot cannot be written: {failure}")
        if answer is None and now_ns - self._began_ns >= COPY_NS_MAX:
            answer = ResourceLimitError(f"the snapshot cannot be written within {COPY_NS_MAX // 1_000_000_000} s")
        if answer is not None:
            yield from self._end(answer)
        elif not self._any_there(self._asked):
            self._rest()
            self._remove()
            self._asked = {}

    def _end(self, answer: str | ResourceLimitError) -> Iterator[tuple[Session, int, str | ResourceLimitError]]:
        """Send the answer to all clients that asked for this copy. A copy that was given up leaves nothing."""
        self._answered_ns = self._rest()
        if not isinstance(answer, str):
            self._remove()
        self._answer, self._answered, self._asked = answer, self._asked, {}
        for session, numbers in self._answered.items():
            if self._is_there(session):  # a client may have ended while the copy was made
                for number in numbers:
                    yield session, number, answer

    def _rest(self) -> int:
        """Note that no copy is being made any more, and how long to rest. Returns the time.

        The rest is for the other users of the processor. So it is short after a copy that got little of the processor.
        While a copy is made, a step of a turn may touch far fewer records (RECORDS_WHILE_COPYING), so the daemon gets
        less done. So the rest is at least as long as the copy took.
        """
        ended_ns = self._clock.now_ns()
        took_ns = ended_ns - self._began_ns
        cpu_ns = self._files.cpu_ns
        if cpu_ns is None:  # the copy was ended: at worst it has had the processor all the time
            cpu_ns = min(took_ns, COPY_NS_MAX // REST)
        self._rest_ns = ended_ns + max(REST * max(cpu_ns, LOOK_NS), took_ns)
        self._began_ns = self._look_ns = NEVER
        return ended_ns

    def _remove(self) -> None:
        if self._files.is_free:  # else there is no copy, and the memory of the last one is still being freed
            self._removed_ns = self._clock.now_ns()
        self._files.remove()

    def _any_there(self, asked: dict[Session, dict[int, None]]) -> bool:
        return any(map(self._is_there, asked))

    def _is_there(self, session: Session) -> bool:
        return self._sessions.at(session.slot) is session
