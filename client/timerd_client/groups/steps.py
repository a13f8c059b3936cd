"""What a runner does for a call: steps, which calls.py gives one after the other, and each face does in its own way."""

from __future__ import annotations

from collections.abc import Callable, Generator
from datetime import datetime
from typing import Any, Final, NamedTuple, TypeAlias

from timerd_client.protocol.inbox import DeliveredOutcome
from timerd_shm.declare.errors import SessionGoneError


class Call(NamedTuple):
    """What a handler is given. When the handler returns, the call is acknowledged."""

    name: str
    payload: bytes
    due: datetime | None  # in UTC, by the wall clock when it was planned; None after call_later()
    deliveries: int  # above 1: the call was delivered before, to a worker that may have run its handler
    lateness_ns: int  # after its deadline, when it settled


class Ask(NamedTuple):
    """A step: issue this command when the daemon is not lost; the steps go on with (value, error) of its answer.

    With `done`, the command acknowledges that call. It is not issued if the call was delivered to an earlier
    incarnation of this client, or in another arena: the steps go on with NOT_ACKNOWLEDGED then.
    """

    command: bytes
    done: DeliveredOutcome | None = None


class Run(NamedTuple):
    """A step: run the handler. An exception from it is logged."""

    handler: Callable[[Call], Any]
    call: Call


class Pause(NamedTuple):
    """A step: go on in so many seconds."""

    seconds: float


class Acknowledge(NamedTuple):
    """A step: issue this command, which acknowledges a call; the steps do not wait for an answer."""

    command: bytes
    done: DeliveredOutcome


Step: TypeAlias = Ask | Run | Pause | Acknowledge
Steps: TypeAlias = Generator[Step, Any, None]


NOT_ACKNOWLEDGED: Final = (0, SessionGoneError("the daemon has lost sight of this client since the call was delivered"))
