"""A real daemon, SIGKILLed at random moments under load, and started again: every outcome is accounted for."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

from daemons import Daemon
from patience import eventually
from timerd_client import Client, State, connect, total
from timerd_client.link.operation import ThreadedOperation

KILLS = 5
RUN_S = 2.0
CHUNK = 7  # amounts are fired in pieces of so much
STEPS_MAX = 6_000


def pace(rng: random.Random) -> None:
    time.sleep(rng.random() * 0.002)


def test_a_daemon_killed_again_and_again_loses_nothing_and_does_nothing_twice(
    make_daemon: Callable[..., Daemon], rng: random.Random
) -> None:
    daemon = make_daemon("--capacity=65536", "--ring-events=65536")
    over = threading.Event()
    plain: list[tuple[ThreadedOperation, bool]] = []  # and whether its key is fired
    steps: list[None] = []

    def register_and_fire(client: Client, firer: Client, rng: random.Random, name: str) -> None:
        number = 0
        while not over.is_set():
            number += 1
            key, due = f"{name}/{number}", rng.random() < 0.7
            plain.append((client.register(key, timeout=20 if due else 0.05 + rng.random()), due))
            if due:
                firer.fire(key, value=key.encode())
            pace(rng)

    def count_up(firer: Client, rng: random.Random) -> None:
        while not over.is_set():
            firer.fire("amounts", amount=CHUNK)
            firer.fire("jobs", limit=1)
            steps.append(None)
            pace(rng)

    with connect() as one, connect() as two, connect() as three:
        # An operation for each sum that may be reached, and a waiter for each credit that may be given.
        sums = [one.register("amounts", timeout=120, when=total(CHUNK * (n + 1))) for n in range(STEPS_MAX)]
        jobs = [two.register("jobs", timeout=120) for _ in range(STEPS_MAX)]
        one.flush(10)
        two.flush(10)
        threads = [
            threading.Thread(target=register_and_fire, args=(one, two, random.Random(rng.random()), "a")),
            threading.Thread(target=register_and_fire, args=(two, one, random.Random(rng.random()), "b")),
            threading.Thread(target=count_up, args=(three, random.Random(rng.random()))),
        ]
        for thread in threads:
            thread.start()
        for _ in range(KILLS):
            time.sleep(RUN_S / KILLS * (0.5 + rng.random()))
            daemon.kill()
            daemon.start()
        over.set()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
        for client in (one, two, three):
            client.flush(20)
        # Amounts count once each, and each credit is one waiter's: what is reached is exactly what was fired.
        done = len(steps)
        assert 0 < done < STEPS_MAX
        assert sums[done - 1].result(timeout=20).state is State.COMPLETED, "an amount was lost"
        assert jobs[done - 1].result(timeout=20).state is State.COMPLETED, "a credit was lost"
        assert three.fire_wait("amounts", amount=CHUNK - 1) == 0, "an amount was counted twice"
        assert three.fire_wait("jobs", limit=1) == 1
        assert jobs[done].result(timeout=20).state is State.COMPLETED
        time.sleep(0.05)
        assert not jobs[done + 1].done(), "a credit was given twice"
        for operation, due in plain:
            outcome = operation.result(timeout=25)
            expected = State.COMPLETED if due else State.EXPIRED
            assert outcome.state is expected, f"{operation}: {outcome}"
            assert outcome.state is State.COMPLETED or outcome.lateness_ns >= 0
        assert one.stats().outcomes_after_giving_up == 0
    print(f"{len(plain)} operations, {done} amounts and credits, {KILLS} kills")
    stats = daemon.stats()
    assert stats["counters"]["starts"] == KILLS + 1
    # What the clients left is swept, a part of it in a turn.
    eventually(lambda: daemon.stats()["counters"]["pending"] == 0, "what its clients left is pending")
    eventually(lambda: daemon.stats()["capacity"]["ops"]["used"] == 0, "what its clients left is kept")
