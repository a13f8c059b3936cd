"""Waiting for a few descriptors, or for a moment that is nearer than a millisecond.

`Poller` is compiled where the rest is (choice.py), else it is PlainPoller, which rounds up to whole milliseconds.
"""

from __future__ import annotations

import select
from typing import TYPE_CHECKING

from .choice import PURE


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


if TYPE_CHECKING or PURE:
    Poller, sharpen = PlainPoller, plain_sharpen
else:
    try:
        from ._poller import Poller, sharpen
    except ImportError:
        Poller, sharpen = PlainPoller, plain_sharpen
