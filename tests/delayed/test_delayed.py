"""Delayed operations of both faces, on a manual clock: when the owner looks, who decides, and what callbacks see.

O1, O2 and O6 are points of the table "Beside Kafka's purgatory" in timerd/DESIGN.md.
"""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any

import pytest

import timerd as td
from support.real.daemons import Daemon
from support.real.patience import PATIENCE_S
from timerd.testing import Manual
from timerd_client import aio

Made = list[str]


class Delayed(td.DelayedOperation):
    """A delayed operation that notes its calls, and completes when `ready` is set."""

    def __init__(self, ready: bool = False, **more: Any) -> None:
        super().__init__(**more)
        self.ready, self.looks, self.ran = ready, 0, Made()

    def try_complete(self) -> bool:
        self.looks += 1
        return self.ready

    def on_complete(self) -> None:
        self.ran.append("complete")

    def on_expiration(self) -> None:
        self.ran.append("expiration")


def watching(client: td.Client, *keys: td.Key, timeout: float | None = 30, **more: Any) -> Delayed:
    delayed = Delayed()
    assert client.try_complete_else_watch(delayed, keys or ("k",), timeout=timeout, **more) is delayed
    return delayed


# when the owner looks -------------------------------------------------------------------------------------------------


def test_checks_count_completed_operations_as_in_kafka(client: td.Client, other: td.Client) -> None:
    """Three checks of four operations count 0, and the fourth check counts 4."""
    four = [watching(client if n % 2 else other, "orders") for n in range(4)]
    assert [other.check_and_complete("orders") for _ in range(3)] == [0, 0, 0]
    for each in four:
        each.ready = True
    assert other.check_and_complete("orders") == 4
    assert all(each.settled(30) and each.state is td.State.COMPLETED for each in four)
    assert [each.looks for each in four] == [5] * 4, "once at first, and once for each check"
    assert [each.ran for each in four] == [["complete"]] * 4


def test_an_operation_that_is_complete_at_once_is_not_registered(client: td.Client) -> None:
    delayed = Delayed(ready=True)
    client.try_complete_else_watch(delayed, "k", timeout=30)
    assert (delayed.state, delayed.ran, delayed.looks) == (td.State.COMPLETED, ["complete"], 1)
    assert delayed.settled(0) and not delayed.cancel_wait() and not delayed.force_complete_wait()
    assert client.check_and_complete("k") == 0


def test_a_function_can_be_given_as_an_operation(client: td.Client) -> None:
    ready: list[int] = []
    delayed = client.try_complete_else_watch(lambda: bool(ready), ["a", "b"], timeout=30)
    client.fire_wait("a")
    assert client.check_and_complete("b") == 0 and not delayed.done()
    ready.append(1)
    client.fire("b")
    assert delayed.settled(30) and delayed.state is td.State.COMPLETED and delayed.keys == ("a", "b")


@pytest.mark.parametrize("event", ["fire", "advance", "fail"])
def test_each_kind_of_event_makes_the_owner_look(client: td.Client, other: td.Client, event: str) -> None:
    delayed = watching(client)
    delayed.ready = True
    getattr(other, event)("k", *([3] if event == "advance" else []))
    assert delayed.settled(30) and delayed.ran == ["complete"]


def test_an_event_between_the_try_and_the_registration_is_not_missed(client: td.Client, other: td.Client) -> None:
    class Slow(Delayed):
        def try_complete(self) -> bool:
            self.looks += 1
            if self.looks == 1:
                other.fire_wait("k")
                return False
            return True

    delayed = Slow()
    client.try_complete_else_watch(delayed, "k", timeout=30)
    assert delayed.settled(30) and delayed.looks == 2


def test_a_limited_event_passes_by_a_delayed_operation(client: td.Client, other: td.Client) -> None:
    delayed = watching(client)
    plain = other.register("k", timeout=30)
    other.fire("k", limit=1)
    assert plain.result(30)
    assert client.check_and_complete("k") == 0 and delayed.looks == 2, "at first, and for the check"


def test_events_while_the_owner_looks_cause_one_further_look(daemon: Daemon) -> None:
    client, other = td.connect(timeout=PATIENCE_S), td.Client()
    began, going_on = threading.Event(), threading.Event()

    class Busy(Delayed):
        def try_complete(self) -> bool:
            self.looks += 1
            if self.looks == 2:
                began.set()
                going_on.wait(30)
            return self.looks == 3

    delayed = Busy()
    client.try_complete_else_watch(delayed, "k", timeout=30)
    other.fire("k")
    assert began.wait(30)
    for _ in range(10):
        other.fire_wait("k")
    going_on.set()
    assert delayed.settled(PATIENCE_S) and delayed.looks == 3
    client.close()
    other.close()


