"""Withdraws operations: a caller has cancelled them, or nobody waits for them any more."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from timerd_client.errors import OperationCancelled
from timerd_client.hot.commands import operation_command
from timerd_client.protocol.incoming import Incoming
from timerd_shm.declare.wire import CommandKind

from .link import Link


def withdraw(link: Link, operations: Sequence[int]) -> None:
    """Cancel operations of this client, by command number. Raises ClosedError.

    The commands may exceed the window, because the caller may be unable to wait. One call adds at most as many commands
    as operations are pending.
    """
    with link.lock:
        link.check_open()
        ledger = link.protocol.ledger
        ledger.issue_all([operation_command(CommandKind.CANCEL, operation) for operation in operations])
        link.wake_if_due(ledger.issued)


def give_back(link: Link, registration: int, grant: Callable[[], int]) -> None:
    """Withdraw a registration that nobody waits for any more. If it has settled, requeue its grant (`grant()`)."""

    def chore(incoming: Incoming) -> None:
        error = OperationCancelled("withdrawn: its `await` was cancelled")
        if not incoming.abandon([registration], error):
            incoming.grants.requeue(grant(), error)

    _soon(link, chore)


def abandon(link: Link, registrations: Iterable[int]) -> None:
    """Withdraw operations of which no caller has a handle. Their grants are requeued."""
    those = list(registrations)
    error = OperationCancelled("withdrawn: nobody waits for it any more")
    _soon(link, lambda incoming: incoming.abandon(those, error))


def _soon(link: Link, withdrawal: Callable[[Incoming], object]) -> None:
    def chore() -> None:
        if not link.closed:
            withdrawal(link.protocol.incoming)
            link.wake_if_due(link.protocol.ledger.issued)

    link.sender.soon(chore)


def end_wait(link: Link, registrations: Iterable[int]) -> bool:
    """Withdraw the operations of a caller whose request has ended. Returns False if all of them have settled."""
    with link.lock:
        error = OperationCancelled("withdrawn: its request has ended")
        if ended := link.protocol.incoming.abandon(registrations, error):
            link.wake_if_due(link.protocol.ledger.issued)
        return ended > 0
