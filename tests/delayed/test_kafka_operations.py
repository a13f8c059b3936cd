"""Kafka's delayed operation and purgatory, point by point, over the public surface and on the manual clock.

The codes are those of the table in timerd/DESIGN.md. tests/core/test_kafka.py has the same points for operations whose
condition the daemon evaluates, and the points of timer, task list and wheel.
"""

from __future__ import annotations

import random
import re
import threading
import time
from typing import Any

import pytest

import timerd as td
from support.real.daemons import Daemon
from support.real.patience import PATIENCE_S
from timerd.testing import Manual
from timerd_shm.read.statistics import collect, look

CODES = [*(f"O{n}" for n in range(1, 7)), *(f"P{n}" for n in range(1, 12))]
NO_COUNTERPART = {"P8": "no thread of a purgatory's own"}


def test_every_point_of_operation_and_purgatory_is_tested() -> None:
    tested = {code for name in globals() for code in re.findall(r"([OP]\d+)_", name)}
    assert tested | set(NO_COUNTERPART) == set(CODES)


class MockDelayed(td.DelayedOperation):
    """Kafka's MockDelayedOperation. It is complete when `completable` is set, and notes what happens to it."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self.completable, self.tries, self.ran = False, 0, list[str]()

    def try_complete(self) -> bool:
        self.tries += 1
        return self.completable

    def on_complete(self) -> None:
        self.ran.append("complete")

    def on_expiration(self) -> None:
        self.ran.append("expiration")


def watched(client: td.Client, *keys: str, timeout: float | None = 100, **more: Any) -> MockDelayed:
    made = MockDelayed(**more)
    client.try_complete_else_watch(made, keys, timeout=timeout)
    client.flush()
    return made


def gauges(manual: Manual) -> tuple[int, int]:
    """Kafka's numDelayed and watched."""
    counters = counters_of(manual)["default"]
    return counters["pending"], counters["watched"]


def counters_of(manual: Manual) -> dict[str, Any]:
    """The counters of each purgatory."""
    manual._driver.settle()
    with manual._driver.daemon.map_arena() as reader:
        found = collect(look(reader), manual._driver.paths)["purgatories"]
    return {name: one["counters"] for name, one in found.items()}


# 4. Delayed operation -------------------------------------------------------------------------------------------------


