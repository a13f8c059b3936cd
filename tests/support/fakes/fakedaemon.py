"""A daemon in memory for the client's protocol. It reads and writes frames, applies commands in order and answers.

The daemon knows one condition: a `fire` on a key completes the operations that watch that key. That is enough to see
what the protocol does when frames are lost, doubled or reordered. A World has a daemon, a protocol and the network
between them, on a manual clock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import msgpack
from timerd_client.arguments import EVENT_PREFIX
from timerd_client.hot.commands import deadline_after, pack_key, pack_register
from timerd_client.link.link import Link
from timerd_client.link.operation import ThreadedOperation
from timerd_client.link.promise import Reply
from timerd_client.outcome import State
from timerd_client.protocol.protocol import Protocol
from timerd_client.protocol.session import Identity
from timerd_client.protocol.state import LinkState
from timerd_client.waits.gate import Gate
from timerd_shm.declare.errors import ErrorCode
from timerd_shm.declare.fields import size_of, struct_of, unpack
from timerd_shm.declare.limits import HEARTBEAT_NS, LEASE_NS
from timerd_shm.declare.states import Condition, Outcome
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
    RegisterCommand,
    RegisterFlag,
    ReportHeader,
    UpKind,
    WireAnswer,
)
from timerd_wire.proof import incarnation_of

HEADER = size_of(CommandHeader)
MS = 1_000_000


class FakeDaemon:
    """Takes the client's frames (`receive`), and leaves frames for the client in `routed` and `published`."""

    def __init__(self, arena: int = 77, *, shared_clock: bool = True) -> None:
        self.arena = arena
        self.shared_clock = shared_clock
        self.session = bytes(range(1, 17))
        self.subscribed = False
        self.known: bytes | None = None  # the incarnation of the daemon's only client
        self.applied = 0
        self.newest = 0
        self.applied_commands: list[tuple[int, bytes]] = []
        self.pending: dict[int, bytes] = {}  # command number -> key
        self.outcomes: dict[int, tuple[OutcomeRecord, bytes]] = {}
        self.outcome_number = 0
        self.acknowledged = 0
        self.answers: dict[int, tuple[int, int]] = {}  # command -> (value, code)
        self.answer_first = 0
        self.refuse: dict[int, ErrorCode] = {}  # command number -> the code of its refusal
        self.routed: list[bytes] = []
        self.published: list[bytes] = []
        self.unknown: list[int] = []
        self.gone = 0  # WELCOME: up to this command of the client, the daemon keeps no operation and no answer
        self.hellos: list[dict[str, Any]] = []
        self.asked = 0
        self.byes = 0
        self.granted: list[int] = []  # registrations that a limited event has completed
        self.apply_up_to = 1 << 63  # commands above this number are not applied in this turn
        self.requeued: list[int] = []  # registrations whose grant was requeued
        self.report_due = False
        self.outcomes_max = 1 << 63  # the most outcomes of a report
        self.confirms_unasked = True  # whether it confirms commands even if their frame does not ask for that

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
            case UpKind.ACK:
                self._confirm(header)
            case UpKind.ASK:
                self.asked += 1
                self.routed.append(self.report(DownKind.REPORT, everything=True, flags=DownFlag.ASKED))
            case UpKind.QUERY:
                query = msgpack.unpackb(frame[HEADER:])
                self.routed.append(self.message(DownKind.RESULT, {"id": query["id"], "index": 3}))
            case UpKind.BYE:
                self.byes += 1

    def subscribe(self, session: bytes) -> None:
        if session == self.session and self.known is not None:
            self.subscribed = True
            self.published.append(self.report(DownKind.REPORT))

    def turn(self) -> None:
        """Publish what is new."""
        if self.subscribed and self.report_due:
            self.report_due = False
            self.published.append(self.report(DownKind.REPORT, everything=True))

    def announce(self) -> None:
        """Publish an empty report, which reminds the client of outcomes."""
        self.published.append(self.report(DownKind.REPORT))

    def _hello(self, header: CommandHeader, hello: dict[str, Any]) -> None:
        self.hellos.append(hello)
        incarnation = incarnation_of(hello["proof"])
        resumes = self.known == incarnation
        if not resumes and header.session != bytes(16):
            self.routed.append(self.report(DownKind.SESSION_GONE))
            return
        if not resumes:
            self.known, self.applied = incarnation, 0
        welcome = {
            "incarnation": incarnation,
            "session": self.session,
            "slot": 0,
            "topic": 5,
            "applied": self.applied,
            "shared_clock": self.shared_clock,
            "purgatories": {name: index for index, name in enumerate(hello["purgatories"])},
            "unknown": self.unknown,
            "gone": self.gone,
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
            if number == self.applied + 1 and number <= self.apply_up_to:
                self._apply(number, body[at : at + length])
                self.applied = number
            at += length
        assert at == len(body), f"{header.count} commands have {at} bytes, the frame {len(body)}"
        self._confirm(header)

    def _confirm(self, header: CommandHeader) -> None:
        asks = bool(header.flags & FrameFlag.CONFIRM)
        self.report_due |= asks or bool(self.answers) or (self.confirms_unasked and header.kind == UpKind.COMMANDS)

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
            limited = bool(fire.flags & CommandFlag.LIMITED)
            if limited:
                woken = woken[: fire.limit]
                self.granted += woken
            for waiting in woken:
                self.settle(waiting, Outcome.COMPLETED, command[at + fire.key_length :], granted=limited)
            if fire.flags & CommandFlag.WANTS_ANSWER:
                self.answers[number] = (len(woken), 0)
        elif kind is CommandKind.CANCEL:
            cancel = unpack(OperationCommand, command)
            if cancel.operation in self.pending:
                self.settle(cancel.operation, Outcome.CANCELLED, b"")
            elif cancel.flags & CommandFlag.REQUEUE:
                kept = [record for record, _ in self.outcomes.values() if record.command == cancel.operation]
                self.requeued += [record.command for record in kept if record.flags & OutcomeFlag.GRANTED]

    def settle(self, command: int, state: Outcome, value: bytes, *, granted: bool = False) -> None:
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
            flags=(OutcomeFlag.HAS_VALUE if value else 0) | (OutcomeFlag.GRANTED if granted else 0),
            deliveries=0,
        )
        self.outcomes[self.outcome_number] = (record, value)
        self.report_due = True

    def report(self, kind: DownKind, *, everything: bool = False, flags: int = 0) -> bytes:
        rows = sorted(self.outcomes.items())[: self.outcomes_max] if everything else []
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
            flags=flags,
            outcomes=len(rows),
            answers=len(answers),
            looks=0,
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


