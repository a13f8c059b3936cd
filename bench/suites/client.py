"""The client's own CPU for a request, and its memory for a pending operation: register, fire and their bulk calls.

    python bench/suites/client.py [--short] [--requests 32k] [--pending 100k] [--rounds 9] [--handles 200k]

There is no daemon and no socket: frames to the daemon are dropped, and its reports are made beforehand, with `--told`
outcomes in each. *caller* is the call itself. *sender* makes frames of the commands. *settler* receives the reports.
*release* drops the caller's handles. *lifetime* is the sum of a round's stages. Figures are ns of CPU for a request,
medians of the rounds, with the garbage collector on, beside `--pending` operations that stay. A registration has three
keys or one (`keys`). The caller has made the keys beforehand.

*memory* is the client's memory for a pending registration: a process makes `--handles` registrations, and its growth is
divided by their number, without and with the keys that the caller gave (client_memory.py).

*handle* is the memory of a handle of `register`, part by part: while it is pending, when it has settled, and after
`outcome()` was called (*read*). The handle has one key of 17 characters, a payload that all handles share, and a value
of 8 bytes (client_memory.py). *traced* are bytes that were asked for (tracemalloc), *resident* are bytes that the
kernel has given.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from itertools import product
from typing import Any, NamedTuple, TypeVar

from bench.lib.client_memory import PARTS, STATES, WAYS
from bench.lib.client_rig import KEY, PAYLOAD, TOGETHER, VALUE, Rig, keys_of, pieces_of
from bench.lib.common import Parser, Row, Suite, amount, run_child, run_suite
from timerd_client.threaded.purgatory import Purgatory
from timerd_shm.declare.limits import WINDOW_COMMANDS_MAX

KEYS = (3, 1)  # of a registration
REGISTRATIONS = ("register", "register_many")
LIFETIME = "lifetime"
MEMORY = ("-m", "bench.lib.client_memory")
T = TypeVar("T")


class Call(NamedTuple):
    """A measured call. `do` makes all requests of a round, and returns the handles that the caller keeps."""

    name: str
    keys: int
    do: Callable[[], list[Any]]


def registrations(purgatory: Purgatory, requests: int, keys: int) -> list[Call]:
    """Both ways to register `requests` operations."""
    rows = keys_of(0, requests, keys)
    pieces = pieces_of(rows)
    register, many = purgatory.register, purgatory.register_many

    def registering() -> list[Any]:
        return [register(row, timeout=0.2, payload=PAYLOAD) for row in rows]

    def registering_many() -> list[Any]:
        return [many(piece, timeout=0.2, payloads=PAYLOAD) for piece in pieces]

    return [Call(name, keys, do) for name, do in zip(REGISTRATIONS, (registering, registering_many), strict=True)]


def firings(purgatory: Purgatory, requests: int) -> list[Call]:
    """Both ways to fire `requests` events."""
    names = [KEY.format(number) for number in range(requests)]
    pieces = pieces_of(names)
    fire, fire_many = purgatory.fire, purgatory.fire_many

    def firing() -> list[Any]:
        for name in names:
            fire(name, value=VALUE)
        return []

    def firing_many() -> list[Any]:
        for piece in pieces:
            fire_many(piece, values=VALUE)
        return []

    return [Call("fire", 1, firing), Call("fire_many", 1, firing_many)]


def measure(requests: int, pending: int, rounds: int, per_report: int) -> list[Row]:
    """A row for each stage of each call, with its ns."""
    rig = Rig()
    kept = []
    for number in range(pending):
        kept.append(rig.purgatory.register(f"pending/{number}", timeout=3600.0, payload=PAYLOAD))
        if number % TOGETHER == 0:
            rig.settle()
    rig.settle()
    calls = [call for keys in KEYS for call in registrations(rig.purgatory, requests, keys)]
    calls += firings(rig.purgatory, requests)
    found: dict[Call, dict[str, list[float]]] = {}
    for _ in range(rounds):
        for call in calls:
            stages = found.setdefault(call, {})
            for stage, ns in play_round(rig, call, requests, per_report).items():
                stages.setdefault(stage, []).append(ns)
    return [
        {"call": call.name, "keys": call.keys, "stage": stage, "ns": statistics.median(ns)}
        for call, stages in found.items()
        for stage, ns in stages.items()
    ]


def play_round(rig: Rig, call: Call, requests: int, per_report: int) -> dict[str, float]:
    """One round of a call. Returns the ns of each stage, and their sum."""
    stages: dict[str, float] = {}

    def spent(stage: str, do: Callable[[], T]) -> T:
        began = time.thread_time_ns()
        made = do()
        stages[stage] = (time.thread_time_ns() - began) / requests
        return made

    def hearing() -> None:
        for report in reports:
            rig.receive(report)

    first = rig.protocol.ledger.issued + 1
    held = spent("caller", call.do)
    spent("sender", rig.send)
    reports = rig.reports(list(range(first, first + requests)), per_report) if held else [rig.header()]
    spent("settler", hearing)
    if held:
        assert all(promise.done() for promise in held)
        spent("release", held.clear)
    return stages | {LIFETIME: sum(stages.values())}


def child(*command: str) -> Any:
    """The JSON document that a program prints."""
    done = run_child([sys.executable, *command])
    if done.returncode:
        raise RuntimeError(f"{command} failed: {done.stderr}")
    return json.loads(done.stdout)


def play_calls(suite: Suite) -> None:
    """The table of CPU: medians over the processes."""
    args = suite.args
    sizes = {"requests": args.requests, "pending": args.pending, "rounds": args.rounds, "told": args.told}
    words = [f"--{name}={value}" for name, value in sizes.items()]
    found: dict[tuple[str, int, str], list[float]] = {}
    for turn in range(args.turns):
        suite.say(f"turn {turn + 1} of {args.turns}")
        for row in child(__file__, "--child", *words):
            found.setdefault((row["call"], row["keys"], row["stage"]), []).append(row["ns"])
    for (call, keys, stage), ns in found.items():
        suite.add("calls", call=call, keys=keys, stage=stage, ns=round(statistics.median(ns)))


def play_memory(suite: Suite) -> None:
    """The table of memory: a process for each figure, because a process gives no memory back."""
    handles = suite.args.handles
    for keys, call in product(KEYS, REGISTRATIONS):
        suite.say(f"memory of {handles:,} pending, {call}, keys: {keys}")
        grown = child(*MEMORY, call, str(keys), str(handles))
        row = {"bytes": grown["without_keys"], "bytes_with_keys": grown["with_keys"]}
        suite.add("memory", call=call, keys=keys, handles=handles, **row)


def play_handle(suite: Suite) -> None:
    """The table of the parts of a handle."""
    suite.say(f"memory of {suite.args.handles:,} handles, part by part")
    found = child(*MEMORY, "handle", str(suite.args.handles))
    states = [f"{state}, {way}" for state in STATES for way in WAYS]
    for what in (*states, *PARTS):
        suite.add("handle", what=what, bytes=round(found[what], 1))


def play(suite: Suite) -> None:
    play_calls(suite)
    play_memory(suite)
    play_handle(suite)


def main() -> int:
    parser = Parser("client", __doc__)
    parser.size("--requests", amount(1, WINDOW_COMMANDS_MAX), "32k", "4k", "requests in a round, at most a window")
    parser.size("--pending", amount(0, 10_000_000), "100k", "1k", "operations that stay")
    parser.size("--rounds", amount(1, 1_000), "9", "3", "rounds in a turn")
    parser.size("--turns", amount(1, 1_000), "5", "1", "processes, one after the other")
    parser.size("--told", amount(1, 16_384), "256", "256", "outcomes in a report")
    parser.size("--handles", amount(1, 10_000_000), "200k", "20k", "pending registrations whose memory is measured")
    parser.add_argument("--child", action="store_true", help="measure in this process; print JSON")
    if "--child" in sys.argv:
        args = parser.parse()
        print(json.dumps(measure(args.requests, args.pending, args.rounds, args.told)))
        return 0
    return run_suite(parser, play)


if __name__ == "__main__":
    sys.exit(main())
