"""Files that neighbours plant in holds/ do not stop the journal's thread. If the thread ends, this is reported."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import timerd as td
import timerd.journal.files
import timerd.journal.writer
from support.fakes.descriptors import free_files
from support.real.daemons import Daemon
from support.real.patience import PATIENCE_S, eventually
from support.real.planted_files import PLANTED, within
from support.real.shell import Run
from support.rig.arenas import Memory
from support.rig.journals import SEGMENT_SIZE, JournaledRig, numbered, settle
from timerd.journal import blocks
from timerd_shm.declare.journal import JournalLevel
from timerd_shm.declare.layout import Region
from timerd_shm.read.holds import ENTRIES_MAX, HOLDS, HOLDS_MAX, TOO_MANY, UNREAD, hold, holds_of
from timerd_shm.read.segment import segments_of

MakeDaemon = Callable[..., Daemon]


ATTACKS: dict[str, Callable[[Path], object]] = PLANTED | {
    "5,000 digits": lambda path: path.write_text("9" * 5_000),
    "digits that are not ASCII": lambda path: path.write_text("\u0663"),
    "a number that no segment has": lambda path: path.write_text("9" * 25),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_planted_file_in_holds_is_left_out_and_the_others_count(tmp_path: Path, attack: str) -> None:
    (tmp_path / HOLDS).mkdir()
    for name in ("a-spark", "zz-spark"):
        hold(tmp_path, name, 17)
    ATTACKS[attack](tmp_path / HOLDS / "mallory")
    assert within(5, lambda: holds_of(tmp_path)) == [{"a-spark": 17, "zz-spark": 17}]


def test_a_file_that_vanishes_while_it_is_read_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / HOLDS).mkdir()
    for name in ("a", "b", "c"):
        hold(tmp_path, name, 17)
    opened = os.open

    def open_late(path: Any, *arguments: Any, **named: Any) -> int:
        if str(path) == str(tmp_path / HOLDS / "b"):
            os.unlink(path)
        return opened(path, *arguments, **named)

    monkeypatch.setattr(os, "open", open_late)
    assert holds_of(tmp_path) == {"a": 17, "c": 17}


@pytest.mark.long
@pytest.mark.parametrize("names", ["{}", ".{}"])
def test_of_very_many_files_a_bounded_number_is_looked_at_and_everything_counts_as_held(
    tmp_path: Path, names: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / HOLDS).mkdir()
    for number in range(ENTRIES_MAX + 100):  # more files would test the same, and take longer
        (tmp_path / HOLDS / names.format(number)).write_text("5\n")
    opens, me = 0, threading.get_ident()
    opened = os.open

    def counted(*arguments: Any, **named: Any) -> int:
        nonlocal opens
        opens += threading.get_ident() == me  # threads of earlier tests may open files, too
        return opened(*arguments, **named)

    monkeypatch.setattr(os, "open", counted)
    found = holds_of(tmp_path)
    assert found[TOO_MANY] == 0, "a hold that was not looked at may be for any segment"
    assert opens <= HOLDS_MAX and len(found) <= HOLDS_MAX + 1


@pytest.mark.parametrize("free", [0, 1], ids=["the directory", "a file"])
def test_holds_that_cannot_be_opened_for_want_of_descriptors_hold_all(tmp_path: Path, free: int) -> None:
    """If they counted as no holds, segments that a consumer needs would be removed."""
    (tmp_path / HOLDS).mkdir()
    hold(tmp_path, "spark", 17)
    with free_files(free):
        found = holds_of(tmp_path)
    assert found == {UNREAD: 0}
    assert holds_of(tmp_path) == {"spark": 17}


def test_a_hold_is_written_through_no_link_that_another_neighbour_has_laid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / HOLDS).mkdir()
    precious = tmp_path / "precious"
    precious.write_text("of the consumer's user")
    (tmp_path / HOLDS / f".spark.{os.getpid()}").symlink_to(precious)
    (tmp_path / HOLDS / "spark").symlink_to(precious)
    hold(tmp_path, "spark", 17)
    assert precious.read_text() == "of the consumer's user"
    assert holds_of(tmp_path) == {"spark": 17}


def test_the_thread_writes_and_removes_segments_with_any_file_in_holds(tmp_path: Path) -> None:
    rig = JournaledRig(
        tmp_path, level=JournalLevel.OUTCOMES, keep=SEGMENT_SIZE, hold_limit=0, capacity=512, quota_operations=512
    )
    client = rig.client()
    for number, attack in enumerate(ATTACKS.values()):
        attack(tmp_path / HOLDS / f"mallory-{number}")
    rig.journal.start()
    for turn in range(120):
        settle(rig, client, *numbered(turn * 40, 40))
        eventually(lambda: rig.files.written + 512 > rig.core.journal_rows, "the thread does not write")
    assert segments_of(tmp_path)[0] > 1, "nothing was removed"
    rig.journal.close()
    assert not rig.core.journal_dropped


# the thread's end -----------------------------------------------------------------------------------------------------


def errors(rig: JournaledRig) -> list[str]:
    records = Memory(rig.memory).all_records(Region.ERRORS)
    return [record.message.rstrip(b"\0").decode() for record in records if record.count]


def test_an_unexpected_error_is_reported_and_the_thread_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timerd.journal.writer, "RETRY_FIRST_S", 0.001)
    rig = JournaledRig(tmp_path / "journal", level=JournalLevel.OUTCOMES)
    client, left = rig.client(), 3
    write = blocks.write_blocks

    def failing(*arguments: object) -> int:
        nonlocal left
        left -= 1
        if left >= 0:
            raise ValueError("a line\nof a mistake")
        return write(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(timerd.journal.files, "write_blocks", failing)
    rig.journal.start()
    settle(rig, client, *numbered(0, 20))
    eventually(lambda: left < 0, "the thread did not try again")
    rig.journal.close()
    rig.tend()
    assert any("is not written: ValueError: a line of a mistake" in error for error in errors(rig))
    assert rig.arena.count("journal_failures") == 3
    assert rig.arena.count("journal_thread_dead") == 0


def test_a_thread_that_has_ended_is_an_error_that_stats_prometheus_and_the_log_show(
    make_daemon: MakeDaemon, runtime_dir: Path, run: Run
) -> None:
    flags = (f"--journal={runtime_dir}/journal",)
    patch = (
        "import timerd.journal.files as f; f.JournalFiles._begin_file = lambda *_: (_ for _ in ()).throw(SystemExit)"
    )
    daemon = make_daemon(*flags, patch=patch)
    with td.connect(timeout=PATIENCE_S) as client:
        assert client.register("k", timeout=0).result(PATIENCE_S).state is td.State.EXPIRED
        eventually(
            lambda: daemon.stats()["counters"]["journal_thread_dead"] == 1, "no counter shows the end of the thread"
        )
        assert client.fire_wait("k") == 0, "the daemon does not go on"
    said = "the thread that writes the journal has ended (SystemExit"
    assert said in daemon.log and "start the daemon again" in daemon.log
    assert "The journal is not written any more: its thread has ended" in run("stats")[1]
    assert 'timerd_journal_thread_dead{instance="default"} 1.0' in run("stats", "--prometheus")[1]
    assert said in " ".join(run("errors")[1].split())
    daemon.stop()
    daemon.patch = ""
    daemon.start()
    assert daemon.stats()["counters"]["journal_thread_dead"] == 0
    assert daemon.stats()["counters"]["journal_rows_dropped"] == 0, "rows that could wait in the buffer were dropped"