def test_O1_only_one_of_many_threads_that_force_an_operation_completes_it(daemon: Daemon) -> None:
    with td.connect(timeout=PATIENCE_S) as client:
        delayed = watched(client, "k", timeout=None)
        won: list[bool] = []
        threads = [threading.Thread(target=lambda: won.append(delayed.force_complete_wait())) for _ in range(20)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        assert sorted(won) == [False] * 19 + [True]
        assert delayed.settled(PATIENCE_S) and delayed.ran == ["complete"]


def test_O2_on_expiration_runs_after_on_complete_and_never_for_one_completed_in_time(
    manual: Manual, client: td.Client
) -> None:
    short, long = watched(client, "k", timeout=0.02), watched(client, "k", timeout=200)
    manual.advance(0.019)
    assert not short.done()
    manual.advance(0.001)
    assert (short.ran, short.state, long.done()) == (["complete", "expiration"], td.State.EXPIRED, False)
    long.force_complete()
    manual.advance(1000)
    assert (long.ran, long.state) == (["complete"], td.State.COMPLETED)


def test_O3_try_complete_is_called_with_the_operations_lock_held(client: td.Client) -> None:
    lock, held = threading.RLock(), list[bool]()

    class Locked(MockDelayed):
        def try_complete(self) -> bool:
            free: list[bool] = []
            other = threading.Thread(target=lambda: free.append(lock.acquire(blocking=False)))
            other.start()
            other.join()
            held.append(not free[0])
            return super().try_complete()

    delayed = Locked(lock=lock)
    with lock:  # the caller may hold it already
        client.try_complete_else_watch(delayed, "k", timeout=100)
    client.check_and_complete("k")
    assert held == [True, True]


def test_O4_an_operation_is_tried_and_if_that_is_false_watched_and_tried_again_after_events_meanwhile(
    manual: Manual, client: td.Client
) -> None:
    class Overtaken(MockDelayed):
        def try_complete(self) -> bool:
            if not self.tries:
                client.fire("k")  # between the try and the watch
            return super().try_complete() or self.tries == 2

    done = MockDelayed()
    done.completable = True
    client.try_complete_else_watch(done, "k", timeout=100)
    assert (done.state, done.tries, gauges(manual)) == (td.State.COMPLETED, 1, (0, 0))
    delayed = Overtaken()
    client.try_complete_else_watch(delayed, "k", timeout=100)
    client.flush()
    assert delayed.settled(30) and (delayed.tries, delayed.ran) == (2, ["complete"])


def test_O5_a_state_change_followed_by_a_check_is_never_lost(daemon: Daemon, seed: int) -> None:
    """Kafka's test: `try_complete` reads the state and answers later. The state is set before the last check."""
    choose = random.Random(seed)

    class Slow(MockDelayed):
        def try_complete(self) -> bool:
            completable = self.completable
            time.sleep(choose.random() * 0.002)
            return completable

    with td.connect(timeout=PATIENCE_S) as client:
        delayed = [Slow() for _ in range(100)]
        for n, one in enumerate(delayed):
            client.try_complete_else_watch(one, f"k{n}", timeout=None)
        client.flush()

        def checks(mine: list[int]) -> None:
            for turn in range(3):
                for n in mine:
                    delayed[n].completable = turn == 2
                    client.check_and_complete(f"k{n}", timeout=PATIENCE_S)

        threads = [threading.Thread(target=checks, args=(list(range(at, 100, 20)),)) for at in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(one.settled(PATIENCE_S) and one.state is td.State.COMPLETED for one in delayed)


def test_O6_an_error_in_on_complete_leaves_its_operation_completed_and_affects_no_other(
    client: td.Client, caplog: pytest.LogCaptureFixture
) -> None:
    class Raises(MockDelayed):
        def on_complete(self) -> None:
            raise ZeroDivisionError

    raises, other = Raises(), MockDelayed()
    for one in (raises, other):
        client.try_complete_else_watch(one, "k", timeout=100)
        one.completable = True
    client.flush()
    assert client.check_and_complete("k") == 2
    assert raises.settled(30) and other.settled(30)
    assert (raises.state, other.ran) == (td.State.COMPLETED, ["complete"]) and "ZeroDivisionError" in caplog.text


# 5. Purgatory ---------------------------------------------------------------------------------------------------------


def test_P1_an_operation_without_keys_is_refused_and_one_that_is_complete_touches_no_count(
    manual: Manual, client: td.Client
) -> None:
    with pytest.raises(td.InvalidKeyError, match="nothing would make the owner look"):
        client.try_complete_else_watch(MockDelayed(), [], timeout=1)
    before = counters_of(manual)["default"]["registered"]
    done = MockDelayed()
    done.completable = True
    client.try_complete_else_watch(done, ["a", "b"], timeout=1)
    watched(client, "a", "b", "c")
    assert gauges(manual) == (1, 3) and counters_of(manual)["default"]["registered"] == before + 1


def test_P2_a_check_tries_in_order_of_insertion_and_counts_what_it_completes(client: td.Client) -> None:
    order: list[int] = []

    class Ordered(MockDelayed):
        def __init__(self, number: int) -> None:
            super().__init__()
            self.number = number

        def on_complete(self) -> None:
            order.append(self.number)

    assert client.check_and_complete("k") == 0
    three = [Ordered(n) for n in range(3)]
    for one in three:
        client.try_complete_else_watch(one, "k", timeout=100)
    client.flush()
    assert client.check_and_complete("k") == 0
    for one in three:
        one.completable = True
    assert (client.check_and_complete("k"), client.check_and_complete("k"), order) == (3, 0, [0, 1, 2])


def test_P3_the_counts_are_exact_at_once(manual: Manual, client: td.Client) -> None:
    """Kafka counts dead entries until a check cleans their lists: in its test, `watched` falls from 6 to 4, 2 and 1."""
    one, two, three = watched(client, "a"), watched(client, "a", "b"), watched(client, "a", "b", "c")
    assert gauges(manual) == (3, 6)
    assert two.force_complete_wait()
    assert gauges(manual) == (2, 4)
    assert one.force_complete_wait() and three.force_complete_wait()
    assert gauges(manual) == (0, 0)


def test_P4_cancel_for_key_cancels_its_operations_on_all_their_keys(manual: Manual, client: td.Client) -> None:
    three = [watched(client, "a"), watched(client, "a", "b"), watched(client, "b")]
    assert client.cancel_for_key_wait("a") == 2
    assert [one.state for one in three] == [td.State.CANCELLED, td.State.CANCELLED, None]
    assert gauges(manual) == (1, 1) and three[0].ran == []
    assert client.cancel_for_key_wait("nobody's") == 0


def test_P5_nothing_is_left_to_purge(manual: Manual, client: td.Client) -> None:
    for n in range(40):
        made = watched(client, "busy", f"quiet{n}", timeout=5)
        if n % 2:
            made.force_complete_wait()
    manual.advance(5)
    assert gauges(manual) == (0, 0)


def test_P6_an_operation_never_joins_a_list_that_was_removed(manual: Manual, client: td.Client) -> None:
    for _ in range(30):
        made = watched(client, "k")
        made.completable = True
        assert client.check_and_complete("k") == 1
    assert gauges(manual) == (0, 0)


def test_P7_P10_P11_purgatories_have_a_name_and_counters_each(manual: Manual, client: td.Client) -> None:
    produce = client.purgatory("produce")
    for purgatory in (client, produce, produce):
        purgatory.try_complete_else_watch(MockDelayed(), ["p0", "p1"], timeout=100)
    client.flush()
    counted = counters_of(manual)
    assert [(counted[name]["pending"], counted[name]["watched"]) for name in ("default", "produce")] == [(1, 2), (2, 4)]
    assert produce.check_and_complete("p0") == client.check_and_complete("p0") == 0


def test_P9_a_restart_neither_completes_nor_expires_operations_and_a_closed_client_leaves_them_uncompleted(
    manual: Manual, client: td.Client
) -> None:
    delayed = watched(client, "k")
    manual.stop()
    manual.start()
    manual.advance(2)
    assert not delayed.done() and gauges(manual) == (1, 1)
    client.close()
    assert delayed.settled(30) and (delayed.state, delayed.ran) == (td.State.FAILED, [])
