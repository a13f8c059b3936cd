"""Each request has a socket. Before a worker's files run out, it warns once, and names the limit and the remedy."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from support.fakes.descriptors import limited
from support.real.daemons import Daemon
from support.real.patience import eventually
from support.web import pollers
from support.web.pending import pending
from support.web.servers import Polls, Server

LIMIT = 144  # of open files
FEW, MANY = 60, 100  # polls; a worker has 20 to 30 files beside them
START: dict[str, Callable[[Path], Server]] = {
    "gevent": lambda path: Server.gunicorn("pollers:application", path, "-k", "gevent", workers=1, hooks=False),
    "uvicorn": lambda path: Server.uvicorn("pollers:asgi", path, workers=1),
}


@pytest.fixture
def directory(runtime_dir: Path) -> Path:
    made = runtime_dir / "app"
    made.mkdir()
    shutil.copy(pollers.__file__, made)
    return made


@pytest.mark.parametrize("kind", START)
def test_polls_that_take_most_of_the_files_are_warned_of_once(daemon: Daemon, directory: Path, kind: str) -> None:
    with limited(LIMIT):
        server = START[kind](directory)
    with server, Polls(server.port) as polls:
        polls.open("/poll/k", FEW)
        eventually(lambda: pending(daemon) == FEW, f"{FEW} polls do not wait")
        assert "RLIMIT_NOFILE" not in server.log
        polls.open("/poll/k", MANY - FEW)
        eventually(lambda: pending(daemon) == MANY, f"{MANY} polls do not wait")
        assert server.log.count(f" of {LIMIT} files (RLIMIT_NOFILE)") == 1, server.log
        assert "raise the limit (LimitNOFILE= of a unit, ulimit -n), or start more workers" in server.log
        assert server.post("/fire/k").body == str(MANY).encode()
        assert [one.status for one in polls.answers()] == [200] * MANY
        assert server.log.count("RLIMIT_NOFILE") == 1, "the warning is logged once"


@pytest.mark.long
@pytest.mark.parametrize(("kind", "connections"), [("gevent", 1_000), ("gthread", 1_000), ("gevent", 900), ("sync", 0)])
def test_gunicorn_warns_at_its_start_of_connections_that_a_worker_has_no_files_for(
    runtime_dir: Path, directory: Path, kind: str, connections: int
) -> None:
    flags = [f"--worker-connections={connections}"] if connections else []
    with limited(1_024):
        server = Server.gunicorn("pollers:application", directory, "-k", kind, *flags, workers=2)
    with server:
        said = "this worker accepts up to 1,000 connections, a file each, and needs 64 files beside them; it may have"
        assert server.log.count(f"{said} 1,024 open") == (connections == 1_000), server.log
