"""A worker of the suite `storm` that makes and takes calls, until SIGTERM. Some calls end their handler's process.

    python -m bench.attack.storm_calls DIRECTORY NAME CALLS_PER_S

Once DIRECTORY has a file `calm`, the worker makes no further calls.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import resource
import signal
import sys
import time
from collections import deque
from pathlib import Path

import timerd as td
from bench.attack.storm_notes import INNOCENT, KILLERS, Notes

GROUP = "calls"
CALM = "calm"
AT_ONCE = 4
PATIENCE_S = 120.0
KILLS = 1 / 75  # the share of calls whose handler ends its process
CANCELS = 0.05
ENDED = 255  # deliveries that an innocent call may have: the storm itself ends processes, too
KEPT = 20  # the newest ids: one of them may be cancelled
WAYS = ("exit", "segfault", "kill")


def end(way: str) -> None:
    """End this process."""
    if way == "exit":
        os._exit(139)
    if way == "segfault":
        ctypes.string_at(0)
    os.kill(os.getpid(), signal.SIGKILL)


def way_of(call: td.Call) -> str:
    return call.payload.split()[0].decode()


def id_of_letter(payload: bytes) -> str:
    """The id of a dead letter's call, from its payload: the letter itself has no id."""
    return payload.split()[1].decode()


def registry(notes: Notes, rng: random.Random) -> td.Calls:
    """The handlers."""
    calls = td.Calls(group=GROUP)

    @calls.handler(INNOCENT, concurrency=AT_ONCE, deliveries=ENDED)
    def innocent(call: td.Call) -> None:
        notes.add("starts", call.id)
        time.sleep(0.3 * rng.random())
        if way_of(call) == "retry" and call.attempt == 1:
            call.retry(0.05)
            notes.add("again", call.id)
        else:
            notes.add("done", call.id)

    def kill(call: td.Call) -> None:
        notes.add("starts", call.id)
        time.sleep(0.05 * rng.random())  # innocents begin beside it
        end(way_of(call))

    def failed(call: td.Call, error: BaseException) -> None:
        notes.add("fails", call.id)
        if call.name == "killer2":
            end(way_of(call))

    for name, deliveries in KILLERS.items():
        calls.handler(name, concurrency=AT_ONCE, deliveries=deliveries, on_failure=failed)(kill)
    return calls


class Caller:
    """Makes calls, and cancels some."""

    def __init__(self, client: td.Client, notes: Notes, name: str, rng: random.Random) -> None:
        self.client = client
        self.notes = notes
        self.name = name
        self.rng = rng
        self.made = 0
        self.kept: deque[str] = deque(maxlen=KEPT)

    def make(self, name: str, way: str, delay_s: float) -> None:
        """Make a call, and note that the daemon has accepted it. Raises TimerdError."""
        self.made += 1
        id = f"{name}/{self.name}/{self.made}"
        self.client.call_later_wait(name, delay_s, f"{way} {id}".encode(), id=id, timeout=PATIENCE_S)
        self.notes.add("asked", id)
        self.kept.append(id)

    def cancel(self) -> None:
        """Cancel a call, and note whether it was in time. Raises TimerdError."""
        id = self.kept.popleft()
        self.notes.add("cancels", id)
        was_pending = self.client.cancel_call_wait(id, timeout=PATIENCE_S)
        self.notes.add("cancelled" if was_pending else "kept", id)

    def act(self) -> None:
        """Make a call of some kind, or cancel one. Raises TimerdError."""
        rng = self.rng
        if self.kept and rng.random() < CANCELS:
            self.cancel()
        elif rng.random() < KILLS:
            self.make(rng.choice(tuple(KILLERS)), rng.choice(WAYS), rng.random())
        else:
            self.make(INNOCENT, "retry" if rng.random() < 0.1 else "run", 2 * rng.random() ** 2)


def main() -> None:
    directory, name, per_s = sys.argv[1:]
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: ended.append(number))
    rng, calm = random.Random(name), Path(directory) / CALM
    notes = Notes(Path(directory), name)
    client = td.connect(group=GROUP, timeout=PATIENCE_S)
    client.serve(registry(notes, rng), at_once=AT_ONCE)
    caller = Caller(client, notes, name, rng)
    while not ended:
        if not calm.exists():
            with contextlib.suppress(td.TimerdUnavailableError):  # nobody knows whether the command was applied
                caller.act()
        time.sleep(rng.random() * 2 / float(per_s))
    client.close()


if __name__ == "__main__":
    main()
