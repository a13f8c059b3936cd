"""Flushes of a link. A flush waits until all earlier commands are applied, and raises an error if some were not."""

from __future__ import annotations

from typing import NamedTuple

from timerd_client.types import Patience
from timerd_shm.declare.errors import ClosedError, SessionGoneError, TimerdUnavailableError, error_for

from .base import LinkBase
from .connection import Connection
from .sender import Sender


class Flush(NamedTuple):
    """A flush that has begun."""

    command: int  # the flush waits until this command is applied, and all answers up to it were received
    beginning: int  # Outgoing.beginnings: when commands are forgotten, the flush is over
    reported: int  # how many of the `commands_unknown` were reported by earlier flushes


class Flushes:
    """Begins and ends flushes, so that each error is raised once. The caller of every method holds the lock."""

    def __init__(self, link: LinkBase, connection: Connection, sender: Sender) -> None:
        self._link = link
        self._protocol = link.protocol
        self._connection = connection
        self._sender = sender
        self._reported_unknown = self._reported_refused = 0

    def begin(self) -> Flush:
        """Begin a flush of all commands that were issued so far. Raises ClosedError."""
        if self._link.closed:
            self._link.refuse_closed()
        self._sender.do_chores()
        self._sender.confirm_locked()
        return Flush(self._protocol.ledger.issued, self._protocol.outgoing.beginnings, self._reported_unknown)

    def is_done(self, flush: Flush) -> bool:
        """Whether the flush has nothing more to wait for."""
        outgoing = self._protocol.outgoing
        is_over = outgoing.beginnings != flush.beginning or self._link.closed
        return outgoing.answered >= flush.command or is_over

    def end(self, flush: Flush, timeout: Patience) -> None:
        """End a flush. Raises SessionGoneError if it is not known which commands were applied.

        Raises TimerdUnavailableError if the flush is not done, ClosedError if another thread has closed the client, or
        the first refusal of a command without an operation.
        """
        outgoing, incoming = self._protocol.outgoing, self._protocol.incoming
        unknown = outgoing.commands_unknown - flush.reported
        if unknown:
            self._reported_unknown = outgoing.commands_unknown
            raise SessionGoneError(
                "commands that were unacknowledged when the daemon of instance "
                f"{self._connection.paths.instance!r} lost sight of this client: {unknown}. Whether they were applied "
                "is unknown; repeat only commands that may be applied twice"
            )
        if outgoing.answered < flush.command and outgoing.beginnings == flush.beginning:
            missing = unacknowledged(flush.command - outgoing.answered)
            if self._link.closed:  # by another thread
                raise ClosedError(f"{missing}: the client was closed before the daemon had answered", in_doubt=True)
            raise TimerdUnavailableError(f"{missing}: {self._connection.unavailable(timeout)}")
        if incoming.refusal is not None:
            first, incoming.refusal = incoming.refusal, None
            refused = incoming.commands_refused - self._reported_refused
            self._reported_refused = incoming.commands_refused
            what = "a command was refused" if refused == 1 else f"{refused} commands were refused, the first"
            raise error_for(first.code, f"{what}: {first}")


def unacknowledged(commands: int) -> str:
    """How many commands are unacknowledged, for messages."""
    return "1 command is unacknowledged" if commands == 1 else f"{commands} commands are unacknowledged"
