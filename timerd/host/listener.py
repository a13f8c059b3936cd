"""A Unix socket that listens, with safe permissions from the moment of bind; and the shares of its peers.

A peer's process is a number: its pid, or, in a pid namespace that this daemon cannot see, the inode of its pidfd, made
negative (Linux 6.9). On older systems the process of such a peer is 0: all such peers count as one process.
"""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable
from contextlib import suppress
from io import FileIO
from pathlib import Path

from timerd.host.accepting import LEFT, accept, credentials_of, enlarge_send_buffer, pidfd_of
from timerd.host.own_file import File, remove_own
from timerd.host.selector import Selector
from timerd.host.shares import Share, Shares, Why
from timerd.host.unix_socket import listen_guarded

ACCEPTS_PER_CALL = 128  # connections that leave the kernel's queue. If one is closed at once, this takes 5 to 20 us
NEWCOMERS_PER_CALL = 16  # of these, connections whose peer is there: some 50 us each until they have ended
# Bytes that the kernel keeps for a reader: its usual default. Without it, where net.core.wmem_default is small, no
# packet of 128 KiB could be sent (EMSGSIZE).
SEND_BUFFER = 212_992


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
        self._enlarges = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) < SEND_BUFFER
        try:
            self._file = listen_guarded(self._socket, path, group_id)
            selector.register(self._socket.fileno(), select.EPOLLIN, self._on_newcomer)
        except BaseException:
            self.close()
            raise

    def accept(self) -> None:
        """Accept some of the connections that wait.

        Those whose peer has left, and has sent nothing, are closed, and those for which there is no room.
        """
        self.has_newcomers = False
        listening, newcomers = self._socket.fileno(), 0
        for _ in range(ACCEPTS_PER_CALL):
            try:
                descriptor = accept(listening)
            except BlockingIOError:
                return
            except OSError:
                self._turn_away()
                return
            if descriptor == LEFT:
                continue
            share = self._shares.open(process_of(descriptor))
            if share is None:
                os.close(descriptor)
                continue
            if self._enlarges:
                enlarge_send_buffer(descriptor, SEND_BUFFER)
            self._add(descriptor, share)
            newcomers += 1
            if newcomers == NEWCOMERS_PER_CALL:
                return

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
        with suppress(OSError):
            descriptor = accept(self._socket.fileno())
            if descriptor != LEFT:
                self._shares.turn_away(process_of(descriptor), Why.NO_FILES)
                os.close(descriptor)
        with suppress(OSError):  # another thread may have taken the place: the next call tries again
            self._spare = _spare_file()


def process_of(descriptor: int) -> int:
    """The number of the process that has connected; 0: not known.

    It is the pid, or a negative number if this daemon cannot see the process's pid namespace.
    """
    pid = credentials_of(descriptor)[0]
    if pid:
        return pid
    try:
        process, other = _stat(pidfd_of(descriptor)), _stat(os.eventfd(0))
    except OSError:  # an older system, no file can be opened, or the process has ended
        return 0
    # Before Linux 6.9 a pidfd is an anonymous file, as an eventfd is. All anonymous files have the same inode.
    return 0 if process.st_dev == other.st_dev else -process.st_ino


def _stat(descriptor: int) -> os.stat_result:
    try:
        return os.fstat(descriptor)
    finally:
        os.close(descriptor)


def _spare_file() -> FileIO:
    return FileIO(os.devnull)
