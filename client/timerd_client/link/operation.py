"""An operation that this client has registered."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from timerd_client.arguments import orphans_of, shown, timeout_ns
from timerd_client.hot import Handle, without_collector
from timerd_client.hot.commands import deadline_after, operation_command
from timerd_client.outcome import Outcome, State
from timerd_client.types import Key, Timeout
from timerd_shm.declare.errors import InvalidValueError, TimerdError
from timerd_shm.declare.limits import CLOSE_TIMEOUT_S
from timerd_shm.declare.wire import CommandFlag, CommandKind
from timerd_wire.refusals import Subject

from .link import Link
from .promise import Promise, Reply


class Operation(Handle, Promise):
    """Future-like: `done()`, `result()`, `add_done_callback()`, `await`. `register()` makes it.

    It derives from Handle, because a second object would cost a third of the instructions of `register`.
    """

    __slots__ = ()
    _link: Link
    _reply: Reply | None  # to register(wait=True)

    @property
    def keys(self) -> tuple[Key, ...]:
        """The watch keys, as they were given."""
        return self._names if isinstance(self._names, tuple) else (self._names,)

    def subject(self, command: int) -> Subject:
        id, purgatory = self._id or (None, "")
        return Subject(id, purgatory, len(self.payload))

    def outcome(self) -> Outcome | None:
        """The outcome if the operation has settled, else None."""
        settlement = self._settlement
        return None if settlement is None else Outcome(self.keys, self.payload, settlement)

    def _outcome(self) -> Outcome:
        return Outcome(self.keys, self.payload, self._settlement)

    def __repr__(self) -> str:
        outcome = self.outcome()
        return f"<{type(self).__name__} {shown(self._names)} {'PENDING' if outcome is None else outcome.state.name}>"

    # commands about it, shared by both faces

    def due_ns(self, command: int) -> int:
        """The deadline, for the protocol."""
        return self.deadline_ns

    def move(self, deadline_ns: int) -> None:
        """This client has asked for another deadline. With the lock held."""
        self.deadline_ns = deadline_ns
        self._link.protocol.moved(self.command, deadline_ns)

    def _withdrawn(self) -> bool:
        """Whether cancel() has cancelled it. Raises TimerdUnavailableError if that is unknown."""
        outcome = self._outcome()
        if outcome.state is State.UNAVAILABLE:
            outcome.unwrap()
        return outcome.state is State.CANCELLED

    def _send_cancel(self) -> None:
        """Send a CANCEL, unless it has settled. Raises ClosedError."""
        if not self.done():
            self._link.withdraw([self.command])

    def _send_reschedule(self, timeout: Timeout, reply: Reply | None) -> bool:
        """Send a new deadline; False if it has settled already, as far as this client knows."""
        duration_ns = timeout_ns(timeout)
        link = self._link
        with link.lock:
            if self.done():
                return False
            if reply is not None:
                link.refuse_lost()
            registered_ns = link.now_ns()
            number = link.issue_locked(
                operation_command(
                    CommandKind.RESCHEDULE,
                    self.command,
                    flags=CommandFlag.WANTS_ANSWER if reply is not None else 0,
                    registered_ns=registered_ns,
                    timeout_ns=duration_ns,
                )
            )
            if reply is not None:
                link.protocol.incoming.replies[number] = reply
            self.move(deadline_after(registered_ns, duration_ns))
        return True

    def set_orphans(self, policy: str) -> None:
        """Set what becomes of it when this client dies: "cancel", "keep" or "group". Applies while it is pending."""
        orphans = orphans_of(policy, self._link.protocol.session.identity.group)
        if not self.done():
            self._link.issue(operation_command(CommandKind.SET_ORPHANS, self.command, orphans=orphans))

    def _accepted_error(self) -> TimerdError | None:
        """Why the daemon refused the registration; None = it did not. Raises InvalidValueError without `wait=True`."""
        if self._reply is None:
            raise InvalidValueError("accepted() needs register(..., wait=True)")
        return self._reply._error


@without_collector
class ThreadedOperation(Operation):
    """The operation of a threaded client: its methods block."""

    __slots__ = ()

    def result(self, timeout: float | None = None) -> Outcome:
        """Wait for the outcome; raises TimeoutError if it has not settled after `timeout` seconds.

        While the daemon is lost, an operation settles as UNAVAILABLE a second after its deadline. Without a deadline it
        waits until the daemon is back.
        """
        if not self.done() and not self.wait(timeout):
            raise TimeoutError(f"not settled within {timeout:g} s: {self!r}")
        return Outcome(self.keys, self.payload, self._settlement)

    def cancel(self, timeout: float = CLOSE_TIMEOUT_S) -> bool:
        """Cancel it and wait for its outcome. True if it was cancelled, False if it had settled otherwise before.

        After False, `outcome()` says how it settled. Raises TimerdUnavailableError after `timeout` s, or
        if it has settled as UNAVAILABLE.
        """
        self._send_cancel()
        if not self.wait(timeout):
            raise self._link.unavailable(timeout)
        return self._withdrawn()

    def reschedule(self, timeout: Timeout, *, wait: bool = False) -> bool:
        """Give it a new deadline, `timeout` seconds from now. Returns at once; with `wait`, when it is applied.

        False if it had settled. Without `wait` that is as far as this client knows.
        """
        if not wait:
            return self._send_reschedule(timeout, None)
        reply = Reply(self._link)
        if not self._send_reschedule(timeout, reply):
            return False
        if not reply.wait(CLOSE_TIMEOUT_S):
            raise self._link.unavailable(CLOSE_TIMEOUT_S)
        return bool(reply.get())

    def accepted(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Wait until the daemon has accepted it, after `register(wait=True)`. Raises the daemon's refusal."""
        reply = self._reply
        error = self._accepted_error()
        assert reply is not None
        if not reply.wait(timeout):
            raise self._link.unavailable(timeout)
        error = self._accepted_error()
        if error is not None:
            raise error

    def __await__(self) -> Generator[Any, None, Outcome]:
        yield from self._wait_in_loop()
        return self._outcome()
