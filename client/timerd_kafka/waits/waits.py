"""The delayed operations of one broker, in a purgatory for each kind.

    parts = await waits.until("produce", timeout, lambda give: DelayedProduce(appended, replicated, give))

The operation waits in the timer daemon. Its functions run in the timer client's thread: they read the broker's state,
and change nothing. The operation's answer goes to the broker's loop, where all state is changed.

Two things end a wait without the daemon. If a client closes its connection, the operation is withdrawn. And if the
daemon is lost and does not answer in time, `Waits.watch` ends the wait: the request gets an error after which its
client tries again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import timerd_client as td
from timerd_client.errors import TimerdError
from timerd_client.operations import NamedOperation

PURGATORIES = ("produce", "fetch", "heartbeat", "rebalance", "topic", "quota", "fault", "replica")
GRACE_S = 1.0  # how long after a deadline the daemon may still settle the operation, unless the daemon has ended
LOOK_S = 0.1  # between two calls of `Waits.watch`
COMMANDS_MAX = 50_000  # unacknowledged, at most: with a full window (65,536), a call would block the loop


class DaemonLost(Exception):
    """The timer daemon does not hold the operation, or does not answer in time. The client has to try again."""


class Waits:
    """The purgatories, and the waits in them. Call the methods in the broker's loop; `call` is for all threads."""

    def __init__(self, client: td.Client, loop: asyncio.AbstractEventLoop) -> None:
        self.client, self.loop = client, loop
        self._purgatories = {name: client.purgatory(name) for name in PURGATORIES}
        self._open: set[Wait] = set()
        self.daemon_ended = False  # set by the supervisor
        self.is_full = False  # too many commands wait for a lost daemon: new ones are refused

    def __getitem__(self, name: str) -> td.Purgatory:
        """The purgatory with this name."""
        return self._purgatories[name]

    def call(self, function: Callable[..., object], *arguments: object) -> None:
        """Call a function in the loop. Any thread may use this."""
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(function, *arguments)

    async def until(self, purgatory: str, timeout: float, make: Callable[[Callable[..., Any]], NamedOperation]) -> Any:
        """The operation's answer. `make(give)` makes the operation, which calls give() or give(answer) at its end.

        If the request's connection ends, the operation is withdrawn. Raises DaemonLost.
        """
        wait = self.begin(purgatory, timeout, make)
        try:
            return await wait.future
        except asyncio.CancelledError:
            wait.cancel()
            raise

    def begin(self, purgatory: str, timeout: float, make: Callable[[Callable[..., Any]], NamedOperation]) -> Wait:
        """As until(), but returns the wait at once. Several requests may await its `future`, if they shield it.

        The future may fail with DaemonLost.
        """
        wait = Wait(self)
        wait.operation, wait.deadline = make(wait.give), self.loop.time() + timeout
        self._open.add(wait)
        wait.future.add_done_callback(lambda _: self._open.discard(wait))
        if self.is_full:
            wait.fail(DaemonLost(f"the timer daemon has not taken {COMMANDS_MAX} commands"))
            return wait
        try:
            wait.operation.watch(self[purgatory], timeout=timeout)
        except TimerdError as error:
            wait.fail(DaemonLost(str(error)))
        return wait

    def fire(self, purgatory: str, *keys: str) -> None:
        """Fire these keys after a change, so that the operations that wait on them look."""
        if self.is_full:
            return
        try:
            for key in keys:
                self[purgatory].fire(key)
        except TimerdError:
            pass  # watch() ends the waits

    def watch(self) -> None:
        """End waits whose time is over and that the daemon has not ended. Called every LOOK_S."""
        self.is_full = self.client.stats().unacknowledged > COMMANDS_MAX
        patience = 0.0 if self.daemon_ended else GRACE_S
        now = self.loop.time()
        for wait in [wait for wait in self._open if now >= wait.deadline + patience]:
            wait.operation.cancel()
            wait.fail(DaemonLost("the timer daemon has not answered in time"))

    @property
    def pending(self) -> int:
        """The number of waits that have not ended. A wait may stand for several requests."""
        return len(self._open)


class Wait:
    """One wait. Only its first answer counts."""

    operation: NamedOperation
    deadline: float

    def __init__(self, waits: Waits) -> None:
        self._waits = waits
        self.future: asyncio.Future[Any] = waits.loop.create_future()

    def give(self, answer: Any = None) -> None:
        """Answer the wait. Any thread may use this."""
        error = self.operation.error
        if error is None:
            self._waits.call(self._end, answer)
        else:
            self._waits.call(self.fail, DaemonLost(str(error)))

    def cancel(self) -> None:
        """Withdraw the operation, for which nobody waits any more."""
        self.operation.cancel()
        self.future.cancel()

    def fail(self, error: DaemonLost) -> None:
        """End the wait with an error."""
        if not self.future.done():
            self.future.set_exception(error)

    def _end(self, answer: Any) -> None:
        if not self.future.done():
            self.future.set_result(answer)
