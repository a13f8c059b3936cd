"""The examples in bytes of client/PROTOCOL.md: what a small client and its daemon send each other, field by field.

Each frame is packed from the declarations: a changed record changes its
examples. `make generate` needs only Python, so msgpack is not imported: `packed` encodes the few types that are needed.
tests/docs/protocol/test_protocol_examples.py sends the frames of the page to a daemon, and gets its other frames.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
import textwrap
from collections.abc import Iterator
from enum import IntFlag
from typing import Any, NamedTuple

from timerd_shm.declare.errors import ErrorCode
from timerd_shm.declare.fields import Field, fields, size_of
from timerd_shm.declare.limits import HEARTBEAT_NS, LEASE_NS, TAKEOVER_MS
from timerd_shm.declare.states import Condition, KeyKind, Orphans, Outcome
from timerd_shm.declare.wire import (
    PROTOCOL_VERSION,
    CommandFlag,
    CommandHeader,
    CommandKind,
    DownFlag,
    DownKind,
    FrameFlag,
    KeyCommand,
    OperationCommand,
    OutcomeFlag,
    OutcomeRecord,
    PacketKind,
    RegisterCommand,
    RegisterFlag,
    ReportHeader,
    UpKind,
    WireAnswer,
)

WIDTH, HEX_WIDTH, MEANING_WIDTH = 120, 56, 62  # of a line, of its bytes, of their meaning
LINES_MAX = 11  # of a part of a frame
CHUNK = 24  # bytes: a longer value may go on in the next line

# The client and its daemon.
PROOF = bytes(range(16))
INCARNATION = hashlib.blake2b(PROOF, digest_size=16).digest()
SESSION = bytes(range(0x10, 0x20))
NO_SESSION = bytes(16)
ARENA = 0x1122334455667788
TOPIC = 0x10000
BOOT_ID = bytes(range(0x20, 0x30))
PID_NAMESPACE, TIME_NAMESPACE = 4_026_531_836, 4_026_531_834
DAEMON_PID = 4_711
KEY, VALUE = b"order/17", b"paid"
FIRST_OPERATION = 1 << 32  # its op id
PURGATORY = 1  # the index: the daemon has made "default" before
UNKNOWN_KIND = 9

# When its frames are sent, by CLOCK_MONOTONIC.
SECOND = 1_000_000_000
HELLO_NS = 1_001 * SECOND
REGISTERED_NS = 1_002 * SECOND
TIMEOUT_NS = 5 * SECOND // 2
CONFIRMED_NS = REGISTERED_NS + SECOND // 10
FIRED_NS = 1_003 * SECOND
ASKED_NS = FIRED_NS + SECOND // 2

HELLO = {
    "protocol": PROTOCOL_VERSION,
    "name": "small",
    "proof": PROOF,
    "pid": 4_242,
    "start_ticks": 123_456,
    "pid_namespace": PID_NAMESPACE,
    "time_namespace": TIME_NAMESPACE,
    "boot_id": BOOT_ID,
    "takeover_ms": TAKEOVER_MS,
    "waits": [],
    "orphans": int(Orphans.CANCEL),
    "purgatories": ["web"],
}
WELCOME = {
    "incarnation": INCARNATION,
    "session": SESSION,
    "slot": 0,
    "topic": TOPIC,
    "applied": 0,
    "shared_clock": True,
    "purgatories": {"web": PURGATORY},
    "unknown": [],
    "gone": 0,
    "newest": 0,
    "now_ns": HELLO_NS,
    "lease_ns": LEASE_NS,
    "heartbeat_ns": HEARTBEAT_NS,
    "daemon_pid": DAEMON_PID,
}
PING = {"id": 1, "query": "ping"}
PINGED = {"id": 1, "now_ns": ASKED_NS}
REFUSED = {"code": int(ErrorCode.MALFORMED), "message": f"a frame is of unknown kind {UNKNOWN_KIND}", "id": None}


class Piece(NamedTuple):
    """Some bytes in hex, and their meaning."""

    hex: str
    meaning: str


Part = list[Piece]
"""A header, a record, a map: it begins a line of its own."""


class Example(NamedTuple):
    """A frame, or other bytes that are sent at once."""

    title: str
    about: str  # goes on the sentence that begins with the title
    parts: list[Part]

    @property
    def data(self) -> bytes:
        """All its bytes."""
        return bytes.fromhex("".join(piece.hex for part in self.parts for piece in part))


# msgpack --------------------------------------------------------------------------------------------------------------


def packed(value: Any) -> bytes:
    """A value of a HELLO, WELCOME, QUERY, RESULT or ERROR in msgpack."""
    match value:
        case None | bool():
            return {None: b"\xc0", False: b"\xc2", True: b"\xc3"}[value]
        case int():
            return _number(value)
        case str():
            text = value.encode()
            return (bytes((0xA0 + len(text),)) if len(text) < 32 else bytes((0xD9, len(text)))) + text
        case bytes():
            return bytes((0xC4, len(value))) + value
        case list():
            return bytes((0x90 + len(value),)) + b"".join(map(packed, value))
        case dict():
            return bytes((0x80 + len(value),)) + b"".join(packed(key) + packed(item) for key, item in value.items())
    raise TypeError(f"no frame has a {type(value).__name__}")


def _number(value: int) -> bytes:
    if value < 128:
        return bytes((value,))
    head, size = next((head, size) for head, size in ((0xCC, 1), (0xCD, 2), (0xCE, 4), (0xCF, 8)) if value < 256**size)
    return bytes((head,)) + value.to_bytes(size, "big")


def map_part(message: dict[str, Any]) -> Part:
    """A map: its head, then each key and its value."""
    assert len(message) < 16, "the head of a larger map has three bytes"
    entries = [
        Piece(f"{packed(key).hex()} {_in_chunks(packed(value))}", f'"{key}": {_json(value)}')
        for key, value in message.items()
    ]
    return [Piece(packed(message)[:1].hex(), f"a map of {len(message)}"), *entries]


def _in_chunks(data: bytes) -> str:
    return " ".join(data[at : at + CHUNK].hex() for at in range(0, len(data), CHUNK))


def _json(value: Any) -> str:
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    return "nil" if value is None else json.dumps(value)


# Records --------------------------------------------------------------------------------------------------------------

NAMED = {
    each.__name__: each
    for each in (
        *(UpKind, DownKind, CommandKind, FrameFlag, DownFlag, RegisterFlag, CommandFlag, OutcomeFlag),
        *(Condition, Orphans, Outcome, ErrorCode),
    )
}
IN_HEX = ("op id", "arena incarnation", "the client's topic")  # fields that begin their sentence so


def record_part(record: Any) -> Part:
    """A record, field by field."""
    return [
        Piece(struct.pack("<" + field.storage.code, value).hex(), f"{field.name} {shown(field, value)}".rstrip())
        for field, value in zip(fields(type(record)), record, strict=True)
    ]


def shown(field: Field, value: int | bytes) -> str:
    """The value of a field as the page shows it; empty for bytes. The field's sentence begins with its enumeration."""
    if isinstance(value, bytes):
        return ""
    word = re.match(r"\w+", field.about)
    named = NAMED.get(word[0]) if word else None
    if named is not None:
        return "0" if issubclass(named, IntFlag) and not value else str(named(value).name)
    if field.about.startswith(IN_HEX):
        return f"{value:#x}"
    if field.name.endswith("_ns") and value:
        return f"{value / SECOND:g}e9"
    return str(value)


