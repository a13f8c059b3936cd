"""The sockets of ZeroMQ: a DEALER for commands and answers, an XSUB for outcomes.

libzmq connects again by itself, to whatever stands at the path. A client must show its proof and its session to no
other user. So at the end of the daemon the sockets are disconnected. tend() connects them again, when a trusted daemon
listens. Before each HELLO the client checks that NAME.sock is still the file to which the DEALER has connected. If it
is another file, the DEALER first connects again, if a trusted daemon listens.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final, NamedTuple, cast

import zmq

from timerd_client.protocol.deadlines import NEVER
from timerd_shm.declare.errors import ResourceLimitError
from timerd_shm.declare.fields import offset_of
from timerd_shm.declare.limits import FRAME_SIZE_MAX
from timerd_shm.declare.wire import CommandHeader, UpKind
from timerd_shm.host.paths import InstancePaths, daemon_running, open_arena_file
from timerd_shm.read.reader import ArenaReader
from timerd_wire import native
from timerd_wire.channel import Channel
from timerd_wire.outlet import SUBSCRIBE, connect_outlet

from .lifeline import Lifeline, changing
from .sockets import Held

SOCKETS_MAX = 8_192  # two for each client; libzmq's default of 1,023 allows 511 clients
RECONNECT_MS = 20
RECONNECT_MS_MAX = 500
SEND_FRAMES_MAX = 8  # few, so that commands gather in one frame, and not in many queued frames
GOODBYE_LINGER_MS = 200  # for BYE alone: close() has waited for everything else

KIND_AT: Final = offset_of(CommandHeader, "kind")
HELLO: Final = int(UpKind.HELLO)
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


class File(NamedTuple):
    """The identity of a file. The time of change differs where a file was moved away and back."""

    device: int
    inode: int
    changed_ns: int


class ZmqSockets:
    """Sockets of libzmq. They connect again by themselves while the daemon lives."""

    frame_size_max: int = FRAME_SIZE_MAX
    wake_ns: int = 130_000

    def __init__(self, paths: InstancePaths) -> None:
        self.due_ns: int = NEVER
        self.lifeline: Held = Lifeline(paths)
        self._paths = paths
        self._retry_wait_ns = RECONNECT_MS * 1_000_000
        found: File | None = None
        try:
            found = self._look()
        except FileNotFoundError:  # a daemon that starts listens on NAME.live first: tend() looks again
            self.due_ns = 0
        context = shared_context()
        commands = self._socket(context, zmq.DEALER)
        outcomes = self._socket(context, zmq.XSUB)
        commands.set(zmq.SNDHWM, SEND_FRAMES_MAX)
        commands.set(zmq.IMMEDIATE, 1)  # otherwise frames would queue up while no daemon runs
        outcomes.send(SUBSCRIBE)  # libzmq sends this over each connection
        self._descriptors = [cast(int, socket.get(zmq.FD)) for socket in (outcomes, commands)]
        self._commands, self._outcomes = Channel(commands), Channel(outcomes)
        self._dealer, self._subscriber, self._is_subscribed = commands, outcomes, False
        self._connected: File | None = None  # NAME.sock, to which the DEALER connects; None: it is disconnected
        self._trouble = ""
        if found is not None:
            self._connect(found)

    @staticmethod
    def _socket(context: zmq.Context[zmq.Socket[bytes]], kind: int) -> zmq.Socket[bytes]:
        made = context.socket(kind)
        made.set(zmq.LINGER, 0)
        made.set(zmq.MAXMSGSIZE, FRAME_SIZE_MAX)  # a larger part ends the connection, and takes no memory
        made.set(zmq.RECONNECT_IVL, RECONNECT_MS)
        made.set(zmq.RECONNECT_IVL_MAX, RECONNECT_MS_MAX)
        return made

    # the connection ---------------------------------------------------------------------------------------------------

    def tend(self, now_ns: int) -> bool:
        if now_ns < self.due_ns:
            return False
        if not self._is_reconnected():
            self.due_ns = now_ns + self._retry_wait_ns
            self._retry_wait_ns = min(2 * self._retry_wait_ns, RECONNECT_MS_MAX * 1_000_000)
            return False
        self.due_ns, self._retry_wait_ns = NEVER, RECONNECT_MS * 1_000_000
        return True

    def lost(self, now_ns: int) -> bool:
        self._disconnect()
        self._retry_wait_ns = RECONNECT_MS * 1_000_000
        self.due_ns = now_ns + self._retry_wait_ns
        return True

    def trouble(self) -> str:
        return self._trouble  # libzmq gives no reason

    def _look(self) -> File:
        """The file that is NAME.sock now, in a directory that is trusted now. Raises ResourceLimitError, OSError."""
        self._paths = self._paths.judged()
        status = self._paths.check_socket(self._paths.commands)
        return File(status.st_dev, status.st_ino, status.st_ctime_ns)

    def _is_reconnected(self) -> bool:
        """Connect the DEALER again, unless it is connected to the present NAME.sock. False: no trusted daemon listens.

        libzmq would try again and again to connect to a socket that a dead daemon has left, whoever replaces it.
        """
        try:
            found = self._look()
            if found == self._connected:
                return True
            self._disconnect()
            with changing:  # no fork meanwhile: a child would have a copy of the connection that is made here
                if not daemon_running(self._paths):
                    return False
        except OSError as error:
            self._disconnect()
            self._trouble = str(error) if isinstance(error, ResourceLimitError) else ""
            return False
        self._connect(found)
        return True

    def _connect(self, found: File) -> None:
        self._dealer.connect(self._paths.commands_endpoint)
        self._connected, self._trouble = found, ""

    def _disconnect(self) -> None:
        self._connected = None
        with suppress(zmq.ZMQError):  # it is not connected, or libzmq has given the connection up
            self._dealer.disconnect(self._paths.commands_endpoint)

    # frames -----------------------------------------------------------------------------------------------------------

    def send(self, frame: bytes) -> bool:
        if frame[KIND_AT] == HELLO and not self._is_reconnected():
            return False
        return self._commands.send(frame)

    def has_answer(self) -> bool:
        return bool(self._commands.events() & POLLIN)

    def subscribe(self, session: bytes) -> None:
        endpoint = self._paths.outcomes_endpoint
        if self._is_subscribed:
            with suppress(zmq.ZMQError):  # libzmq has given the connection up
                self._subscriber.disconnect(endpoint)
        self._is_subscribed = False
        if not session or self._connected is None:  # tend() connects, and the session is shown then
            return
        try:
            self._paths = self._paths.judged()
            self._paths.check_socket(self._paths.outcomes)
        except OSError as error:
            self._trouble = str(error) if isinstance(error, ResourceLimitError) else ""
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
