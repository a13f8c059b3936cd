"""A start makes the derived fields right, in any order of the records, and also without a second thread."""

from __future__ import annotations

import os
import random
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from arena.churn import all_is_in_order, churned
from support.oracle.truth import truth
from support.real.trees import python_path
from support.rig.arenas import SEED
from support.rig.groups import call, handler
from support.rig.harness import Rig
from timerd_shm.declare.errors import ArenaDamagedError
from timerd_shm.declare.fields import offset_of
from timerd_shm.declare.records import ArenaHeader

# A thread needs memory for its stack, usually 8 MiB. This program leaves less.
WITHOUT_A_THREAD = """
import random, resource, sys, threading
from arena.churn import all_is_in_order, churned
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (6 << 20), resource.RLIM_INFINITY))
try:
    threading.Thread(target=print).start()
except RuntimeError:
    print("no thread")
rig = churned(random.Random(sys.argv[1]))
rig.restart()
all_is_in_order(rig)
"""


@pytest.mark.parametrize("seed", range(3))
def test_lists_are_in_order_of_registration_whatever_the_order_of_the_records(seed: int) -> None:
    rig = churned(random.Random(seed))
    before = truth(rig.memory)
    rig.restart()
    assert truth(rig.memory) == before
    all_is_in_order(rig)


def test_a_start_without_a_second_thread_does_all_work_itself(seed: int) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", WITHOUT_A_THREAD, str(seed)],
        env=os.environ | {"PYTHONPATH": python_path()},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, "no thread\n"), ended.stderr


def committed() -> int:
    """Bytes of this process that count under vm.overcommit_memory=2 and RLIMIT_DATA: those that it may write."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmData:")[1].split()[0]) << 10


def test_a_start_commits_little_memory_beside_the_arena() -> None:
    """An earlier version committed 68 bytes for each operation of the capacity: 1.1 GB for 16 million."""
    capacity = 1 << 17
    rig = Rig(capacity=capacity, nodes=1_024, blocks=1_024, ids=1_024)
    memory, before = bytearray(rig.memory), committed()
    core = rig.module.Core(memory, rig.now_ns, SEED)
    assert committed() - before < 8 * capacity
    core.release()


@pytest.mark.long
def test_memory_beside_the_arena_grows_with_the_calls_that_wait() -> None:
    """The names of calls take 40 bytes each, in memory that grows by 1 MiB at a time. Here it has to grow twice."""
    rig = Rig(capacity=1 << 15, quota_operations=1 << 15)
    asker = rig.client(group=b"web")
    for number in range(27_000):
        asker.issue(call(b"%d" % number))
    rig.turn()
    rig.turn()
    worker = handler(rig, b"26999", group=b"web")
    rig.turn()
    assert [outcome.keys for outcome in worker.delivered_for_group] == [(b"26999",)]


def test_an_arena_without_a_tick_is_refused_by_name() -> None:
    rig = Rig()
    memory = bytearray(rig.memory)
    struct.pack_into("<Q", memory, offset_of(ArenaHeader, "tick_ns"), 0)
    with pytest.raises(ArenaDamagedError, match="header"):
        rig.module.Core(memory, rig.now_ns, SEED)