# how it ends ----------------------------------------------------------------------------------------------------------


def test_an_expired_operation_completes_and_then_expires(manual: Manual, client: td.Client) -> None:  # O2
    delayed = watching(client, timeout=5)
    manual.advance(4.9)
    assert not delayed.settled(0)
    manual.advance(0.1)
    assert delayed.settled(30) and delayed.ran == ["complete", "expiration"] and delayed.state is td.State.EXPIRED
    assert delayed.looks == 1, "the deadline is no event"


def test_an_operation_without_a_deadline_waits_for_its_condition(manual: Manual, client: td.Client) -> None:
    delayed = Delayed()
    client.try_complete_else_watch(delayed, "k", timeout=None)
    manual.advance(1000)
    assert not delayed.done()
    delayed.ready = True
    assert client.check_and_complete("k") == 1


def test_force_complete_wait_is_true_for_one_caller_alone(client: td.Client) -> None:  # O1
    delayed = watching(client)
    assert [delayed.force_complete_wait() for _ in range(3)] == [True, False, False]
    assert delayed.settled(30) and delayed.ran == ["complete"]
    delayed.force_complete()
    assert delayed.ran == ["complete"]


@pytest.mark.parametrize("at", [1, 2])
def test_try_complete_may_force_its_operation_as_in_kafka(client: td.Client, at: int) -> None:
    class Forcing(Delayed):
        def try_complete(self) -> bool:
            self.looks += 1
            if self.looks == at:
                self.force_complete()  # and returns False
            return False

    delayed = Forcing()
    client.try_complete_else_watch(delayed, "k", timeout=30)
    assert client.check_and_complete("k") == at - 1
    assert delayed.settled(30) and (delayed.state, delayed.ran) == (td.State.COMPLETED, ["complete"])
    assert delayed.looks == at


@pytest.mark.parametrize("waits", [False, True])
def test_an_operation_that_is_forced_before_it_is_started_completes_without_the_daemon(waits: bool) -> None:
    delayed = Delayed()
    if waits:
        assert delayed.force_complete_wait()
    else:
        delayed.force_complete()
    assert delayed.settled(0) and (delayed.state, delayed.ran) == (td.State.COMPLETED, ["complete"])
    assert not delayed.force_complete_wait() and not delayed.cancel_wait()
    with td.Client() as never_connected:
        assert never_connected.try_complete_else_watch(delayed, "k", timeout=30) is delayed
        assert delayed.settled(0) and (delayed.looks, delayed.ran) == (0, ["complete"])


