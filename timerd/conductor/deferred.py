"""Deferred frames: they wait for a later turn, behind a long event, or because they were applied in part.

Clients take turns, a frame each, so that one with many frames does not hold up the others. The frames of one client
stay in order. When too many frames are deferred, the command socket is not read until they have drained.
"""

from __future__ import annotations

from collections import deque

from timerd.clients.session import Session

DEFERRED_FRAMES_MAX = 256  # beyond it the socket is not read
DEFERRED_BYTES_MAX = 16 << 20


class Deferred:
    """The deferred frames, a queue for each client. `frames` is how many there are."""

    def __init__(self) -> None:
        self._queues: dict[Session, deque[bytes]] = {}  # the client whose turn it is comes first
        self.frames = 0
        self._bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether so much is deferred that the socket is not read."""
        return self.frames >= DEFERRED_FRAMES_MAX or self._bytes >= DEFERRED_BYTES_MAX

    def slots(self) -> set[int]:
        """Slots of the clients that have deferred frames."""
        return {session.slot for session in self._queues}

    def add(self, session: Session, frame: bytes) -> None:
        """Defer a frame of this client, behind its others."""
        self._queues.setdefault(session, deque()).append(frame)
        self.frames += 1
        self._bytes += len(frame)

    def first(self) -> tuple[Session, bytes]:
        """The client whose turn it is, and its oldest frame."""
        session, queue = next(iter(self._queues.items()))
        return session, queue[0]

    def pass_on(self, *, done: bool) -> None:
        """Let the next client come first. `done`: the first frame is dealt with, so it leaves its queue."""
        session, queue = next(iter(self._queues.items()))
        del self._queues[session]
        if done:
            self.frames -= 1
            self._bytes -= len(queue.popleft())
        if queue:
            self._queues[session] = queue
