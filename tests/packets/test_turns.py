"""Turns of timerd/host/turns.py: processes one after the other, and the connections of a process in their order."""

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


class Watched(Share):
    """A share that counts how often its `is_held` is read."""

    looks = 0

    @property
    def is_held(self) -> bool:
        Watched.looks += 1
        return self.process != 0

    @is_held.setter
    def is_held(self, is_held: bool) -> None:
        pass


def test_processes_that_are_held_are_looked_at_once_and_not_at_each_turn() -> None:
    all_shares = Shares(1_000, 1_000, Budget(1 << 20))
    turns = Turns[int]()
    for process in range(1, 500):
        turns.add(Watched(process, all_shares), process)
    read = Watched(0, all_shares)
    for number in range(1_000):
        turns.add(read, -number)
    Watched.looks = 0
    turns.begin()
    assert [turns.next() for _ in range(1_001)] == [*(-number for number in range(1_000)), None]
    assert turns and Watched.looks <= 499 + 1_000


def test_turns_are_those_of_a_dumb_model(seed: int) -> None:
    rng, turns = Random(seed), Turns[int]()
    shares = [Share(pid, Shares(1_000, 1_000, Budget(1 << 20))) for pid in range(1, 6)]
    order: list[Share] = []  # processes that have something, the next one first
    held: list[Share] = []  # those that were held when their turn came
    waiting: dict[Share, list[int]] = {share: [] for share in shares}
    for number in range(3_000):
        share = rng.choice(shares)
        act = rng.random()
        if act < 0.5:
            turns.add(share, number)
            waiting[share].append(number)
            if share not in order + held:
                order.append(share)
        elif act < 0.6:
            share.is_held = not share.is_held
        elif act < 0.7:
            turns.begin()
            order += [share for share in held if not share.is_held]
            held = [share for share in held if share.is_held]
        else:
            while order and order[0].is_held:
                held.append(order.pop(0))
            if not order:
                assert turns.next() is None
                continue
            share = order.pop(0)
            assert turns.next() == waiting[share].pop(0)
            if waiting[share]:
                order.append(share)
        assert bool(turns) == any(waiting.values())
