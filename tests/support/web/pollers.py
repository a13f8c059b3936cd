"""The application of the tests with real servers: one long poll, without a framework, for WSGI and for ASGI.

GET  /pid           the worker's process id
GET  /poll/KEY      200 and what was fired, or 204 after 60 s
GET  /stream/KEY    as /poll, but a stream that sends "begun" before it waits
GET  /lazy/KEY      as /stream, but without "begun" (WSGI alone has it)
GET  /ask/KEY       fires, and waits for the daemon's answer: TimerdUnavailableError without a daemon
GET  /events/KEY    server-sent events, from Last-Event-ID on
POST /fire/KEY      200 and the number of polls that the event has answered
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import timerd as td
from timerd_client import aio
from timerd_client.web import ASGI, WSGI, events, last_event_id

POLL_S = 60.0
HEARTBEAT_S = 0.5
client = td.Client(name="web")  # made at the module's import: with --preload, that is in gunicorn's master
aio_client = aio.Client(name="web")


def view(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """The WSGI application."""
    _, kind, key, *_ = (environ["PATH_INFO"] + "//").split("/")
    if kind == "events":
        start_response("200 OK", [("Content-Type", "text/event-stream")])
        return events(client.subscribe(key, since=last_event_id(environ)), heartbeat=HEARTBEAT_S)
    if kind in ("stream", "lazy"):
        start_response("200 OK", [("Content-Type", "text/plain")])
        return stream(key, begun=kind == "stream")
    body = b""
    if kind == "pid":
        body = str(os.getpid()).encode()
    elif kind == "poll":
        body = client.register(key, timeout=POLL_S).result().value
    elif kind in ("ask", "fire"):
        body = str(client.fire_wait(key, value=str(os.getpid()).encode(), timeout=1)).encode()
    start_response("200 OK" if body else "204 No Content", [("Content-Length", str(len(body)))])
    return [body]


def stream(key: str, *, begun: bool) -> Iterator[bytes]:
    if begun:
        yield b"begun "
    yield client.register(key, timeout=POLL_S).result().value


async def coroutine_view(scope: Any, receive: Any, send: Any) -> None:
    """The ASGI application."""
    if scope["type"] == "lifespan":
        for what in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{what}.complete"})
        return
    _, kind, key, *_ = (scope["path"] + "//").split("/")

    async def start(status: int, *headers: tuple[bytes, bytes]) -> None:
        await send({"type": "http.response.start", "status": status, "headers": list(headers)})

    if kind == "events":
        await start(200, (b"content-type", b"text/event-stream"))
        async for part in events(aio_client.subscribe(key, since=last_event_id(scope)), heartbeat=HEARTBEAT_S):
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
        return
    if kind == "stream":
        await start(200)
        await send({"type": "http.response.body", "body": b"begun ", "more_body": True})
        value = (await aio_client.register(key, timeout=POLL_S)).value
        await send({"type": "http.response.body", "body": value})
        return
    body = b""
    if kind == "pid":
        body = str(os.getpid()).encode()
    elif kind == "poll":
        body = (await aio_client.register(key, timeout=POLL_S)).value
    elif kind in ("ask", "fire"):
        body = str(await aio_client.fire_wait(key, value=str(os.getpid()).encode(), timeout=1)).encode()
    await start(200 if body else 204, (b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.body", "body": body})


application = WSGI(view)
bare = view
asgi = ASGI(coroutine_view, aio_client)
