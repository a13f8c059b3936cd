"""Many operations of the minimal client in Python, with every outcome counted. It prints the counts as JSON.

    storm.py CLIENT PATH OPERATIONS SECONDS SEED

CLIENT is the file of the client, PATH is DIRECTORY/NAME of the daemon. Each operation is registered at a random time
within SECONDS, and about half of them are fired, some of these close to their deadline.
"""

from __future__ import annotations

import heapq
import importlib.util
import json
import random
import sys
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

PATIENCE_S = 30.0  # after its deadline; an operation that has not settled by then is lost


def load(path: str) -> Any:
    """The module in this file."""
    spec = importlib.util.spec_from_file_location("minimal_client", path)
    assert spec is not None and spec.loader is not None
    sys.modules["minimal_client"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def storm(client: Any, operations: int, seconds: float, seed: int) -> dict[str, int]:
    """Register the operations, fire about half of them, wait for every outcome. Returns the counts."""
    chance, start = random.Random(seed), time.monotonic()
    plan: list[tuple[float, int, float]] = []  # when, which operation, and its timeout; 0 = it is fired
    for number in range(operations):
        at, timeout = start + chance.uniform(0, seconds), chance.uniform(0.2, 3.0)
        plan.append((at, number, timeout))
        if chance.random() < 0.5:
            plan.append((at + timeout * chance.uniform(0.01, 1.02), number, 0.0))
    heapq.heapify(plan)
    deadlines: dict[Any, float] = {}  # of the pending operations: the earliest time at which they may expire
    found = Counter[str]()
    while plan or deadlines:
        while plan and plan[0][0] <= time.monotonic():
            _, number, timeout = heapq.heappop(plan)
            key, now = f"storm/{number}".encode(), time.monotonic()
            if timeout:
                deadlines[client.register(key, timeout)] = now + timeout
            else:
                client.fire(key)
        rest = plan[0][0] - time.monotonic() if plan else 1.0
        for operation in client.poll(max(rest, 0.0)):
            deadline = deadlines.pop(operation, None)
            found["twice"] += deadline is None
            found[operation.fate.name.lower()] += 1
            if deadline is not None and operation.fate.name == "EXPIRED":
                found["early"] += time.monotonic() < deadline
        late = [one for one, deadline in deadlines.items() if time.monotonic() > deadline + PATIENCE_S]
        found["lost"] += len(late)
        for operation in late:
            del deadlines[operation]
    return {name: found[name] for name in ("completed", "expired", "lost", "twice", "early")}


if __name__ == "__main__":
    file, path, operations, seconds, seed = sys.argv[1:]
    with closing(load(file).Client(Path(path))) as minimal:
        print(json.dumps(storm(minimal, int(operations), float(seconds), int(seed))))
