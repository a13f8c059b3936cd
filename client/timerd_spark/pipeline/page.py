"""The pipeline's page: the results of a run, for people. One HTML file with figures as SVG; it loads nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from timerd_spark.reports.rollups import ERROR

from . import plots
from .results import PLANNED, PLAYED, Results

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1d2329; background: #fff; max-width: 68rem; margin: 2rem auto;
       padding: 0 1rem; }
h1 { font-size: 1.7rem; margin-bottom: 0; } h2 { font-size: 1.2rem; margin: 2.2rem 0 .4rem; }
.facts { display: flex; flex-wrap: wrap; gap: .8rem; margin: 1.4rem 0; }
.fact { border: 1px solid #d7dde2; border-radius: 6px; padding: .5rem .9rem; }
.fact b { display: block; font-size: 1.35rem; } .good b { color: #21744f; } .bad b { color: #b3261e; }
table { border-collapse: collapse; font-size: .9rem; } .wide { overflow-x: auto; }
th, td { text-align: right; padding: .25rem .5rem; border-bottom: 1px solid #e4e9ed;
         font-variant-numeric: tabular-nums; }
th:first-child, td:first-child { text-align: left; } td + td { white-space: nowrap; }
p, .note { max-width: 46rem; } .note { color: #56616b; }
svg { width: 100%; max-width: 44rem; height: auto; }
"""


def page(run: Results) -> str:
    """The HTML of the page. All steps before it must be done."""
    o, steps = run.options, run.state["steps"]
    reports = {row["what"]: row for row in run.stored("report").collect()}
    first = reports.get(PLAYED) or next(iter(reports.values()), None)
    audited = steps["audit"].get("disagreements")
    facts = [
        ("operations", f"{sum(row['n'] for what, row in reports.items() if 'intended' not in what):,}", ""),
        *(_measured(first) if first else ()),
        _verdict(audited),
        ("time so far", f"{run.seconds:.0f} s", ""),
        ("memory, at most", f"{run.state.get('peak_bytes', 0) / 2**30:.1f} GiB", ""),
    ]
    parts = [
        f"<h1>timerd: {'a journal' if o.journal else 'the pipeline'}</h1>",
        f"<p>{_subject(run)}</p>",
        '<div class="facts">' + "".join(_fact(*fact) for fact in facts) + "</div>",
    ]
    if PLANNED in reports:
        parts.append(
            f'<p class="note">Only <em>played</em> operations ran through a daemon. The {reports[PLANNED]["n"]:,} '
            "<em>planned</em> ones are drawn from the same distribution and settle as with a daemon that is never "
            "late: they show what the reports do with many rows, and nothing about the daemon.</p>"
        )
    parts += [
        "<h2>How operations settled</h2>",
        _table(
            ["", "n", "a second", "timeout ratio", "p50", "p75", "p99", "p99.9", "max", "late p50", "late p99",
             "late max", "in flight"],
            ([row["what"], f"{row['n']:,}", f"{row['rate'] or 0:,.0f}", f"{row['timeout_ratio']:.3%}",
              *(_ms(row[f"latency_{name}_ms"]) for name in ("p50", "p75", "p99", "p999", "max")),
              *(_ms(row[f"lateness_{name}_ms"]) for name in ("p50", "p99", "max")),
              f"{row['in_flight_max'] or 0:,}"] for row in sorted(reports.values(), key=lambda row: row["what"])),
        ),
        f'<p class="note">Waits are of completed operations, lateness (deadline to expiry) of expired ones. '
        f"Percentiles are read from histograms, and are at most {ERROR:.2%} too large. From the intended time: the "
        f"client's view, in which a wait includes the time by which its registration was sent late.</p>",
        "<h2>Waits of completed operations</h2>", _figure(plots.waits(run.stored("rollup"), "latency", "what")),
        "<h2>Lateness of expired operations</h2>", _figure(plots.waits(run.stored("rollup"), "lateness", "what")),
        f"<h2>Timeouts over time, in windows of {escape(o.window)}</h2>",
        _figure(plots.timeout_ratio(run.stored("windows"), "what")),
        "<h2>Under other timeouts</h2>", _figure(plots.what_if(run.stored("what_if"), "what")), _what_if(run),
        "<h2>Hot keys</h2>", _hot_keys(run),
        "<h2>The audit</h2>", _audit(run, audited),
        "<h2>Steps of this run</h2>",
        _table(["step", "seconds"], ([name, f"{step['seconds']:.1f}"] for name, step in steps.items())),
    ]  # fmt: skip
    body = "\n".join(parts)
    head = f'<meta charset="utf-8"><title>timerd pipeline</title><style>{STYLE}</style>'
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n<body>\n{body}\n</body></html>\n'


