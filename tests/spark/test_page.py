"""The page of a run: sentences, times that are left, and which operations share an axis."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.spark.lives import life, lives
from timerd_spark import report, rollup, what_if
from timerd_spark.pipeline import markup, plots, verdicts
from timerd_spark.pipeline.options import Options
from timerd_spark.pipeline.page import page
from timerd_spark.pipeline.pipeline import rounds_of, share_of, window_for
from timerd_spark.pipeline.progress import Rest, Step, short
from timerd_spark.pipeline.results import PLANNED, PLAYED, SEEN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OPTIONS = Options(None, 60, 40, 1_000.0, "seed", 1, "auto", ("8ms", "50ms"), 2)
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
    seen, slow = reported(latency_p99_ms=352.0), {"behind_p99_ms": 168.2, "added_p99_ms": 171.0}
    kind, text = verdicts.of_machine(reported(), seen, slow, (0.99, 0.02))
    assert kind == "bad" and text.startswith(
        "This machine was overloaded, it could not send this rate in time: p99 352 ms from the intended time, 184 ms "
        "from the registration. One call in a hundred was more than 168 ms late. Its processors were 99% busy"
    )
    assert "other work took part of it" in verdicts.of_machine(reported(), seen, slow, (0.99, 0.4)).text
    good = {"behind_p99_ms": 1.3, "behind_max_ms": 57.5, "added_p99_ms": 2.5, "added_max_ms": 59.5}
    kind, text = verdicts.of_machine(reported(), reported(), good, (0.6, 0.03))
    assert kind == "good" and text == (
        "This machine kept up. Of the calls, 99 % were sent within 1.3 ms (at most 57.5 ms) of their time. Of the "
        "operations, 99 % waited at most 2.5 ms longer than planned (the worst 59.5 ms). Waits of completed ones: p99 "
        "184 ms from the intended time, 184 ms from the registration. Its processors were 60% busy, 3% by other "
        "programs."
    )
    assert verdicts.of_machine(reported(), reported(), good, None).kind == "good"
    none = reported(latency_p99_ms=None)
    assert "None completed." in verdicts.of_machine(none, none, good, None).text
    kind, text = verdicts.of_machine(reported(), reported(), good, (0.6, 0.3))
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
    plots._finish(axes, ["a"])
    drawn = plots.svg(figure)
    assert f"stroke: var(--series-1, {plots.COLOURS[1]})" in drawn and "fill: var(--ink," in drawn
    assert not re.search(r"(?<!, )#(?!000)[0-9a-f]{6}\b(?=[;\"])", drawn), "no colour but those of the page"
    used = set(re.findall(r"var\(--([a-z0-9-]+)", drawn + markup.STYLE))
    light, dark = (set(re.findall(r"--([a-z0-9-]+):", part)) for part in markup.STYLE.split("@media")[:2])
    assert used <= light and light == dark


class FewOperations:
    """The results of a run with a few operations, in Spark's memory."""

    def __init__(self, spark: SparkSession) -> None:
        self.options = OPTIONS
        played = [life(at * 1_000, 5 + at) for at in range(39)] + [life(0, 201, "expired")]
        by = {PLAYED: played, SEEN: played, PLANNED: [life(at * 50, 3 + at) for at in range(20)]}
        all_lives: DataFrame | None = None
        for what, some in by.items():
            one = lives(spark, *some).selectExpr("*", f"'{what}' AS what")
            all_lives = one if all_lives is None else all_lives.unionByName(one)
        assert all_lives is not None
        df = all_lives.persist()
        rolled = rollup(df, by="what", window="1 second").persist()
        rounds = lives(spark, *played).selectExpr("*", "0L AS behind_ns", "1000000L AS added_ns", "0 AS round")
        self._stored = {
            "rollup": rolled,
            "report": report(rolled, by="what"),
            "windows": report(rolled, by="what", window="1 second"),
            "what_if": what_if(df, ["8ms", "50ms"], by="what"),
            "rounds": rounds_of(rounds),
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


@pytest.mark.long  # some twenty small jobs of Spark; the sentences are above
@pytest.mark.timeout(240)
def test_the_page_shows_played_operations_first_and_planned_operations_on_axes_of_their_own(
    spark: SparkSession, tmp_path: Path
) -> None:
    run = FewOperations(spark)
    html = page(run)
    assert html.index("This machine kept up") < html.index("The audit holds: 40 outcomes") < html.index("<table>")
    assert re.search(r"Played on 1 January 2026, 00:00:00 to 00:00:\d\d UTC\. This run began on 28 November", html)
    assert "2025, 14:05:00 UTC, on web1 (2 processors, 8 GiB): timerd 1.0." in html
    assert "<b>40</b>operations played" in html and "<b>holds</b>audit" in html and "a &lt;fast&gt; one" in html
    assert "Hot keys" not in html, "no key has two operations"
    assert re.search(r"<td>as it was</td>\s*<td[^>]*>2.50%<", html)
    drawn = re.findall(r"<svg.*?</svg>", html, re.DOTALL)
    # Planned operations have a colour of their own, which only one figure has.
    planned = [figure for figure in drawn if "series-2," in figure]
    assert len(planned) == 1 and "series-0," not in planned[0] and "series-1," not in planned[0]
    assert len(drawn) == 8 and all(figure.startswith('<svg role="img"') or 'role="img"' in figure for figure in drawn)
    assert not re.search(r"<script|<link|<img|src=|@import|url\(h", html), "nothing is loaded from outside"
    assert window_for(lives(spark, life(0, 5), life(7_200_000, 5))) == "30 seconds"
