"""Turns: processes one after the other, and the connections of a process in their order."""

from __future__ import annotations

from random import Random

from timerd.host.budget import Budget
from timerd.host.shares import Share, Shares
from timerd.host.turns import Turns


def test_a_process_with_many_connections_holds_another_process_up_by_one_turn() -> None:
    all_shares = Shares(1_000, 1_000, Budget(1 << 20))
    many, one, turns = Share(1, all_shares), Share(2, all_shares), Turns[str]()
    for number in range(400):
        turns.add(many, f"many {number}")
    turns.add(one, "one")
    assert [turns.next() for _ in range(4)] == ["many 0", "one", "many 1", "many 2"]


def test_turns_are_those_of_a_dumb_model(seed: int) -> None:
    rng, turns = Random(seed), Turns[int]()
    shares = [Share(pid, Shares(1_000, 1_000, Budget(1 << 20))) for pid in range(1, 4)]
    order: list[int] = []  # processes that have something to do, the next process first
    waiting: dict[int, list[int]] = {share.process: [] for share in shares}
    for number in range(2_000):
        if rng.random() < 0.6:
            share = rng.choice(shares)
            turns.add(share, number)
            waiting[share.process].append(number)
            if share.process not in order:
                order.append(share.process)
        elif order:
            pid = order.pop(0)
            assert turns.next() == waiting[pid].pop(0)
            if waiting[pid]:
                order.append(pid)
        assert bool(turns) == bool(order)
