"""timerctl fire and similar commands show what watched the key. explain shows calls; ping, if the daemon answers."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import timerd as td
from support.real.daemons import Daemon
from support.real.patience import PATIENCE_S, eventually, stop
from support.real.registries import serve
from support.real.shell import Run, command_of, json_of
from timerctl.exits import Exit

PATIENT = ("--timeout", f"{PATIENCE_S:g}s")


@pytest.fixture
def client(daemon: Daemon) -> Iterator[td.Client]:
    with td.connect(group="web", name="web-1", timeout=PATIENCE_S) as made:
        yield made


def hints(run: Run, *arguments: str) -> list[tuple[str, str]]:
    return [(hint["kind"], hint["command"]) for hint in json_of(run, *arguments)["hints"]]


# events ---------------------------------------------------------------------------------------------------------------


def test_fire_says_how_many_operations_watched_the_key_and_completed(client: td.Client, run: Run) -> None:
    client.register_wait("k", timeout=60)
    client.register_wait(["k", "l"], timeout=60, when=td.ALL)
    assert run("fire", "k") == (Exit.OK, "1 operation completed. Just before, 2 operations watched k.\n", "")
    row = json_of(run, "fire", "l")
    assert (row["completed"], row["just_before"]["events"], row["hints"]) == (1, 1, [])
    assert run("fire", "nobody's") == (Exit.OK, "No operation completed. Just before, nothing watched nobody's.\n", "")


def test_fire_tells_owners_and_subscriptions_apart(client: td.Client, run: Run) -> None:
    subscription = client.subscribe("k")
    operation = client.try_complete_else_watch(lambda: False, "k", timeout=60)
    client.flush()
    eventually(lambda: len(json_of(run, "ops", "--key", "k")) == 2)
    row = json_of(run, "fire", "k")
    assert row["just_before"] | {"watermark": None} == {
        **dict.fromkeys(("events", "advances"), 0),
        **dict.fromkeys(("owned", "subscriptions"), 1),
        "watermark": None,
    }
    assert row["hints"] == [], "the key has watchers"
    assert subscription.next(PATIENCE_S) is not None
    operation.cancel_wait()


@pytest.mark.long
def test_a_misspelt_key_is_answered_with_the_near_key(client: td.Client, run: Run) -> None:
    for key in ("write/7/r1", "write/7/r2", "something else"):
        client.register_wait(key, timeout=60)
    status, out, err = run("fire", "write/7/R2")
    assert (status, err) == (Exit.OK, "")
    assert "nothing watched write/7/R2" in out and "\n  timerctl fire write/7/r2\n" in out
    assert hints(run, "fire", "write/7/R2")[0] == ("near", "timerctl fire write/7/r2")
    status, out, err = run("fire", "write/7/R2", "--wait")
    assert (status, out) == (Exit.PROBLEM, "0\n") and "timerctl fire write/7/r2" in err
    assert hints(run, "fail", "WRITE/7/r2") == [("near", "timerctl fail write/7/r2")]
    assert hints(run, "cancel-for-key", "WRITE/7/r2") == [("near", "timerctl cancel-for-key write/7/r2")]
    assert hints(run, "advance", "WRITE/7/r2", "5") == [("near", "timerctl fire write/7/r2")], (
        "the near key waits for an event"
    )


@pytest.mark.long
def test_a_fire_where_an_advance_was_meant_is_answered_with_the_advance(client: td.Client, run: Run) -> None:
    operation = client.register_wait({"p0": 812}, timeout=60)
    client.register_wait({"p0": 900}, timeout=60)
    assert hints(run, "fire", "p0") == [("watermark", "timerctl advance p0 812")], "the lowest target"
    assert hints(run, "fire", "P0") == [("near", "timerctl advance p0 812")]
    assert run("advance", "p0", "850")[1] == (
        "Just before, p0 had no watermark; 2 operations waited for it, 1 of them for 850 or less.\n"
    )
    assert operation.result(PATIENCE_S)
    client.cancel_for_key_wait("p0")
    assert hints(run, "fire", "p0") == [("watermark", "timerctl advance p0 OFFSET")]
    assert hints(run, "advance", "p0", "851") == [], "a watermark that nobody waits for is usual"


def test_an_advance_where_a_fire_was_meant_and_a_wrong_name_to_forget_are_answered(client: td.Client, run: Run) -> None:
    client.register_wait("job/7", timeout=60)
    assert hints(run, "advance", "job/7", "3") == [("event", "timerctl fire job/7")]
    assert hints(run, "forget", "jobs/7") == [("near", "timerctl forget job/7")]
    assert run("forget", "job/7") == (Exit.OK, "Just before, job/7 had the watermark 3.\n", "")
    assert run("forget", "job/7") == (Exit.OK, "Just before, job/7 had no watermark.\n", "")


def test_a_key_of_another_purgatory_is_named(client: td.Client, run: Run) -> None:
    client.purgatory("fetch").register_wait("k", timeout=60)
    assert hints(run, "fire", "k") == [("purgatory", "timerctl fire --purgatory fetch k")]
    assert hints(run, "fire", "k", "--purgatory", "fetch") == []
    client.purgatory("fetch").register_wait("k", timeout=60, id="job")
    status, _, err = run("reschedule", "job", "--timeout", "5s")
    assert status == Exit.PROBLEM and "\n  timerctl reschedule --purgatory fetch --timeout TIME job\n" in err


@pytest.mark.long
def test_a_command_line_that_is_suggested_works_whatever_the_bytes_of_the_key(client: td.Client, run: Run) -> None:
    timerctl = f'timerctl() {{ {shlex.quote(sys.executable)} -m timerctl "$@"; }}'
    for key in (b"-a key' \\x \xff\n\x1b[31m", "\u6f22 \u5b57$HOME`id`".encode(), b"--", b"plain/7"):
        operation = client.register_wait(key, timeout=60)
        (row,) = json_of(run, "ops")
        command = json_of(run, "explain", row["number"])["keys"][0]["command"]
        assert command.isprintable()
        ended = subprocess.run(["bash", "-c", f"{timerctl}; {command}"], capture_output=True, check=True)
        assert operation.result(PATIENCE_S), (command, ended)


def test_the_instance_of_the_command_line_stands_in_what_is_suggested(client: td.Client, run: Run) -> None:
    client.register_wait("write/7/r2", timeout=60)
    assert hints(run, "--instance", "default", "fire", "write/7/R2") == [
        ("near", "timerctl --instance default fire write/7/r2")
    ]


# explain, of calls and schedules --------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_call_is_explained_by_its_id_while_it_waits_runs_and_is_a_dead_letter(client: td.Client, run: Run) -> None:
    client.call_later_wait("mail", 3_600, b"to: nobody", id="user-8")
    row = json_of(run, "explain", "user-8")
    assert (row["kind"], row["call"]["name"], row["call"]["state"]) == ("call", "mail", "pending")
    assert row["payload"]["text"] == "to: nobody", "the plan, which stands before the payload, is not shown"
    assert row["cancel"][0]["commands"] == ["timerctl calls cancel --group web user-8"]
    assert row["owner"]["group"]["name"] == "web"
    client.reschedule_call_wait("user-8", 0)
    eventually(lambda: json_of(run, "explain", "user-8")["call"]["state"] == "unhandled")
    assert "no member of its group handles its name" in run("explain", "user-8")[1]
    going_on: list[bool] = []

    def fails(call: td.Call) -> None:
        eventually(lambda: going_on)
        raise ValueError("no \x1b[31mconnection")

    serve(client, "mail", fails)
    eventually(lambda: json_of(run, "explain", "user-8")["call"]["state"] == "runs")
    row = json_of(run, "explain", "user-8")
    assert row["owner"]["client"]["pid"] == os.getpid()
    assert "cannot be cancelled" in row["cancel"][0]["text"]
    going_on.append(True)
    eventually(lambda: json_of(run, "calls", "--failed"))
    (letter,) = json_of(run, "calls", "--failed")
    row = json_of(run, "explain", json_of(run, "ops", "--state", "settled")[0]["number"])
    assert (row["kind"], row["call"]["number"]) == ("dead letter", letter["number"])
    assert [line["commands"] for line in row["cancel"][1:]] == [["timerctl calls drop 1"], ["timerctl calls retry 1"]]


def test_a_schedule_is_explained_by_its_name(client: td.Client, run: Run) -> None:
    serve(client, "cleanup", print, seconds=3_600)
    eventually(lambda: run("explain", "cleanup")[0] == Exit.OK)
    row = json_of(run, "explain", "cleanup")
    assert (row["kind"], row["id"], row["call"]["name"]) == ("scheduled call", "cleanup", "cleanup")
    status, out, _ = run("explain", "cleanup")
    assert status == Exit.OK and "Then a member of its group runs it" in out


def test_a_batch_a_delayed_operation_and_a_subscription_are_explained(client: td.Client, run: Run) -> None:
    client.register_many_wait([["b1"], ["b2", "b3"]], timeout=60, ids=["one", "two"])
    assert [key["key"] for key in json_of(run, "explain", "two")["keys"]] == ["b2", "b3"]
    client.try_complete_else_watch(lambda: False, ["d1"], timeout=60, id="delayed")
    client.flush()
    row = json_of(run, "explain", "delayed")
    assert (row["kind"], row["owner"]["client"]["pid"]) == ("delayed operation", os.getpid())
    client.cancel_wait("delayed")


# ping -----------------------------------------------------------------------------------------------------------------


def test_ping_says_whether_the_daemon_answers_and_how_fast(daemon: Daemon, run: Run) -> None:
    status, out, err = run("ping", *PATIENT)
    assert (status, err) == (Exit.OK, "") and re.fullmatch(r"The daemon answered in .+ \(connected in .+\)\.\n", out)
    row: dict[str, Any] = json_of(run, "ping", *PATIENT)
    assert row["answers"] is True and row["error"] is None
    assert row["round_trip_ns"] > 0 and row["connect_ns"] > 0
    eventually(lambda: json_of(run, "clients") == [], "the client of a ping is still there")


def test_ping_has_status_1_for_each_way_of_no_answer_and_2_for_a_wrong_command_line(
    daemon: Daemon, run: Run, runtime_dir: Path
) -> None:
    stop(daemon.pid)
    try:
        status, out, err = run("ping", "--timeout", "200ms")
        assert (status, out) == (Exit.PROBLEM, "") and "no answer from the daemon within 0.2 s" in err
    finally:
        os.kill(daemon.pid, signal.SIGCONT)
    assert run("ping", *PATIENT)[0] == Exit.OK
    assert run("--instance", "nothing", "ping")[0] == Exit.PROBLEM
    daemon.stop()
    status, out, err = run("ping")
    assert (status, out) == (Exit.PROBLEM, "") and "is not running: start it" in err
    status, out, err = run("ping", "--json")
    assert (status, err) == (Exit.PROBLEM, "")
    assert json.loads(out)["answers"] is False and "is not running" in json.loads(out)["error"]
    for wrong in (("--timeout", "soon"), ("--instance", "NOT A NAME"), ("now",)):
        assert run("ping", *wrong)[0] == Exit.USAGE


@pytest.mark.long
def test_a_daemon_without_a_free_slot_has_answered(make_daemon: Callable[..., Daemon]) -> None:
    make_daemon("--clients=2")
    with td.connect(timeout=PATIENCE_S), td.connect(timeout=PATIENCE_S):
        ended = subprocess.run(command_of("ping", *PATIENT), capture_output=True, text=True)
        assert ended.returncode == Exit.OK and "takes no more clients" in ended.stderr, ended
