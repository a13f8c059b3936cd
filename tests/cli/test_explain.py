"""timerctl explain: what it shows of an operation in the arena of a dead daemon. The core agrees with its numbers."""

from __future__ import annotations

import argparse
import random
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from support.real.shell import Explain, Run, json_of
from support.rig.commands import Key, Register
from support.rig.damage import CHANGES, REFUSALS, Change, Pen, changed
from support.rig.harness import Rig, S, advance, fail, fire, looked
from timerctl.exits import Exit
from timerctl.look.explain import lines_of, look_for
from timerd_shm.declare.layout import Region
from timerd_shm.declare.states import Condition, OpState, Orphans, Outcome
from timerd_shm.host.process import boot_id
from timerd_shm.read.hashing import id_hash
from timerd_shm.read.reader import ArenaReader, DamageError
from timerd_shm.read.watched import watches, watermarks

HOUR = 3_600 * S


def keys(*names: bytes) -> tuple[Key, ...]:
    return tuple(map(Key, names))


def states(row: dict[str, Any]) -> dict[str, str]:
    return {key["key"]: key["state"] for key in row["keys"]}


def said(row: dict[str, Any], part: str = "settles") -> str:
    return " ".join(line["text"] for line in row[part])


def commands(row: dict[str, Any], part: str) -> list[str]:
    return [command for line in row[part] for command in line["commands"]]


# what it lacks --------------------------------------------------------------------------------------------------------


def test_missing_satisfied_and_failed_keys_are_told_apart(rig: Rig, explain: Explain, run: Run) -> None:
    alice = rig.client(name=b"web-1")
    rig.do(
        alice,
        Register(keys(b"r1", b"r2", b"r3"), needed=2, timeout_ns=30 * S, payload=b"order 7", id=id_hash(b"session/9")),
    )
    rig.do(alice, fire(b"r1"), fail(b"r2", 6), now_ns=rig.now_ns + 2 * S)
    row = explain("session/9")
    assert (row["state"], row["number"], row["id"], row["condition"]) == ("pending", "0.1", "session/9", "at-least:2")
    assert states(row) == {"r1": "satisfied", "r2": "failed", "r3": "missing"}
    assert row["keys"][1]["code"] == 6
    assert (row["keys_to_complete"], row["keys_to_fail"], row["due_in"]) == (1, 1, "28.0 s")
    assert row["payload"] == {"bytes": 7, "text": "order 7", "cut": False}
    assert (row["owner"]["client"]["slot"], row["owner"]["client"]["name"]) == (alice.slot, "web-1")
    assert commands(row, "settles") == ["timerctl fire r3"]
    assert commands(row, "cancel") == ["timerctl cancel session/9"]
    status, out, _ = run("explain", "session/9")
    assert status == Exit.OK and "is not running" in out
    assert re.search(r"^r3 +missing +an event", out, re.MULTILINE), out
    assert re.search(r"^r2 +failed, code 6", out, re.MULTILINE), out
    assert "It expires in 28.0 s." in out and "client 0 web-1" in out
    rig.now_ns += 30 * S
    assert "passed 2.00 s ago" in said(explain("session/9")), "the daemon is dead, and expires nothing"
    assert re.search(r"^deadline +2.00 s ago \(2", run("explain", "session/9")[1], re.MULTILINE)


