"""A worker of bench/suites/storm.py: registers, fires, and takes and gives jobs at random, until SIGTERM.

    python -m bench.attack.storm_worker DIRECTORY NAME ACTS_PER_S

Its children are in bench/attack/storm_children.py.
"""

from __future__ import annotations

import contextlib
import random
import signal
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import timerd as td
from bench.attack.storm_children import bear, configure

KEYS = tuple(f"k{number}" for number in range(40))
KEPT = 200  # handles that a worker keeps
TAKING = 12  # pending operations that take a job
PATIENCE_S = 120.0


class Worker:
    """One client and its acts."""

    def __init__(self, directory: Path, name: str) -> None:
        self.rng = rng = random.Random(name)
        self.directory = directory
        self.name = name
        self.jobs = self.children = 0
        self.client = td.connect(
            timeout=PATIENCE_S,
            group="storm" if rng.random() < 0.5 else None,
            orphans="cancel" if rng.random() < 0.7 else "keep",
        )
        configure()
        if rng.random() < 0.5:  # children that are forked find a client that their parent has used
            td.client().fire(rng.choice(KEYS))
        self.kept: deque[td.Operation] = deque(maxlen=KEPT)
        self.taking: deque[td.Operation] = deque()
        self.acts: list[tuple[Callable[[], None], float]] = [
            (self.register, 5),
            (self.fire, 4),
            (self.take, 4),
            (self.give, 4),
            (self.identified, 1),
            (self.watermark, 1),
            (self.cancel, 0.5),
            (self.reschedule, 0.5),
            (self.bear, 0.4),
        ]

    def register(self) -> None:
        rng = self.rng
        keys = rng.sample(KEYS, rng.choice((1, 1, 1, 2, 5)))
        payload = rng.randbytes(rng.choice((0, 8, 300)))
        self.kept.append(self.client.register(keys, timeout=rng.random() * 3, payload=payload))

    def fire(self) -> None:
        self.client.fire(self.rng.choice(KEYS), value=self.rng.randbytes(self.rng.choice((0, 8, 300))))

    def take(self) -> None:
        """Keep some operations pending that each take one job."""
        while self.taking and self.taking[0].done():
            self.taking.popleft()
        if len(self.taking) < TAKING:
            self.taking.append(self.client.register("jobs", timeout=20 + self.rng.random() * 20))

    def give(self) -> None:
        self.jobs += 1
        self.client.fire("jobs", limit=1, value=f"{self.name}/{self.jobs}".encode())

    def identified(self) -> None:
        self.client.register(self.rng.choice(KEYS), timeout=self.rng.random() * 5, id=f"id{self.rng.randrange(50)}")

    def watermark(self) -> None:
        if self.rng.random() < 0.5:
            self.client.advance("w", int(time.time() * 10))
        else:
            self.kept.append(self.client.register({"w": int(time.time() * 10) + self.rng.randrange(30)}, timeout=2))

    def cancel(self) -> None:
        if self.kept:
            self.rng.choice(self.kept).cancel_wait(timeout=0.5)

    def reschedule(self) -> None:
        if self.kept:
            self.rng.choice(self.kept).reschedule(self.rng.random())

    def bear(self) -> None:
        """Have a child."""
        self.children += 1
        bear(self.rng, self.directory, f"{self.name}-{self.children}")

    def run(self, per_s: float, over: Callable[[], bool]) -> None:
        """Act `per_s` times a second. Refusals and a lost daemon are expected."""
        acts, weights = zip(*self.acts, strict=True)
        self.bear()
        while not over():
            for act in self.rng.choices(acts, weights, k=5):
                try:
                    act()
                except td.TimerdError:
                    time.sleep(0.05)
            time.sleep(self.rng.random() * 2 * 5 / per_s)


def main() -> None:
    directory, name, per_s = sys.argv[1:]
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: ended.append(number))
    worker = Worker(Path(directory), name)
    worker.run(float(per_s), lambda: bool(ended))
    with contextlib.suppress(td.TimerdError):  # refusals of commands that nobody waited for
        worker.client.close()


if __name__ == "__main__":
    main()
