"""What the daemon refuses though nobody waits for its answer: how its caller is told, and how everybody else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

import timerd as td
from commands import Register
from daemons import Daemon
from harness import S
from networks import World
from patience import eventually
from shell import Run, json_of
from timerd_client import aio
from timerd_client.timerctl.exits import Exit
from timerd_shm.errors import ErrorCode
from timerd_shm.layout import Region

MakeDaemon = Callable[..., Daemon]
ONE_WATERMARK = r"this client has set 1 watermarks, .*larger --quota-watermarks"


def test_a_refused_advance_is_raised_by_the_next_flush_and_by_it_alone(make_daemon: MakeDaemon) -> None:
    make_daemon("--quota-watermarks=1")
    with td.connect() as client:
        client.advance("a", 1)
        client.flush()
        for key in ("b", "c"):
            client.advance(key, 1)
        with pytest.raises(td.QuotaExceededError, match=f"2 commands were refused, the first: {ONE_WATERMARK}"):
            client.flush()
        client.advance("a", 2)
        client.flush()
        assert client.stats().commands_refused == 2


def test_and_by_close_where_nobody_flushes(make_daemon: MakeDaemon, caplog: pytest.LogCaptureFixture) -> None:
    make_daemon("--quota-watermarks=1")
    client = td.connect()
    client.advance("a", 1)
    client.advance("b", 1)
    with pytest.raises(td.QuotaExceededError, match=ONE_WATERMARK):
        client.close()
    assert client.closed
    assert "command 2 was refused" in caplog.text


def test_and_in_a_loop(make_daemon: MakeDaemon) -> None:
    make_daemon("--quota-watermarks=1")

    async def main() -> None:
        async with await aio.connect() as client:
            client.advance("a", 1)
            client.advance("b", 1)
            with pytest.raises(td.QuotaExceededError, match=ONE_WATERMARK):
                await client.flush()

    asyncio.run(main())


def test_what_has_an_operation_or_an_answer_is_told_there_alone(make_daemon: MakeDaemon) -> None:
    make_daemon("--quota-operations=1")
    with td.connect() as client:
        client.register("k", timeout=60)
        refused = client.register("k", timeout=60)
        with pytest.raises(td.UnknownOperationError):
            client.cancel("nobody")
        client.flush()
        assert isinstance(refused.result(5).error, td.QuotaExceededError)
        assert client.stats().commands_refused == 0


def test_a_refusal_at_a_shell_is_no_success(make_daemon: MakeDaemon, run: Run) -> None:
    make_daemon("--keys=1")
    assert run("advance", "a", "1") == (Exit.OK, "", "")
    status, out, err = run("advance", "b", "1")
    assert (status, out) == (Exit.PROBLEM, "")
    assert (
        err.startswith("timerctl: a command was refused: the arena is full: 1 of 1 keys are watched")
        and "--keys" in err
    )
    assert len(err.splitlines()) == 1
    (error,) = json_of(run, "errors")
    assert (error["error"], error["count"]) == ("ARENA_FULL", 1)


def test_the_log_has_every_refusal_by_its_reason_but_for_those_by_an_id(make_daemon: MakeDaemon, run: Run) -> None:
    daemon = make_daemon("--quota-operations=2", "--quota-watermarks=1")
    with td.connect() as client:
        client.register("k", timeout=60, id="one")
        known = client.register("k", timeout=60, id="one")
        assert isinstance(known.result(5).error, td.OperationExistsError)
        client.register("k", timeout=60)
        over = [client.register("k", timeout=60) for _ in range(3)]
        assert all(isinstance(one.result(5).error, td.QuotaExceededError) for one in over)
        with pytest.raises(td.UnknownOperationError):
            client.cancel("nobody")
        client.advance("a", 1)
        client.advance("b", 1)
        with pytest.raises(td.QuotaExceededError):
            client.flush()
    errors = {error["message"].partition(",")[0]: error for error in json_of(run, "errors")}
    assert set(errors) == {"a client holds 2 operations", "a client has set 1 watermarks"}
    counters = daemon.stats()["counters"]
    assert [error["count"] for error in errors.values()] == [3, 1]
    assert (counters["rejected"], counters["refused_by_id"]) == (4, 2)
    assert all(error["first"] <= error["last"] for error in errors.values())
    eventually(lambda: "a client holds 2 operations" in daemon.log, "its own log does not say so")


def test_many_refusals_of_a_kind_are_one_error() -> None:
    world = World().until_quiet()
    client = world.client("alice")
    for _ in range(3):
        client.send(*(Register((), timeout_ns=S) for _ in range(100)))
        world.settle()
    (error,) = [record for record in world.rig.arena.all_records(Region.ERRORS) if record.count]
    assert (error.code, error.count) == (ErrorCode.INVALID_KEY, 300)
