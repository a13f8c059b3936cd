"""Commands, outcomes and answers of a client, as tests write them.

These objects go both to the compiled core, as bytes that frames.py makes of them, and to the oracle in model.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from timerd_shm.declare.limits import NO_DEADLINE
from timerd_shm.declare.states import CallPhase, Condition, Orphans, Outcome
from timerd_shm.declare.wire import CommandKind

# commands -------------------------------------------------------------------------------------------------------------


class Mark(NamedTuple):
    """A mark: the newest event, and the last command that the client itself has issued."""

    sequence: int
    command: int


@dataclass(frozen=True)
class Key:
    """A key of an operation. With a target it waits for a watermark, else for an event; `observed`: for any event."""

    name: bytes
    target: int | None = None
    observed: bool = False


@dataclass(frozen=True)
class Register:
    """REGISTER. `mark` None = NO_MARK; `registered_ns` 0 = when it is applied.

    `follows`: the op id of a call, or of a dead letter if `of_letter` is set; 0 = none. `wall_ns`: when a call is due
    by the wall clock.

    `if_exists` is "error", "keep", "replace", "again", "replace cancelled", or "replace changed", which compares
    `total` bytes of the payloads.
    """

    keys: tuple[Key, ...]
    timeout_ns: int = NO_DEADLINE
    condition: Condition = Condition.AT_LEAST
    needed: int = 1
    total: int = 0
    mark: Mark | None = None
    mark_by_sequence: bool = False
    mark_of_other_arena: bool = False
    purgatory: int = 0
    registered_ns: int = 0
    payload: bytes = b""
    id: bytes | None = None
    if_exists: str = "error"
    orphans: Orphans | None = None
    for_group: bool = False
    call: bool = False
    scheduled: bool = False
    wall_ns: int = 0
    follows: int = 0
    of_letter: bool = False
    alone: bool = False
    wants_answer: bool = False


@dataclass(frozen=True)
class KeyAct:
    """FIRE, ADVANCE, FAIL, CANCEL_FOR_KEY, FORGET or CHECK. `amount` is the amount, the watermark or the code."""

    kind: CommandKind
    key: bytes
    amount: int = 1
    value: bytes = b""
    limit: int | None = None
    purgatory: int = 0
    wants_answer: bool = False


@dataclass(frozen=True)
class OperationAct:
    """CANCEL or RESCHEDULE, the same by an id (*_ID), SET_ORPHANS, or GROUP_ACK.

    `operation` is the registration's command number; for GROUP_ACK it is the op id. With `frees_id`, `registered_ns` is
    the time at which the id settled.
    """

    kind: CommandKind
    operation: int = 0
    id: bytes | None = None
    timeout_ns: int = NO_DEADLINE
    registered_ns: int = 0
    orphans: Orphans = Orphans.CANCEL
    requeues: bool = False
    frees_id: bool = False
    of_letter: bool = False
    purgatory: int = 0
    wants_answer: bool = False


@dataclass(frozen=True)
class LookAct:
    """LOOKED or COMPLETE. `operation`: the registration's command number. `sequence`: the look's (0 = no look)."""

    kind: CommandKind
    operation: int
    sequence: int = 0
    purgatory: int = 0
    wants_answer: bool = False


@dataclass(frozen=True)
class PhaseAct:
    """CALL_PHASE: the phase of a group's call. `operation` is the call's op id."""

    operation: int
    phase: CallPhase = CallPhase.HANDLER
    limit_ns: int = 0
    reason: bytes = b""
    purgatory: int = 0
    wants_answer: bool = True


Command = Register | KeyAct | OperationAct | LookAct | PhaseAct


# what is delivered to a client ----------------------------------------------------------------------------------------


class Delivered(NamedTuple):
    """An outcome, as it is delivered to its owner."""

    number: int
    command: int
    state: Outcome
    settled_key: int
    value: bytes
    satisfied: int
    failed: int
    error: int
    registered_ns: int
    deadline_ns: int
    settled_ns: int
    codes: tuple[int, ...] = ()  # the error codes of the failed keys


class GroupOutcome(NamedTuple):
    """An outcome of a group, as it is delivered to any member. The payload tells which operation it is."""

    state: Outcome
    settled_key: int
    value: bytes
    purgatory: int
    keys: tuple[bytes, ...]
    codes: tuple[int, ...] = ()


class Answer(NamedTuple):
    """A refusal, or the answer to a command that wanted one."""

    command: int
    code: int
    value: int
