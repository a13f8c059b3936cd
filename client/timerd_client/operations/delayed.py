"""A delayed operation whose condition only its owner can evaluate, as Kafka's purgatories have them.

It reads a mark, tries, watches its keys from the mark on, and tries again after each event. An event between a try and
the registration is after the mark, so it completes the registration, and no wake-up is lost.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from timerd_client.arguments import callback_of, function_of, kept, patience_s, shown, timeout_ns
from timerd_client.conditions import ANY
from timerd_client.link.flows import raise_unless_again
from timerd_client.link.operation import ThreadedOperation
from timerd_client.link.surface import Surface
from timerd_client.outcome import Outcome, State
from timerd_client.types import Keys, Patience, Timeout
from timerd_client.waits.gate import Gate


class Delayed:
    """It settles once: completed by its own `try_complete`, expired, cancelled, failed or unavailable."""

    def __init__(
        self,
        purgatory: Surface[ThreadedOperation, Any],
        try_complete: Callable[[], bool],
        keys: Keys,
        timeout: Timeout,
        on_done: Callable[[Delayed], object] | None,
    ) -> None:
        self._purgatory = purgatory
        self._try = function_of("try_complete", try_complete)
        self._keys = kept(keys)
        duration_ns = timeout_ns(timeout)
        self._deadline = purgatory._live().deadline(None if timeout is None else duration_ns / 1e9)
        if on_done is not None:
            callback_of(on_done)
        self._on_done = on_done
        self._operation: ThreadedOperation | None = None
        self._lock = threading.Lock()
        self._gates: list[Gate] = []  # of those who wait
        self.state: State | None = None  # None while it is delayed
        self.error: Exception | None = None

    def start(self) -> None:
        """Try; if that does not complete it, watch its keys."""
        mark = self._purgatory.mark()
        if self._try():
            self._settle(State.COMPLETED)
            return
        left = self._purgatory._live().seconds_left(self._deadline)
        # In the client's thread it cannot wait for room.
        operation = self._purgatory._register(
            self._keys, left, ANY, b"", None, "error", mark, None, None, may_exceed=True
        )
        with self._lock:
            self._operation = operation
            cancelled = self.state is not None
        if cancelled:
            operation.cancel()
        else:
            operation.add_done_callback(self._woken)

    def done(self) -> bool:
        """Whether it has settled."""
        return self.state is not None

    def settled(self, timeout: Patience | None = None) -> bool:
        """Wait until it has settled, `timeout` seconds at most; whether it has."""
        seconds = patience_s(timeout)
        if self.done():
            return True
        gate = self._purgatory._live().gate()
        with self._lock:
            if self.state is not None:
                return True
            self._gates.append(gate)
        try:
            gate.wait(seconds)
        finally:
            with self._lock:
                if gate in self._gates:
                    self._gates.remove(gate)
        return self.done()

    def cancel(self) -> bool:
        """Withdraw it; False if it had settled."""
        won = self._settle(State.CANCELLED)
        operation = self._operation
        if won and operation is not None:
            operation.cancel()
        return won

    def __repr__(self) -> str:
        return f"<Delayed {shown(self._keys)} {'PENDING' if self.state is None else self.state.name}>"

    def _woken(self, operation: ThreadedOperation) -> None:
        outcome: Outcome = operation.result()
        try:
            raise_unless_again(outcome)
            if self.state is not None:
                return
            if outcome.state in (State.EXPIRED, State.UNAVAILABLE):
                completed = self._try()
                if not completed:
                    self.error = outcome.error
                self._settle(State.COMPLETED if completed else outcome.state)
            elif outcome.state is State.CANCELLED:
                self._settle(State.CANCELLED)
            else:
                self.start()
        except Exception as error:  # of the daemon, or of the owner's own try_complete
            self.error = error
            self._settle(State.FAILED)

    def _settle(self, state: State) -> bool:
        with self._lock:
            if self.state is not None:
                return False
            self.state = state
            gates, self._gates = self._gates, []
        for gate in gates:
            gate.open()
        if self._on_done is not None:
            try:
                self._on_done(self)
            except Exception as error:
                self._purgatory._live().complain(f"on_done={self._on_done!r} failed", error)
        return True
