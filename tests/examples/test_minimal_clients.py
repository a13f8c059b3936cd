"""The minimal clients of examples/, written from PROTOCOL.md alone, lose and double nothing while a daemon is killed.

Their author had read the page and nothing else, and had found by trying what the page lacked at that time.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.real.daemons import Daemon
from support.real.patience import PATIENCE_S, eventually
from support.real.trees import ROOT

KILLS = 20
OPERATIONS = 2_000
SECONDS = 30


def python_client(directory: Path) -> list[str]:
    return [sys.executable, str(ROOT / "examples/minimal_client/client.py")]


def node_client(directory: Path) -> list[str]:
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("needs Node.js with npm")
    shutil.copytree(ROOT / "examples/node", directory / "node", ignore=shutil.ignore_patterns("node_modules"))
    ran = subprocess.run(
        [npm, "install", "--no-audit", "--no-fund"], cwd=directory / "node", capture_output=True, text=True
    )
    if ran.returncode:
        pytest.skip(f"npm cannot install the packages: {ran.stderr[-300:]}")
    return [node, str(directory / "node/client.mjs")]


@contextmanager
def running(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """A process that ends with the block, whatever happens there."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_the_python_client_waits_for_a_key_and_fires_it(daemon: Daemon, tmp_path: Path) -> None:
    client, place = python_client(tmp_path), ["--directory", str(daemon.paths.directory)]
    with running([*client, "wait", "k", *place]) as waiting:
        eventually(lambda: daemon.stats()["counters"]["pending"] == 1)
        fired = subprocess.run([*client, "fire", "k", "hello", *place], capture_output=True, text=True)
        assert (fired.returncode, fired.stdout, fired.stderr) == (0, "fired\n", "")
        assert waiting.communicate(timeout=PATIENCE_S)[0] == "completed hello\n" and waiting.returncode == 0


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("client", [python_client, node_client])
def test_a_minimal_client_gets_each_outcome_once_while_the_daemon_is_killed(
    client: Callable[[Path], list[str]],
    make_daemon: Callable[..., Daemon],
    tmp_path: Path,
    seed: int,
) -> None:
    command, chance = client(tmp_path), random.Random(seed)
    daemon = make_daemon("--capacity=16384", instance="storm")
    storm = [*command, "storm", "--directory", str(daemon.paths.directory), "--instance", "storm", "--seed", str(seed)]
    storm += ["--operations", str(OPERATIONS), "--seconds", str(SECONDS)]
    with running(storm) as process:
        for _ in range(KILLS):
            time.sleep(chance.uniform(0.3, 1.0))
            daemon.kill()
            daemon.start()
        said, _ = process.communicate(timeout=300)
    assert process.returncode == 0, said
    found = json.loads(said)
    assert found["registered"] == OPERATIONS == sum(found[name] for name in ("completed", "expired", "unavailable"))
    assert found["lost"] == found["twice"] == found["early"] == 0
    assert found["completed"] and found["expired"] and found["reconnects"]
