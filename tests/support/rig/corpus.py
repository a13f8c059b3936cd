"""Frames from which a fuzzer begins: one of each kind and command, and of nearly each error code that answers a frame.

A frame is made for the client that sends it, because its header shows a session. A fuzzer changes frames (see
`mutations`). An unchanged frame must be answered with the error code that is stated here.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgpack
from support.fakes.networks import NOTHING, Peer, World
from support.rig.commands import Command, Key, KeyAct, Mark, OperationAct, PhaseAct, Register
from support.rig.frames import encode
from support.rig.harness import S, ask_owners, cancel, complete, fire, looked, requeue, reschedule
from timerd_shm.declare.errors import ErrorCode
from timerd_shm.declare.limits import COMMANDS_PER_FRAME_MAX, KEYS_MAX, PAYLOAD_SIZE_MAX, TAKEOVER_MS, TIMEOUT_NS_MAX
from timerd_shm.declare.states import CallPhase, Condition, Orphans
from timerd_shm.declare.wire import (
    PROTOCOL_VERSION,
    CommandKind,
    UpKind,
)

ON_K = Register((Key(b"k"),), timeout_ns=10 * S)
OWNED = Register((Key(b"k", observed=True), Key(b"j", observed=True)), timeout_ns=10 * S, condition=Condition.OWNER)
ID = b"0123456789abcdef"
LONG = b"a key that is longer than what stands in its record, and in a ring record: " * 3


class Case(NamedTuple):
    """A frame's kind and content, and the code with which the daemon answers it (NONE: nothing is wrong with it)."""

    kind: int
    commands: tuple[Command, ...] = ()
    body: bytes = b""
    code: ErrorCode = ErrorCode.NONE
    before: tuple[Command, ...] = ()  # commands that the sender of the frame has sent earlier
    header: tuple[tuple[str, Any], ...] = ()

    def frame(self, peer: Peer) -> bytes:
        """The frame, as `peer` would send it next."""
        body = b"".join(map(encode, self.commands)) + self.body
        said: dict[str, Any] = {"count": len(self.commands), **dict(self.header)}
        return peer.header(self.kind, **said) + body


def commands(*them: Command, code: ErrorCode = ErrorCode.NONE, before: tuple[Command, ...] = ()) -> Case:
    return Case(UpKind.COMMANDS, them, code=code, before=before)


def mapped(kind: int, code: ErrorCode = ErrorCode.NONE, **fields: Any) -> Case:
    return Case(kind, body=bytes(msgpack.packb(fields)), code=code)


HELLO: dict[str, Any] = {
    "protocol": PROTOCOL_VERSION,
    "proof": b"another client's",
    "name": "corpus",
    "pid": 0,
    "start_ticks": 0,
    "pid_namespace": 11,
    "time_namespace": 22,
    "boot_id": b"b" * 16,
    "now_ns": 0,
    "orphans": 0,
    "group": None,
    "takeover_ms": TAKEOVER_MS,
    "waits": [],
    "purgatories": ["fetch"],
}

