"""timerctl: its exit statuses, the messages of its refusals, its help, and what it removes."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import timerd as td
from support.real.daemons import Daemon
from support.real.patience import PATIENCE_S, eventually, stop
from support.real.shell import LOOKING, Run, command_of
from support.rig.harness import Rig
from timerctl.exits import Exit
from timerd_client import connect
from timerd_shm.host.paths import ArenaLocation, InstancePaths, read_location


def test_destroy_finds_the_arena_of_a_daemon_that_was_killed_while_making_it(runtime_dir: Path, run: Run) -> None:
    paths = InstancePaths(runtime_dir, "default")
    arena = ArenaLocation("shm", paths.shm_name, 0).path
    paths.lock.touch()
    arena.write_bytes(bytes(4096))
    try:
        status, out, _ = run("destroy", "--yes")
        assert (status, arena.exists()) == (Exit.OK, False) and str(arena) in out
        assert run("destroy", "--yes")[0] == Exit.NO_INSTANCE
    finally:
        arena.unlink(missing_ok=True)


def test_destroy_asks_and_refuses_while_a_daemon_runs(
    daemon: Daemon, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    status, _, err = run("destroy", "--yes")
    assert status == Exit.PROBLEM and f"(pid {daemon.pid}): stop it first" in err
    daemon.stop()
    status, _, err = run("destroy")
    assert status == Exit.USAGE and "confirm with --yes" in err
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    for answer, ends in (("n", Exit.PROBLEM), ("", Exit.PROBLEM), ("y", Exit.OK)):
        asked: list[str] = []
        monkeypatch.setattr("builtins.input", lambda question, a=answer, q=asked: (q.append(question), a)[1])
        assert run("destroy")[0] == ends
        assert "Remove instance 'default' with every operation in /dev/shm/timerd-" in asked[0]
    left = {path.name for path in daemon.paths.directory.iterdir()}
    assert left == {"default.lock", "default.log"}
    assert run("destroy", "--yes")[0] == Exit.NO_INSTANCE


def test_destroy_removes_every_socket_of_a_killed_daemon(daemon: Daemon, run: Run) -> None:
    daemon.kill()
    assert all(path.is_socket() for path in daemon.paths.sockets)
    assert run("destroy", "--yes")[0] == Exit.OK
    assert {path.name for path in daemon.paths.directory.iterdir()} == {"default.lock", "default.log"}


@pytest.mark.long
@pytest.mark.parametrize("lock", ["is there", "was removed by hand"])
def test_destroy_leaves_an_arena_that_the_daemon_of_another_instance_uses(
    make_daemon: Callable[..., Daemon], runtime_dir: Path, run: Run, lock: str
) -> None:
    flag = f"--arena-file={runtime_dir / 'file'}"
    earlier = make_daemon(flag, instance="earlier")
    earlier.stop()
    daemon = make_daemon(flag, instance="now")
    files = read_location(daemon.paths).files
    if lock != "is there":
        files[-1].unlink()
    before = {path.name for path in runtime_dir.iterdir()}
    status, out, err = run("--instance", "earlier", "destroy", "--yes")
    assert (status, out) == (Exit.PROBLEM, ""), err
    assert f"uses the arena {files[0]}: stop it first" in err
    assert str(daemon.pid) in err or f"`fuser {files[-1]}`" in err
    assert before <= {path.name for path in runtime_dir.iterdir()}
    daemon.stop()
    assert run("--instance", "earlier", "destroy", "--yes")[0] == Exit.OK
    assert not any(path.exists() for path in files)


def test_destroy_is_refused_while_somebody_holds_the_lock_of_the_arena(daemon: Daemon, run: Run) -> None:
    location = read_location(daemon.paths)
    daemon.stop()
    with location.lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        status, _, err = run("destroy", "--yes")
        assert status == Exit.PROBLEM and f"`fuser {location.lock}`" in err
        assert location.path.exists()


def test_a_missing_instance_and_a_dead_daemon_are_reported_differently(dead: Rig, run: Run) -> None:
    for command in ("stats", "ops", "check", "destroy"):
        status, out, err = run("--instance", "nothing", command)
        assert (status, out) == (Exit.NO_INSTANCE, "")
        assert "no timerd instance 'nothing' in" in err and "autostart" not in err
    assert run("stats", "--instance", "nothing")[0] == Exit.NO_INSTANCE
    for command in ("fire", "fail", "forget", "cancel-for-key", "cancel"):
        status, _, err = run(command, "k")
        assert status == Exit.NO_DAEMON and "is not running: start it" in err


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("dance",),
        ("ops", "--limit", "0"),
        ("ops", "--due-within", "soon"),
        ("ops", "--state", "lost"),
        ("register", "k"),
        ("register", "k", "--timeout", "5 parsecs"),
        ("register", "k", "--timeout", "11000d"),
        ("register", "k", "--timeout", "1s", "--when", "most"),
        ("register", "--reach", "k", "--timeout", "1s"),
        ("fire",),
        ("fire", "k", "--amount", "-1"),
        ("stats", "--instance", "NOT A NAME"),
        ("stats", "--watch", "nan"),
        ("stats", "--watch", "inf"),
        ("ops", "--due-within", "9" * 400),
        ("register", "k", "--timeout", "9" * 400),
        ("register", "k", "--timeout", "1s", "--when", "at-least:99"),
        ("register", "k", "--timeout", "1s", "--when", "total:" + "9" * 5000),
        ("register", "--reach", "k=" + "9" * 5000, "--timeout", "1s"),
    ],
)
def test_a_wrong_command_line_is_refused(run: Run, arguments: tuple[str, ...]) -> None:
    status, out, err = run(*arguments)
    assert (status, out) == (Exit.USAGE, "")
    assert err


@pytest.mark.parametrize(
    ("arguments", "least", "most"),
    [
        (("fire", "k", "--amount", "{}"), 1, (1 << 64) - 1),
        (("fire", "k", "--limit", "{}"), 1, (1 << 32) - 1),
        (("fail", "k", "--code", "{}"), 0, (1 << 32) - 1),
        (("advance", "k", "{}"), 0, (1 << 64) - 1),
        (("register", "--reach", "k={}", "--timeout", "1s"), 0, (1 << 64) - 1),
        (("keys", "--limit", "{}"), 1, 100_000),
        (("ops", "--limit", "{}"), 1, 100_000),
    ],
)
def test_an_impossible_number_is_refused_with_its_limits(
    run: Run, arguments: tuple[str, ...], least: int, most: int
) -> None:
    for wrong in (least - 1, most + 1, "1.5", "many", "\u0663", "9" * 5000):
        status, _, err = run(*(argument.format(wrong) for argument in arguments))
        assert status == Exit.USAGE
        assert f"is not a whole number from {least} to {most}" in err or "expected" in err, err
    for right in (least, most):
        assert run(*(argument.format(right) for argument in arguments))[0] == Exit.NO_INSTANCE


def test_the_version_is_that_of_timerd(run: Run) -> None:
    assert run("--version") == (Exit.OK, f"timerctl {td.__version__}\n", "")


COMMANDS = (
    *LOOKING,
    *(
        "explain",
        "ping",
        "register",
        "fire",
        "advance",
        "fail",
        "cancel-for-key",
        "forget",
        "cancel",
        "reschedule",
        "destroy",
    ),
    *("load", "journal", "journal tail", "journal export"),
)


def test_help_teaches_with_examples_and_lists_the_exit_statuses(run: Run) -> None:
    status, out, _ = run("--help")
    assert status == Exit.OK
    for member in Exit:
        assert f"  {member.value:3}  " in out
    assert "examples:" in out and "timerctl stats --watch" in out
    for command in COMMANDS:
        assert "examples:" in run(*command.split(), "--help")[1], command


def test_the_error_of_a_value_that_begins_with_a_hyphen_says_how_to_write_it(run: Run) -> None:
    status, _, err = run("register", "k", "--timeout", "-5s")
    assert status == Exit.USAGE
    assert err.endswith("--timeout: expected one argument; a value that begins with '-' is written --timeout=VALUE\n")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [(("stat",), "stats"), (("cancel-key", "k"), "cancel-for-key"), (("journal", "tial"), "tail"), (("zzz",), "")],
)
def test_a_typing_error_is_answered_with_a_suggestion(run: Run, typed: tuple[str, ...], meant: str) -> None:
    status, _, err = run(*typed)
    assert status == Exit.USAGE
    assert err.endswith(f": did you mean {meant!r}?\n") if meant else "did you mean" not in err


def test_the_error_of_a_word_too_many_names_the_help(run: Run) -> None:
    status, _, err = run("ops", "77")
    assert status == Exit.USAGE
    assert err.endswith("unrecognized arguments: 77; `timerctl COMMAND --help` lists what a command takes\n")


@pytest.mark.parametrize("action", [("tail",), ("tail", "-f"), ("export",), ("audit",), ("audit", "--open-end")])
def test_a_directory_without_a_journal_is_refused(run: Run, tmp_path: Path, action: tuple[str, ...]) -> None:
    status, out, err = run("journal", *action, "--directory", str(tmp_path))
    assert (status, out) == (Exit.PROBLEM, "")
    assert f"there is no journal in {tmp_path}: it holds no *.segment" in err


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_fits_into_80_columns(run: Run, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    status, out, _ = run(*command.split(), "--help")
    assert status == Exit.OK
    assert [line for line in out.splitlines() if len(line) > 80] == []


@pytest.mark.parametrize("bucket", ["9:9", "0:128", "x", "1", "1:", "-1:0", "0:" + "9" * 5000])
def test_an_impossible_bucket_is_refused(dead: Rig, run: Run, bucket: str) -> None:
    status, out, err = run("ops", f"--bucket={bucket}")
    assert (status, out) == (Exit.USAGE, "")
    assert "levels are 0 to" in err


def test_an_unreadable_file_is_a_wrong_command_line(run: Run, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent"):
        status, out, err = run("check", "--file", str(path))
        assert (status, out) == (Exit.USAGE, "")
        assert err.startswith(f"timerctl: --file {path} cannot be read: ") and "Errno" not in err


def test_a_device_is_no_arena(run: Run) -> None:
    status, out, err = run("check", "--file", "/dev/null")
    assert (status, out) == (Exit.USAGE, "")
    assert err == "timerctl: --file /dev/null cannot be read: it is no plain file\n"


@pytest.mark.parametrize("content", [b"", b"# notes\n", bytes(100_000), b"# notes\n" * 10_000])
def test_a_file_that_is_no_arena_is_refused_as_such(run: Run, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "notes").write_bytes(content)
    status, out, err = run("check", "--file", str(tmp_path / "notes"))
    assert (status, out) == (Exit.PROBLEM, "")
    assert f"{tmp_path}/notes is no arena" in err and "retry" not in err


@pytest.mark.long
def test_a_full_disk_is_reported(dead: Rig) -> None:
    with open("/dev/full", "w") as full:
        ended = subprocess.run(command_of("ops"), stdout=full, stderr=subprocess.PIPE, text=True)
    assert ended.returncode == Exit.PROBLEM
    assert ended.stderr == "timerctl: No space left on device\n"


@pytest.mark.long
def test_arguments_that_the_client_refuses_are_a_wrong_command_line(daemon: Daemon, run: Run) -> None:
    for arguments in (
        ("fire", ""),
        ("fire", "x" * 256),
        ("fire", "k", "--value", "x" * 65_537),
        ("fire", "k", "--purgatory", "NOT A NAME"),
        ("register", "--timeout", "1s"),
        ("register", "k", "k", "--timeout", "1s"),
        ("register", "k", "--reach", "k=1", "--timeout", "1s"),
        ("register", *map(str, range(65)), "--timeout", "1s"),
        ("register", "k", "--timeout", "1s", "--id", "x" * 256),
        ("register", "k", "--timeout", "1s", "--if-exists", "keep"),
    ):
        status, out, err = run(*arguments)
        assert (status, out) == (Exit.USAGE, ""), arguments
        assert err.startswith("timerctl: ")


@pytest.mark.long
def test_keys_and_ids_that_are_not_text_are_read_and_shown(daemon: Daemon) -> None:
    key = b"\xff\n\x1b[31m \xe6\xbc\xa2"
    timerctl: list[str | bytes] = [sys.executable, "-m", "timerctl"]
    with connect() as client:
        operation = client.register_wait(key, timeout=600, id=b"\xff")
        for encoding, written in (("utf-8", key[-3:]), ("ascii", b"\\u6f22")):
            environment = {**os.environ, "PYTHONIOENCODING": encoding}
            shown = subprocess.run([*timerctl, "keys"], capture_output=True, check=True, env=environment).stdout
            assert b"\\xff\\n\\x1b[31m " + written in shown
        again: list[str | bytes] = [*timerctl, "register", "k", "--timeout", "1s", "--id", b"\xff"]
        refused = subprocess.run(again, capture_output=True)
        assert (refused.returncode, refused.stderr) == (Exit.PROBLEM, b"")
        assert refused.stdout.startswith(b"failed")
        assert subprocess.run([*timerctl, "fire", key, "--value", b"\xfe"]).returncode == Exit.OK
        assert operation.result(PATIENCE_S).value == b"\xfe"


@pytest.mark.long
def test_a_daemon_that_does_not_answer_counts_as_no_daemon(daemon: Daemon, run: Run) -> None:
    stop(daemon.pid)
    try:
        status, _, err = run("fire", "k")
        assert status == Exit.NO_DAEMON
        assert "does not answer" in err and "autostart" not in err
        said = f"The daemon is stopped, and nothing changes until it goes on: kill -CONT {daemon.pid}"
        eventually(lambda: said in run("stats")[1])
        for command in ("ops", "keys", "calls", "clients", "errors"):
            assert said in run(command)[1] and json.loads(run(command, "--json")[1])["stopped"] is True
        assert said in run("explain", "0.1")[1]
        assert json.loads(run("stats", "--json")[1])["stopped"] is True
    finally:
        os.kill(daemon.pid, signal.SIGCONT)
    eventually(lambda: json.loads(run("stats", "--json")[1])["stopped"] is False)


@pytest.mark.long
def test_a_command_whose_output_is_cut_off_says_nothing_and_has_a_status_of_its_own(dead: Rig) -> None:
    """The status is not that of success: `timerctl journal audit | head` may have cut off findings."""
    reading, writing = os.pipe()
    os.close(reading)
    command = command_of("ops")
    ended = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (Exit.CUT_OFF, "")
