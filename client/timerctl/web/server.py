"""The page's server: http.server of the standard library, on 127.0.0.1, behind a token, and checks of Host and Origin.

A browser lets other sites send requests to 127.0.0.1, and a name of theirs may lead there (DNS rebinding). So a request
needs the token in its path and a Host of this server, and one with an Origin has to come from this page. The page
loads nothing from elsewhere, and its policy (CSP) forbids it.
"""

from __future__ import annotations

import hmac
import json
import secrets
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from timerctl.exits import UsageError
from timerd_shm.declare.errors import TimerdError

from .answers import Answers, WrongQueryError
from .feed import Feed

FILES: Final = {
    "": ("page.html", "text/html"),
    "page.js": ("page.js", "text/javascript"),
    "page.css": ("page.css", "text/css"),
}
STREAMS_MAX: Final = 16  # pages that are open at once
BODY_MAX: Final = 4_096
REQUEST_S: Final = 10.0  # for a request to arrive, and for an answer to be taken
HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Server(ThreadingHTTPServer):
    """Serves the page on 127.0.0.1. `act` does what a page asks for, or is None."""

    daemon_threads = True
    request_queue_size = 32

    def __init__(self, port: int, feed: Feed, answers: Answers, act: Callable[[Any], Any] | None) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.feed, self.answers, self.act = feed, answers, act
        self.token = secrets.token_urlsafe(18)
        self.streams = threading.BoundedSemaphore(STREAMS_MAX)
        self.hosts = tuple(f"{name}:{self.server_port}" for name in ("127.0.0.1", "localhost"))

    @property
    def url(self) -> str:
        """The address of the page, with its token."""
        return f"http://127.0.0.1:{self.server_port}/{self.token}/"


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: Server
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "timerctl", ""
    timeout = REQUEST_S

    def do_GET(self) -> None:
        """A file of the page, the stream of samples, or an answer."""
        if (name := self._checked()) is None:
            return
        query = dict(parse_qsl(urlsplit(self.path).query, errors="surrogateescape"))
        if name in FILES:
            file, kind = FILES[name]
            text = files(__package__).joinpath(file).read_text()
            if self.server.act is not None:
                text = text.replace("<body>", '<body data-act="yes">')
            self._send(HTTPStatus.OK, text.encode(), kind)
        elif name == "events":
            self._stream()
        elif (answer := self.server.answers.by_name.get(name)) is not None:
            self._answer(lambda: answer(query))
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "there is no such page")

    def do_POST(self) -> None:
        """An act."""
        if (name := self._checked()) is None:
            return
        act, length = self.server.act, self.headers.get("Content-Length", "")
        if name != "act":
            return self._refuse(HTTPStatus.NOT_FOUND, "there is no such page")
        if act is None:
            return self._refuse(HTTPStatus.FORBIDDEN, "this page only looks: start `timerctl web --act`")
        # A form of another site cannot send this type without a question to this server, which it does not answer.
        if self.headers.get("Content-Type") != "application/json" or self.headers.get("Origin") is None:
            return self._refuse(HTTPStatus.FORBIDDEN, "an act comes from the page")
        if not length.isdecimal() or int(length) > BODY_MAX:
            return self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"an act has at most {BODY_MAX} bytes")
        body = self.rfile.read(int(length))
        return self._answer(lambda: act(_parsed(body)))

    def _checked(self) -> str | None:
        """The part of the path behind the token; None if the request was refused."""
        hosts = self.server.hosts
        origin = self.headers.get("Origin")
        _, token, *rest = [*urlsplit(self.path).path.split("/"), ""]
        if self.headers.get("Host") not in hosts:
            self._refuse(HTTPStatus.MISDIRECTED_REQUEST, "this server is 127.0.0.1 alone")
        elif origin is not None and origin not in (f"http://{host}" for host in hosts):
            self._refuse(HTTPStatus.FORBIDDEN, "this page takes no requests of other sites")
        elif not hmac.compare_digest(token.encode(), self.server.token.encode()):
            self._refuse(HTTPStatus.FORBIDDEN, "the token is wrong: open the address that `timerctl web` has printed")
        else:
            return "/".join(rest[:-1])
        return None

    def _answer(self, answer: Callable[[], Any]) -> None:
        try:
            found = answer()
        except (WrongQueryError, UsageError) as error:
            return self._refuse(HTTPStatus.BAD_REQUEST, str(error))
        except (TimerdError, OSError) as error:
            return self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
        return self._send(HTTPStatus.OK, json.dumps(found).encode(), "application/json")

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        self.close_connection = True  # a body may be left
        self._send(status, json.dumps({"error": why}).encode(), "application/json")

    def _send(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        self.send_response(status)
        self._headers(kind)
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def _headers(self, kind: str) -> None:
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        for name, value in HEADERS.items():
            self.send_header(name, value)

    def _stream(self) -> None:
        """Server-sent events, until the page is closed."""
        if not self.server.streams.acquire(blocking=False):
            return self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, f"{STREAMS_MAX} pages are open, which is the most")
        self.close_connection = True
        try:
            self.send_response(HTTPStatus.OK)
            self._headers("text/event-stream")
            self.send_header("Connection", "close")
            self.end_headers()
            for message in self.server.feed.listen():
                text = ":\n\n" if message is None else f"data: {json.dumps(message)}\n\n"
                self.wfile.write(text.encode())
        except OSError:
            pass  # the page was closed
        finally:
            self.server.streams.release()
        return None

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: a line has the token."""


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        raise WrongQueryError("an act is a JSON object") from None
