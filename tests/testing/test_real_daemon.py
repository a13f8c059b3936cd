"""The daemon of timerd.testing: stopped, killed, started again and renewed, and what it leaves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import timerd as td
from support.fakes.descriptors import many_open
from support.real.daemons import arenas_of
from timerd.testing import Daemon, DaemonEndedError


@pytest.fixture
def served(runtime_dir: Path) -> Iterator[Daemon]:
    """A daemon of timerd.testing, in the test's own runtime directory."""
    with Daemon(runtime_dir) as made:
        yield made


def test_a_process_with_many_connections_can_start_a_daemon(runtime_dir: Path) -> None:
    with many_open(), Daemon(runtime_dir) as made:
        assert made._runner is not None and not made._has_ended(made._runner)


def test_a_restarted_daemon_goes_on_with_its_arena(served: Daemon) -> None:
    with td.connect(timeout=10) as client:
        waits = client.register("inbox/7", timeout=60)
        client.flush(timeout=10)
        served.restart()
        client.fire("inbox/7", value=b"after the restart")
        assert waits.result(30).value == b"after the restart"


def test_a_killed_daemon_goes_on_with_its_arena(served: Daemon) -> None:
    with td.connect(timeout=10) as client:
        waits = client.register("inbox/7", timeout=60)
        client.flush(timeout=10)
        served.kill()
        assert not served.running
        served.start()
        client.fire("inbox/7", value=b"after the kill")
        assert waits.result(30).value == b"after the kill"


def test_a_renewed_daemon_knows_nothing_of_earlier_clients(served: Daemon) -> None:
    with td.connect(timeout=10, orphans="keep") as client:
        client.purgatory("other", timeout=10).register("job", timeout=60, id="job/7")
        client.advance("p0", 812)
        client.flush(timeout=10)
    served.renew()
    with td.connect(timeout=10) as client:
        assert not client.register({"p0": 812}, timeout=0.001).result(30)
        with pytest.raises(td.UnknownOperationError):
            client.purgatory("other", timeout=10).cancel_wait("job/7", timeout=10)


def test_the_environment_names_the_directory_and_the_instance_of_a_daemon(served: Daemon) -> None:
    assert served.environment == {"TIMERD_RUNTIME_DIR": served.runtime_dir, "TIMERD_INSTANCE": "default"}
    assert psutil.pid_exists(served.pid)


def test_the_error_of_a_wrong_flag_quotes_the_daemon(runtime_dir: Path) -> None:
    daemon = Daemon(runtime_dir, ["--capacity=none"])
    with pytest.raises(DaemonEndedError, match="capacity"):
        daemon.start()
    daemon.close()


def test_a_closed_daemon_leaves_no_process_and_no_arena(runtime_dir: Path) -> None:
    with Daemon(runtime_dir) as daemon:
        pid = daemon.pid
        assert arenas_of(runtime_dir)
    assert not psutil.pid_exists(pid)
    assert not arenas_of(runtime_dir)
    with pytest.raises(DaemonEndedError, match="does not run"):
        _ = daemon.pid