UP: dict[str, Case] = {
    "register": commands(ON_K),
    "register a payload": commands(
        Register((Key(b"k"), Key(LONG)), timeout_ns=S, payload=b"p" * 300, orphans=Orphans.KEEP)
    ),
    "register watermarks": commands(Register((Key(b"p0", 812), Key(b"p1", 455)), timeout_ns=S, needed=2)),
    "register a total": commands(Register((Key(b"k"),), timeout_ns=S, condition=Condition.TOTAL, total=65_536)),
    "register all settled": commands(Register((Key(b"k"), Key(b"j")), timeout_ns=S, condition=Condition.ALL_SETTLED)),
    "register an id": commands(Register((Key(b"k"),), timeout_ns=S, id=ID, wants_answer=True)),
    "register since a mark": commands(Register((Key(b"k"),), timeout_ns=S, mark=Mark(1, 0)), before=(fire(b"k"),)),
    "register no keys": commands(Register((), timeout_ns=S), code=ErrorCode.INVALID_KEY),
    "register too many keys": commands(
        Register(tuple(Key(b"%d" % n) for n in range(KEYS_MAX + 1)), timeout_ns=S), code=ErrorCode.TOO_MANY_KEYS
    ),
    "register at least none": commands(
        Register((Key(b"k"),), timeout_ns=S, needed=0), code=ErrorCode.INVALID_CONDITION
    ),
    "register eleven years": commands(
        Register((Key(b"k"),), timeout_ns=TIMEOUT_NS_MAX + 1), code=ErrorCode.TIMEOUT_OUT_OF_RANGE
    ),
    "register a payload too large": commands(
        Register((Key(b"k"),), timeout_ns=S, payload=bytes(PAYLOAD_SIZE_MAX + 1)), code=ErrorCode.PAYLOAD_TOO_LARGE
    ),
    "register an id again": commands(
        Register((Key(b"k"),), timeout_ns=S, id=ID),
        before=(Register((Key(b"k"),), timeout_ns=S, id=ID),),
        code=ErrorCode.OPERATION_EXISTS,
    ),
    "register more than the quota": commands(*(ON_K for _ in range(40)), code=ErrorCode.QUOTA_EXCEEDED),
    "register by a mark of another arena": commands(
        Register((Key(b"k"),), timeout_ns=S, mark_of_other_arena=True), code=ErrorCode.MARK_TOO_OLD
    ),
    "fire": commands(fire(b"k", value=b"v" * 200)),
    "fire a long key": commands(fire(LONG, value=b"v")),
    "fire limited": commands(fire(b"k", limit=3)),
    "fire and wait": commands(KeyAct(CommandKind.FIRE, b"k", wants_answer=True)),
    "fire a limit of nothing": commands(fire(b"k", limit=0), code=ErrorCode.INVALID_VALUE),
    "fire more bytes than are free": commands(
        fire(b"k", value=bytes(4_000)),
        code=ErrorCode.ARENA_FULL,
        before=(Register((Key(b"k"),), timeout_ns=10 * S, payload=bytes(5_000)),),
    ),
    "fire more bytes than there are": commands(
        fire(b"k", value=bytes(PAYLOAD_SIZE_MAX)), code=ErrorCode.PAYLOAD_TOO_LARGE
    ),
    "advance": commands(KeyAct(CommandKind.ADVANCE, b"p0", amount=900)),
    "fail": commands(KeyAct(CommandKind.FAIL, b"k", amount=6, value=b"not leader")),
    "cancel for key": commands(KeyAct(CommandKind.CANCEL_FOR_KEY, b"k")),
    "forget": commands(KeyAct(CommandKind.FORGET, b"p0"), before=(KeyAct(CommandKind.ADVANCE, b"p0", amount=1),)),
    "register for its owner to decide": commands(OWNED),
    "register for its owner, of a group": commands(
        Register(OWNED.keys, timeout_ns=S, condition=Condition.OWNER, for_group=True), code=ErrorCode.NOT_A_MEMBER
    ),
    "check": commands(ask_owners(b"k"), before=(OWNED,)),
    "check more than a client may": commands(*(ask_owners(b"k") for _ in range(65)), code=ErrorCode.QUOTA_EXCEEDED),
    "looked": commands(looked(1, 1), before=(OWNED, fire(b"k"))),
    "looked at nothing": commands(looked(77, 1)),
    "complete": commands(complete(1, 1, wait=True), before=(OWNED, fire(b"k"))),
    "complete what events decide": commands(complete(1, wait=True), before=(ON_K,)),
    "cancel": commands(cancel(1), before=(ON_K,)),
    "cancel nothing": commands(cancel(77)),
    "reschedule": commands(reschedule(1, 20 * S), before=(ON_K,)),
    "reschedule an id": commands(
        OperationAct(CommandKind.RESCHEDULE_ID, id=ID, timeout_ns=S),
        before=(Register((Key(b"k"),), timeout_ns=S, id=ID),),
    ),
    "cancel an unknown id": commands(OperationAct(CommandKind.CANCEL_ID, id=ID), code=ErrorCode.UNKNOWN_OPERATION),
    "set orphans": commands(OperationAct(CommandKind.SET_ORPHANS, 1, orphans=Orphans.KEEP), before=(ON_K,)),
    "leave to no group": commands(
        OperationAct(CommandKind.SET_ORPHANS, 1, orphans=Orphans.GROUP), before=(ON_K,), code=ErrorCode.NOT_A_MEMBER
    ),
    "register for no group": commands(
        Register((Key(b"k"),), timeout_ns=S, for_group=True), code=ErrorCode.NOT_A_MEMBER
    ),
    "requeue": commands(requeue(1), before=(ON_K, fire(b"k", limit=1))),
    "acknowledge what was never delivered": commands(OperationAct(CommandKind.GROUP_ACK, 1 << 32, wants_answer=True)),
    "run what was never delivered": commands(PhaseAct(1 << 32), PhaseAct(1 << 32, CallPhase.FAILED, reason=b"why")),
    "many at once": commands(ON_K, fire(b"k"), ON_K, cancel(3), fire(b"j", value=b"j")),
    "a command that is none": Case(
        UpKind.COMMANDS, body=b"\xff" * 40, code=ErrorCode.MALFORMED, header=(("count", 1),)
    ),
    "more commands than fit": Case(
        UpKind.COMMANDS, code=ErrorCode.MALFORMED, header=(("count", COMMANDS_PER_FRAME_MAX + 1),)
    ),
    "a number too high": Case(UpKind.COMMANDS, (ON_K,), header=(("first_command", 1_000),)),
    "ack": Case(UpKind.ACK),
    "ack what was never given": Case(
        UpKind.ACK, header=(("acknowledged_outcome", (1 << 64) - 1), ("acknowledged_answer", (1 << 64) - 1))
    ),
    "ask": Case(UpKind.ASK),
    "bye": Case(UpKind.BYE),
    "hello": mapped(UpKind.HELLO, **HELLO),
    "hello of another version": mapped(UpKind.HELLO, ErrorCode.UNSUPPORTED_VERSION, **(HELLO | {"protocol": 9})),
    "hello with a bad name": mapped(UpKind.HELLO, ErrorCode.INVALID_NAME, **(HELLO | {"purgatories": ["NO"]})),
    "hello that is no map": Case(UpKind.HELLO, body=b"\xc1", code=ErrorCode.MALFORMED),
    "query": mapped(UpKind.QUERY, id=1, query="mark"),
    "query a purgatory": mapped(UpKind.QUERY, id=2, query="purgatory", name="fetch"),
    "query a watermark": mapped(UpKind.QUERY, id=10, query="watermark", purgatory="fetch", key=b"p0"),
    "query a watermark of no key": mapped(
        UpKind.QUERY, ErrorCode.MALFORMED, id=11, query="watermark", purgatory="fetch", key=b""
    ),
    "query a check": mapped(UpKind.QUERY, id=8, query="check", command=1, end=False),
    "query a check with a wrong end": mapped(UpKind.QUERY, ErrorCode.MALFORMED, id=9, query="check", command=1, end=1),
    "query a snapshot": mapped(UpKind.QUERY, id=3, query="snapshot"),
    "an unknown query": mapped(UpKind.QUERY, ErrorCode.NOT_SUPPORTED, id=4, query="?"),
    "a kind that is none": Case(99, code=ErrorCode.MALFORMED),
    "another version": Case(UpKind.ACK, code=ErrorCode.UNSUPPORTED_VERSION, header=(("version", 9),)),
    "a session that is not known": Case(UpKind.ACK, header=(("session", NOTHING),)),
}

