"""Members of a group: threaded and asyncio clients with real daemons, and workers that are killed or stopped."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import timerd as td
from support.real.daemons import Daemon
from support.real.patience import PATIENCE_S, eventually, stop
from support.real.registries import serve
from timerd import State
from timerd_client import aio


def member(**more: str) -> td.Client:
    return td.connect(group="web", timeout=PATIENCE_S, **more)  # type: ignore[arg-type]


@pytest.fixture
def client(daemon: Daemon) -> Iterator[td.Client]:
    with member() as made:
        yield made


def leave_to_group(*payloads: bytes) -> None:
    """Leave operations to the group: their owner ends at once, the group adopts them, and then they expire."""
    with member(orphans="group") as owner:
        for payload in payloads:
            owner.register("left/behind", timeout=60, payload=payload, id=payload)
    with member() as other:
        for payload in payloads:
            other.reschedule_wait(payload, 0)


# outcomes() -----------------------------------------------------------------------------------------------------------


def test_operations_left_to_a_group_are_delivered_to_a_member(client: td.Client) -> None:
    leave_to_group(b"mine")
    outcome = next(client.outcomes(timeout=PATIENCE_S))
    assert (outcome.state, outcome.payload, outcome.keys, outcome.deliveries) == (
        State.EXPIRED,
        b"mine",
        ("left/behind",),
        1,
    )


def test_an_outcome_with_ack_is_done_and_an_outcome_without_ack_is_redelivered(client: td.Client) -> None:
    leave_to_group(b"1", b"2")
    told = client.outcomes(timeout=PATIENCE_S)
    first, second = next(told), next(told)
    assert first.ack_wait()
    assert not first.ack_wait(), "the outcome was done twice"
    told.close()
    (again,) = client.outcomes(timeout=0.5)
    assert (again.payload, again.deliveries, again.redelivered) == (second.payload, 2, True)
    assert not second.ack_wait() or not again.ack_wait(), "the outcome was done twice"


def test_a_member_whose_loop_has_ended_stops_listening(client: td.Client) -> None:
    for _ in client.outcomes(timeout=0.05):
        raise AssertionError("there is no outcome yet")
    leave_to_group(b"later")
    with member() as other:
        outcome = next(other.outcomes(timeout=PATIENCE_S))
        assert (outcome.payload, outcome.deliveries) == (b"later", 1)
        outcome.ack()


def test_a_loop_ends_when_the_client_is_closed(client: td.Client) -> None:
    began, ended = threading.Event(), threading.Event()

    def iterate() -> None:
        for outcome in client.outcomes():
            outcome.ack()
            began.set()
        ended.set()

    thread = threading.Thread(target=iterate)
    thread.start()
    leave_to_group(b"the only one")
    assert began.wait(PATIENCE_S)
    client.close()
    assert ended.wait(PATIENCE_S)
    thread.join()
    with pytest.raises(td.ClosedError):
        client.outcomes()


def test_a_call_that_needs_a_group_raises_without_one(daemon: Daemon) -> None:
    with pytest.raises(td.NotAMemberError, match="group=NAME"):
        td.connect(orphans="group")
    with pytest.raises(td.InvalidNameError):
        td.connect(group="The Web")
    with td.connect(timeout=PATIENCE_S) as single:
        with pytest.raises(td.NotAMemberError):
            single.outcomes()
        with pytest.raises(td.NotAMemberError):
            single.call_later("job", 1)
        with pytest.raises(td.NotAMemberError):
            single.serve(td.Calls())
        with pytest.raises(td.NotAMemberError):
            single.register("k", timeout=1, group=True)
        with pytest.raises(td.NotAMemberError):
            single.register("k", timeout=1, orphans="group")


def test_a_pending_operation_may_be_left_to_the_group(client: td.Client) -> None:
    with member() as owner:
        owner.register("left/behind", timeout=0.05, payload=b"given").set_orphans("group")
        owner.register("left/behind", timeout=0.05, payload=b"kept to itself")
    (outcome,) = client.outcomes(timeout=0.3)
    assert outcome.payload == b"given"


def test_the_client_of_a_process_is_made_with_its_configuration(daemon: Daemon) -> None:
    """As with gunicorn --preload: the module is loaded before the fork, and each worker gets a client of its own."""
    program = """
import os, timerd as td
td.configure(group="web", orphans="group")
td.client().ready(timeout=10)
td.client().close()
for number in (1, 2):
    if os.fork() == 0:
        td.client().call_later("job", 0.01)
        print(td.client().cancel_call_wait("nothing"), flush=True)
        raise SystemExit
    os.wait()
try:
    td.client(); td.configure()
except td.InvalidValueError as error:
    print(error)
