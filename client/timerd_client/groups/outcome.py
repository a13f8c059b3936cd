"""The outcome of an operation of this client's group, and its acknowledgement."""

from __future__ import annotations

from typing import Any

from timerd_client.hot.commands import in_purgatory, operation_command
from timerd_client.link.link import Link
from timerd_client.link.promise import Reply
from timerd_client.outcome import Outcome
from timerd_client.protocol.inbox import DeliveredOutcome
from timerd_client.types import Key
from timerd_client.waiter import RawSettlement
from timerd_shm.declare.wire import CommandFlag, CommandKind, OutcomeFlag


class GroupOutcome(Outcome):
    """The outcome of an operation of this client's group. Without `ack()` it is redelivered, to this or another member.

    `keys` are the operation's keys: a str if the key is UTF-8, else bytes. `deliveries` counts the outcome's
    deliveries: if it is above 1, an earlier member may have acted on the outcome. Then `redelivered` is true. It is
    also true if a requeued event has completed the operation.
    """

    def __init__(self, link: Link, told: DeliveredOutcome) -> None:
        settlement: RawSettlement = (told.row, told.value, told.arena, None)
        super().__init__(told.keys, told.payload, settlement)
        self._link = link
        self._told = told

    @property
    def purgatory(self) -> str:
        """Name of the operation's purgatory."""
        return self._told.purgatory

    @property
    def keys(self) -> tuple[Key, ...]:
        """The operation's watch keys."""
        return self._told.keys

    @property
    def deliveries(self) -> int:
        """How often the outcome was delivered, including this delivery; at most 255."""
        return self._told.record.deliveries

    @property
    def redelivered(self) -> bool:
        """Whether the outcome was delivered before, or its event was requeued from an owner that died."""
        return self.deliveries > 1 or bool(self._told.record.flags & OutcomeFlag.REDELIVERED)

    def ack(self) -> None:
        """Acknowledge that this outcome is done. Returns at once. Does nothing if another member has got the outcome.

        Raises ClosedError: then the outcome is redelivered to another member.
        """
        acknowledge(self._link, self._told)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.state.name} keys={self.keys!r:.80} deliveries={self.deliveries}>"

    # Threaded and asyncio clients override this call without a docstring: help() and editors show the docstring below.

    def ack_wait(self, *given: Any, **named: Any) -> object:
        """As `ack`; returns False if the outcome had been requeued or acknowledged already.

        Raises TimerdUnavailableError after `timeout` seconds: then it is not known whether this call acknowledged it.
        """


def acknowledge(link: Link, told: DeliveredOutcome, reply: Reply | None = None) -> None:
    """Acknowledge an outcome. `reply` gets 1 if this client still held the outcome, else 0. Raises ClosedError."""
    flags = CommandFlag.WANTS_ANSWER if reply is not None else 0
    command = operation_command(CommandKind.GROUP_ACK, told.record.operation, flags=flags)
    if not issue(link, command, told, reply) and reply is not None:
        reply.answer(0)


def issue(
    link: Link,
    command: bytes,
    done: DeliveredOutcome | None = None,
    reply: Reply | None = None,
    purgatory: str | None = None,
    about: DeliveredOutcome | None = None,
) -> bool:
    """Issue a command. With `done`, the command acknowledges this outcome. `reply` gets the answer.

    Issues nothing and returns False if `done` or `about` was delivered to an earlier incarnation of this client, or in
    another arena: another operation may have the op id now. Raises ClosedError. The command may exceed a full window,
    like a cancel. The number of such commands is bounded, because a member holds a bounded number of outcomes.
    """
    with link.lock:
        link.check_open()
        protocol = link.protocol
        named = done or about
        if named is not None and not protocol.inbox.is_ours(named):
            return False
        if purgatory is not None:
            command = in_purgatory(command, protocol.session.purgatories[purgatory])
        number = protocol.ledger.issue(command)
        if done is not None:
            protocol.inbox.done(done.record.operation, number)
        if reply is not None:
            protocol.incoming.replies[number] = reply
        link.wake_if_due(number)
    return True
