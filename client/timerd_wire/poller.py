"""Waiting for a few descriptors, with a timeout that may be shorter than a millisecond.

`Poller` is the compiled one where it was built (choice.py), else PlainPoller, which rounds up to whole milliseconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .choice import CHOICE, PURE
from .plain_poller import PlainPoller, plain_sharpen

if TYPE_CHECKING or PURE:
    Poller, sharpen = PlainPoller, plain_sharpen
else:
    try:
        from ._poller import Poller, sharpen
    except ImportError:
        if CHOICE:
            raise
        Poller, sharpen = PlainPoller, plain_sharpen
