"""A caller that waits receives frames itself, and leaves other work to the link's thread. The daemon is in memory."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType
from typing import Any

import pytest

from support.fakes.fakedaemon import live_world, state_of
from support.fakes.interrupts import Interrupt
from support.fakes.no_sockets import NOWHERE, new_protocol
from support.fakes.prompt_sockets import Sockets
from timerd_client.link.promise import Reply
from timerd_client.outcome import State
from timerd_client.threaded.client import Client
from timerd_client.threaded.link import ThreadedLink
from timerd_client.threaded.seat import Seat
from timerd_client.threaded.sender import Bell
from timerd_shm.declare.errors import ErrorCode

PATIENCE_S = 3.0
TRACED = ("/threaded/caller.py", "/threaded/seat.py", "/waits/", "/protocol/")
REMIND_S = 0.1
AT_ONCE_S = 0.15  # less than the 250 ms after which a frame is sent again
SLEEPS_S = 0.004  # a caller sleeps this long before its outcome comes


class Observed(Sockets):
    """Notes which thread has received each frame."""

    def __init__(self) -> None:
        super().__init__()
        self.receivers: list[str] = []

    def receive(self, *, published: bool) -> bytes | None:
        frame = super().receive(published=published)
        if frame is not None:
            self.receivers.append(threading.current_thread().name)
        return frame

    def remind(self) -> None:
        """The daemon reports its newest numbers, as it does while something is not acknowledged."""
        with self._turn:
            self.daemon.report_due = True
            self._take()


@pytest.fixture
def sockets() -> Observed:
    return Observed()


@pytest.fixture
def client(sockets: Observed) -> Iterator[Client]:
    client = Client._over(ThreadedLink(NOWHERE, new_protocol(), sockets))
    client.ready(timeout=PATIENCE_S)
    client.flush(timeout=PATIENCE_S)
    client._link.connection.mapped = client._link.protocol.session.arena  # there is no arena to map
    rest()
    sockets.receivers.clear()
    yield client
    client.close()


def rest() -> None:
    """Wait until the link's thread sleeps again."""
    time.sleep(0.01)


def later(act: Callable[[], object], after_s: float = SLEEPS_S) -> threading.Thread:
    thread = threading.Timer(after_s, act)
    thread.start()
    return thread


def test_a_caller_receives_its_outcome_itself(client: Client, sockets: Observed) -> None:
    for number in range(20):
        operation = client.register(f"k{number}", timeout=60)
        rest()
        thread = later(lambda key=f"k{number}": client.fire(key))  # type: ignore[misc]
        assert operation.result(PATIENCE_S).state is State.COMPLETED
        thread.join()
    assert sockets.receivers.count("MainThread") >= 15, sockets.receivers


