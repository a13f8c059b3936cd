"""Real uvicorn of several workers, and a long poll: which waits end with their request, and with which answer."""

from __future__ import annotations

import asyncio
import gzip
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

import timerd as td
from support.real.daemons import Daemon
from support.real.patience import eventually
from support.web import pollers
from support.web.pending import pending
from support.web.servers import ENDS_S, Polls, Server
from timerd_client.scope import current_scope
from timerd_client.web import ASGI

WORKERS = 4


@pytest.fixture
def directory(runtime_dir: Path) -> Path:
    """Where the application lies."""
    made = runtime_dir / "app"
    made.mkdir()
    shutil.copy(pollers.__file__, made)
    return made


@pytest.mark.long
@pytest.mark.parametrize("flags", [(), ("--lifespan=off",)], ids=["lifespan", "without"])
def test_sigterm_answers_each_open_poll_with_503_and_the_workers_end(
    daemon: Daemon, directory: Path, flags: tuple[str, ...]
) -> None:
    with (
        Server.uvicorn("pollers:asgi", directory, *flags, workers=WORKERS) as server,
        Polls(server.port) as polls,
    ):
        polls.open("/poll/k", 100)
        polls.open("/stream/k", 20)
        eventually(lambda: pending(daemon) == 120, "the polls and streams do not wait")
        seconds = server.terminate(polls)
        ended = [one for one in polls.done if one.path == "/poll/k"]
        assert [(one.status, one.retry_after) for one in ended] == [(503, "0")] * 100, server.log
        assert {(one.status, one.body) for one in polls.done if one not in ended} == {(200, b"begun ")}
        assert seconds < ENDS_S, f"{seconds:.2f} s\n{server.log}"
        assert "Traceback" not in server.log
    eventually(lambda: pending(daemon) == 0)


@pytest.mark.long
def test_the_waits_of_a_peer_are_withdrawn_when_it_has_gone(daemon: Daemon, directory: Path) -> None:
    with Server.uvicorn("pollers:asgi", directory, workers=1) as server, Polls(server.port) as polls:
        for kind in ("poll", "stream"):
            polls.open(f"/{kind}/k", 50)
            eventually(lambda: pending(daemon) == 50)
            polls.hang_up()
            eventually(lambda: pending(daemon) == 0, "operations of peers that have gone are still pending")
        polls.open("/poll/k")
        eventually(lambda: pending(daemon) == 1)
        assert server.post("/fire/k").body == b"1"
        assert polls.answers()[0].status == 200


def test_a_view_without_a_daemon_is_answered_503_with_retry_after(runtime_dir: Path, directory: Path) -> None:
    with Server.uvicorn("pollers:asgi", directory, workers=1) as server:
        answer = server.get("/ask/k")
        assert (answer.status, answer.retry_after) == (503, "1")
        assert "Traceback" not in server.log


def test_polls_of_each_worker_are_answered_by_one_post(daemon: Daemon, directory: Path) -> None:
    with Server.uvicorn("pollers:asgi", directory, workers=WORKERS) as server, Polls(server.port) as polls:
        polls.open("/poll/k", 100)
        eventually(lambda: pending(daemon) == 100)
        assert server.post("/fire/k").body == b"100"
        assert [one.status for one in polls.answers()] == [200] * 100


@pytest.mark.long
def test_django_is_flushed_and_says_goodbye_though_it_refuses_the_lifespan(
    daemon: Daemon, directory: Path, client: td.Client
) -> None:
    shutil.copy(Path(__file__).with_name("djangoview.py"), directory)
    with Server.uvicorn("djangoview:application", directory, workers=1) as server, Polls(server.port) as nobody:
        assert server.get("/pid?count=7").status == 200
        server.terminate(nobody)
        assert "Traceback" not in server.log and "unsupported" not in server.log
    assert client.watermark("asked") == 7
    eventually(lambda: daemon.stats()["counters"]["clients"] == 1)  # the test's own client
    assert daemon.stats()["counters"]["clients_died"] == 0, "a client ended without a goodbye"


# without a server --------------------------------------------------------------------------------------------------


