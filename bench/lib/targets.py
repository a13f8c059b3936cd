"""The numbers that timerd should reach on a 2-core machine. Each is declared once, with its position in the results.

A target finds its figure in the documents of bench/results alone. So its row in bench/RESULTS.md has no figure that no
suite has measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from bench.lib.common import Row, rows_with
from timerd_wire.transports import TRANSPORTS, Transport

M = 1_000_000
Documents = Mapping[str, Mapping[str, Any]]  # by suite
Find = Callable[[list[Row]], float | None]  # a figure in the rows of a table; None: it was not measured


class Goal(NamedTuple):
    """A rate to reach. `keys` is the number of keys of each operation."""

    keys: int
    api: str
    case: str
    rate: int
    transport: Transport = "zeromq"


GOALS = (
    Goal(3, "per-op", "low", 300_000),
    Goal(3, "per-op", "high", 300_000),
    Goal(3, "bulk", "low", 500_000),
    Goal(3, "bulk", "high", 500_000),
    Goal(1, "per-op", "low", 300_000),
    Goal(1, "per-op", "high", 300_000),
    Goal(1, "bulk", "low", 1_000_000),
    Goal(1, "per-op", "low", 500_000),  # beyond what timerd has to reach
    Goal(1, "per-op", "low", 300_000, "unix"),
    Goal(1, "bulk", "low", 1_200_000, "unix"),
    Goal(1, "bulk", "high", 1_200_000, "unix"),
)


class Target(NamedTuple):
    """One number to reach."""

    what: str
    goal: float
    unit: str
    suite: str
    find: Find  # in the rows of `table`
    table: str
    at_least: bool = False  # whether the figure has to be at least the goal; otherwise at most

    def reached(self, documents: Documents) -> float | None:
        """The measured figure; None if it was not measured."""
        document = documents.get(self.suite)
        return self.find(document["tables"].get(self.table, [])) if document else None

    def held(self, figure: float) -> bool:
        """Whether the figure reaches the goal."""
        return figure >= self.goal if self.at_least else figure <= self.goal


def cell(column: str, **where: Any) -> Find:
    """Finds a column of the row that has the values `where`. If several rows have them, the last one counts."""

    def find(rows: list[Row]) -> float | None:
        found = rows_with(rows, where)
        return found[-1].get(column) if found else None

    return find


def highest(column: str, held: str, **where: Any) -> Find:
    """Finds the largest value of a column in rows that have the values `where`, and true in column `held`; else 0."""

    def find(rows: list[Row]) -> float | None:
        found = rows_with(rows, where)
        return max((row[column] for row in found if row[held]), default=0.0) if found else None

    return find


def ratio(column: str, where: Row, over: Row) -> Find:
    """Finds the ratio of a column's values in two rows. Both rows were measured in one run, in turns."""

    def find(rows: list[Row]) -> float | None:
        one, other = cell(column, **where)(rows), cell(column, **over)(rows)
        return one / other if one is not None and other else None

    return find


def core(what: str, figure: str, goal: float, unit: str, pending: int, keys: int = 1) -> list[Target]:
    """A figure of the core alone, on small pages and on huge ones."""
    find = cell("median", figure=figure, pending=pending)
    tables = {what: "figures", f"{what}, on pages of 2 MiB": "figures_on_huge_pages"}
    of_keys = "" if keys == 1 else f"_with_{keys}_keys"
    return [Target(name, goal, unit, "core", find, f"{table}{of_keys}") for name, table in tables.items()]


def over_bare(what: str, figure: str, goal: float) -> Target:
    """A figure of the core, divided by the bare loop's figure: recent timers, beside a million pending."""
    rows: list[Row] = [{"contestant": name, "pending": M} for name in ("timerd", "bare")]
    name = f"core's time divided by a bare loop's, 1M pending, one key, on pages of 2 MiB: {what}"
    return Target(name, goal, "times", "rivals", ratio(figure, *rows), "recent_on_huge_pages")


def over_one_key(call: str, what: str, stage: str) -> Target:
    """The client's CPU for a registration with three keys, divided by its CPU for a registration with one key."""
    rows: list[Row] = [{"call": call, "keys": keys, "stage": stage} for keys in (3, 1)]
    name = f"client's CPU for three keys divided by its CPU for one key, {call}(): {what}"
    return Target(name, 2, "times", "client", ratio("ns", *rows), "calls")


def end_to_end(api: str, goal: float) -> Target:
    """The highest rate of the load test that was sustained, with three keys for each operation."""
    find = highest("rate", "sustained", keys=3, api=api, case="low", pending=0, transport="zeromq")
    what = f"three keys, three processes, low case, {api} API, every outcome right: sustained"
    return Target(what, goal, "/s", "ladder", find, "points", at_least=True)


