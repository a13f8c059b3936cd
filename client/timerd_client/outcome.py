"""The outcome of an operation. An Outcome keeps its record of 96 bytes, and decodes it when a field is read."""

from __future__ import annotations

import struct
from enum import Enum
from typing import Final

from timerd_client.arguments import shown
from timerd_client.types import Key
from timerd_client.waiter import RawSettlement, value_and_codes
from timerd_shm.declare.errors import MalformedError, error_for
from timerd_shm.declare.fields import offset_of, struct_of
from timerd_shm.declare.limits import NO_DEADLINE
from timerd_shm.declare.states import Outcome as Settled
from timerd_shm.declare.wire import OutcomeFlag, OutcomeRecord
from timerd_wire.refusals import refusal

from .errors import (
    OperationCancelled,
    OperationExistsError,
    OperationExpired,
    OperationFailed,
    QuotaExceededError,
    TimerdUnavailableError,
)
from .mark import Mark
from .scope import noted


class State(Enum):
    """The state of a settled operation. UNAVAILABLE is the client's own word for "not known".

    KEPT: the registration had if_exists="keep", and its id was in use. The earlier operation with this id stays, and
    the outcome of the earlier operation goes to that operation's owner.
    """

    COMPLETED = Settled.COMPLETED
    EXPIRED = Settled.EXPIRED
    CANCELLED = Settled.CANCELLED
    FAILED = Settled.FAILED
    UNAVAILABLE = Settled.UNAVAILABLE
    KEPT = Settled.KEPT

    def __repr__(self) -> str:
        return f"State.{self.name}"


_CODE = struct.Struct("<I")
_STATE_AT = offset_of(OutcomeRecord, "state")
_KEY_AT = offset_of(OutcomeRecord, "settled_key")
_UNPACK = struct_of(OutcomeRecord).unpack
# positions in a RawSettlement: a named tuple would be a third object for each outcome
_RECORD: Final = 0
_ARENA: Final = 2
_ERROR: Final = 3
OF_DAEMON = {int(state.value): state for state in (State.COMPLETED, State.EXPIRED, State.CANCELLED, State.FAILED)}


def state_of(settlement: RawSettlement) -> State:
    """The state of a settlement: the one in the daemon's record, UNAVAILABLE, KEPT, or FAILED after another error.

    A state that no daemon gives is UNAVAILABLE: nobody knows how the operation settled.
    """
    record = settlement[_RECORD]
    if record is not None:
        return OF_DAEMON.get(record[_STATE_AT], State.UNAVAILABLE)
    error = settlement[_ERROR]
    if isinstance(error, OperationExistsError) and error.kept:
        return State.KEPT
    return State.UNAVAILABLE if isinstance(error, TimerdUnavailableError) else State.FAILED


