"""How a link reaches its daemon: sockets, the lifeline, and the arena that it maps.

A link is given an object with the methods of `Sockets`: those of zmq_sockets.py or unix_sockets.py. As an example, the
simulation gives it a network of its own.
"""

from __future__ import annotations

from typing import Protocol

from timerd_shm.read.reader import ArenaReader


class Held(Protocol):
    """The methods of a `Lifeline`."""

    def fileno(self) -> int: ...
    def is_held(self, session: bytes) -> bool: ...
    def hold(self, session: bytes, now_ns: int) -> bool: ...
    def has_ended(self, now_ns: int) -> bool: ...
    def let_go(self) -> None: ...


class Sockets(Protocol):
    """The connections for commands and for outcomes, the lifeline, and the path to the arena. Nothing here blocks.

    With ZeroMQ commands go by a DEALER, which also gets answers, and outcomes come by an XSUB. With packets all goes
    over one connection, and counts as published. The holder of the seat (the link's own thread, or a caller that waits)
    calls receive(published=True). Every other method is called with the link's lock held.
    """

    lifeline: Held
    frame_size_max: int
    """Of a frame of commands, in bytes. A larger frame is sent in parts."""
    wake_ns: int
    """The cost of a frame besides the time of sending it: wake-ups at both ends, and cold caches."""
    due_ns: int
    """When tend() is to be called; NEVER: the sockets look after themselves."""

    def tend(self, now_ns: int) -> None:
        """Connect again, if that is due."""

    def trouble(self) -> str:
        """Why there is no connection, for messages; empty: there is one, or that is not known."""

    def send(self, frame: bytes) -> bool:
        """Send a frame to the daemon; False if the socket is full."""

    def has_answer(self) -> bool:
        """Whether an answer has come of which the descriptors may give no sign, because of a send."""

    def subscribe(self, session: bytes) -> None:
        """Get outcomes from now on: show the session to the daemon."""

    def receive(self, *, published: bool) -> bytes | None:
        """The next published frame, or the next answer, if there is one."""

    def has_room(self) -> bool:
        """Whether a frame that could not be sent may be tried again."""

    def filenos(self) -> list[int]:
        """Descriptors that become readable when there is something new to receive, or new room.

        Descriptors of ZeroMQ do so once. A send after the last look at the socket may use that up.
        """

    def sources(self, descriptor: int) -> tuple[bool, ...]:
        """The frames to receive when this descriptor is readable: True = published frames, False = answers."""

    def map_arena(self) -> ArenaReader:
        """Map the arena of the daemon that runs now. Raises TimerdError, OSError."""

    def forked(self) -> None:
        """In a forked child: close the parent's sockets. Copies of connections are closed already."""

    def close(self, *, linger: bool) -> None:
        """Close all. With `linger`, the last frames may still go out for a moment."""
