"""examples/replicated_log: three replicas in three workers; leader, follower and daemon are killed under load."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from daemons import Daemon
from patience import PATIENCE_S, eventually
from replicatedlogs import REPLICAS, Users
from servers import Server
from trees import ROOT


@pytest.mark.timeout(240)
def test_no_written_record_is_lost_when_leader_follower_and_daemon_are_killed(
    make_daemon: Callable[..., Daemon], runtime_dir: Path, seed: int
) -> None:
    daemon = make_daemon()
    directory = runtime_dir / "app"
    shutil.copytree(ROOT / "examples/replicated_log", directory)
    flags = ("--worker-class=gthread", "--threads=50")
    with (
        Server.gunicorn("app:application", directory, *flags, workers=3, hooks=False, LOG_WRITE_S="2") as server,
        Users(server.port, seed) as users,
    ):
        for _ in range(3):
            users.wait_written(50)
            leader = users.role(leader=True)
            (directory / f"replica-{leader['replica']}.log").unlink()  # its disk is lost, too
            os.kill(leader["pid"], signal.SIGKILL)
        users.wait_written(50)
        os.kill(users.role(leader=False)["pid"], signal.SIGKILL)
        users.wait_written(50)
        daemon.kill()
        daemon.start()
        users.wait_written(50)
        daemon.kill()
        os.kill(users.role(leader=True)["pid"], signal.SIGKILL)
        daemon.start()
        users.wait_written(50)
        users.end()

        def are_equal() -> bool:
            return len({(directory / f"replica-{name}.log").read_bytes() for name in REPLICAS}) == 1

        eventually(are_equal)
        users.check(directory)
        assert "was sent SIGKILL" in server.log


def status(server: Server, path: str, body: bytes | None = None) -> int:
    """Of the answer to a GET, or to a POST of the body."""
    url = f"http://127.0.0.1:{server.port}{path}"
    try:
        with urlopen(Request(url, body, {"Content-Type": "application/json"}), timeout=PATIENCE_S) as answer:
            return int(answer.status)
    except HTTPError as error:
        return error.code


@pytest.mark.timeout(120)
def test_wrong_requests_strangers_and_a_log_that_begins_anew(
    make_daemon: Callable[..., Daemon], runtime_dir: Path
) -> None:
    make_daemon()
    directory = runtime_dir / "app"
    shutil.copytree(ROOT / "examples/replicated_log", directory)
    flags = ("--worker-class=gthread", "--threads=20")
    record = b'{"id": "a", "text": "b"}'
    with Server.gunicorn("app:application", directory, *flags, workers=3, hooks=False, LOG_WRITE_S="2") as server:
        eventually(lambda: status(server, "/log", record) in (200, 201))
        for _ in range(3):  # one after the other answers
            assert status(server, "/log?max_wait=0") == 200
            for wrong in ("offset=-2", "offset=99999999999999999999", "max_wait=nan", "max_wait=inf", "max_wait=-1"):
                assert status(server, f"/log?{wrong}") == 400
            for body in (b"[]", b"null", b"{}", b'{"id": 1, "text": "b"}', b'{"id": "a"}', b'{"id": "a", "text": NaN}'):
                assert status(server, "/log", body) == 400
            assert status(server, "/replica?replica=1&epoch=1&offset=0") == 403
        assert (directory / "leader.json").stat().st_mode & 0o077 == 0
    for file in (*directory.glob("*.log"), directory / "leader.json"):
        file.unlink()
    with Server.gunicorn("app:application", directory, *flags, workers=1, hooks=False, LOG_WRITE_S="1") as server:
        eventually(lambda: status(server, "/log", record) == 504)
        url = f"http://127.0.0.1:{server.port}/log?max_wait=0"
        with urlopen(url, timeout=PATIENCE_S) as answer:
            assert json.load(answer) == {"records": []}, "the old log's replicas had it, this one's have not"
