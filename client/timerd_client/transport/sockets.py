"""How a link reaches its daemon: sockets, the lifeline (lifeline.py), and the arena that it maps.

A link gets an object with the methods of `Sockets`: from zmq_sockets.py or unix_sockets.py. The simulation gives it
sockets of a simulated network.
"""

from __future__ import annotations

from typing import Final, Protocol

from timerd_shm.read.reader import ArenaReader

NO_OUTLET: Final = b""  # in place of a session
FRAMES_MAX: Final = 256  # frames that are taken in one go, from a daemon that may send without end


class Held(Protocol):
    """The methods of a `Lifeline`."""

    def fileno(self) -> int: ...
    def is_held(self, session: bytes) -> bool: ...
    def hold(self, session: bytes, now_ns: int) -> bool: ...
    def has_ended(self, now_ns: int) -> bool: ...
    def let_go(self) -> None: ...


class Sockets(Protocol):
    """The connections for commands and for outcomes, the lifeline, and the path to the arena. Nothing here blocks.

    With ZeroMQ, commands go over a DEALER, which also gets answers, and outcomes come over an XSUB. With packets,
    everything goes over one connection, and counts as published. The holder of the seat (the link's own thread, or a
    caller that waits) calls receive(published=True). The other methods that use a connection are called with the link's
    lock held: tend, lost, send, has_answer, subscribe, receive(published=False), has_room.
    """

    lifeline: Held
    frame_size_max: int
    """The largest frame of commands, in bytes. A larger frame is sent in parts."""
    wake_ns: int
    """The CPU time of a frame besides sending it: wake-ups on both sides, and cold caches."""
    due_ns: int
    """When to call tend(); NEVER: nothing is due."""

    def tend(self, now_ns: int) -> bool:
        """Connect again, if this is due. Returns whether subscribe() has to show the session again."""

    def lost(self, now_ns: int) -> bool:
        """The daemon has ended, or is lost: let no connection lead to another daemon unless tend() has looked at it.

        Returns whether the connection for outcomes is still to be closed, by subscribe(NO_OUTLET).
        """

    def trouble(self) -> str:
        """Why there is no connection, for messages. Empty if there is a connection, or the reason is not known."""

    def send(self, frame: bytes) -> bool:
        """Send a frame to the daemon; False if the socket is full."""

    def has_answer(self) -> bool:
        """Whether an answer has come. After a send, the descriptors may not show this."""

    def subscribe(self, session: bytes) -> None:
        """Get outcomes from now on: show the session to the daemon. NO_OUTLET: close the connection for outcomes."""

    def receive(self, *, published: bool) -> bytes | None:
        """The next published frame, or the next answer, if there is one."""

    def has_room(self) -> bool:
        """Whether a frame that could not be sent may be tried again."""

    def filenos(self) -> list[int]:
        """Descriptors that become readable when there is something new to receive, or new room.

        A descriptor of ZeroMQ becomes readable once, and a send after the last look at the socket may undo this.
        """

    def sources(self, descriptor: int) -> tuple[bool, ...]:
        """The frames to receive when this descriptor is readable: True = published frames, False = answers."""

    def map_arena(self) -> ArenaReader:
        """Map the arena of the daemon that runs now. Raises TimerdError, OSError."""

    def forked(self) -> None:
        """In a forked child: close the parent's sockets. Copies of connections are closed already."""

    def close(self, *, linger: bool) -> None:
        """Close everything. With `linger`, the last frames may still be sent for a moment."""
