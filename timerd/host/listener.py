"""A Unix socket that listens, with safe permissions from the moment of bind; and the shares of its peers."""

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
from timerd.host.shares import Share, Shares
from timerd.host.unix_socket import listen_guarded

ACCEPTS_PER_CALL = 16
CREDENTIALS = struct.Struct("iII")  # struct ucred: pid, uid, gid


class Listener:
    """Listens at `path` from the moment it is made. `add` gets the descriptor of each connection, and its share.
    `send_buffer` is SO_SNDBUF of each; 0 = what the system gives.

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
        send_buffer: int = 0,
    ) -> None:
        self._path = path
        self._file: File | None = None  # None: it could not be bound
        self._shares = shares
        self._selector = selector
        self._add = add
        self._send_buffer = send_buffer
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
            share = self._shares.open(_pid_of(accepted))
            if share is None:
                accepted.close()
            else:
                accepted.setblocking(False)
                if self._send_buffer:
                    accepted.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._send_buffer)
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
        """No file can be opened. The spare one makes room to end a connection, which would wake the daemon for ever."""
        self._spare.close()
        with suppress(OSError), self._socket.accept()[0] as accepted:
            self._shares.turn_away(_pid_of(accepted))
        with suppress(OSError):  # another thread may have taken the place; then there is a spare one the next time
            self._spare = _spare_file()


def _pid_of(accepted: socket.socket) -> int:
    """The process that has connected; 0 = it is in another pid namespace."""
    pid: int = CREDENTIALS.unpack(accepted.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size))[0]
    return pid


def _spare_file() -> FileIO:
    return FileIO(os.devnull)
