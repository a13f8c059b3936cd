"""A ZeroMQ socket as links and the daemon use it: nothing blocks, and what is not possible now is no exception.

`Channel` is compiled where the rest is (choice.py), else it is PlainChannel. The compiled one keeps the GIL in its
calls, which take less than to hand it over: pyzmq gives it up in each of them, and where another thread is busy gets it
back only 5 ms later (sys.getswitchinterval). It must be used by one thread at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .choice import CHOICE, PURE
from .plain_channel import PlainChannel

if TYPE_CHECKING or PURE:
    Channel = PlainChannel
else:
    try:
        from ._channel import Channel
    except ImportError:
        if CHOICE:
            raise
        Channel = PlainChannel