@pytest.mark.long
@pytest.mark.parametrize("condition", [Condition.AT_LEAST, Condition.ALL_SETTLED, Condition.TOTAL])
def test_the_numbers_of_keys_to_complete_and_to_fail_are_those_of_the_core(
    rig: Rig, explain: Explain, rng: random.Random, condition: Condition
) -> None:
    alice = rig.client()
    for number in range(40):
        names = [b"%d/%d" % (number, key) for key in range(rng.randint(1, 6))]
        needed = rng.randint(1, len(names)) if condition is Condition.AT_LEAST else 0
        command = rig.do(alice, Register(keys(*names), condition=condition, needed=needed, total=100, timeout_ns=HOUR))
        rng.shuffle(names)
        for _ in range(rng.randint(0, len(names) - 1)):
            act = fail(names[0], 1) if condition is Condition.TOTAL else rng.choice([fire(names[0]), fail(names[0], 1)])
            rig.do(alice, act)
            names.pop(0)
        if alice.state(command) is not Outcome.NONE:
            rig.acknowledge()
            continue
        row = explain(number_of(rig))
        assert sorted(key for key, state in states(row).items() if state == "missing") == sorted(
            name.decode() for name in names
        )
        wanted = rng.choice([Outcome.COMPLETED, Outcome.FAILED])
        takes = row["keys_to_complete" if wanted is Outcome.COMPLETED else "keys_to_fail"]
        for done, name in enumerate(names, start=1):
            assert alice.state(command) is Outcome.NONE or takes is None
            rig.do(alice, fire(name) if wanted is Outcome.COMPLETED else fail(name, 1))
            assert (alice.state(command) is wanted) == (takes is not None and done >= takes), (row, done)
            if alice.state(command) is not Outcome.NONE:
                break
        if alice.state(command) is Outcome.NONE:
            assert condition is Condition.TOTAL and row["amount_missing"] == 100
            rig.do(alice, fire(names[0], 100))
        rig.acknowledge()


def number_of(rig: Rig) -> str:
    """The number of the one operation of the arena."""
    (found,) = (
        f"{index}.{op.generation}" for index, op in enumerate(rig.arena.records(Region.OPS)) if op.state != OpState.FREE
    )
    return found


def test_a_total_shows_the_missing_amount_and_the_command_that_brings_it(rig: Rig, explain: Explain) -> None:
    alice = rig.client()
    rig.do(alice, Register(keys(b"topic"), condition=Condition.TOTAL, total=4_096), fire(b"topic", 96))
    row = explain("0.1")
    assert (row["amount_missing"], row["due"], row["due_in"]) == (4_000, None, "never")
    assert commands(row, "settles") == ["timerctl fire --amount 4000 topic"]
    assert "4000 more" in said(row) and "never expires" in said(row)


def test_a_watermark_key_shows_the_present_watermark_and_an_event_of_the_wrong_kind(rig: Rig, explain: Explain) -> None:
    alice = rig.client()
    rig.do(alice, Register((Key(b"p0", target=812), Key(b"k")), needed=2, timeout_ns=HOUR))
    rig.do(alice, advance(b"p0", 400), advance(b"k", 7))
    rig.do(alice, fire(b"p0"), now_ns=rig.now_ns + S)
    watermark, event = explain("0.1")["keys"]
    assert (watermark["kind"], watermark["target"], watermark["watermark"]) == ("watermark", 812, 400)
    assert watermark["command"] == "timerctl advance p0 812"
    assert [each["kind"] for each in watermark["events"]] == ["fire", "advance"], "the newest first"
    assert (event["kind"], event["state"], event["events"][0]["kind"]) == ("event", "missing", "advance")
    assert event["events"][0]["ago_ns"] == S


def test_an_event_before_the_registration_and_an_event_on_a_near_key_are_shown(
    rig: Rig, explain: Explain, run: Run
) -> None:
    alice = rig.client(name=b"writer")
    rig.do(alice, fire(b"early"), fire(b"write/7/R2"), fire(b"write/7/r9"), fire(b"other"))
    rig.now_ns += S
    rig.do(alice, Register(keys(b"early", b"write/7/r2"), needed=2, timeout_ns=HOUR))
    row = explain("0.1")
    assert row["keys"][0]["events"][0]["before_registration"] is True
    assert row["keys"][1]["events"] == []
    assert [event["key"] for event in row["events_on_near_keys"]] == ["write/7/R2"], "r9 differs in its number alone"
    out = run("explain", "0.1")[1]
    assert "by writer, before it was" in out
    assert "Spelt nearly alike" in out and "write/7/R2" in out


def test_a_delayed_operation_says_whether_its_owner_has_looked(rig: Rig, explain: Explain) -> None:
    alice = rig.client()
    observed = (Key(b"d1", observed=True), Key(b"d2", observed=True))
    command = rig.do(alice, Register(observed, condition=Condition.OWNER, timeout_ns=HOUR))
    row = explain("0.1")
    assert (row["kind"], row["look"]["due"]) == ("delayed operation", False)
    assert "Its owner decides" in said(row) and commands(row, "settles") == ["timerctl fire d1", "timerctl fire d2"]
    rig.do(alice, fire(b"d2"))
    row = explain("0.1")
    assert row["look"]["due"] is True and row["look"]["event"] > row["look"]["looked"]
    rig.do(alice, looked(command, row["look"]["event"]))
    row = explain("0.1")
    assert row["look"]["due"] is False and row["look"]["event"] == row["look"]["looked"]
    assert commands(row, "cancel") == ["timerctl cancel-for-key d1"]


