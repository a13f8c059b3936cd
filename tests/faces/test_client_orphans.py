"""set_orphans() decides what happens to all pending operations when their client ends.

One test is about an argument of connect(): with `runtime_dir=`, a client searches no other directory.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

import timerd_client as td
from support.real.daemons import Daemon
from support.real.faces import Face
from support.real.patience import eventually, stop


def test_pending_operations_are_kept_or_cancelled_by_the_last_policy_of_their_client(
    daemon: Daemon, face: Face
) -> None:
    with face.connect(orphans="cancel") as client:
        batch = client.register_many([f"k{number}" for number in range(1_000)], timeout=60)
        client.register("own", timeout=60)
        client.set_orphans("cancel")
        client.set_orphans("keep")
        client.register("later", timeout=60)
        client.purgatory("other").register("k", timeout=60)
    assert batch.settled() == 1_001 - 1, "a batch's operations fail in the client that is closed"
    eventually(lambda: daemon.stats()["counters"]["pending"] == 1_001)
    with td.connect() as other:
        assert (other.fire_wait("k999"), other.fire_wait("own"), other.fire_wait("later")) == (1, 1, 0)


def test_set_orphans_does_not_wait_for_room_after_its_last_part(daemon: Daemon, face: Face) -> None:
    client = face.connect()
    client.register_many([f"k{number}" for number in range(10)], timeout=60)
    client.flush()
    stop(daemon.pid)
    try:
        client._protocol.ledger.window = 10
        client.set_orphans("keep")
        assert client._protocol.outgoing.room == 0
    finally:
        os.kill(daemon.pid, signal.SIGCONT)
        client.close()


def test_a_policy_is_checked_before_anything_is_sent(client: Any) -> None:
    with pytest.raises(td.NotAMemberError):
        client.set_orphans("group")
    with pytest.raises(td.InvalidValueError):
        client.set_orphans("leave")
    client.set_orphans("keep")


def test_only_the_directory_of_a_runtime_directory_argument_is_searched(
    daemon: Daemon, face: Face, runtime_dir: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("TIMERD_RUNTIME_DIR")
    with face.connect(runtime_dir=os.path.relpath(runtime_dir)) as client:
        assert client.connected
    with pytest.raises(td.TimerdUnavailableError, match=r"in .*empty: start it"):
        face.connect(runtime_dir=str(tmp_path / "empty"))
