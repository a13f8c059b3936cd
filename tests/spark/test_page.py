"""The page of a run: its first lines, sentences, figures and tables, and the times that are left."""

from __future__ import annotations

import json
import math
import re
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from support.html import mistakes
from support.spark.lives import life, lives
from timerd_shm.read.histogram import index_of, upper_bound
from timerd_spark import report, rollup, what_if
from timerd_spark.pipeline import markup, plots, verdicts
from timerd_spark.pipeline.options import Options
from timerd_spark.pipeline.page import _headlines, page
from timerd_spark.pipeline.pipeline import (
    OF_LIVES,
    OF_PLAYED,
    curve_for,
    seen_of,
    share_of,
    timeouts_for,
    window_for,
)
from timerd_spark.pipeline.plans import shape_of
from timerd_spark.pipeline.progress import Rest, Step, short
from timerd_spark.pipeline.results import PLAN, PLANNED, PLAYED, SEEN
from timerd_spark.reports.percentiles import percentiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OPTIONS = Options(None, 60, 40, 1_000.0, "seed", 1, "auto", ("auto",), 2)
ARENA = {"host": "round=0", "incarnation": "5e1f", "outcomes": 40, "segments": 1, "gaps": 0}
ARENA |= {"left_out": 0, "row": 160, "ended": True}


def reported(**more: Any) -> dict[str, Any]:
    row = {"n": 1_000, "expired": 79, "cancelled": 0, "failed": 0, "timeout_ratio": 0.079, "in_flight_mean": 450.0}
    row |= {"rate": 9_000.0}
    return row | {"latency_p99_ms": 184.0, "lateness_p99_ms": 1.25, "lateness_max_ms": 4.0} | more


def estimated(timeout_ms: int, ratio: float, flying: float, beyond: bool = False) -> dict[str, Any]:
    row = {"timeout_ns": timeout_ms * 1_000_000, "timeout_ratio": ratio, "in_flight": flying, "beyond": beyond}
    return row | {"rate": 9_420.0}  # of registrations; the report's rate is of outcomes


def test_a_machine_that_sends_late_is_called_overloaded_and_one_with_other_work_disturbed() -> None:
    slow = {"latency_p99_ms": 352.0, "behind_p99_ms": 168.2, "added_p99_ms": 171.0}
    kind, text = verdicts.of_machine(reported(), slow, (0.99, 0.02))
    assert kind == "bad" and text.startswith(
        "This machine was overloaded, it could not send this rate in time: p99 352 ms from the intended time, 184 ms "
        "from the registration. One call in a hundred was more than 168 ms late. Its processors were 99% busy"
    )
    assert "other work took part of it" in verdicts.of_machine(reported(), slow, (0.99, 0.4)).text
    good = {"behind_p99_ms": 1.3, "behind_max_ms": 57.5, "added_p99_ms": 2.5, "added_max_ms": 59.5}
    good["latency_p99_ms"] = 184.0
    kind, text = verdicts.of_machine(reported(), good, (0.6, 0.03))
    assert kind == "good" and text == (
        "This machine kept up. Of the calls, 99 % were sent within 1.3 ms (at most 57.5 ms) of their time. Of the "
        "operations, 99 % waited at most 2.5 ms longer than planned (the worst 59.5 ms). Waits of completed ones: p99 "
        "184 ms from the intended time, 184 ms from the registration. Its processors were 60% busy, 3% by other "
        "programs."
    )
    assert verdicts.of_machine(reported(), good, None).kind == "good"
    assert "None completed." in verdicts.of_machine(reported(latency_p99_ms=None), good, None).text
    kind, text = verdicts.of_machine(reported(), good, (0.6, 0.3))
    assert kind == "bad" and text.startswith("This machine was disturbed by other work, and kept up. Of the calls,")