class Peer:
    """The peer of an ASGI application: messages that the application can receive, and messages that it has sent."""

    def __init__(self, *messages: dict[str, Any]) -> None:
        self.messages = asyncio.Queue[dict[str, Any]]()
        for message in messages:
            self.messages.put_nowait(message)
        self.sent: list[dict[str, Any]] = []

    async def receive(self) -> dict[str, Any]:
        return await self.messages.get()

    async def send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)

    def serve(self, application: Any, kind: str = "http") -> None:
        asyncio.run(ASGI(application)({"type": kind, "path": "/"}, self.receive, self.send))

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])


WHOLE = {"type": "http.request", "body": b"", "more_body": False}
GONE = {"type": "http.disconnect"}


def test_an_application_receives_the_whole_body_and_then_that_the_peer_has_gone() -> None:
    parts = [{"type": "http.request", "body": b"%d" % part, "more_body": part < 9} for part in range(10)]
    peer, received = Peer(*parts, GONE), []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        for _ in range(13):
            received.append(await receive())

    peer.serve(application)
    assert received == [*parts, GONE, GONE, GONE]


def test_a_task_after_the_answer_goes_on_when_the_peer_has_gone(daemon: Daemon) -> None:
    peer, found = Peer(WHOLE), []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        async with td.aio.connect() as client:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"done"})
            peer.messages.put_nowait(GONE)  # servers send this after a whole answer
            found.append(await client.register("k", timeout=0.05))

    peer.serve(application)
    assert found[0].state is td.State.EXPIRED


def test_an_error_of_a_group_of_tasks_is_answered_too(daemon: Daemon) -> None:
    async def application(scope: Any, receive: Any, send: Any) -> None:
        raise BaseExceptionGroup("tasks", [td.RequestEnded("drain", "drain")])

    peer = Peer(WHOLE)
    peer.serve(application)
    assert peer.status == 503

    async def mixed(scope: Any, receive: Any, send: Any) -> None:
        raise BaseExceptionGroup("tasks", [td.RequestEnded("drain", "drain"), ValueError("mine")])

    with pytest.raises(BaseExceptionGroup):
        Peer(WHOLE).serve(mixed)


def test_a_500_of_a_framework_becomes_503_if_there_is_no_daemon(caplog: pytest.LogCaptureFixture) -> None:
    async def framework(scope: Any, receive: Any, send: Any) -> None:
        try:
            async with td.aio.Client("nowhere") as client:
                await client.fire_wait("k", timeout=0.01)
        except td.TimerdError:
            await send({"type": "http.response.start", "status": 500, "headers": [(b"x-other", b"stays")]})
            await send({"type": "http.response.body", "body": b"Internal Server Error"})
            raise  # as Starlette does, and then uvicorn logs a traceback

    peer = Peer(WHOLE)
    with caplog.at_level(logging.WARNING, "timerd_client.web"):
        peer.serve(framework)
    start, *rest = peer.sent
    headers = dict(start["headers"])
    assert peer.status == 503 and [headers[b"retry-after"], headers[b"cache-control"]] == [b"1", b"no-store"]
    assert headers[b"x-in-doubt"] == b"false", "there is no daemon, so the event was not sent"
    assert headers[b"content-length"] == b"20" and headers[b"x-other"] == b"stays" and len(headers) == 6
    assert [message["body"] for message in rest] == [b"Service Unavailable\n"]
    assert "503 Service Unavailable: TimerdUnavailableError" in caplog.text


OF_THE_BODY = [
    "Content-Encoding",
    "Content-Range",
    "Content-Language",
    "Content-Location",
    "Content-Disposition",
    "Content-MD5",
    "Content-Digest",
    "Repr-Digest",
    "Digest",
    "ETag",
    "Last-Modified",
    "Expires",
    "Trailer",
    "Transfer-Encoding",
]


