"""The seat of the receiver. Its holder receives: the link's own thread, or a caller that waits.

    result()     a caller takes the seat, sleeps at the sockets, receives its outcome, leaves the seat
    otherwise    the link's thread takes the seat for each pass

Without the seat an outcome would wake the link's thread, and the thread would wake the caller. While a caller has the
seat, the descriptors of the sockets wake nobody else. The caller of each method holds the link's lock, except for
fileno(), sleep(), ring(), and close() at the end of the link's thread.

Signal handlers run during the sleep of a caller, and may take long. So the link's thread may take the seat from a
sleeping caller. The caller notices this when it wakes.
"""

from __future__ import annotations

import contextlib
import os
import select
from io import FileIO

from timerd_wire import native
from timerd_wire.poller import Poller


class Seat:
    """The seat: free, or with one holder. `descriptors` are the descriptors of the sockets."""

    def __init__(self, descriptors: list[int]) -> None:
        self.holder: object | None = None
        self.sleeper: object | None = None  # the caller that sleeps, also while it has lost the seat
        self.is_wanted = False  # the link's thread wants it: no caller may take it until the thread has had it
        # First as variables: mypy 1.19 compiles this so that an object is never freed if its __init__ has raised.
        sockets, shutter, poller = native.epoll(), native.epoll(), Poller()
        bell = FileIO(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC), "r+")
        self._sockets = sockets  # watches the sockets
        self._shutter = shutter  # watches `_sockets` for the link's thread; shut while a caller has the seat
        self._shutter.register(self._sockets, select.EPOLLIN)
        self._bell_file = bell  # closed when dropped
        self._bell = bell.fileno()
        self._poller = poller
        self._poller.register(self._bell)
        for descriptor in descriptors:
            self._sockets.register(descriptor, select.EPOLLIN)
            self._poller.register(descriptor)

    def fileno(self) -> int:
        """A descriptor that is readable while a socket is readable and no caller has the seat."""
        return self._shutter.fileno()

    def take_for_pass(self, thread: object) -> bool:
        """The link's thread takes the seat for a pass. Returns False if a caller has it."""
        if self.holder is not None and self.holder is not thread:
            return False
        self.holder, self.is_wanted = thread, False
        return True

    def take_from_sleeper(self, thread: object) -> bool:
        """The link's thread takes the seat from a sleeping caller, and wakes the caller. False if no caller sleeps."""
        if self.sleeper is None:
            return False
        self.holder, self.is_wanted = thread, False
        self._shutter.modify(self._sockets, select.EPOLLIN)
        self.ring()
        return True

    def is_neglected(self) -> bool:
        """Whether a socket has something that the sleeping caller has not taken."""
        return self.sleeper is not None and bool(self._sockets.poll(0))

    def take(self, caller: object) -> bool:
        """A caller takes the seat. Returns False if the seat is not free, or the link's thread wants it."""
        if self.holder is not None or self.is_wanted or self.sleeper is not None:
            return False
        self.holder = caller
        self._shutter.modify(self._sockets, 0)
        return True

    def leave(self, holder: object) -> None:
        """Leave the seat, if this holder has it."""
        if self.holder is holder:
            self._shutter.modify(self._sockets, select.EPOLLIN)
            self.holder = None

    def leave_pass(self) -> None:
        """The link's thread leaves the seat."""
        self.holder = None

    def want(self) -> None:
        """The link's thread wants the seat: the holder wakes up, leaves the seat, and wakes the thread."""
        self.is_wanted = True
        self.ring()

    def ring(self) -> None:
        """Wake the caller that has the seat."""
        os.eventfd_write(self._bell, 1)

    def sleep(self, timeout_ns: int) -> list[int]:
        """The caller sleeps until a socket has something, `timeout_ns` at most. Returns the readable descriptors."""
        readable = self._poller.poll(timeout_ns)
        if self._bell in readable:
            readable.remove(self._bell)
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._bell)
        return readable

    def close(self) -> None:
        """Close the seat's own descriptors. A caller that still sleeps closes them when it wakes."""
        if self.sleeper is None:
            self._shutter.close()
            self._sockets.close()
            self._bell_file.close()
