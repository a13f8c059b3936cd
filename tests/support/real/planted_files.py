"""Files that a neighbour plants in place of a plain file. Opening or reading one takes long, hangs, or fails."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path


def socket_at(path: Path) -> None:
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"/proc/self/fd/{directory}/{path.name}")  # a socket's path has 107 bytes at most
    finally:
        os.close(directory)


def leased(path: Path) -> None:
    """A file whose owner has a lease on it: an open() without O_NONBLOCK waits 45 s for the owner."""
    path.write_text("1\n")
    signal.signal(signal.SIGIO, signal.SIG_IGN)  # the owner gets SIGIO when another process opens the file
    descriptor = os.open(path, os.O_RDWR)
    fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)


def huge(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 30)


def unreadable(path: Path) -> None:
    path.touch(0o000)


PLANTED: dict[str, Callable[[Path], object]] = {
    "no text": lambda path: path.write_bytes(b"\xff\xfe"),
    "a gigabyte": huge,
    "a FIFO": os.mkfifo,
    "a link to /dev/zero": lambda path: path.symlink_to("/dev/zero"),
    "a link to itself": lambda path: path.symlink_to(path),
    "a link to nothing": lambda path: path.symlink_to(path.parent / "nothing"),
    "a directory": Path.mkdir,
    "a socket": socket_at,
    "a file without a number, unreadable": unreadable,
    "a lease": leased,
}


def within(seconds: float, call: Callable[[], object]) -> list[object]:
    """A list with the call's result; empty if the call has not returned in time (then its thread is left behind)."""
    done: list[object] = []
    thread = threading.Thread(target=lambda: done.append(call()), daemon=True)
    thread.start()
    thread.join(seconds)
    return done
