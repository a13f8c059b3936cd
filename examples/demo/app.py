"""Long polling over several worker processes, as a plain WSGI application for gunicorn.

    GET  /poll/KEY?timeout=SECONDS   200 with the posted message, or 204 when nobody posted in time
    POST /post/KEY                   200 with the number of polls that this post has answered

A poll waits in one worker, and its post may arrive at any other: timerd connects them. Every answer names the worker
that sent it. A posted value names the worker that received the post.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import parse_qs

import timerd as td

Environ = dict[str, Any]
StartResponse = Callable[[str, list[tuple[str, str]]], object]

# Made in gunicorn's master (--preload), on purpose: each worker connects by itself, at its first use of the client.
IN_MASTER = td.client()


def application(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
    """The WSGI entry point."""
    method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
    match (method, *path.strip("/").split("/")):
        case ("GET", "poll", key):
            seconds = float(parse_qs(environ["QUERY_STRING"])["timeout"][0])
            status, body = poll(key, seconds)
        case ("POST", "post", key):
            text = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"] or 0))
            status, body = post(key, text)
        case _:
            status, body = "404 Not Found", b""
    start_response(status, [("Content-Length", str(len(body))), ("X-Worker", str(os.getpid()))])
    return [body]


def poll(key: str, seconds: float) -> tuple[str, bytes]:
    """Wait for a post on the key. Returns status and body."""
    outcome = td.client().register(f"poll/{key}", timeout=seconds).result()
    match outcome.state:
        case td.State.COMPLETED if outcome.value_dropped:
            return "503 Service Unavailable", b"no room for the answer"
        case td.State.COMPLETED:
            return "200 OK", outcome.value
        case td.State.EXPIRED:
            return "204 No Content", b""
        case _:
            return "503 Service Unavailable", str(outcome.error).encode()


def post(key: str, text: bytes) -> tuple[str, bytes]:
    """Answer every poll that waits on the key. Returns status and body."""
    message = {"text": text.decode(), "worker": os.getpid()}
    answered = td.client().fire_wait(f"poll/{key}", value=json.dumps(message).encode())
    return "200 OK", json.dumps({"answered": answered}).encode()
