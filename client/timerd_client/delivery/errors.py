"""Errors of deliveries, and their texts. Decides whether to send again after an error, and which text is kept."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final

from timerd_shm.declare.errors import InvalidValueError

ERROR_SIZE_MAX: Final = 1_000  # characters of an error that are kept
CLOSED: Final = "this producer is closed: it takes no more records; make another one"
OF_PARENT: Final = "this producer and its threads belong to the process that has forked: make a new producer here"
GIVEN_UP: Final = "close() gave it up after its timeout"
STATUS_RETRIABLE: Final = (408, 425, 429)  # timeout, too early, too many requests; from 500 on all are retriable


class DeliveryTimeoutTooShortError(InvalidValueError):
    """delivery_timeout < linger + request_timeout: attempts may lack time. Increase the first, or lower the others."""


Retriable = Callable[[Exception], bool]


class RetriableError(Exception):
    """A send may raise this error, for any reason. Its batch is then sent again, until the delivery_timeout is over."""


def is_retriable(error: Exception) -> bool:
    """Whether to send again after this error.

    True for RetriableError, OSError (timeouts, connections), errors of http.client, and HTTP status 408, 425, 429, 5xx.
    False for all other errors, and for any ValueError or InvalidURL: a retry cannot cure them.
    """
    status = _status_of(error)
    if status is not None:
        return status >= 500 or status in STATUS_RETRIABLE
    if isinstance(error, RetriableError):
        return True
    from http.client import HTTPException, InvalidURL  # its import is slow, and most programs never need it

    return isinstance(error, (OSError, HTTPException)) and not isinstance(error, (ValueError, InvalidURL))


def _status_of(error: Exception) -> int | None:
    """The HTTP status that an error of urllib, requests, httpx or aiohttp carries."""
    for holder in (error, getattr(error, "response", None)):
        for name in ("code", "status_code", "status"):
            status = getattr(holder, name, None)
            if type(status) is int and 400 <= status < 600:
                return status
    return None


def text_of(error: BaseException) -> str:
    """The text of an error in a delivery. It can be encoded, even if the error names a file with arbitrary bytes."""
    text = f"{type(error).__name__}: {error}"[:ERROR_SIZE_MAX]
    return text.encode(errors="backslashreplace").decode()


def judged(error: BaseException | None, retriable: Retriable) -> tuple[str | None, bool]:
    """The text of a send's error (None without an error), and whether to send again."""
    if error is None:
        return None, True
    try:
        return text_of(error), isinstance(error, Exception) and retriable(error)
    except BaseException as worse:  # an error of the user's code must not end the caller
        return f"{type(error).__name__}; judging this error raised {type(worse).__name__}", False


def buffer_full(max_block_s: float, records: int) -> str:
    """The message of a send() that has waited for room in vain."""
    return (
        f"send() has waited max_block={max_block_s:g} s, and the buffer is full: {records} records are under way; "
        "slow down, or give more buffer_records, buffer_bytes or max_block"
    )


def lane_unknown(max_block_s: float, lane: Hashable) -> str:
    """The message of a send() that has waited for its lane in vain."""
    return f"send() has waited max_block={max_block_s:g} s, and ready({lane!r}) is still None: not known where to send"