def at_goal(goal: Goal, cpu_us: float | None = None) -> list[Target]:
    """Targets of the runs of 10 s at a rate to reach: 99 % of the rate, outcomes as planned. The worst run counts."""

    def target(what: str, figure: str, limit: float, unit: str, *, at_least: bool = False) -> Target:
        keys = {1: "one key", 3: "three keys"}[goal.keys] + (", over unix" if goal.transport == "unix" else "")
        name = f"{keys}, {goal.rate:,}/s, {goal.api} API, {goal.case} case, worst of three runs of 10 s: {what}"
        return Target(name, limit, unit, "ladder", cell(figure, **goal._asdict()), "goals", at_least)

    found = [
        target("runs sustained without a violation, all or none", "sustained", 1, "", at_least=True),
        target("reached", "reached_rate", 0.99 * goal.rate, "/s", at_least=True),
        target("settled other than planned", "misjudged_percent", 0.1, "%"),
    ]
    return found if cpu_us is None else [*found, target("CPU of all processes for a request", "cpu_us", cpu_us, "us")]


def article(case: str) -> Target:
    """The rate that the core keeps up with in the article's experiment, whose requests have three keys."""
    what = f"the article's requests (three keys), core alone, {case} case: keeps up with"
    find = highest("saturates_after", "saturates_after", case=case, design="timerd")
    return Target(what, M, "/s", "article", find, "saturation", at_least=True)


def latency(
    what: str,
    figure: str,
    goal: float,
    row: str,
    rate: int,
    tick: str,
    unit: str = "ms",
    transport: Transport = "zeromq",
) -> Target:
    """How late an outcome reaches its owner: the worst of three runs."""
    column = f"{figure}_ms" if unit == "ms" else figure.replace(" ", "_")
    find = cell(column, what=row, rate=rate, tick=tick, api="per-op", transport=transport)
    over = " over unix" if transport == "unix" else ""
    return Target(f"{what}{over}, {figure}", goal, unit, "latency", find, "latency")


def quiet_unix(figure: str, goal: float) -> Target:
    """One operation on a quiet machine, over packets."""
    what = f"fire() to result() on a quiet machine, over unix, {figure}"
    return Target(what, goal, "us", "quiet", cell(f"{figure}_us", way="timerd unix"), "latency")


def under_blpop(what: str, table: str, column: str, **where: Any) -> Target:
    """timerd's figure over packets, divided by the figure of redis-py's BLPOP in the same run."""
    find = ratio(column, {"way": "timerd unix", **where}, {"way": "redis blpop", **where})
    return Target(f"quiet machine, unix divided by redis-py's BLPOP: {what}", 1, "times", "quiet", find, table)


def scale(
    what: str, table: str, column: str, goal: float, unit: str, *, at_least: bool = False, **where: Any
) -> Target:
    """Many callers that wait at once, over packets: the median of the rounds."""
    return Target(what, goal, unit, "scale", cell(column, transport="unix", **where), table, at_least)


def over_hops(figure: str, goal: float) -> Target:
    """A latency on a quiet machine, divided by the latency of two bare hops of libzmq in the same run."""
    what = f"fire() to result() on a quiet machine, divided by two bare hops, {figure}"
    return Target(what, goal, "times", "quiet", cell(figure, way="timerd", over="hops"), "ratios")


def quiet_cost(what: str, column: str, goal: float, unit: str) -> Target:
    """The cost of an operation for all processes at 100/s."""
    name = f"quiet machine, 100/s: {what} of all processes for an operation"
    return Target(name, goal, unit, "quiet", cell(column, way="timerd", rate=100), "cost")


def model_off(transport: Transport) -> Target:
    """The largest error of the CPU model, among the runs that it predicts."""

    def worst(rows: list[Row]) -> float | None:
        return max((row["off_percent"] for row in rows_with(rows, {"transport": transport})), default=None)

    return Target(f"model of the CPU, {transport}: worst prediction is off by", 20, "%", "cost", worst, "predictions")


def recovery(size: str, goal: float, pending: int) -> Target:
    """A start on the arena of a daemon that was killed."""
    what = f"recovery of {size} operations after SIGKILL, from attach to first turn"
    return Target(what, goal, "ms", "recovery", cell("first_turn_ms", pending=pending), "recovery")


def snapshots(size: str, pending: int) -> Target:
    """A copy of the arena while the daemon works."""
    what = f"conductor's CPU in the worst turn beside a copy of {size} operations"
    return Target(what, 5, "ms", "snapshots", cell("turn_cpu_ms", pending=pending), "snapshots")


# For some goals of the ladder: a limit of the CPU (us) that all processes together use for a request.
CPU_US = {
    Goal(1, "per-op", "low", 300_000): 6,
    Goal(1, "bulk", "low", M): 2,
    Goal(1, "per-op", "low", 300_000, "unix"): 3,
}
assert set(CPU_US) <= set(GOALS), f"{set(CPU_US) - set(GOALS)} are no goals of the ladder"
THREE_KEYS = (
    *(target for goal in GOALS if goal.keys == 3 for target in at_goal(goal)),
    end_to_end("per-op", 300_000),
    end_to_end("bulk", 500_000),
    article("low"),
    article("high"),
    *core("core, 1M pending, three keys: insert", "insert_ns", 500, "ns", M, keys=3),
    over_one_key("register", "the call alone", "caller"),
    over_one_key("register", "the operation's whole lifetime", "lifetime"),
    over_one_key("register_many", "the call alone", "caller"),
    over_one_key("register_many", "the operation's whole lifetime", "lifetime"),
    Target(
        "arena bytes for a pending operation, three keys, payload of 100 bytes", 500, "bytes", "core",
        cell("median", figure="bytes_per_op_full", pending=M), "figures_with_3_keys",
    ),
)  # fmt: skip