def test_a_result_does_not_wake_the_links_thread(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The acknowledgement of the outcome goes with the next frame, or follows when the daemon reminds the client."""
    link, wakers = client._link, list[str]()
    ring = link.sender.bell.ring

    def noted() -> None:
        wakers.append(threading.current_thread().name)
        ring()

    for number in range(20):
        operation = client.register(f"k{number}", timeout=60)
        thread = later(partial(client.fire, f"k{number}"))
        with monkeypatch.context() as patch:
            patch.setattr(link.sender.bell, "ring", noted)
            operation.result(PATIENCE_S)
        thread.join()
    assert wakers.count("MainThread") <= 4, wakers


def test_a_bell_that_is_closed_while_it_rings_writes_to_no_file_that_was_opened_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bell, opened, write = Bell(), list[int](), os.eventfd_write
    bell.open()

    def written_late(descriptor: int, value: int) -> None:
        bell.close()  # in another thread, as os.eventfd_write() has no GIL
        opened.append(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
        write(descriptor, value)

    monkeypatch.setattr(os, "eventfd_write", written_late)
    bell.ring()
    bell.ring()  # it is closed
    assert len(opened) == 1
    with pytest.raises(BlockingIOError):
        os.eventfd_read(opened[0])
    os.close(opened[0])


def test_a_caller_that_waits_sends_its_frame_itself_however_recently_frames_were_sent(
    client: Client, sockets: Observed
) -> None:
    """A caller issues nothing more until it has its answer, so its frames cannot become many."""
    me, mine = threading.get_ident(), 0
    for number in range(100):
        operation = client.register(f"k{number}", timeout=60)
        assert client.fire_wait(f"k{number}") == 1
        mine += sockets.commands()[-1][2] == me
        operation.result(PATIENCE_S)
    assert mine >= 60, f"the link's thread sent for the caller {100 - mine} times"


def test_a_frame_that_had_no_room_is_sent_as_soon_as_there_is_room_though_a_caller_waits(
    client: Client, sockets: Observed
) -> None:
    """If nobody noticed the room, the answer would come after 250 ms, when the frame is sent again."""
    took_s: list[float] = []
    for number in range(8):
        operation = client.register(f"k{number}", timeout=60)
        rest()
        sockets.full = True
        thread = later(sockets.make_room)
        began = time.monotonic()
        assert client.fire_wait(f"k{number}") == 1
        took_s.append(time.monotonic() - began)
        operation.result(PATIENCE_S)
        thread.join()
    assert min(took_s) < 0.2, took_s


def test_a_thread_that_fails_in_a_pass_may_take_the_seat_again_to_end() -> None:
    # The seat (seat.py) is the right to receive. The link's thread takes the seat for each pass, then leaves it.
    seat, thread, caller = Seat([]), object(), object()
    assert seat.take_for_pass(thread) and seat.take_for_pass(thread) and not seat.take(caller)
    seat.leave_pass()
    assert seat.take(caller) and not seat.take_for_pass(thread)
    seat.close()


def test_callbacks_run_in_the_links_thread_whoever_receives(client: Client) -> None:
    first, second = client.register("k", timeout=60), client.register("k", timeout=60)
    called: list[tuple[str, bool]] = []
    done = threading.Event()

    def note(operation: Any) -> None:
        called.append((threading.current_thread().name, operation.done()))
        done.set()

    second.add_done_callback(note)
    rest()
    thread = later(lambda: client.fire("k"))
    first.result(PATIENCE_S)
    assert done.wait(PATIENCE_S)
    assert called == [("timerd-client", True)]
    thread.join()


def test_one_caller_receives_for_the_others_that_wait(client: Client) -> None:
    operations = [client.register(f"k{number}", timeout=60) for number in range(8)]
    states: list[State] = []
    waiting = [
        threading.Thread(target=lambda one=one: states.append(one.result(PATIENCE_S).state)) for one in operations
    ]
    for thread in waiting:
        thread.start()
    for number in (3, 0, 7, 5, 1, 2, 4, 6):
        time.sleep(0.002)
        client.fire(f"k{number}")
    for thread in waiting:
        thread.join(PATIENCE_S)
    assert states == [State.COMPLETED] * 8


def test_a_caller_that_waits_longer_receives_when_the_receiving_caller_has_left(client: Client) -> None:
    early, late = client.register("early", timeout=60), client.register("late", timeout=60)
    waiting = threading.Thread(target=lambda: early.result(PATIENCE_S))
    waiting.start()
    rest()
    later(lambda: client.fire("early"))
    later(lambda: client.fire("late"), 0.05)
    assert late.result(PATIENCE_S).state is State.COMPLETED
    waiting.join(PATIENCE_S)
    assert not waiting.is_alive()


def test_a_flush_ends_when_a_caller_has_received_its_confirmation(client: Client, sockets: Observed) -> None:
    """If nobody woke it, the flush would end with the next frame of the link's thread, up to a second later."""
    link, took_s = client._link, list[float]()
    for number in range(4):
        operation = client.register(f"k{number}", timeout=60)
        waiting = threading.Thread(target=partial(operation.result, 2 * PATIENCE_S))
        waiting.start()
        rest()
        sockets.receivers.clear()
        confirming = later(sockets.remind)
        began = time.monotonic()
        with link.lock:
            link.waiters.moved.wait_for(lambda: bool(sockets.receivers), PATIENCE_S)
        took_s.append(time.monotonic() - began)
        confirming.join()
        client.fire(f"k{number}")
        waiting.join()
    assert min(took_s) < AT_ONCE_S, took_s


def test_a_caller_that_receives_is_ended_by_close(client: Client) -> None:
    operation = client.register("k", timeout=60)
    closing = later(lambda: client.close(timeout=PATIENCE_S))
    assert operation.result(PATIENCE_S).state is State.FAILED
    closing.join()


def test_a_wait_that_times_out_leaves_the_receiving_to_the_thread(client: Client, sockets: Observed) -> None:
    operation = client.register("k", timeout=60)
    rest()
    with pytest.raises(TimeoutError):
        operation.result(0.01)
    sockets.receivers.clear()
    client.fire("k")
    end = time.monotonic() + PATIENCE_S
    while not operation.done() and time.monotonic() < end:
        time.sleep(0.001)
    assert operation.done() and set(sockets.receivers) == {"timerd-client"}


def test_a_signal_interrupts_a_caller_that_receives(client: Client) -> None:
    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        operation = client.register("k", timeout=60)
        for _ in range(10):
            with pytest.raises(KeyboardInterrupt):
                signal.setitimer(
                    signal.ITIMER_REAL, 0.003
                )  # within the `with`: the signal may come before the next line
                operation.result(PATIENCE_S)
        later(lambda: client.fire("k"))
        assert operation.result(PATIENCE_S).state is State.COMPLETED
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def handler_of_signals(handle: Callable[[int, FrameType | None], object], after_s: float = 0.05) -> Iterator[None]:
    """`handle` handles a signal after `after_s`. The caller sleeps by then: it does not hold the lock."""
    before = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, after_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_signal_handler_that_takes_long_holds_nobody_up(client: Client) -> None:
    """The link's thread receives meanwhile. Otherwise other callers would wait, and the daemon would seem lost."""
    first, second = client.register("first", timeout=60), client.register("second", timeout=60)
    came, seen = threading.Event(), list[bool]()
    second.add_done_callback(lambda _: came.set())

    def handle(number: int, frame: FrameType | None) -> None:
        firing = later(lambda: client.fire("second"))
        seen.append(came.wait(PATIENCE_S))
        firing.join(PATIENCE_S)

    rest()
    with handler_of_signals(handle):
        later(lambda: client.fire("first"), 0.1)
        assert first.result(2 * PATIENCE_S).state is State.COMPLETED
    assert seen == [True] and client.connected
    third = client.register("third", timeout=60)
    later(lambda: client.fire("third"))
    assert third.result(PATIENCE_S).state is State.COMPLETED


def test_close_does_not_wait_for_a_signal_handler_of_a_caller_that_receives(client: Client) -> None:
    operation, took_s = client.register("k", timeout=60), list[float]()

    def close() -> None:
        began = time.monotonic()
        client.close(timeout=PATIENCE_S)
        took_s.append(time.monotonic() - began)

    rest()
    with handler_of_signals(lambda number, frame: later(close).join(PATIENCE_S)):
        assert operation.result(2 * PATIENCE_S).state is State.FAILED
    assert took_s[0] < PATIENCE_S / 2


def test_a_wait_leaves_nothing_behind_in_its_operation(client: Client) -> None:
    """A loop that waits again after each interrupt may go on for days. Leftovers of each wait would fill the memory."""
    operation = client.register("k", timeout=60)

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    for _ in range(5):
        with pytest.raises(KeyboardInterrupt), handler_of_signals(interrupt):
            operation.result(PATIENCE_S)
        with pytest.raises(TimeoutError):
            operation.result(0.001)
    assert not operation._callbacks
    rest()
    firing = later(lambda: client.fire("k"))
    assert operation.result(PATIENCE_S).state is State.COMPLETED
    firing.join()
    assert operation._callbacks is None


def test_an_interrupt_between_two_frames_leaves_the_second_one_to_the_thread(
    client: Client, sockets: Observed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The descriptor of a ZeroMQ socket reports frames only once. The first frame has used up this report."""
    operation = client.register("k", timeout=60)
    rest()
    sockets.receivers.clear()
    receive = sockets.receive

    def interrupted(*, published: bool) -> bytes | None:
        if "MainThread" in sockets.receivers:
            monkeypatch.undo()
            later(lambda: client.fire("k"), 0).join()
            with suppress(BlockingIOError):
                os.eventfd_read(sockets.filenos()[0])
            raise KeyboardInterrupt
        return receive(published=published)

    def remind() -> None:
        """Remind until the caller receives a frame: on a busy machine the link's thread may take the first ones."""
        end = time.monotonic() + PATIENCE_S
        while "MainThread" not in sockets.receivers and time.monotonic() < end:
            sockets.remind()
            time.sleep(SLEEPS_S)

    monkeypatch.setattr(sockets, "receive", interrupted)
    later(remind)
    with pytest.raises(KeyboardInterrupt):
        operation.result(PATIENCE_S)
    assert operation.result(AT_ONCE_S).state is State.COMPLETED


def test_an_interrupt_anywhere_loses_nothing(client: Client, sockets: Observed, seed: int) -> None:
    """The outcomes of one report reach all waiters, at whatever point of a wait a signal handler raises."""
    interrupted = set()
    for at in range(seed % 3 + 1, 150, 3):
        key = f"k{at}"
        first, second, third = (client.register(key, timeout=60) for _ in range(3))
        called = threading.Event()
        second.add_done_callback(lambda _, called=called: called.set())  # type: ignore[misc]
        rest()
        others: list[State] = []
        other = later(partial(wait_into, others, third), 0.001)
        firing = later(lambda key=key: client.fire(key))  # type: ignore[misc]
        interrupt = Interrupt(at, TRACED)
        with suppress(KeyboardInterrupt), interrupt:
            first.result(PATIENCE_S)
        interrupted.add(interrupt.where)
        assert settled(first, sockets), interrupt.where
        while not called.is_set() or other.is_alive():
            sockets.remind()
            assert called.wait(PATIENCE_S), f"{interrupt.where}: no callback"
            other.join(PATIENCE_S)
            assert others == [State.COMPLETED], f"{interrupt.where}: another caller waits for ever"
        firing.join()
        client.flush(timeout=PATIENCE_S)
    assert len(interrupted) > 10, interrupted  # a busy machine reaches fewer points
    assert len(sockets.daemon.hellos) == 1


def wait_into(states: list[State], operation: Any) -> None:
    """Note the outcome. This wait is longer than the waits of the test."""
    states.append(operation.result(10 * PATIENCE_S).state)


def settled(operation: Any, sockets: Observed) -> bool:
    """Wait for the operation. Returns whether it was completed. A lost frame is sent again after a reminder."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        try:
            return operation.result(REMIND_S).state is State.COMPLETED
        except TimeoutError:
            sockets.remind()
    return False


def test_a_report_that_was_taken_in_part_is_taken_again() -> None:
    """The report's outcome, refusal and answer reach their waiters, wherever the first attempt was interrupted."""
    for at in itertools.count(1):
        world = live_world()
        world.daemon.refuse[2] = ErrorCode.ARENA_FULL
        called: list[Any] = []
        completed, refused, answered = world.register(b"k"), world.register(b"x"), Reply(world.link)
        world.fire(b"k", reply=answered)
        for promise in (completed, refused, answered):
            promise.add_done_callback(called.append)
        for frame in world.up():
            world.daemon.receive(frame)
        world.daemon.turn()
        (report,) = world.daemon.published
        interrupt, protocol = Interrupt(at, ("/protocol/",)), world.protocol
        with suppress(KeyboardInterrupt), interrupt:
            protocol.receive(report, world.now, published=True)
        protocol.receive(report, world.now, published=True)
        for waiter in protocol.incoming.take_ready():
            waiter.notify()
        assert sorted(map(id, called)) == sorted(map(id, (completed, refused, answered))), interrupt.where
        states = [state_of(operation) for operation in (completed, refused)]
        assert states == [State.COMPLETED, State.FAILED] and answered.result() == (1, None), interrupt.where
        got = (protocol.ledger.applied, protocol.outgoing.sent, protocol.outgoing.answered)
        assert got == (3, 3, 3) and not protocol.ledger.pending, interrupt.where
        assert (protocol.incoming.received_outcome, protocol.incoming.received_answer) == (1, 3), interrupt.where
        if not interrupt.where:
            break
    assert at > 20, "little was interrupted"
