"""The result of a run: one JSON document, or tables for people. Every figure is computed here, once.

Latencies are in microseconds, each as p50, p99, p999, max over `count` values:

    completion_latency_us            from the call of fire() to the owner's callback
    completion_latency_intended_us   from when fire() was due to the callback: larger if the harness was late
    expiry_lateness_us               from the deadline to the owner's callback
    expiry_settled_lateness_us       from the deadline to the daemon's settling
    harness_lateness_us              of every register() and fire(): when it was called, less when it was due
    harness_own_lateness_us          of every pass over due rows: its delay that the harness itself has caused (pace.py)

At high rates only some operations have a callback (registrar.py); with --bulk, one operation of each call.
"""

from __future__ import annotations

import math
import os
import platform
import shlex
import sys
from collections.abc import Iterable
from itertools import chain
from typing import Any

import psutil

from timerctl.exits import Exit
from timerctl.show.table import Column, Table, grid
from timerctl.show.text import print_json, size, span
from timerd_client.workload import NS, expected_share

from .trial import Result

REACHED_MIN = 0.99  # of the rate asked for: less is not sustained
BACKLOG_S_MAX = 1.0  # from when the last operation was due to settle until the last outcome was delivered
MISJUDGED_MAX = 0.001  # share of the operations
OWN_LATENESS_NS_MAX = 10_000_000  # p99: beyond this the run says nothing about the daemon
STOLEN_PERCENT_SHOWN = 1.0
LATENCIES = {
    "completion_latency_us": "fire() to callback",
    "completion_latency_intended_us": "fire() due to callback",
    "expiry_lateness_us": "deadline to callback",
    "expiry_settled_lateness_us": "deadline to settling",
    "harness_lateness_us": "calls late",
    "harness_own_lateness_us": "harness itself late",
}


class Report:
    """The figures of one run."""

    def __init__(self, result: Result) -> None:
        self.result = result
        self.document = document(result)

    @property
    def status(self) -> Exit:
        """The exit status of the command."""
        if self.result.partial:
            return self.result.status
        return Exit.OK if self.document["valid"] and not self.document["violations"] else Exit.PROBLEM

    def print_json(self) -> None:
        """One document on standard output."""
        print_json(self.document)

    def print(self) -> None:
        """Print tables, then refusals and examples of faults."""
        document = self.document
        print(
            f"{document['registered']:,} operations, {document['reached_rate']:,.0f}/s reached: {verdict(document)}\n"
        )
        counts = ("completed", "expired", "cancelled", "failed", "undecided", "misjudged", "overtaken")
        pairs = [(name, f"{document[name]:,}") for name in counts]
        pairs += [(name, f"{document[name]:,}") for name in ("lost", "duplicated", "early", "overruled", "mistaken")]
        pairs.append(("expected to expire", f"{document['expected_expired']:,}"))
        if document["events_unseen"]:
            pairs.append(("events not seen", f"{document['events_unseen']:,}"))
        print("\n".join(grid(pairs)), end="\n\n")
        latencies = Table(Column("latency", flexible=True), *(Column(name, right=True) for name in ("count", *FIGURES)))
        latencies.print(
            (about, f"{document[name]['count']:,}", *times(document[name])) for name, about in LATENCIES.items()
        )
        print()
        usage = Table(Column("process"), Column("CPU", right=True), Column("memory", right=True))
        usage.print(
            (process, f"{seconds:.2f} s", size(document["rss_bytes"][process]))
            for process, seconds in document["cpu_s"].items()
        )
        print(f"CPU for an operation, in all processes: {document['cpu_us_per_request']:.2f} us")
        if document["stolen_percent"] >= STOLEN_PERCENT_SHOWN:
            print(f"the host took {document['stolen_percent']:.1f} % of the processors' time during the run (steal)")
        for text, count in document["errors"].items():
            print(f"{count:,} x {text}")
        for example in document["examples"]:
            print(example)


FIGURES = ("p50", "p99", "p999", "max")


def times(latency: dict[str, float]) -> list[str]:
    """A latency's figures, for people."""
    return [span(round(latency[figure] * 1e3)) if latency["count"] else "-" for figure in FIGURES]


def verdict(document: dict[str, Any]) -> str:
    """The run in a sentence."""
    if document["violations"]:
        return f"WRONG: {document['violations']:,} violations"
    if document["partial"]:
        return f"PARTIAL: {document['partial']}"
    if not document["valid"]:
        late = document["harness_own_lateness_us"]["p99"] / 1e3
        return f"INVALID: the harness itself was {late:.1f} ms late (p99); give it more CPU, or ask for less"
    asked = f"the {document['asked_rate']:,.0f}/s asked were"
    return f"{asked} sustained" if document["sustained"] else f"{asked} NOT sustained: {document['not_sustained']}"


