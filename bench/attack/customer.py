"""An ordinary client beside a flood. Its round trips are measured."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

import timerd as td

from .senders import PATIENCE_S


class Round(NamedTuple):
    """A call that was answered."""

    what: str
    at_ns: int
    took_ns: int


class Customer(threading.Thread):
    """An ordinary client. It cancels, fires and is refused, again and again, and checks each result."""

    def __init__(self, instance: str) -> None:
        super().__init__(name="customer")
        self.client = td.connect(instance, timeout=PATIENCE_S, name="customer")
        self.taken = self.client.register("taken", timeout=None, id="taken")
        self.rounds: list[Round] = []
        self.deliveries: dict[int, int] = {}  # how often each operation's outcome was delivered
        self.wrong: list[str] = []
        self.stop = threading.Event()

    def run(self) -> None:
        number = 0
        while not self.stop.wait(0.002):
            number += 1
            try:
                self.time("cancel", self.cancel, number)
                self.time("fire_wait", self.fire_wait, number)
                self.time("refusal", self.be_refused, number)
            except td.TimerdError as error:
                self.wrong.append(f"round {number}: {error!r}")

    def time(self, what: str, call: Callable[[int], None], number: int) -> None:
        before_ns = time.monotonic_ns()
        call(number)
        self.rounds.append(Round(what, before_ns, time.monotonic_ns() - before_ns))

    def watch(self, operation: td.Operation, number: int) -> None:
        self.deliveries.setdefault(number, 0)

        def count(_: object) -> None:
            self.deliveries[number] += 1

        operation.add_done_callback(count)

    def cancel(self, number: int) -> None:
        operation = self.client.register("never", timeout=600)
        self.watch(operation, 2 * number)
        self.judge("cancel()", operation.cancel_wait(), True)
        self.judge("a cancelled operation", operation.result(PATIENCE_S).state, td.State.CANCELLED)

    def fire_wait(self, number: int) -> None:
        operation = self.client.register("mine", timeout=600)
        self.watch(operation, 2 * number + 1)
        self.judge("fire_wait()", self.client.fire_wait("mine", value=b"yours"), 1)
        self.judge("a completed operation", operation.result(PATIENCE_S).value, b"yours")

    def be_refused(self, number: int) -> None:
        error = self.client.register("taken", timeout=600, id=b"taken").result(PATIENCE_S).error
        self.judge("an id that is taken", type(error), td.OperationExistsError)

    def judge(self, what: str, found: object, right: object) -> None:
        if found != right:
            self.wrong.append(f"{what} was {found!r}, not {right!r}")

    def close(self) -> list[str]:
        """End the client. Returns the faults that it found."""
        self.stop.set()
        self.join()
        self.taken.cancel_wait()
        often = {number: times for number, times in self.deliveries.items() if times != 1}
        if often:
            self.wrong.append(f"operations whose outcome was not delivered once: {dict(list(often.items())[:5])}")
        if unknown := self.client.stats().outcomes_unknown:
            self.wrong.append(f"{unknown} outcomes that no operation waited for")
        self.client.close()
        return self.wrong
