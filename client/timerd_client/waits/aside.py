"""A callback of this package itself: unlike a user's callback, it does not look at the outcome."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Aside:
    """A call that is made when a promise has settled. Asides of one function are equal, so one can remove another.

    `wakes`: the call wakes a waiting caller, who then looks at the outcome. Opening a gate does the same.
    """

    __slots__ = ("_call", "wakes")

    def __init__(self, call: Callable[[Any], object], *, wakes: bool = True) -> None:
        self._call = call
        self.wakes = wakes

    def __call__(self, promise: Any) -> None:
        self._call(promise)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Aside) and self._call == other._call

    def __hash__(self) -> int:
        return hash(self._call)