def up(kind: int, *, first: int, **changed: Any) -> Part:
    """The header of a frame up. `first`: the number of the first command, or of the client's next one."""
    header = CommandHeader(
        version=PROTOCOL_VERSION,
        kind=kind,
        flags=0,
        count=0,
        incarnation=ARENA,
        session=SESSION,
        first_command=first,
        acknowledged_outcome=0,
        acknowledged_answer=0,
    )
    return record_part(header._replace(**changed))


def down(kind: DownKind, now_ns: int, **changed: Any) -> Part:
    """The header of a frame down."""
    header = ReportHeader(
        topic=TOPIC,
        version=PROTOCOL_VERSION,
        kind=kind,
        flags=0,
        outcomes=0,
        answers=0,
        looks=0,
        incarnation=ARENA,
        applied=0,
        outcome_first=1,
        outcome_last=0,
        outcome_newest=0,
        answer_previous=0,
        answer_newest=0,
        newest=0,
        now_ns=now_ns,
    )
    return record_part(header._replace(**changed))


def register() -> Part:
    """REGISTER of an operation that one event completes."""
    command = RegisterCommand(
        kind=CommandKind.REGISTER,
        purgatory=PURGATORY,
        flags=RegisterFlag.NO_MARK,
        length=size_of(RegisterCommand) + 2 + len(KEY),
        condition=Condition.AT_LEAST,
        needed=1,
        keys=1,
        orphans=0,
        payload_length=0,
        registered_ns=REGISTERED_NS,
        timeout_ns=TIMEOUT_NS,
        mark_sequence=0,
        mark_command=0,
        total=0,
    )
    key = [
        Piece(f"{len(KEY):02x}", f"length {len(KEY)}"),
        Piece(f"{KeyKind.EVENT:02x}", "kind EVENT"),
        Piece(KEY.hex(), f'the key "{KEY.decode()}"'),
    ]
    return record_part(command) + key