def test_an_operation_that_is_forced_while_it_is_registered_completes(
    client: td.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    delayed = Delayed()
    register = client._register

    def forced_meanwhile(*args: Any, **given: Any) -> Any:
        delayed.force_complete()  # as another thread does
        return register(*args, **given)

    monkeypatch.setattr(client, "_register", forced_meanwhile)
    client.try_complete_else_watch(delayed, "k", timeout=30)
    assert delayed.settled(30) and (delayed.state, delayed.ran) == (td.State.COMPLETED, ["complete"])


@pytest.mark.parametrize("how", ["own", "id", "key"])
def test_a_cancelled_operation_runs_no_callback(client: td.Client, other: td.Client, how: str) -> None:
    delayed = watching(client, "k", "l", id="mine")
    if how == "own":
        assert delayed.cancel_wait()
    elif how == "id":
        assert other.cancel_wait("mine")
    else:
        assert other.cancel_for_key_wait("l") == 1
    assert delayed.settled(30) and (delayed.state, delayed.ran) == (td.State.CANCELLED, [])


def test_a_refused_operation_has_the_refusal_as_its_error_and_runs_no_callback(
    client: td.Client, other: td.Client
) -> None:
    other.register_wait("x", timeout=30, id="taken")
    delayed = watching(client, id="taken")
    assert delayed.settled(30) and (delayed.state, delayed.ran) == (td.State.FAILED, [])
    assert isinstance(delayed.error, td.OperationExistsError)
    kept = watching(client, id="taken", if_exists="keep")
    assert kept.settled(30) and (kept.state, kept.ran) == (td.State.KEPT, [])
    mine = watching(client, id="mine")
    again = watching(client, id="mine", if_exists="keep")
    assert (again.state, mine.state) == (td.State.KEPT, None)


def test_an_operation_that_is_unavailable_or_has_failed_calls_on_error_alone(manual: Manual, client: td.Client) -> None:
    class Noting(Delayed):
        def on_error(self) -> None:
            self.ran.append(f"error {type(self.error).__name__} {self.state}")

    client.register_wait("other", id="taken", timeout=60)
    client.try_complete_else_watch(delayed := Noting(), "key", timeout=5, id="taken")
    assert delayed.settled(30) and delayed.ran == ["error OperationExistsError State.FAILED"]
    client.try_complete_else_watch(delayed := Noting(), "key", timeout=5)
    manual.stop()
    manual.advance(6.5)
    assert delayed.settled(30) and delayed.ran == ["error TimerdUnavailableError State.UNAVAILABLE"]
    manual.start()

    async def in_loop() -> list[str]:
        ran: list[str] = []
        async with aio.client() as loop_client:

            async def note() -> None:
                ran.append("error")

            made = aio.DelayedOperation(lambda: False, on_error=note)
            await loop_client.try_complete_else_watch(made, "key", id="taken", timeout=5)
            await made.settled()
        return ran

    assert manual.run(in_loop()) == ["error"]


def test_if_the_daemon_is_lost_an_operation_is_unavailable_and_runs_no_callback(
    manual: Manual, client: td.Client
) -> None:
    delayed = watching(client, timeout=5)
    manual.stop()
    manual.advance(5.5)
    assert not delayed.settled(0)
    manual.advance(1)
    assert delayed.settled(30) and (delayed.state, delayed.ran) == (td.State.UNAVAILABLE, [])
    assert isinstance(delayed.error, td.TimerdUnavailableError)
    manual.start()


def test_looks_outlive_the_daemon(manual: Manual, client: td.Client, other: td.Client) -> None:
    delayed = watching(client, timeout=300)
    manual.stop()
    delayed.ready = True
    other.fire("k")
    manual.start()
    manual.advance(2)
    assert delayed.settled(30) and delayed.state is td.State.COMPLETED


def test_an_evaluation_that_was_true_is_the_last_one(manual: Manual, client: td.Client, other: td.Client) -> None:
    """Even if the daemon is lost before it confirms, and the next daemon first asks for a look at another event."""

    class Completes(Delayed):
        def try_complete(self) -> bool:
            self.looks += 1
            if self.looks == 2:
                manual.stop()  # the evaluation's result goes to the next daemon
            return self.looks == 2

    delayed = Completes()
    client.try_complete_else_watch(delayed, "k", timeout=300)
    other.fire("k")
    manual.advance(0)
    assert (delayed.looks, delayed.done()) == (2, False)
    part = delayed._delayed.parts[0]
    part.look(0, part.sequence + 1)
    part.notify()
    manual.start()
    manual.advance(2)
    assert delayed.settled(30) and (delayed.state, delayed.looks) == (td.State.COMPLETED, 2)


def test_an_error_of_a_function_is_logged_and_the_operation_goes_on(
    client: td.Client, caplog: pytest.LogCaptureFixture
) -> None:  # O6
    class Raises(Delayed):
        def try_complete(self) -> bool:
            self.looks += 1
            if self.looks == 2:
                raise ValueError("no")
            return self.looks == 3

        def on_complete(self) -> None:
            raise ValueError("never")

    delayed = Raises()
    client.try_complete_else_watch(delayed, "k", timeout=30)
    assert [client.check_and_complete("k") for _ in range(2)] == [0, 1]
    assert delayed.settled(30)
    assert "try_complete of <Raises" in caplog.text and "on_complete of <Raises" in caplog.text
    with pytest.raises(ValueError, match="at first"):
        client.try_complete_else_watch(lambda: (_ for _ in ()).throw(ValueError("at first")), "k", timeout=30)


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError])
def test_a_client_lives_on_whatever_the_functions_of_an_operation_raise(
    manual: Manual, client: td.Client, caplog: pytest.LogCaptureFixture, kind: type[BaseException]
) -> None:
    class Raises(Delayed):
        def try_complete(self) -> bool:
            if super().try_complete() or self.looks == 2:
                raise kind
            return self.looks == 3

        def on_complete(self) -> None:
            super().on_complete()
            raise kind

    completes, expires = Raises(), Raises()
    plain = client.register("plain", timeout=30)
    client.try_complete_else_watch(completes, "k", timeout=5)
    client.try_complete_else_watch(expires, "other", timeout=5)
    assert [client.check_and_complete("k") for _ in range(2)] == [0, 1]
    manual.advance(6)
    assert completes.settled(30) and expires.settled(30) and expires.ran == ["complete", "expiration"]
    client.fire("plain")
    assert plain.result(30)
    assert "try_complete of <Raises" in caplog.text and "on_complete of <Raises" in caplog.text


