"""Server-sent events of a subscription: a stream for a browser's EventSource, which goes on after a lost connection.

id: 00000000075bcd15-41          at the beginning: the first mark, and how long a browser waits to connect again
retry: 1000

id: 00000000075bcd15-42          the mark: Last-Event-ID of the next connection
event: fire                      or "advance", "fail", "gap"
data: hello

: alive                          a comment, after a time without events

retry: 0                         at the end, when the worker drains: another worker goes on at once
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias, overload

from timerd_client.aio.subscription import Subscription as AioSubscription
from timerd_client.arguments import seconds_of, shown
from timerd_client.errors import InvalidValueError, RequestEnded
from timerd_client.events.event import Event, Gap
from timerd_client.mark import Mark
from timerd_client.threaded.subscription import Subscription
from timerd_client.types import Patience, Payload

from .requests import DISCONNECT

MEDIA_TYPE: Final = "text/event-stream"
HEARTBEAT_S: Final = 15.0  # proxies close a connection that is silent for a minute
RETRY_MS: Final = 1000
RETRY_NOW: Final = b"retry: 0\n\n"
ALIVE: Final = b": alive\n\n"

Data: TypeAlias = Callable[[Event], str | Payload]


@overload
def events(
    subscription: Subscription, *, heartbeat: Patience = HEARTBEAT_S, data: Data | None = None
) -> Iterator[bytes]: ...


@overload
def events(
    subscription: AioSubscription, *, heartbeat: Patience = HEARTBEAT_S, data: Data | None = None
) -> AsyncIterator[bytes]: ...


def events(
    subscription: Subscription | AioSubscription,
    *,
    heartbeat: Patience = HEARTBEAT_S,
    data: Data | None = None,
) -> Iterator[bytes] | AsyncIterator[bytes]:
    """The body of an answer of media type "text/event-stream". The subscription is closed at its end.

    `data(event)` is the text of an event for the browser (default: its value). It is sent line by line, as UTF-8.
    `heartbeat` is the time without events after which a comment is sent; None: no comments. Raises InvalidValueError.
    """
    if heartbeat is not None and not (seconds_of(heartbeat) or 0.0) > 0:
        raise InvalidValueError(
            f"heartbeat={shown(heartbeat)}: give a time above 0, as seconds or a timedelta, or None"
        )
    if isinstance(subscription, AioSubscription):
        return _coming(subscription, heartbeat, data)
    return _stream(subscription, heartbeat, data)


def last_event_id(request: Mapping[str, Any]) -> Mark | None:
    """The mark after the last event that a browser has got, for `subscribe(since=)`; None for a new stream.

    `request` is the environ of WSGI, or the scope of ASGI.
    """
    text = request.get("HTTP_LAST_EVENT_ID")
    if text is None:
        text = next(
            (value.decode("latin-1") for name, value in request.get("headers", ()) if name == b"last-event-id"), ""
        )
    try:
        return Mark.parse(text)
    except InvalidValueError:  # there is none, or it is of another stream
        return None


def _stream(subscription: Subscription, heartbeat: Patience, data: Data | None) -> Iterator[bytes]:
    try:
        yield _beginning(subscription.mark)
        while (item := subscription.next(heartbeat)) is not None or not subscription.closed:
            yield _text(item, data)
    except RequestEnded as ended:
        if ended.reason != DISCONNECT:
            yield RETRY_NOW
    finally:
        subscription.close()


async def _coming(subscription: AioSubscription, heartbeat: Patience, data: Data | None) -> AsyncIterator[bytes]:
    try:
        yield _beginning(subscription.mark)
        while (item := await subscription.next(heartbeat)) is not None or not subscription.closed:
            yield _text(item, data)
    except RequestEnded as ended:
        if ended.reason != DISCONNECT:
            yield RETRY_NOW
    finally:
        subscription.close()


def _beginning(mark: Mark) -> bytes:
    """The beginning. A browser that loses the connection before the first event asks with this id, and misses none."""
    return b"id: %s\nretry: %d\n\n" % (str(mark).encode(), RETRY_MS)


def _text(item: Event | Gap | None, data: Data | None) -> bytes:
    if item is None:
        return ALIVE
    if isinstance(item, Gap):
        return _block(item.mark, "gap", item.reason.encode())
    shown = item.value if data is None else data(item)
    return _block(item.mark, item.kind, shown.encode() if isinstance(shown, str) else bytes(shown))


def _block(mark: Mark, name: str, data: bytes) -> bytes:
    lines = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    return (
        b"id: %s\nevent: %s\n" % (str(mark).encode(), name.encode())
        + b"".join(b"data: " + line + b"\n" for line in lines)
        + b"\n"
    )