def test_windows_at_the_ends_are_left_out_where_work_did_not_fill_them() -> None:
    def shown(*rates: float | None) -> list[list[int]]:
        rows = [{"start": at, "end": at + 1, "rate": rate} for at, rate in enumerate(rates) if rate is not None]
        return [[row["start"] for row in part] for part in plots._parts(rows)]

    assert shown(10, 100, 100, 100, 95, 20) == [[1, 2, 3, 4]], "the last but one is full"
    assert shown(10, 100, 100, 100, 60, 20) == [[1, 2, 3]], "the work ended within the last but one"
    assert shown(100, 99, 100, 101) == [[0, 1, 2, 3]], "all are full"
    assert shown(100, 10, 100, 100, 100) == [[0, 1, 2, 3, 4]], "a dip in the middle is shown"
    assert shown(10, 100, 100, 100, None, 5, 100, 100, 100, 7) == [[1, 2, 3], [6, 7, 8]], "a pause counts as an end"
    assert shown(1, 100, 1) == [[0, 1, 2]], "too few to judge"
    no_time = [{"start": 0, "end": 0, "rate": None}] * 5  # the groups of a report without windows
    assert list(plots._parts(no_time)) == [no_time]


def test_the_page_shows_the_audit_and_its_extent() -> None:
    holds = {"findings": 0, "follows": 0, "causes": [], "arenas": [ARENA, ARENA | {"gaps": 1}]}
    again = "80 outcomes were computed again from the events in 2 segments of the journal, with 1 gap"
    assert verdicts.of_audit(holds) == ("good", f"The audit holds: {again}, and each is as it should be.")
    kind, text = verdicts.of_audit(holds | {"findings": 3})
    assert kind == "bad" and text == f"The audit disagrees with the daemon: {again}, and 3 defects were found."
    nothing = ("", "There was nothing to audit: no operation has settled.")
    assert verdicts.of_audit({"findings": 0, "arenas": []}) == nothing
    none = verdicts.of_audit({"not_audited": "audit(): the journal of web1 begins with row 9"})
    assert none == ("", "There was no audit: the journal of web1 begins with row 9.")
    shorts = [verdicts.in_short(step) for step in (holds, holds | {"findings": 3}, {"not_audited": ""})]
    assert shorts == ["the audit holds", "the audit disagrees with the daemon", "no audit"]


def test_the_page_calls_no_journal_complete_that_lacks_its_end_or_other_rows() -> None:
    again = "40 outcomes were computed again from the events in 1 segment of the journal, with no gaps"
    is_open = {"findings": 0, "follows": 0, "causes": [], "arenas": [ARENA | {"ended": False}]}
    assert verdicts.of_audit(is_open) == (
        "",
        f"The audit holds up to the last row: {again}. The journal's end is open: what came later is not known.",
    )
    broken = is_open | {"findings": 17, "follows": 15, "causes": ["rows 9 to 71 were left out", "rows 99 to 100 too"]}
    assert verdicts.of_audit(broken) == (
        "bad",
        "The journal is not whole: rows 9 to 71 were left out. There is more like it: 1 finding. Otherwise the audit "
        f"holds: {again}. 15 outcomes or rows after it disagree, which may come from it.",
    )
    worse = verdicts.of_audit(broken | {"findings": 19})
    assert worse.kind == "bad" and worse.text == (
        f"The audit disagrees with the daemon: {again}, and 2 defects were found. Besides, the journal is not whole: "
        "rows 9 to 71 were left out."
    )
    shorts = [verdicts.in_short(step) for step in (is_open, broken, broken | {"findings": 19})]
    assert shorts == [
        "the audit holds, the end is open",
        "the journal is not whole",
        "the audit disagrees with the daemon",
    ]


