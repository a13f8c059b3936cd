"""A daemon in memory for the client's protocol: it applies commands in order and answers, on the wire records alone.

It knows one condition: a `fire` on a key completes the operations that watch that key. That is enough to see what the
protocol does when frames are lost, doubled or reordered.
"""

from __future__ import annotations

from typing import Any

import msgpack

from timerd_shm.errors import ErrorCode
from timerd_shm.fields import size_of, struct_of, unpack
from timerd_shm.layout import Outcome
from timerd_shm.limits import HEARTBEAT_NS, LEASE_NS
from timerd_shm.wire import (
    PROTOCOL_VERSION,
    CommandFlag,
    CommandHeader,
    CommandKind,
    DownKind,
    KeyCommand,
    OperationCommand,
    OutcomeFlag,
    OutcomeRecord,
    RegisterCommand,
    RegisterFlag,
    ReportHeader,
    UpKind,
    WireAnswer,
)

HEADER = size_of(CommandHeader)


class FakeDaemon:
    """Takes frames up (`receive`), leaves frames down in `routed` and `published`."""

    def __init__(self, arena: int = 77, *, shared_clock: bool = True) -> None:
        self.arena = arena
        self.shared_clock = shared_clock
        self.session = bytes(range(1, 17))
        self.subscribed = False
        self.known: bytes | None = None  # incarnation of the one client it may have
        self.applied = 0
        self.newest = 0
        self.applied_commands: list[tuple[int, bytes]] = []
        self.pending: dict[int, bytes] = {}  # command number -> key
        self.outcomes: dict[int, tuple[OutcomeRecord, bytes]] = {}
        self.outcome_number = 0
        self.acknowledged = 0
        self.answers: dict[int, tuple[int, int]] = {}  # command -> (value, code)
        self.answer_first = 0
        self.refuse: dict[int, ErrorCode] = {}  # command number -> how it is refused
        self.routed: list[bytes] = []
        self.published: list[bytes] = []
        self.unknown: list[int] = []
        self.hellos: list[dict[str, Any]] = []
        self.asked = 0
        self.byes = 0
        self.waiting_news = False

    def receive(self, frame: bytes) -> None:
        header = unpack(CommandHeader, frame)
        assert header.version == PROTOCOL_VERSION
        if header.kind == UpKind.HELLO:
            self._hello(header, msgpack.unpackb(frame[HEADER:]))
            return
        if header.session != self.session or header.incarnation != self.arena or self.known is None:
            self.routed.append(self.report(DownKind.HELLO_FIRST))
            return
        for number in [n for n in self.outcomes if n <= header.acknowledged_outcome]:
            del self.outcomes[number]
        for number in [n for n in self.answers if n <= header.acknowledged_answer]:
            del self.answers[number]
        match header.kind:
            case UpKind.COMMANDS:
                self._commands(header, frame[HEADER:])
            case UpKind.ASK:
                self.asked += 1
                self.routed.append(self.report(DownKind.REPORT, everything=True))
            case UpKind.QUERY:
                query = msgpack.unpackb(frame[HEADER:])
                self.routed.append(self.message(DownKind.RESULT, {"id": query["id"], "index": 3}))
            case UpKind.BYE:
                self.byes += 1

    def subscribe(self, message: bytes) -> None:
        if message == b"\x01" + self.session and self.known is not None:
            self.subscribed = True
            self.published.append(self.report(DownKind.REPORT))

    def turn(self) -> None:
        """Publish what is new."""
        if self.subscribed and self.waiting_news:
            self.waiting_news = False
            self.published.append(self.report(DownKind.REPORT, everything=True))

    def announce(self) -> None:
        """Remind of outcomes by an empty report."""
        self.published.append(self.report(DownKind.REPORT))

    def _hello(self, header: CommandHeader, hello: dict[str, Any]) -> None:
        self.hellos.append(hello)
        resumes = self.known == hello["incarnation"]
        if not resumes and header.session != bytes(16):
            self.routed.append(self.report(DownKind.SESSION_GONE))
            return
        if not resumes:
            self.known, self.applied = hello["incarnation"], 0
        welcome = {
            "session": self.session,
            "slot": 0,
            "topic": 5,
            "applied": self.applied,
            "shared_clock": self.shared_clock,
            "purgatories": {name: index for index, name in enumerate(hello["purgatories"])},
            "unknown": self.unknown,
            "newest": self.newest,
            "now_ns": 0,
            "heartbeat_ns": HEARTBEAT_NS,
            "lease_ns": LEASE_NS,
            "daemon_pid": 1,
        }
        self.routed.append(self.message(DownKind.WELCOME, welcome))

    def _commands(self, header: CommandHeader, body: bytes) -> None:
        if header.first_command > self.applied + 1:
            self.routed.append(self.report(DownKind.EXPECTED))
            return
        at = 0
        for number in range(header.first_command, header.first_command + header.count):
            length = int.from_bytes(body[at + 4 : at + 8], "little")
            if number == self.applied + 1:
                self._apply(number, body[at : at + length])
                self.applied = number
            at += length
        assert at == len(body), f"{header.count} commands have {at} bytes, the frame {len(body)}"
        self.waiting_news = True

    def _apply(self, number: int, command: bytes) -> None:
        self.applied_commands.append((number, command))
        if number in self.refuse:
            self.answers[number] = (9, self.refuse[number])
            return
        kind = CommandKind(command[0])
        if kind is CommandKind.REGISTER:
            register = unpack(RegisterCommand, command)
            at = size_of(RegisterCommand) + (16 if register.flags & RegisterFlag.HAS_ID else 0)
            self.pending[number] = command[at + 2 : at + 2 + command[at]]
            if register.flags & RegisterFlag.WANTS_ANSWER:
                self.answers[number] = (0, 0)
        elif kind is CommandKind.FIRE:
            fire = unpack(KeyCommand, command)
            at = size_of(KeyCommand)
            key = command[at : at + fire.key_length]
            self.newest += 1
            woken = [waiting for waiting, watched in self.pending.items() if watched == key]
            for waiting in woken:
                self.settle(waiting, Outcome.COMPLETED, command[at + fire.key_length :])
            if fire.flags & CommandFlag.WANTS_ANSWER:
                self.answers[number] = (len(woken), 0)
        elif kind is CommandKind.CANCEL:
            operation = unpack(OperationCommand, command).operation
            if operation in self.pending:
                self.settle(operation, Outcome.CANCELLED, b"")

    def settle(self, command: int, state: Outcome, value: bytes) -> None:
        del self.pending[command]
        self.outcome_number += 1
        record = OutcomeRecord(
            command=command,
            number=self.outcome_number,
            operation=command,
            settled_ns=2_000,
            deadline_ns=1_500,
            registered_ns=1_000,
            sequence=self.newest,
            satisfied=1 if state is Outcome.COMPLETED else 0,
            failed=0,
            heap_offset=0,
            value_length=len(value),
            payload_length=0,
            keys_length=0,
            error=0,
            state=state,
            settled_key=1 if state is Outcome.COMPLETED else 0,
            flags=OutcomeFlag.HAS_VALUE if value else 0,
            deliveries=0,
        )
        self.outcomes[self.outcome_number] = (record, value)
        self.waiting_news = True

    def report(self, kind: DownKind, *, everything: bool = False) -> bytes:
        rows = sorted(self.outcomes.items()) if everything else []
        answers = sorted(self.answers.items()) if everything else []
        heap = b""
        records = b""
        for _, (record, value) in rows:
            records += struct_of(OutcomeRecord).pack(*record._replace(heap_offset=len(heap)))
            heap += value
        answered = b"".join(struct_of(WireAnswer).pack(number, value, code, 0) for number, (value, code) in answers)
        header = ReportHeader(
            topic=5,
            version=PROTOCOL_VERSION,
            kind=kind,
            flags=0,
            outcomes=len(rows),
            answers=len(answers),
            reserved=0,
            incarnation=self.arena,
            applied=self.applied,
            outcome_first=rows[0][0] if rows else 1,
            outcome_last=rows[-1][0] if rows else 0,
            outcome_newest=self.outcome_number,
            answer_previous=0,
            answer_newest=max(self.answers, default=0),
            newest=self.newest,
            now_ns=0,
        )
        return struct_of(ReportHeader).pack(*header) + records + answered + heap

    def message(self, kind: DownKind, message: dict[str, Any]) -> bytes:
        return self.report(kind) + msgpack.packb(message)
