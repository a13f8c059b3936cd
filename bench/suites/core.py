"""The core alone: insert, cancel, complete by key, report, reschedule, expiry, worst tick and bytes per operation.

    python bench/suites/core.py [--pending 10k,100k,1M,4M] [--keys 1,3] [--repeat 3]
                          [--huge-pages] [--short] [--json FILE]

Commands are encoded beforehand, and applied in frames of 4,096, as the daemon does. So a figure holds the core's own
work and its share of the frame, and no Python for each operation. The work is done while `pending` other operations
stay pending. Their deadlines are spread over a minute. Each operation has --keys keys of its own, of 12 bytes.
`cancel`, `complete` and `reschedule` choose at random among 20,000 operations that were registered just before, as
requests do. The `_any` rows choose among all pending operations, where every step misses the cache and the TLB.
Outcomes are counted, and their number is checked. `tell_ns` is the later cost of an outcome: its share of a report, and
of freeing its record when it is acknowledged. The `_full` rows are like the load test: operations with a payload of 100
bytes and a value of 8 bytes complete in the order of registration. Bytes are arena bytes for a pending operation: its
records, and its share of the tables.

A figure is the median over the repeats, with the least and the most beside it. For the worst tick the best repeat
counts, because on a shared machine any tick can be interrupted. With --huge-pages each run is made twice, the second
time on pages of 2 MiB. The daemon's arena has huge pages, too, if /dev/shm gives them. `huge_share` is the share of the
memory that is on huge pages.
"""

from __future__ import annotations

import statistics
import sys
from itertools import product

from bench.lib.common import Parser, Suite, amount, listed, need_memory, run_suite
from bench.lib.core_rig import measure
from bench.lib.memory import measures_huge

MEMORY_PER_OP = 600  # bytes of the arena, and of the frames that are encoded beforehand


def play(suite: Suite) -> None:
    most = max(suite.args.pending)
    memory = most * MEMORY_PER_OP * (1 + max(suite.args.keys)) // 2
    need_memory(memory, f"{most:,} pending operations", "ask for fewer (--pending)")
    tables = ["figures"] + ["figures_on_huge_pages"] * measures_huge(suite)
    for keys, pending in product(suite.args.keys, suite.args.pending):
        runs: dict[str, list[dict[str, float]]] = {table: [] for table in tables}
        for repeat in range(suite.args.repeat):
            for table in runs:
                what = f"{keys} keys, {pending:,} pending, {table.replace('_', ' ')}"
                suite.say(f"{what}, run {repeat + 1} of {suite.args.repeat}")
                runs[table].append(measure(pending, suite.seed + repeat, table != "figures", keys))
        for table, found in runs.items():
            for figure in found[0]:
                values = [run[figure] for run in found]
                # On a shared machine any tick can be interrupted, so the best repeat counts.
                median = min(values) if figure == "worst_tick_ms" else statistics.median(values)
                which = table if keys == 1 else f"{table}_with_{keys}_keys"
                suite.add(which, pending=pending, figure=figure, median=median, least=min(values), most=max(values))


def main() -> int:
    parser = Parser("core", __doc__)
    sizes = listed(amount(10_000, 8_000_000, "operations"))
    parser.size("--pending", sizes, "10k,100k,1M,4M", "10k,100k", "operations that stay, with commas between")
    parser.size("--keys", listed(amount(1, 64, "keys")), "1,3", "1,3", "keys of each operation, with commas between")
    parser.size("--repeat", amount(1, 100, "runs"), "3", "1", "runs of each")
    parser.add_argument("--huge-pages", action="store_true", help="make each run once more, on pages of 2 MiB")
    return run_suite(parser, play)


if __name__ == "__main__":
    sys.exit(main())
