"""A real daemon is killed at random moments under load, and started again. No outcome is lost or repeated."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable

import pytest

from support.real.daemons import Daemon
from support.real.patience import PATIENCE_S, eventually
from timerd_client import Client, State, connect, total
from timerd_client.link.operation import ThreadedOperation

RUN_S = 0.4  # from kill to kill
CHUNK = 7  # amounts are fired in pieces of this size
STEPS_MAX = 700  # the most steps for each kill, also on a slow machine whose daemons take long to start
GRACE_S = 1.0  # from an operation's deadline until its client gives it up, if the daemon is lost
LONG_S = 60.0  # the wait for an outcome: a daemon may take seconds to start


def pace(rng: random.Random) -> None:
    time.sleep(rng.random() * 0.002)


class Waited:
    """An operation, and the times at which its client got an outcome."""

    def __init__(self, client: Client, key: str, timeout: float, fired: bool) -> None:
        self.fired = fired
        self.given_up_s = time.monotonic() + timeout + GRACE_S  # the client must not give it up before this time
        self.told_s: list[float] = []
        self.operation: ThreadedOperation = client.register(key, timeout=timeout)
        self.operation.add_done_callback(lambda _: self.told_s.append(time.monotonic()))

    def state(self) -> State:
        """The state of the outcome. Raises AssertionError if the outcome breaks a promise.

        On a slow machine a daemon takes seconds to start. Its clients then count it as lost, and give up an operation a
        second after its deadline. The outcome UNAVAILABLE is final, and counts neither as a loss nor as a repetition.
        """
        outcome = self.operation.result(timeout=LONG_S)
        eventually(lambda: self.told_s, f"{self.operation}: no outcome came")
        assert len(self.told_s) == 1, f"{self.operation}: {len(self.told_s)} outcomes came"
        if outcome.state is State.UNAVAILABLE:
            assert self.told_s[0] >= self.given_up_s, f"{self.operation}: given up too soon"
            return outcome.state
        assert outcome.state is (State.COMPLETED if self.fired else State.EXPIRED), f"{self.operation}: {outcome}"
        assert self.fired or outcome.lateness_ns >= 0
        return outcome.state


@pytest.mark.timeout(240)
@pytest.mark.parametrize("kills", [2, pytest.param(10, marks=pytest.mark.long)])
def test_a_daemon_killed_again_and_again_loses_and_repeats_no_operation(
    make_daemon: Callable[..., Daemon], rng: random.Random, kills: int
) -> None:
    daemon = make_daemon("--capacity=65536", "--ring-events=65536")
    over = threading.Event()
    plain: list[Waited] = []
    steps: list[None] = []
    steps_max = STEPS_MAX * kills

    def register_and_fire(client: Client, firer: Client, rng: random.Random, name: str) -> None:
        for number in range(steps_max):
            if over.is_set():
                break
            key, fired = f"{name}/{number}", rng.random() < 0.7
            plain.append(Waited(client, key, LONG_S if fired else 0.05 + rng.random(), fired))
            if fired:
                firer.fire(key, value=key.encode())
            pace(rng)

    def count_up(firer: Client, rng: random.Random) -> None:
        while not over.is_set() and len(steps) < steps_max - 2:
            firer.fire("amounts", amount=CHUNK)
            firer.fire("jobs", limit=1)
            steps.append(None)
            pace(rng)

    with connect(timeout=PATIENCE_S) as one, connect(timeout=PATIENCE_S) as two, connect(timeout=PATIENCE_S) as three:
        # An operation for each sum that may be reached, and a waiter for each grant that may be given.
        sums = [one.register("amounts", timeout=600, when=total(CHUNK * (n + 1))) for n in range(steps_max)]
        jobs = [two.register("jobs", timeout=600) for _ in range(steps_max)]
        one.flush(timeout=LONG_S)
        two.flush(timeout=LONG_S)
        threads = [
            threading.Thread(target=register_and_fire, args=(one, two, random.Random(rng.random()), "a")),
            threading.Thread(target=register_and_fire, args=(two, one, random.Random(rng.random()), "b")),
            threading.Thread(target=count_up, args=(three, random.Random(rng.random()))),
        ]
        for thread in threads:
            thread.start()
        for _ in range(kills):
            time.sleep(RUN_S * (0.5 + rng.random()))
            daemon.kill()
            daemon.start()
        over.set()
        for thread in threads:
            thread.join(LONG_S)
            assert not thread.is_alive()
        for client in (one, two, three):
            client.flush(timeout=LONG_S)
        # Each amount counts once, and each grant goes to one waiter. So the sums that are reached are exactly the sums
        # that were fired.
        done = len(steps)
        assert 0 < done < steps_max - 1
        assert sums[done - 1].result(timeout=LONG_S).state is State.COMPLETED, "an amount was lost"
        assert jobs[done - 1].result(timeout=LONG_S).state is State.COMPLETED, "a grant was lost"
        assert three.fire_wait("amounts", amount=CHUNK - 1) == 0, "an amount was counted twice"
        assert three.fire_wait("jobs", limit=1) == 1
        assert jobs[done].result(timeout=LONG_S).state is State.COMPLETED
        states = Counter(waited.state() for waited in plain)
        unknown = states[State.UNAVAILABLE]
        assert unknown < len(plain) / 2, f"too many operations are UNAVAILABLE: {states}"
        assert not jobs[done + 1].done(), "a grant was given twice"
        said = [client.stats() for client in (one, two)]
        assert sum(each.given_up for each in said) == unknown
        assert sum(each.outcomes_after_giving_up for each in said) <= unknown
    print(f"{dict(states)}, {done} amounts and grants, {kills} kills")
    stats = daemon.stats()
    assert stats["counters"]["starts"] == kills + 1
    # The daemon sweeps the operations that the clients left, a part of them in each turn.
    eventually(lambda: daemon.stats()["counters"]["pending"] == 0, "operations of ended clients are still pending")
    eventually(lambda: daemon.stats()["capacity"]["ops"]["used"] == 0, "operations of ended clients are still kept")
