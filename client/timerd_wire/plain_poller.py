"""The poller by means of the standard library alone: for where the compiled one was not built, and as its measure."""

from __future__ import annotations

import select


class PlainPoller:
    """By means of the standard library alone. One thread polls; others do not touch it meanwhile."""

    def __init__(self) -> None:
        self._poll = select.poll()

    def register(self, descriptor: int) -> None:
        """Watch this descriptor; a few at most."""
        self._poll.register(descriptor, select.POLLIN)

    def unregister(self, descriptor: int) -> None:
        """Watch it no more; raises KeyError if it is not watched."""
        self._poll.unregister(descriptor)

    def poll(self, timeout_ns: int) -> list[int]:
        """Those that are readable, or have ended, when there are some, or when the time is over; perhaps earlier."""
        return [descriptor for descriptor, _ in self._poll.poll(-(-timeout_ns // 1_000_000))]


def plain_sharpen() -> None:
    """Nothing: PlainPoller has whole milliseconds. The compiled one lets the waits of the calling thread end 1 us after
    their time at most from now on, instead of 50 (PR_SET_TIMERSLACK)."""
