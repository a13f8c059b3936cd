"""Takes what comes from the daemon: outcomes, looks and answers, also for abandoned operations.

Outcomes are numbered, and received without a gap. An outcome that comes twice finds no waiter the second time, and is
dropped. An abandoned operation has settled for its caller (UNAVAILABLE, or its wait was cancelled), and the client
withdraws it. A late outcome of such an operation is counted and acknowledged, and no caller gets it. If the late
outcome has a grant, it is acknowledged only after the command that requeues the grant was applied: until then the
daemon keeps it.

All other grants are in `grants` until a caller has looked at them (grants.py).

The client may learn that a command was applied before it learns that the daemon refused it. WELCOME says only which
commands are applied. A report also has the refusals, and may be lost. So a flush waits until all commands are
`answered`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple, TypeAlias

import msgpack
from timerd_client.hot import Ledger, Pending, settle_all
from timerd_client.waiter import Answerable, Asker, Looker, Notified, local
from timerd_shm.declare.errors import (
    ErrorCode,
    OperationExistsError,
    SessionGoneError,
    TimerdError,
    TimerdUnavailableError,
)
from timerd_shm.declare.fields import fields, size_of, struct_of
from timerd_shm.declare.states import Outcome
from timerd_shm.declare.wire import LookRecord, OutcomeFlag, OutcomeRecord, ReportHeader, WireAnswer
from timerd_wire.refusals import NO_SUBJECT, Subject, refusal

from .grants import Grants
from .outgoing import Outgoing


def _columns_of(record: type[Any], *names: str) -> struct.Struct:
    """A struct that reads only the named fields of a record, in the record's order."""
    codes = (field.storage.code if field.name in names else f"{field.storage.size}x" for field in fields(record))
    return struct.Struct("<" + "".join(codes))


_HEADER_SIZE: Final = size_of(ReportHeader)
_OUTCOME_SIZE: Final = size_of(OutcomeRecord)
_ANSWER_SIZE: Final = size_of(WireAnswer)
_LOOK_SIZE: Final = size_of(LookRecord)
_OUTCOME = struct_of(OutcomeRecord)
NOT_HELD: Final = "the daemon does not hold this operation any more: how it settled is unknown. Register again"
GROUPS: Final = 0  # command number in the outcome of a group's operation
_ANSWERS = _columns_of(WireAnswer, "command", "value", "code")
_LOOKS = _columns_of(LookRecord, "command", "sequence")


OfGroup: TypeAlias = Callable[[bytes, bytes, int], None]
"""Takes an outcome of this client's group: its record, the frame, and the offset of the frame's heap."""


def map_of(frame: bytes) -> dict[str, Any]:
    """The map of a frame that carries one. Raises ValueError."""
    decoded = msgpack.unpackb(memoryview(frame)[_HEADER_SIZE:])
    if not isinstance(decoded, dict):
        raise ValueError(f"a map was expected, not {type(decoded).__name__}")
    return decoded


class Query(NamedTuple):
    """A question as it is sent, and the waiter for its answer."""

    frame_map: bytes
    reply: Answerable


