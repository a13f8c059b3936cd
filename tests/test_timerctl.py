"""timerctl: what it shows of a dead daemon's arena, what it does with a living daemon, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import timerd as td
from daemons import Daemon
from damage import LONG_KEY, Pen, busy_rig
from harness import Rig
from model import Key, Register
from patience import eventually
from timerd_client import connect
from timerd_client.timerctl import main
from timerd_client.timerctl.exits import Exit
from timerd_client.timerctl.table import Column, Table, grid
from timerd_client.timerctl.text import columns_of, due_in, duration_ns, plain, size, span
from timerd_shm.counters import DAEMON_COUNTERS, PURGATORY_COUNTERS
from timerd_shm.errors import ErrorCode
from timerd_shm.layout import OpState, Region
from timerd_shm.limits import LEASE_NS, NO_DEADLINE
from timerd_shm.reader import ArenaReader
from timerd_shm.rundir import ArenaPlace, InstancePaths, boot_id, write_place

S = 10**9
LOOKING = ("stats", "ops", "keys", "clients", "errors", "check")


@pytest.fixture
def rig() -> Rig:
    """An arena in which everything is in use, of this boot."""
    rig = busy_rig()
    rig.core.log_error(ErrorCode.MALFORMED, b"a frame of 3 bytes from \x1b[31m nobody", 1_700_000_000 * S)
    rig.core.log_error(ErrorCode.MALFORMED, b"a frame of 3 bytes from \x1b[31m nobody", 1_700_000_060 * S)
    Pen(rig.memory).header("boot_id", boot_id())
    return rig


@pytest.fixture
def dead(rig: Rig, runtime_dir: Path) -> Rig:
    """That arena as the default instance, whose daemon is dead."""
    bury(rig, runtime_dir)
    return rig


def bury(rig: Rig, directory: Path) -> None:
    """Write the bench's arena where timerctl finds it."""
    (directory / "arena").write_bytes(rig.memory)
    write_place(InstancePaths(directory, "default"), ArenaPlace("file", str(directory / "arena"), 1))


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """timerctl in this process: (exit status, output, error output)."""

    def call(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        try:
            status = main(arguments)
        except SystemExit as end:
            status = int(end.code or 0)
        out, err = capsys.readouterr()
        return status, out, err

    return call


def json_of(run: Run, *arguments: str) -> Any:
    status, out, err = run(*arguments, "--json")
    assert status == Exit.OK, err
    return json.loads(out)


# a dead daemon's arena -----------------------------------------------------------------------------------------------


def test_stats_has_what_others_rely_on(dead: Rig, run: Run) -> None:
    stats = json_of(run, "stats")
    assert (stats["instance"], stats["alive"], stats["uptime_s"], stats["pid"]) == ("default", False, None, 0)
    capacity = stats["capacity"]
    for name in ("ops", "keys", "watchers", "payload_bytes", "clients", "ring_events"):
        assert 0 < capacity[name]["used"] <= capacity[name]["limit"], name
    assert capacity["ops"] == {"used": 9, "limit": 64}
    assert capacity["ring_events"] == {"used": 5, "limit": 16}
    assert capacity["ring_span_s"] >= 0
    assert set(stats["counters"]) == {counter.name for counter in PURGATORY_COUNTERS + DAEMON_COUNTERS}
    counters = stats["counters"]
    ended = sum(counters[name] for name in ("completed", "expired", "cancelled", "failed"))
    assert counters["registered"] == counters["pending"] + ended == 24
    assert (counters["pending"], counters["completed"], counters["expired"]) == (7, 2, 15)
    assert stats["purgatories"]["default"]["counters"]["pending"] == 7
    for histograms in (stats["histograms"], stats["purgatories"]["default"]["histograms"]):
        assert set(histograms["expiry_lateness_ns"]) >= {"count", "p50", "p99", "p999", "max"}
        assert histograms["expiry_lateness_ns"]["count"] == 15
        assert histograms["wait_ns"]["count"] == 17


def test_counters_of_several_purgatories_add_up(dead: Rig, run: Run, runtime_dir: Path) -> None:
    fetch = dead.core.purgatory(b"fetch")
    dead.do(dead.clients[0], Register((Key(b"k"),), purgatory=fetch))
    bury(dead, runtime_dir)
    stats = json_of(run, "stats")
    assert [stats["purgatories"][name]["counters"]["pending"] for name in ("default", "fetch")] == [7, 1]
    assert stats["counters"]["pending"] == 8
    out = run("stats")[1]
    assert "\nfetch " in out and "(all)" in out
    assert [row["purgatory"] for row in json_of(run, "ops", "--purgatory", "fetch")] == ["fetch"]


@pytest.mark.parametrize("command", LOOKING)
def test_looking_works_when_the_daemon_is_dead_and_says_so(dead: Rig, run: Run, command: str) -> None:
    status, out, err = run(command)
    assert (status, err) == (Exit.OK, "")
    assert command == "check" or "is not running" in out, out


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("command", [*LOOKING, "ops --state all", "ops --bucket"])
def test_output_fits_the_width_and_is_plain(
    dead: Rig, run: Run, monkeypatch: pytest.MonkeyPatch, command: str, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    first, second = run(*command.split())[1], run(*command.split())[1]
    lines = first.splitlines()
    assert [len(line) for line in lines if len(line) > width] == []
    assert [line for line in lines if line != line.rstrip()] == []
    assert "\x1b" not in first
    if command in ("keys", "errors", "stats"):
        # The same again, but for how far the ring reaches back, which moves with the clock.
        moves = "The event ring reaches back"
        assert [line for line in lines if moves not in line] == [
            line for line in second.splitlines() if moves not in line
        ]


def test_operations_are_filtered(dead: Rig, run: Run) -> None:
    pending = json_of(run, "ops")
    assert len(pending) == 7
    assert {row["state"] for row in pending} == {"pending"}
    settled = json_of(run, "ops", "--state", "settled")
    assert [row["state"] for row in settled] == ["completed", "completed"]
    assert len(json_of(run, "ops", "--state", "all")) == 9
    assert len(json_of(run, "ops", "--client", "1")) == 1
    assert len(json_of(run, "ops", "--key", "k1")) == 3
    assert json_of(run, "ops", "--key", "k2")[0]["condition"] == "total, 98 to go"
    assert json_of(run, "ops", "--purgatory", "other") == []
    assert len(json_of(run, "ops", "--limit", "2")) == 2
    row = next(row for row in pending if row["client"] == 0)
    assert [key["key"] for key in row["keys"]][1:] == ["offset", LONG_KEY.decode()]
    assert row["condition"] == "all"
    assert row["satisfied"] == 1
    text = run("ops", "--limit", "2")[1]
    assert "There are more: raise --limit (2)." in text


def test_operations_that_are_due_soon_are_found(dead: Rig, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic_ns", lambda: dead.now_ns)
    assert len(json_of(run, "ops", "--due-within", "100ms")) == 3  # 1, 50 and 64 ms
    assert len(json_of(run, "ops", "--due-within", "1h")) == 7
    overdue = json_of(run, "ops", "--due-within", "1ms")
    assert [row["due"] for row in overdue] == ["1.00 ms"]


def test_buckets_are_listed_and_opened(dead: Rig, run: Run) -> None:
    buckets = json_of(run, "ops", "--bucket")
    assert sum(bucket["count"] for bucket in buckets) == 7
    opened = [row for bucket in buckets for row in json_of(run, "ops", "--bucket", bucket["bucket"])]
    assert sorted(row["op"] for row in opened) == sorted(row["op"] for row in json_of(run, "ops"))
    assert all(row["bucket"] in {bucket["bucket"] for bucket in buckets} for row in opened)
    with ArenaReader.from_bytes(dead.memory) as reader:
        due = {reader.ops[row["op"] & 0xFFFF_FFFF].deadline_ns // 10**6 for row in opened}
    for bucket in buckets:
        assert any(bucket["first_tick"] <= tick < bucket["first_tick"] + bucket["ticks"] for tick in due), bucket
    for wrong in ("7:0", "0:128", "x", "1:"):
        status, _, err = run("ops", "--bucket", wrong)
        assert status == Exit.USAGE and "levels are 0 to 6, indexes 0 to 127" in err


def test_keys_show_watchers_and_watermarks(dead: Rig, run: Run) -> None:
    keys = {row["key"]: row for row in json_of(run, "keys")}
    assert set(keys) == {"k0", "k1", "k2", "offset", LONG_KEY.decode()}
    assert (keys["offset"]["watermark"], keys["offset"]["watermark_watchers"]) == (3, 6)
    assert (keys["k0"]["event_watchers"], keys["k0"]["watermark"]) == (4, None)
    assert keys[LONG_KEY.decode()]["watchers"] == 0, "satisfied for all"
    assert [row["key"] for row in json_of(run, "keys", "--match", "k?", "--sort", "key")] == ["k0", "k1", "k2"]
    assert json_of(run, "keys", "--limit", "1")[0]["key"] == "offset"
    assert "4 more: raise --limit (1)." in run("keys", "--limit", "1")[1]


def test_clients_show_what_they_hold(dead: Rig, run: Run) -> None:
    alice, bob = json_of(run, "clients")
    assert (alice["name"], alice["pending"], alice["orphans"]) == ("client-1", 6, "cancel")
    assert (bob["pending"], bob["backlog"], bob["answers"], bob["watermarks"]) == (1, 2, 3, 1)
    assert alice["pid"] is None and not alice["ended"] and alice["command"] is None
    assert (alice["state"], alice["group"], alice["lease_ns"], alice["silent_ns"]) == ("live", None, LEASE_NS, 0)


def test_clients_show_who_is_silent_who_is_dead_and_what_group_they_are_of(runtime_dir: Path, run: Run) -> None:
    rig = Rig()
    Pen(rig.memory).header("boot_id", boot_id())
    member, gone = (rig.client() for _ in range(2))
    group = rig.core.group(b"workers")
    rig.core.open_client(b"m" * 16, b"h" * 16, name=b"member", now_ns=rig.now_ns, group=group, listens=True)
    rig.core.silence(member.slot, rig.now_ns)
    rig.core.set_silent_ns(member.slot, 16 * S)
    rig.core.close_client(gone.slot, rig.now_ns)
    rig.turn()
    bury(rig, runtime_dir)
    silent, dead, workers = json_of(run, "clients")
    assert (silent["state"], silent["silent_ns"], silent["died_ns_ago"]) == ("silent", 16 * S, None)
    assert (dead["state"], dead["died_ns_ago"] is None, dead["pending"]) == ("tombstone", False, 0)
    assert (workers["state"], workers["group"], workers["listens"]) == ("live", "workers", True)
    titles, first, second, third = run("clients")[1].splitlines()[-4:]
    assert titles.split()[3:9] == ["state", "group", "lease", "silent", "pending", "backlog"]
    assert "16.0 s" in first and "tombstone" in second and "workers" in third


def test_errors_are_counted_and_harmless_to_print(dead: Rig, run: Run) -> None:
    (row,) = json_of(run, "errors")
    assert (row["error"], row["count"]) == ("MALFORMED", 2)
    assert (row["first"], row["last"]) == ("2023-11-14T22:13:20Z", "2023-11-14T22:14:20Z")
    assert row["message"] == r"a frame of 3 bytes from \x1b[31m nobody"


def test_check_says_what_is_wrong_and_fails(dead: Rig, run: Run, runtime_dir: Path) -> None:
    status, out, _ = run("check")
    assert status == Exit.OK and out.startswith("Sound: 9 operations checked in ")
    Pen(dead.memory).set(Region.CLIENTS, 0, "pending", 77)
    bury(dead, runtime_dir)
    status, out, _ = run("check")
    assert status == Exit.PROBLEM
    assert out.splitlines()[0] == "client 0 says pending=77, and it is 6"
    status, out, _ = run("check", "--json", "--file", str(runtime_dir / "arena"))
    found = json.loads(out)
    assert (status, found["sound"], found["truth"], len(found["derived"])) == (Exit.PROBLEM, False, [], 1)


def test_what_a_killed_turn_left_is_said_and_is_no_error(dead: Rig, run: Run, runtime_dir: Path) -> None:
    pen = Pen(dead.memory)
    pen.set(Region.CLIENTS, 0, "pending", 77)
    pen.header("turn", 7)
    bury(dead, runtime_dir)
    status, out, _ = run("check")
    assert status == Exit.OK
    assert "killed in the middle of a turn. 1 derived things" in out
    assert "killed in the middle of a turn" in run("stats")[1]
    with ArenaReader.from_bytes(dead.memory) as reader:
        pending = next(index for index, op in enumerate(reader.ops.used()) if op.state == OpState.PENDING)
    pen.set(Region.OPS, pending, "keys", 0)
    bury(dead, runtime_dir)
    assert run("check")[0] == Exit.PROBLEM


def test_stats_for_prometheus_is_what_its_own_parser_reads(rig: Rig, runtime_dir: Path, run: Run) -> None:
    rig.core.purgatory(b"fetch")
    bury(rig, runtime_dir)
    stats = json_of(run, "stats")
    status, out, _ = run("stats", "--prometheus")
    assert status == Exit.OK
    families = list(text_string_to_metric_families(out))
    names = [family.name for family in families]
    assert len(names) == len(set(names)), "a metric is declared twice"
    samples = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }
    assert len(samples) == sum(len(family.samples) for family in families), "two samples are the same series"
    assert {family.type for family in families} == {"counter", "gauge", "histogram"}
    default = (("instance", "default"), ("purgatory", "default"))
    counters = stats["purgatories"]["default"]["counters"]
    assert samples["timerd_registered_total", default] == counters["registered"] > 0
    assert samples["timerd_pending", default] == counters["pending"] > 0
    assert samples["timerd_pending", (("instance", "default"), ("purgatory", "fetch"))] == 0
    assert samples["timerd_turns_total", (("instance", "default"),)] == stats["counters"]["turns"]
    assert samples["timerd_busy_seconds_total", (("instance", "default"),)] == stats["counters"]["busy_ns"] / S
    assert samples["timerd_up", (("instance", "default"),)] == 0
    wait = stats["purgatories"]["default"]["histograms"]["wait_ns"]
    assert samples["timerd_wait_seconds_count", default] == wait["count"] > 0
    buckets = [
        (float(dict(labels)["le"]), value)
        for (name, labels), value in samples.items()
        if name == "timerd_wait_seconds_bucket" and ("purgatory", "default") in labels
    ]
    assert [value for _, value in sorted(buckets)] == sorted(value for _, value in buckets), "not cumulative"
    assert dict(buckets)[float("inf")] == wait["count"]
    assert sum(value for le, value in buckets if le * S < wait["p50"] / 2) < wait["count"], "p50 is in a higher bucket"
    assert run("stats", "--prometheus", "--watch")[0] == Exit.USAGE


def test_stats_can_be_watched(dead: Rig, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    naps: list[float] = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", nap)
    status, out, _ = run("stats", "--watch", "0.5", "--json")
    assert status == Exit.OK
    assert [json.loads(line)["instance"] for line in out.splitlines()] == ["default"] * 3
    assert naps == [0.5] * 3


# a living daemon -----------------------------------------------------------------------------------------------------


def in_background(*arguments: str) -> subprocess.Popen[str]:
    """timerctl as a process of its own."""
    command = [sys.executable, "-m", "timerd_client.timerctl", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def wait_until_watched(run: Run, key: str) -> None:
    eventually(lambda: json_of(run, "ops", "--key", key), f"nobody watches {key}")


def test_a_person_registers_and_another_fires(daemon: Daemon, run: Run) -> None:
    waiting = in_background("register", "inbox/7", "--timeout", "30s", "--payload", "back again", "--json")
    wait_until_watched(run, "inbox/7")
    (client,) = json_of(run, "clients")
    assert (client["name"], client["pid"], client["pending"]) == ("timerctl", waiting.pid, 1)
    assert "timerctl" in client["command"] and client["rss_bytes"] > 0 and client["cpu_percent"] >= 0
    assert run("fire", "inbox/7", "--value", "hello", "--wait") == (Exit.OK, "1\n", "")
    out, _ = waiting.communicate(timeout=20)
    outcome = json.loads(out)
    assert waiting.returncode == Exit.OK
    assert (outcome["state"], outcome["key"], outcome["value"]) == ("completed", "inbox/7", "hello")
    assert outcome["payload"] == "back again"
    assert run("fire", "inbox/7", "--wait") == (Exit.PROBLEM, "0\n", "")


def test_outcomes_at_a_shell(daemon: Daemon, run: Run) -> None:
    status, out, _ = run("register", "quiet", "other", "--timeout", "20ms", "--when", "all")
    assert status == Exit.PROBLEM and out.startswith("expired after ") and "missing quiet other" in out
    assert run("advance", "p0", "812")[0] == Exit.OK
    status, out, _ = run("register", "--reach", "p0=800", "--timeout", "5s")
    assert status == Exit.OK and out.startswith("completed after")
    assert run("forget", "p0")[0] == Exit.OK
    assert run("register", "--reach", "p0=1", "--timeout", "10ms")[0] == Exit.PROBLEM
    status, out, err = run("register", "a", "--timeout", "10ms", "--id", "once")
    assert out.startswith("expired"), err
    status, out, err = run("register", "a", "--timeout", "10ms", "--id", "once")
    assert status == Exit.PROBLEM and out.startswith("failed"), err


@pytest.mark.parametrize(("act", "says"), [("fail", "failed"), ("cancel-for-key", "cancelled")])
def test_others_act_on_what_a_person_waits_for(daemon: Daemon, run: Run, act: str, says: str) -> None:
    waiting = in_background("register", "k", "--timeout", "30s", "--purgatory", "fetch")
    wait_until_watched(run, "k")
    assert run(act, "k", "--purgatory", "fetch")[0] == Exit.OK
    out, _ = waiting.communicate(timeout=20)
    assert waiting.returncode == Exit.PROBLEM
    assert out.startswith(f"{says} after"), out


def test_a_living_daemon_is_checked_on_a_copy(daemon: Daemon, run: Run) -> None:
    with connect() as client:
        operations = [client.register(f"k{number % 7}", timeout=60) for number in range(500)]
        done = threading.Event()

        def keep_it_busy() -> None:
            while not done.is_set():
                client.fire(f"k{len(operations) % 7}")
                operations.append(client.register("k1", timeout=60))
                time.sleep(0.001)

        busy = threading.Thread(target=keep_it_busy)
        busy.start()
        try:
            for _ in range(3):
                status, out, err = run("check")
                assert status == Exit.OK, out + err
                assert out.startswith("Sound: ")
        finally:
            done.set()
            busy.join()
        assert not daemon.paths.snapshot.exists()
        stats = daemon.stats()
        assert stats["alive"] and stats["pid"] == daemon.pid and 0 < stats["uptime_s"] < 600
        for operation in operations:
            operation.cancel()


# how it ends ---------------------------------------------------------------------------------------------------------


def test_destroy_finds_what_a_daemon_left_that_was_killed_while_it_made_its_arena(runtime_dir: Path, run: Run) -> None:
    paths = InstancePaths(runtime_dir, "default")
    arena = ArenaPlace("shm", paths.shm_name, 0).path
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
    assert status == Exit.USAGE and "say --yes" in err
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    for answer, ends in (("n", Exit.PROBLEM), ("", Exit.PROBLEM), ("y", Exit.OK)):
        asked: list[str] = []
        monkeypatch.setattr("builtins.input", lambda question, a=answer, q=asked: (q.append(question), a)[1])
        assert run("destroy")[0] == ends
        assert "Remove instance 'default' with every operation in /dev/shm/timerd-" in asked[0]
    left = {path.name for path in daemon.paths.directory.iterdir()}
    assert left == {"default.lock", "default.log"}
    assert run("destroy", "--yes")[0] == Exit.NO_INSTANCE


def test_a_missing_instance_and_a_dead_daemon_are_different(dead: Rig, run: Run) -> None:
    for command in ("stats", "ops", "check", "destroy"):
        status, out, err = run("--instance", "nothing", command)
        assert (status, out) == (Exit.NO_INSTANCE, "")
        assert "no timerd instance 'nothing' in" in err and "autostart" not in err
    assert run("stats", "--instance", "nothing")[0] == Exit.NO_INSTANCE
    for command in ("fire", "fail", "forget", "cancel-for-key"):
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
def test_a_wrong_command_line_is_said(run: Run, arguments: tuple[str, ...]) -> None:
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
def test_a_number_that_cannot_be_is_refused_with_its_limits(
    run: Run, arguments: tuple[str, ...], least: int, most: int
) -> None:
    for wrong in (least - 1, most + 1, "1.5", "many", "\u0663", "9" * 5000):
        status, _, err = run(*(argument.format(wrong) for argument in arguments))
        assert status == Exit.USAGE
        assert f"is not a whole number from {least} to {most}" in err or "expected" in err, err
    for right in (least, most):
        assert run(*(argument.format(right) for argument in arguments))[0] == Exit.NO_INSTANCE


def test_the_version_is_timerds(run: Run) -> None:
    assert run("--version") == (Exit.OK, f"timerctl {td.__version__}\n", "")


def test_help_teaches_with_examples_and_lists_the_exit_statuses(run: Run) -> None:
    status, out, _ = run("--help")
    assert status == Exit.OK
    for member in Exit:
        assert f"  {member.value:3}  " in out
    assert "examples:" in out and "timerctl stats --watch" in out
    for command in ("stats", "ops", "keys", "clients", "check", "register", "fire"):
        assert "examples:" in run(command, "--help")[1], command


@pytest.mark.parametrize(
    "command",
    [
        "",
        *LOOKING,
        *("register", "fire", "advance", "fail", "cancel-for-key", "forget", "destroy", "load"),
        *("journal", "journal tail", "journal export"),
    ],
)
def test_help_fits_into_80_columns(run: Run, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    status, out, _ = run(*command.split(), "--help")
    assert status == Exit.OK
    assert [line for line in out.splitlines() if len(line) > 80] == []


@pytest.mark.parametrize("bucket", ["9:9", "0:128", "x", "1", "1:", "-1:0", "0:" + "9" * 5000])
def test_a_bucket_that_cannot_be_is_said(dead: Rig, run: Run, bucket: str) -> None:
    status, out, err = run("ops", f"--bucket={bucket}")
    assert (status, out) == (Exit.USAGE, "")
    assert "levels are 0 to" in err


def test_a_file_that_cannot_be_read_is_said(run: Run, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent", Path("/dev/null")):
        status, out, err = run("check", "--file", str(path))
        assert (status, out) == (Exit.PROBLEM, "")
        assert err.startswith("timerctl: ")


@pytest.mark.parametrize("content", [b"", b"# notes\n", bytes(100_000), b"# notes\n" * 10_000])
def test_a_file_that_is_no_arena_is_said_to_be_none(run: Run, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "notes").write_bytes(content)
    status, out, err = run("check", "--file", str(tmp_path / "notes"))
    assert (status, out) == (Exit.PROBLEM, "")
    assert f"{tmp_path}/notes is no arena" in err and "retry" not in err


def test_a_full_disk_is_said(dead: Rig) -> None:
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "timerd_client.timerctl", "ops"], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert ended.returncode == Exit.PROBLEM
    assert ended.stderr == "timerctl: [Errno 28] No space left on device\n"


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


def test_keys_and_ids_that_are_no_text_go_in_and_out(daemon: Daemon) -> None:
    key = b"\xff\n\x1b[31m \xe6\xbc\xa2"
    timerctl: list[str | bytes] = [sys.executable, "-m", "timerd_client.timerctl"]
    with connect() as client:
        operation = client.register(key, timeout=20, id=b"\xff", wait=True)
        for encoding, written in (("utf-8", key[-3:]), ("ascii", b"\\u6f22")):
            environment = {**os.environ, "PYTHONIOENCODING": encoding}
            shown = subprocess.run([*timerctl, "keys"], capture_output=True, check=True, env=environment).stdout
            assert b"\\xff\\n\\x1b[31m " + written in shown
        again: list[str | bytes] = [*timerctl, "register", "k", "--timeout", "1s", "--id", b"\xff"]
        refused = subprocess.run(again, capture_output=True)
        assert (refused.returncode, refused.stderr) == (Exit.PROBLEM, b"")
        assert refused.stdout.startswith(b"failed")
        assert subprocess.run([*timerctl, "fire", key, "--value", b"\xfe"]).returncode == Exit.OK
        assert operation.result(20).value == b"\xfe"


def test_a_daemon_that_says_nothing_is_no_daemon(daemon: Daemon, run: Run) -> None:
    os.kill(daemon.pid, signal.SIGSTOP)
    try:
        status, _, err = run("fire", "k")
        assert status == Exit.NO_DAEMON
        assert "does not answer" in err and "autostart" not in err
    finally:
        os.kill(daemon.pid, signal.SIGCONT)


def test_a_closed_pipe_is_no_error(dead: Rig) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "timerd_client.timerctl", "ops"]
    ended = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (Exit.OK, "")


# tables and texts ----------------------------------------------------------------------------------------------------


def test_a_table_gives_way_in_order() -> None:
    table = Table(
        Column("n", right=True), Column("key", flexible=True), Column("a", optional=True), Column("b", optional=True)
    )
    rows = [(7, "x" * 30, "aaaa", "bbbb"), (10, "y", "a", "b")]
    wide = table.lines(rows, 80)
    assert wide == [
        " n  key                             a     b",
        " 7  " + "x" * 30 + "  aaaa  bbbb",
        "10  y                               a     b",
    ]
    assert table.lines(rows, 40)[1] == " 7  " + "x" * 21 + "...  aaaa  bbbb"
    assert table.lines(rows, 24)[1] == " 7  " + "x" * 11 + "...  aaaa"
    assert table.lines(rows, 10)[1] == " 7  " + "x" * 9 + "..."
    assert table.lines([], 80) == ["n  key  a  b"]


def test_wide_characters_count_twice_in_a_table() -> None:
    table = Table(Column("key", flexible=True), Column("n", right=True))
    rows = [("\u6f22" * 20, 1), ("e\u0301" * 5, 22), ("plain", 333)]
    for width in (20, 40, 80):
        lines = table.lines(rows, width)
        assert {columns_of(line) for line in lines} == {min(width, 45)}, lines


def test_a_grid_uses_the_width() -> None:
    pairs = [(f"name{number}", str(number)) for number in range(7)]
    assert max(map(len, grid(pairs, 80))) <= 80
    assert grid(pairs, 80)[0] == "name0  0   name1  1   name2  2   name3  3   name4  4   name5  5   name6  6"
    assert grid(pairs, 40)[0] == "name0  0   name3  3   name6  6"
    assert grid(pairs, 10) == [f"name{number}  {number}" for number in range(7)]
    assert grid([]) == []


@pytest.mark.parametrize(
    ("text", "ns"), [("30", 30 * S), ("1.5s", 1_500_000_000), ("200 ms", 200_000_000), ("2h", 7200 * S), ("0", 0)]
)
def test_durations_are_read(text: str, ns: int) -> None:
    assert duration_ns(text) == ns


def test_numbers_are_written_for_people() -> None:
    spans = [0, 999, 1_500, 12_345_678, 3 * S, 59_990_000_000, 125 * S, 7_500 * S, 90_000 * S * 3, -1_500]
    assert [span(ns) for ns in spans] == [
        "0 ns", "999 ns", "1.50 us", "12.3 ms", "3.00 s", "60.0 s", "2 min 5 s", "2 h 5 min", "3 d 3 h", "-1.50 us"
    ]  # fmt: skip
    assert [size(count) for count in (0, 1023, 1536, 65_011_712, 1 << 31)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "62.0 MiB",
        "2.0 GiB",
    ]
    assert due_in(NO_DEADLINE, 5) == "never"
    assert plain(b"caf\xc3\xa9 \xff \n") == r"café \xff \n"