def test_another_timeout_is_proposed_if_it_saves_a_tenth() -> None:
    asked = [estimated(50, 0.29, 300.0), estimated(100, 0.162, 334.0), estimated(150, 0.108, 430.0)]
    beyond = estimated(500, 0.079, 471.0, beyond=True)
    found = verdicts.of_timeouts(reported(), [*asked, beyond])
    assert found is not None and found.text == (
        "With a timeout of 100 ms, 16.2% would expire instead of 7.9%, and 334 would be in flight instead of 471: 29% "
        "fewer."
    )
    none = verdicts.of_timeouts(reported(), [asked[2], beyond])
    assert none is not None and none.text == (
        "No timeout that the data cover (1 compared) would save a tenth of the operations in flight."
    )
    assert verdicts.of_timeouts(reported(), [beyond]) is None
    assert verdicts.of_timeouts(reported(in_flight_mean=None), asked) is None


def test_outcomes_are_shown_with_the_cancelled_and_the_failed() -> None:
    told = "7.90% of 1,000 operations expired, 1.25 ms late at p99 and 4 ms at most"
    assert verdicts.of_outcomes(reported()).text == f"{told}."
    assert verdicts.of_outcomes(reported(cancelled=4, failed=1)).text == f"{told}; 4 were cancelled and 1 were failed."


def test_times_are_shown_in_the_unit_that_fits() -> None:
    assert [verdicts.ms(at) for at in (None, 0.4217, 9.5, 184.4, 999.6, 1_502.0, 2e6)] == [
        *("", "0.422 ms", "9.5 ms", "184 ms", "1e+03 ms", "1.5 s", "2,000 s")
    ]
    assert [short(at) for at in (0, 7.4, 64, 80, 3_599, 7_500)] == [
        *("1 s", "7 s", "1 min", "1 min 20 s", "1 h", "2 h 5 min")
    ]


def test_the_rest_of_a_run_is_estimated_from_the_steps_that_are_done() -> None:
    steps = [Step(name, f"do {name}", dict, 10.0) for name in ("play-0", "play-9", "plan-0", "audit")]
    rest = Rest(steps, {})
    assert rest.head(steps[0]) == "[1/4] do play-0: some 10 s, some 40 s for all that is left"
    rest.done(steps[0], 12.0)  # a load test waits for planned times: its pace says nothing about other steps
    assert [rest.of(step) for step in steps[1:]] == [12.0, 10.0, 10.0]
    rest.done(steps[1], 12.0)
    assert rest.line(steps[2], 4.0) == "40% of it, 6 s left; 16 s for all"
    assert rest.line(steps[2], 4.0, share=0.2) == "20% of it, 16 s left; 26 s for all"
    assert rest.line(steps[2], 14.0) == "14 s so far, where 10 s were expected; then 10 s for the rest"
    rest.done(steps[2], 30.0)
    assert rest.of(steps[3]) == 20.0, "this machine is slow, or was cold: other steps count as twice as slow at most"
    assert rest.head(steps[3]) == "[4/4] do audit: some 20 s" and rest.line(steps[3], 5.0) == "25% of it, 15 s left"
    rest.done(steps[3], 1e9)
    assert rest.of(Step("audit", "", dict, 10.0)) == 100.0, "a step counts as ten times as long as expected, at most"


def test_a_query_tells_how_much_of_the_journal_it_has_read() -> None:
    def place(number: int, arena: str = "ab", host: str = "web1") -> str:
        return json.dumps({host: {"segment": 1, "row": number, "incarnation": arena, "number": number}})

    assert share_of(None) is None
    assert share_of({"sources": [{"endOffset": place(250), "latestOffset": place(1_000)}]}) == 0.25
    assert share_of({"sources": [{"endOffset": place(250), "latestOffset": None}]}) is None
    two = {"endOffset": place(250), "latestOffset": place(10, "cd")}
    assert share_of({"sources": [two]}) is None, "rows are counted within an arena"
    assert share_of({"sources": [{"endOffset": "{}", "latestOffset": place(10)}]}) == 0.0


