"""Threads, locks and descriptors of the system, even if gevent has replaced those of the standard library.

    import gevent.monkey; gevent.monkey.patch_all()    # from now on threading.Thread is a greenlet

The client's own thread sleeps at its sockets in the kernel. As a greenlet it would stop the whole process there. So the
client takes its threads and locks from here. eventlet is refused: it keeps no way back to the originals.
"""

from __future__ import annotations

import importlib
import os
import select
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any, Final

from timerd_shm.declare.errors import NotSupportedError

_MONKEY: Final = "gevent.monkey"
_EVENTLET: Final = "eventlet.patcher"


def is_green() -> bool:
    """Whether gevent has replaced the threads of this process. Raises NotSupportedError if eventlet has."""
    eventlet = sys.modules.get(_EVENTLET)
    if eventlet is not None and eventlet.is_monkey_patched("thread"):
        raise NotSupportedError(
            "eventlet has replaced the threads of this process, and timerd does not run on eventlet: its maintainers "
            "advise to leave it; use gevent (gunicorn -k gevent), threads, or asyncio"
        )
    monkey = sys.modules.get(_MONKEY)
    return monkey is not None and bool(monkey.is_module_patched("threading"))


def original(module: str, name: str) -> Any:
    """A name of a module of the standard library, as it was before gevent replaced or removed it."""
    monkey = sys.modules.get(_MONKEY)
    if monkey is not None:
        return monkey.get_original(module, name)
    return getattr(importlib.import_module(module), name)


def lock() -> threading.Lock:
    """A lock that threads of the system may share."""
    made: threading.Lock = original("_thread", "allocate_lock")()
    return made


def recursive_lock() -> threading.RLock:
    """A lock that threads of the system may share, and that its holder may take again."""
    made: threading.RLock = original("_thread", "RLock")()
    return made


def epoll() -> select.epoll:
    """An epoll, which gevent removes."""
    made: select.epoll = original("select", "epoll")()
    return made


def poll() -> select.poll:
    """A poll, which gevent replaces."""
    made: select.poll = original("select", "poll")()
    return made


def unix_socket(kind: int) -> socket.socket:
    """A Unix socket of that kind: a call waits in the kernel, and not in gevent's hub."""
    made: socket.socket = original("socket", "socket")(socket.AF_UNIX, kind)
    return made


def sleep(seconds: float) -> None:
    """Sleep, and do not switch greenlets."""
    original("time", "sleep")(seconds)


def ident() -> int:
    """The number of the calling thread of the system; greenlets of one thread have the same."""
    number: int = original("_thread", "get_ident")()
    return number


class Thread:
    """A daemon thread of the system. It is begun once. Any other thread may join it."""

    def __init__(self, run: Callable[[], None], name: str) -> None:
        self._run = run
        self._name = name
        self._running = lock()
        self.ident = 0  # while it has not begun
        self._pid = 0

    def start(self) -> None:
        """Begin. Raises RuntimeError if the system gives no thread."""
        self._running.acquire()
        try:
            if is_green():
                original("_thread", "start_new_thread")(self._begin, ())
            else:
                threading.Thread(target=self._begin, name=self._name, daemon=True).start()
        except BaseException:
            self._running.release()
            raise

    def _begin(self) -> None:
        self.ident, self._pid = ident(), os.getpid()
        try:
            self._run()
        finally:
            self._running.release()

    def is_current(self) -> bool:
        """Whether the caller runs in this thread."""
        return self.ident == ident() and self._pid == os.getpid()  # a forked child may use the thread's number again

    def join(self, seconds: float) -> bool:
        """Wait for the thread's end, `seconds` at most. Returns whether it has ended."""
        if not self._running.acquire(timeout=min(max(seconds, 0.0), threading.TIMEOUT_MAX)):
            return False
        self._running.release()
        return True
