"""The whole pipeline with few operations: its figures, its page, and an interrupted run that continues."""

from __future__ import annotations

import json
import platform
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock, Mock
from xml.etree.ElementTree import fromstring

import pytest

from support.html import mistakes
from support.rig.journals import JournaledRig, numbered, settle
from support.spark.lives import life, lives
from timerd_client.audit.journal import OPEN_END, audit_journal
from timerd_shm.declare.errors import InvalidValueError
from timerd_shm.read.segment import JournalError, segment_path
from timerd_spark import report, rollup, what_if
from timerd_spark.__main__ import cause_of, main
from timerd_spark.pipeline import pipeline, plots
from timerd_spark.pipeline.machine import described
from timerd_spark.pipeline.options import Options
from timerd_spark.pipeline.page import page
from timerd_spark.pipeline.pipeline import Pipeline
from timerd_spark.pipeline.results import PLANNED, PLAYED

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOADTEST = (5_000_000, 500_000, 10_000.0, "seed", 1)  # the defaults; for a run with --journal they do not matter
TIMEOUTS = ("auto",)
NO_SESSION: Any = None  # for tests that need no session
SMALL = Options(None, 1_500, 600, 1_000.0, "seed", 1, "1 second", ("50ms", "200ms", "1s"), 2)


@pytest.mark.long  # its short form is the page of a journal without an operation, below
@pytest.mark.timeout(240)
def test_an_existing_journal_becomes_a_page(
    spark: SparkSession, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    rig = JournaledRig(tmp_path / "journal")
    settle(rig, rig.client(), *numbered(0, 10))
    rig.drop_journal()
    asked = SMALL._replace(journal=str(tmp_path / "journal"))
    run = Pipeline(tmp_path / "out", asked, lambda _: None)
    assert run.run(spark) == 1, "the journal's end is not known"
    html = (tmp_path / "out/report.html").read_text()
    assert "<b>10</b>operations recorded" in html and "journal's end is not known</b>audit" in html.replace(
        "&#x27;", "'"
    )
    (cause,) = run.state["steps"]["audit"]["causes"]
    assert cause == audit_journal(tmp_path / "journal").wrong[0].what == OPEN_END
    run.options = asked._replace(open_end=True)
    assert run._audit()["findings"] == 0
    assert not [warning for warning in recwarn if "legend" in str(warning.message)]


@pytest.mark.long
@pytest.mark.timeout(240)
def test_an_interrupted_run_continues_and_ends_with_a_page(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    first = Pipeline(tmp_path / "out", SMALL, said.append)
    (tmp_path / "out/journal").mkdir(parents=True)
    rig = JournaledRig(tmp_path / "out/journal/round=0")  # left by a round that was interrupted
    settle(rig, rig.client(), *numbered(0, 10))
    rig.drop_journal()

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(first, "_rollup", interrupted)
        first.run(spark)
    assert set(json.loads((tmp_path / "out/state.json").read_text())["steps"]) == {"play-0", "ingest"}
    said.clear()
    again = Pipeline(tmp_path / "out", SMALL, said.append)
    assert again.run(spark) == 0, "the audit of what was played finds nothing"
    assert said[0].startswith("[3/7] roll up, in windows of time: some "), "finished steps are not run again"
    counts = {row.what: row.n for row in again.stored("report").collect()}
    assert counts[PLAYED] == 600 and counts[PLANNED] == 900
    html = (tmp_path / "out/report.html").read_text()
    assert html.count("<svg") == 5 and "Over time" not in html, "the run was too short for figures over time"
    assert mistakes(html) == []
    assert re.search(r'<div class="fact \w+"><b>[\d.]+ ms</b>added by timerd, p99', html)
    assert "holds</b>audit" in html and "900 more operations are planned lives" in html
    assert f"on {platform.node()} (" in html and "PySpark 4" in html, "the page names the machine and the versions"
    assert not re.search(r"<script|<link|<img|src=|@import|url\(h", html), "nothing is loaded from outside"
    with pytest.raises(InvalidValueError, match="a run with another seed: give another --out"):
        Pipeline(tmp_path / "out", SMALL._replace(seed=2), said.append)


def test_a_journal_without_an_operation_has_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Pipeline(tmp_path, SMALL._replace(journal="<b>"), print)
    step = {"at": 1e9, "seconds": 1.0}
    run.state |= {"steps": {"rollup": step, "audit": step | {"findings": 0}}, "machine": described(None)}
    empty = MagicMock(collect=list)
    empty.orderBy.return_value = empty.where.return_value = empty.selectExpr.return_value = empty
    monkeypatch.setattr(run, "stored", lambda name: empty)
    html = page(run)
    assert "<b>0</b>operations" in html and "/&lt;b&gt;." in html and "No operation has settled" in html
    assert "<svg" not in html and "expired</div>" not in html


def test_a_journal_that_cannot_be_audited_has_the_other_steps_and_the_page_says_why(
    spark: SparkSession, small: Path, tmp_path: Path
) -> None:
    journal, said = tmp_path / "journal", list[str]()
    shutil.copytree(small, journal)
    segment_path(journal, 1).unlink()
    run = Pipeline(tmp_path / "out", SMALL._replace(journal=str(journal)), said.append)
    run.spark = spark
    found = run._audit()
    assert re.match(r"audit\(\): the journal of \S+ begins with row \d+, and an audit needs it", found["not_audited"])
    assert said == [f"      not audited: {found['not_audited']}"] and "findings" not in found


def test_a_round_without_journal_rows_is_not_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("workload", "loadtest"):
        monkeypatch.setattr(pipeline, name, Mock())
    monkeypatch.setattr(pipeline, "described", Mock(return_value={}))
    monkeypatch.setattr(pipeline, "kept_running", nullcontext)

    @contextmanager
    def full_disk(flags: list[str]) -> Iterator[Mock]:
        (tmp_path / "journal/round=0").mkdir()
        yield Mock()

    monkeypatch.setattr(pipeline, "private_daemon", full_disk)
    with pytest.raises(JournalError, match="holds 0 of the 600 operations that were played: the disk is full, or"):
        Pipeline(tmp_path, SMALL, print).run(NO_SESSION)


def test_a_page_that_was_removed_is_written_again_and_by_one_process_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "page", lambda run: "a page")
    said: list[str] = []
    run = Pipeline(tmp_path, SMALL, said.append)
    run.state["steps"] = {name: {"seconds": 1.0} for name in (step.name for step in run._steps())}
    with (
        pipeline.lock_directory(tmp_path),
        pytest.raises(InvalidValueError, match=f"another process writes into {tmp_path}"),
    ):
        run.run(NO_SESSION)
    assert said == []
    for removed, drawn in ((False, 1), (False, 1), (True, 2)):
        if removed:
            (tmp_path / "report.html").unlink()
        assert run.run(NO_SESSION) == 0 and (tmp_path / "report.html").read_text() == "a page"
        assert sum("draw, and write" in line for line in said) == drawn


def test_a_run_that_is_done_is_not_begun_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settle(rig := JournaledRig(tmp_path / "journal"), rig.client(), *numbered(0, 3))
    rig.end()
    asked = ["run", "--journal", str(tmp_path / "journal"), "--out", str(tmp_path / "out"), "--ops", "7"]
    (tmp_path / "out").mkdir()
    run = Pipeline(tmp_path / "out", Options(str(tmp_path / "journal"), *LOADTEST, "auto", TIMEOUTS, 2), print)
    run.state["steps"] = {step.name: {"seconds": 1.0} for step in run._steps()}
    run._write()
    assert main(asked) == 2 and "has a run of an older timerd: give another --out" in capsys.readouterr().err
    for step in run.state["steps"].values():
        step["at"] = 1e9
    (tmp_path / "out/report.html").write_text("a page")
    for found, status, said in ((None, 0, "no audit"), (0, 0, "the audit holds"), (2, 1, "the audit disagrees")):
        run.state["steps"]["audit"]["findings"] = found
        run._write()
        assert main(asked) == status and f"report.html: done before; {said}" in capsys.readouterr().out


def test_a_run_keeps_the_options_of_its_start(tmp_path: Path) -> None:
    run = Pipeline(tmp_path / "out", SMALL, print)
    with pytest.raises(AttributeError):
        run.run(NO_SESSION)
    with pytest.raises(InvalidValueError, match="a run with another rate"):
        Pipeline(tmp_path / "out", SMALL._replace(rate=5.0), print)
    for text in ("", "{", "[]", "null"):
        (tmp_path / "out/state.json").write_text(text)
        with pytest.raises(InvalidValueError, match=r"state.json is damaged: remove"):
            Pipeline(tmp_path / "out", SMALL, print)


def test_figures_show_names_literally_whatever_characters_they_have() -> None:
    names = ["$", "$x^$", "_hidden", "<script>alert(1)</script>", "a\0b", "\ud800\uffff", "]]>"]
    figure, axes = plots._axes("x", "y")
    for name in names:
        axes.plot([1, 2], [1, 2], label=plots._label({"key": name}, ["key"]))
    plots._finish(axes)
    drawn = fromstring(plots.svg(figure).replace("xlink:", ""))
    shown = [text.text for text in drawn.iter("{http://www.w3.org/2000/svg}text")][-len(names) :]
    assert shown == ["$", "$x^$", " _hidden", "<script>alert(1)</script>", "a\ufffdb", "\ufffd\ufffd", "]]>"]


def test_the_causes_in_an_error_of_spark_are_shown() -> None:
    said = "[STREAM_FAILED] Query terminated\nTraceback:\n  File x\na.JournalError: block 3 is damaged\n\tat a.B\n"
    assert cause_of(said) == "[STREAM_FAILED] Query terminated; a.JournalError: block 3 is damaged"
    said = "An error occurred\n: o.a.S: aborted.\n\tat x\nCaused by: java.io.IOException: No space left on device\n\tat"
    assert cause_of(said) == "An error occurred; java.io.IOException: No space left on device"


@pytest.mark.long  # its short form is the page of a journal without an operation
def test_figures_show_each_group_and_refuse_what_they_cannot_show(spark: SparkSession) -> None:
    rows = [life(at * 100, 5 + at, purgatory="ab"[at % 2]) for at in range(20)]
    df = lives(spark, *rows, life(50, 201, "expired", purgatory="a"), life(9, 3, "cancelled", purgatory="c"))
    rolled = rollup(df, by="purgatory")
    assert [line.get_label() for line in plots.waits(rolled, "latency", "purgatory").axes[0].lines] == ["a", "b"]
    heat = plots.heatmap(rolled.where("purgatory = 'a'"), "lateness", p99_ms=1.0).axes[0]
    assert [patch.get_label() for patch in heat.patches] == ["1 to 9 operations"] and heat.lines[0].get_ydata() == [
        1,
        1,
    ]
    curve = plots.what_if(what_if(df, ["8ms", "50ms", "1s"]), today=(100_000_000, 200_000_000)).axes[0]
    assert [len(line.get_xdata()) for line in curve.lines] == [2, 1, 2], "a line within the data, bounds beyond, today"
    assert [text.get_text() for text in curve.texts] == ["today: 100 ms to 200 ms"]
    assert [label.get_text() for label in curve.get_xticklabels()] == ["8", "50", "1000"]
    over_time = plots.over_time(report(df, window="1 second"), "timeout_ratio").axes[0]
    assert len(over_time.lines[0].get_xdata()) == 2
    later = lives(spark, *rows, life(9_000, 5, purgatory="a"))
    broken = plots.over_time(report(later, window="1 second"), ["latency_p50_ms", "latency_max_ms"]).axes[0]
    assert [line.get_linestyle() for line in broken.lines] == ["-", "--"]
    assert any(isnan(y) for y in broken.lines[0].get_ydata()), "a line is broken where windows are missing"
    text = plots.svg(plots.waits(rolled, "lateness"))
    assert text.startswith("<svg") and " height=" not in text.split(">", 1)[0] and "share that took longer" in text
    many = MagicMock(columns=["start", "end", "rate"])
    many.selectExpr().orderBy().limit().collect.return_value = [None] * 5_001
    asked = MagicMock(columns=["timeout_ns", "timeout_ratio", "timeout_ratio_low", "timeout_ratio_high", "beyond"])
    asked.select().orderBy().limit().collect.return_value = [None] * 5_001
    groups = rollup(lives(spark, *(life(at, 5, key=f"k{at}") for at in range(13))), by="key")
    calls: list[tuple[Callable[[], object], str]] = [
        (lambda: plots.waits(rolled, "speed"), "measure='speed'"),
        (lambda: plots.waits(df), "needs a rollup"),
        (lambda: plots.heatmap(df), "needs a rollup"),
        (lambda: plots.over_time(df, "rate"), "needs the column 'start'"),
        (lambda: plots.over_time(many, "rate"), "more than 5,000 rows: give report"),
        (lambda: plots.what_if(df), "needs the column 'timeout_ratio'"),
        (lambda: plots.what_if(asked), "more than 5,000 rows: select some"),
        (lambda: plots.waits(groups, by="key"), "more than 12 groups: select some"),
    ]
    for call, said in calls:
        with pytest.raises(InvalidValueError, match=said):
            call()


def test_the_command_refuses_senseless_arguments_before_it_starts_spark(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, said in (
        (["--played", "0"], "played=0"),
        (["--timeouts", "soon"], "timeouts='soon' is no duration"),
        (["--journal", str(tmp_path / "none")], "there is no journal in"),
        (["--profile", "steady"], "profile='steady'"),
        (["--timeouts", "0s"], "timeouts=['0s']: give 1 to"),
        (["--ops", "100", "--cores", "0"], "cores=0: give 1 to"),  # --ops 100 alone is no error: --played is 100 then
        (["--seed", str(1 << 63)], "seed=9223372036854775808"),
        (["--out", str(tmp_path / "out[1]")], "Spark reads [ as a pattern"),
        (["--ops", "0"], "ops=0: give 1 or more"),
        (["--memory", "lots"], "--memory='lots': give a size such as 2g"),
        (["--journal", str(tmp_path), "--out", str(tmp_path / "rt")], "is in the journal: give a directory of its own"),
    ):
        assert main(["run", "--out", str(tmp_path / "out"), *arguments]) == 2
        assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