def fire() -> Part:
    """FIRE on the operation's key, with a value."""
    command = KeyCommand(
        kind=CommandKind.FIRE,
        purgatory=PURGATORY,
        flags=0,
        key_length=len(KEY),
        length=size_of(KeyCommand) + len(KEY) + len(VALUE),
        amount=1,
        value_length=len(VALUE),
        limit=0,
    )
    tail = [Piece(KEY.hex(), f'the key "{KEY.decode()}"'), Piece(VALUE.hex(), f'the value "{VALUE.decode()}"')]
    return record_part(command) + tail


def cancel() -> Part:
    """CANCEL of the operation that command 1 has registered."""
    return record_part(
        OperationCommand(
            kind=CommandKind.CANCEL,
            purgatory=0,
            flags=CommandFlag.WANTS_ANSWER,
            orphans=0,
            length=size_of(OperationCommand),
            operation=1,
            registered_ns=0,
            timeout_ns=0,
        )
    )


def outcome() -> Part:
    """The outcome of the operation."""
    return record_part(
        OutcomeRecord(
            command=1,
            number=1,
            operation=FIRST_OPERATION,
            settled_ns=FIRED_NS,
            deadline_ns=REGISTERED_NS + TIMEOUT_NS,
            registered_ns=REGISTERED_NS,
            sequence=1,
            satisfied=1,
            failed=0,
            heap_offset=0,
            value_length=len(VALUE),
            payload_length=0,
            keys_length=0,
            error=0,
            state=Outcome.COMPLETED,
            settled_key=1,
            flags=OutcomeFlag.HAS_VALUE,
            deliveries=0,
        )
    )


# The conversation -----------------------------------------------------------------------------------------------------

FOUND = {"applied": 3, "outcome_newest": 1, "answer_newest": 3, "newest": 1}  # of a header, when all is applied