def test_an_answer_in_place_of_a_500_has_no_header_of_the_body_that_it_replaces() -> None:
    """For example, a browser cannot read a plain body if Content-Encoding says that it is compressed."""

    async def framework(scope: Any, receive: Any, send: Any) -> None:
        try:
            raise td.TimerdUnavailableError("gone")
        except td.TimerdError:
            headers = [(name.encode(), b"gzip") for name in (*OF_THE_BODY, "Vary", "Content-Security-Policy")]
            await send({"type": "http.response.start", "status": 500, "headers": headers})
            await send({"type": "http.response.body", "body": gzip.compress(b"our error page")})

    peer = Peer(WHOLE)
    peer.serve(framework)
    own = {b"content-type", b"content-length", b"cache-control", b"retry-after", b"x-in-doubt"}
    assert {name for name, _ in peer.sent[0]["headers"]} == own | {b"Vary", b"Content-Security-Policy"}
    assert peer.sent[1]["body"] == b"Service Unavailable\n"


@pytest.mark.parametrize("reason", ["drain", "disconnect"])
@pytest.mark.parametrize(
    "error", [KeyError("a bug"), BaseExceptionGroup("tasks", [td.RequestEnded("drain", "drain"), KeyError("a bug")])]
)
def test_a_bug_of_a_view_whose_request_has_ended_stays_what_it_is(reason: str, error: BaseException) -> None:
    """A POST that a bug has left half done must not be answered with `Retry-After: 0`, and the traceback is logged."""

    async def framework(scope: Any, receive: Any, send: Any) -> None:
        request = current_scope()
        assert request is not None
        request.end(reason)
        try:
            raise error
        except BaseException:
            await send({"type": "http.response.start", "status": 500, "headers": []})
            await send({"type": "http.response.body", "body": b"Internal Server Error"})
            raise

    peer = Peer(WHOLE)
    with pytest.raises(type(error)) as raised:
        peer.serve(framework)
    assert raised.value is error and peer.status == 500


@pytest.mark.parametrize("reason", ["drain", "disconnect"])
def test_a_framework_that_does_not_tell_why_a_wait_has_ended_gets_the_answer_of_its_end(
    daemon: Daemon, reason: str
) -> None:
    async def framework(scope: Any, receive: Any, send: Any) -> None:
        request = current_scope()
        assert request is not None
        try:
            async with td.aio.connect() as client:
                request.end(reason)
                await client.register("k", timeout=60)
        except td.RequestEnded:
            pass
        await send({"type": "http.response.start", "status": 500, "headers": []})

    peer = Peer(WHOLE)
    peer.serve(framework)
    assert peer.status == (503 if reason == "drain" else 499)


@pytest.mark.parametrize("kind", ["http", "websocket"])
def test_an_error_that_is_its_own_cause_ends_its_request(kind: str) -> None:
    async def framework(scope: Any, receive: Any, send: Any) -> None:
        bug = KeyError("a bug")
        try:
            raise bug from bug
        except KeyError:
            await send({"type": "http.response.start", "status": 500, "headers": []})
            raise

    with pytest.raises(KeyError):
        Peer(WHOLE).serve(framework, kind)


def test_an_error_raised_from_another_error_is_answered_by_its_cause() -> None:
    async def application(scope: Any, receive: Any, send: Any) -> None:
        raise ValueError("no rows") from td.TimerdUnavailableError("gone")

    peer = Peer(WHOLE)
    peer.serve(application)
    assert peer.status == 503


@pytest.mark.parametrize(
    ("doubts", "answered"),
    [((False,), b"false"), ((True,), b"true"), ((False, True), b"true"), ((False,) * 2, b"false")],
)
def test_a_503_says_whether_a_call_that_failed_may_have_an_effect(doubts: tuple[bool, ...], answered: bytes) -> None:
    """Of a group of tasks, the call in doubt decides."""
    errors = [td.TimerdUnavailableError("silent", in_doubt=in_doubt) for in_doubt in doubts]

    async def application(scope: Any, receive: Any, send: Any) -> None:
        raise errors[0] if len(errors) == 1 else ExceptionGroup("tasks", errors)

    peer = Peer(WHOLE)
    peer.serve(application)
    assert peer.status == 503 and dict(peer.sent[0]["headers"])[b"x-in-doubt"] == answered


@pytest.mark.parametrize("reason", ["drain", "disconnect"])
def test_an_answer_to_a_request_that_has_ended_does_not_say_that_a_repeat_is_safe(reason: str) -> None:
    async def application(scope: Any, receive: Any, send: Any) -> None:
        raise td.RequestEnded(reason, reason)

    peer = Peer(WHOLE)
    peer.serve(application)
    assert b"x-in-doubt" not in dict(peer.sent[0]["headers"])


