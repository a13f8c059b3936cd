"""The pipeline's page: the results of a run, for people. One HTML file with figures as SVG; it loads nothing else.

The page begins with what timerd added: how much longer operations of a load test waited than planned, or how late
operations of a journal expired. How long operations waited is the workload's matter, and comes later. Percentiles are
those of the rows. Operations that were planned and not played are folded away, and have no figure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from timerd_client.workload import expected_share, mean_wait_ns
from timerd_spark.reports.percentiles import SHARES
from timerd_spark.reports.rollups import ERROR, OUTCOMES

from . import plots, verdicts
from .markup import Fact, beside, block, details, document, facts, figure, note, paragraph, section, table, texts
from .markup import verdicts as listed
from .numbers import Numbers
from .results import ADDED, PLAN, PLANNED, SEEN, Results
from .verdicts import Row, ms, number

COLOURS: Final = {SEEN: plots.COLOURS[0], PLAN: plots.INK}
QUANTILES: Final = {short: short.replace("p999", "p99.9") for short in SHARES}
MARKED: Final = ("p50", "p95", "p99")  # on a distribution
WINDOWS_MIN = 5  # fewer windows show nothing over time
FINDINGS_MAX = 20  # on the page; the directory audit/ has all
PURGATORIES_MAX = 20  # on the page; the directory purgatories/ has all


def page(run: Results) -> str:
    """The HTML of the page. All other steps of the run must be done."""
    numbers = Numbers(run)
    title = "a journal" if run.options.journal else "a load test"
    machine = _of_machine(numbers)
    return document(
        f"timerd: {title}",
        [
            f"<h1>timerd: {title}</h1>",
            paragraph(_subject(run)),
            note(_provenance(run, numbers.real)),
            facts(_headlines(numbers, machine.kind if machine else "")),
            listed(_verdicts(numbers, machine)),
            _added(numbers),
            _by_purgatory(numbers),
            _over_time(numbers),
            _timeouts(numbers),
            _rounds(numbers),
            _hot_keys(run),
            _audit(run),
            _planned(numbers),
            _machine(run),
        ],
    )


# what and where -------------------------------------------------------------------------------------------------------


def _subject(run: Results) -> str:
    o = run.options
    if o.journal is not None:
        return f"The operations that settled in the journal {Path(o.journal).absolute()}."
    return (
        f"{o.played:,} operations of the {o.profile} workload, seed {o.seed}, played against a daemon at {o.rate:,.0f} "
        f"a second by {o.players} clients. The daemon wrote its journal at level events."
    )


def _provenance(run: Results, row: Row | None) -> str:
    """When the operations of a report's row were played or recorded, and when and where the run began."""
    machine, steps = run.state["machine"], run.state["steps"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    there = ""
    if row:
        begun, ended = row["start_at"], row["end_at"]
        until = _clock(ended) if _date(begun) == _date(ended) else f"{_date(ended)}, {_clock(ended)}"
        what = "Recorded" if run.options.journal else "Played"
        there = f"{what} on {_date(begun)}, {_clock(begun)} to {until} UTC. "
    run_at = min(step["at"] for step in steps.values())
    return (
        f"{there}This run began on {_date(run_at)}, {_clock(run_at)} UTC, on {machine['host']} "
        f"({machine['processors']} processors, {machine['memory_bytes'] / 2**30:.0f} GiB): {versions}."
    )


def _date(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%d %B %Y}".lstrip("0")


def _clock(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%H:%M:%S}"


def _load(run: Results) -> tuple[float, float] | None:
    """The load of the machine while the run played: how busy it was in all, and how busy with other work."""
    steps = [step for name, step in run.state["steps"].items() if name.startswith("play-") and "busy" in step]
    seconds = sum(step["seconds"] for step in steps)
    if not seconds:
        return None
    busy, others = (sum(step[name] * step["seconds"] for step in steps) / seconds for name in ("busy", "others"))
    return busy, others


def _of_machine(numbers: Numbers) -> verdicts.Verdict | None:
    """Whether the machine of a load test kept up."""
    if numbers.real and numbers.seen:
        return verdicts.of_machine(numbers.real, numbers.seen, _load(numbers.run))
    return None


def _verdicts(numbers: Numbers, machine: verdicts.Verdict | None) -> Iterator[verdicts.Verdict]:
    if machine:
        yield machine
    yield verdicts.of_audit(numbers.run.state["steps"]["audit"])
    if row := numbers.real:
        yield verdicts.of_outcomes(row)
        if said := verdicts.of_timeouts(row, [one for one in numbers.asked if one["what"] == row["what"]]):
            yield said


def _headlines(numbers: Numbers, kind: str) -> Iterator[Fact]:
    """The time that timerd added comes first."""
    row, seen, plan = numbers.real, numbers.seen, numbers.plan
    if seen:
        of_rounds = sorted(one["added_p99_ms"] for one in numbers.rounds)
        spread = f"; p99 of a round: {ms(of_rounds[0])} to {ms(of_rounds[-1])}" if len(of_rounds) > 1 else ""
        yield Fact(
            "added by timerd, p99",
            ms(seen["added_p99_ms"]),
            f"beyond the wait that the workload has planned; p50: {ms(seen['added_p50_ms'])}{spread}",
            kind,
        )
    if row and row["expired"]:
        yield Fact("late at expiry, p99", ms(row["lateness_p99_ms"]), f"at most {ms(row['lateness_max_ms'])}")
    if row:
        planned = f"planned: {expected_share(plan):.1%}" if plan else f"{row['expired']:,} of {row['n']:,}"
        yield Fact("expired", f"{row['timeout_ratio']:.2%}", planned)
        rate = f"planned: {plan.rate:,.0f}" if plan else "without pauses"
        yield Fact("outcomes a second", f"{row['rate'] or 0:,.0f}", rate)
        mean = f"on average: {number(row['in_flight_mean'] or 0)}"
        yield Fact("in flight, at most", f"{row['in_flight_max'] or 0:,}", mean)
        rounds = len(numbers.rounds)
        what = f"in {rounds} rounds" if rounds > 1 else "in one round" if rounds else ""
        yield Fact("operations played" if plan else "operations recorded", f"{row['n']:,}", what)
    else:
        yield Fact("operations", "0")
    step = numbers.run.state["steps"]["audit"]
    if step.get("findings") is not None:
        short = verdicts.in_short(step).removeprefix("the ").removeprefix("audit ")
        yield Fact("audit", short, "each outcome was computed again", verdicts.of_audit(step).kind)


# played or recorded ---------------------------------------------------------------------------------------------------


def _added(numbers: Numbers) -> str:
    """The time that timerd added, and the waits: figures, and all percentiles in one table."""
    row, seen = numbers.real, numbers.seen
    if not row:
        return section("Time that timerd added", note("No operation has settled."))
    lines = [
        ("added to the plan", seen, "added"),
        ("calls sent late", seen, "behind"),
        ("late at expiry", row, "lateness"),
        ("wait, as planned", seen, "planned"),
        ("wait, from the intended time", seen, "latency"),
        ("wait, from the registration", row, "latency"),
    ]
    shown = [
        [name, *(ms(of[f"{measure}_{short}_ms"]) for short in QUANTILES)]
        for name, of, measure in lines
        if of.get(f"{measure}_max_ms") is not None
    ]
    explained = (
        "All percentiles are exact: those of the rows. Waits are of completed operations, lateness of expired ones."
    )
    if seen:
        explained += (
            ' "Added" is the wait from the intended time, less the planned wait: the client, the daemon and the '
            "machine together. A wait from the registration is the daemon's view. It leaves out how late a call was "
            "sent."
        )
    else:
        explained += " A journal has no plan of the waits. So lateness alone shows what timerd added."
    percentiles = block(table(["", *QUANTILES.values()], shown), note(explained))
    return section("Time that timerd added", beside([*_figures_of_added(numbers, row, seen), percentiles]))


def _figures_of_added(numbers: Numbers, row: Row, seen: Row) -> Iterator[str]:
    columns = (
        f"A column is a window of {numbers.window}, and a darker cell (lighter on a dark page) has more operations."
    )
    if seen:
        p50, p95, p99 = (ms(seen[f"added_{short}_ms"]) for short in MARKED)
        added = numbers.lives("seen", ADDED)
        yield figure(
            "Added time, over time",
            f"99 % of the operations are below the dashed line, at {p99}. {columns}",
            plots.heatmap(added, y="longer than planned", p99_ms=seen["added_p99_ms"], gaps=numbers.gaps),
        )
        yield figure(
            "Added time",
            f"Half of the operations waited at most {p50} longer than planned, 95 % at most {p95}, 99 % at most {p99}.",
            plots.waits(added, marks=_marks(seen, "added"), x="longer than planned"),
        )
    if row["expired"]:
        late = ms(row["lateness_p99_ms"])
        if not seen:
            yield figure(
                "Lateness of expired operations, over time",
                f"99 % of the expired operations are below the dashed line, at {late}. {columns}",
                plots.heatmap(numbers.lives("rollup"), "lateness", p99_ms=row["lateness_p99_ms"]),
            )
        yield figure(
            "Lateness of expired operations",
            f"99 % of the {row['expired']:,} expired operations settled at most {late} after their deadline.",
            plots.waits(numbers.lives("rollup"), "lateness", marks=_marks(row, "lateness")),
        )
    if seen and seen["completed"]:
        both = numbers.run.stored("seen").where(f"what <> '{ADDED}'")
        yield figure(
            "Waits of completed operations, and the plan",
            f"Where the lines meet, timerd added nothing that can be seen: p99 {ms(seen['latency_p99_ms'])} from the "
            f"intended time, {ms(seen['planned_p99_ms'])} by the plan.",
            plots.waits(both, "latency", "what", COLOURS, marks=_marks(seen, "latency")),
        )
    elif row["completed"]:
        yield figure(
            "Waits of completed operations",
            f"Half of the completed operations waited at most {ms(row['latency_p50_ms'])}, 99 % at most "
            f"{ms(row['latency_p99_ms'])}: this is the workload's time.",
            plots.waits(numbers.lives("rollup"), "latency", marks=_marks(row, "latency")),
        )


def _marks(row: Row, measure: str) -> plots.Marks:
    return {short: (SHARES[short], row[f"{measure}_{short}_ms"]) for short in MARKED}


def _by_purgatory(numbers: Numbers) -> str:
    if not numbers.purgatories:
        return ""
    total = numbers.every["n"]
    largest = sorted(numbers.purgatories, key=lambda row: -row["n"])
    lines = [
        [
            "all" if row["of_all"] else row["purgatory"] or "not known",
            f"{row['n']:,}\n{row['n'] / total:.1%}",
            *(f"{row[name]:,}" for name in OUTCOMES),
            f"{row['expired'] / row['n']:.2%}",
            _timeout(row),
            *(ms(row[name]) for name in ("latency_p50_ms", "latency_p99_ms", "lateness_p99_ms")),
        ]
        for row in [*largest[:PURGATORIES_MAX], numbers.every]
    ]
    more = f" The {PURGATORIES_MAX} largest of {len(largest):,} are shown." if len(largest) > PURGATORIES_MAX else ""
    head = ["purgatory", "operations", *OUTCOMES, "expired, of all", "timeout", "wait, p50", "wait, p99", "late, p99"]
    return section(
        "By purgatory",
        table(head, lines),
        note(f"From the daemon's journal: waits of completed operations, lateness of expired ones.{more}"),
    )


def _timeout(row: Row) -> str:
    """The timeouts of operations: "200 ms", or "100 ms to 5 s"."""
    low, high = row["timeout_low_ns"], row["timeout_high_ns"]
    if low is None:
        return "none"
    return ms(low / 1e6) if low == high else f"{ms(low / 1e6)} to {ms(high / 1e6)}"


def _over_time(numbers: Numbers) -> str:
    row, plan, gaps = numbers.real, numbers.plan, numbers.gaps
    windows = numbers.lives("windows")
    if not row or windows.count() < WINDOWS_MIN:
        return ""
    of_plan: dict[str, float | None] = {"rate": None, "in_flight_mean": None, "timeout_ratio": None}
    if plan:
        mean = plan.rate * mean_wait_ns(plan) / 1e9
        of_plan = {"rate": plan.rate, "in_flight_mean": mean, "timeout_ratio": expected_share(plan)}

    def over(measures: str | Sequence[str], planned: str) -> Any:
        return plots.over_time(windows, measures, (), plan=of_plan[planned], gaps=gaps)

    straight = " The straight line is the plan." if plan else ""
    drawn = [
        figure(
            "Throughput",
            f"{row['rate'] or 0:,.0f} outcomes a second, if times without operations are left out.{straight}",
            over("rate", "rate"),
        ),
        figure(
            "In flight, at most and on average",
            f"At most {row['in_flight_max'] or 0:,} operations were in flight, {number(row['in_flight_mean'] or 0)} on "
            f"average.{straight}",
            over(["in_flight_max", "in_flight_mean"], "in_flight_mean"),
        ),
        figure(
            "Expired, of all",
            f"{row['timeout_ratio']:.2%} of all operations expired.{straight}",
            over("timeout_ratio", "timeout_ratio"),
        ),
    ]
    if not plan and row["completed"]:
        drawn.append(
            figure(
                "Waits of completed operations, over time",
                f"99 % of the completed operations are below the dashed line, at {ms(row['latency_p99_ms'])}.",
                plots.heatmap(numbers.lives("rollup"), "latency", p99_ms=row["latency_p99_ms"]),
            )
        )
    return section(
        "Over time",
        beside(drawn),
        note(
            f"In windows of {numbers.window}, by the time of the outcome. A window that work filled only in part, at "
            "either end or beside a pause, is left out. The mean in flight is the sum of the waits that ended in the "
            "window, divided by its length."
        ),
    )


def _rounds(numbers: Numbers) -> str:
    lines = [
        [
            f"round {at}",
            f"{row['n']:,}",
            f"{row['n'] * 1e6 / max(row['end_us'] - row['start_us'], 1):,.0f}",
            f"{row['expired'] / row['n']:.2%}",
            *(ms(row[f"{name}_ms"]) for name in ("added_p50", "added_p99", "added_max", "behind_p99", "latency_p99")),
        ]
        for at, row in enumerate(numbers.rounds, 1)
    ]
    head = ["", "operations", "outcomes a second", "expired", "added, p50", "added, p99", "added, max"]
    return section(
        "By round",
        table([*head, "sent late, p99", "wait, p99"], lines),
        note("Each round had a daemon of its own. Waits count from the intended time.") if lines else "",
    )


def _timeouts(numbers: Numbers) -> str:
    """Other timeouts: the whole curve, and the table of some of them."""
    row = numbers.real
    if not row:
        return ""
    curve = numbers.lives("curve")
    known = [one for one in curve.collect() if not one["beyond"]]
    widest = max((one["timeout_ratio_high"] - one["timeout_ratio_low"] for one in known), default=0.0)
    today = (numbers.every["timeout_low_ns"], numbers.every["timeout_high_ns"])
    return section(
        "Under other timeouts",
        beside(
            [
                figure(
                    "Share that would expire",
                    f"Today {row['timeout_ratio']:.2%} expire, with a timeout of {_timeout(numbers.every)}. The band "
                    f"around the line is at most {widest * 100:.2g} points wide.",
                    plots.what_if(curve, today=None if today[0] is None else today),
                ),
                block(
                    _table_of_timeouts(row, numbers.asked, today),
                    note(
                        "Unless --timeouts names them, the timeouts are the waits that 50 %, 75 %, 90 %, 95 %, 99 % "
                        "and 99.9 % of the completed operations did not exceed, in two digits. Below each share are "
                        "its limits at 95 % confidence. An operation that expired did not show how long it would have "
                        "waited: it is censored at its timeout. The share that would expire is the share that would "
                        "still be pending at the timeout: the Kaplan-Meier estimate. If fewer than one in a hundred "
                        'operations were watched up to a timeout, there are bounds only (hollow triangles). "In '
                        "flight\" is the rate of registrations times the mean wait, cut off at the timeout (Little's "
                        "law)."
                    ),
                ),
            ]
        ),
    )


def _table_of_timeouts(row: Row, asked: Sequence[Row], today: tuple[int | None, int | None]) -> str:
    """The row "as it is", then a row for each other timeout."""
    own = [one for one in asked if one["what"] == row["what"]]
    now, flying = row["timeout_ratio"], verdicts.flying_now(row, own)
    low, high = today
    lines = [["as it is\n" + _timeout({"timeout_low_ns": low, "timeout_high_ns": high}), f"{now:.2%}", "", "", ""]]
    if flying:
        lines[0][3] = number(flying)
    for one in own:
        if low == high == one["timeout_ns"]:
            continue
        in_flight, more = one["in_flight"] or 0.0, " or more" if one["beyond"] else ""
        share = f"{one['timeout_ratio']:.2%}\n{one['timeout_ratio_low']:.2%} to {one['timeout_ratio_high']:.2%}"
        lines.append(
            [
                ms(one["timeout_ns"] / 1e6),
                f"at most {one['timeout_ratio_high']:.2%}" if one["beyond"] else share,
                "" if one["beyond"] else f"{(one['timeout_ratio'] - now) * 100:+.1f} points",
                number(in_flight) + more,
                f"{in_flight / flying - 1:+.0%}{more}" if flying else "",
            ]
        )
    return table(["timeout", "would expire", "against today", "in flight, mean", "against today"], lines)


def _hot_keys(run: Results) -> str:
    rows = [row for row in run.stored("hot_keys").collect() if row["n"] > 1]
    shown = [
        [row["key"], row["purgatory"], f"{row['n']:,}", f"{row['share']:.2%}", f"{row['timeout_ratio']:.2%}"]
        for row in rows
    ]
    return section("Hot keys", table(["key", "purgatory", "operations", "of all", "expired"], shown))


def _audit(run: Results) -> str:
    step = run.state["steps"]["audit"]
    if step.get("findings") is None:
        return ""
    arenas = [
        [
            f"{arena['host']}, {arena['incarnation'][:8]}",
            *(f"{arena[name]:,}" for name in ("outcomes", "segments", "gaps", "left_out")),
            f"{arena['row']:,}" if arena["row"] >= 0 else "none",
            "yes" if arena["ended"] else "not known",
        ]
        for arena in step.get("arenas", [])
    ]
    found = ""
    if step["findings"]:
        rows = run.stored("audit").limit(FINDINGS_MAX).collect()
        lines = ([row["op_id"] or "", f"{row['row']:,}", row["what"]] for row in rows)
        found = table(["operation", "row", "what"], lines)
        found += note(
            f"The first {len(rows)} of {step['findings']:,}: audit/ has all. Missing rows come first. Findings that "
            "may come from them come last."
        )
    return section(
        "The audit",
        found,
        table(["host, arena", "outcomes", "segments", "gaps", "left out", "complete to row", "end"], arenas),
        note(
            "A gap is a time in which the daemon could not write its journal, so that what happened is not known. The "
            "end is known if the daemon has ended in order: it writes a last row."
        ),
    )


# planned, and the run -------------------------------------------------------------------------------------------------


def _planned(numbers: Numbers) -> str:
    """The operations that were planned and not played, folded away."""
    row, plan = numbers.planned, numbers.plan
    if not row or not plan:
        return ""
    lines = [[name, f"{row[name]:,}"] for name in ("n", *OUTCOMES)]
    lines[0][0] = "operations"
    lines += [["expired, of all", f"{row['timeout_ratio']:.3%}"], ["outcomes a second", f"{row['rate'] or 0:,.0f}"]]
    shorts = {short: shown for short, shown in QUANTILES.items() if f"latency_{short}_ms" in row}
    lines += [[f"wait, {shown}", ms(row[f"latency_{short}_ms"])] for short, shown in shorts.items()]
    lines += [["in flight, mean", number(row["in_flight_mean"] or 0)]]
    return details(
        f"Planned, and not played: {row['n']:,} operations",
        paragraph(
            f"{row['n']:,} more operations are planned lives, drawn from the same distribution. They settle as with a "
            "daemon that is never late: they show what the reports do with many rows, and nothing about a daemon."
        ),
        table(["", PLANNED], lines),
        _table_of_timeouts(row, numbers.asked, (plan.timeout_ns, plan.timeout_ns)),
        note(
            "The rows of these operations are not kept. So these percentiles are read from histograms: never too "
            f"small, and at most {ERROR:.2%} too large."
        ),
    )


def _machine(run: Results) -> str:
    machine, steps = run.state["machine"], run.state["steps"]
    lines = [
        ["processor", f"{machine['processor']}, {machine['processors']} of them"],
        ["memory", f"{machine['memory_bytes'] / 2**30:.0f} GiB, of which the run had {_gib(run)} at most"],
        ["system", machine["system"]],
        ["command", machine["command"]],
    ]
    rows = [
        [name, f"{step['seconds']:.1f} s", *(f"{step[of]:.0%}" if of in step else "" for of in ("busy", "others"))]
        for name, step in steps.items()
    ]
    rows.append(["all before this page", f"{run.seconds:.0f} s", "", ""])
    return section("This run", texts(lines), table(["step", "took", "processors busy", "by other programs"], rows))


def _gib(run: Results) -> str:
    return f"{run.state.get('peak_bytes', 0) / 2**30:.1f} GiB"
