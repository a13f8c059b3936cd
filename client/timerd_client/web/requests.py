"""The requests of this process whose views run now. drain() ends all of them.

There is no lock, because a signal handler calls drain(), and may interrupt every function here. begin() notes a request
before it looks at `_draining`, and drain() sets `_draining` first: so each open request is ended.
"""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import Final

from timerd_client.link.link import take_no_calls
from timerd_client.scope import Scope

from . import files

DRAIN: Final = "drain"
DISCONNECT: Final = "disconnect"

_open: set[Scope] = set()
_draining = ""
_look_at = 1  # the number of open requests at which open files are counted next


def begin() -> Scope:
    """Begin a request. The caller must call `finish` at its end."""
    global _look_at
    request = Scope()
    _open.add(request)
    if len(_open) >= _look_at:
        _look_at = files.look(len(_open))
    if _draining:
        request.end(_draining)
    return request


def finish(request: Scope) -> None:
    """The request's view has returned, and its body was sent. A second call changes nothing."""
    _open.discard(request)


def drain(reason: str = DRAIN) -> None:
    """End the waits of all requests of this process, also of later requests, because the process is about to end.

    A poll is answered with 503 and `Retry-After: 0`, so its client asks another worker at once. The clients of this
    process take no further calls of their groups. Any thread and any signal handler may call drain().
    """
    global _draining
    _draining = reason
    take_no_calls()
    for request in list(_open):
        request.end(reason)


def drain_at(number: signal.Signals) -> None:
    """Drain at this signal, then run the handler that was set before. Call this in the main thread."""
    before = signal.getsignal(number)

    def handle(received: int, frame: FrameType | None) -> None:
        try:
            drain()
        finally:  # a server that does not get its signal goes on for ever
            if callable(before):
                before(received, frame)
            elif before is signal.SIG_DFL:
                signal.signal(received, signal.SIG_DFL)
                os.kill(os.getpid(), received)

    signal.signal(number, handle)


def _after_fork_in_child() -> None:
    global _draining, _look_at
    _open.clear()
    _draining = ""
    _look_at = 1


os.register_at_fork(after_in_child=_after_fork_in_child)
