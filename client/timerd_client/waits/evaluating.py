"""Whether the caller is a callback of a delayed operation. Such a callback must not wait until owners have looked.

It runs in an owner's look, so it would wait for itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_evaluating: ContextVar[bool] = ContextVar("timerd_evaluating", default=False)


@contextmanager
def evaluating() -> Iterator[None]:
    """A callback of a delayed operation runs in the block."""
    token = _evaluating.set(True)
    try:
        yield
    finally:
        _evaluating.reset(token)


def refuse_in_callback() -> None:
    """Raises RuntimeError in a callback of a delayed operation."""
    if _evaluating.get():
        raise RuntimeError(
            "check_and_complete() in a callback of a delayed operation would wait for itself: it waits until all "
            "owners have looked, and this owner is looking. Fire an event on the key instead: then the owners look, too"
        )
