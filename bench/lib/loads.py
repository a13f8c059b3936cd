"""Runs of `timerctl load` for the suites, each with a daemon of its own, and the row of such a run.

The workload is that of timerd_client.workload. The timeout of an operation is 200 ms. In the case *low* its event comes
after 20 ms (median) and 60 ms (upper quartile). In *high* the event comes after 200 and 400 ms, so half of the
operations expire. In *expire* nearly all expire.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from bench.lib.common import Failed, Row, run_child
from timerctl.load.own_daemon import INSTANCE, flags_of, private_daemon
from timerd_client.workload import Workload, check
from timerd_shm.host.paths import InstancePaths
from timerd_shm.host.places import RUNTIME_DIR_VARIABLE
from timerd_wire.transports import TRANSPORTS, Transport

MS = 1_000_000
CASES = {"low": (20, 60), "high": (200, 400), "expire": (10_000, 20_000)}  # median and upper quartile, in ms
APIS = {"per-op": False, "bulk": True}
MISSED = 0.6  # of the rate asked for: if less is reached, the next rate is not tried
TRIES = 2  # when this many rates were not sustained, no higher rate is tried
LESS_IS_WORSE = ("reached_rate", "sustained", "count")


def workload_of(rate: float, seconds: float, case: str, seed: int, keys: int = 1) -> Workload:
    """The workload of a run. Each operation has `keys` keys of its own, and its event is on one of them."""
    p50_ms, p75_ms = CASES[case]
    count = max(round(rate * seconds), 1)
    plan = Workload(rate=rate, count=count, p50_ns=p50_ms * MS, p75_ns=p75_ms * MS, keys_per_op=keys, seed=seed)
    return check(plan)


def run_load(
    workload: Workload, api: str, pending: int = 0, flags: Sequence[str] = (), transport: Transport = TRANSPORTS[0]
) -> dict[str, Any]:
    """The document of one run. `flags`: further flags of the daemon, beside those for its size. Raises Failed."""
    with private_daemon([*flags_of(workload, pending), *flags]) as paths:
        return load_on(paths, workload, api, pending, transport)


def load_on(
    paths: InstancePaths, workload: Workload, api: str, pending: int = 0, transport: Transport = TRANSPORTS[0]
) -> dict[str, Any]:
    """The document of one run with that daemon. Raises Failed if the run prints none."""
    environment = {RUNTIME_DIR_VARIABLE: str(paths.directory)}
    done = run_child(load_command(workload, api, pending, transport), environment)
    if not done.stdout:
        raise Failed(f"timerctl load ended with status {done.returncode}: {done.stderr.strip()}")
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def load_command(workload: Workload, api: str, pending: int = 0, transport: Transport = TRANSPORTS[0]) -> list[str]:
    """The command `timerctl load --json` for this workload."""
    command = [sys.executable, "-m", "timerctl", "load", "--json", f"--instance={INSTANCE}"]
    command += [f"--transport={transport}"]
    command += [f"--rate={workload.rate:.3f}", f"--count={workload.count}", f"--pending={pending}"]
    command += [f"--p50={workload.p50_ns // MS}ms", f"--p75={workload.p75_ns // MS}ms", f"--seed={workload.seed}"]
    command += [f"--registrars={workload.registrars}", f"--firers={workload.firers}"]
    command += [f"--keys-per-op={workload.keys_per_op}"]
    return command + (["--bulk"] if APIS[api] else [])


def figures(document: dict[str, Any]) -> Row:
    """The row of a run: the rate reached, latencies, CPU, how busy each process was, and what the host took."""
    completion, expiry = document["completion_latency_us"], document["expiry_lateness_us"]
    wall_s = document["registered"] / document["reached_rate"] if document["reached_rate"] else 0.0
    cpu_s: dict[str, float] = document["cpu_s"]
    return {
        "reached_rate": round(document["reached_rate"]),
        "sustained": document["sustained"],
        "violations": document["violations"],
        "misjudged_percent": 100 * document["misjudged"] / max(document["registered"], 1),
        "completion_p50_ms": measured(completion, "p50"),
        "completion_p99_ms": measured(completion, "p99"),
        "expiry_p50_ms": measured(expiry, "p50"),
        "expiry_p99_ms": measured(expiry, "p99"),
        "cpu_us": document["cpu_us_per_request"],
        **{f"{part}_busy_percent": 100 * spent / wall_s if wall_s else None for part, spent in cpu_s.items()},
        "stolen_percent": document["stolen_percent"],
        "why_not": why_not(document),
    }


def worst(runs: Sequence[Row]) -> Row:
    """The worst of each figure over several runs. `why_not` is that of the first run that was not sustained."""
    row: Row = {}
    for column in runs[0]:
        values = [run[column] for run in runs if run[column] is not None]
        if column == "why_not":
            row[column] = next(filter(None, values), "")
        else:
            row[column] = (min if column in LESS_IS_WORSE else max)(values, default=None)
    return row


def why_not(document: dict[str, Any]) -> str:
    """Why a rate was not sustained; empty if it was."""
    if document["partial"]:
        return str(document["partial"])
    if not document["valid"]:
        return f"the harness itself was {document['harness_own_lateness_us']['p99'] / 1e3:.0f} ms late (p99)"
    return str(document["not_sustained"])


def measured(latency: dict[str, float], figure: str) -> float | None:
    """A figure of a latency in ms; None if nothing was measured."""
    return latency[figure] / 1e3 if latency["count"] else None


def gives_up(rows: Sequence[Row], asked: float) -> bool:
    """Whether no higher rate is tried after these rows: two were not sustained, or the last one was missed by far."""
    failed = [row for row in rows if not row["sustained"]]
    return len(failed) >= TRIES or (bool(rows) and rows[-1]["reached_rate"] < MISSED * asked)


def memory_of(rate: float, seconds: float, pending: int, keys: int = 1) -> int:
    """Bytes that a run needs in all processes together: arena, harness and client.

    Each further key of an operation takes 100 bytes in the plan, for its name, and a node of 64 bytes in the arena.
    """
    held = rate * (0.7 if rate * seconds > rate else seconds) + pending
    return round(rate * seconds * (700 + 100 * keys) + held * (936 + 64 * keys))