def test_the_lock_of_an_operation_is_held_while_one_of_its_functions_runs(client: td.Client) -> None:
    lock = threading.RLock()
    held: list[bool] = []

    class Locked(Delayed):
        def try_complete(self) -> bool:
            held.append(not other_thread_gets(lock))
            return super().try_complete()

        def on_complete(self) -> None:
            held.append(not other_thread_gets(lock))

    delayed = Locked(lock=lock)
    client.try_complete_else_watch(delayed, "k", timeout=30)
    delayed.ready = True
    assert client.check_and_complete("k") == 1 and delayed.settled(30)
    assert held == [True] * 3 and delayed.lock is lock


def other_thread_gets(lock: Any) -> bool:
    got: list[bool] = []
    thread = threading.Thread(target=lambda: got.append(bool(lock.acquire(blocking=False) and not lock.release())))
    thread.start()
    thread.join()
    return got[0]


def test_a_derived_class_may_use_any_names_for_its_attributes(client: td.Client) -> None:
    class Own(Delayed):
        def __init__(self) -> None:
            super().__init__()
            self._state = self._error = self._parts = self._link = self._names = self._end = self._lock = "mine"

        def _settle(self) -> str:
            return "mine"

        wake = ended = _run = _try = _finish = _start = start = begin = watch = _settle

    own = Own()
    client.try_complete_else_watch(own, "k", timeout=30)
    own.ready = True
    client.fire("k")
    assert own.settled(30) and (own.state, own.ran, own._state) == (td.State.COMPLETED, ["complete"], "mine")


# many keys ------------------------------------------------------------------------------------------------------------


def test_an_operation_of_many_keys_settles_as_one(client: td.Client, other: td.Client, manual: Manual) -> None:
    keys = [f"k{n}" for n in range(300)]
    delayed = watching(client, *keys, timeout=300)
    other.fire("k299")
    other.fire("k0")
    assert other.check_and_complete("k150") == 0 and delayed.looks >= 2
    delayed.ready = True
    assert other.check_and_complete("k256") == 1
    assert delayed.settled(30) and (delayed.state, delayed.ran) == (td.State.COMPLETED, ["complete"])
    assert [other.check_and_complete(key) for key in ("k0", "k299")] == [0, 0]
    expires = watching(client, *keys, timeout=5)
    manual.advance(6)
    assert expires.settled(30) and expires.ran == ["complete", "expiration"]
    cancelled = watching(client, *keys)
    assert other.cancel_for_key_wait("k200") == 1
    assert cancelled.settled(30) and cancelled.state is td.State.CANCELLED


def test_if_a_part_is_refused_the_whole_operation_fails(client: td.Client) -> None:
    delayed = watching(client, *(f"k{n}" for n in range(500)))
    assert delayed.settled(30) and delayed.state is td.State.FAILED
    assert isinstance(delayed.error, td.QuotaExceededError) and "--quota-nodes" in str(delayed.error)
    assert delayed.ran == [] and client.check_and_complete("k0") == 0


@pytest.mark.parametrize(
    ("keys", "error"),
    [([], "no keys"), (["a", "a"], "given twice"), ({"a": 1}, "an iterable of them"), (5, "an iterable of them"),
     ([f"{n}" for n in range(10_001)], "more than 10,000 keys"), ([""], "empty")],
)  # fmt: skip
def test_wrong_keys_are_named(client: td.Client, keys: Any, error: str) -> None:
    delayed = Delayed()
    with pytest.raises((td.InvalidKeyError, td.TooManyKeysError), match=error):
        client.try_complete_else_watch(delayed, keys, timeout=30)
    assert delayed.looks == 0


# wrong calls ----------------------------------------------------------------------------------------------------------


def test_wrong_calls_are_named(client: td.Client) -> None:
    with pytest.raises(td.InvalidValueError, match=r"was not started: purgatory\.try_complete_else_watch"):
        Delayed().settled(1)
    delayed = watching(client)
    with pytest.raises(td.InvalidValueError, match="was started before: make a new one"):
        client.try_complete_else_watch(delayed, "k", timeout=1)
    with pytest.raises(td.InvalidValueError, match="try_complete=5 is int: give a function without arguments"):
        client.try_complete_else_watch(5, "k", timeout=1)  # type: ignore[arg-type]

    async def coroutine() -> bool:
        return True

    with pytest.raises(td.InvalidValueError, match=r"a coroutine function.* use td.aio"):
        client.try_complete_else_watch(coroutine, "k", timeout=1)  # type: ignore[arg-type]

    class Forgets(td.DelayedOperation):
        def __init__(self) -> None:
            pass

    with pytest.raises(td.InvalidValueError, match=r"Forgets: call super\(\).__init__\(\) in its __init__"):
        client.try_complete_else_watch(Forgets(), "k", timeout=1)
    with pytest.raises(NotImplementedError, match="DelayedOperation: give try_complete, or override it"):
        client.try_complete_else_watch(td.DelayedOperation(), "k", timeout=1)
    with pytest.raises(td.TimeoutOutOfRangeError):
        watching(client, timeout=-1)
    assert repr(delayed) == "<Delayed 'k' PENDING>"


