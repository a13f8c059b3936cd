"""Why the core is compiled: one insert in pure Python, by the core with a call for each, and by the core in bulk.

    python bench/suites/why_cython.py [--count 100k] [--repeat 5] [--short] [--json FILE]

All three fill records of the declared layout. The version in pure Python is as short as possible. It has an operation
with its watch node, a key in a dict and the list of a bucket, but no redo slot, no recovery and no quotas. Figures are
medians of the runs, in ns for an operation.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

from bench.lib.common import Parser, Suite, amount, need_memory, run_suite
from bench.lib.core_rig import MS, Rig, S, key, register
from timerd_shm.declare.fields import offset_of, struct_of
from timerd_shm.declare.records import OpRecord, WatchNode
from timerd_shm.declare.states import OpState

OP, NODE = struct_of(OpRecord), struct_of(WatchNode)
NEXT = offset_of(OpRecord, "next")
BUCKETS = 4_096
MASK = 0xFFFF_FFFF_FFFF_FFFF
MEMORY_PER_OP = 1_500


def pure_python(count: int) -> float:
    """Seconds for `count` inserts. Each fills its records, its bucket's list and its key's entry."""
    memory = bytearray(count * OP.size)
    keys: dict[bytes, int] = {}
    heads = [0] * BUCKETS
    names = [key(index) for index in range(count)]
    pack_op, pack_node = OP.pack_into, NODE.pack
    began = time.perf_counter()
    for index, name in enumerate(names):
        deadline_ns = 1_000 * S + index * 1_000
        first = keys.setdefault(name, index)
        bucket = (deadline_ns // MS) % BUCKETS
        node = pack_node(hash(name) & MASK, 0, index, 0, 0, len(name), 0, 0, 0, 1, 0, name, 0, 0, first + 1, first + 1)
        pack_op(
            memory, index * OP.size, OpState.PENDING, 0, 0, 0, 1, 0, deadline_ns, 0, 0, 1, 1, 0, 0, 0, 0, 0, index,
            index, 0, 0, 0, 0, 0, 0, 0, bucket + 1, 1, deadline_ns, 0, 0, heads[bucket], 0, node,
        )  # fmt: skip
        heads[bucket] = index * OP.size + NEXT
    return time.perf_counter() - began


def in_frames(count: int, batch: int) -> float:
    """Seconds for `count` inserts by the core, with `batch` of them in each call."""
    rig = Rig(count + 1)
    commands = [register(index, rig.now_ns, 60 * S) for index in range(count)]
    frames = [frame for start in range(0, count, batch) for frame in rig.frames(commands[start : start + batch])]
    took = rig.apply(frames)
    assert rig.count("pending") == count
    rig.close()
    return took


def play(suite: Suite) -> None:
    count: int = suite.args.count
    need_memory(count * MEMORY_PER_OP, f"{count:,} operations", "ask for fewer (--count)")
    ways: dict[str, Callable[[], float]] = {
        "pure Python": lambda: pure_python(count),
        "core, a call for each": lambda: in_frames(count, 1),
        "core, 4,096 in a call": lambda: in_frames(count, 4_096),
    }
    # In turns, so that a busy machine is as busy for each.
    spent: dict[str, list[float]] = {name: [] for name in ways}
    for repeat in range(suite.args.repeat):
        suite.say(f"run {repeat + 1} of {suite.args.repeat}")
        for name, way in ways.items():
            spent[name].append(way() / count * 1e9)
    for name, values in spent.items():
        suite.add("insert", way=name, median_ns=statistics.median(values), least_ns=min(values), most_ns=max(values))


def main() -> int:
    parser = Parser("why_cython", __doc__)
    parser.size("--count", amount(1_000, 8_000_000, "operations"), "100k", "20k", "inserts in a run")
    parser.size("--repeat", amount(1, 100, "runs"), "5", "3", "runs of each")
    return run_suite(parser, play)


if __name__ == "__main__":
    sys.exit(main())