def test_colours_of_figures_are_those_of_the_page_in_light_and_dark() -> None:
    figure, axes = plots._axes("x", "y")
    axes.plot([1, 2], [1, 2], color=plots.COLOURS[1], label="a")
    plots._finish(axes)
    drawn = plots.svg(figure)
    assert f"stroke: var(--series-1, {plots.COLOURS[1]})" in drawn and "fill: var(--ink," in drawn
    assert not re.search(r"(?<!, )#(?!000)[0-9a-f]{6}\b(?=[;\"])", drawn), "no colour but those of the page"
    used = set(re.findall(r"var\(--([a-z0-9-]+)", drawn + markup.STYLE))
    light, dark = (set(re.findall(r"--([a-z0-9-]+):", part)) for part in markup.STYLE.split("@media")[:2])
    assert used <= light and light == dark


def waits_of(rows: list[dict[str, Any]], outcome: str, column: str = "wait_ns") -> list[int]:
    return sorted(row[column] for row in rows if row["outcome"] == outcome)


def shown(values_ns: list[int], share: float) -> str:
    """The exact percentile of all values, as the page shows it."""
    return verdicts.ms(values_ns[math.ceil(share * len(values_ns)) - 1] / 1e6)


class FewOperations:
    """The results of a run with a few operations in two rounds and two purgatories, in Spark's memory."""

    def __init__(self, spark: SparkSession) -> None:
        self.options = OPTIONS
        # For 15 s, then nothing for 5 s, and another 15 s.
        times = [at * 200 if at < 75 else at * 200 + 5_000 for at in range(150)]
        self.rows = [
            life(at_ms, 5 + at * 0.41, purgatory="fetch" if at % 3 else "produce") for at, at_ms in enumerate(times)
        ]
        self.rows += [life(at_ms + 7, 201 + at / 7, "expired") for at, at_ms in enumerate(times[::15])]
        played = lives(spark, *self.rows).selectExpr(
            *("*", "wait_ns div 10 AS added_ns", "1000L AS behind_ns"),
            "int(registered_at >= timestamp'2026-01-01 00:00:18Z') AS round",
        )
        played = played.persist()
        planned = lives(spark, *(life(at * 50, 3 + at) for at in range(20))).selectExpr("*", f"'{PLANNED}' AS what")
        real = played.selectExpr(*(name for name in planned.columns if name != "what"), f"'{PLAYED}' AS what")
        df = real.unionByName(planned).persist()
        rolled = rollup(df, by="what", window="1 second").persist()
        self._stored = {
            "rollup": rolled,
            "seen": rollup(seen_of(played), by="what", window="1 second").persist(),
            "report": report(rolled, by="what"),
            "windows": report(rolled, by="what", window="1 second").persist(),
            "what_if": what_if(df, timeouts_for(real), by="what"),
            "curve": what_if(real, curve_for(real), by="what").orderBy("timeout_ns").persist(),
            "purgatories": percentiles(played, OF_LIVES, "purgatory"),
            "rounds": percentiles(played, OF_PLAYED, "round"),
            "hot_keys": spark.sql("SELECT 'k' AS key, 'p' AS purgatory, 1L AS n, 1.0D AS share, 0D AS timeout_ratio"),
        }
        step = {"at": 1_764_338_700.0, "seconds": 11.0, "busy": 0.6, "others": 0.05}
        self.state: dict[str, Any] = {
            "machine": {
                **{"host": "web1", "processor": "a <fast> one", "processors": 2, "memory_bytes": 8 << 30},
                **{"system": "Linux", "versions": {"timerd": "1.0"}, "command": "python -m timerd_spark run"},
            },
            "steps": {
                **{"play-0": step, "rollup": step | {"window": "1 second"}},
                "audit": step | {"findings": 0, "arenas": [ARENA]},
            },
            "peak_bytes": 1 << 30,
        }
        self.seconds = 33.0

    def stored(self, name: str) -> DataFrame:
        return self._stored[name]


