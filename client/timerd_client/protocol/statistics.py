"""The counters of a client."""

from __future__ import annotations

from typing import NamedTuple, Self

from timerd_client.hot import Ledger

from .inbox import Inbox
from .incoming import Incoming
from .outgoing import Outgoing


class Statistics(NamedTuple):
    """The counts of this client since it was made. The daemon's counters are in `timerctl stats`."""

    waiting: int  # operations that have not settled
    unacknowledged: int  # commands that the daemon has not acknowledged
    commands_unknown: int  # commands that were unacknowledged when the daemon forgot this client
    given_up: int  # operations that settled as UNAVAILABLE
    outcomes_after_giving_up: int  # late outcomes, except cancellations, of operations UNAVAILABLE or withdrawn by then
    outcomes_unknown: int  # outcomes for which nobody waited
    grants_requeued: int  # limited events that were requeued: the operation was dropped, or its `await` cancelled
    grants_unseen: int  # limited events that were acknowledged although nobody had looked: see docs/reference/api.md
    frames_ignored: int  # frames of another daemon or version, or malformed
    commands_refused: int  # refused commands that have no operation, such as fire() and advance()
    calls_done: int  # calls that this client has ended, with success or without
    calls_failed: int  # attempts in which a handler has raised, and calls that were given up
    calls_retried: int  # calls that are run again, after an error or by `call.retry`
    calls_late: int  # handlers that have run for longer than their `time_limit`
    calls_skipped: int  # points of schedules that were late by more than their grace

    @classmethod
    def of(cls, ledger: Ledger, outgoing: Outgoing, incoming: Incoming, inbox: Inbox, frames_ignored: int) -> Self:
        """The counts of these parts of a client."""
        return cls(
            waiting=len(ledger.pending),
            unacknowledged=ledger.issued - ledger.applied,
            commands_unknown=outgoing.commands_unknown,
            given_up=incoming.settled_unavailable,
            outcomes_after_giving_up=incoming.outcomes_after_giving_up,
            outcomes_unknown=incoming.outcomes_unknown,
            grants_requeued=incoming.grants.requeued,
            grants_unseen=incoming.grants.acknowledged_unseen,
            frames_ignored=frames_ignored,
            commands_refused=incoming.commands_refused,
            calls_done=inbox.calls_done,
            calls_failed=inbox.calls_failed,
            calls_retried=inbox.calls_retried,
            calls_late=inbox.calls_late,
            calls_skipped=inbox.calls_skipped,
        )