# Frames with which clients have attacked other clients. Each is allowed: its cost is bounded, and it harms nobody else.
ATTACKS: dict[str, Case] = {
    "64 keys of one operation": commands(
        Register(tuple(Key(b"%d" % number) for number in range(KEYS_MAX)), timeout_ns=10 * S)
    ),
    "64 marks of one operation": commands(
        Register(tuple(Key(b"%d" % number, number) for number in range(KEYS_MAX)), timeout_ns=10 * S, needed=KEYS_MAX)
    ),
    "ids by the dozen": commands(*(Register((Key(b"k"),), timeout_ns=0, id=b"%16d" % number) for number in range(24))),
    "ids that differ in one bit": commands(
        *(Register((Key(b"k"),), timeout_ns=S, id=(1 << number).to_bytes(16, "little")) for number in range(24))
    ),
    "keys that differ in one bit": commands(
        *(Register((Key((1 << number).to_bytes(8, "little")),), timeout_ns=S) for number in range(24))
    ),
    "watermarks by the dozen": commands(
        *(KeyAct(CommandKind.ADVANCE, b"w%d" % number, amount=number + 1) for number in range(24))
    ),
    "an event on all, again and again": commands(*(fire(b"k", value=b"v" * 100) for _ in range(24))),
    "events with the largest limit": commands(*(fire(b"k", limit=(1 << 32) - 1) for _ in range(24))),
    "cancels of nothing": commands(*(cancel(number) for number in range(24))),
    "requeues of nothing": commands(*(requeue(number) for number in range(24))),
    "reschedules to now": commands(*(reschedule(number, 0) for number in range(24))),
    "ask for all that is kept": Case(UpKind.ASK, header=(("acknowledged_outcome", 0), ("acknowledged_answer", 0))),
    "another's incarnation": mapped(UpKind.HELLO, **(HELLO | {"incarnation": b"victim          "})),
    "a hello that waits for much": mapped(UpKind.HELLO, **(HELLO | {"waits": list(range(1, 500))})),
    "a hello with many purgatories": mapped(
        UpKind.HELLO, **(HELLO | {"purgatories": [f"p{number}" for number in range(60)]})
    ),
    "a hello with a group": mapped(UpKind.HELLO, **(HELLO | {"group": "web", "listens": True, "orphans": 2})),
    "held, of many operations": mapped(UpKind.QUERY, id=5, query="held", operations=list(range(1, 4_000))),
    "names to handle": mapped(
        UpKind.QUERY,
        id=6,
        query="handle",
        purgatory="fetch",
        names=[f"n{number}" for number in range(256)],
        most=9,
        back=[],
    ),
    "calls to give back": mapped(
        UpKind.QUERY, id=6, query="handle", purgatory="fetch", names=[], most=9, back=list(range(256))
    ),
    "listens": mapped(UpKind.QUERY, id=7, query="listen", on=True),
}


def small_world() -> World:
    """A world whose arena has few records of each region, so that each soon runs out."""
    return World(
        capacity=64, ring_events=16, clients=4, purgatories=2, blocks=64, quota_operations=32, quota_bytes=1 << 13
    )
