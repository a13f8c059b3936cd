"""timerctl monitor and subscribe: outcomes and events as they come, in a shell of their own."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import timerd as td
from support.real.daemons import Daemon
from support.real.patience import PATIENCE_S, eventually
from support.real.shell import Run, in_background, json_of
from timerctl.exits import Exit


@contextmanager
def following(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A command that goes on. It is killed at the end, unless it has ended."""
    shell = in_background(*arguments)
    try:
        yield shell
    finally:
        shell.kill()
        shell.communicate()


def ended(shell: subprocess.Popen[str]) -> tuple[int, list[str]]:
    out, _ = shell.communicate(timeout=PATIENCE_S)
    return shell.returncode, out.splitlines()


def observers(run: Run) -> int:
    """How often the keys in the arena are subscribed to."""
    return sum(row["observers"] for row in json_of(run, "keys"))


def test_outcomes_are_printed_as_they_come(make_daemon: Callable[..., Daemon], tmp_path: Path) -> None:
    make_daemon(f"--journal={tmp_path}/journal")
    with td.connect(timeout=PATIENCE_S) as client:
        client.register("before", timeout=0.001).result()
        with following("monitor", "--match", "orders/*", "--count", "2", "--json") as shell:
            number = 0

            def goes_on() -> bool:
                """Settle one more operation: the command has not begun as long as it prints nothing."""
                nonlocal number
                number += 1
                client.register(f"orders/{number}", timeout=0.001).result()
                client.register(f"others/{number}", timeout=0.001).result()
                return shell.poll() is not None

            eventually(goes_on)
            status, lines = ended(shell)
    rows = [json.loads(line) for line in lines]
    assert status == Exit.OK and len(rows) == 2, lines
    assert all(row["key"].startswith("orders/") and row["outcome"] == "EXPIRED" for row in rows)
    assert all(row["lateness_ns"] >= 0 for row in rows)


def test_monitor_says_that_it_needs_a_journal(daemon: Daemon, run: Run) -> None:
    status, _, err = run("monitor")
    assert status == Exit.NO_INSTANCE and "--journal DIR" in err


@pytest.mark.long
def test_events_on_keys_are_printed_as_they_come(daemon: Daemon, run: Run) -> None:
    command = ("subscribe", "a key", "p0", "--count", "3", "--bytes", "4")
    with td.connect(timeout=PATIENCE_S) as client, following(*command) as shell:
        eventually(lambda: observers(run) == 2)
        client.fire("a key", value=b"secrets", amount=7)
        client.fire("other")
        client.advance("p0", 12)
        client.fail("p0", code=3)
        client.flush()
        status, lines = ended(shell)
    assert status == Exit.OK
    assert [line.split("  ", 1)[1].split() for line in lines] == [
        ["fire", "'a", "key'", "7", "secr..."],
        ["advance", "p0", "12"],
        ["fail", "p0", "3"],
    ]
    eventually(lambda: observers(run) == 0, "the subscription is left in the arena")


def test_a_subscription_ends_with_1_where_no_event_comes_in_time(daemon: Daemon, run: Run) -> None:
    status, out, _ = run("subscribe", "k", "--timeout", "50ms", "--json")
    assert status == Exit.PROBLEM and out == ""


def test_a_subscription_needs_the_daemon(daemon: Daemon, run: Run) -> None:
    daemon.kill()
    status, _, err = run("subscribe", "k")
    assert status == Exit.NO_DAEMON and "is not running" in err
