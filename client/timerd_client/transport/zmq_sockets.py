"""The sockets of ZeroMQ: a DEALER for commands and answers, an XSUB for outcomes."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import cast

import zmq

from timerd_client.protocol.deadlines import NEVER
from timerd_shm.declare.errors import ResourceLimitError
from timerd_shm.declare.limits import FRAME_SIZE_MAX
from timerd_shm.host.paths import InstancePaths, open_arena_file
from timerd_shm.read.reader import ArenaReader
from timerd_wire import native
from timerd_wire.channel import Channel
from timerd_wire.outlet import SUBSCRIBE, connect_outlet

from .lifeline import Lifeline
from .sockets import Held

SOCKETS_MAX = 8_192  # two for each client; libzmq's default of 1,023 allows 511 clients
RECONNECT_MS = 20
RECONNECT_MS_MAX = 500
SEND_FRAMES_MAX = 8  # few, so that commands gather in one frame, and not in many queued frames
GOODBYE_LINGER_MS = 200  # for BYE alone: everything else has been acknowledged by then

POLLIN = int(zmq.POLLIN)
POLLOUT = int(zmq.POLLOUT)

_context: zmq.Context[zmq.Socket[bytes]] | None = None
_context_lock = native.lock()
_inherited: list[zmq.Context[zmq.Socket[bytes]]] = []  # contexts of the parent


def shared_context() -> zmq.Context[zmq.Socket[bytes]]:
    """The one ZeroMQ context of this process, with room for many clients."""
    global _context
    with _context_lock:
        if _context is None:
            _context = zmq.Context()
            _context.set(zmq.MAX_SOCKETS, SOCKETS_MAX)
        return _context


def end_context() -> None:
    """End the context when libzmq has sent the last messages of closed sockets. No socket may be open."""
    global _context
    with _context_lock:
        context, _context = _context, None
    if context is not None:
        context.destroy()


def _forget_context() -> None:
    """In a forked child: forget the parent's context, which the child must never terminate."""
    global _context, _context_lock
    if _context is not None:
        _inherited.append(_context)
    _context = None
    _context_lock = native.lock()


os.register_at_fork(after_in_child=_forget_context)


class ZmqSockets:
    """Sockets of libzmq, which connect again by themselves."""

    frame_size_max: int = FRAME_SIZE_MAX
    wake_ns: int = 130_000
    due_ns: int = NEVER

    def __init__(self, paths: InstancePaths) -> None:
        self.lifeline: Held = Lifeline(paths)
        self._paths = paths
        paths.check_socket(paths.commands)
        context = shared_context()
        commands = self._socket(context, zmq.DEALER)
        outcomes = self._socket(context, zmq.XSUB)
        commands.set(zmq.SNDHWM, SEND_FRAMES_MAX)
        commands.set(zmq.IMMEDIATE, 1)  # otherwise frames would queue up while no daemon runs
        outcomes.send(SUBSCRIBE)  # libzmq sends this over each connection
        commands.connect(paths.commands_endpoint)
        self._descriptors = [cast(int, socket.get(zmq.FD)) for socket in (outcomes, commands)]
        self._commands, self._outcomes = Channel(commands), Channel(outcomes)
        self._subscriber, self._is_subscribed = outcomes, False
        self._trouble = ""

    @staticmethod
    def _socket(context: zmq.Context[zmq.Socket[bytes]], kind: int) -> zmq.Socket[bytes]:
        made = context.socket(kind)
        made.set(zmq.LINGER, 0)
        made.set(zmq.MAXMSGSIZE, FRAME_SIZE_MAX)  # a larger part ends the connection, and takes no memory
        made.set(zmq.RECONNECT_IVL, RECONNECT_MS)
        made.set(zmq.RECONNECT_IVL_MAX, RECONNECT_MS_MAX)
        return made

    def tend(self, now_ns: int) -> None:
        pass

    def trouble(self) -> str:
        return self._trouble  # libzmq gives no reason

    def send(self, frame: bytes) -> bool:
        return self._commands.send(frame)

    def has_answer(self) -> bool:
        return bool(self._commands.events() & POLLIN)

    def subscribe(self, session: bytes) -> None:
        endpoint = self._paths.outcomes_endpoint
        if self._is_subscribed:
            with suppress(zmq.ZMQError):  # libzmq has given the connection up
                self._subscriber.disconnect(endpoint)
        try:
            self._paths.check_socket(self._paths.outcomes)
        except ResourceLimitError as error:
            self._is_subscribed, self._trouble = False, str(error)
            return
        self._is_subscribed, self._trouble = True, ""
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

    def forked(self) -> None:
        pass  # the lifeline is a separate connection, which closes itself

    def close(self, *, linger: bool) -> None:
        self._commands.close(GOODBYE_LINGER_MS if linger else 0)
        self._outcomes.close(0)
