"""Real gunicorn, each kind of worker, and a long poll: which waits end with their request, and with which answer."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import timerd as td
from support.fakes.descriptors import BESIDE
from support.real.daemons import Daemon
from support.real.patience import eventually
from support.suite.tiers import in_tiers
from support.web import pollers
from support.web.pending import pending
from support.web.servers import ENDS_S, Polls, Server

KINDS = {
    "sync": ("-k", "sync"),
    "gthread": ("-k", "gthread", "--threads", "80"),  # as many as there are polls: one worker may accept them all
    "gevent": ("-k", "gevent"),
}
POLLS = {"sync": 1, "gthread": 20, "gevent": 50}  # polls that wait at the same time in one worker


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def directory(runtime_dir: Path) -> Path:
    """Where the application lies."""
    made = runtime_dir / "app"
    made.mkdir()
    shutil.copy(pollers.__file__, made)
    return made


@contextmanager
def serving(directory: Path, kind: str, *flags: str, workers: int) -> Iterator[tuple[Server, Polls]]:
    """A server of the application, and polls of it."""
    with (
        Server.gunicorn("pollers:application", directory, *KINDS[kind], *flags, workers=workers) as server,
        Polls(server.port) as polls,
    ):
        yield server, polls


def opened(server: Server, polls: Polls, daemon: Daemon, path: str, count: int) -> None:
    polls.open(path, count)
    eventually(lambda: pending(daemon) == count, f"{count} polls do not wait")


def test_a_view_without_a_daemon_is_answered_with_a_server_error(runtime_dir: Path, directory: Path, kind: str) -> None:
    """gunicorn would take an OSError for a broken connection to the HTTP client, and send no answer."""
    with Server.gunicorn("pollers:bare", directory, *KINDS[kind], workers=1, hooks=False) as server:
        assert server.get("/ask/k").status == 500
        assert "TimerdUnavailableError" in server.log


def test_behind_the_middleware_a_view_without_a_daemon_is_answered_503_with_retry_after(
    runtime_dir: Path, directory: Path, kind: str
) -> None:
    with Server.gunicorn("pollers:application", directory, *KINDS[kind], workers=1) as server:
        answer = server.get("/ask/k")
        assert (answer.status, answer.retry_after) == (503, "1")
        assert "Traceback" not in server.log


@pytest.mark.long
@pytest.mark.parametrize("how", in_tiers(["poll", "lazy"], 1))
def test_sigterm_answers_each_open_poll_with_503_and_the_workers_end(
    daemon: Daemon, directory: Path, kind: str, how: str
) -> None:
    with (
        Server.gunicorn("pollers:application", directory, *KINDS[kind], workers=2) as server,
        Polls(server.port) as polls,
    ):
        count = 2 * POLLS[kind]
        opened(server, polls, daemon, f"/{how}/k", count)
        seconds = server.terminate(polls)
        assert [(one.status, one.retry_after) for one in polls.done] == [(503, "0")] * count, server.log
        assert seconds < ENDS_S, f"{seconds:.2f} s\n{server.log}"
        assert server.process.returncode == 0
    eventually(lambda: pending(daemon) == 0)


@pytest.mark.long
def test_a_stream_that_has_begun_ends_at_sigterm(daemon: Daemon, directory: Path, kind: str) -> None:
    with (
        Server.gunicorn("pollers:application", directory, *KINDS[kind], workers=1) as server,
        Polls(server.port) as polls,
    ):
        opened(server, polls, daemon, "/stream/k", POLLS[kind])
        assert server.terminate(polls) < ENDS_S
        assert {(one.status, one.body) for one in polls.done} == {(200, b"begun ")}


@pytest.mark.long
def test_a_reload_drains_the_old_workers(daemon: Daemon, directory: Path, kind: str) -> None:
    with (
        Server.gunicorn("pollers:application", directory, *KINDS[kind], workers=1) as server,
        Polls(server.port) as polls,
    ):
        old = server.get("/pid").body
        opened(server, polls, daemon, "/poll/k", POLLS[kind])
        server.hang_up()
        assert {(one.status, one.retry_after) for one in polls.answers()} == {(503, "0")}
        eventually(lambda: server.get("/pid").body != old)


@pytest.mark.long
def test_the_waits_of_a_peer_are_withdrawn_when_it_has_gone(daemon: Daemon, directory: Path, kind: str) -> None:
    with (
        Server.gunicorn("pollers:application", directory, *KINDS[kind], workers=1) as server,
        Polls(server.port) as polls,
    ):
        opened(server, polls, daemon, "/poll/k", POLLS[kind])
        polls.hang_up()
        eventually(lambda: pending(daemon) == 0, "what the peers waited for is pending still")
        polls.open("/poll/k")  # the worker serves on
        eventually(lambda: pending(daemon) == 1)
        with td.connect() as client:
            assert client.fire_wait("k", value=b"v") == 1
        assert polls.answers()[0].body == b"v"


def test_a_client_of_the_module_works_in_each_worker_after_a_preload(
    daemon: Daemon, directory: Path, kind: str
) -> None:
    with serving(directory, kind, "--preload", workers=4) as (server, polls):
        count = 4 * POLLS[kind] - (kind == "sync")  # one worker stays free for the post
        opened(server, polls, daemon, "/poll/k", count)
        assert server.post("/fire/k").body == str(count).encode()
        assert [one.status for one in polls.answers()] == [200] * count


@pytest.mark.long
@pytest.mark.parametrize("kind", ["gthread", "gevent"])
def test_a_worker_at_its_max_requests_answers_its_open_polls_with_503(
    daemon: Daemon, directory: Path, kind: str
) -> None:
    with serving(directory, kind, "--max-requests=12", workers=1) as (server, polls):
        opened(server, polls, daemon, "/poll/k", 3)
        for _ in range(12):
            server.get("/pid")
        assert {(one.status, one.retry_after) for one in polls.answers()} == {(503, "0")}, server.log


@pytest.mark.long
def test_a_poll_that_is_longer_than_the_timeout_of_gunicorn_costs_a_sync_worker(
    daemon: Daemon, directory: Path
) -> None:
    with serving(directory, "sync", "--timeout=1", workers=1) as (server, polls):
        opened(server, polls, daemon, "/poll/k", 1)
        (answer,) = polls.answers()
        assert answer.status not in (200, 204), server.log
        assert "WORKER TIMEOUT" in server.log
    eventually(lambda: pending(daemon) == 0)


@pytest.mark.long
@pytest.mark.files(1_000 + BESIDE)  # a socket for each poll, here and in the worker
@pytest.mark.timeout(240)
def test_a_thousand_polls_wait_in_one_gevent_worker_and_are_answered_from_four(daemon: Daemon, directory: Path) -> None:
    """Two servers of one application: the polls wait in the only worker of one, and the posts go to the other."""
    one = directory / "one"
    one.mkdir()
    shutil.copy(pollers.__file__, one)
    with (
        Server.gunicorn("pollers:application", one, "-k", "gevent", "--worker-connections=1100", workers=1) as waiting,
        Server.gunicorn("pollers:application", directory, "-k", "gevent", workers=4) as posting,
        Polls(waiting.port) as polls,
    ):
        for number in range(1_000):
            polls.open(f"/poll/{number}")
        eventually(lambda: pending(daemon) == 1_000, "1,000 polls do not wait")
        assert waiting.get("/pid").status == 200, "the hub goes on"
        assert [posting.post(f"/fire/{number}").body for number in range(1_000)] == [b"1"] * 1_000
        answers = polls.answers()
        assert [one.status for one in answers] == [200] * 1_000
        answered_by = {int(one.body) for one in answers}
        # The kernel chooses the worker of each post. On a busy machine one of the four may get none.
        assert len(answered_by) > 1 and answered_by <= {one.pid for one in posting.workers()}