class Drawn(NamedTuple):
    """A page, the operations that it shows, and its figures by their titles."""

    html: str
    rows: list[dict[str, Any]]
    figures: dict[str, Any]

    def row(self, first: str) -> list[str]:
        """The cells of the row of a table that begins with this cell."""
        found = next(row for row in re.findall(r"<tr>(.*?)</tr>", self.html) if row.startswith(f"<td>{first}<"))
        return [re.sub(r"<small>.*?</small>", "", cell) for cell in re.findall(r"<td>(.*?)</td>", found)]


@pytest.fixture(scope="module")
def drawn(spark: SparkSession) -> Drawn:
    run, figures = FewOperations(spark), dict[str, Any]()
    svg = plots.svg

    def kept(figure: Any, title: str = "") -> str:
        figures[title.partition(":")[0]] = figure.axes[0]
        return svg(figure, title)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "svg", kept)
        return Drawn(page(run), run.rows, figures)


OVER_TIME = ("Throughput", "In flight, at most and on average", "Expired, of all")
ADDED_OVER_TIME = "Added time, over time"


def test_the_headline_is_what_timerd_added_and_the_wait_of_the_workload_is_no_headline() -> None:
    numbers: Any = SimpleNamespace(
        real=reported(in_flight_max=9) | {"lateness_p99_ms": 1.25},
        seen={"added_p50_ms": 0.9, "added_p99_ms": 1.79, "latency_p99_ms": 184.0},
        rounds=[{"added_p99_ms": 1.5}, {"added_p99_ms": 9.0}],
        plan=shape_of("seed", ops=9, rate=9_420.0, seed=1, timeout=None),
        run=SimpleNamespace(options=OPTIONS, state={"steps": {"audit": {"findings": None}}}),
    )
    first, *others = _headlines(numbers, "bad")
    assert first == (
        "added by timerd, p99",
        "1.79 ms",
        "beyond the wait that the workload has planned; p50: 0.9 ms; p99 of a round: 1.5 ms to 9 ms",
        "bad",
    )
    assert not any("184" in fact.value for fact in others)
    assert {fact.name: fact.small for fact in others} == {
        "late at expiry, p99": "at most 4 ms",
        "expired": "planned: 7.9%",
        "outcomes a second": "planned: 9,420",
        "in flight, at most": "on average: 450",
        "operations played": "in 2 rounds",
    }


@pytest.mark.long  # some thirty small jobs of Spark for the page; the sentences and the headline are above
@pytest.mark.timeout(240)
def test_the_page_begins_with_the_headline_the_sentences_and_the_machine(drawn: Drawn) -> None:
    html = drawn.html
    order = ["added by timerd, p99", "This machine kept up", "The audit holds: 40 outcomes", "<table>"]
    assert sorted(order, key=html.index) == order
    assert re.search(r"Played on 1 January 2026, 00:00:00 to 00:00:\d\d UTC\. This run began on 28 November", html)
    assert "2025, 14:05:00 UTC, on web1 (2 processors, 8 GiB): timerd 1.0." in html
    assert "<b>160</b>operations played" in html and "<b>holds</b>audit" in html and "a &lt;fast&gt; one" in html
    assert "Hot keys" not in html, "no key has two operations"


