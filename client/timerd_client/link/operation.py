"""The handle of one operation, which its owner holds."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final, Protocol

from timerd_client.arguments import orphans_of, shown, timeout_ns, within
from timerd_client.hot import Handle, without_collector
from timerd_client.hot.commands import deadline_after, operation_command
from timerd_client.one_process import OneProcess, public_name
from timerd_client.outcome import Outcome, State, state_of
from timerd_client.scope import current_scope
from timerd_client.types import Key, OrphanPolicy, Patience, Timeout
from timerd_client.waiter import RawSettlement
from timerd_shm.declare.fields import offset_of
from timerd_shm.declare.limits import CLOSE_TIMEOUT_S
from timerd_shm.declare.wire import CommandFlag, CommandKind, OutcomeFlag, OutcomeRecord
from timerd_wire.refusals import Subject

from .link import Link
from .promise import Promise, Reply
from .withdrawals import end_wait, give_back, withdraw

NOT_TAKEN: Final[RawSettlement] = (None, b"", 0, None)
_FLAGS_AT: Final = offset_of(OutcomeRecord, "flags")
_NUMBER_AT: Final = offset_of(OutcomeRecord, "number")


def grant_of(settlement: RawSettlement | None) -> int:
    """The number of the outcome, if a limited event has completed the operation; otherwise 0."""
    record = None if settlement is None else settlement[0]
    if record is None or not record[_FLAGS_AT] & OutcomeFlag.GRANTED:
        return 0
    return int.from_bytes(record[_NUMBER_AT : _NUMBER_AT + 8], "little")


class Operation(OneProcess, Handle, Promise):
    """Future-like: `done()`, `result()`, `add_done_callback()`, `cancel()`, `await`. `register()` makes it.

    A handle belongs to the process that has registered the operation: a forked child gets ClosedError. Any thread may
    use it. It cannot be pickled: register with `id=`, and another process can name the operation by this id. Dropping
    the handle leaves the operation pending. If a limited event completes an operation without a handle, or nobody
    looked at the outcome before the handle was dropped, the event goes to another operation (docs/reference/api.md).

    Operation derives from Handle: with two objects for each request, `register` would need a third more instructions.
    """

    __slots__ = ()
    IN_PLACE = "register with id=, and give the id"
    _link: Link
    _id: tuple[Key, str, str] | None  # its id, purgatory, and if_exists

    @property
    def keys(self) -> tuple[Key, ...]:
        """The watch keys, as they were given."""
        return self._names if isinstance(self._names, tuple) else (self._names,)

    @property
    def id(self) -> Key | None:
        """The id that was given, or None."""
        return None if self._id is None else self._id[0]

    def subject(self, command: int) -> Subject:
        id, purgatory, if_exists = self._id or (None, "", "error")
        return Subject(id, purgatory, len(self.payload), keeps=if_exists == "keep")

    def outcome(self) -> Outcome | None:
        """The outcome if the operation has settled, else None."""
        return self._outcome() if self._has_settled() else None

    def _outcome(self) -> Outcome:
        """The outcome of a settled operation, for a caller: this counts as a look at it."""
        outcome = Outcome(self.keys, self.payload, NOT_TAKEN)
        outcome._settlement = self._taken  # last: see `_taken`
        return outcome

    def __repr__(self) -> str:
        settlement = self._settlement
        state = "PENDING" if settlement is None else state_of(settlement).name
        return f"<{public_name(self)} {shown(self._names)} {state}>"

    # commands about the operation, shared by threaded and asyncio operations

    def cancel(self) -> None:
        """Cancel the operation, unless it has settled. Returns at once: see `cancel_wait`. Raises ClosedError."""
        if not self._has_settled():
            withdraw(self._link, [self.command])

    def reschedule(self, delay: Timeout) -> None:
        """Set a new deadline, `delay` seconds from now; None = no deadline. Returns at once: see `reschedule_wait`."""
        self._send_reschedule(delay, None)

    def set_orphans(self, policy: OrphanPolicy) -> None:
        """Set the policy of a pending operation for the death of this process: "cancel", "keep" or "group"."""
        orphans = orphans_of(policy, self._link.protocol.session.identity.group)
        if not self._has_settled():
            self._link.sender.issue(operation_command(CommandKind.SET_ORPHANS, self.command, orphans=orphans))

    def due_ns(self, command: int) -> int:
        """The deadline, for the protocol."""
        return self.deadline_ns

    def move(self, deadline_ns: int) -> None:
        """Note the new deadline for which this client has asked. Called with the lock held."""
        self.deadline_ns = deadline_ns
        self._link.protocol.moved(self.command, deadline_ns)

    def _withdrawn(self) -> bool:
        """Whether cancel() has cancelled the operation. Raises TimerdUnavailableError if this is not known."""
        outcome = Outcome(self.keys, self.payload, self._settlement)
        if outcome.state is State.UNAVAILABLE:
            outcome.unwrap()
        return outcome.state is State.CANCELLED

    _scope = staticmethod(current_scope)

    def _end_wait(self) -> bool:
        return end_wait(self._link, [self.command])

    def _give_back(self) -> None:
        """Withdraw the operation, because its caller no longer waits: a limited event goes to another operation."""
        give_back(self._link, self.command, lambda: grant_of(self._settlement))

    def _send_reschedule(self, delay: Timeout, reply: Reply | None) -> bool:
        """Send a new deadline. Returns False if this client knows that the operation has settled."""
        duration_ns = timeout_ns(delay, "delay")
        link = self._link
        with link.lock:
            if self._has_settled():
                return False
            if reply is not None:
                link.connection.refuse_lost()
            registered_ns = link.now_ns()
            number = link.sender.issue_locked(
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

    # threaded/ and aio/ override these calls without docstrings: help() and editors show the docstrings below.

    def result(self, *given: Any, **named: Any) -> object:
        """Wait for the outcome. Raises TimeoutError if the operation has not settled after `timeout` seconds.

        While the daemon is lost, an operation settles as UNAVAILABLE a second after its deadline. An operation without
        a deadline stays pending until the daemon is back.
        """

    def cancel_wait(self, *given: Any, **named: Any) -> object:
        """Cancel the operation and wait. True if it was cancelled, False if it had already settled in another way.

        After False, `outcome()` is the outcome. Raises TimerdUnavailableError after `timeout` seconds, or if the
        operation has settled as UNAVAILABLE.
        """

    def reschedule_wait(self, *given: Any, **named: Any) -> object:
        """As `reschedule`; returns whether the operation was still pending.

        Raises TimerdUnavailableError after `timeout` seconds.
        """


class _Named(Protocol):
    """A purgatory, which cancels and reschedules by an id."""

    def cancel(self, id: Key) -> None:
        """Cancel the operation with this id."""

    def reschedule(self, id: Key, delay: Timeout) -> None:
        """Give the operation with this id a new deadline."""


class GroupOperation:
    """An operation of the group. Its outcome goes to one live member, through `client.outcomes()`, not to this handle.

    So the handle has no `result()`. It names the operation by its id. Any process of the group can do the same:
    `client.cancel(id)`, `client.reschedule(id, delay)`, and `cancel_wait` and `reschedule_wait`. Any thread may use the
    handle. Dropping it leaves the operation pending, and so does the end of this process.
    """

    __slots__ = ("_surface", "id", "keys", "payload")

    def __init__(self, surface: _Named, keys: tuple[Key, ...], id: Key, payload: bytes) -> None:
        self._surface = surface
        self.keys = keys
        self.id = id  # as it was given, or a new id
        self.payload = payload

    def cancel(self) -> None:
        """Cancel the operation, unless it has settled. Returns at once: see `client.cancel_wait(id)`."""
        self._surface.cancel(self.id)

    def reschedule(self, delay: Timeout) -> None:
        """Set a new deadline, `delay` s from now; None = no deadline. Returns at once."""
        self._surface.reschedule(self.id, delay)

    def __repr__(self) -> str:
        return f"<GroupOperation {shown(self.keys)} id={shown(self.id)}>"


@without_collector
class ThreadedOperation(Operation):
    """The operation of a threaded client: its methods block."""

    __slots__ = ()

    def result(self, timeout: Patience = None) -> Outcome:
        if (timeout is not None or not self._has_settled()) and not self._wait(timeout):
            raise TimeoutError(f"not settled {within(timeout)}: {self!r}{self._link.connection.held_up()}")
        outcome = Outcome(self.keys, self.payload, NOT_TAKEN)
        outcome._settlement = self._taken  # last: see `_taken`
        return outcome

    def cancel_wait(self, *, timeout: Patience = CLOSE_TIMEOUT_S) -> bool:
        self.cancel()
        if not self._wait(timeout):
            raise self._link.connection.unavailable(timeout)
        return self._withdrawn()

    def reschedule_wait(self, delay: Timeout, *, timeout: Patience = CLOSE_TIMEOUT_S) -> bool:
        reply = Reply(self._link)
        return self._send_reschedule(delay, reply) and bool(reply.answer_in_time(timeout))

    def __await__(self) -> Generator[Any, None, Outcome]:
        yield from self._wait_in_loop()
        return self._outcome()
