"""How a request waits: on the manual clock, with an event loop that a test turns step by step."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

import timerd as td
from timerd.testing import Manual
from timerd_client.operations import Asked, Available, DelayedFetch
from timerd_kafka.waits.waits import GRACE_S, DaemonLost, Wait, Waits


class Loop(asyncio.SelectorEventLoop):
    """A loop on the manual clock."""

    manual: Manual

    def time(self) -> float:
        return self.manual.now


@pytest.fixture
def loop(manual: Manual) -> Iterator[Loop]:
    made = Loop()
    made.manual = manual
    yield made
    made.close()


@pytest.fixture
def client(manual: Manual) -> Iterator[td.Client]:
    with td.connect() as made:
        yield made


@pytest.fixture
def waits(client: td.Client, loop: Loop) -> Waits:
    return Waits(client, loop)


def turn(loop: Loop) -> None:
    """Run the callbacks that are ready in the loop."""
    loop.call_soon(loop.stop)
    loop.run_forever()


class Partition:
    def __init__(self) -> None:
        self.size = 0

    def look(self, key: str, offset: int) -> Available:
        return Available(self.size, self.size)


def begin(waits: Waits, partition: Partition, timeout: float = 5.0) -> Wait:
    return waits.begin("fetch", timeout, lambda give: DelayedFetch({"p": Asked(0)}, partition.look, give))


def test_a_wait_ends_in_the_loop_when_its_operation_does(manual: Manual, waits: Waits, loop: Loop) -> None:
    partition = Partition()
    wait = begin(waits, partition)
    manual.advance(1)
    partition.size = 1
    waits.fire("fetch", "p")
    manual.advance(0)
    assert not wait.future.done(), "the loop has not run its callback yet"
    turn(loop)
    assert wait.future.result() is None
    turn(loop)
    assert waits.pending == 0


def test_a_wait_ends_at_its_deadline(manual: Manual, waits: Waits, loop: Loop) -> None:
    wait = begin(waits, Partition())
    manual.advance(4.999)
    turn(loop)
    assert not wait.future.done()
    manual.advance(0.001)
    turn(loop)
    assert wait.future.done()


def test_a_request_that_is_answered_at_once_registers_nothing(manual: Manual, waits: Waits, loop: Loop) -> None:
    partition = Partition()
    partition.size = 9
    wait = begin(waits, partition)
    turn(loop)
    assert wait.future.done() and waits.client.stats().waiting == 0


@pytest.mark.parametrize("is_known", [True, False])
def test_a_wait_that_a_lost_daemon_does_not_end_is_ended_by_the_watch(
    manual: Manual, waits: Waits, loop: Loop, *, is_known: bool
) -> None:
    wait = begin(waits, Partition(), timeout=2.0)
    manual.advance(1)
    manual.stop()
    waits.daemon_ended = is_known
    late = begin(waits, Partition(), timeout=2.0)
    patience = 0.0 if is_known else GRACE_S
    manual.advance(0.999 + patience)
    waits.watch()
    turn(loop)
    assert not wait.future.done()
    manual.advance(0.001)
    waits.watch()
    turn(loop)
    assert isinstance(wait.future.exception(), DaemonLost)
    assert not late.future.done()
    manual.advance(1)
    waits.watch()
    assert isinstance(late.future.exception(), DaemonLost)
    manual.start()
    manual.advance(5)
    turn(loop)
    assert waits.client.stats().waiting == 0, "no operation stays registered for which nobody waits"


def test_a_daemon_that_is_back_in_time_ends_the_wait(manual: Manual, waits: Waits, loop: Loop) -> None:
    partition = Partition()
    wait = begin(waits, partition, timeout=30.0)
    manual.stop()
    partition.size = 1
    waits.fire("fetch", "p")
    manual.advance(0.5)
    manual.start()
    manual.advance(2)
    turn(loop)
    assert wait.future.result() is None


def test_a_request_whose_connection_ends_is_withdrawn(manual: Manual, waits: Waits, loop: Loop) -> None:
    async def request() -> None:
        await waits.until("fetch", 60.0, lambda give: DelayedFetch({"p": Asked(0)}, Partition().look, give))

    task = loop.create_task(request())
    turn(loop)
    manual.advance(0)
    assert waits.client.stats().waiting == 1
    task.cancel()
    turn(loop)
    manual.advance(1)
    turn(loop)
    assert (task.cancelled(), waits.pending, waits.client.stats().waiting) == (True, 0, 0)


@pytest.mark.long
def test_a_request_that_a_full_arena_refuses_ends_as_with_a_lost_daemon(
    manual: Manual, waits: Waits, loop: Loop
) -> None:
    made = [begin(waits, Partition(), timeout=600.0) for _ in range(5_000)]
    manual.advance(1)
    turn(loop)
    refused = [wait for wait in made if wait.future.done()]
    assert refused and len(refused) < len(made)
    assert all(isinstance(wait.future.exception(), DaemonLost) for wait in refused)


def test_a_daemon_that_stays_away_stops_no_loop(manual: Manual, waits: Waits, monkeypatch: pytest.MonkeyPatch) -> None:
    """At 65,536 unacknowledged commands (a full window) a call would wait for room, and block the broker's loop."""
    monkeypatch.setattr("timerd_kafka.waits.waits.COMMANDS_MAX", 100)
    manual.stop()
    for _ in range(101):
        waits.fire("fetch", "p")
    waits.watch()
    kept = waits.client.stats().unacknowledged
    waits.fire("fetch", "p")
    wait = begin(waits, Partition())
    assert isinstance(wait.future.exception(), DaemonLost)
    assert waits.client.stats().unacknowledged == kept
    manual.start()
    manual.advance(1)
    waits.watch()
    assert not begin(waits, Partition()).future.done()
