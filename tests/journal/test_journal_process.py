"""The journal of a real daemon: kills, a file limit, a second daemon; and timerctl's commands on the journal."""

from __future__ import annotations

import grp
import json
import os
import random
import re
import resource
import signal
import stat
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from support.real.daemons import SMALL, Daemon
from support.real.patience import PATIENCE_S, eventually
from support.real.shell import command_of
from timerd_client import connect
from timerd_client.audit.journal import audit_journal
from timerd_shm.declare.journal import RowKind
from timerd_shm.declare.states import Outcome
from timerd_shm.host.paths import read_location
from timerd_shm.read.journal_reader import JournalReader

MakeDaemon = Callable[..., Daemon]


@pytest.fixture
def directory(runtime_dir: Path) -> Path:
    return runtime_dir / "j"


def flags(directory: Path, *more: str) -> tuple[str, ...]:
    return (*SMALL, f"--journal={directory}", "--journal-segment-size=64KiB", "--journal-buffer=1MiB", *more)


def told(directory: Path) -> list[tuple[bytes | None, Outcome]]:
    with JournalReader(directory) as reader:
        found = [
            (reader.text(row.record.key), Outcome(row.record.outcome))
            for row in reader.rows()
            if row.record.kind == RowKind.OUTCOME
        ]
    assert not reader.damage
    return found


def timerctl(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command_of(*arguments), capture_output=True, text=True, timeout=30, env={**os.environ, "COLUMNS": "80"}
    )


@pytest.mark.parametrize("kills", [2, pytest.param(8, marks=pytest.mark.long)])
def test_a_storm_of_kills_loses_no_row_and_writes_none_twice(
    make_daemon: MakeDaemon, directory: Path, rng: random.Random, kills: int
) -> None:
    daemon = make_daemon(*flags(directory, "--journal-level=events"))
    wanted: Counter[tuple[bytes, Outcome]] = Counter()
    unknown: set[bytes] = set()  # UNAVAILABLE after a slow start: the journal has them with any outcome, or not at all
    with connect(timeout=PATIENCE_S) as client:
        for storm in range(kills):
            waiting = []
            for number in range(150):
                key = f"{storm}/{number}"
                waiting.append((key, client.register(key, timeout=0.2 if number % 5 == 0 else 60)))
                if number % 5:
                    client.fire(key)
                if number == 20 + 20 * (storm % 4):
                    time.sleep(rng.random() * 0.01)
                    daemon.kill()
                    daemon.start()
            for key, operation in waiting:
                state = operation.result(timeout=2 * PATIENCE_S).state.name
                if state == "UNAVAILABLE":
                    unknown.add(key.encode())
                else:
                    wanted[key.encode(), Outcome[state]] += 1
    assert len(unknown) <= 30 * kills, "more operations are UNAVAILABLE than can fall due during the starts"
    eventually(lambda: len(told(directory)) >= 150 * kills - len(unknown))
    daemon.stop()
    rows = [(key or b"", outcome) for key, outcome in told(directory)]
    assert Counter(row for row in rows if row[0] not in unknown) == wanted
    assert len({key for key, _ in rows}) == len(rows)
    checked = audit_journal(directory)
    assert not checked.wrong, checked.wrong[:5]
    assert checked.outcomes == len(rows)