class Incoming:
    """The waiters for answers, by the number of the command or question. The ledger has the waiters for outcomes."""

    def __init__(self, ledger: Ledger, outgoing: Outgoing) -> None:
        self._ledger = ledger
        self._outgoing = outgoing
        self.replies: dict[int, Asker] = {}
        self.receipts: dict[int, Subject] = {}  # commands that want an answer for which no caller waits
        self.queries: dict[int, Query] = {}
        self.lookers: dict[int, Looker] = {}  # by the command number of a pending operation
        self.received_outcome = 0
        self.received_answer = 0
        self.grants = Grants(ledger, outgoing)
        self._abandoned: dict[int, int] = {}  # registration -> the command that withdraws it; both rise
        # Commands whose callers have got "unknown" as the answer. The daemon's answer may still come.
        self._answers_unknown: set[int] = set()
        self.ready: list[Notified] = []
        self.complaints: list[str] = []
        self.settled_unavailable = 0  # operations that were abandoned as UNAVAILABLE
        self.outcomes_after_giving_up = 0
        self.outcomes_unknown = 0  # outcomes for which nobody waited
        self.commands_refused = 0  # refused commands without an operation or a caller that could get the refusal
        self.refusal: TimerdError | None = None  # the first of these refusals that no flush has raised yet

    def has_left_something(self) -> bool:
        """Whether reports have left something for the link to do: callbacks, complaints, grants to requeue."""
        return bool(self.ready or self.complaints or self.grants.has_requeued)

    def look_at_grants(self, now_ns: int) -> bool:
        """Requeue grants that nobody holds. Returns whether more outcomes may be acknowledged now."""
        return bool(self.grants.unseen) and self.grants.look(self.received_outcome, now_ns)

    def has_pending(self) -> bool:
        """Whether an outcome or the acknowledgement of a command has still to come, or a grant is unseen."""
        ledger = self._ledger
        return bool(ledger.pending or ledger.applied < ledger.issued or self.grants.unseen)

    @property
    def acknowledged_outcome(self) -> int:
        """Outcomes up to this number have been received, and may be acknowledged."""
        return min(self.received_outcome, max(self.grants.first_kept - 1, 0))

    def take_ready(self) -> list[Notified]:
        """The promises to notify when the lock is free. Each promise is returned once."""
        ready, self.ready = self.ready, []
        return ready

    # settled here -------------------------------------------------------------------------------------------------

    def fail_all(self, error: TimerdError) -> None:
        """Settle all pending operations, and answer all questions, with this error."""
        waiting, self._ledger.pending = self._ledger.pending, Pending()
        settlement = local(error)
        for command, waiter in waiting.items():
            if waiter.settle(command, settlement):
                self.ready.append(waiter)
        self.fail_replies(error)

    @property
    def is_awaited(self) -> bool:
        """Whether a command or question waits for its answer."""
        return bool(self.replies or self.queries)

    def fail_replies(self, error: TimerdError) -> None:
        """Answer all commands and questions with this error. Pending operations stay."""
        replies, self.replies = self.replies, {}
        self._answers_unknown.update(replies)
        self.receipts.clear()
        queries, self.queries = self.queries, {}
        for reply in [*replies.values(), *(query.reply for query in queries.values())]:
            if reply.answer(None, error):
                self.ready.append(reply)

    def abandon(self, registrations: Iterable[int], error: TimerdError) -> int:
        """Settle these operations with this error, and withdraw them. Returns how many were pending."""
        settlement = local(error)
        abandoned = 0
        for command in registrations:
            waiter = self._ledger.pending.pop(command, None)
            if waiter is None:
                continue
            abandoned += 1
            if waiter.settle(command, settlement):
                self.ready.append(waiter)
            reply = self.replies.pop(command, None)
            if reply is not None and reply.answer(None, error):
                self.ready.append(reply)
            withdrawal = self._outgoing.withdraw(command)
            if withdrawal:
                self._abandoned[command] = withdrawal
        return abandoned

    def unknown_to_daemon(self, commands: Iterable[int]) -> None:
        """Settle these operations as failed: the daemon has no record of them."""
        for command in commands:
            waiter = self._ledger.pending.pop(command, None)
            if waiter is not None:
                unknown = SessionGoneError(NOT_HELD)
                if waiter.settle(command, local(unknown)):
                    self.ready.append(waiter)

    def forgotten_by_daemon(self, last: int) -> None:
        """The daemon took this client for dead after this command. It has kept no earlier operation and no answer."""
        self.unknown_to_daemon([command for command in self._ledger.pending if command <= last])
        self.grants.gone(last, SessionGoneError(NOT_HELD))
        self._outgoing.skip_answers(last)
        lost = TimerdUnavailableError("the daemon took this client for dead before the answer came; it is not known")
        for command in [command for command in self.replies if command <= last]:
            reply = self.replies.pop(command)
            if reply.answer(None, lost):
                self.ready.append(reply)

    # settled by the daemon ----------------------------------------------------------------------------------------

    def take_outcomes(self, header: ReportHeader, frame: bytes, of_group: OfGroup) -> None:
        """Settle the operations whose outcomes a report has. Outcomes of this client's group go to `of_group`."""

        def unclaimed(command: int, row: bytes, frame: bytes, heap: int) -> None:
            if command in self._abandoned:
                self._settled_too_late(OutcomeRecord._make(_OUTCOME.unpack(row)))
            elif command == GROUPS:
                of_group(row, frame, heap)
            elif OutcomeRecord._make(_OUTCOME.unpack(row)).number > self.received_outcome:
                self.outcomes_unknown += 1

        waiting = self._ledger.pending
        behind = header.answers * _ANSWER_SIZE + header.looks * _LOOK_SIZE
        unseen = self.grants.unseen
        settle_all(waiting, self.ready, frame, header.outcomes, behind, header.incarnation, unclaimed, unseen)
        self.grants.bytes += len(frame)

    def _settled_too_late(self, outcome: OutcomeRecord) -> None:
        withdrawal = self._abandoned[outcome.command]
        if outcome.state != Outcome.CANCELLED:  # CANCELLED is the outcome of the withdrawal
            self.outcomes_after_giving_up += 1
        if outcome.flags & OutcomeFlag.GRANTED and withdrawal > self._ledger.applied:
            self.grants.hold_back(outcome.number, withdrawal)
        del self._abandoned[outcome.command]

    def forget_abandoned(self, header: ReportHeader) -> None:
        """Forget the operations whose withdrawals were applied before this report was made.

        If all outcomes up to this report were received, no more outcomes of these operations will come.
        """
        if self.received_outcome < header.outcome_newest:
            return
        while self._abandoned:
            command, withdrawal = next(iter(self._abandoned.items()))
            if withdrawal > min(header.applied, self._outgoing.answered):
                return
            del self._abandoned[command]

    def take_answers(self, header: ReportHeader, frame: bytes) -> None:
        start = _HEADER_SIZE + header.outcomes * _OUTCOME_SIZE
        rows = frame[start : start + header.answers * _ANSWER_SIZE]
        for command, value, code in _ANSWERS.iter_unpack(rows):
            if command <= self.received_answer:
                continue
            self.answer(command, value, refusal(code, value, self._subject(command)) if code else None)
            self.received_answer = command

    def take_looks(self, header: ReportHeader, frame: bytes) -> None:
        """Pass looks on to the owners of operations. Repeated looks, and looks without an owner here, are ignored."""
        start = _HEADER_SIZE + header.outcomes * _OUTCOME_SIZE + header.answers * _ANSWER_SIZE
        for command, sequence in _LOOKS.iter_unpack(frame[start : start + header.looks * _LOOK_SIZE]):
            looker = self.lookers.get(command)
            if looker is not None and looker.look(command, sequence):
                self.ready.append(looker)

    def note_answered(self, header: ReportHeader) -> None:
        """Called after the answers of a report. If no answer is missing, all commands up to `applied` are answered."""
        if (
            header.answer_newest > self.received_answer
            or not self._outgoing.answered < header.applied <= self._ledger.applied
        ):
            return
        self._outgoing.answered = header.applied
        if self._answers_unknown:
            self._answers_unknown = {command for command in self._answers_unknown if command > self._outgoing.answered}

    def _subject(self, command: int) -> Subject:
        if (subject := self.receipts.get(command)) is not None:
            return subject
        promise = self._ledger.pending.get(command, self.replies.get(command))
        return NO_SUBJECT if promise is None else promise.subject(command)

    def answer(self, command: int, value: int, error: TimerdError | None) -> None:
        """The answer to a command, or its refusal.

        Each step may be repeated after an interrupt: the last step removes the waiter.
        """
        if error is not None:
            waiter = self._ledger.pending.get(command)
            if waiter is not None:
                waiter.settle(command, local(error))
                if waiter._has_settled():  # a batch settles with its last operation
                    self.ready.append(waiter)
                self._ledger.pending.pop(command)
            elif error.code is ErrorCode.UNKNOWN_OPERATION and command not in self.replies:
                pass  # cancel(id) or reschedule(id) without a waiting caller: no operation with this id is pending
            elif isinstance(error, OperationExistsError) and error.kept and command in self.receipts:
                pass  # the registration had if_exists="keep"
            elif command not in self.replies and command not in self._abandoned:
                if command not in self._answers_unknown:
                    self.commands_refused += 1
                    self.refusal = self.refusal or error
                self.complaints.append(f"command {command} was refused: {error}")
        self.receipts.pop(command, None)
        reply = self.replies.get(command)
        if reply is not None:
            reply.answer(value, error)
            self.ready.append(reply)
            del self.replies[command]

    def begin_anew(self) -> None:
        """Begin the numbers anew, without waiters."""
        self.received_outcome = self.received_answer = 0
        self.grants.begin_anew()
        self.lookers.clear()
        self._abandoned.clear()
        self._answers_unknown.clear()
