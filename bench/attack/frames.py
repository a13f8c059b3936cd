"""The frames of a flood. They are encoded before the flood begins."""

from __future__ import annotations

import os
import time
from typing import Any

import msgpack
from timerd_client.arguments import id_hash
from timerd_client.hot.commands import KEY_COMMAND_SIZE, REGISTER_SIZE, pack_key, pack_register
from timerd_shm.declare.fields import struct_of
from timerd_shm.declare.limits import FRAME_SIZE_MAX, PAYLOAD_SIZE_MAX
from timerd_shm.declare.states import Condition, KeyKind
from timerd_shm.declare.wire import CommandHeader, CommandKind, RegisterFlag, UpKind

S = 1_000_000_000
PENDING_NS = 3_600 * S  # longer than any flood, so that an event completes each operation
COMMANDS = 1_024  # in a frame. With smaller frames the senders write fewer commands than the daemon applies
BODIES = 8  # frames that a sender has ready
WAITS = 100_000  # commands that a hello lists as waited for
HEADER = struct_of(CommandHeader)
# For the floods without commands: frames a second, of all senders together.
RATES = {"hellos": 300, "asks": 30_000, "queries": 300_000, "snapshots": 3_000}
FLOODS = ("commands", "single", "largest", *RATES)


def register(key: bytes, timeout_ns: int, registered_ns: int = 0, id: bytes = b"") -> bytes:
    """A REGISTER command. Its operation replaces the one that has the id `id`.

    `registered_ns` 0: the timeout begins when the command is applied.
    """
    flags, size = RegisterFlag.NO_MARK, REGISTER_SIZE + len(id) + 2 + len(key)
    if id:
        flags |= RegisterFlag.HAS_ID | RegisterFlag.REPLACE
    fixed: bytes = pack_register(
        CommandKind.REGISTER, 0, flags, size, Condition.AT_LEAST, 1, 1, 0, 0, registered_ns, timeout_ns, 0, 0, 0
    )
    return fixed + id + bytes((len(key), KeyKind.EVENT)) + key


def fire(key: bytes, value: bytes = b"") -> bytes:
    fixed: bytes = pack_key(
        CommandKind.FIRE, 0, 0, len(key), KEY_COMMAND_SIZE + len(key) + len(value), 1, len(value), 0
    )
    return fixed + key + value


def packed(message: dict[str, Any]) -> bytes:
    return bytes(msgpack.packb(message))


def bodies(flood: str, sender: int) -> list[tuple[UpKind, int, bytes]]:
    """The frames that a sender repeats, without their headers: (kind, number of commands, bytes)."""
    keys = [b"%d/%d" % (sender, number) for number in range(BODIES * COMMANDS // 2)]
    now_ns = time.monotonic_ns()
    # Each registration has an id, like the sessions of docs/howto/recipes.md. Such a command costs the daemon more time
    # than it costs a sender.
    pairs = [command for key in keys for command in (register(key, PENDING_NS, now_ns, id_hash(key)), fire(key))]
    match flood:
        case "commands":
            frames = [pairs[at : at + COMMANDS] for at in range(0, len(pairs), COMMANDS)]
        case "single":
            frames = [[command] for command in pairs]
        case "largest":
            large = fire(keys[0], os.urandom(PAYLOAD_SIZE_MAX))
            frames = [[large] * ((FRAME_SIZE_MAX - HEADER.size) // len(large))]
        case "asks":
            return [(UpKind.ASK, 0, b"")]
        case "queries":
            return [(UpKind.QUERY, 0, packed({"id": 1, "query": "ping"}))]
        case "snapshots":
            return [(UpKind.QUERY, 0, packed({"id": 1, "query": "snapshot"}))]
        case _:
            assert flood == "hellos", flood
            return [(UpKind.HELLO, 0, b"")]
    return [(UpKind.COMMANDS, len(commands), b"".join(commands)) for commands in frames]
