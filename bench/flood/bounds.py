"""What is right under a flood, and why."""

from __future__ import annotations

from typing import Any, NamedTuple

from common import Suite
from timerd.conductor.transport import QUEUED_ANSWERS_MAX, QUEUED_FRAMES_MAX, QUEUED_REPORTS_MAX
from timerd_shm.declare.limits import BACKPRESSURE_TIMEOUT_S, PAYLOAD_SIZE_MAX

OVERLOAD = 3.0  # times what is sustained: as much is to be offered. A slack takes its part of what is above once
REPORT_SIZE_MAX = 16_384 * 96 + (1 << 20) + PAYLOAD_SIZE_MAX  # outcomes and values of one report
SPARE_BYTES = 64 << 20  # what the daemon takes for itself, and what malloc keeps


class Bound(NamedTuple):
    """The most that a figure may be (ms for times), and why."""

    most: float
    why: str
    of_time: bool = True


BOUNDS = {
    "cancel_during_max_ms": Bound(
        1e3 * BACKPRESSURE_TIMEOUT_S, "nothing takes longer than a call would wait for room before it raises"
    ),
    "fire_wait_during_max_ms": Bound(1e3 * BACKPRESSURE_TIMEOUT_S, "the same"),
    "refusal_during_max_ms": Bound(1e3 * BACKPRESSURE_TIMEOUT_S, "the same: a refusal is told, it does not time out"),
    "cancel_during_p99_ms": Bound(
        250.0, "a few turns of 65,536 records a step (20 ms each), and two busy processes for each CPU between them"
    ),
    "fire_wait_during_p99_ms": Bound(250.0, "the same"),
    "recovered_ms": Bound(1e3, "normal service within a second of the end"),
    "stats_max_ms": Bound(5e3, "a start of Python among busy processes; what it reads needs no daemon"),
    "lateness_p99_ms": Bound(250.0, "as a cancel: a deadline waits for the turn that is under way"),
    "lateness_max_ms": Bound(1e3, "no operation is forgotten for a turn that others fill"),
    "full_refusal_max_ms": Bound(1e3 * BACKPRESSURE_TIMEOUT_S, "a full arena is said at once, not after a time"),
    "full_lateness_max_ms": Bound(1e3, "settling needs no room"),
}


def memory_bound(senders: int, frame: int, at_rest: int) -> int:
    """Private bytes that the daemon may have: libzmq's queues, full, each way, and what it had before."""
    # libzmq reads QUEUED_FRAMES_MAX frames of a client, and the one that is on its way; malloc may need as much again.
    up = (QUEUED_FRAMES_MAX + 1) * frame
    down = (QUEUED_REPORTS_MAX + QUEUED_ANSWERS_MAX) * min(REPORT_SIZE_MAX, 1 << 19)
    return at_rest + 2 * senders * up + senders * down + SPARE_BYTES


def bounds(suite: Suite, run: dict[str, Any], full: dict[str, Any], slack: float) -> None:
    """Claim each bound, and that nothing was wrong otherwise."""
    figures = {
        "recovered_ms": run["recovered_ms"],
        "stats_max_ms": run["stats_us"]["max"] / 1e3,
        "lateness_p99_ms": run["lateness_us"]["p99"] / 1e3,
        "lateness_max_ms": run["lateness_us"]["max"] / 1e3,
        "full_refusal_max_ms": full["refusal_us"]["max"] / 1e3,
        "full_lateness_max_ms": full["lateness_us"]["max"] / 1e3,
    }
    for what, spans in run["latency_us"].items():
        figures |= {f"{what}_during_{name}_ms": spans["during"][name] / 1e3 for name in ("p99", "max")}
        if not spans["during"]["count"] or not spans["after"]["count"]:
            figures[f"{what}_during_max_ms"] = float("inf")
    for name, bound in BOUNDS.items():
        most = bound.most * slack
        suite.check(name, figures[name] <= most, f"{figures[name]:.1f}, and at most {most:g} is right: {bound.why}")
    if run["flood"] == "commands":
        over, least = run["offered_rate"] / max(run["sustained_rate"], 1), 1 + (OVERLOAD - 1) / slack
        says = f"{over:.1f} times what is sustained was offered, at least {least:.1f} was to be"
        suite.check("offered", over >= least, f"{says} (the least of asked and unhindered; see --help)")
    memory = run["private_bytes"]
    held = memory["max"] <= memory["bound"]
    suite.check("private_bytes", held, f"{memory['max']:,} at most; the bound is {memory['bound']:,}")
    wrong = [*run["wrong"], *full["wrong"]]
    suite.check("outcomes", not wrong, "; ".join(wrong) or "every outcome and refusal was right")
