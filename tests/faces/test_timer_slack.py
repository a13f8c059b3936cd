"""timerd's own threads are woken in time: their timer slack is a microsecond. Threads of the program keep their slack.

(Timer slack is the time by which the system may wake a thread too late.) The asyncio client has no thread of its own:
its loop runs in a thread of the program.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path

import timerd as td
from support.real.daemons import Daemon
from support.real.patience import PATIENCE_S, until


def test_the_threads_of_the_client_and_of_the_daemon_are_woken_in_time(daemon: Daemon) -> None:
    late: list[int] = []
    with td.connect() as client:
        before = slack_ns(threading.get_native_id())
        told = client.register("key", timeout=0.0)
        told.add_done_callback(lambda _: late.append(slack_ns(threading.get_native_id())))
        told.result(timeout=PATIENCE_S)
        until(lambda: late)
        assert slack_ns(threading.get_native_id()) == before > 1_000, "the slack of the program's thread has changed"
        with suppress(PermissionError):  # reading the slack of another process needs CAP_SYS_NICE
            late.append(slack_ns(daemon.pid))
    assert set(late) == {1_000}


def slack_ns(thread: int) -> int:
    """The timer slack of a thread: the system may wake the thread up to this much later than asked."""
    return int(Path(f"/proc/{thread}/timerslack_ns").read_text())
