"""How an operation of this client's group settled, and how this client says that it has acted on it."""

from __future__ import annotations

from timerd_client.hot.commands import operation_command
from timerd_client.link.link import Link
from timerd_client.link.promise import Reply
from timerd_client.outcome import Outcome
from timerd_client.protocol.inbox import Told
from timerd_client.types import Key
from timerd_client.waiter import RawSettlement
from timerd_shm.declare.wire import CommandFlag, CommandKind, OutcomeFlag


class GroupOutcome(Outcome):
    """How an operation of this client's group settled. Done only when `ack()` says so; else another member is told.

    `keys` are the operation's, str where they are UTF-8. `deliveries` says how often it has been told: above 1 somebody
    was told before, and may have acted. `redelivered` says the same as a bool.
    """

    def __init__(self, link: Link, told: Told) -> None:
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
        """How often it has been told, this time included; at most 255."""
        return self._told.record.deliveries

    @property
    def redelivered(self) -> bool:
        """Whether it was told before, or its operation was given what had been given to an owner that died."""
        return self.deliveries > 1 or bool(self._told.record.flags & OutcomeFlag.REDELIVERED)

    def ack(self) -> None:
        """Say that it is done. Returns at once; once it was handed on to another member it does nothing.

        Raises ClosedError: then another member is told.
        """
        acknowledge(self._link, self._told)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.state.name} keys={self.keys!r:.80} deliveries={self.deliveries}>"


def acknowledge(link: Link, told: Told, reply: Reply | None = None) -> None:
    """Say that it is done; `reply` gets 1 if this client still held it, else 0. Raises ClosedError."""
    flags = CommandFlag.WANTS_ANSWER if reply is not None else 0
    command = operation_command(CommandKind.GROUP_ACK, told.record.operation, flags=flags)
    if not say(link, command, told, reply) and reply is not None:
        reply.answer(0)


def say(link: Link, command: bytes, done: Told | None = None, reply: Reply | None = None) -> bool:
    """Issue a command, which may say that something is done; `reply` gets its answer.

    False, and nothing is said, if that was told to a client that is no more: its op ids mean nothing now, or something
    else. Raises ClosedError. It goes beyond a full window, as a cancel does: it is bounded by what the member is told.
    """
    with link.lock:
        if link.sealed:
            link.refuse_closed()
        protocol = link.protocol
        if done is not None and not protocol.inbox.is_ours(done):
            return False
        number = protocol.ledger.issue(command)
        if done is not None:
            protocol.inbox.done(done.record.operation, number)
        if reply is not None:
            protocol.incoming.replies[number] = reply
        link.wake_if_due(number)
    return True
