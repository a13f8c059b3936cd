"""examples/flask_chat: four workers. Under load, one of them is killed, and then the daemon."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from support.real.daemons import Daemon
from support.real.trees import ROOT
from support.web.chatters import Chat
from support.web.servers import Server

KINDS = {"gthread": ("-k", "gthread", "--threads=30"), "gevent": ("-k", "gevent")}


@pytest.mark.long
@pytest.mark.timeout(240)
@pytest.mark.parametrize("kind", ["gthread", pytest.param("gevent", marks=pytest.mark.long)])
def test_nothing_is_lost_or_doubled_when_a_worker_and_the_daemon_are_killed_under_load(
    make_daemon: Callable[..., Daemon], runtime_dir: Path, kind: str, seed: int
) -> None:
    daemon = make_daemon()
    directory = runtime_dir / "app"
    shutil.copytree(ROOT / "examples/flask_chat", directory)
    with (
        Server.gunicorn("app:application", directory, *KINDS[kind], hooks=False, CHAT_POLL_S="5") as server,
        Chat(server.port, seed) as chat,
    ):
        chat.wait_sent(0.2)
        server.busiest().kill()
        chat.wait_sent(0.4)
        daemon.kill()
        chat.wait_sent(0.6)  # writers and readers go on without the daemon
        daemon.start()
        chat.wait_sent(0.8)
        server.hang_up()  # other workers take over, and the old ones drain
        chat.wait()
        chat.check()
        assert 500 not in chat.statuses, f"{chat.statuses}\n{server.log}"
        assert "was sent SIGKILL" in server.log, "a worker was killed"