@pytest.mark.long
@pytest.mark.timeout(240)
def test_a_percentile_is_one_number_in_all_places_and_is_that_of_the_rows(drawn: Drawn) -> None:
    html = drawn.html
    completed, late = waits_of(drawn.rows, "completed"), waits_of(drawn.rows, "expired", "lateness_ns")
    added = sorted(row["wait_ns"] // 10 for row in drawn.rows)
    planned = [wait_ns - wait_ns // 10 for wait_ns in completed]
    shares = (0.5, 0.95, 0.99, 0.999, 1.0)
    for name, values in (
        ("added to the plan", added),
        ("late at expiry", late),
        ("wait, as planned", planned),
        ("wait, from the intended time", completed),
        ("wait, from the registration", completed),
    ):
        assert drawn.row(name) == [name, *(shown(values, share) for share in shares)], name
    # The first line, the sentences, the captions, the marks and the breakdown have the same numbers.
    p99, of_added, of_late = (shown(values, 0.99) for values in (completed, added, late))
    assert f"<b>{of_added}</b>added by timerd, p99" in html and f"<b>{of_late}</b>late at expiry, p99" in html
    assert f"waited at most {of_added} longer than planned" in html and f"{of_late} late at p99" in html
    assert f"p99 {p99} from the intended time, {p99} from the registration" in html
    assert drawn.row("all")[-3:] == [shown(completed, 0.5), p99, of_late]
    for title, values in (
        ("Added time", added),
        ("Lateness of expired operations", late),
        ("Waits of completed operations, and the plan", completed),
    ):
        marks = [text.get_text() for text in drawn.figures[title].texts]
        assert marks == [f"p{share * 100:.0f} {shown(values, share)}" for share in (0.5, 0.95, 0.99)], title
    level = drawn.figures[ADDED_OVER_TIME].get_legend().get_texts()[-1].get_text()
    assert level == f"p99 {of_added}"
    bucket = verdicts.ms(upper_bound(index_of(completed[math.ceil(0.99 * len(completed)) - 1])) / 1e6)
    assert bucket != p99 and bucket not in html, "the percentile of the histogram is larger, and is nowhere"


@pytest.mark.long
@pytest.mark.timeout(240)
def test_axes_begin_at_0_or_are_called_logarithmic_and_the_plan_is_drawn(drawn: Drawn) -> None:
    for title, axes in drawn.figures.items():
        if axes.get_yscale() == "log":
            assert axes.get_ylabel().endswith("logarithmic)") or axes.get_ylabel().endswith("logarithmic"), title
        else:
            assert axes.get_ylim()[0] == 0, title
    for title, plan in zip(OVER_TIME, ("the plan: 1,000", "the plan: 47", "the plan: 7.9%"), strict=True):
        legend = [text.get_text() for text in drawn.figures[title].get_legend().get_texts()]
        assert plan in legend, title
    waited = drawn.figures["Waits of completed operations, and the plan"]
    assert [text.get_text() for text in waited.get_legend().get_texts()] == [SEEN, PLAN]
    assert [line.get_linestyle() for line in waited.lines[:2]] == ["-", "--"], "not by colour alone"


@pytest.mark.long
@pytest.mark.timeout(240)
def test_gaps_between_rounds_are_named_where_they_are(drawn: Drawn) -> None:
    for title in (*OVER_TIME, ADDED_OVER_TIME):
        (name,) = drawn.figures[title].texts
        assert name.get_text() == "between rounds 1 and 2"
        assert 15 < name.xy[0] < 20, "the seconds without operations"
    assert drawn.row("round 1")[1] == drawn.row("round 2")[1] == "80"


@pytest.mark.long
@pytest.mark.timeout(240)
def test_added_time_is_a_heatmap_that_counts_every_operation(drawn: Drawn) -> None:
    axes = drawn.figures[ADDED_OVER_TIME]
    assert [patch.get_label() for patch in axes.patches if "operations" in str(patch.get_label())] == [
        "1 to 9 operations"
    ]
    # Five vertices a cell. Each second of a round has a cell for each doubling of the added time, at least one.
    cells = len(axes.patches[0].get_path().vertices) // 5
    assert 30 <= cells <= len(drawn.rows) and len(axes.lines) == 1, "no lines but that of the p99"


@pytest.mark.long
@pytest.mark.timeout(240)
def test_other_timeouts_are_a_curve_with_a_band_and_todays_timeout_and_a_row_as_it_is(drawn: Drawn) -> None:
    axes = drawn.figures["Share that would expire"]
    curve, today = axes.lines
    assert len(curve.get_xdata()) > 40 and curve.get_ydata()[0] > 0.9, "from the shortest wait on"
    assert [band.get_label() for band in axes.collections] == ["limits, 95 % confidence"]
    assert list(today.get_xdata()) == [200, 200] and [text.get_text() for text in axes.texts] == ["today: 200 ms"]
    assert "The band around the line is at most " in drawn.html
    assert drawn.row("as it is")[:2] == ["as it is", "6.25%"]
    completed = waits_of(drawn.rows, "completed")
    for share in (0.5, 0.75, 0.9, 0.95):
        chosen = verdicts.ms(float(f"{completed[math.ceil(share * len(completed)) - 1] / 1e6:.2g}"))
        assert len(drawn.row(chosen)) == 5, "a timeout is a wait of the data, in two digits"


@pytest.mark.long
@pytest.mark.timeout(240)
def test_each_purgatory_has_a_row(drawn: Drawn) -> None:
    by = {name: [row for row in drawn.rows if row["purgatory"] == name] for name in ("fetch", "produce", "default")}
    for name, rows in by.items():
        completed = waits_of(rows, "completed")
        cells = drawn.row(name)
        assert cells[1] == f"{len(rows):,}" and cells[2] == f"{len(completed):,}", name
        assert cells[-2] == (shown(completed, 0.99) if completed else ""), name
    assert drawn.row("default")[-1] == shown(waits_of(by["default"], "expired", "lateness_ns"), 0.99)


@pytest.mark.long
@pytest.mark.timeout(240)
def test_planned_operations_are_folded_away_and_have_no_figure(drawn: Drawn) -> None:
    (folded,) = re.findall(r"<details><summary>(.*?)</details>", drawn.html, re.DOTALL)
    assert folded.startswith("Planned, and not played: 20 operations</summary>") and "<svg" not in folded
    assert drawn.html.count("planned lives") == 1 and "planned lives" in folded
    assert "never too small, and at most 6.25% too large" in folded, "their rows are not kept"


@pytest.mark.long
@pytest.mark.timeout(240)
def test_the_page_is_valid_html_without_scripts_and_loads_nothing(drawn: Drawn) -> None:
    html = drawn.html
    assert mistakes(html) == []
    assert not re.search(r"<script|<link|<img|src=|@import|url\(h", html), "nothing is loaded from outside"
    assert html.count("<table>") == html.count('<div class="wide" tabindex="0"><table>'), "a table scrolls in itself"
    captions = re.findall(r"<figcaption><b>.*?</b>(.*?)</figcaption><svg[^>]* aria-label=\"(.*?)\">", html)
    assert len(captions) == html.count("<svg") == len(drawn.figures) == 8, "each figure has a title of its own"
    for sentence, label in captions:
        assert sentence.endswith(".") and sentence in label
    assert set(re.findall(r"var\(--(series-\d)", html)) == {"series-0"}, "one colour is enough"


def test_mistakes_of_html_are_found() -> None:
    page_of = "<!DOCTYPE html>\n<html><body>{}</body></html>".format
    assert mistakes(page_of('<p id="a">x<br></p><svg><path id="b"/></svg>')) == []
    for wrong, found in (
        ("<p><div></div></p>", "<div> is inside of <p>"),
        ("<p>", "</body> closes another element"),
        ('<p id="a"></p><p id="a"></p>', "the name a occurs twice"),
        ("<td></td>", "<td> is not in <tr>"),
        ("<p/>", "<p/> closes itself outside of an image"),
        ('<p class="a" class="b"></p>', "<p> has class twice"),
    ):
        assert found in mistakes(page_of(wrong)), wrong
    assert mistakes("<p></p>") == ["the page does not begin with its doctype"]


def test_windows_are_chosen_so_that_a_figure_has_at_most_300(spark: SparkSession) -> None:
    assert window_for(lives(spark, life(0, 5), life(7_200_000, 5))) == "30 seconds"
