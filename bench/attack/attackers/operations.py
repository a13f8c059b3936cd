"""Attacks on the records of operations, by ordinary calls."""

from __future__ import annotations

import contextlib

import timerd as td

from .attacker import Attacker

WATCHERS = 60_000
CALLS = 20_000
PART = 5_000  # watchers that one register_many() registers


def use_up_ids(attacker: Attacker) -> None:
    """Register with ids that are never used again, and let each operation settle at once."""
    with attacker.client(name="attacker") as client:
        number = 0
        while attacker.is_on():
            with contextlib.suppress(td.TimerdError):
                client.register("id", timeout=0, id=f"attacker/{number}")
                number += 1
                attacker.did()


def register_64_keys(attacker: Attacker) -> None:
    """Register operations that have 64 new keys each."""
    with attacker.client(name="attacker") as client:
        number = 0
        while attacker.is_on():
            keys = [f"attacker/{number}/{key}" for key in range(64)]
            with contextlib.suppress(td.TimerdError):
                client.register(keys, timeout=0.05)
                attacker.did()
            number += 1


def fire_many_watchers(attacker: Attacker) -> None:
    """Let many operations watch one key, and fire it."""
    with attacker.client(name="attacker") as client:
        while attacker.is_on():
            with contextlib.suppress(td.TimerdError):
                client.register_many([b"fan"] * WATCHERS, timeout=60)
                client.fire("fan")
                attacker.did()
                client.flush(timeout=10)


def fire_20_at_counting_watchers(attacker: Attacker) -> None:
    """Fire a key with 120,000 watchers, which count each event and never complete. Each frame has 20 fires."""
    _fire_at_counting_watchers(attacker, 20)


def fire_1000_at_counting_watchers(attacker: Attacker) -> None:
    """As `fire_20_at_counting_watchers`, with 1,000 fires in each frame."""
    _fire_at_counting_watchers(attacker, 1_000)


def _fire_at_counting_watchers(attacker: Attacker, fires: int) -> None:
    with attacker.client(name="one") as one, attacker.client(name="two") as two, attacker.client(name="three") as three:
        for client in (one, two):
            for _ in range(WATCHERS // PART):
                client.register_many(["hot"] * PART, timeout=600, when=td.total(10**15))
                client.flush(timeout=10)
        while attacker.is_on():
            with contextlib.suppress(td.TimerdError):
                for _ in range(fires):
                    three.fire("hot")
                    attacker.did()
                three.flush(timeout=1)


def advance_many_watchers(attacker: Attacker) -> None:
    """Let 120,000 operations wait for random numbers of one watermark key, then settle all of them by one advance."""
    with attacker.client(name="one") as one, attacker.client(name="two") as two:
        mark = 0
        while attacker.is_on():
            for client in (one, two):
                for _ in range(WATCHERS // PART):
                    targets = [{"mark": mark + attacker.random.randrange(1, 1 << 30)} for _ in range(PART)]
                    with contextlib.suppress(td.TimerdError):
                        client.register_many(targets, timeout=600)
                        client.flush(timeout=10)
            mark += 1 << 30
            with contextlib.suppress(td.TimerdError):
                one.advance("mark", mark)
                one.flush(timeout=10)
                attacker.did()


def leave_calls_unhandled(attacker: Attacker) -> None:
    """Make 20,000 due calls that no member handles. Meanwhile a member changes its handlers again and again."""
    with attacker.client(name="asker", group="attackers") as asker, attacker.client(group="attackers") as member:
        for number in range(CALLS):
            with contextlib.suppress(td.TimerdError):
                asker.call_later(f"unhandled/{number % 100}", 0)
        number = 0
        while attacker.is_on():
            calls = td.Calls()
            calls.handler(f"handled/{number % 200}")(lambda call: None)
            with contextlib.suppress(td.TimerdError):
                member.serve(calls)
                asker.call_later(f"handled/{number % 200}", 0)
                asker.flush(timeout=1)
                attacker.did()
            number += 1


def fire_past_dead_owners(attacker: Attacker) -> None:
    """Leave operations of ended clients on a key, and fire limited events that pass by all of them.

    Soon the ended clients hold three quarters of the arena, which is all that ended clients may hold.
    """
    while attacker.is_on():
        with contextlib.suppress(td.TimerdError):
            owner = attacker.client(name="owner", orphans="keep")
            for _ in range(4):
                owner.register_many(["past"] * PART, timeout=1)
            owner.close()
            with attacker.client(name="firer") as firer:
                for _ in range(200):
                    firer.fire("past", limit=1)
                    attacker.did()
                firer.flush(timeout=5)


def ask_for_snapshots(attacker: Attacker) -> None:
    """Ask for copies of the arena."""
    with attacker.client(name="attacker") as client:
        while attacker.is_on():
            with contextlib.suppress(td.TimerdError, OSError):
                client.snapshot()
                attacker.did()
