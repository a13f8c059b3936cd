"""timerctl exporter: both formats, while the daemon lives and when it is dead; and what it needs."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import timerd as td
from support.real.daemons import Daemon
from support.real.patience import PATIENCE_S, eventually
from support.real.shell import Run, in_background
from timerctl.exits import Exit


@contextmanager
def exporter() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A running exporter, and the address of its metrics."""
    shell = in_background("exporter", "--port", "0")
    try:
        assert shell.stdout is not None
        line = shell.stdout.readline()
        found = re.search(r"http://\S+", line)
        assert found is not None, line
        yield shell, found[0]
    finally:
        shell.kill()
        shell.communicate()


def scraped(address: str, accept: str = "text/plain") -> tuple[str, str]:
    request = urllib.request.Request(address, headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


def test_a_scrape_reads_the_arena_in_both_formats_also_of_a_dead_daemon(daemon: Daemon, run: Run) -> None:
    with td.connect(timeout=PATIENCE_S) as client, exporter() as (shell, address):
        client.register_many(["k"] * 3, timeout=60)
        client.flush()
        kind, text = scraped(address)
        assert "0.0.4" in kind or "1.0.0" in kind
        assert 'timerd_pending{instance="default",purgatory="default"} 3.0' in text
        assert 'timerd_up{instance="default"} 1.0' in text and "python_info" not in text
        names = {line.split()[2] for line in run("stats", "--prometheus")[1].splitlines() if line.startswith("# TYPE")}
        assert names == {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
        kind, text = scraped(address, "application/openmetrics-text; version=1.0.0")
        assert kind.startswith("application/openmetrics-text") and text.endswith("# EOF\n")
        daemon.kill()
        eventually(lambda: 'timerd_up{instance="default"} 0.0' in scraped(address)[1])
        assert 'timerd_pending{instance="default",purgatory="default"} 3.0' in scraped(address)[1]
        daemon.destroy()
        assert scraped(address)[1].splitlines()[-1] == 'timerd_up{instance="default"} 0.0'
        shell.send_signal(signal.SIGTERM)
        shell.communicate(timeout=PATIENCE_S)
        assert shell.returncode == Exit.OK


def test_what_the_exporter_needs_is_said(daemon: Daemon, run: Run, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with exporter() as (_, address):
        taken = address.split(":")[2].split("/")[0]
        status, _, err = run("exporter", "--port", taken)
        assert status == Exit.USAGE and taken in err and "give another" in err
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    status, _, err = run("exporter")
    assert status == Exit.USAGE and "timerd[metrics]" in err
