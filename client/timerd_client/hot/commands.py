"""Commands as they are sent: one preformatted `struct` each, then the variable part. See timerd_shm/declare/wire.py.

The commands of `register` and `fire` are made by a bound `Struct.pack`, whose arguments are the record's fields in
order. The functions below have named arguments, which are slower: only those two are on the path of each request.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from timerd_shm.declare.fields import offset_of, size_of, struct_of
from timerd_shm.declare.limits import NO_DEADLINE
from timerd_shm.declare.wire import (
    CallCommand,
    CommandFlag,
    CommandKind,
    KeyCommand,
    LookCommand,
    OperationCommand,
    RegisterCommand,
    RegisterFlag,
)

REGISTER_SIZE: Final = size_of(RegisterCommand)
KEY_COMMAND_SIZE: Final = size_of(KeyCommand)
OPERATION_SIZE: Final = size_of(OperationCommand)
LOOK_SIZE: Final = size_of(LookCommand)
CALL_SIZE: Final = size_of(CallCommand)

pack_register = struct_of(RegisterCommand).pack
pack_key = struct_of(KeyCommand).pack
pack_operation = struct_of(OperationCommand).pack
pack_look = struct_of(LookCommand).pack
pack_call = struct_of(CallCommand).pack

IF_EXISTS: Final = {  # the choices of register() when an operation of that id exists
    "error": 0,
    "keep": int(RegisterFlag.KEEP),
    "replace": int(RegisterFlag.REPLACE),
    "replace_cancelled": int(RegisterFlag.REPLACE_CANCELLED),
}
PURGATORY_AT: Final = offset_of(KeyCommand, "purgatory")  # at the same offset in every command
_REGISTER: Final = int(CommandKind.REGISTER)
_FLAGS_AT: Final = offset_of(RegisterCommand, "flags")
_FLAGS_SIZE: Final = 2
_MARK_AT: Final = offset_of(RegisterCommand, "mark_sequence")
_TIMED: Final = {  # the offset of (registered_ns, timeout_ns) in the commands that have them
    CommandKind.REGISTER: offset_of(RegisterCommand, "registered_ns"),
    CommandKind.RESCHEDULE: offset_of(OperationCommand, "registered_ns"),
    CommandKind.RESCHEDULE_ID: offset_of(OperationCommand, "registered_ns"),
}


class Head(NamedTuple):
    """The fields that all registrations of a column share."""

    purgatory: int
    flags: int
    registered_ns: int
    mark_sequence: int
    mark_command: int


def operation_command(
    kind: CommandKind,
    operation: int,
    *,
    flags: int = 0,
    purgatory: int = 0,
    orphans: int = 0,
    registered_ns: int = 0,
    timeout_ns: int = 0,
    id_hash: bytes = b"",
) -> bytes:
    """A command about one operation: CANCEL, RESCHEDULE, the same two by id, GROUP_ACK, or SET_ORPHANS."""
    if id_hash:
        flags |= CommandFlag.HAS_ID
    length = OPERATION_SIZE + len(id_hash)
    fixed: bytes = pack_operation(kind, purgatory, flags, orphans, length, operation, registered_ns, timeout_ns)
    return fixed + id_hash


def look_command(kind: CommandKind, operation: int, sequence: int, *, flags: int = 0) -> bytes:
    """The command LOOKED or COMPLETE."""
    packed: bytes = pack_look(kind, 0, flags, 0, LOOK_SIZE, operation, sequence)
    return packed


def phase_command(operation: int, phase: int, *, limit_ns: int = 0, reason: bytes = b"") -> bytes:
    """The command CALL_PHASE, which wants an answer."""
    size = CALL_SIZE + len(reason)
    packed: bytes = pack_call(CommandKind.CALL_PHASE, 0, CommandFlag.WANTS_ANSWER, phase, size, operation, limit_ns)
    return packed + reason


def in_purgatory(command: bytes, index: int) -> bytes:
    """The command with this index of its purgatory. It is set when the command is issued: it differs between arenas."""
    at = PURGATORY_AT
    return command if command[at] == index else command[:at] + bytes((index,)) + command[at + 1 :]


def with_first_mark(command: bytes) -> bytes:
    """The command, changed for an arena that the caller has not seen: for a registration all events there count.

    A mark of another client (MARK_BY_SEQUENCE) has no meaning in this arena, so such a registration will be refused.
    """
    if command[0] != _REGISTER:
        return command
    flags = int.from_bytes(command[_FLAGS_AT : _FLAGS_AT + _FLAGS_SIZE], "little")
    if flags & RegisterFlag.NO_MARK:
        return command
    if flags & RegisterFlag.MARK_BY_SEQUENCE:
        flags |= RegisterFlag.MARK_OF_OTHER_ARENA
        return command[:_FLAGS_AT] + flags.to_bytes(_FLAGS_SIZE, "little") + command[_FLAGS_AT + _FLAGS_SIZE :]
    return command[:_MARK_AT] + bytes(8) + command[_MARK_AT + 8 :]


def deadline_after(registered_ns: int, timeout_ns: int) -> int:
    """The deadline of a registration, as a client knows it; NO_DEADLINE if there is no timeout."""
    return NO_DEADLINE if timeout_ns == NO_DEADLINE else registered_ns + timeout_ns


NOTHING: Final = operation_command(CommandKind.CANCEL, 0)
"""A command that does nothing. It replaces a command that is withdrawn, or that the daemon cannot read."""


def with_time_left(command: bytes, now_ns: int) -> bytes:
    """The command, changed for a daemon with another clock: with the time that is left, without a registration time."""
    offset = _TIMED.get(command[0])  # type: ignore[call-overload]
    if offset is None:
        return command
    registered_ns = int.from_bytes(command[offset : offset + 8], "little")
    timeout_ns = int.from_bytes(command[offset + 8 : offset + 16], "little")
    if timeout_ns != NO_DEADLINE:
        timeout_ns = max(0, registered_ns + timeout_ns - now_ns)
    return command[:offset] + bytes(8) + timeout_ns.to_bytes(8, "little") + command[offset + 16 :]