# checks ---------------------------------------------------------------------------------------------------------------


def test_a_check_in_a_callback_is_refused(client: td.Client) -> None:
    errors: list[BaseException] = []

    def checks() -> bool:
        try:
            client.check_and_complete("k")
        except BaseException as error:
            errors.append(error)
        return len(errors) == 2

    delayed = client.try_complete_else_watch(checks, "k", timeout=30)
    client.fire("k")
    assert delayed.settled(30)
    assert all(isinstance(error, RuntimeError) and "it is one" not in str(error) for error in errors)
    assert "waits until all owners have looked" in str(errors[0])


def test_a_check_that_not_all_owners_have_answered_reports_how_many_operations_completed(daemon: Daemon) -> None:
    client, other = td.connect(timeout=PATIENCE_S), td.connect(timeout=PATIENCE_S)
    going_on = threading.Event()

    class Blocks(Delayed):
        def try_complete(self) -> bool:
            self.looks += 1
            if self.looks == 2:
                going_on.wait(PATIENCE_S)
            return self.looks == 2

    slow = Blocks()
    client.try_complete_else_watch(slow, "k", timeout=None)
    quick = watching(other, timeout=300)
    quick.ready = True
    client.flush()
    other.flush()
    with td.connect(timeout=PATIENCE_S) as checker:
        try:
            with pytest.raises(td.CheckIncompleteError) as raised:
                checker.check_and_complete("k", timeout=0.5)
        finally:
            going_on.set()
        assert raised.value.completed == 1
        assert "not every owner that watches 'k' has looked within 0.5 s; completed so far: 1" in str(raised.value)
    assert slow.settled(PATIENCE_S) and slow.state is td.State.COMPLETED
    client.close()
    other.close()


def test_a_check_without_a_daemon_is_unavailable(manual: Manual, client: td.Client) -> None:
    manual.stop()
    manual.advance(4)
    with pytest.raises(td.TimerdUnavailableError):
        client.check_and_complete("k")


def test_a_hundred_operations_and_twenty_checkers(manual: Manual, client: td.Client, other: td.Client) -> None:
    """Kafka's DelayedOperationTest: checks of 20 threads complete all operations, none twice."""
    rounds = 20
    waits = [watching(client if n % 2 else other, f"k{n % 10}", f"k{(n + 3) % 10}", timeout=None) for n in range(100)]
    client.flush()
    other.flush()  # now all are registered: a check does not count an operation that comes later
    counted: list[int] = []
    lock = threading.Lock()

    def check(number: int) -> None:
        for turn in range(rounds):
            for each in waits[number * 5 : number * 5 + 5]:
                each.ready = each.ready or turn >= number % 7
            mine = (client, other)[number % 2]
            found = mine.check_and_complete(f"k{(number + turn) % 10}", timeout=30)
            with lock:
                counted.append(found)

    threads = [threading.Thread(target=check, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counted += [client.check_and_complete(f"k{n}", timeout=30) for n in range(10)]
    assert all(each.settled(30) and each.state is td.State.COMPLETED for each in waits)
    assert [each.ran for each in waits] == [["complete"]] * 100
    assert sum(counted) == 100


# processes ------------------------------------------------------------------------------------------------------------


def test_a_forked_child_cannot_use_an_operation_of_its_parent(client: td.Client) -> None:
    delayed = watching(client)
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            try:
                delayed.settled(5)
            except td.ClosedError as error:
                os.write(writing, str(error).encode())
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading, "rb") as pipe:
        assert b"made before a fork" in pipe.read()
    assert delayed.cancel_wait()


def test_the_close_of_a_client_ends_its_delayed_operations(manual: Manual) -> None:
    client = td.connect()
    delayed = watching(client)
    client.close()
    assert delayed.settled(30) and delayed.state is td.State.FAILED and isinstance(delayed.error, td.ClosedError)
    assert delayed.ran == []
