"""The steps of a runner for a call. carrier.py yields the steps. Threaded and asyncio clients have runners for them."""

from __future__ import annotations

from collections.abc import Callable, Generator
from datetime import datetime
from typing import Any, Final, NamedTuple, TypeAlias

from timerd_client.arguments import shown, timeout_ns
from timerd_client.protocol.inbox import DeliveredOutcome
from timerd_client.types import Timeout
from timerd_shm.declare.errors import InvalidValueError, SessionGoneError


class Call:
    """The argument of a handler. When the handler returns, the call is done, unless the handler has called `retry`."""

    __slots__ = ("_retry_ns", "attempt", "deliveries", "due", "id", "lateness_ns", "missed", "name", "payload")

    def __init__(
        self,
        name: str,
        id: str,
        payload: bytes,
        due: datetime | None = None,
        attempt: int = 1,
        deliveries: int = 1,
        lateness_ns: int = 0,
        missed: int = 0,
    ) -> None:
        self.name = name
        self.id = id  # as it was given, or a new id; a schedule's call has the schedule's name
        self.payload = payload
        # In UTC, by the wall clock when the call was planned. For a schedule, the first point that the call is for.
        # None after call_later().
        self.due = due
        self.missed = missed  # for a schedule: how many later points the call is also for, up to 1,000
        self.attempt = attempt  # above 1: an earlier attempt has failed, or has asked for a retry
        self.deliveries = deliveries  # above 1: delivered before, to a worker that may have run the handler
        self.lateness_ns = lateness_ns  # from the time when this attempt was due until its handler began
        self._retry_ns: int | None = None

    def retry(self, delay: Timeout) -> None:
        """Run this call again, `delay` s after the handler has ended, with `attempt` + 1.

            if not bank.is_open():
                call.retry(60)
                return

        `retries=` does not limit the number of these retries. Raises TimeoutOutOfRangeError.
        """
        self._retry_ns = delay_ns_of(delay)

    @property
    def retry_ns(self) -> int | None:
        """The delay that was given to `retry`, in ns."""
        return self._retry_ns

    def __repr__(self) -> str:
        return f"<Call {self.name!r} id={shown(self.id)} attempt={self.attempt} deliveries={self.deliveries}>"


class Ask(NamedTuple):
    """A step: issue this command as soon as the daemon is not lost. The steps go on with the answer's (value, error).

    With `done`, the command acknowledges this call. The command is not issued if the call was delivered to an earlier
    incarnation of this client, or in another arena: then the steps go on with NOT_ACKNOWLEDGED. The same holds for
    `about`, a call that the command does not acknowledge.
    """

    command: bytes
    done: DeliveredOutcome | None = None
    about: DeliveredOutcome | None = None


class Run(NamedTuple):
    """A step: run a function of the user. The steps go on with the function's error, or None.

    If the function returns an awaitable, the awaitable is cancelled after `limit_s` (None: never). The error is then
    CallTimeLimitError.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    limit_s: float | None = None


class Pause(NamedTuple):
    """A step: go on after `seconds`."""

    seconds: float


class Acknowledge(NamedTuple):
    """A step: issue this command, which acknowledges a call. The steps do not wait for an answer."""

    command: bytes
    done: DeliveredOutcome


Step: TypeAlias = Ask | Run | Pause | Acknowledge
Steps: TypeAlias = Generator[Step, Any, None]


NOT_ACKNOWLEDGED: Final = (0, SessionGoneError("the daemon has lost sight of this client since the call was delivered"))


def delay_ns_of(delay: Timeout) -> int:
    """How long a call waits, in ns. Raises InvalidValueError, TimeoutOutOfRangeError."""
    if delay is None:
        raise InvalidValueError("delay=None: a call needs a time; give seconds or a timedelta")
    return timeout_ns(delay, "delay", "")


def nobody_awaits(function: object) -> InvalidValueError:
    """The error of a function that has returned a coroutine to a threaded client."""
    return InvalidValueError(
        f"{shown(function)} has returned an awaitable, and a threaded client awaits nothing: serve it with td.aio"
    )
