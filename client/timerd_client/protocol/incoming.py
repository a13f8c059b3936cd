"""What a client waits for: outcomes of its operations, answers to its commands and questions; and what it gave up.

Outcomes are numbered, and received without a gap; an outcome heard twice finds nobody waiting and is dropped. An
operation that was given up (UNAVAILABLE) has settled for its caller: it is withdrawn, and what the daemon says of it
later is counted and acknowledged, to nobody. If that is a hand-over, it is acknowledged only after the command that
gives it back was applied: until then the daemon keeps it.

What is applied is known sooner than what was refused of it: WELCOME says the first, a report that was lost both. So a
flush waits until all commands are `answered`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, TypeAlias

from timerd_client.hot import Ledger, Pending, settle_all
from timerd_client.hot.python import columns_of
from timerd_client.waiter import Answerable, Asker, Notified, local
from timerd_shm.declare.errors import SessionGoneError, TimerdError, TimerdUnavailableError
from timerd_shm.declare.fields import size_of, struct_of
from timerd_shm.declare.states import Outcome
from timerd_shm.declare.wire import OutcomeFlag, OutcomeRecord, ReportHeader, WireAnswer
from timerd_wire.refusals import NOBODY, Subject, refusal

from .outgoing import Outgoing

_HEADER_SIZE: Final = size_of(ReportHeader)
_OUTCOME_SIZE: Final = size_of(OutcomeRecord)
_ANSWER_SIZE: Final = size_of(WireAnswer)
_OUTCOME = struct_of(OutcomeRecord)
GROUPS: Final = 0  # command number in the outcome of a group's operation
_ANSWERS = columns_of(WireAnswer, "command", "value", "code")


OfGroup: TypeAlias = Callable[[bytes, bytes, int], None]
"""Takes an outcome of this client's group: its record, the frame, and where the frame's heap starts."""


class Query(NamedTuple):
    """A question as it travels, and whom its answer is for."""

    frame_map: bytes
    reply: Answerable


class _Hold(NamedTuple):
    """An outcome that is not acknowledged before a command is applied."""

    outcome: int
    command: int


class Incoming:
    """Who waits for what, by command number and by number of the question. Outcomes are waited for in the ledger."""

    def __init__(self, ledger: Ledger, outgoing: Outgoing) -> None:
        self._ledger = ledger
        self._outgoing = outgoing
        self.replies: dict[int, Asker] = {}
        self.queries: dict[int, Query] = {}
        self.received_outcome = 0
        self.received_answer = 0
        self._hold: _Hold | None = None
        self._given_up: dict[int, int] = {}  # registration -> the command that withdraws it, in order of both
        self._unheard: set[int] = set()  # commands whose callers were told that the answer is unknown; it may come yet
        self.ready: list[Notified] = []
        self.complaints: list[str] = []
        self.verdicts = 0  # operations given up as UNAVAILABLE
        self.outcomes_after_giving_up = 0
        self.outcomes_unknown = 0  # outcomes nobody waited for
        self.commands_refused = 0  # with no operation to settle, and nobody who waits for an answer
        self.refusal: TimerdError | None = None  # of the first of these that no flush has told

    @property
    def acknowledged_outcome(self) -> int:
        """Outcomes up to this number have been received, and are not held back."""
        return self.received_outcome if self._hold is None else max(self._hold.outcome - 1, 0)

    def take_ready(self) -> list[Notified]:
        """Those that are to be told now that the lock is free."""
        ready, self.ready = self.ready, []
        return ready

    # settled here -------------------------------------------------------------------------------------------------

    def fail_all(self, error: TimerdError) -> None:
        """Settle everything that waits with this error."""
        waiting, self._ledger.pending = self._ledger.pending, Pending()
        settlement = local(error)
        for command, waiter in waiting.items():
            if waiter.settle(command, settlement):
                self.ready.append(waiter)
        self.fail_replies(error)

    def fail_replies(self, error: TimerdError) -> None:
        """Tell all who have asked, but not those who wait for outcomes."""
        replies, self.replies = self.replies, {}
        self._unheard.update(replies)
        queries, self.queries = self.queries, {}
        for reply in [*replies.values(), *(query.reply for query in queries.values())]:
            if reply.answer(None, error):
                self.ready.append(reply)

    def give_up(self, registrations: Iterable[int], error: TimerdError) -> int:
        """Settle these operations with this error, for good, and withdraw them; how many still waited."""
        settlement = local(error)
        given_up = 0
        for command in registrations:
            waiter = self._ledger.pending.pop(command, None)
            if waiter is None:
                continue
            given_up += 1
            if waiter.settle(command, settlement):
                self.ready.append(waiter)
            reply = self.replies.pop(command, None)
            if reply is not None and reply.answer(None, error):
                self.ready.append(reply)
            withdrawal = self._outgoing.withdraw(command)
            if withdrawal:
                self._given_up[command] = withdrawal
        return given_up

    def unknown_to_daemon(self, commands: Iterable[int]) -> None:
        """The daemon does not hold these operations."""
        for command in commands:
            waiter = self._ledger.pending.pop(command, None)
            if waiter is not None:
                gone = SessionGoneError(f"the daemon no longer holds operation {command}; how it settled is unknown")
                if waiter.settle(command, local(gone)):
                    self.ready.append(waiter)

    def gone_at_daemon(self, last: int) -> None:
        """It took this client for dead after that command, and kept neither operations nor answers of those before."""
        self.unknown_to_daemon([command for command in self._ledger.pending if command <= last])
        self._outgoing.skip_answers(last)
        lost = TimerdUnavailableError("the daemon took this client for dead before it heard the answer; it is unknown")
        for command in [command for command in self.replies if command <= last]:
            reply = self.replies.pop(command)
            if reply.answer(None, lost):
                self.ready.append(reply)

    # settled by the daemon ----------------------------------------------------------------------------------------

    def take_outcomes(self, header: ReportHeader, frame: bytes, of_group: OfGroup) -> None:
        """Settle what a report has outcomes for; those of this client's group go to `of_group`."""

        def unclaimed(command: int, row: bytes, frame: bytes, heap: int) -> None:
            if command in self._given_up:
                self._settled_too_late(OutcomeRecord._make(_OUTCOME.unpack(row)))
            elif command == GROUPS:
                of_group(row, frame, heap)
            elif OutcomeRecord._make(_OUTCOME.unpack(row)).number > self.received_outcome:
                self.outcomes_unknown += 1

        waiting = self._ledger.pending
        settle_all(waiting, self.ready, frame, header.outcomes, header.answers, header.incarnation, unclaimed)

    def _settled_too_late(self, outcome: OutcomeRecord) -> None:
        withdrawal = self._given_up.pop(outcome.command)
        if outcome.state != Outcome.CANCELLED:  # which is what the withdrawal asked for
            self.outcomes_after_giving_up += 1
        if outcome.flags & OutcomeFlag.GRANTED and withdrawal > self._ledger.applied:
            first = outcome.number if self._hold is None else self._hold.outcome
            self._hold = _Hold(first, withdrawal if self._hold is None else max(withdrawal, self._hold.command))

    def release(self, applied: int) -> bool:
        """Commands up to this one are applied; whether outcomes may be acknowledged that were held back."""
        if self._hold is None or applied < self._hold.command:
            return False
        self._hold = None
        return True

    def forget_given_up(self, header: ReportHeader) -> None:
        """Nothing more comes of what was withdrawn when this report was made, if all its outcomes were received."""
        if self.received_outcome < header.outcome_newest:
            return
        while self._given_up:
            command, withdrawal = next(iter(self._given_up.items()))
            if withdrawal > min(header.applied, self._outgoing.answered):
                return
            del self._given_up[command]

    def take_answers(self, header: ReportHeader, frame: bytes) -> None:
        start = _HEADER_SIZE + header.outcomes * _OUTCOME_SIZE
        rows = frame[start : start + header.answers * _ANSWER_SIZE]
        for command, value, code in _ANSWERS.iter_unpack(rows):
            if command <= self.received_answer:
                continue
            self.received_answer = command
            self.answer(command, value, refusal(code, value, self._subject(command)) if code else None)

    def hear_answered(self, header: ReportHeader) -> None:
        """After its answers were taken: if none is missing, all that was applied when it was made is answered."""
        if (
            header.answer_newest > self.received_answer
            or not self._outgoing.answered < header.applied <= self._ledger.applied
        ):
            return
        self._outgoing.answered = header.applied
        if self._unheard:
            self._unheard = {command for command in self._unheard if command > self._outgoing.answered}

    def _subject(self, command: int) -> Subject:
        promise = self._ledger.pending.get(command, self.replies.get(command))
        return NOBODY if promise is None else promise.subject(command)

    def answer(self, command: int, value: int, error: TimerdError | None) -> None:
        reply = self.replies.pop(command, None)
        if error is not None:
            waiter = self._ledger.pending.pop(command, None)
            if waiter is not None:
                if waiter.settle(command, local(error)):
                    self.ready.append(waiter)
            elif reply is None and command not in self._given_up:
                if command not in self._unheard:
                    self.commands_refused += 1
                    self.refusal = self.refusal or error
                self.complaints.append(f"command {command} was refused: {error}")
        if reply is not None and reply.answer(value, error):
            self.ready.append(reply)

    def begin_anew(self) -> None:
        """Numbers begin anew; who still waited has been told."""
        self.received_outcome = self.received_answer = 0
        self._hold = None
        self._given_up.clear()
        self._unheard.clear()
