"""The whole pipeline with few operations; its figures and its page; an interrupted run that continues."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock
from xml.etree.ElementTree import fromstring

import pytest

from journals import JournaledRig, numbered, settle
from lives import life, lives
from timerd_shm.declare.errors import InvalidValueError
from timerd_shm.read.segment import JournalError
from timerd_spark import report, rollup, what_if
from timerd_spark.__main__ import cause_of, main
from timerd_spark.pipeline import pipeline, plots
from timerd_spark.pipeline.options import Options
from timerd_spark.pipeline.page import page
from timerd_spark.pipeline.pipeline import Pipeline
from timerd_spark.pipeline.results import PLANNED, PLAYED

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NO_SESSION: Any = None  # for tests that need no session
SMALL = Options(None, 1_500, 600, 1_000.0, "seed", 1, "1 second", ("50ms", "200ms", "1s"), 2)


@pytest.mark.long  # its short form is the page of a journal without an operation, below
@pytest.mark.timeout(240)
def test_a_journal_that_is_there_becomes_a_page(
    spark: SparkSession, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    rig = JournaledRig(tmp_path / "journal")
    settle(rig, rig.client(), *numbered(0, 10))
    rig.drop_journal()
    run = Pipeline(spark, tmp_path / "out", SMALL._replace(journal=str(tmp_path / "journal")), lambda _: None)
    assert run.run() == 0, "the audit finds nothing"
    assert "<b>10</b>operations" in (tmp_path / "out/report.html").read_text()
    assert not [warning for warning in recwarn if "legend" in str(warning.message)]


@pytest.mark.long
@pytest.mark.timeout(240)
def test_an_interrupted_run_continues_and_ends_with_a_page(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    first = Pipeline(spark, tmp_path / "out", SMALL, said.append)
    (tmp_path / "out/journal").mkdir(parents=True)
    rig = JournaledRig(tmp_path / "out/journal/round=0")  # left by a round that was interrupted
    settle(rig, rig.client(), *numbered(0, 10))
    rig.drop_journal()

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(first, "_rollup", interrupted)
        first.run()
    assert set(json.loads((tmp_path / "out/state.json").read_text())["steps"]) == {"play-0", "plan-600", "ingest"}
    said.clear()
    again = Pipeline(spark, tmp_path / "out", SMALL, said.append)
    assert again.run() == 0, "the audit of what was played finds nothing"
    assert said[0].startswith("[4/7]"), "finished steps are not run again"
    counts = {row.what: row.n for row in again.stored("report").collect()}
    assert counts[PLAYED] == 600 and counts[PLANNED] == 900
    html = (tmp_path / "out/report.html").read_text()
    assert html.count("<svg") == 4 and "holds</b>audit" in html and "<em>planned</em>" in html
    assert not re.search(r"<script|<link|<img|src=|@import|url\(h", html), "nothing is loaded from outside"
    with pytest.raises(InvalidValueError, match="a run with another seed: give another --out"):
        Pipeline(spark, tmp_path / "out", SMALL._replace(seed=2), said.append)


def test_a_journal_without_an_operation_has_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Pipeline(NO_SESSION, tmp_path, SMALL._replace(journal="<b>"), print)
    run.state["steps"] = {"audit": {"seconds": 1.0, "disagreements": 0}}
    empty = Mock(collect=list)
    empty.orderBy.return_value = empty
    monkeypatch.setattr(run, "stored", lambda name: empty)
    for figure in ("waits", "timeout_ratio", "what_if"):
        monkeypatch.setattr(plots, figure, lambda *_: plots._axes("x", "y")[0])
    html = page(run)
    assert "<b>0</b>operations" in html and "The journal &lt;b&gt;, read" in html and "timeout ratio</div>" not in html


def test_a_round_without_journal_rows_is_not_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("workload", "loadtest"):
        monkeypatch.setattr(pipeline, name, Mock())
    monkeypatch.setattr(pipeline, "kept_running", nullcontext)

    @contextmanager
    def full_disk(flags: list[str]) -> Iterator[Mock]:
        (tmp_path / "journal/round=0").mkdir()
        yield Mock()

    monkeypatch.setattr(pipeline, "private_daemon", full_disk)
    with pytest.raises(JournalError, match="holds 0 of the 600 operations that were played: the disk is full, or"):
        Pipeline(NO_SESSION, tmp_path, SMALL, print)._play(0, 600)


def test_a_page_that_was_removed_is_written_again_and_by_one_process_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "page", lambda run: "a page")
    said: list[str] = []
    run = Pipeline(NO_SESSION, tmp_path, SMALL, said.append)
    run.state["steps"] = {name: {"seconds": 1.0} for name, _, _ in run._steps()}
    with (
        pipeline.lock_directory(tmp_path),
        pytest.raises(InvalidValueError, match=f"another process writes into {tmp_path}"),
    ):
        run.run()
    assert said == []
    for removed, drawn in ((False, 1), (False, 1), (True, 2)):
        if removed:
            (tmp_path / "report.html").unlink()
        assert run.run() == 0 and (tmp_path / "report.html").read_text() == "a page"
        assert sum("draw, and write" in line for line in said) == drawn


def test_a_run_keeps_the_options_of_its_start(tmp_path: Path) -> None:
    run = Pipeline(NO_SESSION, tmp_path / "out", SMALL, print)
    with pytest.raises(AttributeError):
        run.run()
    with pytest.raises(InvalidValueError, match="a run with another rate"):
        Pipeline(NO_SESSION, tmp_path / "out", SMALL._replace(rate=5.0), print)
    for text in ("", "{", "[]", "null"):
        (tmp_path / "out/state.json").write_text(text)
        with pytest.raises(InvalidValueError, match=r"state.json is damaged: remove"):
            Pipeline(NO_SESSION, tmp_path / "out", SMALL, print)


def test_figures_show_names_literally_whatever_characters_they_have() -> None:
    names = ["$", "$x^$", "_hidden", "<script>alert(1)</script>", "a\0b", "\ud800\uffff", "]]>"]
    figure, axes = plots._axes("x", "y")
    for name in names:
        axes.plot([1, 2], [1, 2], label=plots._label({"key": name}, ["key"]))
    plots._finish(axes, ["key"])
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
    curve = plots.what_if(what_if(df, ["8ms", "50ms", "1s"])).axes[0]
    assert [len(line.get_xdata()) for line in curve.lines] == [2, 2], "one to the end of the data, dotted beyond it"
    assert [label.get_text() for label in curve.get_xticklabels()] == ["8", "50", "1000"]
    over_time = plots.timeout_ratio(report(df, window="1 second")).axes[0]
    assert len(over_time.lines[0].get_xdata()) == 2
    text = plots.svg(plots.waits(rolled, "lateness"))
    assert text.startswith("<svg") and " height=" not in text.split(">", 1)[0] and "share that took longer" in text
    calls: list[tuple[Callable[[], object], str]] = [
        (lambda: plots.waits(rolled, "speed"), "measure='speed'"),
        (lambda: plots.waits(df), "needs a rollup"),
        (lambda: plots.timeout_ratio(df), "needs the column 'start'"),
        (lambda: plots.what_if(df), "needs the column 'timeout_ratio'"),
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
        (["--ops", "100", "--cores", "0"], "cores=0: give 1 to"),  # by default no more than --ops are played
        (["--seed", str(1 << 63)], "seed=9223372036854775808"),
        (["--out", str(tmp_path / "out[1]")], "Spark reads [ as a pattern"),
    ):
        assert main(["run", "--out", str(tmp_path / "out"), *arguments]) == 2
        assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
