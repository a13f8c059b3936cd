"""The client's own CPU for a request: register, fire and their bulk calls; in the caller, the sender and the settler.

    python bench/client.py [--short] [--requests 32k] [--pending 100k] [--rounds 9] [--handles 200k]

Both implementations are measured, the compiled one and the one in Python. Each has a process of its own, and they take
turns, so that a busy machine is as busy for each. There is no daemon and no socket: frames to the daemon are dropped,
and its reports are made beforehand, with `--told` outcomes in each. *caller* is the call itself. *sender* makes frames
of the commands. *settler* receives the reports. *release* drops the caller's handles. Figures are ns of CPU for a
request, medians of the rounds, with the garbage collector on, beside `--pending` operations that stay.

*memory* is bytes of the client's memory for a handle of `register` with one key of 17 characters, a payload that all
share, and a value of 8 bytes; *read* is settled and looked at. The growth of the process for `--handles` handles is
measured by tracemalloc (*traced*: bytes that were asked for) and by the kernel (*resident*). The parts are explained in
`bench/handle_memory.py`.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import handle_memory
import msgpack
from common import Parser, Suite, amount, run_child, run_suite
from timerd_client.link.link import Link
from timerd_client.link.sockets import Sockets
from timerd_client.protocol.state import LinkState
from timerd_client.threaded.link import ThreadedLink
from timerd_client.threaded.purgatory import Purgatory
from timerd_shm.declare.fields import struct_of
from timerd_shm.declare.limits import WINDOW_COMMANDS_MAX
from timerd_shm.declare.states import Orphans
from timerd_shm.declare.wire import PROTOCOL_VERSION, DownKind, OutcomeFlag, OutcomeRecord, ReportHeader
from timerd_shm.host.paths import InstancePaths

ARENA = 7
TOPIC = 5
KEY = "request/{:09}"
PAYLOAD = bytes(100)
VALUE = bytes(8)
ROWS = 1_024  # of one register_many or fire_many
IMPLEMENTATIONS = ("pure", "compiled")
STAGES = ("caller", "sender", "settler", "release")
REPORT, OUTCOME = struct_of(ReportHeader), struct_of(OutcomeRecord)


class QuietLink(Link):
    """A link that sends no frames, and needs no waking."""

    def wake(self) -> None:
        self.idle = False


class Rig:
    """A client that received a welcome, and so believes in a live daemon."""

    def __init__(self) -> None:
        nothing = SimpleNamespace(lifeline=SimpleNamespace(), subscribe=lambda message: None)
        self.link = QuietLink(
            InstancePaths(Path("/nowhere"), "bench"), "", Orphans.CANCEL, None, cast(Sockets, nothing)
        )
        self.protocol = self.link.protocol
        self.purgatory = Purgatory(cast(ThreadedLink, self.link), "default")
        self.outcomes = 0
        welcome = {"session": b"s" * 16, "slot": 0, "topic": TOPIC, "applied": 0, "shared_clock": True}
        welcome |= {"newest": 0, "now_ns": 0, "heartbeat_ns": 10**9, "lease_ns": 10**10, "daemon_pid": 1}
        self.now = time.monotonic_ns()
        self.protocol.tick(self.now)
        self.hear(self.header(DownKind.WELCOME) + bytes(msgpack.packb(welcome)))
        self.hear(self.header())
        while self.protocol.next_frame(self.now) is not None:
            pass
        assert self.protocol.state is LinkState.LIVE

    def header(self, kind: DownKind = DownKind.REPORT, outcomes: int = 0) -> bytes:
        first, last = self.outcomes + 1, self.outcomes + outcomes
        applied = self.protocol.ledger.issued
        fields = (TOPIC, PROTOCOL_VERSION, kind, 0, outcomes, 0, 0, ARENA, applied, first, last, last, 0, 0, 0, 0)
        return REPORT.pack(*fields)

    def hear(self, frame: bytes) -> None:
        self.protocol.receive(frame, self.now, published=True)

    def reports(self, commands: list[int], per_report: int) -> list[bytes]:
        """Reports in which these operations complete, with `per_report` outcomes in each. Each outcome has a value."""
        frames = []
        for start in range(0, len(commands), per_report):
            part = commands[start : start + per_report]
            rows = [
                OUTCOME.pack(
                    command, self.outcomes + 1 + at, command, 2, 3, 1, 4, 1, 0, 8 * at, len(VALUE), 0, 0, 0, 1, 1,
                    OutcomeFlag.HAS_VALUE, 0,
                )
                for at, command in enumerate(part)
            ]  # fmt: skip
            frames.append(self.header(outcomes=len(part)) + b"".join(rows) + VALUE * len(part))
            self.outcomes += len(part)
        return frames

    def send(self) -> None:
        while self.protocol.next_frame(self.now) is not None:
            pass


def spent(stages: dict[str, list[float]], stage: str, requests: int, do: Callable[[], object]) -> None:
    """Note the CPU time of `do()`, in ns for a request."""
    began = time.thread_time_ns()
    do()
    stages.setdefault(stage, []).append((time.thread_time_ns() - began) / requests)


def chunks(requests: int) -> Iterator[list[str]]:
    for start in range(0, requests, ROWS):
        yield [KEY.format(number) for number in range(start, min(requests, start + ROWS))]


def measure(requests: int, pending: int, rounds: int, per_report: int) -> dict[str, dict[str, float]]:
    """Measure the implementation that this process has loaded. Returns {call: {stage: ns}}."""
    rig = Rig()
    register, fire = rig.purgatory.register, rig.purgatory.fire
    kept = []
    for number in range(pending):
        kept.append(register(f"pending/{number}", timeout=3600.0, payload=PAYLOAD))
        if number % 10_000 == 0:
            rig.send()
            rig.hear(rig.header())
    rig.send()
    rig.hear(rig.header())
    keys = [KEY.format(number) for number in range(requests)]
    columns = list(chunks(requests))
    many, fire_many = rig.purgatory.register_many, rig.purgatory.fire_many
    found: dict[str, dict[str, list[float]]] = {}

    def registering() -> None:
        made = [register(key, timeout=0.2, payload=PAYLOAD) for key in keys]
        held.append(made)

    def registering_many() -> None:
        held.append([many(column, timeout=0.2, payloads=PAYLOAD) for column in columns])

    def firing() -> None:
        for key in keys:
            fire(key, value=VALUE)

    def firing_many() -> None:
        for column in columns:
            fire_many(column, values=VALUE)

    def hearing() -> None:
        for report in reports:
            rig.hear(report)

    calls: dict[str, Callable[[], None]] = {
        "register": registering,
        "register_many": registering_many,
        "fire": firing,
        "fire_many": firing_many,
    }
    for _ in range(rounds):
        for name, call in calls.items():
            held: list[Any] = []
            stages = found.setdefault(name, {})
            first = rig.protocol.ledger.issued + 1
            spent(stages, "caller", requests, call)
            spent(stages, "sender", requests, rig.send)
            reports = rig.reports(list(range(first, first + requests)), per_report) if held else [rig.header()]
            spent(stages, "settler", requests, hearing)
            if held:
                assert all(promise.done() for promise in held[0])
                spent(stages, "release", requests, held.clear)
    return {name: {stage: statistics.median(ns) for stage, ns in stages.items()} for name, stages in found.items()}


def play(suite: Suite) -> None:
    args = suite.args
    found: dict[str, dict[str, dict[str, list[float]]]] = {}
    for turn in range(args.turns):
        suite.say(f"turn {turn + 1} of {args.turns}")
        for implementation in IMPLEMENTATIONS:
            sizes = {"requests": args.requests, "pending": args.pending, "rounds": args.rounds, "told": args.told}
            words = [f"--{name}={value}" for name, value in sizes.items()]
            child = run_child([sys.executable, __file__, "--child", *words], {"TIMERD_CLIENT": implementation})
            if child.returncode:
                raise RuntimeError(f"the {implementation} client failed: {child.stderr}")
            for call, stages in json.loads(child.stdout).items():
                for stage, ns in stages.items():
                    found.setdefault(call, {}).setdefault(stage, {}).setdefault(implementation, []).append(ns)
    for call, stages in found.items():
        for stage in [stage for stage in STAGES if stage in stages]:
            pure, compiled = (statistics.median(stages[stage][name]) for name in IMPLEMENTATIONS)
            suite.add("calls", call=call, stage=stage, pure_ns=round(pure), compiled_ns=round(compiled),
                      ratio=round(pure / compiled, 2) if compiled else None)  # fmt: skip

    play_memory(suite)


def play_memory(suite: Suite) -> None:
    suite.say("memory")
    found = {}
    for implementation in IMPLEMENTATIONS:
        words = [sys.executable, handle_memory.__file__, str(suite.args.handles)]
        child = run_child(words, {"TIMERD_CLIENT": implementation})
        if child.returncode:
            raise RuntimeError(f"the {implementation} client failed: {child.stderr}")
        found[implementation] = json.loads(child.stdout)
    pure, compiled = (found[name] for name in IMPLEMENTATIONS)
    states = [f"{state}, {way}" for state in handle_memory.STATES for way in handle_memory.WAYS]
    for what in (*states, *handle_memory.PARTS):
        suite.add("memory", what=what, pure_bytes=round(pure[what], 1), compiled_bytes=round(compiled[what], 1))


def main() -> int:
    parser = Parser("client", __doc__)
    parser.size("--requests", amount(1, WINDOW_COMMANDS_MAX), "32k", "4k", "requests in a round, at most a window")
    parser.size("--pending", amount(0, 10_000_000), "100k", "1k", "operations that stay")
    parser.size("--rounds", amount(1, 1_000), "9", "3", "rounds in a turn")
    parser.size("--turns", amount(1, 1_000), "3", "1", "processes of each implementation")
    parser.size("--told", amount(1, 16_384), "256", "256", "outcomes in a report")
    parser.size("--handles", amount(1, 10_000_000), "200k", "20k", "handles whose memory is measured")
    parser.add_argument("--child", action="store_true", help="measure the implementation that is loaded; print JSON")
    if "--child" in sys.argv:
        args = parser.parse()
        print(json.dumps(measure(args.requests, args.pending, args.rounds, args.told)))
        return 0
    return run_suite(parser, play)


if __name__ == "__main__":
    sys.exit(main())
