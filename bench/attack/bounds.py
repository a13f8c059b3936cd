"""The bounds of a flood's figures, each with its reason."""

from __future__ import annotations

from typing import Any, NamedTuple

from bench.lib.common import Suite
from timerd.config.config import FRAME_MEMORY
from timerd_shm.declare.limits import BACKPRESSURE_TIMEOUT_S

OVERLOAD = 3.0  # at least this many times the sustained rate has to be offered. With --slack: 1 + (3 - 1) / slack
SPARE_BYTES = 64 << 20  # for the daemon itself, and for what malloc keeps


class Bound(NamedTuple):
    """The most that a figure may be (ms for times), and why."""

    most: float
    why: str


BOUNDS = {
    "cancel_during_max_ms": Bound(
        1e3 * BACKPRESSURE_TIMEOUT_S, "a call that gets no room raises after this time, and no call takes longer"
    ),
    "fire_wait_during_max_ms": Bound(1e3 * BACKPRESSURE_TIMEOUT_S, "as for a cancel"),
    "refusal_during_max_ms": Bound(
        1e3 * BACKPRESSURE_TIMEOUT_S, "the refusal itself arrives: the call does not time out"
    ),
    "cancel_during_p99_ms": Bound(
        250.0,
        "a few turns of some 10 ms each (a step of a turn touches up to 32,768 records), while two busy processes "
        "share each CPU",
    ),
    "fire_wait_during_p99_ms": Bound(250.0, "as for a cancel"),
    "recovered_ms": Bound(1e3, "service is normal within a second after the end of the flood"),
    "stats_max_ms": Bound(5e3, "Python starts among busy processes; reading the arena needs no daemon"),
    "lateness_p99_ms": Bound(250.0, "as for a cancel: an expiry waits for the turn that is under way"),
    "lateness_max_ms": Bound(1e3, "operations expire even while the commands of others fill each turn"),
    "full_refusal_max_ms": Bound(1e3 * BACKPRESSURE_TIMEOUT_S, "a full arena is reported at once, not after a timeout"),
    "full_lateness_max_ms": Bound(1e3, "settling needs no free records"),
}


def memory_bound(at_rest: int) -> int:
    """The most private bytes that the daemon may have: those at rest, the memory for all frames, and SPARE_BYTES."""
    return at_rest + FRAME_MEMORY + SPARE_BYTES


def bounds(suite: Suite, run: dict[str, Any], full: dict[str, Any], slack: float) -> None:
    """Check each bound, and that every outcome and refusal was right."""
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
        suite.check(name, figures[name] <= most, f"{figures[name]:.1f}, at most {most:g}: {bound.why}")
    if run["flood"] == "commands":
        over, least = run["offered_rate"] / max(run["sustained_rate"], 1), 1 + (OVERLOAD - 1) / slack
        says = f"{over:.1f} times the sustained rate was offered, and at least {least:.1f} is needed"
        suite.check("offered", over >= least, f"{says} (offered: the lower rate of asked and unhindered; see --help)")
    memory = run["private_bytes"]
    held = memory["max"] <= memory["bound"]
    suite.check("private_bytes", held, f"{memory['max']:,} bytes at most; the bound is {memory['bound']:,}")
    wrong = [*run["wrong"], *full["wrong"]]
    suite.check("outcomes", not wrong, "; ".join(wrong) or "every outcome and refusal was right")