def test_a_subscription_says_that_any_event_is_its_outcome(rig: Rig, explain: Explain) -> None:
    rig.do(rig.client(), Register((Key(b"k", observed=True),), condition=Condition.OBSERVE))
    row = explain("0.1")
    assert row["kind"] == "subscription" and "next event" in said(row)
    assert commands(row, "cancel") == [], "no command can cancel it: its owner closes it"


def test_explain_warns_what_else_a_cancel_by_key_cancels(rig: Rig, explain: Explain) -> None:
    alice = rig.client()
    rig.do(alice, Register(keys(b"a", b"b"), timeout_ns=HOUR), Register(keys(b"a"), timeout_ns=HOUR))
    row = explain("0.1")
    assert commands(row, "cancel") == ["timerctl cancel-for-key b"] and "nothing else watches" in said(row, "cancel")
    row = explain("1.1")
    assert commands(row, "cancel") == ["timerctl cancel-for-key a"] and "1 other operation" in said(row, "cancel")


# whose it is ----------------------------------------------------------------------------------------------------------


def test_the_owner_is_a_client_a_group_a_member_that_holds_it_or_nobody(rig: Rig, explain: Explain) -> None:
    carol = rig.client(group=b"workers", listens=True, name=b"carol")
    kept = rig.client(Orphans.KEEP)
    rig.do(carol, Register(keys(b"g"), timeout_ns=HOUR, for_group=True))
    rig.do(kept, Register(keys(b"k"), timeout_ns=HOUR))
    owner = explain("0.1")["owner"]
    group = {"name": "workers", "members": 1, "listeners": 1, "silent_listeners": 0}
    assert owner == {"client": None, "group": group}
    rig.close(kept)
    assert explain("1.1")["owner"] == {"client": None, "group": None}
    rig.do(carol, fire(b"g", value=b"v"))
    row = explain("0.1")
    assert (row["state"], row["kind"]) == ("completed", "group operation")
    assert row["owner"]["client"]["name"] == "carol" and row["owner"]["group"]["name"] == "workers"
    assert row["settled"]["key"] == "g" and row["settled"]["value"]["text"] == "v"


# settled --------------------------------------------------------------------------------------------------------------


def test_a_settled_operation_is_known_until_it_is_acknowledged_then_its_id_then_nothing(
    rig: Rig, explain: Explain, run: Run
) -> None:
    alice = rig.client()
    rig.do(alice, Register(keys(b"k"), timeout_ns=HOUR, id=id_hash(b"job")), fire(b"k", value=b"done"))
    rig.now_ns += 3 * S
    found = row = explain("job")
    assert (row["state"], row["settled"]["ago_ns"], row["settled"]["value"]["text"]) == ("completed", 3 * S, "done")
    assert row["settles"] == row["cancel"] == []
    assert "has settled: completed, 3.00 s ago" in run("explain", "job")[1]
    rig.acknowledge()
    row = explain("job")
    assert (row["state"], row["settled"]["ago_ns"]) == ("completed", 3 * S)
    assert "acknowledged" in row["text"]
    row = explain("0.1")
    assert (row["state"], row["settled"]["ago_ns"]) == ("completed", 3 * S), "the freed record has its outcome"
    assert "It completed 3.00 s ago" in row["text"] and "timerd --journal" in row["journal"]["text"]
    rig.do(alice, Register(keys(b"next"), timeout_ns=HOUR))
    row = explain("0.1", status=Exit.PROBLEM)
    assert row["state"] == "unknown" and "How it settled is not known" in row["text"]
    lists = {name for name, value in found.items() if isinstance(value, list)}
    assert lists == {name for name, value in row.items() if isinstance(value, list)}, "`jq .keys[]` works for both"
    for never in ("0.9", "99.1", "nothing"):
        row = explain(never, status=Exit.PROBLEM)
        assert row["state"] == "unknown" and "has settled, and" not in row["text"]


