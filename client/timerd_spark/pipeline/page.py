"""The pipeline's page: the results of a run, for people. One HTML file with figures as SVG; it loads nothing else.

Played (or recorded) operations come first, and have all figures. Planned operations have a part of their own. No figure
shows both kinds on one axis.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from timerd_spark.reports.rollups import ERROR

from . import plots, verdicts
from .markup import document, facts, figures, note, paragraph, section, table, texts
from .markup import verdicts as listed
from .results import PLANNED, PLAYED, RECORDED, SEEN, Results
from .verdicts import ms

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COLOURS: Final = dict(zip((PLAYED, SEEN, PLANNED), plots.COLOURS, strict=False)) | {RECORDED: plots.COLOURS[0]}
ORDER: Final = (RECORDED, PLAYED, SEEN, PLANNED)
OUTCOMES: Final = ("completed", "expired", "cancelled", "failed")
QUANTILES: Final = {"p50": "p50", "p99": "p99", "p999": "p99.9", "max": "max"}
WINDOWS_MIN = 5  # fewer windows show nothing over time
FINDINGS_MAX = 20  # on the page; the directory audit/ has all


def page(run: Results) -> str:
    """The HTML of the page. All other steps of the run must be done."""
    o = run.options
    # Times as numbers: datetimes of Python would be in the time zone of this process.
    at = ("unix_micros(start) / 1e6D AS start_at", "unix_micros(`end`) / 1e6D AS end_at")
    reports = {row["what"]: row for row in run.stored("report").selectExpr("*", *at).collect()}
    real = [reports[what] for what in (RECORDED, PLAYED, SEEN) if what in reports]
    title = "a journal" if o.journal else "a load test"
    first = real[0] if real else None
    return document(
        f"timerd: {title}",
        [
            f"<h1>timerd: {title}</h1>",
            paragraph(_subject(run)),
            note(_provenance(run, first)),
            listed(_verdicts(run, reports)),
            facts(_headlines(run, first)),
            _settled(run, real),
            _over_time(run) if first else "",
            _rounds(run) if PLAYED in reports else "",
            _timeouts(run, reports) if reports else "",
            _hot_keys(run),
            _audit(run),
            _planned(run, reports),
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


def _provenance(run: Results, row: Any) -> str:
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


def _verdicts(run: Results, reports: dict[str, Any]) -> Iterator[verdicts.Verdict]:
    first = reports.get(RECORDED) or reports.get(PLAYED)
    if PLAYED in reports and SEEN in reports:
        yield verdicts.of_machine(reports[PLAYED], reports[SEEN], _added(run), _load(run))
    yield verdicts.of_audit(run.state["steps"]["audit"])
    if first:
        yield verdicts.of_outcomes(first)
        asked = [row for row in run.stored("what_if").collect() if row["what"] == first["what"]]
        if said := verdicts.of_timeouts(first, asked):
            yield said


def _headlines(run: Results, row: Any) -> Iterator[tuple[str, str, str]]:
    if row:
        yield "operations " + ("recorded" if run.options.journal else "played"), f"{row['n']:,}", ""
        yield "outcomes a second", f"{row['rate'] or 0:,.0f}", ""
        yield "expired", f"{row['timeout_ratio']:.2%}", ""
        yield "completed within, p99", ms(row["latency_p99_ms"]) or "none", ""
        if row["expired"]:
            yield "late at expiry, p99", ms(row["lateness_p99_ms"]), ""
        yield "in flight, at most", f"{row['in_flight_max'] or 0:,}", ""
    else:
        yield "operations", "0", ""
    step = run.state["steps"]["audit"]
    if step.get("findings") is not None:
        yield "audit", verdicts.in_short(step).removeprefix("the ").removeprefix("audit "), verdicts.of_audit(step).kind


# played or recorded ---------------------------------------------------------------------------------------------------


def _settled(run: Results, rows: Sequence[Any]) -> str:
    if not rows:
        return section("How operations settled", note("No operation has settled."))
    explained = (
        "Waits are of completed operations, lateness (from the deadline to the outcome) of expired ones. Percentiles "
        f"are read from histograms: never too small, and at most {ERROR:.2%} too large."
    )
    if len(rows) > 1:
        explained += (
            ' The column "from the intended time" is the client\'s view: a wait includes the time by which a call '
            "was sent later than planned. Lateness is the daemon's in both columns."
        )
    return section(
        "How operations settled",
        _report_table(rows),
        note(explained),
        figures(
            [
                ("Waits of completed operations", plots.waits(_real(run, "rollup"), "latency", "what", COLOURS)),
                *_lateness(run, rows),
            ]
        ),
    )


def _lateness(run: Results, rows: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """The figure of lateness. Both views of played operations have the same lateness, so one is drawn."""
    if rows[0]["expired"]:
        rolled = run.stored("rollup")
        rolled = rolled.where(rolled["what"] == rows[0]["what"])
        yield "Lateness of expired operations", plots.waits(rolled, "lateness", "what", COLOURS)


def _report_table(rows: Sequence[Any]) -> str:
    """A report, with a line for each measure, so that it is legible on a phone."""
    lines = [["operations", *(f"{row['n']:,}" for row in rows)]]
    lines += [[name, *(f"{row[name]:,}" for row in rows)] for name in OUTCOMES]
    lines += [["expired, of all", *(f"{row['timeout_ratio']:.3%}" for row in rows)]]
    lines += [["outcomes a second", *(f"{row['rate'] or 0:,.0f}" for row in rows)]]
    for measure, name in (("latency", "wait"), ("lateness", "late")):
        for short, shown in QUANTILES.items():
            lines.append([f"{name}, {shown}", *(ms(row[f"{measure}_{short}_ms"]) for row in rows)])
    lines += [["in flight, mean", *(f"{row['in_flight_mean'] or 0:,.0f}" for row in rows)]]
    lines += [["in flight, at most", *(f"{row['in_flight_max'] or 0:,}" for row in rows)]]
    return table(["", *(row["what"] for row in rows)], [line for line in lines if any(line[1:])])


def _real(run: Results, name: str) -> DataFrame:
    """A result without planned operations."""
    found = run.stored(name)
    return found.where(found["what"] != PLANNED)


def _over_time(run: Results) -> str:
    windows = _real(run, "windows")
    own = windows.where(windows["what"] != SEEN)  # SEEN has the operations of PLAYED, with waits from the intended time
    if own.count() < WINDOWS_MIN:
        return ""
    window = run.state["steps"]["rollup"].get("window", run.options.window)
    return section(
        "Over time",
        figures(
            [
                (
                    "Waits of completed operations",
                    plots.over_time(windows, ["latency_p99_ms", "latency_p50_ms"], "what", COLOURS),
                ),
                ("Throughput", plots.over_time(own, "rate", "what", COLOURS)),
                (
                    "In flight, at most and on average",
                    plots.over_time(own, ["in_flight_max", "in_flight_mean"], "what", COLOURS),
                ),
                ("Expired, of all", plots.over_time(own, "timeout_ratio", "what", COLOURS)),
            ]
        ),
        note(
            f"In windows of {window}, by the time of the outcome. A window that work filled only in part, at either "
            "end or beside a pause, is left out. The mean in flight is the sum of the waits that ended in the window, "
            "divided by its length."
        ),
    )


def _added(run: Results) -> Any:
    """The row of all rounds together."""
    rounds = run.stored("rounds")
    return rounds.where(rounds["round"].isNull()).collect()[0]


def _rounds(run: Results) -> str:
    """The spread of the rounds: the least, the middle and the largest of each measure."""
    found = run.stored("rounds")
    rounds = found.where(found["round"].isNotNull()).collect()
    measures = {
        "outcomes a second": ("rate", "{:,.0f}".format),
        "expired, of all": ("timeout_ratio", "{:.2%}".format),
        "wait, p50": ("latency_p50_ms", ms),
        "wait, p99": ("latency_p99_ms", ms),
        "longer than planned, p50": ("added_p50_ms", ms),
        "longer than planned, p99": ("added_p99_ms", ms),
        "longer than planned, max": ("added_max_ms", ms),
        "sent late, p99": ("behind_p99_ms", ms),
        "sent late, max": ("behind_max_ms", ms),
    }
    lines = []
    for name, (column, shown) in measures.items():
        values = sorted(row[column] for row in rounds if row[column] is not None)
        if values:
            spread = [values[0], values[len(values) // 2], values[-1]] if len(rounds) > 1 else values
            lines.append([name, *map(shown, spread)])
    title, head, every = "The round", [], ""
    if len(rounds) > 1:
        title, head = "The spread of the rounds", ["least", "median", "most"]
        every = f"Each of the {len(rounds)} rounds had a daemon of its own. "
    return section(
        title,
        table(["", *(head or ["all"])], lines),
        note(
            f'{every}Waits count from the intended time, and are not read from histograms. "Longer than planned": the '
            "plan says when each event is fired; a longer wait comes from the client, the daemon and the machine."
        ),
    )


def _timeouts(run: Results, reports: dict[str, Any]) -> str:
    """what_if() as a pivot: the line "as it was", then a line for each timeout; columns for each kind of operations."""
    rows = run.stored("what_if").collect()
    kinds = [what for what in ORDER if any(row["what"] == what for row in rows) and what != SEEN]
    cells = {(row["timeout_ns"], row["what"]): row for row in rows}
    were = {what: verdicts.flying_now(reports[what], [row for row in rows if row["what"] == what]) for what in kinds}
    lines = [["as it was", *(f"{reports[what]['timeout_ratio']:.2%}" for what in kinds)]]
    lines[0] += [f"{flying:,.0f}" if flying else "" for flying in were.values()]
    for timeout_ns in sorted({row["timeout_ns"] for row in rows}):
        of = [cells[timeout_ns, what] for what in kinds]
        lines.append([ms(timeout_ns / 1e6), *map(_share, of), *map(_flying, of)])
    named = kinds if len(kinds) > 1 else [""] * len(kinds)
    head = ["timeout", *(_joined("would expire", what) for what in named)]
    head += [_joined("in flight, mean", what) for what in named]
    asked = _real(run, "what_if")
    return section(
        "Under other timeouts",
        table(head, lines),
        figures([("Share that would expire", plots.what_if(asked.where(asked["what"] != SEEN), "what", COLOURS))]),
        note(
            "An operation that expired did not show how long it would have waited: it is censored at its timeout. The "
            "share that would expire is the share that would still be pending at the timeout: the Kaplan-Meier "
            "estimate, with its limits at 95 % confidence. If fewer than one in a hundred operations were watched up "
            'to a timeout, there are bounds only (hollow triangles). "In flight" is the rate of registrations times '
            "the mean wait, cut off at the timeout (Little's law)."
        ),
    )


def _joined(name: str, what: str) -> str:
    return f"{name}\n{what}" if what else name


def _share(row: Any) -> str:
    if row["beyond"]:
        return f"at most {row['timeout_ratio_high']:.2%}"
    return f"{row['timeout_ratio']:.2%}\n{row['timeout_ratio_low']:.2%} to {row['timeout_ratio_high']:.2%}"


def _flying(row: Any) -> str:
    if row["beyond"]:
        return f"{row['in_flight'] or 0:,.0f} or more"
    return f"{row['in_flight'] or 0:,.0f}"


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


def _planned(run: Results, reports: dict[str, Any]) -> str:
    if PLANNED not in reports:
        return ""
    rolled = run.stored("rollup")
    return section(
        "Planned, and not played",
        paragraph(
            f"{reports[PLANNED]['n']:,} more operations are planned lives, drawn from the same distribution. They "
            "settle as with a daemon that is never late: they show what the reports do with many rows, and nothing "
            "about a daemon."
        ),
        _report_table([reports[PLANNED]]),
        figures(
            [
                (
                    "Waits of completed operations, planned",
                    plots.waits(rolled.where(rolled["what"] == PLANNED), "latency", "what", COLOURS),
                )
            ]
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
