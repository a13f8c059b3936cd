"""Packets over one Unix socket, NAME.unix: no threads of its own, and no library.

Commands and outcomes go over one connection. The kernel ends it with the process, so it is the lifeline, too. If the
connection has ended, the link's thread connects again (tend), and shows the session again.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import weakref
from collections import deque
from collections.abc import Callable
from io import FileIO
from time import monotonic_ns
from typing import Final

from timerd_client.protocol.deadlines import NEVER
from timerd_shm.declare.limits import PACKET_SIZE_MAX
from timerd_shm.host.paths import InstancePaths, open_arena_file
from timerd_shm.read.reader import ArenaReader
from timerd_wire import native
from timerd_wire.packets import FRAME, SUBSCRIBE, Joined, Packets, cut

from .lifeline import REFUSED_NS, changing
from .sockets import FRAMES_MAX, Held

BUFFER: Final = 1 << 20  # bytes for packets that the daemon has not read; the kernel gives 425,984 by default
SENDABLE: Final = 1 + PACKET_SIZE_MAX + 32  # bytes of a buffer that is large enough for the largest packet
RETRY_FIRST_NS: Final = 20_000_000
RETRY_LAST_NS: Final = 500_000_000

_connections: weakref.WeakSet[Packets] = weakref.WeakSet()  # of this process, also those that no link knows yet


class UnixSockets:
    """The connection, and an epoll that stays the same when the connection changes."""

    frame_size_max: int = PACKET_SIZE_MAX
    wake_ns: int = 30_000  # only the wake-up on the daemon's side

    def __init__(self, paths: InstancePaths, now_ns: Callable[[], int] = monotonic_ns) -> None:
        self.due_ns: int = NEVER
        self._paths = paths
        self._address = paths.packets_address
        self._now_ns = now_ns
        self._packets: Packets | None = None  # None: not connected
        self._descriptor = -1  # of the connection
        self._connected_ns = 0  # when the connection was made
        self._retry_wait_ns = RETRY_FIRST_NS
        self._session = b""  # to be shown over each connection
        self._is_shown = True  # whether the session was shown
        self._is_full = False
        self._failure: OSError | None = None  # why there is no connection
        self._cut: deque[tuple[int, bytes]] = deque()  # the rest of the frame that is sent in parts
        self._cut_of: bytes | None = None
        self._joined = Joined()
        # First as variables: mypy 1.19 compiles this so that an object is never freed if its __init__ has raised.
        epoll, end = native.epoll(), End()
        self._epoll, self._end = epoll, end
        self.lifeline: Held = end
        self._connect()

    # the connection ---------------------------------------------------------------------------------------------------

    # A thread receives without the link's lock. It may find that the connection has ended while another thread is in
    # tend(). So each of the two takes the lock `changing` before it changes the connection.

    def tend(self, now_ns: int) -> bool:
        with changing:
            if now_ns < self.due_ns:
                return False
            if self._packets is None:
                self._connect()  # shows the session
                return False
            self.due_ns = NEVER
            if self._is_full and self.has_room():
                # The frame that had no room became stale and is not sent again, so no send() clears `_is_full`.
                self._is_full = False
                self._epoll.modify(self._descriptor, select.EPOLLIN)
        return False

    def lost(self, now_ns: int) -> bool:
        return False  # the connection leads to no other daemon, and its end is noticed

    def trouble(self) -> str:
        if self._failure is None:
            return ""
        return f"{self._address}: {self._failure.strerror}" if self._failure.strerror else str(self._failure)

    def _connect(self) -> None:
        with changing:
            try:
                self._open()
            except OSError as error:  # no daemon listens, very many clients connect, no file can be opened
                self._close()
                self._failure = None if isinstance(error, BlockingIOError) else error  # EAGAIN: an overloaded daemon
                self._retry()
                return
            if not isinstance(self._failure, ConnectionResetError):  # a reset may come again at once: keep it
                self._failure = None
            self._connected_ns = self._now_ns()
            self.due_ns = NEVER
            self._is_full = False
            self._cut_of = None
        if self._session:
            self.subscribe(self._session)

    def _open(self) -> None:
        self._paths = self._paths.judged()
        with contextlib.closing(native.unix_socket(socket.SOCK_SEQPACKET)) as made:
            made.setblocking(False)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
            given = made.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
            if given < SENDABLE:
                raise OSError(
                    errno.EMSGSIZE,
                    f"a packet needs a buffer of {SENDABLE} bytes, and the system gives {given}: "
                    f"raise net.core.wmem_max to {SENDABLE} (sysctl)",
                )
            self._paths.connect(made, self._paths.packets)
            self._descriptor = made.detach()
        self._packets = Packets(self._descriptor)
        _connections.add(self._packets)
        self._epoll.register(self._descriptor, select.EPOLLIN)

    def _retry(self) -> None:
        self.due_ns = self._now_ns() + self._retry_wait_ns
        self._retry_wait_ns = min(2 * self._retry_wait_ns, RETRY_LAST_NS)

    def _ended(self) -> None:
        """The connection has ended. If it was made a short time ago, it was refused; otherwise the daemon has ended."""
        was_refused = self._now_ns() - self._connected_ns < REFUSED_NS
        with changing:
            with contextlib.suppress(OSError, ValueError):
                # A child between its fork and its exec has a copy: because of that copy the epoll would stay readable.
                self._epoll.unregister(self._descriptor)
            self._close()
            if was_refused:
                self._failure = ConnectionResetError(
                    errno.ECONNRESET, "the daemon has closed the connection (`timerctl errors` says why)"
                )
            else:
                self._retry_wait_ns = RETRY_FIRST_NS
            self._retry()
        self._end.report(is_daemons=not was_refused)

    def _close(self) -> None:
        """Close the connection. Another thread may be in send(): the next connection forgets the state of that send."""
        with changing:
            packets, self._packets, self._descriptor = self._packets, None, -1
            if packets is not None:
                packets.close()
        self._joined.drop()

    # frames -----------------------------------------------------------------------------------------------------------

    def send(self, frame: bytes) -> bool:
        packets, descriptor = self._packets, self._descriptor
        if packets is None:
            return False
        try:
            if not self._is_shown:
                self._is_shown = packets.send(SUBSCRIBE, self._session)
            sent = self._is_shown and (
                packets.send(FRAME, frame) if len(frame) <= PACKET_SIZE_MAX else self._send_parts(packets, frame)
            )
            if sent == self._is_full:
                self._is_full = not sent
                self._epoll.modify(descriptor, select.EPOLLIN if sent else select.EPOLLIN | select.EPOLLOUT)
        except (OSError, ValueError):
            return False  # it has ended: receive() finds the end after the last frames, or has found it already
        return sent

    def _send_parts(self, packets: Packets, frame: bytes) -> bool:
        """Send a frame in parts. False: call it again with this frame, and it goes on. Raises OSError."""
        if self._cut_of is not frame:
            self._cut, self._cut_of = deque(cut(frame)), frame
        while self._cut:
            if not packets.send(*self._cut[0]):
                return False
            self._cut.popleft()
        self._cut_of = None
        return True

    def subscribe(self, session: bytes) -> None:
        self._session = session
        self._failure = None
        self._is_shown = False  # if there is no room now, send() shows it before the next frame
        if self._packets is not None:
            with contextlib.suppress(OSError):
                self._is_shown = self._packets.send(SUBSCRIBE, session)

    def receive(self, *, published: bool) -> bytes | None:
        packets = self._packets
        if not published or packets is None:
            return None
        try:
            for _ in range(FRAMES_MAX):
                if (body := packets.receive()) is None:
                    break
                if packets.kind == FRAME:
                    if self._joined.wanted:
                        self._joined.drop()
                    return body
                frame = self._joined.take(packets.kind, body)
                if frame is not None:
                    return frame
            if self._is_full:
                with changing:
                    self.due_ns = 0  # this thread may have been woken because there is room
        except (OSError, ValueError):
            self._ended()
        return None

    def has_answer(self) -> bool:
        return False

    def has_room(self) -> bool:
        if self._packets is None:
            return False
        return not self._is_full or any(events & select.EPOLLOUT for _, events in self._epoll.poll(0))

    def filenos(self) -> list[int]:
        return [self._epoll.fileno()]

    def sources(self, descriptor: int) -> tuple[bool, ...]:
        return (True,)

    def map_arena(self) -> ArenaReader:
        return ArenaReader.from_descriptor(open_arena_file(self._paths))

    def forked(self) -> None:
        self._end.let_go()
        self.close(linger=False)

    def close(self, *, linger: bool) -> None:
        self.due_ns = NEVER
        self._close()
        self._epoll.close()
        self._end.close()


class End:
    """The lifeline of a link with one connection: a descriptor that is readable when the connection has ended."""

    def __init__(self) -> None:
        self._bell = FileIO(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC), "r+")  # closed when it is dropped
        self._session = b""
        self._is_daemons = False  # whether the connection ended with the daemon
        self._is_over = False

    def report(self, *, is_daemons: bool) -> None:
        """The connection has ended."""
        self._is_daemons = is_daemons
        if not self._bell.closed:
            os.eventfd_write(self._bell.fileno(), 1)

    def fileno(self) -> int:
        return self._bell.fileno() if self._session else -1

    def is_held(self, session: bytes) -> bool:
        return self._session == session

    def hold(self, session: bytes, now_ns: int) -> bool:
        self._take_bell()
        self._session = session
        return True

    def has_ended(self, now_ns: int) -> bool:
        self._take_bell()
        self.let_go()
        return self._is_daemons

    def let_go(self) -> None:
        self._session = b""
        if self._is_over:
            self.close()

    def close(self) -> None:
        """Close the descriptor. If the link watches it, close it as soon as the link no longer does."""
        self._is_over = True
        if not self._session:
            self._bell.close()

    def _take_bell(self) -> None:
        with contextlib.suppress(BlockingIOError, ValueError):  # the bell has not rung, or is closed
            os.eventfd_read(self._bell.fileno())


def _after_fork_in_child() -> None:
    """Close the copies: they would make the parent's client seem alive after its end."""
    for connection in list(_connections):
        connection.close()
    _connections.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
