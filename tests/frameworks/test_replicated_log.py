"""examples/replicated_log: three replicas in three workers; leader, follower and daemon are killed under load."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from daemons import Daemon
from patience import eventually
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
