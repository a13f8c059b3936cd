"""Which thread sends a command, and how often. The daemon is in memory.

In a threaded client a caller sends if the link was quiet before, else the client's thread sends at intervals. In
asyncio the loop sends after the iteration that issued something. Tests of intervals, callers and locks use threaded
clients.
"""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, cast

import pytest

from support.fakes.no_sockets import NOWHERE, new_protocol
from support.fakes.prompt_sockets import Sockets
from support.real.faces import THREADED, Face
from support.real.patience import eventually
from timerd_client import aio
from timerd_client.aio.link import LoopLink
from timerd_client.groups.duties import Duty
from timerd_client.groups.steps import Pause, Run, Steps
from timerd_client.protocol.state import LinkState
from timerd_client.threaded.client import Client
from timerd_client.threaded.io_thread import IoThread
from timerd_client.threaded.link import ThreadedLink
from timerd_client.threaded.member import Runner
from timerd_client.threaded.sender import SEND_BURST, SEND_COMMANDS, SEND_INTERVAL_NS, SEND_INTERVAL_NS_MAX
from timerd_client.waits.condition import Condition
from timerd_client.waits.gate import Gate

PATIENCE_S = 10.0


class Idle(IoThread):
    """A thread that ends at once."""

    def _run(self) -> None:
        """Nothing to do."""


class Stepped(ThreadedLink):
    """A link that makes a pass when the test calls `step`, on a clock that the test moves."""

    THREAD = Idle

    def __init__(self, sockets: Sockets) -> None:
        self.at_ns = 10_000_000_000
        super().__init__(NOWHERE, new_protocol(self.at_ns), sockets, lambda: self.at_ns)

    def step(self, by_ns: int) -> None:
        """A pass, `by_ns` later."""
        self.at_ns += by_ns
        self.idle = False
        assert self.thread.exchange()


@pytest.fixture
def sockets() -> Sockets:
    return Sockets()


@pytest.fixture
def client(face: Face, sockets: Sockets) -> Iterator[Any]:

    def make() -> Client | aio.Client:
        if face.name == "threaded":
            return Client._over(ThreadedLink(NOWHERE, new_protocol(), sockets))
        return aio.Client._over(LoopLink(NOWHERE, new_protocol(), sockets))

    client = face.run(make)
    client.ready(timeout=PATIENCE_S)
    assert client.state is LinkState.LIVE
    yield client
    sockets.full = False
    client.close()


def live(sockets: Sockets) -> tuple[Client, Stepped]:
    """A quiet client, whose clock the test moves."""
    link = Stepped(sockets)
    client = Client._over(link)
    while link.protocol.state is not LinkState.LIVE:
        link.step(SEND_INTERVAL_NS)
    link.step(SEND_BURST * SEND_INTERVAL_NS)
    return client, link


def test_a_caller_sends_its_command_itself_on_a_quiet_link(sockets: Sockets) -> None:
    client, link = live(sockets)
    for number in range(5):
        link.step(2 * SEND_BURST * SEND_INTERVAL_NS)
        client.fire("k")
        assert [count for _, count, _ in sockets.commands()] == [1] * (number + 1)
    link.end()


@THREADED
def test_under_load_the_piled_up_commands_are_sent_in_each_interval(client: Client, sockets: Sockets) -> None:
    events = 20_000
    began_ns = time.monotonic_ns()
    for _ in range(events):
        client.fire("k")
    client.flush(timeout=PATIENCE_S)
    frames = sockets.commands()
    assert sum(count for _, count, _ in frames) == events == sockets.daemon.applied
    took_ns = frames[-1][0] - began_ns
    assert len(frames) <= took_ns / SEND_INTERVAL_NS + SEND_BURST + 1, f"{len(frames)} frames in {took_ns} ns"


def test_commands_of_one_iteration_of_a_loop_are_sent_as_one_batch(sockets: Sockets) -> None:
    async def main() -> None:
        client = aio.Client._over(LoopLink(NOWHERE, new_protocol(), sockets))
        await client.ready(timeout=PATIENCE_S)
        for number in range(3):
            for _ in range(100):
                client.fire("k")
            assert len(sockets.commands()) == number
            await client.flush(timeout=PATIENCE_S)
            assert [count for _, count, _ in sockets.commands()] == [100] * (number + 1)
        await client.close()

    asyncio.run(main())


def test_a_flush_and_a_full_window_ask_for_a_confirmation(client: Any, sockets: Sockets) -> None:
    """A usual daemon would confirm with its next outcome, or later. This daemon confirms only when it is asked."""
    sockets.daemon.confirms_unasked = False
    client.fire("k")
    client.flush(timeout=PATIENCE_S)
    link = client._link
    link.protocol.ledger.window = 4
    for _ in range(20):
        if link.protocol.outgoing.room <= 0 and hasattr(client, "room"):
            client.room(PATIENCE_S)
        client.fire("k")
    client.flush(timeout=PATIENCE_S)
    assert sockets.daemon.applied == 21
    assert len(sockets.daemon.hellos) == 1, "a client that has waited for 3 s says hello once more"


