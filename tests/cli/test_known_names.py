"""timerctl is given the name of another thing: a key, a number, a client, or a name that nothing has."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import timerd as td
from support.real.daemons import Daemon
from support.real.patience import PATIENCE_S
from support.real.remains import bury
from support.real.shell import Explain, Run, json_of
from support.rig.commands import Key, Register
from support.rig.harness import Rig, S, cancel_for_key
from timerctl.exits import Exit
from timerctl.look.clients import percent
from timerctl.show.table import Column, Table
from timerd_shm.read.hashing import id_hash

HOUR = 3_600 * S
Listed = Callable[..., Any]


@pytest.fixture
def listed(rig: Rig, run: Run, runtime_dir: Path) -> Listed:
    """The document of a command about the arena as it is now, whose daemon is dead."""

    def document(*arguments: str) -> Any:
        bury(rig, runtime_dir)
        return json.loads(run(*arguments, "--json")[1])

    return document


@pytest.fixture
def client(daemon: Daemon) -> Iterator[td.Client]:
    with td.connect(timeout=PATIENCE_S) as made:
        yield made


def waits(key: bytes, **more: Any) -> Register:
    return Register((Key(key),), timeout_ns=HOUR, **more)


def commands(row: Any) -> list[str | None]:
    return [each["command"] for each in row["hints"]]


# a key instead of an id -----------------------------------------------------------------------------------------------


def test_explain_of_a_key_says_how_many_operations_watch_it(rig: Rig, explain: Explain, run: Run) -> None:
    rig.do(rig.client(), waits(b"bulk/0"), waits(b"bulk/0"), waits(b"Job", id=id_hash(b"order-77")))
    row = explain("bulk/0", status=Exit.PROBLEM)
    assert row["text"] == "No operation of id bulk/0 is known: bulk/0 is a key."
    assert (row["hints"][0]["text"], commands(row)[0]) == (
        "2 operations watch the key bulk/0",
        "timerctl ops --key bulk/0",
    )
    assert "never registered" not in run("explain", "bulk/0")[1]
    assert "timerctl ops --key bulk/0" in commands(explain("bluk/0", status=Exit.PROBLEM))
    assert "timerctl explain order-77" in commands(explain("order-7", status=Exit.PROBLEM)), "a near id"


# a number instead of an id --------------------------------------------------------------------------------------------


def test_cancel_of_a_number_says_what_it_is_and_what_would_cancel_it(client: td.Client, run: Run) -> None:
    for id in (None, None, "job"):
        client.register_wait("k", timeout=3_600, id=id)
    first, _, third = (row["number"] for row in json_of(run, "ops"))
    status, out, err = run("cancel", first)
    assert (status, out) == (Exit.PROBLEM, "")
    assert f"{first} is the number of a pending operation without an id, and `timerctl cancel` takes an id" in err
    assert "A cancel for the key k cancels it, and 2 other operations." in err
    assert "timerctl cancel-for-key k\n" in err and "never registered" not in err
    assert "with an id, of which the arena has only a hash" in run("cancel", third)[2]
    assert "timerctl cancel ID\n" in run("cancel", third)[2]
    assert "`timerctl reschedule` takes an id" in run("reschedule", first, "--timeout", "5s")[2]
    assert f"{first} is the number of a pending operation" in run("calls", "cancel", first)[1]
    assert "  timerctl cancel-for-key k\n" in run("cancel", "k")[2], "a key"


# names that nothing has -----------------------------------------------------------------------------------------------


def test_a_filter_with_a_name_that_nothing_has_is_answered_with_near_names(rig: Rig, listed: Listed, run: Run) -> None:
    rig.do(rig.client(name=b"waiter", group=b"workers"), waits(b"order/7/packed"))
    rig.core.purgatory(b"fetching")
    near = "timerctl ops --key order/7/packed"
    assert commands(listed("ops", "--key", "order/7/pakced")) == [near]
    assert "There is a key near it: order/7/packed" in run("ops", "--key", "order/7/pakced")[1]
    assert commands(listed("ops", "--client", "wiater")) == ["timerctl ops --client waiter"]
    assert commands(listed("ops", "--purgatory", "fecthing")) == ["timerctl ops --purgatory fetching"]
    assert commands(listed("keys", "--match", "order/7/pakced")) == ["timerctl keys --match order/7/packed"]
    assert commands(listed("keys", "--purgatory", "fecthing")) == ["timerctl keys --purgatory fetching"]
    assert commands(listed("calls", "--group", "wrokers")) == ["timerctl calls --group workers"]
    assert listed("ops", "--key", "order/7/packed")["hints"] == []


def test_a_subscription_without_an_event_names_near_keys(client: td.Client, run: Run) -> None:
    client.register_wait("order/7/packed", timeout=3_600)
    status, out, err = run("subscribe", "order/7/pakced", "--timeout", "1ms")
    assert (status, out) == (Exit.PROBLEM, "") and "  timerctl subscribe order/7/packed\n" in err
    assert run("subscribe", "order/7/packed", "--timeout", "1ms") == (Exit.PROBLEM, "", "")


# watermarks -----------------------------------------------------------------------------------------------------------


def test_fire_on_a_key_with_a_watermark_says_that_nothing_waited_for_an_event(client: td.Client, run: Run) -> None:
    client.register_wait({"part/0": 5}, timeout=3_600)
    client.advance("part/1", 3)
    client.flush()
    assert "Just before, nothing waited for an event on part/0." in run("fire", "part/0")[1]
    client.cancel_for_key_wait("part/0")
    (hint,) = json_of(run, "fire", "part/9")["hints"]
    assert hint["command"] == "timerctl advance part/1 OFFSET" and "which has the watermark 3" in hint["text"]
    (hint,) = json_of(run, "advance", "part/2", "3")["hints"]
    assert hint["command"] == "timerctl advance part/1 OFFSET"
    assert "had the watermark 3, which stays" in run("advance", "part/1", "3")[1]


# clients --------------------------------------------------------------------------------------------------------------


def test_operations_are_listed_by_the_name_of_their_clients(rig: Rig, listed: Listed) -> None:
    for name in (b"waiter", b"waiter", b"other"):
        rig.do(rig.client(name=name), waits(b"k"))
    assert [row["client"] for row in listed("ops", "--client", "waiter")["rows"]] == [0, 1]
    assert [row["client"] for row in listed("ops", "--client", "2")["rows"]] == [2]


def test_clients_are_sorted_and_limited(rig: Rig, listed: Listed, run: Run) -> None:
    for name, count in ((b"few", 1), (b"most", 3), (b"some", 2)):
        rig.do(rig.client(name=name), *[waits(b"k")] * count)
    assert [row["name"] for row in listed("clients")["rows"]] == ["most", "some", "few"]
    assert [row["name"] for row in listed("clients", "--sort", "name")["rows"]] == ["few", "most", "some"]
    assert [row["name"] for row in listed("clients", "--sort", "slot")["rows"]] == ["few", "most", "some"]
    cut = listed("clients", "--sort", "share", "--limit", "1")
    assert ([row["name"] for row in cut["rows"]], cut["more"]) == (["most"], True)
    assert "2 more: raise --limit (1)." in run("clients", "--limit", "1")[1]


def test_a_small_share_has_digits_that_show_its_order() -> None:
    shares = [(97, 100), (5, 100), (20, 65_536), (1, 65_536), (1, 10_000_000)]
    assert [percent(*each) for each in shares] == ["97", "5.0", "0.030", "0.001", "<0.001"]


# columns --------------------------------------------------------------------------------------------------------------


def test_columns_that_are_left_out_are_named(
    rig: Rig, listed: Listed, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table(Column("n"), Column("a", optional=True), Column("b", optional=True))
    assert table.left_out([("x" * 30, "y", "z")], 33) == [
        "Columns without room: b (--json",
        "or COLUMNS=250 shows them)",
    ]
    assert table.left_out([("x" * 30, "y", "z")], 80) == []
    rig.do(rig.client(name=b"waiter"), waits(b"k" * 40))
    listed("ops")
    monkeypatch.setenv("COLUMNS", "80")
    for command in ("ops", "clients"):
        out = run(command)[1]
        assert "Columns without room: " in out and max(map(len, out.splitlines())) <= 80
    monkeypatch.setenv("COLUMNS", "250")
    assert "Columns without room" not in run("ops")[1] + run("clients")[1]


# numbers of freed records ---------------------------------------------------------------------------------------------


def test_a_cancelled_operation_is_explained_by_its_number_until_its_record_is_used_again(
    rig: Rig, explain: Explain
) -> None:
    alice = rig.client()
    rig.do(alice, waits(b"k"), cancel_for_key(b"k"))
    rig.acknowledge()
    rig.now_ns += S
    row = explain("0.1")
    assert row["state"] == "cancelled" and "It was cancelled 1.00 s ago" in row["text"]
