"""Parts of frames: the bytes of a command, and a group's outcome from the bytes of a report."""

from __future__ import annotations

import struct
from typing import NamedTuple

from support.rig.commands import Command, KeyAct, LookAct, Mark, OperationAct, PhaseAct, Register
from timerd_shm.declare.fields import size_of, struct_of
from timerd_shm.declare.states import KeyKind, Orphans, Outcome
from timerd_shm.declare.wire import (
    CallCommand,
    CommandFlag,
    CommandKind,
    KeyCommand,
    LookCommand,
    OperationCommand,
    OutcomeFlag,
    OutcomeRecord,
    RegisterCommand,
    RegisterFlag,
)


def encode(command: Command) -> bytes:
    """A command's fixed record and variable part."""
    if isinstance(command, Register):
        return encode_register(command)
    if isinstance(command, KeyAct):
        flags = CommandFlag.LIMITED * (command.limit is not None) | CommandFlag.WANTS_ANSWER * command.wants_answer
        tail = command.key + command.value
        return (
            struct_of(KeyCommand).pack(
                *KeyCommand(
                    kind=command.kind,
                    purgatory=command.purgatory,
                    flags=flags,
                    key_length=len(command.key),
                    length=size_of(KeyCommand) + len(tail),
                    amount=command.amount,
                    value_length=len(command.value),
                    limit=command.limit or 0,
                )
            )
            + tail
        )
    if isinstance(command, LookAct):
        return struct_of(LookCommand).pack(
            *LookCommand(
                kind=command.kind,
                purgatory=command.purgatory,
                flags=CommandFlag.WANTS_ANSWER * command.wants_answer,
                reserved=0,
                length=size_of(LookCommand),
                operation=command.operation,
                sequence=command.sequence,
            )
        )
    if isinstance(command, PhaseAct):
        return (
            struct_of(CallCommand).pack(
                *CallCommand(
                    kind=CommandKind.CALL_PHASE,
                    purgatory=command.purgatory,
                    flags=CommandFlag.WANTS_ANSWER * command.wants_answer,
                    phase=command.phase,
                    length=size_of(CallCommand) + len(command.reason),
                    operation=command.operation,
                    limit_ns=command.limit_ns,
                )
            )
            + command.reason
        )
    return encode_operation_act(command)


def encode_operation_act(command: OperationAct) -> bytes:
    flags = CommandFlag.HAS_ID * (command.id is not None) | CommandFlag.WANTS_ANSWER * command.wants_answer
    flags |= CommandFlag.REQUEUE * command.requeues | CommandFlag.FREES_ID * command.frees_id
    flags |= CommandFlag.OF_LETTER * command.of_letter
    tail = command.id or b""
    return (
        struct_of(OperationCommand).pack(
            *OperationCommand(
                kind=command.kind,
                purgatory=command.purgatory,
                flags=flags,
                orphans=command.orphans,
                length=size_of(OperationCommand) + len(tail),
                operation=command.operation,
                registered_ns=command.registered_ns,
                timeout_ns=command.timeout_ns,
            )
        )
        + tail
    )


def encode_register(command: Register) -> bytes:
    flags = RegisterFlag(0)
    flags |= RegisterFlag.HAS_ID * (command.id is not None)
    flags |= RegisterFlag.KEEP * (command.if_exists in ("keep", "again"))
    flags |= RegisterFlag.REPLACE * (command.if_exists in ("replace", "again"))
    flags |= RegisterFlag.REPLACE_CANCELLED * (command.if_exists == "replace cancelled")
    flags |= RegisterFlag.REPLACE_CHANGED * (command.if_exists == "replace changed")
    flags |= RegisterFlag.WANTS_ANSWER * command.wants_answer
    flags |= RegisterFlag.MARK_BY_SEQUENCE * command.mark_by_sequence
    flags |= RegisterFlag.MARK_OF_OTHER_ARENA * command.mark_of_other_arena
    flags |= RegisterFlag.NO_MARK * (command.mark is None and not command.mark_of_other_arena)
    flags |= RegisterFlag.ORPHANS_GIVEN * (command.orphans is not None)
    flags |= RegisterFlag.FOR_GROUP * command.for_group
    flags |= RegisterFlag.CALL * command.call
    flags |= RegisterFlag.ALONE * command.alone
    flags |= RegisterFlag.OF_LETTER * command.of_letter
    flags |= RegisterFlag.SCHEDULED * command.scheduled
    flags |= RegisterFlag.FOLLOWS * (command.follows != 0)
    tail = command.id or b""
    for key in command.keys:
        kind = KeyKind.OBSERVE if key.observed else KeyKind.EVENT if key.target is None else KeyKind.WATERMARK
        tail += bytes((len(key.name), kind))
        tail += (b"" if key.target is None else struct.pack("<Q", key.target)) + key.name
    tail += command.payload
    mark = command.mark or Mark(0, 0)
    return (
        struct_of(RegisterCommand).pack(
            *RegisterCommand(
                kind=CommandKind.REGISTER,
                purgatory=command.purgatory,
                flags=flags,
                length=size_of(RegisterCommand) + len(tail),
                condition=command.condition,
                needed=command.needed,
                keys=len(command.keys),
                orphans=command.orphans or Orphans.CANCEL,
                payload_length=len(command.payload),
                registered_ns=command.registered_ns,
                timeout_ns=command.timeout_ns,
                mark_sequence=command.follows or mark.sequence,
                mark_command=command.wall_ns or mark.command,
                total=command.total,
            )
        )
        + tail
    )


def codes_of(record: OutcomeRecord, heap: bytes) -> tuple[int, ...]:
    """The codes of the failed keys. `heap` is the part of the heap that follows the outcome's value."""
    if not record.flags & OutcomeFlag.HAS_FAILURES:
        return ()
    return struct.unpack_from(f"<{record.failed.bit_count()}I", heap)


class DeliveredForGroup(NamedTuple):
    """An outcome of a group, as it is delivered to a member."""

    number: int
    operation: int
    state: Outcome
    settled_key: int
    value: bytes
    deliveries: int
    flags: OutcomeFlag
    payload: bytes
    purgatory: bytes
    keys: tuple[bytes, ...]
    codes: tuple[int, ...] = ()
    phase: int = 0  # of a call: CallPhase
    ended: int = 0  # of a call: how many processes have ended during this phase


def read_delivered_for_group(record: OutcomeRecord, heap: bytes) -> DeliveredForGroup:
    """A group's outcome, from its record and the part of the report's heap that begins with the outcome's bytes."""
    assert record.flags & OutcomeFlag.HAS_PAYLOAD and record.deliveries, record
    codes = codes_of(record, heap[record.value_length :])
    start = record.value_length + 4 * len(codes)
    payload = start + record.payload_length
    at, names = payload, list[bytes]()
    while at < payload + record.keys_length:
        names.append(heap[at + 1 : at + 1 + heap[at]])
        at += 1 + heap[at]
    assert at == payload + record.keys_length <= len(heap), f"the names of {record} do not end at keys_length"
    return DeliveredForGroup(
        record.number,
        record.operation,
        Outcome(record.state),
        record.settled_key,
        heap[: record.value_length],
        record.deliveries,
        OutcomeFlag(record.flags),
        heap[start:payload],
        names[0],
        tuple(names[1:]),
        codes,
        *((record.error & 0xFF, record.error >> 8) if record.flags & OutcomeFlag.CALL else (0, 0)),
    )
