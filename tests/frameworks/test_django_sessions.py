"""examples/django_sessions: four workers. While sessions are in use, workers and the daemon are killed."""

from __future__ import annotations

import http.client
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from support.real.daemons import Daemon
from support.real.patience import PATIENCE_S, eventually
from support.real.trees import ROOT
from support.web.servers import Server

SESSION_S = 4.0
USERS, TOUCHES = 24, 12


class User(threading.Thread):
    """A user logs in and makes requests for a while. Then the user is silent, or logs out."""

    def __init__(self, port: int, number: int) -> None:
        super().__init__(daemon=True)
        self.key = ""
        self.touched = 0  # touches that were answered
        self.last = 0.0  # the time before the last touch that was answered, or before the login
        self.logs_out = number % 4 == 0
        self.whys = {"logout" if self.logs_out else "silent"}  # why its session may end
        self._port = port
        self._name = f"user{number}"

    def run(self) -> None:
        self._log_in()
        while self.touched < TOUCHES:
            began = time.time()
            status = self._post("/touch")[0]
            if status == 200:
                self.touched += 1
                self.last = began
            elif status == 410:
                # A busy machine, or a worker that was killed, may answer no request for as long as a session lasts.
                assert time.time() >= self.last + SESSION_S, "the session ended while it was in use"
                self._log_in()
            time.sleep(0.2)
        while self.logs_out and self._post("/logout")[0] != 200:
            time.sleep(0.05)
        if time.time() >= self.last + SESSION_S:
            self.whys.add("silent")  # the logout may have come too late

    def _log_in(self) -> None:
        self.key = ""
        self.last = time.time()
        while (answer := self._post(f"/login?user={self._name}"))[0] != 200:
            self.last = time.time()
            time.sleep(0.05)
        self.key = answer[1]

    def _post(self, path: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE_S)
        try:
            connection.request("POST", path, headers={"Cookie": f"sessionid={self.key}"} if self.key else {})
            response = connection.getresponse()
            return response.status, response.read().decode()
        except (OSError, http.client.HTTPException):  # the worker that had the request was killed
            return 0, ""
        finally:
            connection.close()


def ended(directory: Path) -> dict[str, tuple[str, float]]:
    """Why each session has ended, and when."""
    with closing(sqlite3.connect(directory / "ended.sqlite", timeout=30)) as connection:
        return {key: (why, at) for key, why, at in connection.execute("SELECT key, why, at FROM ended")}


@pytest.mark.long  # its short form: test_flask_chat.py and test_fastapi_events.py kill the same way
@pytest.mark.timeout(240)
def test_each_session_ends_once_and_not_while_it_is_used_when_a_worker_and_the_daemon_are_killed(
    make_daemon: Callable[..., Daemon], runtime_dir: Path
) -> None:
    daemon = make_daemon()
    directory = runtime_dir / "app"
    shutil.copytree(ROOT / "examples/django_sessions", directory)
    with Server.gunicorn(
        "app:application", directory, hooks=False, SESSIONS_FOLDER=str(directory), SESSIONS_S=str(SESSION_S)
    ) as server:
        users = [User(server.port, number) for number in range(USERS)]
        for user in users:
            user.start()

        def wait_touched(share: float) -> None:
            wanted = share * USERS * TOUCHES
            eventually(lambda: sum(one.touched for one in users) >= wanted, server.log, 4 * PATIENCE_S)

        wait_touched(0.2)
        server.busiest().kill()
        wait_touched(0.4)
        daemon.kill()
        wait_touched(0.5)
        daemon.start()
        wait_touched(0.8)
        server.busiest().kill()
        for user in users:
            user.join(4 * PATIENCE_S)
            assert not user.is_alive()
        keys = {user.key for user in users}
        assert len(keys) == USERS
        eventually(lambda: keys <= set(ended(directory)), "some sessions never end", 4 * PATIENCE_S)
        found = ended(directory)
        assert not [user.key for user in users if found[user.key][0] not in user.whys]
        early = [
            user for user in users if found[user.key][0] == "silent" and found[user.key][1] < user.last + SESSION_S
        ]
        assert not early, "a session lasts for SESSION_S after its last request"
        assert not [key for key in keys if (directory / f"sessionid{key}").exists()], (
            "the file of an ended session is removed"
        )