def test_a_failure_of_another_kind_stays_what_it_is() -> None:
    async def application(scope: Any, receive: Any, send: Any) -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        Peer(WHOLE).serve(application)


def test_a_websocket_that_waits_is_closed_with_1012() -> None:
    async def application(scope: Any, receive: Any, send: Any) -> None:
        raise td.RequestEnded("drain", "drain")

    async def of_tasks(scope: Any, receive: Any, send: Any) -> None:
        raise BaseExceptionGroup("tasks", [td.RequestEnded("drain", "drain")])

    for each in (application, of_tasks):
        peer = Peer()
        peer.serve(each, "websocket")
        assert peer.sent == [{"type": "websocket.close", "code": 1012}]


async def refuses(scope: Any, receive: Any, send: Any) -> None:
    raise ValueError("Django can only handle ASGI/HTTP connections, not lifespan.")


async def returns(scope: Any, receive: Any, send: Any) -> None:
    """An application that answers nothing but requests."""


async def only_starts(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "lifespan.startup.complete"})


async def fails_at_the_end(scope: Any, receive: Any, send: Any) -> None:
    await only_starts(scope, receive, send)
    await receive()
    raise ValueError("mine")


STARTED = ["lifespan.startup.complete"]


@pytest.mark.parametrize(
    ("application", "answers"),
    [
        (refuses, [*STARTED, "lifespan.shutdown.complete"]),
        (returns, [*STARTED, "lifespan.shutdown.complete"]),
        (only_starts, [*STARTED, "lifespan.shutdown.complete"]),
        (fails_at_the_end, STARTED),
    ],
)
def test_an_application_that_serves_no_lifespan_is_flushed_and_closed_at_its_end(
    daemon: Daemon, application: Any, answers: list[str]
) -> None:
    async def main() -> None:
        given, other = td.aio.Client(), td.Client()
        given.fire("k")
        other.advance("mark", 7)
        peer = Peer({"type": "lifespan.startup"})
        living = asyncio.ensure_future(ASGI(application, given)({"type": "lifespan"}, peer.receive, peer.send))
        while not (peer.sent or living.done()):
            await asyncio.sleep(0)
        assert not given.closed, "the client was closed when the application had started"
        peer.messages.put_nowait({"type": "lifespan.shutdown"})
        await asyncio.wait({living})
        if application is fails_at_the_end:
            assert isinstance(living.exception(), ValueError)
        else:
            living.result()
        assert given.closed and other._link.protocol.ledger.applied == other._link.protocol.ledger.issued == 1
        assert [one["type"] for one in peer.sent] == answers
        other.close()

    asyncio.run(main())


async def fails_at_the_start(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    raise ValueError("mine")


async def says_that_it_fails(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "lifespan.startup.failed", "message": "mine"})


def test_an_application_that_fails_at_its_start_does_not_start() -> None:
    """With --lifespan=on, uvicorn ends then."""
    peer = Peer({"type": "lifespan.startup"})
    with pytest.raises(ValueError, match="mine"):
        peer.serve(fails_at_the_start, "lifespan")
    assert not peer.sent
    peer = Peer({"type": "lifespan.startup"})
    peer.serve(says_that_it_fails, "lifespan")
    assert [one["type"] for one in peer.sent] == ["lifespan.startup.failed"]


@pytest.mark.parametrize("make", [td.Client, td.aio.Client])
def test_the_client_that_was_given_is_closed_with_the_lifespan(daemon: Daemon, make: Any) -> None:
    async def main() -> None:
        client = make()
        client.fire("k")
        application = ASGI(pollers.coroutine_view, client)
        peer = Peer({"type": "lifespan.startup"}, {"type": "lifespan.shutdown"})
        await application({"type": "lifespan"}, peer.receive, peer.send)
        assert client.closed
        assert [one["type"] for one in peer.sent] == ["lifespan.startup.complete", "lifespan.shutdown.complete"]

    asyncio.run(main())
