"""Instructions of the compiled core for an operation, counted by valgrind: insert, cancel, complete, tell, expire.

    python bench/suites/instructions.py [--tree DIR] [--count 20k]

For example, compare a change of the core with the tree before the change, which is built at ../before:

    python bench/suites/instructions.py --tree ../before

    insert         730.5  before     743.2   -1.71%
    cancel         359.8  before     360.3   -0.15%

A busy machine and an idle one execute the same number of instructions, so a difference of one per cent is visible. The
same operations run in each tree, with fixed seeds, under `valgrind --tool=callgrind`. Only instructions inside
timerd.core are counted, and not those of the C library or of Python. No figure includes Python's startup.

The phases, in this order: `insert` registers --count operations, `full` a fifth as many with a payload. `cancel`
cancels half of the operations of `insert` at random. `tell` reports these outcomes, and frees the acknowledged records.
`complete` fires the keys of the other half. `refill` reports these outcomes, and registers --count operations on the
freed records. `expire` lets all remaining operations expire, tick by tick, with their reports.

A process plays the phases, and calls os.getppid() between them. Valgrind writes its counts each time the process enters
this function of the C library. So each file holds one phase.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.lib import core_rig as core
from timerd_shm.declare.wire import CommandKind

ROOT = Path(__file__).resolve().parents[2]
# Each phase, and its number of operations as a share of --count.
PHASES = (
    ("insert", 1.0),
    ("full", 0.2),
    ("cancel", 0.5),
    ("tell", 0.5),
    ("complete", 0.5),
    ("refill", 1.0),
    ("expire", 1.2),
)
SEED = 7


def play(count: int) -> None:
    """Play every phase in this process, with the benches and the core of the tree on its path."""
    rng = random.Random(SEED)
    rig = core.Rig(3 * count)

    def inserts(number: int, payload: bytes = b"") -> tuple[list[int], list[bytes]]:
        numbers = list(range(rig.number, rig.number + number))
        timeouts = [rng.randrange(core.S, core.SPREAD_NS) for _ in numbers]
        commands = [
            core.register(n, rig.now_ns, timeout, payload) for n, timeout in zip(numbers, timeouts, strict=True)
        ]
        return numbers, rig.frames(commands)

    # All frames are encoded first, so that a phase is the core's work and a few lines of Python.
    numbers, first = inserts(count)
    _, full = inserts(min(count // 5, core.BLOCKS), core.PAYLOAD)
    rng.shuffle(numbers)
    cancels = rig.frames(core.operation(CommandKind.CANCEL, n, rig.now_ns, 0) for n in numbers[: count // 2])
    fires = rig.frames(core.fire(n, core.VALUE if n % 8 == 0 else b"") for n in numbers[count // 2 :])
    _, second = inserts(count)
    os.getppid()
    for frames in (first, full, cancels):
        rig.apply(frames)
        os.getppid()
    outcomes, _ = rig.acknowledge()
    assert outcomes == count // 2, outcomes
    os.getppid()
    rig.apply(fires)
    os.getppid()
    rig.acknowledge()
    rig.apply(second)
    os.getppid()
    while rig.count("pending"):
        rig.now_ns = rig.core.next_wake_ns()
        rig.core.begin_turn(rig.now_ns)
        rig.core.advance(rig.now_ns, core.BUDGET)
        rig.core.end_turn(rig.now_ns)
        rig.acknowledge()
    os.getppid()


def counted(dump: Path) -> int:
    """Instructions inside timerd.core in one file of callgrind: each function's own, without its callees'."""
    names: dict[str, str] = {}
    total, inside, called = 0, False, False
    for line in dump.read_text().splitlines():
        if named := re.match(r"ob=\((\d+)\)(?: (.*))?", line):
            if named[2]:
                names[named[1]] = named[2]
            inside = bool(re.search(r"/timerd/core\.[^/]*$", names[named[1]]))
        elif named := re.match(r"cob=\((\d+)\) (.*)", line):
            names[named[1]] = named[2]
        elif line.startswith("calls="):
            called = True  # the next line has the cost of the called function
        elif line[:1].isdigit() or line[:1] in ("+", "-", "*"):
            if inside and not called:
                total += int(line.split()[-1])
            called = False
    return total


def measure(tree: Path, count: int) -> dict[str, float]:
    """Instructions for an operation, by phase."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *("valgrind", "--tool=callgrind", "--dump-before=getppid", f"--callgrind-out-file={folder}/dump"),
            *(str(tree / ".venv/bin/python"), str(Path(__file__).resolve())),
            *("--play", "--tree", str(tree), "--count", str(count)),
        ]
        played = subprocess.run(
            command, cwd=tree, env={**os.environ, "PYTHONHASHSEED": "0"}, capture_output=True, text=True
        )
        if played.returncode != 0:
            sys.exit(f"instructions: valgrind ended with status {played.returncode}:\n{played.stderr}")
        # The first file has the startup, and the last file everything after the last phase.
        dumps = [Path(folder, f"dump.{index}") for index in range(2, 2 + len(PHASES))]
        return {name: counted(dump) / (count * share) for (name, share), dump in zip(PHASES, dumps, strict=True)}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tree", type=Path, help="another tree of timerd to compare with, built in its .venv")
    parser.add_argument("--count", type=lambda text: int(text.replace("k", "000")), default=20_000, help="operations")
    parser.add_argument("--play", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.play:
        play(args.count)
        return 0
    if shutil.which("valgrind") is None:
        print("instructions: valgrind is not installed; it is needed to count instructions", file=sys.stderr)
        return 2
    here = measure(ROOT, args.count)
    before = measure(args.tree.resolve(), args.count) if args.tree else {}
    for name, instructions in here.items():
        compared = f"  before {before[name]:9.1f}  {instructions / before[name] - 1:+7.2%}" if before else ""
        print(f"{name:10} {instructions:9.1f}{compared}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
