"""An application is stuck: the reasons that timerctl shows to somebody on call. It reads a dead daemon's arena."""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from support.real.patience import stop
from support.real.shell import Explain, Run, json_of
from support.rig.commands import Key, Register
from support.rig.damage import Pen
from support.rig.groups import NEW, call, cancel_id, silence
from support.rig.harness import MS, Client, Rig, S, advance, begun, done, fire, given_up
from timerctl import parser
from timerctl.exits import Exit
from timerd_client.groups.plan import CALL, Plan
from timerd_client.protocol.session import CALLS
from timerd_shm.declare.layout import Region
from timerd_shm.declare.states import Orphans
from timerd_shm.host.process import process_start_ticks
from timerd_shm.read.hashing import id_hash

HOUR = 3_600 * S


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal in which no column is cut."""
    monkeypatch.setenv("COLUMNS", "250")


@pytest.fixture
def purgatory(rig: Rig) -> int:
    """The index of the purgatory of calls."""
    made: int = rig.core.purgatory(CALLS.encode())
    return made


def serving(rig: Rig, purgatory: int, *names: bytes, group: bytes = b"web", name: bytes = b"web-1") -> Client:
    """A live member that handles these names."""
    client = rig.client(group=group, name=name)
    assert rig.core.set_calls(client.slot, 1, purgatory, list(names), rig.now_ns) == 1
    return client


def planned(name: bytes, purgatory: int, id: str, timeout_ns: int = 0, group: str = "web") -> Register:
    """A call of this name and id, as a client makes it."""
    payload = Plan(CALL, id=id).pack() + b"to: ann"
    hashed = id_hash(f"{group}/{id}".encode())
    return call(name, purgatory=purgatory, payload=payload, id=hashed, timeout_ns=timeout_ns)


def said(run: Run, *arguments: str) -> str:
    """All that a command prints for people, on one line."""
    _, out, err = run(*arguments)
    return " ".join((out + err).split())


def hints(row: dict[str, Any]) -> list[tuple[str, str | None]]:
    return [(each["kind"], each["command"]) for each in row["hints"]]


# how a call ended -----------------------------------------------------------------------------------------------------


def test_a_call_that_ran_is_over_and_nobody_is_said_to_have_cancelled_it(
    rig: Rig, purgatory: int, explain: Explain, run: Run
) -> None:
    worker = serving(rig, purgatory, b"mail")
    rig.do(worker, planned(b"mail", purgatory, "ok-1"))
    (delivered,) = worker.delivered_for_group
    rig.do(worker, begun(delivered))
    rig.do(worker, done(delivered))
    row = explain("ok-1")
    assert (row["state"], row["id"]) == ("over", "ok-1")
    assert "It ran, or was cancelled" in row["text"] and "ago it came due" in row["text"]
    assert row["journal"]["command"] is None and "--journal-level events" in row["journal"]["text"]
    assert "has settled" not in said(run, "explain", "ok-1")
    assert "Calls that came due count as expired: 1 of 1." in said(run, "stats"), "nothing has timed out"


def test_a_call_that_was_cancelled_by_its_id_has_the_words_of_a_call_that_ran(
    rig: Rig, purgatory: int, explain: Explain
) -> None:
    worker = serving(rig, purgatory, b"other")
    rig.do(worker, planned(b"mail", purgatory, "user-9", timeout_ns=HOUR))
    rig.do(worker, replace(cancel_id(id_hash(b"web/user-9")), purgatory=purgatory))
    row = explain("user-9")
    assert row["state"] == "over" and "0 ns ago it came due, or was cancelled." in row["text"]


def test_a_call_that_failed_is_explained_by_its_id_as_its_dead_letter(
    rig: Rig, purgatory: int, explain: Explain, run: Run
) -> None:
    worker = serving(rig, purgatory, b"mail")
    for _ in range(2):
        rig.do(worker, replace(planned(b"mail", purgatory, "bad-1"), if_exists=NEW))
        delivered = worker.delivered_for_group[-1]
        rig.do(worker, begun(delivered))
        rig.do(worker, given_up(delivered, b"ValueError: no"))
        rig.do(worker, done(delivered))
    row = explain("bad-1")
    assert (row["kind"], row["state"], row["call"]["number"]) == ("dead letter", "failed", 2), "the newest dead letter"
    text = said(run, "explain", "bad-1")
    assert "Dead letter 2 (operation 1.1) was due" in text and "it has failed: ValueError: no" in text
    assert [each["state"] for each in json_of(run, "ops", "--state", "settled")] == ["failed"] * 2, "not expired"


def test_a_cancelled_operation_says_that_its_owner_may_have_ended(rig: Rig, explain: Explain) -> None:
    mortal = rig.client(Orphans.CANCEL, name=b"mortal")
    rig.do(mortal, Register((Key(b"k"),), timeout_ns=HOUR, id=id_hash(b"m-cancel")))
    rig.close(mortal)
    row = explain("m-cancel")
    assert row["state"] == "cancelled" and "or its owner has ended" in row["text"]


def test_a_kept_operation_names_the_journal_that_knows_its_dead_client(rig: Rig, explain: Explain, run: Run) -> None:
    mortal = rig.client(Orphans.KEEP, name=b"mortal")
    rig.do(mortal, Register((Key(b"k"),), timeout_ns=HOUR, id=id_hash(b"m-keep")))
    rig.close(mortal)
    row = explain("m-keep")
    assert row["journal"]["kind"] == "journal" and "which client it was of" in row["journal"]["text"]
    assert "does not have the client's name" in said(run, "explain", "m-keep")


# why a call does not run ----------------------------------------------------------------------------------------------


def test_a_call_whose_members_are_silent_does_not_say_that_they_are_busy(
    rig: Rig, purgatory: int, explain: Explain, run: Run
) -> None:
    idle, caller = serving(rig, purgatory, b"quick", name=b"idle-worker"), rig.client(group=b"web", name=b"caller")
    silence(rig, idle)
    rig.do(caller, planned(b"quick", purgatory, "stuck"))
    row = explain("stuck")
    assert row["state"] == row["call"]["state"] == "silent"
    assert [each["kind"] for each in row["hints"]] == ["silent"] and "idle-worker" in row["hints"][0]["text"]
    text = said(run, "calls")
    assert "its members are silent" in text and "idle-worker handles quick, and has been silent" in text
    assert "busy" not in text + said(run, "explain", "stuck")
    live = serving(rig, purgatory, b"quick", name=b"live")
    rig.turn()
    assert live.delivered_for_group
    rig.do(caller, planned(b"quick", purgatory, "second"))
    row = explain("second")
    assert row["call"]["state"] == "busy", "one of two members lives, and is busy"


def test_a_stopped_process_is_named_with_the_command_that_lets_it_go_on(
    rig: Rig, purgatory: int, explain: Explain, run: Run
) -> None:
    """It is named even before its lease is over. Until then the daemon takes a stopped member for live."""
    process = subprocess.Popen(["sleep", "600"])
    try:
        stop(process.pid)
        worker = serving(rig, purgatory, b"quick", name=b"idle-worker")
        for field, value in (("pid", process.pid), ("start_ticks", process_start_ticks(process.pid))):
            Pen(rig.memory).set(Region.CLIENTS, worker.slot, field, value)
        rig.do(worker, planned(b"quick", purgatory, "held"), planned(b"quick", purgatory, "waits"))
        for id, state in (("held", "delivered"), ("waits", "busy")):
            row = explain(id)
            assert (row["state"], hints(row)) == (state, [("stopped", f"kill -CONT {process.pid}")])
        assert "live, stopped" in said(run, "clients")
        silence(rig, worker)
        assert hints(explain("waits")) == [("stopped", f"kill -CONT {process.pid}")]
    finally:
        process.kill()
        process.wait()


def test_a_call_of_a_group_without_members_names_the_group_that_handles_it(
    rig: Rig, purgatory: int, explain: Explain, run: Run
) -> None:
    serving(rig, purgatory, b"quick")
    caller = rig.client(group=b"webb", name=b"caller")
    rig.do(caller, planned(b"quick", purgatory, "lost", group="webb"))
    row = explain("lost")
    assert row["call"]["state"] == "unhandled" and "group web handles quick" in row["hints"][1]["text"]
    rig.close(caller)
    row = explain("lost")
    assert row["call"]["state"] == "deserted"
    assert "the group has no member" in said(run, "calls") and "Group web handles quick" in said(run, "calls")


@pytest.mark.parametrize("with_a_call", [True, False])
def test_a_misspelt_handler_is_answered_with_the_near_name(
    rig: Rig, purgatory: int, explain: Explain, run: Run, with_a_call: bool
) -> None:
    """The near name is found even if the arena has no call of that name: it has the hash of each handled name."""
    worker = serving(rig, purgatory, b"send_mail", b"resize")
    if with_a_call:
        rig.do(worker, planned(b"send_mail", purgatory, "right", timeout_ns=HOUR))
    rig.do(worker, planned(b"send_mial", purgatory, "wrong"))
    near = [each.get("name") for each in explain("wrong")["hints"]]
    assert near == [None, "send_mail"]
    assert "Group web handles send_mail: did you mean this name?" in said(run, "calls")


def test_clients_show_what_they_serve(rig: Rig, purgatory: int, explain: Explain, run: Run) -> None:
    worker = serving(rig, purgatory, b"send_mail", b"resize")
    listener = rig.client(group=b"web", listens=True, name=b"listener")
    rig.do(worker, planned(b"resize", purgatory, "r", timeout_ns=HOUR))
    explain("r")
    handles = {row["name"]: (row["handles"], row["listens"]) for row in json_of(run, "clients")}
    assert handles["web-1"] == ({"count": 2, "known": ["resize"]}, False)
    assert handles["listener"] == ({"count": 0, "known": []}, True)
    assert "resize, 1 more handler" in said(run, "clients") and listener.slot != worker.slot


def test_a_handlers_name_instead_of_an_id_is_answered(rig: Rig, purgatory: int, explain: Explain, run: Run) -> None:
    worker = serving(rig, purgatory, b"send_mail", b"resize")
    rig.do(worker, planned(b"resize", purgatory, "resize-1", timeout_ns=HOUR))
    assert ("name", "timerctl calls --match=resize") in hints(explain("resize", status=Exit.PROBLEM))
    row = explain("send_mail", status=Exit.PROBLEM)
    assert "handler of group web" in row["hints"][0]["text"]
    assert ("near", "timerctl explain resize-1") in hints(explain("resise-1", status=Exit.PROBLEM))
    assert ("near", "timerctl calls --match=resize") in hints(explain("resise", status=Exit.PROBLEM))


def test_a_call_that_runs_shows_for_how_long_and_how_to_end_it(
    rig: Rig, purgatory: int, explain: Explain, run: Run
) -> None:
    worker = serving(rig, purgatory, b"resize")
    rig.do(worker, planned(b"resize", purgatory, "hangs"))
    rig.do(worker, begun(worker.delivered_for_group[0], limit_ns=5 * S))
    rig.now_ns += 3 * S
    row = explain("hangs")
    found = row["call"]
    assert (row["state"], found["since_ago_ns"] // S, found["time_limit_ns"]) == ("runs", 3, 5 * S)
    assert "for 3.00 s, its time_limit is 5.00 s" in said(run, "explain", "hangs")
    assert "It ends with its process" in row["cancel"][0]["text"]
    rig.now_ns += 3 * S
    assert explain("hangs")["state"] == "late"


# what else an operation waits for -------------------------------------------------------------------------------------


def test_an_event_in_another_purgatory_is_shown_with_the_operation_that_waits(
    rig: Rig, explain: Explain, run: Run
) -> None:
    fetch = rig.core.purgatory(b"fetch")
    alice = rig.client(name=b"services")
    waits = (Key(b"topic/1"), Key(b"p0", target=5))
    rig.do(alice, Register(waits, needed=2, timeout_ns=HOUR, purgatory=fetch, id=id_hash(b"fetch-1")))
    rig.do(alice, fire(b"topic/1"), advance(b"p0", 7))
    row = explain("fetch-1")
    found = {(each["key"], each["purgatory"], each["client_name"]) for each in row["events_in_other_purgatories"]}
    assert found == {("topic/1", "default", "services"), ("p0", "default", "services")}
    assert hints(row) == [("purgatory", "timerctl advance --purgatory fetch p0 5")], "the watermark outlives the ring"
    assert "In another purgatory, default: topic/1, fire" in said(run, "explain", "fetch-1")


def test_an_outcome_that_no_member_iterates_for_says_so(rig: Rig, purgatory: int, explain: Explain, run: Run) -> None:
    member = serving(rig, purgatory, b"x", group=b"nobody", name=b"member")
    rig.do(member, Register((Key(b"ans/1"),), timeout_ns=HOUR, id=id_hash(b"ga-1"), for_group=True))
    assert [each["kind"] for each in explain("ga-1")["hints"]] == ["listener"], "before the event, too"
    rig.do(member, fire(b"ans/1"))
    row = explain("ga-1")
    assert row["owner"]["group"] == {"name": "nobody", "members": 1, "listeners": 0, "silent_listeners": 0}
    assert "No member of group nobody iterates over outcomes()" in said(run, "explain", "ga-1")
    listener = rig.client(group=b"nobody", listens=True, name=b"listener")
    rig.turn()
    assert explain("ga-1")["hints"] == []
    silence(rig, listener)
    assert [each["kind"] for each in explain("ga-1")["hints"]] == ["silent"]
    rig.close(listener)
    rig.close(member)
    assert [each["kind"] for each in explain("ga-1")["hints"]] == ["group"]


def test_an_operators_try_does_not_hide_the_event_before_it(rig: Rig, explain: Explain, run: Run) -> None:
    orders, services = rig.client(name=b"orders"), rig.client(name=b"services")
    rig.do(orders, Register((Key(b"p1", target=100),), timeout_ns=HOUR))
    rig.do(services, advance(b"p1", 99))
    operator = rig.client(name=b"timerctl")
    for _ in range(3):
        rig.do(operator, fire(b"p1"))
    (key,) = explain("0.1")["keys"]
    assert [(each["kind"], each["client_name"]) for each in key["events"]] == [
        ("fire", "timerctl"),
        ("advance", "services"),
    ]
    assert "before that advance to 99" in said(run, "explain", "0.1")


def test_a_key_with_a_blank_at_its_end_is_quoted(rig: Rig, explain: Explain, run: Run) -> None:
    alice = rig.client()
    rig.do(alice, Register((Key(b"user/42/avatar"),), timeout_ns=HOUR), fire(b"user/42/avatar "))
    explain("0.1")
    assert "'user/42/avatar ', fire" in said(run, "explain", "0.1")
    rig.do(alice, Register((Key(b"a b "),), timeout_ns=HOUR))
    explain("1.1")
    assert "'a b '" in said(run, "explain", "1.1")
    assert "'a b '" in said(run, "ops") and "'a b '" in said(run, "keys")


def test_the_time_of_a_registration_stays_the_same(rig: Rig, explain: Explain, monkeypatch: pytest.MonkeyPatch) -> None:
    """The two clocks are read one after the other, and a busy machine lets time pass in between."""
    rig.do(rig.client(), Register((Key(b"k"),), timeout_ns=HOUR))
    ahead = 1_700_000_000 * S
    rig.core.set_wall_clock(ahead)
    rig.turn()
    times = set()
    for late in (0, 3 * MS, 20 * MS):
        monkeypatch.setattr(time, "time_ns", lambda late=late: rig.now_ns + ahead + late)
        times.add(explain("0.1")["registered"])
    assert len(times) == 1


# --json ---------------------------------------------------------------------------------------------------------------


def test_every_document_about_an_arena_says_whether_its_daemon_lives(
    rig: Rig, purgatory: int, explain: Explain, run: Run
) -> None:
    worker = serving(rig, purgatory, b"mail")
    rig.do(worker, planned(b"mail", purgatory, "m", timeout_ns=HOUR))
    explain("m")
    for command in (["ops"], ["keys"], ["calls"], ["clients"], ["errors"], ["explain", "m"], ["stats"]):
        found = json.loads(run(*command, "--json")[1])
        assert (found["instance"], found["alive"], found["stopped"]) == ("default", False, False), command
    assert json.loads(run("ops", "--json", "--limit", "1")[1])["more"] is False


def test_one_thing_has_one_shape_in_every_document(rig: Rig, purgatory: int, explain: Explain, run: Run) -> None:
    worker = serving(rig, purgatory, b"mail")
    rig.do(worker, planned(b"mail", purgatory, "m", timeout_ns=HOUR))
    row, (op,), (listed,) = explain("m"), json_of(run, "ops"), json_of(run, "calls")
    payload = {"bytes": 7, "text": "to: ann", "cut": False}
    assert payload == row["payload"] == op["payload"] == listed["payload"] == row["call"]["payload"]
    for each in (row, op, listed, row["call"]):
        assert len(each["due"]) == len("2026-11-29T21:22:34.012Z")
        assert abs(each["due_in_ns"] - HOUR) < 60 * S and each["due_in"].endswith((" s", " min"))
    assert json_of(run, "calls", "--bytes", "0")[0]["payload"]["text"] == ""


def leaves(
    command: argparse.ArgumentParser, words: tuple[str, ...] = ()
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    yield " ".join(words), command
    for action in command._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                yield from leaves(below, (*words, name))


def test_every_command_takes_json() -> None:
    without = {
        words
        for words, command in leaves(parser())
        if not any("--json" in action.option_strings for action in command._actions)
    }
    # worker prints nothing, web and exporter print an address, and the rows of export are JSON.
    assert without == {"", "completion", "exporter", "journal", "journal export", "web", "worker"}


@pytest.mark.parametrize("words", [["calls", "--json", "cancel", "7"], ["calls", "cancel", "--json", "7"]])
def test_an_option_counts_before_an_action_and_behind_it(words: list[str]) -> None:
    assert parser().parse_args(words).json is True
    group = [word if word != "--json" else "--group=web" for word in words]
    assert parser().parse_args(group).group == "web"
    assert parser().parse_args(["calls", "cancel", "7"]).json is False
