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
from timerd_shm.layout import Outcome


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
    """The error of a command that the daemon refused; `value` is what it met (wire.WireAnswer), or 0."""
    named = error_for(code, "")
    sentence = " ".join((type(named).__doc__ or "").split()) if type(named) is not TimerdError else f"error code {code}"
    return error_for(code, sentence + _met(code, value))


def _met(code: int, value: int) -> str:
    """What the value of a refusal says."""
    match code:
        case ErrorCode.ARENA_FULL:
            return f" ({value} of {value} records are in use)"
        case ErrorCode.OPERATION_EXISTS:
            settled = {int(outcome): outcome.name.lower() for outcome in Outcome}.get(value, f"outcome {value}")
            return f" (it has settled: {settled})" if value else " (it is pending)"
        case ErrorCode.NOT_SUPPORTED:
            return f" (command {value})"
        case ErrorCode.MARK_TOO_OLD | ErrorCode.TOO_OLD_TO_TELL:
            return ""  # a sequence, a time: nothing that people know
    return f" (the limit is {value})" if value else ""


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
