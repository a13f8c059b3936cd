"""The errors of a client: those of `timerd_shm.errors`, and what `Outcome.unwrap()` raises."""

from __future__ import annotations

from timerd_shm.errors import (
    ArenaFullError,
    ArenaNotReadyError,
    ArenaTruncatedError,
    BackpressureError,
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
    error_for,
)
from timerd_shm.errors import OperationFailed as _OperationFailed


class OperationExpired(TimerdError, TimeoutError):
    """The operation reached its deadline before its condition held."""


class OperationCancelled(TimerdError):
    """The operation was withdrawn: by its owner, by key or id, or replaced."""


class OperationFailed(_OperationFailed):
    """`fail()` on its keys, so that its condition can no longer hold."""

    def __init__(self, message: str, fail_code: int = 0, value: bytes = b"") -> None:
        super().__init__(message)
        self.fail_code = fail_code  # what was given to fail()
        self.value = value

    def __reduce__(self) -> tuple[type[OperationFailed], tuple[str, int, bytes]]:
        return OperationFailed, (str(self), self.fail_code, self.value)


def refusal(code: int, value: int) -> TimerdError:
    """The error of a command that the daemon refused; `value` is the limit that was met, or 0."""
    named = error_for(code, "")
    sentence = " ".join((type(named).__doc__ or "").split()) if type(named) is not TimerdError else f"error code {code}"
    if value and code != ErrorCode.MARK_TOO_OLD:  # whose value is the newest event
        sentence += f" (the limit is {value})"
    return error_for(code, sentence)


__all__ = [
    "ArenaFullError",
    "ArenaNotReadyError",
    "ArenaTruncatedError",
    "BackpressureError",
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
    "NotSupportedError",
    "OperationCancelled",
    "OperationExistsError",
    "OperationExpired",
    "OperationFailed",
    "PayloadTooLargeError",
    "QuotaExceededError",
    "ResourceLimitError",
    "SessionGoneError",
    "TimeoutOutOfRangeError",
    "TimerdError",
    "TimerdUnavailableError",
    "TooManyKeysError",
    "TooOldToTellError",
    "UnknownOperationError",
    "UnsupportedVersionError",
    "error_for",
    "refusal",
]
