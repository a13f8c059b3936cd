"""The application: a long poll and a post, over timerd or over Redis. All other lines are the same for both.

GET  /poll/KEY?since=TEXT    200, a value and X-Since, which the next poll names; 204: no value came within a minute;
                             503: the server is not there
POST /post/KEY               204: the server has the value; 503: the server is not there, or refused the value
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import timerd as td
from timerd_client.web import WSGI

POLL_S = 60.0
CONNECTIONS = 4_000  # of one worker to Redis: one for each poll that waits
Found = tuple[bytes, str] | None  # a value, and the position after it


class OverTimerd:
    """A poll is an operation that counts from the mark of the last value."""

    errors: tuple[type[Exception], ...] = (td.TimerdUnavailableError, td.BackpressureError)

    def __init__(self) -> None:
        self._client = td.Client(name="longpolls")

    def poll(self, key: str, since: str) -> Found:
        mark = td.Mark.parse(since) if since else None
        outcome = self._client.register(key, timeout=POLL_S, since=mark).result()
        outcome.unwrap() if outcome.state is td.State.UNAVAILABLE else None
        return (outcome.value, str(outcome.mark)) if outcome else None

    def post(self, key: str, value: bytes) -> None:
        self._client.fire_wait(key, value=value)


class OverRedis:
    """A list for each key: RPUSH, and BLPOP, which takes a connection for as long as it waits."""

    def __init__(self) -> None:
        import redis

        self.errors = (redis.RedisError,)
        path = str(Path(os.environ["TIMERD_RUNTIME_DIR"]) / "redis.sock")
        # Since redis-py 8 the default socket_timeout is 5 s: each poll that waits for longer would break.
        pool = redis.ConnectionPool(
            connection_class=redis.UnixDomainSocketConnection,
            path=path,
            max_connections=CONNECTIONS,
            socket_timeout=POLL_S + 10,
        )
        self._redis = redis.Redis(connection_pool=pool)

    def poll(self, key: str, since: str) -> Found:
        found: Any = self._redis.blpop([key], timeout=POLL_S)
        return (found[1], "") if found else None

    def post(self, key: str, value: bytes) -> None:
        self._redis.rpush(key, value)


class OverChannels(OverRedis):
    """A channel for each key: PUBLISH, and SUBSCRIBE in each poll."""

    def poll(self, key: str, since: str) -> Found:
        end = time.monotonic() + POLL_S
        with self._redis.pubsub(ignore_subscribe_messages=True) as channel:
            channel.subscribe(key)
            while (left := end - time.monotonic()) > 0:
                message: Any = channel.get_message(timeout=left)
                if message is not None:
                    return message["data"], ""
        return None

    def post(self, key: str, value: bytes) -> None:
        self._redis.publish(key, value)


WAYS: dict[str, Callable[[], Any]] = {"timerd": OverTimerd, "redis blpop": OverRedis, "redis pubsub": OverChannels}
way = WAYS[os.environ.get("LONGPOLL_WAY", "timerd")]()


def view(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    _, kind, key = environ["PATH_INFO"].split("/")
    status, body, headers = "204 No Content", b"", []
    try:
        if kind == "pid":
            status, body = "200 OK", str(os.getpid()).encode()
        elif kind == "poll":
            found = way.poll(key, parse_qs(environ["QUERY_STRING"]).get("since", [""])[0])
            if found is not None:
                status, body, headers = "200 OK", found[0], [("X-Since", found[1])]
        else:
            way.post(key, environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
    except way.errors:
        status = "503 Service Unavailable"
    start_response(status, [("Content-Length", str(len(body))), *headers])
    return [body]


application = WSGI(view)
