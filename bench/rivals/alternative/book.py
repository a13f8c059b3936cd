"""The two processes of a run, the same for every way: they make calls at the plan's times, and note the outcomes."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from array import array
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from bench.lib.common import Failed
from timerctl.load.harness.messages import Fired, Registered
from timerctl.load.harness.pace import Pace
from timerctl.load.harness.part import Meter
from timerd_client.outcome import State
from timerd_client.workload import Workload, fire_plan, key_names, plan

PREFIX = "k"  # of every key; the rest is the row, in hexadecimal
EACH_MAX = 10_000.0  # operations a second. At higher rates every way sends batches, one each millisecond
GRACE_NS = 3_000_000_000  # after the last deadline. An operation that has no outcome by then counts as lost
POLL_S = 0.001
COMPLETED, EXPIRED = int(State.COMPLETED.value), int(State.EXPIRED.value)


class Book:
    """An owner's columns, in the order of its plan. The thread that receives outcomes notes them here."""

    def __init__(self, workload: Workload) -> None:
        count = workload.count
        self.timeout_ns = workload.timeout_ns
        self.payload = bytes(workload.payload)
        self.sent_ns = array("q")
        self.state, self.deliveries = array("B", bytes(count)), array("B", bytes(count))
        self.settled_ns, self.deadline_ns, self.fired_ns, self.delivered_ns = (
            array("q", bytes(8 * count)) for _ in "1234"
        )
        self.settled = 0

    def call(self) -> int:
        """Note that an operation is registered now. Returns its deadline."""
        at_ns = time.monotonic_ns()
        self.deadline_ns[len(self.sent_ns)] = deadline_ns = at_ns + self.timeout_ns
        self.sent_ns.append(at_ns)
        return deadline_ns

    def completed(self, key: str | bytes, fired_ns: int) -> None:
        """Note that the owner has received the outcome of an event."""
        self._note(row_of(key), COMPLETED, 0, fired_ns)

    def expired(self, key: str | bytes, settled_ns: int = 0) -> None:
        """Note that the owner has received an expiry. `settled_ns`: when another process settled it; else 0."""
        self._note(row_of(key), EXPIRED, settled_ns, 0)

    def _note(self, row: int, state: int, settled_ns: int, fired_ns: int) -> None:
        now_ns = time.monotonic_ns()
        self.deliveries[row] = min(self.deliveries[row] + 1, 255)
        if self.deliveries[row] > 1:
            return
        self.state[row] = state
        self.settled_ns[row] = settled_ns or now_ns
        self.fired_ns[row] = fired_ns
        self.delivered_ns[row] = now_ns
        self.settled += 1


def row_of(key: str | bytes) -> int:
    """The row of the operation that waits on this key."""
    return int(key[len(PREFIX) :], 16)


class Owner(ABC):
    """The side that registers operations and receives outcomes. Its columns are in `book`."""

    def __init__(self, directory: Path, book: Book) -> None:
        self.directory = directory
        self.book = book

    @abstractmethod
    def register(self, keys: Sequence[str]) -> None:
        """Register an operation on each key, in this order. Calls `book.call()` once for each."""

    @abstractmethod
    def close(self) -> None:
        """End threads and connections."""


class Firer(ABC):
    """The side that fires."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @abstractmethod
    def fire(self, keys: Sequence[str], at_ns: Sequence[int]) -> None:
        """Fire an event on each key. Its value is the time of the call, from `at_ns`."""

    @abstractmethod
    def close(self) -> None:
        """End threads and connections. When this returns, all events are sent."""


class Way(ABC):
    """One way to build a purgatory without timerd."""

    name: str

    def missing(self) -> str:
        """The command that installs a missing program; empty if none is missing."""
        return ""

    @abstractmethod
    def serve(self, directory: Path) -> AbstractContextManager[list[int]]:
        """Run the server between the two processes, if there is one. Gives the pids of its processes."""

    @abstractmethod
    def owner(self, directory: Path, book: Book) -> Owner:
        """The registering side."""

    @abstractmethod
    def firer(self, directory: Path) -> Firer:
        """The firing side."""


def play_owner(owner: Owner, workload: Workload, start_ns: int) -> Registered:
    """Register each operation at its time, and wait for the outcomes."""
    rows, book = plan(workload), owner.book
    pace, meter = Pace(rows.due_ns, start_ns, workload.rate > EACH_MAX), Meter()
    row, count, failure = 0, len(rows.due_ns), ""
    try:
        while row < count:
            upto = pace.begin(row)
            if upto > row:
                owner.register(key_names(PREFIX, range(row, upto)))
                pace.end()
                row = upto
    except (OSError, Failed) as error:
        failure = f"{type(error).__name__}: {error}"
    ended_ns = time.monotonic_ns()
    until_ns = ended_ns + workload.timeout_ns + GRACE_NS
    while book.settled < len(book.sent_ns) and time.monotonic_ns() < until_ns and not failure:
        time.sleep(POLL_S)
    outcomes = sum(map(bool, book.deliveries))
    returned_ns = book.sent_ns[1:] + array("q", [ended_ns])
    return Registered(
        rows, book.sent_ns, returned_ns, book.state, book.deliveries, book.settled_ns, book.deadline_ns, book.fired_ns,
        book.delivered_ns, ended_ns, outcomes, pace.own_lateness_ns, {}, meter.read(), failure,
    )  # fmt: skip


def play_firer(firer: Firer, workload: Workload, start_ns: int) -> Fired:
    """Fire each event at its time."""
    events = fire_plan(workload)
    sent_ns = array("q")
    pace, meter = Pace(events.due_ns, start_ns, workload.rate > EACH_MAX), Meter()
    row, count, failure, now = 0, len(events.due_ns), "", time.monotonic_ns
    try:
        while row < count:
            upto = pace.begin(row)
            if upto > row:
                keys = key_names(PREFIX, events.keys[row:upto])
                at_ns = [now() for _ in keys]
                firer.fire(keys, at_ns)
                sent_ns.extend(at_ns)
                pace.end()
                row = upto
    except (OSError, Failed) as error:
        failure = f"{type(error).__name__}: {error}"
    return Fired(events, sent_ns, pace.own_lateness_ns, meter.read(), failure)