"""
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True)
    assert out.stdout.startswith("False\nFalse\nconfigure() after client()"), out


def test_an_asyncio_member_iterates_outcomes(daemon: Daemon) -> None:
    async def work() -> None:
        async with aio.connect(group="web", timeout=PATIENCE_S) as client:
            await asyncio.to_thread(leave_to_group, b"1", b"2")
            async for outcome in client.outcomes(timeout=PATIENCE_S):
                assert await outcome.ack_wait()
                if outcome.payload == b"2":
                    break

    asyncio.run(work())


def test_an_iterating_member_gets_no_calls_and_a_handling_member_no_outcomes(client: td.Client) -> None:
    """Outcomes that wait do not delay the calls of a member that handles calls. Calls that wait delay no outcomes."""
    calls: list[td.Call] = []
    serve(client, "job", calls.append)
    leave_to_group(*(b"%d" % number for number in range(300)))
    client.call_later("job", 0)
    eventually(lambda: len(calls) == 1)
    with member() as other:
        other.call_later("nobody's", 0)
        for number, outcome in enumerate(other.outcomes(timeout=PATIENCE_S), 1):
            assert (outcome.payload, outcome.deliveries) in {(b"%d" % which, 1) for which in range(300)}
            outcome.ack()
            if number == 300:
                break
    client.call_later("job", 0)
    eventually(lambda: len(calls) == 2)


# processes ------------------------------------------------------------------------------------------------------------

LISTENER = """
import sys, timerd as td
client = td.connect(group="web", timeout=10)
for outcome in client.outcomes(timeout=float(sys.argv[1])):
    print("told", outcome.payload.decode(), outcome.deliveries, flush=True)
    sys.stdin.readline()
    print("done", outcome.payload.decode(), outcome.ack_wait(), flush=True)
print("end", flush=True)
"""


@pytest.fixture
def listener(daemon: Daemon) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts processes that listen, and wait for a line before they acknowledge."""
    made: list[subprocess.Popen[str]] = []

    def start(timeout: float = PATIENCE_S) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", LISTENER, str(timeout)]
        made.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        return made[-1]

    yield start
    for process in made:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().rstrip()


def test_an_outcome_held_by_a_killed_process_is_redelivered(
    client: td.Client, listener: Callable[..., subprocess.Popen[str]]
) -> None:
    victim = listener()
    leave_to_group(b"x")
    assert line(victim) == "told x 1"
    victim.kill()
    told = client.outcomes(timeout=PATIENCE_S)  # kept: a freed iterator requeues what is not done
    outcome = next(told)
    assert (outcome.payload, outcome.deliveries, outcome.redelivered) == (b"x", 2, True)
    assert outcome.ack_wait()


def test_a_stopped_process_does_not_act_on_a_requeued_outcome(
    make_daemon: Callable[..., Daemon], listener: Callable[..., subprocess.Popen[str]], runtime_dir: Path
) -> None:
    make_daemon("--lease=2s", instance="short")
    os.environ["TIMERD_INSTANCE"] = "short"
    try:
        leave_to_group(b"1", b"2")
        stopped = listener(1.0)
        assert line(stopped) == "told 1 1"
        time.sleep(0.1)  # meanwhile the second outcome arrives in the listener's memory
        stop(stopped.pid)
        told = []
        with member() as other:
            for outcome in other.outcomes(timeout=PATIENCE_S):
                told.append((outcome.payload, outcome.deliveries))
                assert outcome.ack_wait()
                if len(told) == 2:
                    break
        assert told == [(b"1", 2), (b"2", 2)]
        stopped.send_signal(signal.SIGCONT)
        out, _ = stopped.communicate("\n\n", timeout=PATIENCE_S)
        assert out.splitlines() == ["done 1 False", "end"]
    finally:
        del os.environ["TIMERD_INSTANCE"]


# ends -----------------------------------------------------------------------------------------------------------------


def test_a_client_that_waits_for_its_handler_at_its_close_takes_no_more_calls(client: td.Client) -> None:
    begun, may_end = threading.Event(), threading.Event()
    closing = member()

    def first(call: td.Call) -> None:
        begun.set()
        may_end.wait(PATIENCE_S)

    serve(closing, "h", first, concurrency=4)
    client.call_later("h", 0, b"first")
    assert begun.wait(PATIENCE_S)
    end = threading.Thread(target=closing.close)
    end.start()
    try:
        eventually(lambda: closing._link.protocol.inbox._handling.known == ((), 4, ()), "the client still takes calls")
        came: list[bytes] = []
        serve(client, "h", lambda call: came.append(call.payload))
        for number in b"123456":
            client.call_later("h", 0, bytes([number]))
        eventually(lambda: sorted(came) == [b"1", b"2", b"3", b"4", b"5", b"6"])
    finally:
        may_end.set()
        end.join()
    eventually(lambda: not client.calls())  # a handler has appended to `came` before its call is acknowledged
    assert len(came) == 6
