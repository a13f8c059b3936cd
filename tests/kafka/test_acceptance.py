"""The acceptance of the broker in a short form, its parts side by side. `make accept-kafka` runs the full form.

Of make's targets for tests, only `make test-long` runs the checks: most take seconds of CPU. The tests beside this file
check the same behaviour at less cost, those of test_clients.py with the three clients in Python. The other clients are
installed by name, if they are not there.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.real.trees import ROOT

# A busy machine may break these claims. Most are bounds of time: for example, a member with a session of two seconds
# must be able to send its heartbeats. Claims about quotas need clients that are faster than their quota. The full form
# checks all of them.
TIMED = {"timed_out_in_time", "empty_in_time", "woken", "killed_member", "leaving_member", "slow_rejoiner"}
TIMED |= {"quota_rate", "muted", "clients_throttled", "bystander_served", "refused_in_time", "answered_in_time"}
TIMED |= {"all_answered", "producers_go_on", "works_again_in_time", "members_stay"}
TIMED |= {"closed_at_once", "joined_at_once", "nothing_waits_in_time"}
TIMED |= {"at_once_in_time", "sum_in_time", "goes_on_in_time", "throttled", "throttle_reported"}
PARTS = ("daemon,quota,joins", "damaged,storm,full", "groups,records,stopped", "fetch,no_wait,counts,answers,ports")
# The checks without the others, in which only raw clients play.
OF_CLIENTS = ("quota,joins,storm", "groups,records,no_wait", "counts,answers,ports")
IN_PYTHON = "kafka-python,aiokafka,confluent-kafka"
SHORT = ("--short", "--records=300", "--mutations=1k", "--seconds=3", "--between=1")


def test_each_check_is_in_a_part() -> None:
    checks = re.findall(r'^    "(\w+)": check_', (ROOT / "tests/kafka/acceptance/accept.py").read_text(), re.MULTILINE)
    assert sorted(name for part in PARTS for name in part.split(",")) == sorted(checks)


def accept(document: Path, clients: str, parts: tuple[str, ...], seed: int) -> None:
    """Run parts of the acceptance, and look at all claims that a busy machine cannot break."""
    only = [f"--only={part}" for part in parts]
    command = [str(ROOT / "tests/kafka/acceptance/accept.py"), *SHORT, *only, f"--seed={seed}", f"--json={document}"]
    ran = subprocess.run([sys.executable, *command, f"--clients={clients}"], capture_output=True, text=True)
    assert ran.returncode in (0, 1), ran.stdout + ran.stderr
    claims = json.loads(document.read_text())["checks"]
    broken = {name: claim["says"] for name, claim in claims.items() if not claim["held"] and name not in TIMED}
    assert claims and not broken, f"{broken}\n{ran.stdout[-8_000:]}\n{ran.stderr[-4_000:]}"


@pytest.mark.long
@pytest.mark.timeout(1_800)
def test_the_promises_of_the_broker_hold(tmp_path: Path, seed: int) -> None:
    accept(tmp_path / "kafka.json", IN_PYTHON, PARTS, seed)


@pytest.mark.long
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("client", ["kcat", "kafkajs", "java"])
def test_the_promises_of_the_broker_hold_for(client: str, tmp_path: Path, seed: int) -> None:
    install = [sys.executable, str(ROOT / "tests/kafka/acceptance/install.py"), client]
    installed = subprocess.run(install, capture_output=True, text=True)
    if installed.returncode:
        pytest.skip(installed.stdout.strip() or installed.stderr[-1_000:])
    accept(tmp_path / "kafka.json", f"aiokafka,{client}", OF_CLIENTS, seed)
