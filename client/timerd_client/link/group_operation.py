"""The handle of an operation that belongs to the group from the start: `register(keys, timeout=30, group=True)`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from timerd_client.arguments import shown
from timerd_client.types import Key, Timeout

if TYPE_CHECKING:
    from .surface import Surface


class GroupOperation:
    """An operation of the group. Its outcome goes to one live member, through `client.outcomes()`, and not here.

    So the handle has no `result()`. It names the operation by its id, as any process of the group may:
    `client.cancel(id)`, `client.reschedule(id, delay)`, and `cancel_wait` and `reschedule_wait`. Any thread may use it.
    Dropping it leaves the operation pending, and so does the end of this process.
    """

    __slots__ = ("_surface", "id", "keys", "payload")

    def __init__(self, surface: Surface[Any, Any], keys: tuple[Key, ...], id: Key, payload: bytes) -> None:
        self._surface = surface
        self.keys = keys
        self.id = id  # the one that was given, or one of its own
        self.payload = payload

    def cancel(self) -> None:
        """Cancel it. Returns at once, and does nothing if it has settled: see `client.cancel_wait(id)`."""
        self._surface.cancel(self.id)

    def reschedule(self, delay: Timeout) -> None:
        """Give it a new deadline, `delay` s from now; None = none. Returns at once."""
        self._surface.reschedule(self.id, delay)

    def __repr__(self) -> str:
        return f"<GroupOperation {shown(self.keys)} id={shown(self.id)}>"
