"""connect(): how long it waits for a daemon that runs, is about to run, or does not run.

Locks and clocks that connect() looks at are tested without a client.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import timerd as td
from support.real.daemons import Daemon
from support.real.faces import Face
from support.real.patience import PATIENCE_S, stop
from timerd_client.discovery import find_daemon
from timerd_client.discovery.find_daemon import RESTART_S, Search, has_run_lately
from timerd_client.discovery.target import target_of
from timerd_shm.declare.limits import CONNECT_TIMEOUT_S, IPC_PATH_MAX

ANYWHERE = target_of("connect", None, {})
MakeDaemon = Callable[..., Daemon]


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[Search]:
    """The searches for a daemon, one entry for each look."""
    looked: list[Search] = []
    look = Search.look

    def counted(search: Search) -> object:
        looked.append(search)
        return look(search)

    monkeypatch.setattr(Search, "look", counted)
    return looked


def ended_long_ago(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that the daemon has not run for longer than RESTART_S."""
    long_ago = time.time() - 2 * RESTART_S
    os.utime(daemon.paths.lock, (long_ago, long_ago))
    now_ns = time.monotonic_ns
    monkeypatch.setattr(time, "monotonic_ns", lambda: now_ns() + int(2e9 * RESTART_S))


def starting(daemon: Daemon, after_s: float = 0.3) -> threading.Thread:
    """Start the daemon after `after_s`, in a thread."""

    def start() -> None:
        time.sleep(after_s)
        daemon.start()

    thread = threading.Thread(target=start)
    thread.start()
    return thread


def test_connect_raises_at_once_where_no_daemon_was_started(face: Face, looks: list[Search]) -> None:
    with pytest.raises(td.TimerdUnavailableError, match=r"start it \(`timerd --instance default`\), or connect\(auto"):
        face.connect()
    assert len(looks) == 1


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_connect_says_at_once_that_an_ended_daemon_does_not_run(
    daemon: Daemon, face: Face, end: str, looks: list[Search], monkeypatch: pytest.MonkeyPatch
) -> None:
    getattr(daemon, end)()
    ended_long_ago(daemon, monkeypatch)
    with pytest.raises(
        td.TimerdUnavailableError, match=r"'default' is not running: start it \(`timerd --i.*`\); connect\(timeout"
    ):
        face.connect()
    assert len(looks) == 1


@pytest.mark.long
@pytest.mark.parametrize("end", ["stop", "kill"])
def test_connect_succeeds_during_a_restart(
    daemon: Daemon, face: Face, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(find_daemon, "CONNECT_TIMEOUT_S", PATIENCE_S)  # on a slow machine a start takes longer than 2 s
    getattr(daemon, end)()
    restart = starting(daemon)
    with face.connect() as client:
        assert client.connected
    restart.join()


def test_a_clock_that_was_set_back_makes_no_ended_daemon_a_recent_one(
    make_daemon: MakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = make_daemon()
    daemon.stop()
    ended_long_ago(daemon, monkeypatch)
    ahead = time.time() + 3_600
    os.utime(daemon.paths.lock, (ahead, ahead))
    assert not has_run_lately(ANYWHERE)


def test_connect_waits_for_an_ended_daemon_only_for_its_default_timeout(face: Face, daemon: Daemon) -> None:
    daemon.kill()
    start = time.monotonic()
    with pytest.raises(td.TimerdUnavailableError, match=f"is not running: .*; waited {CONNECT_TIMEOUT_S:g} s for it"):
        face.connect()
    assert CONNECT_TIMEOUT_S <= time.monotonic() - start < PATIENCE_S


def test_connect_with_a_timeout_waits_for_a_daemon_that_is_not_started_yet(make_daemon: MakeDaemon, face: Face) -> None:
    daemon = make_daemon(start=False)
    first = starting(daemon)
    with face.connect(timeout=PATIENCE_S) as client:
        assert client.connected
    first.join()
    with pytest.raises(td.TimerdUnavailableError, match=r"no timerd instance 'other' .*; waited 0.05 s for it"):
        face.connect("other", timeout=0.05)


@pytest.mark.parametrize("transport", ["zeromq", "unix"])
def test_connect_waits_for_the_socket_of_a_daemon_that_has_begun_to_listen(daemon: Daemon, transport: str) -> None:
    """A daemon that starts listens on NAME.live first: it is found then, and its other sockets follow."""
    socket = daemon.paths.commands if transport == "zeromq" else daemon.paths.packets
    aside = socket.with_suffix(".aside")
    socket.rename(aside)
    later = threading.Timer(0.3, aside.rename, [socket])
    later.start()
    with td.connect(timeout=PATIENCE_S, transport=transport) as client:  # type: ignore[arg-type]
        assert client.connected
    later.join()


def test_a_daemon_that_comes_late_has_time_to_answer_all_the_same(
    make_daemon: MakeDaemon, face: Face, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon is found only when the timeout is over. An old version of connect() then failed "within 0 s"."""
    daemon = make_daemon()
    look = Search.look

    def look_for_long(search: Search) -> object:
        search._end = time.monotonic()
        return look(search)

    monkeypatch.setattr(Search, "look", look_for_long)
    monkeypatch.setattr("timerd_client.discovery.find_daemon.CONNECT_TIMEOUT_S", PATIENCE_S)
    stop(daemon.pid)
    goes_on = threading.Timer(0.4, os.kill, (daemon.pid, signal.SIGCONT))
    goes_on.start()
    with face.connect(timeout=PATIENCE_S) as client:
        assert client.connected
    goes_on.join()


def test_the_time_to_answer_is_the_default_or_what_is_left_or_a_shorter_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    searches = {time_: Search(ANYWHERE, time_, is_stated=time_ is not None) for time_ in (20.0, 0.5, None)}
    for at, patience in ((100.0, (20.0, 0.5, 2.0)), (110.0, (10.0, 0.5, 2.0)), (119.9, (2.0, 0.5, 2.0))):
        now = at
        assert tuple(search.patience() for search in searches.values()) == patience


def test_connect_does_not_say_that_a_stopped_daemon_has_ended(face: Face, daemon: Daemon) -> None:
    stop(daemon.pid)
    try:
        with pytest.raises(td.TimerdUnavailableError, match=r"within 0\.\d+ s .*: it runs, but is stopped, overl"):
            face.connect(timeout=0.3)
    finally:
        os.kill(daemon.pid, signal.SIGCONT)


def test_the_command_in_the_message_names_the_given_directory(face: Face, tmp_path: Path) -> None:
    where = str(tmp_path / "here")
    with pytest.raises(td.TimerdUnavailableError, match=f"`timerd --instance x --runtime-dir {where}`"):
        face.connect("x", runtime_dir=where)


def test_an_instance_behind_too_long_a_path_is_an_error_that_names_both_lengths(
    daemon: Daemon, face: Face, tmp_path: Path
) -> None:
    """The daemon runs, and the path is another name of its directory. So "start the daemon" would be wrong advice."""
    alias = tmp_path / ("d" * 120)
    alias.symlink_to(daemon.paths.directory)
    with pytest.raises(td.ResourceLimitError, match=f"a socket's path at most {IPC_PATH_MAX}: choose another"):
        face.connect(runtime_dir=str(alias))
