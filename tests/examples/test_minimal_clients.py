"""The minimal clients of examples/ lose and double nothing while a daemon is killed.

They use what PROTOCOL.md says, and nothing else of timerd. storm.py and storm.mjs count their outcomes.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from support.real.daemons import Daemon
from support.real.trees import ROOT, TESTS

KILLS = 20
OPERATIONS = 2_000
SECONDS = 30
PYTHON = ROOT / "examples/minimal_client/client.py"


class Program:
    """A minimal client, and the program that makes a storm with it."""

    def __init__(self, interpreter: str, client: Path, storm: Path) -> None:
        self._interpreter, self._client, self._storm = interpreter, client, storm

    def command(self, *arguments: str) -> list[str]:
        """The client's own command line."""
        return [self._interpreter, str(self._client), *arguments]

    def storm(self, *arguments: str) -> list[str]:
        """The command line of the storm."""
        return [self._interpreter, str(self._storm), str(self._client), *arguments]


def python_client(directory: Path) -> Program:
    return Program(sys.executable, PYTHON, TESTS / "examples/storm.py")


def node_client(directory: Path) -> Program:
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("needs Node.js with npm")
    shutil.copytree(ROOT / "examples/node", directory / "node")
    ran = subprocess.run(
        [npm, "install", "--no-audit", "--no-fund"], cwd=directory / "node", capture_output=True, text=True
    )
    if ran.returncode:
        pytest.skip(f"npm cannot install the packages: {ran.stderr[-300:]}")
    return Program(node, directory / "node/client.mjs", TESTS / "examples/storm.mjs")


CLIENTS = [pytest.param(python_client), pytest.param(node_client, marks=pytest.mark.long)]


@pytest.mark.parametrize("client", CLIENTS)
def test_a_key_is_waited_for_and_fired(client: Callable[[Path], Program], daemon: Daemon, tmp_path: Path) -> None:
    program = client(tmp_path)
    with subprocess.Popen(program.command("wait", "k"), stdout=subprocess.PIPE, text=True) as waits:
        while waits.poll() is None:
            fired = subprocess.run(program.command("fire", "k", "v"), capture_output=True, text=True)
            assert (fired.stdout, fired.stderr) == ("fired\n", "")
        assert waits.communicate()[0] == "completed v\n"


@pytest.mark.parametrize("client", CLIENTS)
def test_an_operation_expires(client: Callable[[Path], Program], daemon: Daemon, tmp_path: Path) -> None:
    command = client(tmp_path).command("wait", "k", "0.1")
    waited = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (waited.stdout, waited.stderr) == ("expired \n", "")


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("client", [python_client, node_client])
def test_a_minimal_client_gets_each_outcome_once_while_the_daemon_is_killed(
    client: Callable[[Path], Program],
    make_daemon: Callable[..., Daemon],
    tmp_path: Path,
    seed: int,
) -> None:
    program, chance = client(tmp_path), random.Random(seed)
    daemon = make_daemon("--capacity=16384", instance="storm")
    path = daemon.paths.directory / "storm"
    command = program.storm(str(path), str(OPERATIONS), str(SECONDS), str(seed))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for kills in range(KILLS):
            time.sleep(chance.uniform(0.3, 1.0))
            assert process.poll() is None or kills > KILLS // 2, "the storm has ended early"
            daemon.kill()
            daemon.start()
        said, _ = process.communicate(timeout=300)
    found = json.loads(said)
    assert process.returncode == 0, found
    assert found["completed"] + found["expired"] == OPERATIONS, found
    assert found["completed"] and found["expired"]
    assert found["lost"] == found["twice"] == found["early"] == 0
