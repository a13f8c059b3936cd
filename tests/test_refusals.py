"""What the daemon refuses though nobody waits for its answer: how its caller is told, and how everybody else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

import timerd as td
from daemons import Daemon
from timerd_client import aio

MakeDaemon = Callable[..., Daemon]
ONE_WATERMARK = r"this client has set 1 watermarks, .*larger --quota-watermarks"


def test_a_refused_advance_is_raised_by_the_next_flush_and_by_it_alone(make_daemon: MakeDaemon) -> None:
    make_daemon("--quota-watermarks=1")
    with td.connect() as client:
        client.advance("a", 1)
        client.flush()
        for key in ("b", "c"):
            client.advance(key, 1)
        with pytest.raises(td.QuotaExceededError, match=f"since the last flush: 2; the first: {ONE_WATERMARK}"):
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