def document(result: Result) -> dict[str, Any]:
    """The document that `--json` prints."""
    workload, judged = result.workload, result.judgement
    registered, fired = result.registered, result.fired
    columns = [answer.own_lateness_ns for answer in registered] + [answer.own_lateness_ns for answer in fired]
    own = percentiles(chain.from_iterable(columns))
    reached = reached_rate(result)
    backlog_s = backlog(result)
    valid = own["p99"] <= OWN_LATENESS_NS_MAX / 1e3
    reasons = not_sustained(result, reached, backlog_s)
    cpu_s = {
        "daemon": result.daemon.cpu_ns / 1e9,
        "registrars": sum(answer.usage.cpu_ns for answer in registered) / 1e9,
        "firers": sum(answer.usage.cpu_ns for answer in fired) / 1e9,
    }
    errors: dict[str, int] = {}
    for answer in registered:
        for text, count in answer.errors.items():
            errors[text] = errors.get(text, 0) + count
    return {
        "command": shlex.join(["timerctl", *sys.argv[1:]]),
        "machine": machine(),
        "seed": workload.seed,
        "workload": workload._asdict() | result.options._asdict(),
        "partial": result.partial or None,
        "valid": valid,
        "sustained": valid and not reasons and not result.partial and not judged.violations,
        "not_sustained": reasons,
        "asked_rate": workload.rate,
        "reached_rate": round(reached, 1),
        "backlog_s": round(backlog_s, 4),
        "registered": judged.registered,
        "completed": judged.completed,
        "expired": judged.expired,
        "cancelled": judged.cancelled,
        "failed": judged.failed,
        "expected_expired": judged.expected_expired,
        "expected_share": round(expected_share(workload), 4),
        "lost": judged.lost,
        "duplicated": judged.duplicated,
        "early": judged.early,
        "overruled": judged.overruled,
        "mistaken": judged.mistaken,
        "undecided": judged.undecided,
        "misjudged": judged.misjudged,
        "overtaken": judged.overtaken,
        "violations": judged.violations,
        "events_unseen": result.events_unseen,
        "examples": judged.examples,
        "errors": errors,
        "completion_latency_us": percentiles(judged.completion_ns),
        "completion_latency_intended_us": percentiles(judged.completion_intended_ns),
        "expiry_lateness_us": percentiles(judged.expiry_ns),
        "expiry_settled_lateness_us": percentiles(judged.expiry_daemon_ns),
        "harness_lateness_us": percentiles(lateness(result)),
        "harness_own_lateness_us": own,
        "cpu_s": {process: round(seconds, 3) for process, seconds in cpu_s.items()},
        "stolen_percent": round(100 * result.stolen, 2),
        "cpu_us_per_request": round(1e6 * sum(cpu_s.values()) / max(judged.registered, 1), 3),
        "rss_bytes": {
            "daemon": result.daemon.rss_bytes,
            "registrars": sum(answer.usage.rss_bytes for answer in registered),
            "firers": sum(answer.usage.rss_bytes for answer in fired),
        },
    }


def not_sustained(result: Result, reached: float, backlog_s: float) -> str:
    """Why the rate was not sustained; empty if it was."""
    asked, judged = result.workload.rate, result.judgement
    reasons = []
    if reached < REACHED_MIN * asked:
        reasons.append(f"{100 * reached / asked:.1f} % of it reached")
    if backlog_s > BACKLOG_S_MAX:
        reasons.append(f"the last outcome was {backlog_s:.1f} s late")
    if judged.misjudged > MISJUDGED_MAX * judged.registered:
        share = 100 * judged.misjudged / judged.registered
        reasons.append(f"{judged.misjudged:,} operations ({share:.2f} %) ended other than planned")
    return "; ".join(reasons)


def reached_rate(result: Result) -> float:
    """The rate asked for, times the planned duration of registering, divided by its actual duration."""
    planned = actual = 0
    for answer in result.registered:
        if answer.sent_ns:
            planned = max(planned, answer.rows.due_ns[len(answer.sent_ns) - 1])
            actual = max(actual, answer.ended_ns - result.start_ns)
    return result.workload.rate * planned / actual if actual else 0.0


def backlog(result: Result) -> float:
    """Seconds from when the last operation was due to settle until the last outcome was delivered."""
    timeout_ns = result.workload.timeout_ns
    due_ns = max(
        (
            due + min(delay, timeout_ns)
            for answer in result.registered
            for due, delay in zip(answer.rows.due_ns, answer.rows.delay_ns, strict=True)
        ),
        default=0,
    )
    delivered_ns = result.judgement.last_delivered_ns
    return max(delivered_ns - result.start_ns - due_ns, 0) / NS if delivered_ns else 0.0


def lateness(result: Result) -> Iterable[int]:
    """The lateness of each call against the plan."""
    for due_ns, sent_ns in (
        *((answer.rows.due_ns, answer.sent_ns) for answer in result.registered),
        *((answer.events.due_ns, answer.sent_ns) for answer in result.fired),
    ):
        yield from (sent - due - result.start_ns for due, sent in zip(due_ns, sent_ns, strict=False))


def percentiles(values_ns: Iterable[int]) -> dict[str, float]:
    """Percentiles in microseconds; all 0 if there are no values."""
    ordered = sorted(values_ns)
    count = len(ordered)
    found: dict[str, float] = {"count": count}
    for name, share in (("p50", 0.5), ("p99", 0.99), ("p999", 0.999), ("max", 1.0)):
        found[name] = round(ordered[max(math.ceil(share * count), 1) - 1] / 1e3, 1) if count else 0.0
    return found


def machine() -> dict[str, Any]:
    """The machine of the run, and how busy it was."""
    model = platform.processor() or platform.machine()
    with open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "model": model,
        "memory_bytes": psutil.virtual_memory().total,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_average": list(os.getloadavg()),
    }
