"""A signal that wakes nobody is handled within a slice of the main thread's wait."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from queue import Empty
from time import monotonic

import pytest

from timerd_client.waits.gate import Gate
from timerd_client.waits.slices import SLICE_S, SlicedQueue, slices

WAITS: dict[str, Callable[[float | None], object]] = {
    "gate": lambda seconds: Gate().wait(seconds),
    "queue": lambda seconds: SlicedQueue[None]().get(timeout=seconds),
}


@pytest.mark.parametrize("way", WAITS)
def test_ctrl_c_that_another_thread_has_got_ends_a_wait_of_the_main_thread(way: str) -> None:
    thread = threading.Timer(0.05, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        thread.start()
        WAITS[way](None)
    thread.join()


@pytest.mark.parametrize("seconds", [0.0, 0.01])
def test_a_wait_takes_exactly_its_time(seconds: float) -> None:
    began = monotonic()
    assert not Gate().wait(seconds)
    with pytest.raises(Empty):
        SlicedQueue[None]().get(timeout=seconds)
    assert 2 * seconds <= monotonic() - began < 2 * seconds + SLICE_S


def test_an_entry_that_is_there_is_taken_without_a_wait() -> None:
    queue, gate = SlicedQueue[int](), Gate()
    queue.put(1)
    gate.open()
    assert queue.get(block=False) == 1 and gate.wait(0)
    with pytest.raises(Empty):
        queue.get(block=False)


def test_a_long_wait_of_the_main_thread_is_cut() -> None:
    assert next(slices(None)) == next(slices(100)) == SLICE_S
    assert list(slices(0.5 * SLICE_S)) == [pytest.approx(0.5 * SLICE_S, abs=0.01)] and list(slices(-1)) == [0]


def test_another_thread_waits_at_once_for_all_its_time() -> None:
    found: list[list[float | None]] = []
    thread = threading.Thread(target=lambda: found.extend([list(slices(None)), list(slices(100)), list(slices(-1))]))
    thread.start()
    thread.join()
    assert found == [[None], [100], [0]]