def _measured(row: Any) -> list[tuple[str, str, str]]:
    """The most important figures of a report's row: (name, value, kind) each."""
    return [
        ("timeout ratio", f"{row['timeout_ratio']:.2%}", ""),
        ("completed within, p99", _ms(row["latency_p99_ms"]), ""),
        ("expired late by, p99", _ms(row["lateness_p99_ms"]), ""),
        ("in flight, at most", f"{row['in_flight_max'] or 0:,}", ""),
    ]


def _subject(run: Results) -> str:
    o = run.options
    if o.journal is not None:
        return f"The journal {escape(o.journal)}, read as a stream."
    return (
        f"{o.ops:,} operations of the {escape(o.profile)} workload, seed {o.seed}: {o.played:,} of them played against "
        f"a daemon at {o.rate:,.0f} a second, by {o.players} clients, the journal at level events."
    )


def _verdict(audited: int | None) -> tuple[str, str, str]:
    if audited is None:
        return "audit", "not done", ""
    return "audit", "holds" if audited == 0 else f"{audited:,} disagree", "good" if audited == 0 else "bad"


def _what_if(run: Results) -> str:
    rows = run.stored("what_if").orderBy("what", "timeout_ns").collect()
    shown = (
        [
            row["what"],
            _ms(row["timeout_ns"] / 1e6),
            f"at most {row['timeout_ratio_high']:.3%}" if row["beyond"] else f"{row['timeout_ratio']:.3%}",
            "" if row["beyond"] else f"{row['timeout_ratio_low']:.3%} to {row['timeout_ratio_high']:.3%}",
            f"at least {row['in_flight_low'] or 0:,.0f}" if row["beyond"] else f"{row['in_flight'] or 0:,.0f}",
            f"{row['watched']:,}",
        ]
        for row in rows
    )
    note = (
        "An expired operation did not show how long it would have waited: it is censored at its timeout, and the share "
        "is the Kaplan-Meier estimate, with its limits at 95 % confidence. Timeouts beyond those for which one in a "
        "hundred operations was watched are dotted, and their figures are bounds. In flight: the rate times the mean "
        "of the wait, cut off at the timeout."
    )
    table = _table(["", "timeout", "would expire", "95 %", "in flight, mean", "watched until then"], shown)
    return f'{table}<p class="note">{note}</p>'


def _hot_keys(run: Results) -> str:
    rows = run.stored("hot_keys").collect()
    if not rows or max(row["n"] for row in rows) == 1:
        return '<p class="note">No key settled more than one operation.</p>'
    shown = (
        [row["key"], row["purgatory"], f"{row['n']:,}", f"{row['share']:.2%}", f"{row['timeout_ratio']:.2%}"]
        for row in rows
    )
    return _table(["key", "purgatory", "n", "share", "timeout ratio"], shown)


def _audit(run: Results, audited: int | None) -> str:
    if audited is None:
        return '<p class="note">The journal has only outcomes (level outcomes), so they cannot be computed again.</p>'
    method = "<p>Each outcome was computed again from the events in the journal, and compared.</p>"
    if audited == 0:
        return method + "<p>All outcomes are as they should be.</p>"
    rows = run.stored("audit").limit(20).collect()
    return method + _table(["op", "row", "what"], ([row["op_id"] or "", str(row["row"]), row["what"]] for row in rows))


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:,.1f} ms" if value < 10_000 else f"{value / 1000:,.1f} s"


def _fact(name: str, value: str, kind: str) -> str:
    return f'<div class="fact {kind}"><b>{escape(value)}</b>{escape(name)}</div>'


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    def line(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    return f'<div class="wide"><table>{line(head, "th")}{"".join(line(row, "td") for row in rows)}</table></div>'


def _figure(figure: Any) -> str:
    return f"<figure>{plots.svg(figure)}</figure>"
