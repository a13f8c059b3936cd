"""The handle of a call. `call_later` and `call_at` return it."""

from __future__ import annotations

from typing import Any

from timerd_client.arguments import shown
from timerd_client.types import Timeout


class ScheduledCall:
    """The handle of a call. Any thread may use it. Dropping it changes nothing. Another process can use its `id`."""

    __slots__ = ("_client", "id", "name")
    _client: Any  # the client that made the call, threaded or of asyncio

    def __init__(self, client: Any, name: str, id: str) -> None:
        self._client = client
        self.name = name
        self.id = id  # as it was given, or a new id

    def cancel(self) -> None:
        """Cancel the call, if it is pending. Returns at once; see `cancel_wait`."""
        self._client.cancel_call(self.id)

    def reschedule(self, delay: Timeout) -> None:
        """Make the call due `delay` s from now, if it is pending. Returns at once; see `reschedule_wait`."""
        self._client.reschedule_call(self.id, delay)

    def __repr__(self) -> str:
        return f"<ScheduledCall {self.name!r} id={shown(self.id)}>"

    # Threaded and asyncio clients override these calls without docstrings: help() and editors show those below.

    def cancel_wait(self, *given: Any, **named: Any) -> object:
        """As `cancel`; returns whether the call was pending. Raises TimerdUnavailableError after `timeout` seconds."""

    def reschedule_wait(self, *given: Any, **named: Any) -> object:
        """As `reschedule`; returns whether the call was pending. Raises TimerdUnavailableError after `timeout` s."""
