"""timerctl beside ids and names of calls that other users chose: control bytes, patterns, words of a shell."""

from __future__ import annotations

import json
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

import timerd as td
from support.real.daemons import Daemon
from support.real.patience import PATIENCE_S, eventually
from support.real.registries import serve
from support.real.shell import Run, json_of
from timerctl.exits import Exit
from timerctl.look import handlers
from timerd_client.groups import listing
from timerd_shm.declare.errors import TimerdUnavailableError

GROUP = "odd"
ID = "i\x1b[31mRED\nroot: all is well"
NAMES = ("send mail; echo pwned", "job[1]", "a*b?", "new\nline", "-o", "it's")
LATER_S = 3600


@pytest.fixture
def client(daemon: Daemon) -> Iterator[td.Client]:
    with td.connect(group=GROUP, timeout=PATIENCE_S) as made:
        yield made


def words_of(command: str) -> list[str]:
    """The arguments of timerctl that bash makes of a command line."""
    script = f'timerctl() {{ printf "%s\\0" "$@"; }}; {command}'
    printed = subprocess.run(["bash", "-c", script], capture_output=True, check=True).stdout
    return printed.decode("utf-8", "surrogateescape").split("\0")[:-1]


def rows_of(run: Run, *arguments: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json_of(run, "calls", *arguments)
    return found


@pytest.mark.long
def test_no_id_of_a_call_brings_control_bytes_to_a_terminal(client: td.Client, run: Run) -> None:
    client.call_later_wait("foo", LATER_S, b"x", id=ID)
    (row,) = rows_of(run)
    assert row["id"] == ID, "programs get the id as it is, in JSON"
    for command in (
        ("calls", "cancel", "foo"),
        ("explain", "foo"),
        ("explain", str(row["op"])),
        ("explain", ID),
        ("explain", ID[:-1]),
        ("calls",),
        ("calls", "cancel", ID),
    ):
        status, out, err = run(*command)
        assert "RED" in out, (command, status, err)
        assert "\x1b" not in out and "\nroot" not in out, command
    assert not rows_of(run), "the last command has cancelled it"


@pytest.mark.long
def test_a_command_line_of_a_hint_finds_the_call_by_whatever_name(client: td.Client, run: Run) -> None:
    for name in NAMES:
        client.call_later_wait(name, LATER_S, id=f"id of {name}")
    for name in NAMES:
        status, out, _ = run("explain", "--json", "--", name)
        assert status == Exit.PROBLEM
        (hint,) = (each for each in json.loads(out)["hints"] if each["kind"] == "name")
        found = rows_of(run, *words_of(hint["command"])[1:])
        assert [row["id"] for row in found] == [f"id of {name}"], hint["command"]
    near = json.loads(run("explain", "--json", "send mail; echo pwnd")[1])["hints"][0]["command"]
    assert [row["id"] for row in rows_of(run, *words_of(near)[1:])] == [f"id of {NAMES[0]}"], near


def test_reasons_are_found_for_a_name_with_odd_bytes_once_for_all_its_calls(
    client: td.Client, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: Counter[str] = Counter()
    for module in (handlers, listing):
        look = module.names_handled

        def counted(*given: Any, look: Any = look, name: str = module.__name__) -> tuple[int, ...]:
            looks[name] += 1
            return tuple(look(*given))

        monkeypatch.setattr(module, "names_handled", counted)
    name, calls, over = "new\nline", 12, threading.Event()
    registry = td.Calls()
    registry.handler(name)(lambda call: over.wait(PATIENCE_S))
    client.serve(registry, at_once=1)
    for _ in range(calls):
        client.call_later(name, 0)
    client.flush(timeout=PATIENCE_S)
    eventually(lambda: Counter(row["state"] for row in rows_of(run)) == {"runs": 1, "busy": calls - 1})
    looks.clear()
    rows = rows_of(run)
    over.set()
    for row in rows:
        assert row["name"] == "new\\nline" and [each["kind"] for each in row["hints"]] == (
            ["busy"] if row["state"] == "busy" else []
        )
    assert set(looks.values()) == {1}, f"one member, one name: {looks}"


@pytest.mark.long
def test_an_id_that_is_no_text_is_shown_alike_by_all_commands(client: td.Client, run: Run) -> None:
    given, shown = b"\xff".decode("utf-8", "surrogateescape"), "\\xff"
    for command in (("cancel",), ("explain",), ("calls", "cancel"), ("calls", "cancel", "--group", GROUP)):
        status, out, err = run(*command, given, "--json")
        assert (status, json.loads(out)["id"]) == (Exit.PROBLEM, shown), (command, err)
        status, out, err = run(*command, given)
        assert status == Exit.PROBLEM and shown in out + err, (command, out, err)


def test_a_letter_that_was_dropped_before_an_error_is_shown(
    client: td.Client, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(call: td.Call) -> None:
        raise ValueError("no")

    serve(client, "fails", fails)
    for _ in range(2):
        client.call_later("fails", 0)
    eventually(lambda: len(rows_of(run, "--failed")) == 2)
    first, second = (row["number"] for row in rows_of(run, "--failed"))
    drop = td.Client.drop_call_wait

    def dropped(client: td.Client, number: int, **more: Any) -> bool:
        if number == second:
            raise TimerdUnavailableError("the daemon has ended")
        return drop(client, number, **more)

    monkeypatch.setattr(td.Client, "drop_call_wait", dropped)
    status, out, err = run("calls", "drop", str(first), str(second), "--json")
    assert status not in (Exit.OK, Exit.PROBLEM) and "does not answer" in err, (status, err)
    assert json.loads(out) == {"rows": [{"number": first, "group": GROUP, "done": True}]}
