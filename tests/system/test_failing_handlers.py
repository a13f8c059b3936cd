"""Handlers that fail, with real daemons: errors of any kind, and retries of their dead letters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import timerd as td
from support.real.daemons import Daemon
from support.real.patience import PATIENCE_S, eventually
from support.real.registries import serve
from timerd_client import aio
from timerd_client.groups.plan import Plan


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.01)


class Abort(BaseException):
    """An error that no `except Exception` catches, as some libraries raise."""


class Mute(Exception):
    """An error whose text cannot be made."""

    def __str__(self) -> str:
        raise ValueError("no text")


@pytest.mark.parametrize("kind", [SystemExit, Abort, Mute])
@pytest.mark.parametrize("face", ["threads", "tasks", "tasks, plain function"])
def test_a_handler_has_failed_whatever_it_raises(daemon: Daemon, face: str, kind: type[BaseException]) -> None:
    """In an earlier version, some of these calls ended an asyncio worker, then the next worker that got the call, and
    so on. Others never ended.
    """

    def raises(call: td.Call) -> None:
        raise kind

    async def awaited(call: td.Call) -> None:
        await asyncio.sleep(0)
        raise kind

    async def work(client: aio.Client) -> None:
        serve(client, "job", awaited if face == "tasks" else raises)
        await client.call_later_wait("job", 0)
        await until(client.dead_letters)
        check(client)

    async def main() -> None:
        async with aio.connect(group="web", timeout=PATIENCE_S) as client:
            await work(client)

    def check(client: td.Client | aio.Client) -> None:
        assert [letter.reason.split(":")[0] for letter in client.dead_letters()] == [kind.__name__]
        assert not client.calls()

    if face != "threads":
        asyncio.run(main())
        return
    with td.connect(group="web", timeout=PATIENCE_S) as client:
        serve(client, "job", raises)
        client.call_later("job", 0)
        eventually(client.dead_letters)
        check(client)


@pytest.mark.parametrize("name", ["mail", "größe", "a\ttab", "no\u00a0break"])
def test_a_dead_letter_is_retried_whatever_its_name(daemon: Daemon, name: str) -> None:
    """Names are shown with escapes. An earlier version retried the call by its shown name, which no worker handles."""
    attempts: list[int] = []

    def fails_first(call: td.Call) -> None:
        attempts.append(call.attempt)
        if len(attempts) == 1:
            raise RuntimeError

    with td.connect(group="web", timeout=PATIENCE_S) as client:
        serve(client, name, fails_first)
        client.call_later_wait(name, 0)
        eventually(client.dead_letters)
        assert client.retry_call_wait(client.dead_letters()[0].number)
        eventually(lambda: len(attempts) == 2 and not client.calls())
        assert not client.dead_letters()


def test_a_call_of_another_program_is_a_dead_letter_that_is_listed_and_dropped(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call has no plan before its payload. An earlier version did not list such a call, so nobody could drop it."""
    with td.connect(group="web", timeout=PATIENCE_S) as client:
        with monkeypatch.context() as patched:
            patched.setattr(Plan, "pack", lambda self: b"")
            client.call_later_wait("job", 0, b"another program's")
        listed = ("job", "unhandled", b"another program's")  # at first it is pending: it is due with the next tick
        eventually(lambda: [(call.name, call.state, call.payload) for call in client.calls()] == [listed])
        serve(client, "job", lambda call: None)
        eventually(client.dead_letters)
        (letter,) = client.dead_letters()
        assert "whose plan this client cannot read" in letter.reason and letter.payload == b"another program's"
        assert client.drop_call_wait(letter.number) and not client.dead_letters()


@pytest.mark.parametrize(
    ("count", "words"), [(1, "1 handler still ran: its call is"), (2, "2 handlers still ran: their calls are")]
)
def test_a_close_that_is_out_of_patience_counts_the_handlers_that_still_ran(
    daemon: Daemon, caplog: pytest.LogCaptureFixture, count: int, words: str
) -> None:
    async def main() -> None:
        begun = 0

        async def handler(call: td.Call) -> None:
            nonlocal begun
            begun += 1
            await asyncio.Event().wait()

        client = await aio.connect(group="web", timeout=PATIENCE_S)
        serve(client, "h", handler, concurrency=2)
        for _ in range(count):
            client.call_later("h", 0)
        async with asyncio.timeout(PATIENCE_S):
            while begun < count:
                await asyncio.sleep(0.001)
        await client.close(timeout=0.01)

    asyncio.run(main())
    assert words in caplog.text