def test_the_last_of_many_calls_is_sent_although_nothing_follows(client: Any, sockets: Sockets) -> None:
    for _ in range(3 * SEND_BURST):
        last = client.register("k", timeout=PATIENCE_S)
    end = time.monotonic() + PATIENCE_S
    while sockets.daemon.applied < last.command:
        assert time.monotonic() < end, f"{last.command - sockets.daemon.applied} commands were not sent"
        time.sleep(0.001)


def test_a_link_is_quiet_again_after_a_burst(sockets: Sockets) -> None:
    client, link = live(sockets)
    for _ in range(100):
        client.fire("k")
    assert sockets.daemon.applied < 100, "callers sent all commands"
    for _ in range(100):
        if link.idle:
            break
        link.step(SEND_INTERVAL_NS_MAX)
    assert link.idle and sockets.daemon.applied == 100
    before = len(sockets.commands())
    link.step(2 * SEND_BURST * SEND_INTERVAL_NS)
    client.fire("k")
    assert len(sockets.commands()) == before + 1
    link.end()


def test_a_pass_for_another_reason_sends_the_commands_that_are_due_soon(sockets: Sockets) -> None:
    client, link = live(sockets)
    protocol = link.protocol

    def kept() -> int:
        return protocol.ledger.issued - sum(count for _, count, _ in sockets.commands())

    for _ in range(SEND_BURST + 1):  # callers send all of them except the last
        client.fire("k")
    assert kept() == 1
    link.step(SEND_INTERVAL_NS)
    assert kept() == 0
    interval_ns = link.sender.due_ns() - link.at_ns
    assert sockets.wake_ns < interval_ns < SEND_INTERVAL_NS_MAX
    client.fire("k")
    link.step(interval_ns // 2 - 1)
    assert kept() == 1, "too soon after the last frame"
    link.step(1)
    assert kept() == 0
    link.end()


def test_commands_that_a_full_socket_does_not_take_are_sent_when_it_has_room(client: Any, sockets: Sockets) -> None:
    sockets.full = True
    for _ in range(50):
        client.fire("k")
    time.sleep(0.01)
    assert not sockets.commands()
    sockets.make_room()
    client.flush(timeout=PATIENCE_S)
    assert sockets.daemon.applied == 50


def test_commands_that_a_callback_issues_are_sent(client: Any, sockets: Sockets) -> None:
    told = threading.Event()

    def on_done(_: object) -> None:
        for _ in range(10):
            client.fire("other")
        told.set()

    client.register("k", timeout=PATIENCE_S).add_done_callback(on_done)
    client.fire("k")
    assert told.wait(PATIENCE_S)
    client.flush(timeout=PATIENCE_S)
    assert sockets.daemon.applied == 12


@THREADED
def test_a_busy_caller_sends_when_the_thread_does_not_run(client: Client, sockets: Sockets) -> None:
    busy, go_on = threading.Event(), threading.Event()

    def on_done(_: object) -> None:
        busy.set()
        go_on.wait(PATIENCE_S)

    client.register("first", timeout=PATIENCE_S).add_done_callback(on_done)
    client.fire("first")
    assert busy.wait(PATIENCE_S)
    before, issued = len(sockets.commands()), client._protocol.ledger.issued
    for _ in range(20 * SEND_COMMANDS):
        client.fire("k")
        if client._protocol.ledger.issued % 100 == 0:
            time.sleep(SEND_INTERVAL_NS / 1e9)
    frames = sockets.commands()[before:]
    assert {by for *_, by in frames} == {threading.get_ident()}
    assert max(count for _, count, _ in frames) <= SEND_COMMANDS + 1
    assert issued + 19 * SEND_COMMANDS <= sockets.daemon.applied
    go_on.set()
    client.flush(timeout=PATIENCE_S)


class _Raised(Exception):
    """Raised by the handler of a signal."""


def test_a_signal_handler_that_raises_during_a_wait_leaves_the_lock_to_its_holder() -> None:
    lock = threading.Lock()
    condition = Condition(lock, Gate)
    main = threading.get_ident()
    kept: list[bool] = []

    def hold() -> None:
        with lock:  # it is free while the main thread waits
            condition.notify_all()  # now the main thread wants the lock again
            time.sleep(0.05)
            signal.pthread_kill(main, signal.SIGUSR1)
            time.sleep(0.05)
            kept.append(lock.locked())

    def handle(*_: object) -> None:
        raise _Raised

    before = signal.signal(signal.SIGUSR1, handle)
    holder = threading.Thread(target=hold)
    try:
        with pytest.raises(_Raised), lock:
            holder.start()
            condition.wait_for(lambda: False, PATIENCE_S)
    finally:
        holder.join(PATIENCE_S)
        signal.signal(signal.SIGUSR1, before)
    assert kept == [True] and not lock.locked()


def test_a_waiting_caller_is_notified_or_returns_after_its_timeout() -> None:
    lock = threading.Lock()
    condition = Condition(lock, Gate)
    moved: list[int] = []

    def move() -> None:
        with lock:
            moved.append(1)
            condition.notify_all()

    with lock:
        assert not condition.wait_for(lambda: bool(moved), 0.01)
        assert not condition._waiting
        threading.Thread(target=move).start()
        assert condition.wait_for(lambda: bool(moved), None)


def waiting(
    condition: Condition, lock: threading.Lock, holds: Callable[[], bool], one_of: object | None
) -> Future[bool]:
    """The future result of a thread that has begun to wait at the condition."""
    found: Future[bool] = Future()

    def wait() -> None:
        with lock:
            found.set_result(condition.wait_for(holds, PATIENCE_S, one_of))

    before = len(condition._waiting)
    threading.Thread(target=wait, daemon=True).start()
    eventually(lambda: len(condition._waiting) > before)
    return found


def test_callers_that_wait_for_the_same_thing_are_woken_one_at_a_time() -> None:
    lock = threading.Lock()
    condition = Condition(lock, Gate)
    things: list[int] = []
    looks: list[int] = []

    def holds() -> bool:
        looks.append(threading.get_ident())
        return bool(things)

    takers = [waiting(condition, lock, holds, "takers") for _ in range(5)]
    progress: list[int] = []
    other = waiting(condition, lock, lambda: bool(progress), None)
    with lock:
        looks.clear()
        progress.append(1)
        condition.notify()  # nothing can be taken: one look shows this for all takers, and none wakes
    assert other.result(PATIENCE_S) and looks == [threading.get_ident()]
    with lock:
        things.append(1)
        condition.notify()
    wait([*takers], PATIENCE_S, FIRST_COMPLETED)
    with lock:
        assert [taker.done() for taker in takers] == [True, False, False, False, False]
        condition.notify_all()
    assert all(taker.result(PATIENCE_S) for taker in takers)


def test_a_caller_that_is_woken_and_raises_wakes_the_next_that_waits_for_the_same_thing() -> None:
    lock = threading.Lock()
    things: list[int] = []

    class Interrupted(Gate):
        """A gate at which a signal handler raises as soon as it opens."""

        def wait(self, seconds: float | None) -> bool:
            super().wait(seconds)
            raise _Raised

    gates: list[Callable[[], Gate]] = [Interrupted, Gate]
    condition = Condition(lock, lambda: gates.pop(0)())
    raised: list[BaseException] = []

    def interrupted() -> None:
        try:
            with lock:
                condition.wait_for(lambda: bool(things), PATIENCE_S, "takers")
        except _Raised as error:
            raised.append(error)

    first = threading.Thread(target=interrupted)
    first.start()
    eventually(lambda: len(condition._waiting) == 1)
    second = waiting(condition, lock, lambda: bool(things), "takers")
    with lock:
        things.append(1)
        condition.notify()
    assert second.result(PATIENCE_S)
    first.join(PATIENCE_S)
    assert len(raised) == 1


class Duties:
    """Gives duties to two threads. One duty pauses; the other duty runs until the first has gone on."""

    def __init__(self) -> None:
        self.askers: set[int] = set()
        self.given = 0
        self.went_on = threading.Event()
        self.in_time: Future[bool] = Future()

    def may_have(self) -> bool:
        return False

    def next(self, now_ns: int) -> Duty | None:
        self.askers.add(threading.get_ident())
        if len(self.askers) < 2 or self.given == 2:
            return None
        self.given += 1
        return Duty(self.pauses() if self.given == 1 else self.goes_on(), is_call=True)

    def pauses(self) -> Steps:
        yield Pause(0.02)
        self.went_on.set()

    def goes_on(self) -> Steps:
        yield Run(lambda: self.in_time.set_result(self.went_on.wait(PATIENCE_S)), ())


def test_a_pause_that_ends_while_its_thread_is_busy_ends_in_another_thread() -> None:
    link = ThreadedLink(NOWHERE, new_protocol(group="group"), Sockets())
    duties = Duties()
    runner = Runner(link, cast(Any, duties))
    runner.start(2)
    assert duties.in_time.result(PATIENCE_S)
    link.stop()


@pytest.mark.parametrize("notify", [Condition.notify, Condition.notify_all])
def test_a_notification_that_is_interrupted_loses_no_waiting_caller(notify: Callable[[Condition], None]) -> None:
    """A handler of a signal raises in the thread that notifies, after it has opened the first gate."""
    lock = threading.Lock()
    things: list[int] = []

    class Interrupted(Gate):
        def open(self, promise: object = None) -> None:
            super().open(promise)
            if not things:
                raise _Raised

    gates: list[Callable[[], Gate]] = [Interrupted]
    condition = Condition(lock, lambda: gates.pop()() if gates else Gate())
    callers = [waiting(condition, lock, lambda: bool(things), None) for _ in range(2)]
    with lock, pytest.raises(_Raised):
        notify(condition)
    with lock:
        things.append(1)
        condition.notify()
    assert all(caller.result(PATIENCE_S) for caller in callers)