def test_explain_names_the_command_that_finds_a_forgotten_operation_in_the_journal(
    rig: Rig, explain: Explain, runtime_dir: Path, tmp_path: Path
) -> None:
    (runtime_dir / "default.journal").symlink_to(tmp_path)
    alice = rig.client()
    rig.do(alice, Register(keys(b"k"), timeout_ns=HOUR, id=id_hash(b"job")), fire(b"k"))
    rig.acknowledge()
    hashed = id_hash(b"job").hex()
    assert explain("job")["journal"]["command"] == f"timerctl journal export | jq 'select(.id == \"{hashed}\")'"
    gone = explain("0.1")
    assert gone["journal"]["command"] == f"timerctl journal export | jq 'select(.operation == {1 << 32})'"


# which one is meant ---------------------------------------------------------------------------------------------------


def test_a_number_is_read_in_each_form_in_which_it_is_shown(rig: Rig, explain: Explain, run: Run) -> None:
    rig.do(rig.client(), Register(keys(b"a"), timeout_ns=HOUR), Register(keys(b"b"), timeout_ns=HOUR))
    for text in ("1.1", str(1 << 32 | 1), hex(1 << 32 | 1)):
        assert explain(text)["keys"][0]["key"] == "b"
    for wrong in ("1", "x", "1.1.1", "99999999999.1", "9" * 30):
        status, _, err = run("explain", wrong, "--by", "number")
        assert status in (Exit.USAGE, Exit.PROBLEM)
        assert (status == Exit.USAGE) == (wrong != "1") and ("INDEX.GENERATION" in err) == (wrong != "1")


def test_an_id_that_looks_like_a_number_is_told_from_the_number(rig: Rig, explain: Explain, run: Run) -> None:
    alice = rig.client()
    rig.do(alice, Register(keys(b"a"), timeout_ns=HOUR, id=id_hash(b"1.1")))
    rig.do(alice, Register(keys(b"b"), timeout_ns=HOUR))
    bury_again = explain("7", status=Exit.PROBLEM)
    assert bury_again["state"] == "unknown"
    status, out, err = run("explain", "1.1")
    assert (status, out) == (Exit.USAGE, "") and "give --by id or --by number" in err
    assert explain("1.1", "--by", "id")["keys"][0]["key"] == "a"
    assert explain("1.1", "--by", "number")["keys"][0]["key"] == "b"
    assert explain("0.1")["id"] is None and explain("0.1")["id_hash"] == id_hash(b"1.1").hex()


def test_an_id_of_several_purgatories_needs_the_purgatory(rig: Rig, explain: Explain, run: Run) -> None:
    fetch = rig.core.purgatory(b"fetch")
    alice = rig.client()
    for purgatory in (0, fetch):
        rig.do(alice, Register(keys(b"k"), timeout_ns=HOUR, id=id_hash(b"job"), purgatory=purgatory))
    row = explain("job", "--purgatory", "fetch")
    assert row["purgatory"] == "fetch" and commands(row, "cancel") == ["timerctl cancel --purgatory fetch job"]
    status, _, err = run("explain", "job")
    assert status == Exit.USAGE and "default, fetch" in err and "--purgatory" in err
    assert explain("job", "--purgatory", "other", status=Exit.PROBLEM)["state"] == "unknown"


# how it is shown ------------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize(
    "payload",
    [b"\x1b[31m\x1b]0;title\x07\r\n\x00", b"\xff\xfe\x80", "\u202e\u200bx".encode(), b"\xc1\xa7" * 30_000, b"\x9b31m"],
)
def test_hostile_bytes_are_escaped_and_a_long_payload_is_cut(
    rig: Rig, explain: Explain, run: Run, payload: bytes
) -> None:
    rig.memory, big = rig.memory, Rig(capacity=2_048)
    Pen(big.memory).header("boot_id", boot_id())
    rig.__dict__.update(big.__dict__)
    rig.do(rig.client(name=payload[:32]), Register(keys(payload[:255]), timeout_ns=HOUR, payload=payload))
    row = explain("0.1")
    assert (row["payload"]["bytes"], row["payload"]["cut"]) == (len(payload), len(payload) > 200)
    for arguments in (("explain", "0.1"), ("ops",), ("explain", "0.1", "--bytes", str(65_536))):
        _, out, _ = run(*arguments)
        assert all(char.isprintable() or char == "\n" for char in out), ascii(out)
    hidden = explain("0.1", "--bytes", "0")["payload"]
    assert (hidden["text"], hidden["bytes"]) == ("", len(payload))


