"""The bench of the client: registrations with several keys, and the memory of a pending registration."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from bench.lib.client_rig import ROWS, keys_of, pieces_of
from bench.lib.core_rig import measure as measure_core
from bench.suites.client import KEYS, LIFETIME, MEMORY, REGISTRATIONS, measure
from timerd_shm.declare.fields import size_of
from timerd_shm.declare.records import Block


def test_each_registration_has_keys_of_its_own() -> None:
    assert keys_of(5, 2, 1) == ["request/000000005", "request/000000006"]
    three = keys_of(0, 10, 3)
    assert all(isinstance(keys, tuple) and len(keys) == 3 for keys in three)
    assert len({key for keys in three for key in keys}) == 30
    assert [len(piece) for piece in pieces_of(range(ROWS + 1))] == [ROWS, 1]


def test_a_lifetime_is_the_sum_of_its_stages() -> None:
    rows = measure(requests=200, pending=10, rounds=1, per_report=16)
    found = {(row["call"], row["keys"], row["stage"]): row["ns"] for row in rows}
    assert len(found) == len(rows)
    for call in REGISTRATIONS:
        for keys in KEYS:
            stages = [found[call, keys, stage] for stage in ("caller", "sender", "settler", "release")]
            assert found[call, keys, LIFETIME] == sum(stages) and min(stages) >= 0
    assert ("fire", 1, "release") not in found, "a caller keeps nothing of an event"


@pytest.mark.long
@pytest.mark.parametrize("call", REGISTRATIONS)
def test_memory_is_that_of_pending_registrations_without_and_with_their_keys(call: str) -> None:
    done = subprocess.run([sys.executable, *MEMORY, call, "3", "30000"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    # Each registration keeps at least some bytes. Three names and their tuple take about 260 bytes.
    assert 20 < found["without_keys"] < found["with_keys"] - 150 < 2_000, found


@pytest.mark.long
def test_bytes_of_an_operation_in_the_arena_include_the_block_of_its_payload(seed: int) -> None:
    found = measure_core(10_000, seed, keys=3)
    assert found["bytes_per_op_full"] - found["bytes_per_op"] == size_of(Block)
