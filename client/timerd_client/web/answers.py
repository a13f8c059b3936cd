"""The answer to a request whose view could not answer: the request has ended, or no daemon was there.

    the worker drains              503, Retry-After: 0     the client asks again at once, and another worker answers
    no daemon, no room, no answer  503, Retry-After: 1     X-In-Doubt: false if the call that failed had no effect
    the mark is too old            410                     the client takes a new mark, loads the state, and asks again
    the peer has gone              499                     nobody reads it; the access log shows it

A framework turns an error into a 500 before this package sees the error. If the error that has left the view is one of
UNSERVED, the 500 still becomes a 503 or a 410: see failures.py.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Final, NamedTuple

from timerd_client.errors import (
    ArenaFullError,
    BackpressureError,
    MarkTooOldError,
    QuotaExceededError,
    RequestEnded,
    SessionGoneError,
    TimerdUnavailableError,
)
from timerd_client.scope import Scope

from .failures import cause_among, error_of_500
from .requests import DISCONNECT

RETRY_AFTER_S: Final = 1  # a restarted daemon is back after this time
AGAIN: Final = (TimerdUnavailableError, BackpressureError, ArenaFullError, QuotaExceededError, SessionGoneError)
UNSERVED: Final = (RequestEnded, MarkTooOldError, *AGAIN)
OF_THE_BODY: Final = frozenset(
    [
        "content-digest",
        "content-disposition",
        "content-encoding",
        "content-language",
        "content-location",
        "content-md5",
        "content-range",
        "digest",
        "etag",
        "expires",
        "last-modified",
        "repr-digest",
        "trailer",
        "transfer-encoding",
    ]
)  # headers that describe a body: another body does not have them


class Answer(NamedTuple):
    """An answer of this package, in place of the view's."""

    status: int
    phrase: str
    retry_after: int | None
    mark: str = ""  # a client that asks again with this mark misses nothing
    in_doubt: bool | None = None  # whether the call that failed may have an effect; None: no call has failed

    @property
    def line(self) -> str:
        """The status of WSGI."""
        return f"{self.status} {self.phrase}"

    @property
    def body(self) -> bytes:
        """A line of plain text."""
        return f"{self.phrase}\n".encode()

    def headers(self) -> list[tuple[str, str]]:
        """When to ask again, whether a repeat is safe, and with which mark. No cache keeps the answer."""
        headers = [("Cache-Control", "no-store")]
        if self.retry_after is not None:
            headers.append(("Retry-After", str(self.retry_after)))
        if self.in_doubt is not None:
            headers.append(("X-In-Doubt", str(self.in_doubt).lower()))
        if self.mark:
            headers.append(("X-Mark", self.mark))
        return headers

    def all_headers(self) -> list[tuple[str, str]]:
        """The headers of an answer with this body."""
        body = [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(self.body)))]
        return [*body, *self.headers()]


GONE: Final = Answer(499, "Client Closed Request", None)
DRAINS: Final = Answer(HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.SERVICE_UNAVAILABLE.phrase, 0)
UNAVAILABLE: Final = DRAINS._replace(retry_after=RETRY_AFTER_S)
TOO_OLD: Final = Answer(HTTPStatus.GONE, HTTPStatus.GONE.phrase, None)


def unserved(error: BaseException | None) -> BaseException | None:
    """The error of UNSERVED by which a view has failed. None if it has failed by a fault of its own."""
    return cause_among(UNSERVED, error)


def answer_to(error: BaseException, request: Scope) -> Answer:
    """The answer to a request whose view has raised one of UNSERVED."""
    if isinstance(error, RequestEnded):
        return answer_to_end(error.reason, request)
    if isinstance(error, MarkTooOldError):
        return TOO_OLD
    return UNAVAILABLE._replace(mark=request.mark or "", in_doubt=bool(getattr(error, "in_doubt", True)))


def answer_to_end(reason: str, request: Scope) -> Answer:
    """The answer to a request that has ended for this reason."""
    return GONE if reason == DISCONNECT else DRAINS._replace(mark=request.mark or "")


def instead_of_500(request: Scope) -> Answer | None:
    """The answer in place of a framework's 500. None if the view has failed by a fault of its own."""
    why = unserved(error_of_500(request))
    if why is None:
        return None
    return answer_to_end(request.reason, request) if request.reason else answer_to(why, request)
