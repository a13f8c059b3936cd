"""Every error of timerd, declared once: its code on the wire, its exception, its cause, and a remedy for the caller.

The codes are stable and append-only: a code that has been released is never given another meaning. A message carries
the value and the limit. This module imports no other module of timerd, because all of them raise these errors. The
table "Errors" of client/PROTOCOL.md follows this module.
"""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar


class ErrorCode(IntEnum):
    """Codes as they travel on the wire and stand in the arena's error log. 0 is "no error"."""

    NONE = 0
    MALFORMED = 1
    UNSUPPORTED_VERSION = 2
    NOT_SUPPORTED = 3
    ARENA_FULL = 4
    QUOTA_EXCEEDED = 5
    INVALID_KEY = 6
    KEY_TOO_LONG = 7
    TOO_MANY_KEYS = 8
    PAYLOAD_TOO_LARGE = 9
    TIMEOUT_OUT_OF_RANGE = 10
    OPERATION_EXISTS = 11
    UNKNOWN_OPERATION = 12
    MARK_TOO_OLD = 13
    TOO_OLD_TO_TELL = 14
    UNAVAILABLE = 15
    BACKPRESSURE = 16
    CLOSED = 17
    LAYOUT_MISMATCH = 18
    ARENA_NOT_READY = 19
    ARENA_TRUNCATED = 20
    SESSION_GONE = 21
    INVALID_NAME = 22
    INVALID_CONDITION = 23
    INSTANCE_RUNNING = 24
    INVALID_CONFIG = 25
    RESOURCE_LIMIT = 26
    INVALID_VALUE = 27
    KEY_FAILED = 28
    NOT_A_MEMBER = 29
    ARENA_DAMAGED = 30
    CHECK_INCOMPLETE = 31
    # insert new codes above this line; a code is never reused


