"""Exit statuses, declared once: their names, and their meanings for --help."""

from __future__ import annotations

from enum import IntEnum

from timerd_shm.declare.errors import (
    InvalidConditionError,
    InvalidKeyError,
    InvalidNameError,
    InvalidValueError,
    KeyTooLongError,
    PayloadTooLargeError,
    TimerdError,
    TimerdUnavailableError,
    TooManyKeysError,
)


class Exit(IntEnum):
    """The exit statuses of timerctl's commands."""

    OK = 0
    PROBLEM = 1
    USAGE = 2
    NO_INSTANCE = 3
    NO_DAEMON = 4
    INTERRUPTED = 130
    CUT_OFF = 141


MEANINGS: dict[Exit, str] = {
    Exit.OK: "done; for register: the operation was completed",
    Exit.PROBLEM: "a problem was found, a command was refused, or no operation completed",
    Exit.USAGE: "the command line is wrong: a name, a key, a size, a number",
    Exit.NO_INSTANCE: "there is no such instance",
    Exit.NO_DAEMON: "the command needs the daemon, which is not running, or gives no answer",
    Exit.INTERRUPTED: "interrupted by Ctrl-C, which also ends stats --watch",
    Exit.CUT_OFF: "the reader of the output has closed it, as `| head` does",
}
STATUSES = "".join(f"  {status.value:3}  {meaning}\n" for status, meaning in MEANINGS.items())


WRONG_ARGUMENT = (
    InvalidConditionError,
    InvalidKeyError,
    InvalidNameError,
    InvalidValueError,
    KeyTooLongError,
    PayloadTooLargeError,
    TooManyKeysError,
)


class NoInstanceError(TimerdError):
    """No runtime directory holds the instance."""


class NoDaemonError(TimerdError):
    """The instance exists, but its daemon does not run or does not answer."""


class UsageError(TimerdError, ValueError):
    """The command line is wrong in a way that argparse cannot see."""


def exit_of(error: TimerdError) -> Exit:
    """The exit status of a command that ended with this error."""
    if isinstance(error, NoInstanceError):
        return Exit.NO_INSTANCE
    if isinstance(error, NoDaemonError | TimerdUnavailableError):
        return Exit.NO_DAEMON
    if isinstance(error, (UsageError, *WRONG_ARGUMENT)):
        return Exit.USAGE
    return Exit.PROBLEM