def examples() -> list[Example]:
    """The examples, in the order of the conversation. The titles are those of the page."""
    password = [
        Piece("04", "flags COMMAND"),
        Piece("1e", "size 30"),
        Piece("05", "length 5"),
        Piece(b"HELLO".hex(), "the name HELLO"),
        Piece("06", "length 6"),
        Piece(b"timerd".hex(), "the user"),
        Piece("10", "length 16"),
        Piece(SESSION.hex(), "the password: the session"),
    ]
    subscription = [Piece("00", "flags 0"), Piece("01", "size 1"), Piece("01", "the subscription")]
    packet = [Piece(f"{PacketKind.SUBSCRIBE:02x}", "kind SUBSCRIBE"), Piece(SESSION.hex(), "session")]
    answer = WireAnswer(command=3, value=0, code=ErrorCode.NONE, reserved=0)
    heap = [Piece(VALUE.hex(), f'the heap: the value "{VALUE.decode()}"')]
    settled = {"outcomes": 1, "answers": 1, "outcome_last": 1}
    return [
        Example(
            "HELLO",
            "up. This is the client's first hello.",
            [up(UpKind.HELLO, first=1, session=NO_SESSION, incarnation=0), map_part(HELLO)],
        ),
        Example(
            "WELCOME",
            "down. The `incarnation` in its map is the BLAKE2b of the `proof`; that in its header is the arena's.",
            [down(DownKind.WELCOME, HELLO_NS), map_part(WELCOME)],
        ),
        Example(
            "PLAIN's HELLO",
            "up at NAME.pub, after the greeting of ZMTP. libzmq makes this command, and those that end the handshake.",
            [password],
        ),
        Example("The subscription", "up at NAME.pub, as a message of ZMTP.", [subscription]),
        Example(
            "SUBSCRIBE",
            "up at NAME.unix, in place of the two before. It is a packet, and has no header. A frame goes there as the "
            "byte 01 (FRAME), and its own bytes.",
            [packet],
        ),
        Example(
            "COMMANDS with a REGISTER",
            "up. The operation completes when its one key is fired.",
            [up(UpKind.COMMANDS, first=1, count=1), register()],
        ),
        Example(
            "REPORT that confirms",
            "down. Command 1 is applied. A heartbeat and a reminder have the same form.",
            [down(DownKind.REPORT, CONFIRMED_NS, applied=1)],
        ),
        Example(
            "COMMANDS with a FIRE",
            "up. In this conversation the frame is lost.",
            [up(UpKind.COMMANDS, first=2, count=1), fire()],
        ),
        Example(
            "EXPECTED",
            "down. A frame with command 3 has come, and command 2 has not.",
            [down(DownKind.EXPECTED, FIRED_NS, applied=1)],
        ),
        Example(
            "COMMANDS, sent again",
            "up. The commands are the same, but frames may be cut in another way: here command 3, a CANCEL, is in the "
            "frame of command 2.",
            [up(UpKind.COMMANDS, first=2, count=2), fire(), cancel()],
        ),
        Example(
            "REPORT with an outcome and an answer",
            "down. The FIRE has completed the operation, so the CANCEL is answered 0. A refusal is an answer with "
            "another `code` than NONE.",
            [down(DownKind.REPORT, FIRED_NS, **FOUND | settled), outcome(), record_part(answer), heap],
        ),
        Example(
            "ASK",
            "up, if that REPORT was lost. The reply is the same REPORT with the flag ASKED, at NAME.sock.",
            [up(UpKind.ASK, first=4)],
        ),
        Example(
            "ACK",
            "up. The outcome and the answer were received.",
            [up(UpKind.ACK, first=4, acknowledged_outcome=1, acknowledged_answer=3)],
        ),
        Example(
            "QUERY",
            "up. It asks for a ping.",
            [up(UpKind.QUERY, first=4, acknowledged_outcome=1, acknowledged_answer=3), map_part(PING)],
        ),
        Example(
            "RESULT",
            "down. It has the `id` of the query.",
            [down(DownKind.RESULT, ASKED_NS, applied=3, newest=1), map_part(PINGED)],
        ),
        Example(
            "ERROR",
            f"down. The client has sent a frame of kind {UNKNOWN_KIND}.",
            [down(DownKind.ERROR, ASKED_NS, applied=3, newest=1), map_part(REFUSED)],
        ),
        Example(
            "BYE",
            "up. The client ends.",
            [up(UpKind.BYE, first=4, acknowledged_outcome=1, acknowledged_answer=3)],
        ),
        Example(
            "HELLO_FIRST",
            "down, when a frame shows the session after BYE. SESSION_GONE has the same form.",
            [down(DownKind.HELLO_FIRST, ASKED_NS, topic=0, newest=1)],
        ),
    ]


# The page -------------------------------------------------------------------------------------------------------------


def lines_of(part: Part) -> Iterator[str]:
    """A part in lines: as many pieces in a line as fit, their bytes on the left and their meaning on the right."""
    line: Part = []
    for piece in part:
        both = [*line, piece]
        begin = (
            piece if len(piece.hex) <= HEX_WIDTH else Piece(piece.hex.split()[0], "")
        )  # a long one needs several lines
        if line and (len(_hex([*line, begin])) > HEX_WIDTH or len(_meaning(both)) > MEANING_WIDTH):
            yield from _shown(line)
            both = [piece]
        line = both
    yield from _shown(line)


def _hex(line: Part) -> str:
    return " ".join(piece.hex for piece in line)


def _meaning(line: Part) -> str:
    return ", ".join(piece.meaning for piece in line)


def _shown(line: Part) -> Iterator[str]:
    first, *others = textwrap.wrap(_hex(line), HEX_WIDTH, break_long_words=False)
    yield f"{first:<{HEX_WIDTH}}  {_meaning(line)}"
    yield from others


def page_part() -> list[str]:
    """The examples as the page has them."""
    page = []
    for example in examples():
        about = f"**{example.title}**, {len(example.data)} bytes {example.about}"
        page += [*textwrap.wrap(about, WIDTH, break_long_words=False, break_on_hyphens=False), "", "```text"]
        for part in example.parts:
            lines = list(lines_of(part))
            assert len(lines) <= LINES_MAX, f"{example.title} has a part of {len(lines)} lines"
            page += lines
        page += ["```", ""]
    return page[:-1]


PARTS = {"../client/PROTOCOL.md": {"examples": page_part}}
