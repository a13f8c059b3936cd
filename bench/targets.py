"""The numbers that timerd should reach on a 2-core machine. Each is declared once, with its position in the results.

A target finds its figure in the documents of bench/results alone. So bench/RESULTS.md has no figure that was not
measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

Documents = Mapping[str, Mapping[str, Any]]  # by suite


class Target(NamedTuple):
    """One number to reach."""

    what: str
    goal: float
    unit: str
    suite: str
    find: Callable[[list[dict[str, Any]]], float | None]  # from the rows of `table`
    table: str
    at_least: bool = False  # else at most

    def reached(self, documents: Documents) -> float | None:
        """The measured figure; None if it was not measured."""
        document = documents.get(self.suite)
        return self.find(document["tables"].get(self.table, [])) if document else None

    def held(self, figure: float) -> bool:
        """Whether the figure reaches the goal."""
        return figure >= self.goal if self.at_least else figure <= self.goal


def cell(column: str, **where: Any) -> Callable[[list[dict[str, Any]]], float | None]:
    """Finds a column of the row with these values; of several rows, the last."""

    def find(rows: list[dict[str, Any]]) -> float | None:
        found = [row for row in rows if all(row.get(name) == value for name, value in where.items())]
        return found[-1].get(column) if found else None

    return find


def highest(column: str, **where: Any) -> Callable[[list[dict[str, Any]]], float | None]:
    """Finds the largest value of a column in the rows with these values; 0 if there are rows, but none like these."""

    def find(rows: list[dict[str, Any]]) -> float | None:
        found = [row[column] for row in rows if all(row.get(name) == value for name, value in where.items())]
        return max(found, default=0.0) if rows else None

    return find


def core(what: str, figure: str, goal: float, unit: str, pending: int) -> list[Target]:
    """A figure of the core alone, on small pages and on huge ones."""
    find = cell("median", figure=figure, pending=pending)
    tables = {what: "figures", f"{what}, on pages of 2 MiB": "figures_on_huge_pages"}
    return [Target(name, goal, unit, "core", find, table) for name, table in tables.items()]


def end_to_end(api: str, goal: float) -> Target:
    """The highest rate of the load test that was sustained, for 3 s."""
    what = f"three processes, low case, {api} API, every outcome right: sustained"
    return Target(what, goal, "/s", "ladder", highest("rate", sustained=True, **series(api)), "points", at_least=True)


def at_goal(api: str, case: str, rate: int, cpu_us: float | None = None) -> list[Target]:
    """Targets of the runs of 10 s at a rate to reach: 99 % of it, with outcomes as planned. The worst run counts."""

    def target(what: str, figure: str, goal: float, unit: str, *, at_least: bool = False) -> Target:
        name = f"{rate:,}/s, {api} API, {case} case, worst of three runs of 10 s: {what}"
        return Target(name, goal, unit, "ladder", cell(figure, api=api, case=case, rate=rate), "goals", at_least)

    found = [
        target("runs sustained, all or none", "sustained", 1, "", at_least=True),
        target("reached", "reached_rate", 0.99 * rate, "/s", at_least=True),
        target("other than planned", "misjudged_percent", 0.1, "%"),
    ]
    return found if cpu_us is None else [*found, target("CPU of all processes for a request", "cpu_us", cpu_us, "us")]


def series(api: str) -> dict[str, Any]:
    return {"api": api, "case": "low", "pending": 0}


def latency(what: str, figure: str, goal: float, row: str, rate: int, tick: str) -> Target:
    """How late an outcome reaches its owner: the worst of three runs."""
    find = cell(f"{figure}_ms", what=row, rate=rate, tick=tick, api="per-op")
    return Target(f"{what}, {figure}", goal, "ms", "latency", find, "latency")


def over_hops(figure: str, goal: float) -> Target:
    """One operation on a quiet machine, over two bare hops of libzmq in the same run."""
    what = f"fire() to result() on a quiet machine, over two bare hops, {figure}"
    return Target(what, goal, "times", "quiet", cell(figure, way="timerd", over="hops"), "ratios")


def quiet_cost(what: str, column: str, goal: float, unit: str) -> Target:
    """What an operation costs all processes at 100/s."""
    name = f"quiet machine, 100/s: {what} of all processes for an operation"
    return Target(name, goal, unit, "quiet", cell(column, way="timerd", rate=100), "cost")


def recovery(size: str, goal: float, pending: int) -> Target:
    """A start on the arena of a daemon that was killed."""
    what = f"recovery of {size} operations after SIGKILL, attach to first turn"
    return Target(what, goal, "ms", "recovery", cell("first_turn_ms", pending=pending), "recovery")


def snapshots(size: str, pending: int) -> Target:
    """A copy of the arena while the daemon works."""
    what = f"conductor's CPU in the worst turn beside a copy of {size} operations"
    return Target(what, 5, "ms", "snapshots", cell("turn_cpu_ms", pending=pending), "snapshots")


M = 1_000_000
TARGETS = (
    *core("core, 1M pending, one key: insert", "insert_ns", 50, "ns", M),
    *core("core, 1M pending, one key: cancel", "cancel_ns", 65, "ns", M),
    *core("core, 1M pending, one key: complete by key", "complete_ns", 65, "ns", M),
    *core("expiry with all sweeps, 1M pending", "expire_ns", 250, "ns", M),
    *core("expiry with all sweeps, 4M pending", "expire_ns", 340, "ns", 4 * M),
    *core("worst tick, 1M pending", "worst_tick_ms", 0.1, "ms", M),
    *core("worst tick, 4M pending", "worst_tick_ms", 0.6, "ms", 4 * M),
    *core("arena bytes for a pending operation, one key", "bytes_per_op", 256, "bytes", M),
    end_to_end("per-op", 300_000),
    end_to_end("bulk", 1_000_000),
    *at_goal("per-op", "low", 300_000, cpu_us=6),
    *at_goal("per-op", "high", 300_000),
    *at_goal("bulk", "low", M, cpu_us=2),
    *at_goal("per-op", "low", 500_000),
    latency("completion, fire() to owner, 100k/s", "p50", 0.2, "completion", 100_000, "1ms"),
    latency("completion, fire() to owner, 100k/s", "p99", 2, "completion", 100_000, "1ms"),
    latency("completion, fire() to owner, 100k/s, further", "p50", 0.1, "completion", 100_000, "1ms"),
    latency("expiry lateness at the owner, 100k/s, tick of 1 ms", "p50", 0.7, "expiry", 100_000, "1ms"),
    latency("expiry lateness at the owner, 100k/s, tick of 1 ms", "p99", 1.4, "expiry", 100_000, "1ms"),
    latency("expiry lateness at the owner, 10k/s, tick of 100 us", "p50", 0.2, "expiry", 10_000, "100us"),
    latency("expiry lateness at the owner, 10k/s, tick of 100 us", "p99", 0.5, "expiry", 10_000, "100us"),
    over_hops("p50", 1.15),
    over_hops("p99", 1.3),
    quiet_cost("switch-ins", "switch_ins", 10, ""),
    quiet_cost("CPU", "cpu_us", 250, "us"),
    Target(
        "idle, 1M due in 2 to 3 hours, no client: wake-ups in 10 s", 1, "", "idle",
        cell("wakeups_in_10_s", pending=M), "idle",
    ),
    recovery("1M", 150, M),
    recovery("4M", 600, 4 * M),
    snapshots("100k", 100_000),
    snapshots("4M", 4 * M),
)  # fmt: skip
