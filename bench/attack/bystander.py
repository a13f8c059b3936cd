"""An ordinary client in a process of its own, beside an attack: the times and the results of its requests."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import timerd as td
from timerd_shm.host.paths import InstancePaths
from timerd_shm.host.places import RUNTIME_DIR_VARIABLE
from timerd_wire.transports import Transport

PATIENCE_S = 10.0
INTERVAL_S = 0.002  # between its requests
TIMEOUT_S = 5.0  # of its operations, which it completes itself at once


class Seen(NamedTuple):
    """The results of a bystander from `look()` to `end()`."""

    round_trips_ns: list[int]  # a registration, its event, its outcome
    unavailable: int  # outcomes and calls that were UNAVAILABLE
    wrong: list[str]  # anything else that was not right


class Bystander:
    """The bystander, from outside: `look()` begins the measurement, `end()` returns its results."""

    def __init__(self, pipe: Any, process: Any) -> None:
        self._pipe = pipe
        self._process = process

    def look(self) -> None:
        self._pipe.send("look")

    def end(self) -> Seen:
        self._pipe.send("end")
        if not self._pipe.poll(PATIENCE_S * 3):
            return Seen([], 1, ["the bystander did not end"])
        return Seen(*self._pipe.recv())


def stand(paths: InstancePaths, transport: Transport, pipe: Any) -> None:
    """The bystander's process."""
    os.environ[RUNTIME_DIR_VARIABLE] = str(paths.directory)
    taken: list[int] = []
    wrong: list[str] = []
    unavailable, counts = 0, False
    with td.connect(paths.instance, timeout=PATIENCE_S, name="bystander", transport=transport) as client:
        pipe.send("ready")
        number = 0
        while True:
            if pipe.poll(INTERVAL_S):
                if pipe.recv() == "end":
                    break
                taken, unavailable, wrong, counts = [], 0, [], True
            number += 1
            before_ns = time.monotonic_ns()
            try:
                operation = client.register(f"bystander/{number}", timeout=TIMEOUT_S)
                client.fire(f"bystander/{number}", value=b"v")
                outcome = operation.result(3 * TIMEOUT_S)
                if outcome.state is td.State.UNAVAILABLE:
                    unavailable += 1
                elif (outcome.state, outcome.value) != (td.State.COMPLETED, b"v"):
                    wrong.append(f"{outcome}"[:200])
            except (td.TimerdUnavailableError, TimeoutError):
                unavailable += 1
            except td.TimerdError as error:
                wrong.append(repr(error)[:200])
            if counts:
                taken.append(time.monotonic_ns() - before_ns)
        pipe.send((taken, unavailable, wrong[:20]))


@contextlib.contextmanager
def bystander(paths: InstancePaths, transport: Transport) -> Iterator[Bystander]:
    """Run a bystander. When the block begins, the daemon already serves it."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=stand, args=(paths, transport, theirs), daemon=True)
    process.start()
    try:
        if not ours.poll(3 * PATIENCE_S):
            raise SystemExit("overload: the bystander did not begin")
        ours.recv()
        yield Bystander(ours, process)
    finally:
        process.join(1)
        if process.is_alive():
            process.kill()
            process.join()
