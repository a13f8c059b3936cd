"""docs/howto/from-redis.md, from-apscheduler.md and from-celery.md: their programs run as they stand there.

Only times are shortened. Workers are processes of `timerctl worker`.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

import timerd as td
from support.real.daemons import Daemon
from support.real.patience import PATIENCE_S, eventually
from support.real.shell import command_of
from support.real.trees import ROOT
from timerd_client.groups.schedule import Cron

BLOCK = re.compile(r"^```py\n# (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
Write = Callable[..., Path]


@pytest.fixture
def write(runtime_dir: Path) -> Write:
    """Writes a program of a page, with these words replaced. Returns its path."""
    (folder := runtime_dir / "app").mkdir()

    def write(page: str, name: str, *replaced: tuple[str, str]) -> Path:
        text = dict(BLOCK.findall((ROOT / "docs/howto" / page).read_text()))[name]
        for old, new in replaced:
            assert old in text, f"{page}: {name} has no {old!r}"
            text = text.replace(old, new)
        (folder / name).write_text(text)
        return folder / name

    return write


class Running:
    """A process, and what it prints."""

    def __init__(self, folder: Path, *command: str) -> None:
        self._path = folder / f"printed-{len(list(folder.glob('printed-*')))}"
        with self._path.open("wb") as printed:
            self.process = subprocess.Popen(
                command, cwd=folder, stdin=subprocess.PIPE, stdout=printed, stderr=subprocess.STDOUT
            )

    @property
    def printed(self) -> str:
        return self._path.read_text()

    def wait_for(self, text: str, times: int = 1) -> None:
        eventually(lambda: self.printed.count(text) >= times, f"{text!r} is not printed {times} times: {self._path}")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def enter(self) -> None:
        """The person presses Enter. Waits for the end."""
        assert self.process.stdin is not None
        self.process.communicate(b"\n", timeout=PATIENCE_S)


@contextmanager
def running(program: Path, *command: str) -> Iterator[Running]:
    """A process in the folder of that program, which is killed at the end. Without a command: the program itself."""
    made = Running(program.parent, *(command or (sys.executable, program.name)))
    try:
        yield made
    finally:
        made.kill()


def worker(program: Path, *flags: str) -> list[str]:
    return command_of("worker", program.stem, *flags)


def ran(program: Path, *arguments: str) -> str:
    """Run the program to its end. Returns its output."""
    command = [sys.executable, program.name, *arguments]
    done = subprocess.run(command, cwd=program.parent, capture_output=True, text=True, timeout=2 * PATIENCE_S)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr  # a slow daemon is logged there
    return done.stdout


# Redis ----------------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_job_waits_for_its_worker(daemon: Daemon, write: Write) -> None:
    program = write("from-redis.md", "jobs.py", ("60,", "0.2,"))
    ran(program, "7.png")
    with running(program, *command_of("worker", "jobs:jobs")) as one:
        one.wait_for("resized 7.png", 2)


@pytest.mark.long
def test_a_subscriber_gets_what_came_before_it(daemon: Daemon, write: Write) -> None:
    assert ran(write("from-redis.md", "room.py")) == "room/7 b'hello'\n"


@pytest.mark.long
def test_another_worker_ends_the_session_of_a_killed_one(daemon: Daemon, write: Write) -> None:
    program = write("from-redis.md", "sessions.py", ("900", "2"))
    serves = "import sessions; sessions.client.serve(sessions.sessions); input()"
    with running(program) as first:
        first.wait_for("True False")
        first.kill()
        assert "ended" not in first.printed
        with running(program, sys.executable, "-c", serves) as second:
            second.wait_for("ended session/9")


@pytest.mark.long
def test_a_session_that_is_due_while_no_worker_and_no_daemon_runs_ends_when_they_are_back(
    daemon: Daemon, write: Write
) -> None:
    program = write("from-redis.md", "sessions.py", ("900", "2"))
    with running(program) as first:
        first.wait_for("True False")
        begun = time.monotonic()
        first.kill()
        assert "ended" not in first.printed
    daemon.kill()
    while time.monotonic() < begun + 2.1:  # the session is due meanwhile
        time.sleep(0.05)
    daemon.start()
    serves = "import sessions; sessions.client.serve(sessions.sessions); input()"
    with running(program, sys.executable, "-c", serves) as second:
        second.wait_for("ended session/9")
        with td.connect(group="web", timeout=PATIENCE_S) as client:
            eventually(lambda: client.calls() == [], "the call is still there")
            assert client.dead_letters() == []
        assert second.printed.count("ended") == 1


def test_a_session_ends_at_its_logout(daemon: Daemon, write: Write) -> None:
    program = write("from-redis.md", "sessions.py")
    logs_out = "import sessions as s; s.login('9'); print(s.logout('9'), s.logout('9'), s.request('9'))"
    with running(program, sys.executable, "-c", logs_out) as one:
        one.wait_for("True False False")


@pytest.mark.long
def test_a_lock_is_free_when_its_holder_leaves_it_or_is_killed(daemon: Daemon, write: Write) -> None:
    program = write("from-redis.md", "lock.py", ("timeout=5", "timeout=15"))
    with running(program) as holder, running(program) as waiter:
        eventually(lambda: "mine" in holder.printed + waiter.printed)
        if "mine" in waiter.printed:
            holder, waiter = waiter, holder
        assert "mine" not in waiter.printed
        holder.enter()
        waiter.wait_for("mine")
        with running(program) as third:
            waiter.kill()
            third.wait_for("mine")
            with running(program) as fourth, td.connect() as client:
                assert client.cancel_wait("lock/report"), "a person breaks the lock"
                fourth.wait_for("mine")


@pytest.mark.long
def test_a_lock_that_is_not_free_in_time_raises(daemon: Daemon, write: Write) -> None:
    program = write("from-redis.md", "lock.py", ("timeout=5", "timeout=0.2"))
    with running(program) as holder:
        holder.wait_for("mine")
        with running(program) as late:
            late.wait_for("TimeoutError: report is locked")


# APScheduler ----------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_intervals_crons_and_dates(daemon: Daemon, write: Write) -> None:
    program = write("from-apscheduler.md", "tasks.py", ("seconds=60", "seconds=0.2"), ("seconds=30", "seconds=0.3"))
    with running(program, *worker(program)) as one, running(program, *worker(program)) as two:
        for each in (one, two):
            each.wait_for("serves")
        ran(program)
        eventually(lambda: "remind user 7" in one.printed + two.printed)
        eventually(lambda: (one.printed + two.printed).count("cleanup\n") >= 5)
        with td.connect(group="tasks") as client:
            (nightly,) = (call for call in client.calls() if call.name == "nightly")
    assert nightly.point is not None
    point = nightly.point.astimezone(ZoneInfo("Europe/Berlin"))
    assert point.weekday() < 5 and (point.hour, point.minute) == (3, 0)


def test_weekday_0_is_sunday_and_names_are_weekdays() -> None:
    for expression, weekdays in {"0 0 * * 0": {6}, "0 0 * * mon-fri": {0, 1, 2, 3, 4}}.items():
        cron, at, found = Cron(expression, ZoneInfo("UTC")), 0, set()
        for _ in range(10):
            at = cron.after(at)
            found.add(datetime.fromtimestamp(at / 1e9, UTC).weekday())
        assert found == weekdays


@pytest.mark.long
def test_a_slow_handler_of_a_schedule_does_not_overlap_and_knows_what_it_has_missed(
    daemon: Daemon, write: Write
) -> None:
    program = write("from-apscheduler.md", "late.py", ("seconds=1", "seconds=0.2"), ("sleep(2.5)", "sleep(0.5)"))
    with running(program, *worker(program, "--at-once", "2")) as one:
        one.wait_for("report", 4)
        one.wait_for("probe", 3)
    reports = [int(line.split()[1]) for line in one.printed.splitlines() if line.startswith("report ")]
    probes = [int(line.split()[1]) for line in one.printed.splitlines() if line.startswith("probe ")]
    assert max(reports[1:]) > 0 and set(probes) == {0}


@pytest.mark.long
@pytest.mark.parametrize("fails", [False, True])
def test_a_job_of_a_program_comes_again_until_it_is_removed(daemon: Daemon, write: Write, fails: bool) -> None:
    program = write("from-apscheduler.md", "feeds.py", ("retry(60)", "retry(0.1)"))
    if fails:
        text = program.read_text()
        line = '    print("polled", call.payload.decode(), flush=True)\n'
        assert line in text
        program.write_text(text.replace(line, f"{line}    raise ConnectionError\n"))
    for _ in range(2):
        assert ran(program, "add", "a") == "None\n"
    with running(program, *worker(program)) as one:
        one.wait_for("polled a", 3)
    with running(program, *worker(program)) as two:
        two.wait_for("polled a", 3)
        eventually(lambda: ran(program, "remove", "a") == "True\n")
        with td.connect(group="feeds") as client:
            assert client.calls() == []


# Celery ---------------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_tasks_are_tried_again_scheduled_and_revoked(daemon: Daemon, write: Write) -> None:
    program = write("from-celery.md", "tasks.py", ("seconds=60", "seconds=0.2"), ("backoff=1", "backoff=0.01"))
    assert ran(program, "7", "1999") == "True\n"
    with running(program, *worker(program)) as one:
        one.wait_for("charged 7 1999")
        ran(program, "8", "-1")
        one.wait_for("gave up after 4 a negative amount")
        one.wait_for("report", 3)
        with td.connect(group="workers") as client:
            eventually(lambda: [letter.name for letter in client.dead_letters()] == ["charge"])


@pytest.mark.long
def test_a_task_of_a_killed_worker_runs_in_another_one(daemon: Daemon, write: Write) -> None:
    program = write("from-celery.md", "tasks.py")
    text = program.read_text()
    line = '    print("charged", order["id"], order["cents"], flush=True)\n'
    assert line in text
    hangs = (
        '    print("begun", call.deliveries, flush=True)\n    import time\n    time.sleep(30 * (call.deliveries < 2))\n'
    )
    program.write_text(text.replace(line, hangs + line))
    with running(program, *worker(program)) as first:
        ran(program, "7", "1999")
        first.wait_for("begun 1")
        with running(program, *worker(program)) as second:
            second.wait_for("serves")
            os.kill(first.process.pid, signal.SIGKILL)
            second.wait_for("charged 7 1999")
            assert "begun 2" in second.printed


@pytest.mark.long
def test_an_album_is_made_of_the_results_of_its_parts(daemon: Daemon, write: Write) -> None:
    program = write("from-celery.md", "album.py")
    with running(program, *worker(program)) as one, running(program, *worker(program)) as two:
        for each in (one, two):
            each.wait_for("serves")
        for _ in range(2):
            assert ran(program, "9") == f"{[b'thumbnail of 9/%d' % number for number in range(3)]}\n"


@pytest.mark.long
def test_an_album_that_nobody_makes_is_an_error(daemon: Daemon, write: Write) -> None:
    program = write("from-celery.md", "album.py", ("timeout=30", "timeout=0.2"))
    with running(program, sys.executable, program.name, "9") as one:
        one.wait_for("OperationExpired")
