"""A Unix socket that listens, with safe permissions from the moment of bind; and the shares of its peers.

A peer's process is a number: its pid, or, in a pid namespace that this daemon cannot see, the inode of its pidfd, made
negative (Linux 6.9). On older systems the process of such a peer is 0: all such peers count as one process.
"""

from __future__ import annotations

import os
import select
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from io import FileIO
from pathlib import Path

from timerd.host.own_file import File, remove_own
from timerd.host.selector import Selector
from timerd.host.shares import Share, Shares, Why
from timerd.host.unix_socket import listen_guarded

ACCEPTS_PER_CALL = 16
# Bytes that the kernel keeps for a reader: its usual default. Without it, where net.core.wmem_default is small, no
# packet of 128 KiB could be sent (EMSGSIZE).
SEND_BUFFER = 212_992
CREDENTIALS = struct.Struct("iII")  # struct ucred: pid, uid, gid
SO_PEERPIDFD = 77  # Linux 6.5; Python has no name for it


class Listener:
    """Listens at `path` from the moment it is made. `add` gets the descriptor of each connection, and its share.

    The socket is made 0600; with a group it is given to the group and opened to it afterwards (0660). A stale socket
    file of a killed daemon is replaced; so the caller holds the instance's lock. Raises ResourceLimitError.
    """

    def __init__(
        self,
        path: Path,
        kind: int,
        shares: Shares,
        selector: Selector,
        group_id: int | None,
        add: Callable[[int, Share], None],
    ) -> None:
        self._path = path
        self._file: File | None = None  # None: it could not be bound
        self._shares = shares
        self._selector = selector
        self._add = add
        self.has_newcomers = False
        self._spare = _spare_file()
        self._socket = socket.socket(socket.AF_UNIX, kind | socket.SOCK_NONBLOCK)
        try:
            self._file = listen_guarded(self._socket, path, group_id)
            selector.register(self._socket.fileno(), select.EPOLLIN, self._on_newcomer)
        except BaseException:
            self.close()
            raise

    def accept(self) -> None:
        """Accept some of the connections that wait."""
        self.has_newcomers = False
        for _ in range(ACCEPTS_PER_CALL):
            try:
                accepted, _ = self._socket.accept()
            except BlockingIOError:
                return
            except OSError:
                self._turn_away()
                return
            share = self._shares.open(process_of(accepted))
            if share is None:
                accepted.close()
            else:
                accepted.setblocking(False)
                accepted.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER // 2)  # the kernel doubles it
                self._add(accepted.detach(), share)

    def close(self) -> None:
        """Close the socket and remove its file; before the instance's lock is given up."""
        self._selector.forget(self._socket.fileno())
        self._socket.close()
        self._spare.close()
        remove_own(self._path, self._file)

    def _on_newcomer(self, descriptor: int, events: int) -> None:
        self.has_newcomers = True

    def _turn_away(self) -> None:
        """No file can be opened. The spare one makes room to end a connection that would wake the daemon for ever."""
        self._spare.close()
        with suppress(OSError), self._socket.accept()[0] as accepted:
            self._shares.turn_away(process_of(accepted), Why.NO_FILES)
        with suppress(OSError):  # another thread may have taken the place: the next call tries again
            self._spare = _spare_file()


def process_of(accepted: socket.socket) -> int:
    """The process that has connected: its pid; in another pid namespace a negative number; 0 = not known."""
    pid = _credentials_of(accepted)[0]
    if pid:
        return pid
    try:
        process, other = _stat(accepted.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD)), _stat(os.eventfd(0))
    except OSError:  # an older system, no file can be opened, or the process has ended
        return 0
    # Before Linux 6.9 a pidfd is an anonymous file, as an eventfd is. All anonymous files have the same inode.
    return 0 if process.st_dev == other.st_dev else -process.st_ino


def user_of(descriptor: int) -> int:
    """The uid of the process that has connected, as the kernel says. The descriptor stays open."""
    connected = socket.socket(fileno=descriptor)
    try:
        return _credentials_of(connected)[1]
    finally:
        connected.detach()


def _credentials_of(connected: socket.socket) -> tuple[int, int]:
    """(pid, uid) of the process that has connected."""
    pid: int
    uid: int
    pid, uid, _ = CREDENTIALS.unpack(connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size))
    return pid, uid


def _stat(descriptor: int) -> os.stat_result:
    try:
        return os.fstat(descriptor)
    finally:
        os.close(descriptor)


def _spare_file() -> FileIO:
    return FileIO(os.devnull)
