"""A short burst of load: two processes register in bulk, and each fires what the other has registered."""

from __future__ import annotations

import multiprocessing
import time
from collections import Counter
from multiprocessing.connection import Connection
from typing import NamedTuple

import timerd as td

PURGATORY = "burst"
ROUNDS = 40
BATCH = 1_000
FIRED = 900  # of each batch; the rest expires
TIMEOUT_S = 0.5


class Burst(NamedTuple):
    """What the two processes were told, added up."""

    registered: int
    completed: int
    expired: int
    other: int
    seconds: float


def run() -> Burst:
    """Run it; the processes have ended when it returns."""
    context = multiprocessing.get_context("spawn")
    left, right = context.Pipe()
    results, tell = context.Pipe(duplex=False)
    workers = [context.Process(target=work, args=(name, end, tell)) for name, end in (("left", left), ("right", right))]
    try:
        for worker in workers:
            worker.start()
        told = [results.recv() for _ in workers]
        for worker in workers:
            worker.join()
    finally:
        for worker in workers:
            if worker.is_alive():
                worker.terminate()
    states = sum((Counter(each["states"]) for each in told), Counter[str]())
    completed, expired = states.pop("COMPLETED", 0), states.pop("EXPIRED", 0)
    registered = completed + expired + sum(states.values())
    began, ended = min(each["began"] for each in told), max(each["ended"] for each in told)
    return Burst(registered, completed, expired, sum(states.values()), ended - began)


def work(name: str, other: Connection, tell: Connection) -> None:
    """One of the two: register a batch, tell the other, fire the other's batch; and say what became of one's own."""
    with td.connect() as client:
        purgatory = client.purgatory(PURGATORY)
        batches = []
        other.send("ready")
        other.recv()
        began = time.monotonic()
        for number in range(ROUNDS):
            keys = [f"{name}/{number}/{i}" for i in range(BATCH)]
            batches.append(purgatory.register_many(keys, timeout=TIMEOUT_S))
            client.flush()
            other.send(keys[:FIRED])
            purgatory.fire_many(other.recv())
        outcomes = [outcome for batch in batches for outcome in batch.outcomes()]
        ended = time.monotonic()
    states = Counter(outcome.state.name for outcome in outcomes)
    tell.send({"states": dict(states), "began": began, "ended": ended})