def beyond(stopped: str, goal: float) -> Target:
    """How long after delivery_timeout a callback of a producer runs."""
    what = {"none": "", "sender": ", from SIGCONT of a stopped process", "daemon": " while the daemon is stopped"}[
        stopped
    ]
    return Target(
        f"callback of a producer beyond delivery_timeout{what}, 500/s: p99.9", goal, "ms", "deliveries",
        cell("beyond_p99_9_ms", rate=500, collector="on", stopped=stopped), "callbacks",
    )  # fmt: skip


TARGETS = (
    *THREE_KEYS,
    *(target for goal in GOALS if goal.keys == 1 for target in at_goal(goal, CPU_US.get(goal))),
    over_bare("insert", "insert_ns", 1.15),
    over_bare("cancel", "cancel_ns", 1.25),
    over_bare("complete by key", "complete_ns", 1.2),
    *core("expiry with all sweeps, 1M pending", "expire_ns", 250, "ns", M),
    *core("expiry with all sweeps, 4M pending", "expire_ns", 340, "ns", 4 * M),
    *core("worst tick, 1M pending", "worst_tick_ms", 0.1, "ms", M),
    *core("worst tick, 4M pending", "worst_tick_ms", 0.6, "ms", 4 * M),
    *core("arena bytes for a pending operation, one key", "bytes_per_op", 256, "bytes", M),
    Target(
        "client's bytes for a pending operation, register(), one key, without the caller's key", 200, "bytes", "client",
        cell("bytes", call="register", keys=1), "memory",
    ),
    latency("completion, fire() to owner, 100k/s", "p50", 0.2, "completion", 100_000, "1ms"),
    latency("completion, fire() to owner, 100k/s", "p99", 2, "completion", 100_000, "1ms"),
    latency("completion, fire() to owner, 100k/s, a further goal", "p50", 0.1, "completion", 100_000, "1ms"),
    latency("expiry lateness at the owner, 100k/s, tick of 1 ms", "p50", 0.7, "expiry", 100_000, "1ms"),
    latency("completion, fire() to owner, 10k/s", "p99", 0.8, "completion", 10_000, "1ms"),
    latency("completion, fire() to owner, 10k/s", "p999", 2, "completion", 10_000, "1ms"),
    latency("expiry lateness at the owner, 100k/s, tick of 1 ms", "p99", 1.0, "expiry", 100_000, "1ms"),
    latency(
        "expiry lateness at the owner, 100k/s, tick of 1 ms", "p99 over hops", 2, "expiry", 100_000, "1ms", "times"
    ),
    latency("expiry lateness at the owner, 10k/s, tick of 100 us", "p50", 0.15, "expiry", 10_000, "100us"),
    latency("expiry lateness at the owner, 10k/s, tick of 100 us", "p99", 0.4, "expiry", 10_000, "100us"),
    over_hops("p50", 1.15),
    over_hops("p99", 1.3),
    quiet_unix("p50", 100),
    quiet_unix("p99", 300),
    under_blpop("p50", "latency", "p50_us"),
    under_blpop("p99", "latency", "p99_us"),
    *(under_blpop(f"CPU for an operation at {rate:,}/s", "cost", "cpu_us", rate=rate) for rate in (100, 1_000, 10_000)),
    latency("completion, fire() to owner, 100k/s", "p50", 0.2, "completion", 100_000, "1ms", transport="unix"),
    latency("completion, fire() to owner, 100k/s", "p99", 1, "completion", 100_000, "1ms", transport="unix"),
    scale(
        "blocking loops in 8 forked workers, over unix", "loops", "loops_per_s", 30_000, "/s", at_least=True,
        workers="forked",
    ),
    scale("1,000 asyncio long polls at 5k/s, over unix: p50", "polls", "p50_us", 150, "us"),
    quiet_cost("switch-ins", "switch_ins", 10, ""),
    quiet_cost("CPU", "cpu_us", 250, "us"),
    *(model_off(transport) for transport in TRANSPORTS),
    Target(
        "idle, 1M due in 2 to 3 hours, no client: wake-ups in 10 s", 1, "", "idle",
        cell("wakeups_in_10_s", pending=M), "idle",
    ),
    recovery("1M", 150, M),
    recovery("4M", 600, 4 * M),
    snapshots("100k", 100_000),
    snapshots("4M", 4 * M),
    *(beyond(stopped, 5) for stopped in ("none", "sender")),
    beyond("daemon", 1_600),
)  # fmt: skip
