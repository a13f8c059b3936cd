"""The handle of a call. `call_later` and `call_at` return it."""

from __future__ import annotations

from typing import Any

from timerd_client.arguments import shown
from timerd_client.types import Timeout


class ScheduledCall:
    """A call, by its id. Any thread may use it. Dropping it changes nothing; another process may name `id` instead."""

    __slots__ = ("_client", "id", "name")
    _client: Any  # of the same face

    def __init__(self, client: Any, name: str, id: str) -> None:
        self._client = client
        self.name = name
        self.id = id  # as it was given, or an id of its own

    def cancel(self) -> None:
        """Cancel it while it is pending. Returns at once; see `cancel_wait`."""
        self._client.cancel_call(self.id)

    def reschedule(self, delay: Timeout) -> None:
        """Have it come `delay` s from now, if it is pending. Returns at once; see `reschedule_wait`."""
        self._client.reschedule_call(self.id, delay)

    def __repr__(self) -> str:
        return f"<ScheduledCall {self.name!r} id={shown(self.id)}>"

    # Each face overrides these calls, and has no docstrings of its own for them: help() and editors show these.

    def cancel_wait(self, *given: Any, **named: Any) -> object:
        """`cancel`, and whether it was pending. Raises TimerdUnavailableError after `timeout` s."""

    def reschedule_wait(self, *given: Any, **named: Any) -> object:
        """`reschedule`, and whether it was pending. Raises TimerdUnavailableError after `timeout` s."""
