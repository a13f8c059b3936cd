"""Attacks on the records of operations, by ordinary calls."""

from __future__ import annotations

import contextlib

import timerd as td

from .attacker import Attacker

WATCHERS = 60_000
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
    """Fire a key with 120,000 watchers, which count each event and never complete: 20 fires in a frame."""
    _fire_at_counting_watchers(attacker, 20)


def fire_1000_at_counting_watchers(attacker: Attacker) -> None:
    """The same, with 1,000 fires in a frame."""
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


def ask_for_snapshots(attacker: Attacker) -> None:
    """Ask for copies of the arena."""
    with attacker.client(name="attacker") as client:
        while attacker.is_on():
            with contextlib.suppress(td.TimerdError, OSError):
                client.snapshot()
                attacker.did()