class TimerdError(Exception):
    """Base of the errors of timerd, except RequestEnded. Catch it for any of them. `code` is the code on the wire.

    `in_doubt` is False if the call that raised the error has no effect: a repeat is safe. It is True if the command of
    the call may have been applied, or may be applied later. In the error of an outcome it is True if the operation may
    have settled in another way.
    """

    code: ClassVar[ErrorCode] = ErrorCode.NONE
    in_doubt: bool = False
    by_code: ClassVar[dict[ErrorCode, type[TimerdError]]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.code is ErrorCode.NONE or "code" not in cls.__dict__:
            return
        if cls.code in TimerdError.by_code:
            raise TypeError(f"{cls.__name__} and {TimerdError.by_code[cls.code].__name__} share {cls.code!r}")
        TimerdError.by_code[cls.code] = cls


class MalformedError(TimerdError, ValueError):
    """A frame or record is not what its header says. This is a bug of the sender: report it, and do not send again."""

    code = ErrorCode.MALFORMED


class UnsupportedVersionError(TimerdError):
    """Client and daemon speak different versions of the protocol. Upgrade the older of the two."""

    code = ErrorCode.UNSUPPORTED_VERSION


class NotSupportedError(TimerdError, NotImplementedError):
    """The command is known but this daemon cannot do it (yet). Do without it."""

    code = ErrorCode.NOT_SUPPORTED


class ArenaFullError(TimerdError):
    """Every record of one kind is in use. Back off and retry, or start the daemon with a larger --capacity."""

    code = ErrorCode.ARENA_FULL


class QuotaExceededError(TimerdError):
    """This client, its group, process or user holds as much as it may. Let operations settle, or raise the quota."""

    code = ErrorCode.QUOTA_EXCEEDED


class InvalidKeyError(TimerdError, ValueError):
    """A watch key is empty, given twice, or neither str nor bytes. Give 1 to 255 bytes."""

    code = ErrorCode.INVALID_KEY


class KeyTooLongError(TimerdError, ValueError):
    """A watch key or an id has more than 255 bytes. Hash it, or shorten it."""

    code = ErrorCode.KEY_TOO_LONG


class TooManyKeysError(TimerdError, ValueError):
    """An operation watches more than 64 keys. Split it, or let one key stand for many."""

    code = ErrorCode.TOO_MANY_KEYS


class PayloadTooLargeError(TimerdError, ValueError):
    """A payload or value has more than 65,536 bytes. Pass a reference instead."""

    code = ErrorCode.PAYLOAD_TOO_LARGE


class TimeoutOutOfRangeError(TimerdError, ValueError):
    """An operation's timeout is negative or above ten years, or a time is no number. Give 0 s to ten years."""

    code = ErrorCode.TIMEOUT_OUT_OF_RANGE


class OperationExistsError(TimerdError):
    """An operation of that id is pending, or has settled within the last hour. Use if_exists="keep" or "replace"."""

    code = ErrorCode.OPERATION_EXISTS
    settled: int = 0  # how it has settled (states.Outcome), from the daemon's answer; 0 = pending, or not known
    kept: bool = False  # the registration that was refused said if_exists="keep"


class UnknownOperationError(TimerdError, LookupError):
    """No operation of that id is pending. It has settled, or was never registered: see its outcome, or register it."""

    code = ErrorCode.UNKNOWN_OPERATION


class MarkTooOldError(TimerdError):
    """Some events after the mark are no longer known: one may be missed. Take a new mark, check, register again."""

    code = ErrorCode.MARK_TOO_OLD


class TooOldToTellError(TimerdError):
    """The id may have settled before, and the daemon may have forgotten it. Look in the journal, or use a new id."""

    code = ErrorCode.TOO_OLD_TO_TELL


class TimerdUnavailableError(TimerdError):  # not an OSError, which gunicorn takes for a broken connection
    """No daemon answered in time. Start it (`timerd`), or connect(autostart=True).

    `in_doubt` is False if the call has sent no command and keeps none: for example, the daemon was lost before the
    call. Otherwise it is True: the command may have been applied, or may be applied when the daemon is back.
    """

    code = ErrorCode.UNAVAILABLE

    def __init__(self, *args: object, in_doubt: bool = True) -> None:
        super().__init__(*args)
        self.in_doubt = in_doubt


class BackpressureError(TimerdError):
    """The window is full: the daemon does not keep up. Slow down and retry; in asyncio, await `client.room()`.

    `in_doubt` is True if a batch, such as `fire_many`, had sent some of its rows.
    """

    code = ErrorCode.BACKPRESSURE


class ClosedError(TimerdError):
    """The client was closed, or it was made before a fork of this process. Use td.client(), or make another client.

    `in_doubt` is True if the client was closed while this call waited for its answer.
    """

    code = ErrorCode.CLOSED

    def __init__(self, *args: object, in_doubt: bool = False) -> None:
        super().__init__(*args)
        self.in_doubt = in_doubt


class LayoutMismatchError(TimerdError):
    """The arena was written by another version. Run the same version on both sides, or `timerctl destroy` it."""

    code = ErrorCode.LAYOUT_MISMATCH


class ArenaNotReadyError(TimerdError):
    """The arena is still being made, or is not there yet. Retry shortly."""

    code = ErrorCode.ARENA_NOT_READY


class ArenaTruncatedError(TimerdError):
    """The arena is shorter than its header says. Its storage was damaged: `timerctl destroy` it."""

    code = ErrorCode.ARENA_TRUNCATED


class ArenaDamagedError(TimerdError):
    """A record names a record that does not exist. `timerctl check` says more; `timerctl destroy` removes the arena."""

    code = ErrorCode.ARENA_DAMAGED


class SessionGoneError(TimerdError):
    """The daemon knows neither this client nor its pending operations any more. The client goes on; register again.

    `in_doubt` is True: operations may have settled, and commands may have been applied.
    """

    code = ErrorCode.SESSION_GONE
    in_doubt = True


class InvalidNameError(TimerdError, ValueError):
    """A name is not of the form [a-z0-9_-]{1,32}. Choose another name."""

    code = ErrorCode.INVALID_NAME


class InvalidConditionError(TimerdError, ValueError):
    """The condition can never hold: at_least(3) of 2 keys, total(0), a watermark under total. Correct when= or keys."""

    code = ErrorCode.INVALID_CONDITION


class InstanceRunningError(TimerdError):
    """A daemon of that instance is running. Stop it first, or give this daemon another --instance."""

    code = ErrorCode.INSTANCE_RUNNING


class InvalidConfigError(TimerdError, ValueError):
    """A knob is unknown, or its value is out of range. Write the name or the value that the message shows."""

    code = ErrorCode.INVALID_CONFIG


class ResourceLimitError(TimerdError, OSError):
    """The machine lacks a resource, or refuses it: memory, descriptors, permissions. The message has the remedy."""

    code = ErrorCode.RESOURCE_LIMIT


class InvalidValueError(TimerdError, ValueError):
    """An amount, limit, watermark, code or option has a wrong type, or is out of range. Keep within the limits."""

    code = ErrorCode.INVALID_VALUE


class NotAMemberError(TimerdError):
    """The call needs a group, and the client is in none. Connect with group=NAME."""

    code = ErrorCode.NOT_A_MEMBER


class CheckIncompleteError(TimerdError, TimeoutError):
    """Not every owner has looked in time. `completed` operations are complete, and the others go on: check again."""

    code = ErrorCode.CHECK_INCOMPLETE
    in_doubt = True

    def __init__(self, message: str, completed: int = 0) -> None:
        super().__init__(message)
        self.completed = completed


class OperationFailed(TimerdError):
    """The operation failed: after fail() its condition can no longer hold. See the `value` that was given to fail()."""

    code = ErrorCode.KEY_FAILED


def error_for(code: int, message: str) -> TimerdError:
    """The exception of a wire code; an unknown code (of a newer daemon) becomes a plain TimerdError that names it."""
    try:
        return TimerdError.by_code[ErrorCode(code)](message)
    except (ValueError, KeyError):
        return TimerdError(f"error code {code}: {message}")
