"""How a link reaches its daemon: two ZeroMQ sockets, the lifeline, and the arena that it maps.

A link is given an object with the methods of `Sockets`. As an example, the simulation gives it a network of its own.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Protocol, cast

import zmq

from timerd_shm.host.paths import InstancePaths, open_arena_file
from timerd_shm.read.reader import ArenaReader
from timerd_wire.channel import Channel
from timerd_wire.outlet import SUBSCRIBE, connect_outlet

from .lifeline import Lifeline

SOCKETS_MAX = 8_192  # two for each client; libzmq's default of 1,023 allows 511 clients
RECONNECT_MS = 20
RECONNECT_MS_MAX = 500
SEND_FRAMES_MAX = 8  # few, so that commands pile up into one frame, and not into many queued frames
GOODBYE_LINGER_MS = 200  # for BYE alone: everything else has been acknowledged by then

POLLIN = int(zmq.POLLIN)
POLLOUT = int(zmq.POLLOUT)

_context: zmq.Context[zmq.Socket[bytes]] | None = None
_context_lock = threading.Lock()


class Held(Protocol):
    """The methods of a `Lifeline`."""

    def fileno(self) -> int: ...
    def is_held(self, session: bytes) -> bool: ...
    def hold(self, session: bytes, now_ns: int) -> bool: ...
    def has_ended(self, now_ns: int) -> bool: ...
    def let_go(self) -> None: ...


class Sockets(Protocol):
    """The DEALER for commands, the XSUB for outcomes, the lifeline, and the way to the arena. Nothing here blocks.

    Methods of the DEALER are called in any thread, with the link's lock held. Only the link's own thread uses the XSUB.
    """

    lifeline: Held

    def send(self, frame: bytes) -> bool:
        """Send a frame to the daemon; False if the socket is full."""

    def has_answer(self) -> bool:
        """Whether the DEALER has a frame to receive. After a send its descriptor may not say so."""

    def subscribe(self, session: bytes) -> None:
        """Connect the XSUB, and show the session; an earlier connection ends."""

    def receive(self, *, published: bool) -> bytes | None:
        """The next frame from the XSUB (`published`) or the DEALER, if there is one."""

    def has_room(self) -> bool:
        """Whether a frame that could not be sent may be tried again."""

    def filenos(self) -> list[int]:
        """Descriptors that become readable once, when there is something new to receive, or new room.

        That may be missed if something was sent since the socket was last looked at.
        """

    def sources(self, descriptor: int) -> tuple[bool, ...]:
        """What to receive when this descriptor is readable: True = published frames, False = those of the DEALER."""

    def map_arena(self) -> ArenaReader:
        """Map the arena of the daemon that runs now. Raises TimerdError, OSError."""

    def close(self, *, linger: bool) -> None:
        """Close both sockets. With `linger`, what was sent last may still go out for a moment."""


def shared_context() -> zmq.Context[zmq.Socket[bytes]]:
    """The one ZeroMQ context of this process, with room for many clients."""
    global _context
    with _context_lock:
        if _context is None:
            _context = zmq.Context()
            _context.set(zmq.MAX_SOCKETS, SOCKETS_MAX)
        return _context


def forget_context() -> zmq.Context[zmq.Socket[bytes]] | None:
    """In a forked child: forget the parent's context. The caller keeps a reference, so that it is never terminated."""
    global _context, _context_lock
    old, _context = _context, None
    _context_lock = threading.Lock()
    return old


class ZmqSockets:
    """Sockets of libzmq, which connect again by themselves."""

    def __init__(self, paths: InstancePaths) -> None:
        self.lifeline: Held = Lifeline(paths.liveness)
        self._paths = paths
        context = shared_context()
        commands = self._socket(context, zmq.DEALER)
        outcomes = self._socket(context, zmq.XSUB)
        commands.set(zmq.SNDHWM, SEND_FRAMES_MAX)
        commands.set(zmq.IMMEDIATE, 1)  # else frames would queue up while no daemon runs
        outcomes.send(SUBSCRIBE)  # libzmq sends it over each connection
        commands.connect(paths.commands_endpoint)
        self._descriptors = [cast(int, socket.get(zmq.FD)) for socket in (outcomes, commands)]
        self._commands, self._outcomes = Channel(commands), Channel(outcomes)
        self._subscriber, self._is_subscribed = outcomes, False

    @staticmethod
    def _socket(context: zmq.Context[zmq.Socket[bytes]], kind: int) -> zmq.Socket[bytes]:
        made = context.socket(kind)
        made.set(zmq.LINGER, 0)
        made.set(zmq.RECONNECT_IVL, RECONNECT_MS)
        made.set(zmq.RECONNECT_IVL_MAX, RECONNECT_MS_MAX)
        return made

    def send(self, frame: bytes) -> bool:
        return self._commands.send(frame)

    def has_answer(self) -> bool:
        return bool(self._commands.events() & POLLIN)

    def subscribe(self, session: bytes) -> None:
        endpoint = self._paths.outcomes_endpoint
        if self._is_subscribed:
            with suppress(zmq.ZMQError):  # libzmq had given it up
                self._subscriber.disconnect(endpoint)
        self._is_subscribed = True
        connect_outlet(self._subscriber, endpoint, session)

    def receive(self, *, published: bool) -> bytes | None:
        return (self._outcomes if published else self._commands).receive()

    def has_room(self) -> bool:
        return bool(self._commands.events() & POLLOUT)

    def filenos(self) -> list[int]:
        return self._descriptors

    def sources(self, descriptor: int) -> tuple[bool, ...]:
        return (descriptor == self._descriptors[0],)

    def map_arena(self) -> ArenaReader:
        return ArenaReader.from_descriptor(open_arena_file(self._paths))

    def close(self, *, linger: bool) -> None:
        self._commands.close(GOODBYE_LINGER_MS if linger else 0)
        self._outcomes.close(0)