class World:
    """A protocol, a daemon and the network between them. Time passes in pass_time() only."""

    def __init__(self, *, window: int = 65_536, shared_clock: bool = True, one_way: bool = False) -> None:
        """`one_way`: answers and outcomes come over the same connection, as with the transport "unix"."""
        self.now = 1_000 * MS
        self.one_way = one_way
        self.daemon = FakeDaemon(shared_clock=shared_clock)
        self.protocol = Protocol(Identity("test"), self.now, window=window)
        self.link = cast(
            Link,
            SimpleNamespace(
                lock=threading.Lock(),
                protocol=self.protocol,
                closed=False,
                complain=print,
                sender=SimpleNamespace(soon=lambda chore: chore()),
                connection=SimpleNamespace(held_up=lambda: ""),
                waiters=SimpleNamespace(gate=Gate, may_block=lambda: None, callback=lambda callback: callback),
            ),
        )
        self.sent: list[bytes] = []
        self.lose_up: Callable[[bytes], bool] = lambda frame: False
        self.lose_down: Callable[[bytes], bool] = lambda frame: False

    def up(self) -> list[bytes]:
        """The frames that the protocol wants to send now. They are not delivered."""
        if self.now >= self.protocol.poll_deadline():
            self.protocol.tick(self.now)
        frames = []
        while (frame := self.protocol.next_frame(self.now)) is not None:
            frames.append(frame)
        self.sent += frames
        return frames

    def exchange(self) -> None:
        """Exchange frames until neither side has any."""
        for _ in range(50):
            frames = self.up()
            for frame in frames:
                if not self.lose_up(frame):
                    self.daemon.receive(frame)
            while self.protocol.session.subscriptions:
                self.daemon.subscribe(self.protocol.session.subscriptions.popleft())
            self.daemon.turn()
            moved = bool(frames or self.daemon.routed or self.daemon.published)
            self.down()
            if not moved:
                return
        raise AssertionError("the daemon and the client never stop sending")

    def down(self) -> None:
        for frames, published in ((self.daemon.published, True), (self.daemon.routed, False)):
            taken, frames[:] = list(frames), []
            for frame in taken:
                if not self.lose_down(frame):
                    self.protocol.receive(frame, self.now, published=published or self.one_way)
        for waiter in self.protocol.incoming.take_ready():
            waiter.notify()

    def pass_time(self, ms: float, step_ms: float = 10) -> None:
        end = self.now + int(ms * MS)
        while self.now < end:
            self.now += int(step_ms * MS)
            self.exchange()

    def silence(self) -> None:
        """From now on all frames are lost, in both directions."""
        self.lose_up = self.lose_down = lambda frame: True

    def stop(self) -> list[bytes]:
        """Stop the daemon: it reads nothing. Returns its socket, in which the frames to it pile up."""
        socket: list[bytes] = []

        def keep(frame: bytes) -> bool:
            socket.append(frame)
            return True

        self.lose_up = keep
        return socket

    def speak(self) -> None:
        """From now on no frame is lost."""
        self.lose_up = self.lose_down = lambda frame: False

    def register(
        self, key: bytes = b"k", payload: bytes = b"", *, reply: Reply | None = None, timeout_ns: int = 30_000 * MS
    ) -> ThreadedOperation:
        tail = EVENT_PREFIX[len(key)] + key + payload
        length = size_of(RegisterCommand) + len(tail)
        issued, size = self.protocol.ledger.issued, len(payload)
        flags = CommandFlag.WANTS_ANSWER if reply else 0
        fixed = pack_register(
            CommandKind.REGISTER,
            0,
            flags,
            length,
            Condition.AT_LEAST,
            1,
            1,
            0,
            size,
            self.now,
            timeout_ns,
            0,
            issued,
            0,
        )
        number = self.protocol.ledger.issue(fixed + tail)
        operation = ThreadedOperation(self.link, number, key, payload, deadline_after(self.now, timeout_ns))
        self.protocol.ledger.pending[number] = operation
        if reply is not None:
            self.protocol.incoming.replies[number] = reply
        return operation

    def fire(self, key: bytes = b"k", value: bytes = b"", reply: Reply | None = None, limit: int = 0) -> int:
        flags = (CommandFlag.WANTS_ANSWER if reply else 0) | (CommandFlag.LIMITED if limit else 0)
        length = size_of(KeyCommand) + len(key) + len(value)
        number = self.protocol.ledger.issue(
            pack_key(CommandKind.FIRE, 0, flags, len(key), length, 1, len(value), limit) + key + value
        )
        if reply is not None:
            self.protocol.incoming.replies[number] = reply
        return number


def live_world(**settings: Any) -> World:
    """A world whose client is live."""
    world = World(**settings)
    world.exchange()
    assert link_state(world) is LinkState.LIVE
    world.sent.clear()
    return world


def link_state(world: World) -> LinkState:
    return world.protocol.state


def kinds(frames: list[bytes]) -> list[UpKind]:
    return [UpKind(unpack(CommandHeader, frame).kind) for frame in frames]


def state_of(operation: ThreadedOperation) -> State | None:
    outcome = operation.outcome()
    return None if outcome is None else outcome.state
