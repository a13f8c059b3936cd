"""How long a caller waits: one rule for every call that takes such a time, with threads and asyncio."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

import timerd as td
from support.real.daemons import Daemon
from support.real.faces import Face, LoopedFace
from support.real.patience import PATIENCE_S
from timerd_client.arguments import within

Call = Callable[[Face, Any, Any], Any]

WITHOUT_END: list[Any] = [None, math.inf, 1e300, 10**400, timedelta.max]
OVER: list[Any] = [0, 0.0, -1, -0.5, -math.inf, -(10**400), timedelta(0), timedelta(days=-1), timedelta.min]
NO_TIME: list[Any] = [math.nan, "1", b"1", True, 1j, [1]]


def settled(client: Any) -> Any:
    operation = client.register("k", timeout=PATIENCE_S)
    client.fire("k")
    return operation


def settled_rows(client: Any) -> Any:
    batch = client.register_many(["a", "b"], timeout=PATIENCE_S)
    client.fire_many(["a", "b"])
    return batch


def next_event(_: Face, client: Any, timeout: Any) -> Any:
    with client.subscribe("k") as subscription:
        client.fire("k")
        return subscription.next(timeout)


def first_event(_: Face, client: Any, timeout: Any) -> Any:
    with client.subscribe("k", timeout=timeout) as subscription:
        client.fire("k")
        return next(iter(subscription), None)


def outcome_of_group(face: Face, client: Any, timeout: Any) -> Any:
    return acknowledged(face, client, PATIENCE_S, timeout)


def acknowledged(face: Face, client: Any, timeout: Any, until_it_comes: Any = PATIENCE_S) -> Any:
    client.register("k", timeout=PATIENCE_S, group=True)
    client.fire("k")

    async def take() -> Any:
        async with aclosing(inside.outcomes(timeout=until_it_comes)) as outcomes:
            async for outcome in outcomes:
                return await outcome.ack_wait(timeout=timeout)

    if isinstance(face, LoopedFace):
        inside = face.inside(client)
        return face.call(take)
    for outcome in client.outcomes(timeout=until_it_comes):
        return outcome.ack_wait(timeout=timeout)


def fired_together(face: Face, client: Any, timeout: Any) -> Any:
    inside = face.inside(client) if isinstance(face, LoopedFace) else client
    return client.fire_together_wait([(inside, "k", b"1")], timeout=timeout)


def connected(face: Face, _: Any, timeout: Any) -> Any:
    with face.connect(timeout=timeout) as other:
        return other.ping()


def closed(face: Face, _: Any, timeout: Any) -> Any:
    other = face.connect(timeout=PATIENCE_S)
    other.fire("k")
    other.close(timeout=timeout)


def waited_for(_: Face, client: Any, timeout: Any) -> Any:
    looks = iter(range(9))

    def fires_at_first() -> int:
        client.fire("k")
        return next(looks)

    return client.wait_for(fires_at_first, "k", timeout=timeout)


# Calls that return within milliseconds if their timeout is above 0. With a timeout of 0 they return at once, or raise.
CALLS: dict[str, Call] = {
    "connect": connected,
    "close": closed,
    "ready": lambda _, c, timeout: c.ready(timeout=timeout),
    "flush": lambda _, c, timeout: c.flush(timeout=timeout),
    "ping": lambda _, c, timeout: c.ping(timeout=timeout),
    "purgatory": lambda _, c, timeout: c.purgatory("other", timeout=timeout),
    "fire_wait": lambda _, c, timeout: c.fire_wait("k", timeout=timeout),
    "fire_together_wait": fired_together,
    "register_many_wait": lambda _, c, timeout: c.register_many_wait(["k"], timeout=9, receipt_timeout=timeout),
    "cancel_for_key_wait": lambda _, c, timeout: c.cancel_for_key_wait("k", timeout=timeout),
    "cancel_wait of an id": lambda _, c, timeout: (
        c.register("k", timeout=9, id=(name := uuid4().hex)),
        c.cancel_wait(name, timeout=timeout),
    ),
    "reschedule_wait of an id": lambda _, c, timeout: (
        c.register("k", timeout=9, id=(name := uuid4().hex)),
        c.reschedule_wait(name, 9, timeout=timeout),
    ),
    "watermark": lambda _, c, timeout: c.watermark("k", timeout=timeout),
    "check_and_complete": lambda _, c, timeout: c.check_and_complete("k", timeout=timeout),
    "result": lambda _, c, timeout: settled(c).result(timeout),
    "cancel_wait": lambda _, c, timeout: c.register("k", timeout=9).cancel_wait(timeout=timeout),
    "reschedule_wait": lambda _, c, timeout: c.register("k", timeout=9).reschedule_wait(8, timeout=timeout),
    "outcomes of a batch": lambda _, c, timeout: settled_rows(c).outcomes(timeout),
    "states": lambda _, c, timeout: settled_rows(c).states(timeout),
    "values": lambda _, c, timeout: settled_rows(c).values(timeout),
    "completed": lambda _, c, timeout: settled_rows(c).completed(timeout),
    "cancel_wait of a batch": lambda _, c, timeout: settled_rows(c).cancel_wait(timeout=timeout),
    "wait": lambda face, c, timeout: face.wait([settled(c), settled(c)], timeout).done,
    "as_completed": lambda face, c, timeout: list(face.as_completed([settled(c)], timeout)),
    "wait_for": waited_for,
    "next": next_event,
    "subscribe": first_event,
    "outcomes": outcome_of_group,
    "ack_wait": acknowledged,
    "call_later_wait": lambda _, c, timeout: c.call_later_wait("remind", 9, timeout=timeout),
    "call_at_wait": lambda _, c, timeout: c.call_at_wait("remind", datetime.now(UTC), timeout=timeout),
    "cancel_call_wait": lambda _, c, timeout: (
        c.call_later("remind", 9, id=(name := uuid4().hex)),
        c.cancel_call_wait(name, timeout=timeout),
    ),
    "reschedule_call_wait": lambda _, c, timeout: (
        c.call_later("remind", 9, id=(name := uuid4().hex)),
        c.reschedule_call_wait(name, 9, timeout=timeout),
    ),
}


@pytest.fixture
def daemon(shared_daemon: Daemon) -> Daemon:
    return shared_daemon


@pytest.fixture
def member(daemon: Daemon, face: Face) -> Any:
    with face.connect(timeout=PATIENCE_S, group="web") as made:
        yield made


@pytest.mark.parametrize("call", CALLS)
def test_each_wait_takes_none_and_inf_for_a_wait_without_end(face: Face, member: Any, call: str) -> None:
    for timeout in WITHOUT_END:
        CALLS[call](face, member, timeout)


@pytest.mark.parametrize("call", CALLS)
def test_each_wait_with_a_time_of_zero_or_less_is_over_at_once(face: Face, member: Any, call: str) -> None:
    for timeout in OVER:
        try:
            CALLS[call](face, member, timeout)
        except (td.TimerdUnavailableError, td.CheckIncompleteError, TimeoutError) as error:
            assert " 0 s" in str(error)


@pytest.mark.parametrize("call", CALLS)
def test_each_wait_refuses_what_is_no_time(face: Face, member: Any, call: str) -> None:
    for timeout in NO_TIME:
        with pytest.raises(td.TimeoutOutOfRangeError, match=r"timeout=.*: give the time to wait, as seconds or a"):
            CALLS[call](face, member, timeout)


def test_snapshots_and_delayed_operations_take_the_same_times(daemon: Daemon) -> None:
    with td.connect(timeout=math.inf) as client:
        assert client.snapshot(timeout=math.inf)
        with pytest.raises(td.TimeoutOutOfRangeError):
            client.snapshot(timeout=math.nan)
        operation = client.try_complete_else_watch(lambda: False, "k", timeout=9)
        assert operation.force_complete_wait(timeout=math.inf) and operation.settled(math.inf)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (4.99975, "5 s"),
        (0.2499, "0.25 s"),
        (1.25, "1.25 s"),
        (0.0004, "0.0004 s"),
        (86_400, "86400 s"),
        (100.5, "100.5 s"),
    ],
)
def test_messages_round_the_time_that_a_caller_waits(seconds: float, words: str) -> None:
    assert within(seconds) == f"within {words}"