@pytest.mark.long
def test_at_its_file_limit_the_daemon_continues_reports_it_and_resumes_the_journal(
    make_daemon: MakeDaemon, directory: Path
) -> None:
    daemon = make_daemon(*flags(directory, "--journal-buffer=64KiB"))
    process = psutil.Process(daemon.pid)
    with connect() as client:

        def settle(name: str, count: int) -> None:
            batch = client.register_many([f"{name}/{number}" for number in range(count)], timeout=60)
            client.fire_many([f"{name}/{number}" for number in range(count)])
            assert all(outcome for outcome in batch.outcomes())

        settle("before", 100)
        eventually(lambda: len(told(directory)) == 100)
        process.rlimit(psutil.RLIMIT_FSIZE, (8192, resource.RLIM_INFINITY))
        for number in range(8):
            settle(f"full-{number}", 200)
        eventually(lambda: "is not written: File too large" in timerctl("errors", "--json").stdout)
        process.rlimit(psutil.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

        def resumes() -> bool:
            settle("after", 20)
            return (b"after/19", Outcome.COMPLETED) in told(directory)

        eventually(resumes)
    with JournalReader(directory) as reader:
        gaps = [row.record.rows for row in reader.rows() if row.record.kind == RowKind.GAP]
    assert gaps and sum(gaps) == daemon.stats()["counters"]["journal_rows_dropped"]


def test_a_second_daemon_on_the_same_directory_is_refused(make_daemon: MakeDaemon, directory: Path) -> None:
    first = make_daemon(*flags(directory))
    second = Daemon(first.paths.directory, *flags(directory), instance="second", start=False)
    assert second.spawn().wait(20) == 3
    assert f"is written by another daemon (instance default, pid {first.pid})" in second.log


@pytest.mark.long
def test_files_are_readable_by_the_user_alone_or_by_the_group(make_daemon: MakeDaemon, directory: Path) -> None:
    def mode(path: Path) -> int:
        return stat.S_IMODE(path.stat().st_mode)

    daemon = make_daemon(*flags(directory))
    eventually(lambda: any(directory.glob("*.segment")))
    assert (mode(directory), mode(directory / "holds")) == (0o700, 0o700)
    assert mode(next(directory.glob("*.segment"))) == 0o600
    daemon.stop()
    group = grp.getgrgid(os.getgid()).gr_name
    shared = directory.with_name("shared")
    daemon.flags = flags(shared, f"--unix-group={group}")
    daemon.start()
    eventually(lambda: any(shared.glob("*.segment")))
    assert (mode(shared), mode(shared / "holds")) == (0o750, 0o770)
    eventually(lambda: mode(next(shared.glob("*.segment"))) == 0o640)  # the thread makes it, then gives it to the group


@pytest.mark.long
def test_a_daemon_without_a_journal_leaves_no_link_to_one(make_daemon: MakeDaemon, directory: Path) -> None:
    daemon = make_daemon(*flags(directory))
    assert daemon.paths.journal.resolve() == directory
    daemon.stop()
    daemon.flags = SMALL
    daemon.start()
    refused = timerctl("journal", "tail")
    assert refused.returncode == 3
    assert "writes no journal: start it with --journal DIR" in refused.stderr
    assert timerctl("journal", "tail", "--directory", str(directory)).returncode == 0


@pytest.mark.long
def test_the_log_says_from_which_row_on_a_start_writes(make_daemon: MakeDaemon, directory: Path) -> None:
    """Formerly, the log of the first start named row 1 and not row 0, which an audit needs."""
    daemon = make_daemon(*flags(directory))
    daemon.stop()
    assert f"in {directory}, from row 0\n" in daemon.log
    daemon.start()
    daemon.stop()
    with JournalReader(directory) as reader:
        _, second = (row.number for row in reader.rows() if row.record.kind == RowKind.SEGMENT)
    assert f"in {directory}, from row {second}\n" in daemon.log


@pytest.fixture
def settled(make_daemon: MakeDaemon, directory: Path) -> Iterator[Path]:
    """A journal with a few outcomes, whose daemon runs."""
    make_daemon(*flags(directory, "--journal-level=events"))
    with connect(name="web-1") as client:
        for number in range(5):
            operation = client.register(f"order/{number}", timeout=60, id=f"id-{number}")
            client.fire(f"order/{number}", value=b"v")
            assert operation.result(timeout=PATIENCE_S)
        assert not client.register("a long key " * 20, timeout=0.01).result(timeout=PATIENCE_S)
        eventually(lambda: len(told(directory)) == 6)
        yield directory


@pytest.mark.long
def test_tail_fits_into_80_columns_and_shows_owners_and_durations(settled: Path) -> None:
    shown = timerctl("journal", "tail", "-n", "3")
    assert shown.returncode == 0, shown.stderr
    assert len(shown.stdout.splitlines()) == 3
    everything = timerctl("journal", "tail", "--from", "1:0").stdout
    assert "completed     order/4  after " in everything and "(web-1)" in everything
    assert "expired" in everything and "start " in everything
    assert not [line for line in everything.splitlines() if len(line) > 80]


@pytest.mark.long
def test_export_writes_json_lines_and_continues_where_it_ended(settled: Path, tmp_path: Path) -> None:
    first = timerctl("journal", "export", "--output", str(tmp_path / "rows.jsonl"))
    assert first.returncode == 0, first.stderr
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    outcome = next(row for row in rows if row["kind"] == "outcome")
    assert (outcome["outcome"], outcome["key"], outcome["owner"]) == ("COMPLETED", "order/0", "web-1")
    assert outcome["purgatory"] == "default" and len(outcome["id"]) == 32
    assert outcome["wait_ns"] == max(0, outcome["settled_ns"] - outcome["registered_ns"])
    assert {row["kind"] for row in rows} >= {"segment", "client", "register", "registered", "key", "event", "outcome"}
    place = first.stderr.split()[-1]
    again = timerctl("journal", "export", "--from", place)
    assert again.stdout == ""
    with connect() as client:
        client.fire_wait("order/9")
    eventually(lambda: "order/9" in timerctl("journal", "export", "--from", place).stdout)
    part = timerctl("journal", "export", "--from", rows[3]["offset"], "--to", rows[7]["offset"])
    assert [json.loads(line) for line in part.stdout.splitlines()] == rows[3:7]


@pytest.mark.long
def test_the_audit_says_how_much_it_has_seen_and_finds_a_missing_last_segment(
    make_daemon: MakeDaemon, directory: Path
) -> None:
    daemon = make_daemon(*flags(directory, "--journal-level=events"))
    with connect() as client:
        for number in range(300):
            client.register(f"k{number}", timeout=60)
            client.fire(f"k{number}")
        client.flush()
        eventually(lambda: len(told(directory)) == 300)
        running = timerctl("journal", "audit")
    assert re.search(r"^300 outcomes, 2 segments, complete to row [\d,]+$", running.stdout, re.M), running.stdout
    daemon.stop()
    ended = timerctl("journal", "audit", "--json")
    assert ended.returncode == 0, ended.stdout
    [arena] = json.loads(ended.stdout)["arenas"]
    assert (arena["outcomes"], arena["segments"], arena["waiting"], arena["ended"]) == (300, 2, 0, True)
    *_, last = sorted(directory.glob("*.segment"))
    last.unlink()
    beside_the_arena = timerctl("journal", "audit")
    assert beside_the_arena.returncode == 1 and "are missing at the end: the arena says" in beside_the_arena.stdout
    assert timerctl("destroy", "--yes").returncode == 0
    alone = timerctl("journal", "audit", "--directory", str(directory))
    assert alone.returncode == 1 and "the journal's end is not known" in alone.stdout
    assert "say that the end is open: --open-end" in alone.stdout
    assert "the journal's end" not in timerctl("journal", "audit", "--directory", str(directory), "--open-end").stdout


@pytest.mark.long
def test_an_audit_of_a_journal_without_files_fails_unless_it_has_just_begun(
    make_daemon: MakeDaemon, directory: Path, tmp_path: Path
) -> None:
    daemon = make_daemon(*flags(directory, "--journal-level=events"))
    assert timerctl("journal", "audit").returncode == 0, "a journal that has just begun fails"
    with connect() as client:
        for number in range(300):
            client.register(f"k{number}", timeout=60)
            client.fire(f"k{number}")
        client.flush()
        eventually(lambda: len(told(directory)) == 300)
    elsewhere = timerctl("journal", "audit", "--directory", str(tmp_path))
    assert (elsewhere.returncode, elsewhere.stdout) == (1, ""), "the audit of a wrong directory passes"
    assert f"there is no journal in {tmp_path}: it holds no *.segment" in elsewhere.stderr
    daemon.kill()
    for path in directory.glob("*.segment"):
        path.unlink()
    emptied = timerctl("journal", "audit")
    assert emptied.returncode == 1 and "are missing in all files: the arena says" in emptied.stdout
    assert timerctl("journal", "audit", "--json").returncode == 1
    assert timerctl("journal", "audit", "--directory", f"{directory}/../{directory.name}").returncode == 1


@pytest.mark.long
def test_tail_follows_until_it_is_interrupted(settled: Path) -> None:
    command = [sys.executable, "-u", "-m", "timerctl", "journal", "tail", "-f", "--json", "-n", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())
        with connect() as client:
            assert client.register("late", timeout=0.01).result(timeout=PATIENCE_S).state.name == "EXPIRED"
        found = ""
        while "EXPIRED" not in found:
            found = process.stdout.readline()
        assert json.loads(found)["key"] == "late"
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130


@pytest.mark.long
def test_destroy_removes_buffer_and_link_and_leaves_the_files(make_daemon: MakeDaemon, directory: Path) -> None:
    daemon = make_daemon(*flags(directory))
    buffer = read_location(daemon.paths).journal_buffer
    assert buffer.exists() and stat.S_IMODE(buffer.stat().st_mode) == 0o600
    daemon.stop()
    assert timerctl("destroy", "--yes").returncode == 0
    assert not buffer.exists() and not daemon.paths.journal.is_symlink()
    assert list(directory.glob("*.segment"))


@pytest.mark.long
def test_the_default_arena_and_buffer_fit_a_containers_shared_memory(runtime_dir: Path, directory: Path) -> None:
    script = 'mount -t tmpfs -o size=64m none /dev/shm && exec "$@"'
    inside = ["unshare", "--mount", "--map-root-user", "sh", "-c", script, "sh"]
    if subprocess.run([*inside, "true"], capture_output=True, timeout=30).returncode:
        pytest.skip("this machine does not allow a mount of a small /dev/shm")
    daemon = [*inside, sys.executable, "-m", "timerd", f"--journal={directory}", "--ephemeral", "--idle-exit=0"]
    run = subprocess.run(daemon, capture_output=True, text=True, timeout=30)
    assert run.returncode == 0, run.stderr
    assert f"the journal's buffer has {4096 + (4 << 20)} bytes" in run.stderr
    run = subprocess.run([*daemon, "--journal-buffer=16MiB"], capture_output=True, text=True, timeout=30)
    assert run.returncode == 4 and "lower --journal-buffer or --capacity" in run.stderr
