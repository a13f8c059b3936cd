"""Every ordinary end of a process flushes: whatever a client was called last arrives, and what is lost is said."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import lastacts
import timerd as td
from daemons import Daemon
from lastacts import STARTS, VERBS
from patience import PATIENCE_S, eventually
from timerd_client.link.process_end import GOODBYE_S, LOCK_S, PATIENCE_S as EXIT_S
from timerd_shm.declare.limits import CLOSE_TIMEOUT_S
from timerd_wire.transports import TRANSPORT_VARIABLE, TRANSPORTS

PROGRAM = Path(lastacts.__file__)
STATUS = {"unhandled exception": 1}
WITHOUT_GOODBYE = {"billiard.Pool"}  # whose workers end by os._exit(), a second after their last task
OVER_PACKETS = ("end of main", "fork", "forkserver", "atexit, registered before the first use", "asyncio.run")


def long_unless(short: bool, *values: object) -> object:
    return pytest.param(*values, marks=() if short else pytest.mark.long)


@pytest.fixture
def asker(shared_daemon: Daemon) -> Iterator[td.Client]:
    """A client of the test's own, which asks what has arrived."""
    del shared_daemon
    with td.connect(group=lastacts.GROUP, timeout=PATIENCE_S) as client:
        yield client


def arrived(asker: td.Client, key: str, since: td.Mark) -> set[str]:
    """Which of the calls of `lastacts` have arrived."""
    asked: dict[str, Callable[[], object]] = {
        "fire": lambda: asker.register(f"{key}/fired", timeout=0, since=since).result(PATIENCE_S),
        "advance": lambda: asker.watermark(f"{key}/mark") == 7,
        "register": lambda: asker.fire_wait(f"{key}/kept"),
        "call_later": lambda: asker.cancel_call_wait(f"{key}/call"),
    }
    return {verb for verb, was_done in asked.items() if was_done()}


@pytest.mark.parametrize(
    ("transport", "start"),
    [
        long_unless(transport == TRANSPORTS[0] or start in OVER_PACKETS, transport, start)
        for transport in TRANSPORTS
        for start in STARTS
    ],
)
@pytest.mark.parametrize(
    "verb", [pytest.param("", id="all"), *(pytest.param(verb, marks=pytest.mark.long) for verb in VERBS)]
)
def test_what_a_process_called_last_arrives(
    transport: str, start: str, verb: str, shared_daemon: Daemon, asker: td.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TRANSPORT_VARIABLE, transport)
    died = shared_daemon.stats()["counters"]["clients_died"]
    mark, key = asker.mark(), f"{transport}/{start}"
    ran = subprocess.run(
        [sys.executable, str(PROGRAM), start, f"{key}/{verb}" if verb else key],
        capture_output=True,
        text=True,
        timeout=4 * PATIENCE_S,
    )
    assert ran.returncode == STATUS.get(start, 0), ran.stderr
    assert arrived(asker, f"{key}/{verb}" if verb else key, mark) == ({verb} if verb else set(VERBS)), ran.stderr
    assert "lost" not in ran.stderr
    if start not in WITHOUT_GOODBYE:
        eventually(lambda: shared_daemon.stats()["counters"]["clients"] == 1)
        assert shared_daemon.stats()["counters"]["clients_died"] == died, "it ended without a goodbye"