def test_a_text_is_not_cut_within_a_character(rig: Rig, explain: Explain) -> None:
    rig.do(rig.client(), Register(keys(b"k"), timeout_ns=HOUR, payload="\u6f22\u5b57".encode()))
    assert explain("0.1", "--bytes", "4")["payload"] == {"bytes": 6, "text": "\u6f22", "cut": True}
    assert explain("0.1", "--bytes", "6")["payload"] == {"bytes": 6, "text": "\u6f22\u5b57", "cut": False}


@pytest.mark.parametrize("width", ["80", "120"])
def test_what_people_read_fits_the_width(
    rig: Rig, explain: Explain, run: Run, monkeypatch: pytest.MonkeyPatch, width: str
) -> None:
    many = tuple(Key(b"a key of some length %d" % number) for number in range(30))
    rig.do(rig.client(), Register(many, needed=7, timeout_ns=HOUR, payload=b"word " * 500))
    explain("0.1")
    monkeypatch.setenv("COLUMNS", width)
    lines = run("explain", "0.1")[1].splitlines()
    assert [line for line in lines if len(line) > int(width) and "timerctl" not in line] == []
    assert [line for line in lines if line != line.rstrip()] == []


def test_the_listing_has_ids_payloads_and_the_states_of_keys(rig: Rig, explain: Explain, run: Run) -> None:
    alice = rig.client()
    rig.do(alice, Register(keys(b"r1", b"r2"), needed=2, timeout_ns=HOUR, payload=b"p" * 50, id=id_hash(b"job")))
    rig.do(alice, fire(b"r1"))
    explain("0.1")
    (row,) = json_of(run, "ops")
    assert (row["number"], row["id_hash"]) == ("0.1", id_hash(b"job").hex())
    assert [key["state"] for key in row["keys"]] == ["satisfied", "missing"]
    assert row["payload"] == {"bytes": 50, "text": "p" * 40, "cut": True}
    (row,) = json_of(run, "ops", "--bytes", "0")
    assert row["payload"] == {"bytes": 50, "text": "", "cut": True}
    assert "r2 r1(ok)" in run("ops")[1], "the missing keys stand first"


def test_a_key_and_an_outcome_of_unknown_kinds_stop_nothing(rig: Rig, explain: Explain) -> None:
    alice = rig.client()
    rig.do(alice, Register(keys(b"a"), timeout_ns=HOUR, id=id_hash(b"one")), fire(b"a"))
    rig.do(alice, Register(keys(b"b", b"c"), needed=2, timeout_ns=HOUR))
    rig.acknowledge()
    Pen(rig.memory).set(Region.NODES, 1, "kind", 63)
    Pen(rig.memory).set(Region.IDS, 0, "outcome", 63)
    assert [key["key"] for key in explain("1.1")["keys"]] == ["c"]
    assert "unknown" in explain("one")["state"]


@pytest.mark.long
@settings(deadline=None)
@given(CHANGES)
def test_a_damaged_arena_is_explained_or_refused_by_name(sound: bytes, changes: list[Change]) -> None:
    """`explain` is asked for each number. It shows what it found or raises DamageError, and always ends."""
    damaged = changed(sound, changes)
    arguments = argparse.Namespace(
        instance=None, what=b"settled at first", by=None, purgatory=None, bytes=200, key=b"k0", offset=5
    )
    try:
        reader = ArenaReader.from_bytes(damaged)
    except REFUSALS:
        return
    with reader:
        for index in range(12):
            for generation in (1, 2):
                arguments.what = b"%d.%d" % (index, generation)
                with suppress(DamageError):
                    for facts in look_for(reader, arguments)[1]:
                        assert "\n".join(lines_of(facts.row()))
        with suppress(DamageError):
            list(watches(reader)), list(watermarks(reader))