class Outcome:
    """The end of an operation. An Outcome is true only if the operation was completed.

    `satisfied` and `missing` are the keys that were satisfied and the keys that were not (for quorums), in the order of
    the registration. `payload` is the payload of the registration.
    """

    __slots__ = ("_error", "_names", "_read", "_settlement", "payload")

    def __init__(self, names: tuple[Key, ...], payload: bytes, settlement: RawSettlement) -> None:
        self._names = names
        self._settlement = settlement
        self._read: OutcomeRecord | None = None
        self._error: Exception | None = None
        self.payload = payload

    @property
    def _record(self) -> OutcomeRecord | None:
        record = self._settlement[_RECORD]
        if self._read is None and record is not None:
            self._read = OutcomeRecord._make(_UNPACK(record))
        return self._read

    @property
    def state(self) -> State:
        """COMPLETED, EXPIRED, CANCELLED, FAILED, KEPT or UNAVAILABLE."""
        return state_of(self._settlement)

    def __bool__(self) -> bool:
        return self.state is State.COMPLETED

    @property
    def value(self) -> bytes:
        """The value of the event that settled the operation.

        Empty if no event settled the operation, or if the value was dropped: see `value_dropped`.
        """
        return value_and_codes(self._settlement)[0]

    @property
    def value_dropped(self) -> bool:
        """Whether the event's value was left out, because this client (or group) has used up its quota of bytes.

        The outcome is still COMPLETED, and `value` is empty; check() and unwrap() raise. Look the result up elsewhere,
        or register again with the same mark when there is room. Values are dropped when many outcomes are
        unacknowledged, for example in a stopped worker. `timerctl errors` names the client, `values_dropped` counts the
        values, and a larger --quota-bytes helps. The caller of fire() gets no error: the event was applied.
        """
        record = self._record
        return record is not None and bool(record.flags & OutcomeFlag.VALUE_DROPPED)

    @property
    def redelivered(self) -> bool:
        """Whether the grant was requeued: another owner had got it, and died or withdrew before it acknowledged."""
        record = self._record
        return record is not None and bool(record.flags & OutcomeFlag.REDELIVERED)

    @property
    def key(self) -> Key | None:
        """The key whose event settled the operation; None if no event settled it."""
        record = self._settlement[_RECORD]
        if record is None or not 1 <= record[_KEY_AT] <= len(self._names):
            return None
        return self._names[record[_KEY_AT] - 1]

    @property
    def satisfied(self) -> tuple[Key, ...]:
        """The keys that were satisfied."""
        bits = self._record.satisfied if self._record is not None else 0
        return tuple(name for ordinal, name in enumerate(self._names) if bits >> ordinal & 1)

    @property
    def missing(self) -> tuple[Key, ...]:
        """The keys that were not satisfied (the failed ones among them)."""
        bits = self._record.satisfied if self._record is not None else 0
        return tuple(name for ordinal, name in enumerate(self._names) if not bits >> ordinal & 1)

    @property
    def failed(self) -> tuple[Key, ...]:
        """The keys that were settled as failed."""
        bits = self._record.failed if self._record is not None else 0
        return tuple(name for ordinal, name in enumerate(self._names) if bits >> ordinal & 1)

    @property
    def failures(self) -> dict[Key, int]:
        """The code of each failed key, as it was given to fail(), in the order of the registration.

        An operation that completed or expired may have failed keys, too. `error` says why the operation itself has
        failed. Empty if the daemon did not settle the operation.
        """
        codes = value_and_codes(self._settlement)[1]
        whole = codes[: len(codes) // _CODE.size * _CODE.size]
        return dict(zip(self.failed, (code for (code,) in _CODE.iter_unpack(whole)), strict=False))

    @property
    def error(self) -> Exception | None:
        """Why the operation is FAILED, KEPT or UNAVAILABLE; None in other states.

        OperationFailed (`fail` was called), the daemon's refusal, an error of the client such as ClosedError, or
        TimerdUnavailableError, which says for how long no frame of the daemon had come.
        """
        if self._error is None:
            self._error = self._find_error()
        return self._error

    def _find_error(self) -> Exception | None:
        record = self._record
        if record is None:
            return self._settlement[_ERROR]
        state = OF_DAEMON.get(record.state)
        if state is None:
            return MalformedError(
                f"the daemon says that this settled in state {record.state}, which no operation has: how it settled is "
                "unknown; run the same timerd on both sides, or look at the daemon"
            )
        if state is not State.FAILED:
            return None
        if record.settled_key:
            return OperationFailed(f"key {self.key!r} failed with code {record.error}", record.error, self.value)
        return refusal(record.error, 0) if record.error else error_for(record.error, "failed")

    @property
    def lateness_ns(self) -> int:
        """How long after its deadline the operation expired, in ns; 0 in other states."""
        record = self._record
        if record is None or self.state is not State.EXPIRED or record.deadline_ns == NO_DEADLINE:
            return 0
        return max(0, record.settled_ns - record.deadline_ns)

    @property
    def wait_ns(self) -> int:
        """The time from the registration to the settlement, in ns; 0 if the daemon did not settle the operation."""
        record = self._record
        return 0 if record is None else max(0, record.settled_ns - record.registered_ns)

    @property
    def mark(self) -> Mark:
        """The mark of the settlement: a registration with `since=outcome.mark` misses no later event."""
        record = self._record
        return Mark(self._settlement[_ARENA], 0 if record is None else record.sequence)

    def check(self) -> bytes | None:
        """The value of a completed operation, or None if it expired. In other states it raises an error.

        That is OperationCancelled, OperationFailed or another `error`, for example TimerdUnavailableError,
        ArenaFullError or MarkTooOldError. After one of these three, nobody knows whether the event has come.
        QuotaExceededError of a completed operation: the event has come, but without its value (`value_dropped`).
        """
        state = self.state
        if state is State.COMPLETED:
            if self.value_dropped:
                raise noted(
                    QuotaExceededError(
                        f"{self.key!r} was fired, but its value was left out: this client, or its group, holds as many "
                        f"bytes as it may (--quota-bytes). Acknowledge outcomes, cancel what waits, or raise the quota"
                    )
                )
            return self.value
        if state is State.EXPIRED:
            return None
        if state is State.CANCELLED:
            raise OperationCancelled(f"cancelled after {self.wait_ns / 1e9:.3f} s; keys: {self._some(self._names)}")
        error = self.error
        assert error is not None, f"state={state} without an error"
        raise noted(error)

    def unwrap(self) -> bytes:
        """As check(), but raises OperationExpired if the operation expired."""
        value = self.check()
        if value is None:
            raise OperationExpired(f"expired after {self.wait_ns / 1e9:.3f} s; missing: {self._some(self.missing)}")
        return value

    @staticmethod
    def _some(names: tuple[Key, ...]) -> str:
        return ", ".join(repr(name) for name in names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")

    def __repr__(self) -> str:
        error = f" error={self.error}" if self.error is not None else ""
        return f"<Outcome {self.state.name} key={self.key!r} value={shown(self.value)}{error}>"
