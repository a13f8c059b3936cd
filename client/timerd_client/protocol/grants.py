"""Grants at which no caller has looked yet. The daemon keeps a grant until it is acknowledged, so that none is lost.

    a report --> unseen --a caller looks at the outcome--------> acknowledged
                   |
                   +--nobody holds the operation any more--> requeued --the command is applied--> acknowledged

A client gets no notice when its caller drops an operation. So before the client acknowledges, it counts the references
to the operation: every caller that waits for the operation, or may still look at it, refers to it. The daemon reminds a
client of unacknowledged outcomes, after 50 ms and then after pauses that grow up to a second. At each reminder the
client counts again.

If a caller keeps an operation and does not look at it, the acknowledgement of all later outcomes is held back, because
outcomes are acknowledged up to a number. How much is held back is bounded (`BEHIND_OUTCOMES_MAX`, `BEHIND_BYTES_MAX`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from timerd_client.hot import Ledger, Rows, is_held
from timerd_client.waiter import local
from timerd_shm.declare.errors import ClosedError, TimerdError

from .outgoing import Outgoing

# A grant that came at least UNSEEN_NS_MIN ago is acknowledged unseen when BEHIND_OUTCOMES_MAX outcomes, or reports with
# BEHIND_BYTES_MAX bytes, have come after it.
BEHIND_OUTCOMES_MAX: Final = 1_024
BEHIND_BYTES_MAX: Final = 1 << 20
UNSEEN_NS_MIN: Final = 1_000_000_000
LOOK_NS: Final = 50_000_000  # between two looks at all grants; meanwhile only the first grants and new ones are checked
UNSEEN_AT_CLOSE: Final = (
    "a limited event had completed this operation, but the client was closed before anybody looked: it is requeued"
)
NONE: Final = 1 << 64  # not a number of an outcome or command


def _is_unseen(grant: Any) -> bool:
    """Whether no caller has looked at the outcome of this grant."""
    command, waiter = grant
    return waiter.row_of(command) in waiter._unseen if isinstance(waiter, Rows) else bool(waiter._unseen)


class _Came(NamedTuple):
    """Grants up to this outcome had come by this time."""

    outcome: int
    now_ns: int
    bytes: int  # in all reports with outcomes that had come by this time


class Grants:
    """The unseen grants of a client, and grants whose requeueing is not applied yet. The caller holds the lock."""

    def __init__(self, ledger: Ledger, outgoing: Outgoing) -> None:
        self._ledger = ledger
        self._outgoing = outgoing
        # By the number of the outcome, in order: (command number, operation or batch). The type is not declared,
        # because mypyc would then make a second pair, which holds another reference.
        self.unseen: dict[int, Any] = {}
        self._came: deque[_Came] = deque()
        self._last = 0  # the last grant in `_came`
        self.bytes = 0  # in all reports with outcomes
        self._looked_ns = 0
        self._held_back: dict[int, int] = {}  # outcome -> the command that must be applied before its acknowledgement
        self._requeueing = 0  # number of the last command that requeues
        self.requeued = 0
        self.acknowledged_unseen = 0

    @property
    def has_requeued(self) -> bool:
        """Whether a command that requeues is still unsent."""
        return self._requeueing > self._outgoing.sent

    @property
    def first_kept(self) -> int:
        """The first outcome that must not be acknowledged yet."""
        first = next(iter(self.unseen)) if self.unseen else NONE
        return min(first, min(self._held_back)) if self._held_back else first

    def look(self, received: int, now_ns: int) -> bool:
        """Outcomes up to `received` have come: requeue grants that nobody holds.

        Returns whether more outcomes may be acknowledged now. Call it after a report, and before an acknowledgement, if
        there are unseen grants.
        """
        first, last = self.first_kept, next(reversed(self.unseen))
        if now_ns >= self._looked_ns + LOOK_NS:
            self._looked_ns = now_ns
            self._requeue_dropped(list(self.unseen))
        else:
            self._requeue_dropped(self._after(self._last))
            self._requeue_dropped(self._until_kept())
        if last > self._last:
            self._came.append(_Came(last, now_ns, self.bytes))
            self._last = last
        self._give_up(received, now_ns)
        return self.first_kept > first

    def close(self) -> None:
        """The client says goodbye, and the daemon requeues unacknowledged grants: callers that look get an error."""
        for outcome in list(self.unseen):
            if self._revoke(outcome, ClosedError(UNSEEN_AT_CLOSE)):
                self._held_back[outcome] = NONE
            self._forget(outcome)

    def requeue(self, outcome: int, error: TimerdError) -> None:
        """Requeue a grant that its caller no longer wants. A caller that looks at it from now on gets the error."""
        if outcome in self.unseen and self._revoke(outcome, error):
            self._requeue(outcome)

    def gone(self, last: int, error: TimerdError) -> None:
        """The daemon has requeued the grants of registrations up to this command: callers that look get the error."""
        for outcome in [number for number, grant in self.unseen.items() if grant[0] <= last]:
            self._revoke(outcome, error)
            self._forget(outcome)

    def hold_back(self, outcome: int, command: int) -> None:
        """Acknowledge this outcome only when this command is applied."""
        self._held_back[outcome] = command

    def release(self, applied: int) -> bool:
        """Note that commands up to `applied` are applied. Returns whether more outcomes may be acknowledged now."""
        if not self._held_back:
            return False
        released = [outcome for outcome, command in self._held_back.items() if command <= applied]
        for outcome in released:
            del self._held_back[outcome]
        return bool(released)

    def begin_anew(self) -> None:
        """Forget all grants: the numbers of outcomes and commands begin anew."""
        for outcome in list(self.unseen):
            self._forget(outcome)
        self._came.clear()
        self._last = 0
        self._held_back.clear()
        self._requeueing = 0

    def _after(self, outcome: int) -> list[int]:
        """The unseen grants after this outcome."""
        new: list[int] = []
        for number in reversed(self.unseen):
            if number <= outcome:
                break
            new.append(number)
        new.reverse()
        return new

    def _until_kept(self) -> list[int]:
        """The grants that come before the first unseen grant to which somebody still refers."""
        over: list[int] = []
        for number, grant in self.unseen.items():
            if _is_unseen(grant) and is_held(self._ledger.pending, grant):
                break
            over.append(number)
        return over

    def _requeue_dropped(self, outcomes: Iterable[int]) -> None:
        """Of these grants, requeue those that nobody holds, and forget those at which a caller has looked."""
        for outcome in outcomes:
            grant = self.unseen[outcome]
            if not _is_unseen(grant):
                self._forget(outcome)
            elif not is_held(self._ledger.pending, grant):
                self._requeue(outcome)

    def _requeue(self, outcome: int) -> None:
        self._requeueing = self._outgoing.requeue(self.unseen[outcome][0])
        self._held_back[outcome] = self._requeueing
        self.requeued += 1
        self._forget(outcome)

    def _revoke(self, outcome: int, error: TimerdError) -> bool:
        """Callers that look at this grant from now on get the error. Returns False if a caller has looked before."""
        grant = self.unseen[outcome]
        if not _is_unseen(grant):
            return False
        grant[1].revoke(grant[0], local(error))
        return True

    def _forget(self, outcome: int) -> None:
        """Take a grant off the list. Its operation is freed if nobody else refers to it."""
        waiter = self.unseen[outcome][1]
        if isinstance(waiter, Rows):
            waiter.listed -= 1  # done first: after an interrupt the batch may count as held, but never as dropped
        del self.unseen[outcome]

    def _give_up(self, received: int, now_ns: int) -> None:
        """Acknowledge unseen grants after which too much has come."""
        while self.unseen:
            first = next(iter(self.unseen))
            while self._came and self._came[0].outcome < first:
                self._came.popleft()
            if not self._came:
                return
            came = self._came[0]
            is_much = received - first >= BEHIND_OUTCOMES_MAX or self.bytes - came.bytes >= BEHIND_BYTES_MAX
            if not is_much or now_ns - came.now_ns < UNSEEN_NS_MIN:
                return
            self.acknowledged_unseen += 1
            self._forget(first)
