"""The errors of a client: those of `timerd_shm.declare.errors`, and those of outcomes, calls and requests.

`timerd_client` and `timerd_client.aio` export the names in `__all__`.
"""

from __future__ import annotations

from timerd_shm.declare.errors import (
    ArenaFullError,
    ArenaNotReadyError,
    ArenaTruncatedError,
    BackpressureError,
    CheckIncompleteError,
    ClosedError,
    ErrorCode,
    InvalidConditionError,
    InvalidKeyError,
    InvalidNameError,
    InvalidValueError,
    KeyTooLongError,
    LayoutMismatchError,
    MalformedError,
    MarkTooOldError,
    NotAMemberError,
    NotSupportedError,
    OperationExistsError,
    PayloadTooLargeError,
    QuotaExceededError,
    ResourceLimitError,
    SessionGoneError,
    TimeoutOutOfRangeError,
    TimerdError,
    TimerdUnavailableError,
    TooManyKeysError,
    TooOldToTellError,
    UnknownOperationError,
    UnsupportedVersionError,
)
from timerd_shm.declare.errors import OperationFailed as _OperationFailed


class OperationExpired(TimerdError, TimeoutError):
    """The operation reached its deadline before its condition held. Register again, or give a longer timeout."""


class OperationCancelled(TimerdError):
    """The operation was cancelled by its owner, by key or by id, or it was replaced. Register again if it is wanted."""


class CallGivenUpError(TimerdError):
    """A call is given up: its handler has ended as many processes as the handler's `deliveries` allows.

    Find what ends the process, then make the call again: `timerctl calls retry NUMBER`.

    `on_failure` gets this error. If a process ends while `on_failure` runs, the next run of `on_failure` gets this
    error, too, in place of the handler's own error.
    """


class CallTimeLimitError(TimerdError, TimeoutError):
    """A handler has run for longer than its `time_limit`, and was cancelled. Give more time, or do less in one call."""


class RequestEnded(BaseException):
    """The request in which a caller waited has ended: `reason` is "disconnect" (the peer has gone) or "drain".

    Let it through, and clean up in `finally`.

    Like asyncio.CancelledError, it is not an Exception: a view that catches errors lets it through, and so do
    frameworks. `timerd_client.web` answers the request.
    """

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason

    def __reduce__(self) -> tuple[type[RequestEnded], tuple[str, str]]:
        return RequestEnded, (str(self), self.reason)


class OperationFailed(_OperationFailed):
    """`fail()` was called on the operation's keys, so the condition can no longer hold. See `fail_code` and `value`."""

    def __init__(self, message: str, fail_code: int = 0, value: bytes = b"") -> None:
        super().__init__(message)
        self.fail_code = fail_code  # the code that was given to fail()
        self.value = value

    def __reduce__(self) -> tuple[type[OperationFailed], tuple[str, int, bytes]]:
        return OperationFailed, (str(self), self.fail_code, self.value)


__all__ = [
    "ArenaFullError",
    "ArenaNotReadyError",
    "ArenaTruncatedError",
    "BackpressureError",
    "CallGivenUpError",
    "CallTimeLimitError",
    "CheckIncompleteError",
    "ClosedError",
    "ErrorCode",
    "InvalidConditionError",
    "InvalidKeyError",
    "InvalidNameError",
    "InvalidValueError",
    "KeyTooLongError",
    "LayoutMismatchError",
    "MalformedError",
    "MarkTooOldError",
    "NotAMemberError",
    "NotSupportedError",
    "OperationCancelled",
    "OperationExistsError",
    "OperationExpired",
    "OperationFailed",
    "PayloadTooLargeError",
    "QuotaExceededError",
    "RequestEnded",
    "ResourceLimitError",
    "SessionGoneError",
    "TimeoutOutOfRangeError",
    "TimerdError",
    "TimerdUnavailableError",
    "TooManyKeysError",
    "TooOldToTellError",
    "UnknownOperationError",
    "UnsupportedVersionError",
]
