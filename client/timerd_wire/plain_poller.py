"""The poller over the standard library, for where the compiled one was not built. Tests compare both."""

from __future__ import annotations

import select

from . import native


class PlainPoller:
    """A poller over select.poll. One thread polls; other threads do not use it meanwhile."""

    def __init__(self) -> None:
        self._poll = native.poll()

    def register(self, descriptor: int) -> None:
        """Watch this descriptor; a few at most."""
        self._poll.register(descriptor, select.POLLIN)

    def unregister(self, descriptor: int) -> None:
        """Stop watching it. Raises KeyError if it is not watched."""
        self._poll.unregister(descriptor)

    def poll(self, timeout_ns: int) -> list[int]:
        """The descriptors that are readable or have ended. Waits for them; may return none before the timeout."""
        return [descriptor for descriptor, _ in self._poll.poll(-(-timeout_ns // 1_000_000))]


def plain_sharpen() -> None:
    """Do nothing: PlainPoller waits for whole milliseconds.

    The compiled one sets the timer slack of the calling thread from 50 us to 1 us (PR_SET_TIMERSLACK). So a wait ends
    at most 1 us late.
    """
