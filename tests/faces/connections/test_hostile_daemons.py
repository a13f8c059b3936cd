"""A client beside a hostile daemon, over real sockets: each odd answer is a TimerdError that says what was odd."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import timerd as td
from support.fakes.hostile_daemon import HostileDaemon
from support.fakes.mutations import down
from support.real.patience import PATIENCE_S
from timerd_shm.declare.errors import MalformedError
from timerd_shm.declare.fields import offset_of, size_of
from timerd_shm.declare.wire import OutcomeRecord, ReportHeader
from timerd_shm.host.paths import InstancePaths

TRANSPORTS: tuple[td.Transport, ...] = ("zeromq", "unix")
STATE = size_of(ReportHeader) + offset_of(OutcomeRecord, "state")
ROUNDS = 40


@pytest.fixture
def hostile(runtime_dir: Path) -> Iterator[HostileDaemon]:
    with HostileDaemon(InstancePaths(runtime_dir, "default")) as daemon:
        yield daemon


def in_state(state: int) -> Callable[[bytes], list[bytes]]:
    """Change the state of the first outcome of each report."""

    def change(frame: bytes) -> list[bytes]:
        if len(frame) < size_of(ReportHeader) + size_of(OutcomeRecord) or frame[offset_of(ReportHeader, "kind")] != 1:
            return [frame]
        return [frame[:STATE] + bytes([state]) + frame[STATE + 1 :]]

    return change


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_odd_answers_to_questions_are_errors_that_show_them(hostile: HostileDaemon, transport: td.Transport) -> None:
    with td.connect(transport=transport, timeout=PATIENCE_S) as client:
        for answer, shown in (
            ({"watermark": "x"}, "watermark is 'x'"),
            ({"watermark": 5}, "index is None"),
            ({"watermark": 5, "index": 1, "hash": 1.5}, "hash is 1.5"),
            ({"watermark": -1, "index": 1, "hash": 1}, "watermark is -1"),
        ):
            hostile.results["watermark"] = answer
            with pytest.raises(MalformedError, match=f"the daemon's answer is odd: {shown}"):
                client.watermark("k", timeout=PATIENCE_S)
        for path in ("/etc/passwd", "../default.snapshot.x", 7, None, "/x/other.snapshot.1"):
            hostile.results["snapshot"] = {"path": path}
            with pytest.raises(MalformedError, match="the daemon's answer is odd: path is "):
                client.snapshot(timeout=PATIENCE_S)
        hostile.results["snapshot"] = {"path": "/elsewhere/default.snapshot.17"}
        assert client.snapshot(timeout=PATIENCE_S) == str(hostile.paths.snapshot(17)), "the directory is this client's"

    async def ask() -> None:
        async with td.aio.connect(transport=transport, timeout=PATIENCE_S) as client:
            hostile.results["watermark"] = {"watermark": "x"}
            with pytest.raises(MalformedError, match="watermark is 'x'"):
                await client.watermark("k", timeout=PATIENCE_S)

    asyncio.run(ask())


@pytest.mark.parametrize("state", [0, 5, 6, 255])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_state_that_no_operation_has_is_unavailable_and_says_so(
    hostile: HostileDaemon, transport: td.Transport, state: int
) -> None:
    hostile.twist = in_state(state)
    with td.connect(transport=transport, timeout=PATIENCE_S) as client:
        operation = client.register("k", timeout=None)
        client.fire("k", value=b"v")
        outcome = operation.result(PATIENCE_S)
        batch = client.register_many(["b"], timeout=None)
        client.fire("b")
        assert batch.states(timeout=PATIENCE_S) == [td.State.UNAVAILABLE]
        for each in (outcome, *batch.outcomes()):
            assert each.state is td.State.UNAVAILABLE and not each
            with pytest.raises(MalformedError, match=f"settled in state {state}, which no operation has"):
                each.check()
            assert f"state {state}" in repr(each) and each.lateness_ns == 0


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_random_frames_of_a_daemon_raise_nothing_but_errors_of_timerd(
    hostile: HostileDaemon, transport: td.Transport, seed: int
) -> None:
    draw = random.Random(seed)
    corpus = list(down(5, 77).values())

    def twist(frame: bytes) -> list[bytes]:
        kind = draw.randrange(6)
        if kind == 0:
            return [draw.randbytes(draw.randrange(200))]
        if kind == 1:
            return [draw.choice(corpus), frame]
        if kind == 2:
            at = draw.randrange(len(frame) + 1)
            return [frame[:at] + draw.randbytes(draw.randrange(9)) + frame[at + draw.randrange(9) :]]
        return [frame]

    def attempt(call: Callable[[], object]) -> None:
        try:
            call()
        except td.TimerdError:
            pass

    hostile.results["snapshot"] = {"path": 1}
    with td.connect(transport=transport, timeout=PATIENCE_S) as client:
        hostile.twist = twist
        for number in range(ROUNDS):
            operation = client.register(f"k{number}", timeout=0.01, payload=b"p")
            client.fire(f"k{number}", value=bytes(draw.randrange(100)))
            attempt(lambda: client.fire_wait("k", timeout=0.005))
            attempt(lambda: client.watermark("k", timeout=0.005))
            td.wait([operation], timeout=0.005)
            outcome = operation.outcome()
            if outcome is not None:
                assert repr(outcome)
                attempt(outcome.check)
        hostile.twist = lambda frame: [frame]
        attempt(lambda: client.close(timeout=0.1))
    assert hostile.hellos < 3 * ROUNDS
