"""The WSGI middleware without a server: what it answers, and that it keeps the rules of WSGI on both sides."""

from __future__ import annotations

import io
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator

import flask
import pytest

import timerd as td
from support.real.daemons import Daemon
from support.real.patience import PATIENCE_S, eventually
from support.web.pending import pending
from timerd_client.scope import current_scope
from timerd_client.web import WSGI
from timerd_client.web.requests import _open

Start = Callable[..., Any]


class Called:
    """An application that was called once, as a server calls it. Both sides are checked by wsgiref's validator."""

    def __init__(self, application: Any, *, check: bool = True, **environ: Any) -> None:
        self.calls: list[tuple[str, dict[str, str]]] = []
        self.written = b""
        setup_testing_defaults(environ)
        environ["QUERY_STRING"] = ""
        outer = validator(WSGI(validator(application))) if check else WSGI(application)
        body = outer(environ, self._start)
        try:
            self.body = b"".join(body)
        finally:
            if hasattr(body, "close"):
                body.close()
        self.status, self.headers = self.calls[-1]

    def _start(self, status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
        if self.calls:
            assert exc_info, "start_response is called twice"
            raise exc_info[1]
        self.calls.append((status, dict(headers)))
        return self._write

    def _write(self, data: bytes) -> None:
        assert self.calls
        self.written += data


TEXT = [("Content-Type", "text/plain")]


def raising(error: BaseException, *chunks: bytes) -> Callable[[Any, Start], Iterable[bytes]]:
    """An application that raises after these chunks. Without chunks it raises when it is called."""

    def application(environ: Any, start: Start) -> Iterable[bytes]:
        if not chunks:
            raise error
        start("200 OK", TEXT)
        return body()

    def body() -> Iterator[bytes]:
        yield from chunks
        raise error

    return application


DRAINED = td.RequestEnded("it drains", "drain")
LEFT = td.RequestEnded("it has gone", "disconnect")
LOST = td.TimerdUnavailableError("no daemon")
NOT_ASKED = td.TimerdUnavailableError("it was not asked", in_doubt=False)
NO_ROOM = [td.BackpressureError("full"), td.ArenaFullError("full"), td.QuotaExceededError("full")]


@pytest.mark.parametrize(
    ("error", "status", "retry_after"),
    [
        (DRAINED, "503", "0"),
        (LEFT, "499", None),
        (LOST, "503", "1"),
        (NOT_ASKED, "503", "1"),
        (td.SessionGoneError("it is not known"), "503", "1"),
        *((error, "503", "1") for error in NO_ROOM),
        (td.MarkTooOldError("too old"), "410", None),
    ],
)
@pytest.mark.parametrize("chunks", [(), (b"", b"")], ids=["view", "body"])
def test_errors_become_answers_before_the_first_bytes(
    error: BaseException, status: str, retry_after: str | None, chunks: tuple[bytes, ...]
) -> None:
    called = Called(raising(error, *chunks))
    assert (called.status[:3], called.headers.get("Retry-After")) == (status, retry_after)
    in_doubt = str(getattr(error, "in_doubt", "")).lower()
    assert called.headers.get("X-In-Doubt") == (in_doubt if retry_after == "1" else None)
    assert int(called.headers["Content-Length"]) == len(called.body)
    assert not _open


@pytest.mark.parametrize("error", [DRAINED, LOST])
def test_a_503_has_the_mark_that_the_view_took(shared_daemon: Daemon, error: BaseException) -> None:
    """The client polls again with this mark. Otherwise it would miss what is fired between its first two polls."""
    del shared_daemon
    with td.connect(timeout=PATIENCE_S) as client:
        marks = []

        def application(environ: Any, start: Start) -> Iterable[bytes]:
            marks.extend([client.mark(), client.mark()])
            raise error

        assert Called(application).headers["X-Mark"] == str(marks[0])
        never, marks[:] = td.Client("nowhere"), []

        def without_arena(environ: Any, start: Start) -> Iterable[bytes]:
            never.mark()
            return application(environ, start)

        assert "X-Mark" not in Called(without_arena).headers, "events since the first mark would be missed"
    assert "X-Mark" not in Called(raising(error)).headers


@pytest.mark.parametrize("error", [DRAINED, LOST])
@pytest.mark.parametrize("wait", ["register", "register_many", "subscribe"])
def test_a_503_has_the_mark_from_which_the_view_goes_on_also_if_the_view_has_taken_a_newer_one(
    shared_daemon: Daemon, error: BaseException, wait: str
) -> None:
    """Otherwise the client would miss the events between the two marks."""
    del shared_daemon
    with td.connect(timeout=PATIENCE_S) as client:
        after = client.mark()
        client.fire_wait("k", timeout=PATIENCE_S)

        def application(environ: Any, start: Start) -> Iterable[bytes]:
            client.mark()
            since = td.Mark.parse(str(after))
            if wait == "subscribe":
                client.subscribe("other", since=since)
            elif wait == "register":
                client.register("other", timeout=60, since=since)
            else:
                client.register_many(["other"], timeout=60, since=since)
            client.register("third", timeout=60, since=client.mark())
            raise error

        assert Called(application).headers["X-Mark"] == str(after)


def test_a_stream_that_has_begun_ends_with_its_request_and_breaks_with_other_errors() -> None:
    assert Called(raising(DRAINED, b"begun")).body == b"begun"
    with pytest.raises(td.TimerdUnavailableError):
        Called(raising(LOST, b"begun"))
    with pytest.raises(ZeroDivisionError):
        Called(raising(ZeroDivisionError()))
    assert not _open


def test_lists_calls_of_write_and_file_wrappers_are_left_to_the_server() -> None:
    class Wrapper:
        def __init__(self, file: Any) -> None:
            self.file = file

    def listed(environ: Any, start: Start) -> Iterable[bytes]:
        start("200 OK", TEXT)
        return [b"a", b"b"]

    def writing(environ: Any, start: Start) -> Iterable[bytes]:
        start("200 OK", TEXT)(b"written ")
        return [b"body"]

    def file(environ: Any, start: Start) -> Any:
        start("200 OK", TEXT)
        return environ["wsgi.file_wrapper"](io.BytesIO(b"sent"))

    assert Called(listed).body == b"ab"
    called = Called(writing)
    assert (called.written, called.body) == (b"written ", b"body")
    environ: dict[str, Any] = {"wsgi.file_wrapper": Wrapper}
    setup_testing_defaults(environ)
    body: object = WSGI(file)(environ, lambda *_: None)
    assert isinstance(body, Wrapper), "so a server may send the file itself"


def test_an_application_may_start_anew_after_an_error_of_its_own() -> None:
    def application(environ: Any, start: Start) -> Iterable[bytes]:
        start("200 OK", TEXT)
        try:
            raise ValueError("mine")
        except ValueError as error:
            start("500 Internal Server Error", TEXT, (ValueError, error, None))
        return [b"sorry"]

    assert Called(application).status == "500 Internal Server Error"


# Flask -------------------------------------------------------------------------------------------------------------


def flask_app() -> flask.Flask:
    app = flask.Flask(__name__)
    lost = td.Client("nowhere")

    @app.get("/poll")
    def poll() -> str:
        return td.client().register("k", timeout=PATIENCE_S).result().value.decode()

    @app.get("/catches")
    def catches() -> str:
        try:
            return td.client().register("k", timeout=PATIENCE_S).result().value.decode()
        except Exception:  # as many views do
            return "caught"

    @app.get("/lost")
    def ask() -> str:
        return str(lost.fire_wait("k", timeout=0.01))

    @app.get("/unwrapped")
    def unwrapped() -> str:
        return lost.register("k", timeout=0.01).result().unwrap().decode()

    @app.get("/wrong")
    def wrong() -> str:
        raise ValueError("mine")

    @app.get("/wrong/drained")
    def wrong_while_it_drains() -> str:
        request = current_scope()
        assert request is not None
        request.end("drain")
        raise ValueError("mine")

    return app


@pytest.mark.parametrize("path", ["/lost", "/unwrapped"])
def test_a_500_of_flask_becomes_503_if_there_is_no_daemon(path: str) -> None:
    called = Called(flask_app(), PATH_INFO=path, check=False)
    assert (called.status, called.headers["Retry-After"]) == ("503 Service Unavailable", "1")
    assert called.headers["X-In-Doubt"] == {"/lost": "false", "/unwrapped": "true"}[path]


@pytest.mark.parametrize("path", ["/wrong", "/wrong/drained"])
def test_a_500_of_flask_stays_a_500_if_the_view_has_failed(path: str) -> None:
    called = Called(flask_app(), PATH_INFO=path, check=False)
    assert called.status.startswith("500") and "Retry-After" not in called.headers


def test_a_503_in_place_of_a_500_has_each_header_once() -> None:
    heads: list[list[tuple[str, str]]] = []
    environ: dict[str, Any] = {}
    setup_testing_defaults(environ)

    def whole(environ: Any, start: Start) -> Iterable[bytes]:
        try:
            raise LOST
        except td.TimerdError:
            start(
                "500 Sorry",
                [*TEXT, ("Retry-After", "9"), ("x-in-doubt", "false"), ("cache-control", "public"), ("X-Own", "1")],
            )(b"sorry")
        return []

    def start(status: str, headers: list[tuple[str, str]]) -> Callable[[bytes], object]:
        heads.append(headers)
        return lambda data: None

    WSGI(whole)(environ, start)
    assert sorted(heads[0]) == [
        ("Cache-Control", "no-store"),
        *TEXT,
        ("Retry-After", "1"),
        ("X-In-Doubt", "true"),
        ("X-Own", "1"),
    ]


@pytest.mark.parametrize("path", ["/poll", "/catches"])
def test_a_view_of_flask_ends_when_its_peer_has_gone(daemon: Daemon, path: str) -> None:
    """A view that catches Exception ends, too."""
    ours, peers = socket.socketpair()
    environ = {"PATH_INFO": path, "gunicorn.socket": ours}
    called: list[Called] = []
    serving = threading.Thread(target=lambda: called.append(Called(flask_app(), check=False, **environ)))
    serving.start()
    eventually(lambda: pending(daemon) == 1)
    peers.sendall(b"the next request, or the rest of this one")
    peers.close()
    serving.join(PATIENCE_S)
    assert called[0].status == "499 Client Closed Request"
    assert pending(daemon) == 0 or eventually(lambda: pending(daemon) == 0)
    ours.close()
    td.client().close()
