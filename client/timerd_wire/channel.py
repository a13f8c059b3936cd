"""A ZeroMQ socket as links and the daemon use it: no call blocks, and a full or empty socket is no exception.

`Channel` is the compiled one where it was built (choice.py), else PlainChannel. The compiled one keeps the GIL in its
calls, because a call takes less time than releasing and taking the GIL. pyzmq releases the GIL in each call. Beside a
busy thread it then gets the GIL back only 5 ms later (sys.getswitchinterval). One thread at a time may use a channel.
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
