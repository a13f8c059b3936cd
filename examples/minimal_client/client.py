#!/usr/bin/env python3
"""A minimal client of timerd, written from PROTOCOL.md (version 6) on pyzmq and msgpack alone.

    with Client(Path("/run/timerd"), "default") as client:
        order = client.register(b"order/17", timeout=2.5)
        client.fire(b"order/17", b"paid")
        for operation in client.poll(timeout=5.0):
            print(operation.fate, operation.value)

One thread owns a client. It calls `poll` at least once a second: there the client reads, acknowledges, repeats what was
lost, and finds a daemon that was started again.
"""

import argparse
import hashlib
import heapq
import json
import os
import random
import socket
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import zmq

import msgpack

PROTOCOL: Final = 6
PURGATORY: Final = "demo"
NO_SESSION: Final = bytes(16)

MILLISECOND: Final = 1_000_000
SECOND: Final = 1_000 * MILLISECOND
TICK: Final = 20 * MILLISECOND  # how often the timers below are looked at
FIRST_PATIENCE: Final = 250 * MILLISECOND  # without progress, before commands are sent again
DAEMON_LOST: Final = 3 * SECOND  # of silence
DAEMON_ENDED: Final = 2 * SECOND  # of silence after the end of the connection to NAME.live
GRACE: Final = SECOND

WINDOW: Final = 65_536
COMMANDS_PER_FRAME: Final = 16_384
FRAME_SIZE: Final = 4 << 20


class Up(IntEnum):
    COMMANDS = 1
    ACK = 2
    ASK = 3
    HELLO = 4
    BYE = 6


class Down(IntEnum):
    REPORT = 1
    EXPECTED = 2
    HELLO_FIRST = 3
    WELCOME = 4
    ERROR = 6
    SESSION_GONE = 7


class Fate(IntEnum):
    """How an operation ended. UNAVAILABLE is a word of clients: the daemon never says it."""

    PENDING = 0
    COMPLETED = 1
    EXPIRED = 2
    CANCELLED = 3
    FAILED = 4
    UNAVAILABLE = 255


CODE_UNAVAILABLE: Final = 15
CODE_SESSION_GONE: Final = 21

# The records, little endian and unaligned.

HEADER_UP: Final = struct.Struct("<BBHI 8s16s QQQ")
"""protocol, kind, flags, count; arena, session; first command, acknowledged outcome, acknowledged answer"""

HEADER_DOWN: Final = struct.Struct("<QxB2x III 8s 6Q 16x")
"""The fields of HeaderDown."""

OUTCOME: Final = struct.Struct("<QQ 56x II 8x IB x H")
"""command, number; place of the value in the heap, length of the value; error, fate, flags"""
GRANTED: Final = 0x04  # a flag

ANSWER: Final = struct.Struct("<Q8xI4x")
"""command, code"""

REGISTER: Final = struct.Struct("<BBHI BBBBI QQQQQ")
"""kind, purgatory, flags, size; condition, threshold, number of keys, 0, length of the payload; time of the
registration, timeout, sequence and command of the mark, total; then come the keys"""
REGISTER_KIND, NO_MARK, AT_LEAST, EVENT_KEY = 1, 0x40, 0, 0  # kind, flag, condition, kind of key

FIRE: Final = struct.Struct("<BBBBI QII")
"""kind, purgatory, flags, length of the key, size; amount, length of the value, limit; then come key and value"""
FIRE_KIND: Final = 2

CANCEL: Final = struct.Struct("<BxHI Q16x")
"""kind, flags, size; number of the REGISTER"""
CANCEL_KIND, REQUEUE = 8, 0x20  # kind, flag


class HeaderDown(NamedTuple):
    topic: int
    kind: int
    outcomes: int
    answers: int
    looks: int
    arena: bytes
    applied: int
    outcome_first: int
    outcome_last: int
    outcome_newest: int
    answer_previous: int
    answer_newest: int


def pack_register(purgatory: int, key: bytes, registered: int, timeout: int) -> bytes:
    keys = bytes([len(key), EVENT_KEY]) + key
    start = (REGISTER_KIND, purgatory, NO_MARK, REGISTER.size + len(keys))
    return REGISTER.pack(*start, AT_LEAST, 1, 1, 0, 0, registered, timeout, 0, 0, 0) + keys


def pack_fire(purgatory: int, key: bytes, value: bytes) -> bytes:
    size = FIRE.size + len(key) + len(value)
    return FIRE.pack(FIRE_KIND, purgatory, 0, len(key), size, 1, len(value), 0) + key + value


def pack_cancel(number: int) -> bytes:
    """A command that withdraws an operation; of the number 0, which none has, one that does nothing."""
    return CANCEL.pack(CANCEL_KIND, REQUEUE, CANCEL.size, number)


def describe_process() -> dict[str, Any]:
    """How the daemon finds the process of a client, and whether they share a clock."""
    status = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    return {
        "pid": os.getpid(),
        "start_ticks": int(status[19]),
        "pid_namespace": Path("/proc/self/ns/pid").stat().st_ino,
        "time_namespace": Path("/proc/self/ns/time").stat().st_ino,
        "boot_id": bytes.fromhex(Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")),
    }


@dataclass(slots=True, eq=False)
class Operation:
    """An operation of this client. It has settled when its fate is no longer PENDING."""

    key: bytes
    deadline_ns: int
    fate: Fate = Fate.PENDING
    error: int = 0
    value: bytes = b""
    told_ns: int = 0  # when this client learned its fate


class ProtocolError(Exception):
    """The daemon refuses this client."""


class Client:
    """A connection to the daemons of one instance, one after the other."""

    def __init__(self, directory: Path, instance: str, name: str = "minimal") -> None:
        self._path = directory / instance
        self._name = name
        self._context = zmq.Context()
        self._poller = zmq.Poller()
        self._dealer = self._open(zmq.DEALER, IMMEDIATE=1)
        self._handshakes = self._dealer.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        self._dealer.connect(f"ipc://{self._path}.sock")
        self._outlet: zmq.Socket[bytes] | None = None
        self._live: socket.socket | None = None
        self._arena = bytes(8)
        self._next_hello = self._complained = self._pause = 0
        self._settled: list[Operation] = []
        self.reconnects = -1  # the first connection is none
        self.strays = 0  # outcomes of operations that had settled before
        self._begin()

    def _begin(self) -> None:
        """A new incarnation, of which the daemon knows nothing."""
        self._proof = os.urandom(16)
        self._incarnation = hashlib.blake2b(self._proof, digest_size=16).digest()
        self._session = NO_SESSION
        self._topic = self._purgatory = 0  # of this client's frames down, and the index of its purgatory
        self._greets = True  # hellos are due, until a WELCOME or a report comes
        self._is_live = False  # no command is sent before a report has come from the outlet
        self._looked = self._said = time.monotonic_ns()
        self._quiet = 0  # how long nothing came while the client listened
        self._live_since = self._live_ended = self._next_live = 0
        self._operations: dict[int, Operation] = {}  # by the number of their REGISTER
        self._withdrawn: dict[int, int] = {}  # the number of the CANCEL, by that of the REGISTER
        self._commands: dict[int, Callable[[int], bytes]] = {}  # not confirmed; each takes the purgatory's index
        self._last = self._applied = self._sent = self._framed = 0  # numbers of commands
        self._progress, self._patience = 0, FIRST_PATIENCE
        self._received = self._answered = 0  # the newest outcome, the newest answer
        self._holds: list[tuple[int, int]] = []  # outcomes that wait for a CANCEL before they are acknowledged
        self._owes_ack = False
        self._next_ask = 0

    # Calls of the application.

    def register(self, key: bytes, timeout: float) -> Operation:
        """An operation that a fire on `key` completes, and that expires after `timeout` seconds."""
        now, timeout_ns = time.monotonic_ns(), round(timeout * SECOND)
        number = self._command(lambda purgatory: pack_register(purgatory, key, now, timeout_ns))
        operation = self._operations[number] = Operation(key, now + timeout_ns)
        return operation

    def fire(self, key: bytes, value: bytes = b"") -> None:
        """Completes what waits for `key`."""
        self._command(lambda purgatory: pack_fire(purgatory, key, value))

    @property
    def unconfirmed(self) -> int:
        """How many commands the daemon has not confirmed."""
        return self._last - self._applied

    def poll(self, timeout: float) -> list[Operation]:
        """The operations that settle within `timeout` seconds; returns as soon as there are any."""
        until = time.monotonic_ns() + round(timeout * SECOND)
        while True:
            self._work(time.monotonic_ns())
            rest = until - time.monotonic_ns()
            if self._settled or rest <= 0:
                settled, self._settled = self._settled, []
                return settled
            for ready, _ in self._poller.poll(max(1, min(rest, TICK) // MILLISECOND)):
                self._read(ready)

    def close(self) -> None:
        """A goodbye: what is pending is cancelled."""
        if self._session != NO_SESSION:
            self._send(Up.BYE)
        self._context.destroy(linger=1_000)
        self._close_live()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Sockets.

    def _open(self, kind: int, **options: Any) -> "zmq.Socket[bytes]":
        opened = self._context.socket(kind)
        options = {"RECONNECT_IVL": 20, "RECONNECT_IVL_MAX": 200, "RCVHWM": 0, "LINGER": 0, **options}
        for option, value in options.items():
            opened.set(getattr(zmq, option), value)
        self._poller.register(opened, zmq.POLLIN)
        return opened

    def _open_outlet(self) -> None:
        self._close_outlet()
        self._outlet = self._open(zmq.XSUB, PLAIN_USERNAME=b"timerd", PLAIN_PASSWORD=self._session)
        self._outlet.connect(f"ipc://{self._path}.pub")
        self._outlet.send(b"\x01")

    def _close_outlet(self) -> None:
        if self._outlet:
            self._poller.unregister(self._outlet)
            self._outlet.close()
            self._outlet = None

    def _keep_live(self, now: int) -> None:
        """Holds the connection to NAME.live, whose end says that the daemon has ended."""
        if self._live:
            try:
                self._live.recv(1)
            except BlockingIOError:
                return
            except OSError:
                pass  # it has ended, too
            self._close_live()
            if now - self._live_since < SECOND:  # refused
                self._next_live = now + SECOND
            else:
                self._live_ended = now
        elif self._session != NO_SESSION and now >= self._next_live:
            self._next_live = now + 100 * MILLISECOND
            self._live, self._live_since = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), now
            self._live.setblocking(False)
            try:
                self._live.connect(f"{self._path}.live")
                self._live.send(self._session)
            except OSError:
                self._close_live()

    def _close_live(self) -> None:
        if self._live:
            self._live.close()
            self._live = None

    # Frames up.

    def _command(self, pack: Callable[[int], bytes], *, anyway: bool = False) -> int:
        if HEADER_UP.size + len(pack(0)) > FRAME_SIZE:  # what cannot be packed raises here, too
            raise ValueError("the command fits into no frame: the value is too long")
        if self.unconfirmed >= WINDOW and not anyway:
            raise BlockingIOError("the window is full: poll first")
        self._last += 1
        self._commands[self._last] = pack
        return self._last

    def _send(self, kind: Up, body: bytes = b"", count: int = 0, first: int = 0) -> bool:
        """One frame, with the newest acknowledgements; False if there is no daemon to take it."""
        outcome = min((held - 1 for held, _ in self._holds), default=self._received)
        header = HEADER_UP.pack(PROTOCOL, kind, 0, count, self._arena, self._session, first, outcome, self._answered)
        try:
            self._dealer.send(header + body, zmq.DONTWAIT)
        except zmq.Again:
            return False
        self._said, self._owes_ack = time.monotonic_ns(), False
        return True

    def _work(self, now: int) -> None:
        """Does everything that is due."""
        while self._handshakes.poll(0):
            self._handshakes.recv_multipart()
            self.reconnects += 1
        self._keep_live(now)
        self._quiet += min(now - self._looked, SECOND)  # a pause of this process is not the daemon's silence
        self._looked = now
        is_lost = self._quiet > DAEMON_LOST or (self._live_ended and now - self._live_ended > DAEMON_ENDED)
        self._greets |= bool(is_lost)
        if self._greets and now >= self._next_hello:
            self._hello(now)
        if is_lost:
            late = [number for number, it in self._operations.items() if now >= it.deadline_ns + GRACE]
            for number in late:
                self._withdraw(number)
        if not self._is_live:
            return
        if self._sent > self._applied and now - self._progress > self._patience:
            self._sent, self._progress, self._patience = self._applied, now, min(2 * self._patience, SECOND)
        self._send_commands(now)
        if self._owes_ack or now - self._said > SECOND:
            self._send(Up.ACK)

    def _send_commands(self, now: int) -> None:
        while self._sent < self._last:
            body, number = bytearray(), self._sent + 1
            while number <= self._last and number - self._sent <= COMMANDS_PER_FRAME:
                command = self._commands[number](self._purgatory)
                if HEADER_UP.size + len(body) + len(command) > FRAME_SIZE:
                    break
                body += command
                number += 1
            if not self._send(Up.COMMANDS, bytes(body), number - 1 - self._sent, self._sent + 1):
                return
            if self._sent == self._applied:
                self._progress = now
            self._sent = number - 1
            self._framed = max(self._framed, self._sent)

    def _hello(self, now: int) -> None:
        known = [number for number in self._operations if number <= self._applied]  # others would be `unknown`
        hello = {
            "protocol": PROTOCOL,
            "proof": self._proof,
            "name": self._name,
            **describe_process(),
            "now_ns": now,
            "orphans": 0,
            "group": None,
            "takeover_ms": 2_000,
            "waits": known,
            "purgatories": [PURGATORY],
        }
        if self._send(Up.HELLO, msgpack.packb(hello)):
            self._next_hello = now + SECOND

    def _withdraw(self, number: int) -> None:
        """An operation becomes UNAVAILABLE: the daemon is lost, and the deadline has passed."""
        if number > self._applied:
            self._commands[number] = lambda _: pack_cancel(0)
        if number <= self._framed:
            self._withdrawn[number] = self._command(lambda _: pack_cancel(number), anyway=True)
        self._settle(number, Fate.UNAVAILABLE, CODE_UNAVAILABLE)

    # Frames down.

    def _read(self, ready: Any) -> None:
        while not ready.closed:
            try:
                frame = ready.recv(zmq.DONTWAIT)
            except zmq.Again:
                return
            self._quiet = self._live_ended = 0
            header = HeaderDown._make(HEADER_DOWN.unpack_from(frame))
            self._receive(header, frame[HEADER_DOWN.size :], ready is self._outlet, time.monotonic_ns())

    def _receive(self, header: HeaderDown, body: bytes, from_outlet: bool, now: int) -> None:
        if header.kind in (Down.REPORT, Down.EXPECTED) and header.topic != self._topic:
            return  # for an incarnation that has gone
        match header.kind:
            case Down.REPORT:
                self._greets = False
                self._is_live |= from_outlet
                self._report(header, body, now)
            case Down.EXPECTED:
                self._apply(header.applied, now)
                self._sent = self._applied
            case Down.WELCOME if self._greets:
                self._arena = header.arena
                self._welcome(msgpack.unpackb(body), now)
            case Down.HELLO_FIRST:
                self._is_live = False
                self._complain(now)
            case Down.SESSION_GONE if self._session != NO_SESSION:
                for number in list(self._operations):
                    self._settle(number, Fate.FAILED, CODE_SESSION_GONE)
                self._close_outlet()
                self._close_live()
                self._begin()
                self._complain(now)
            case Down.ERROR:
                self._error(header.applied + 1, msgpack.unpackb(body))

    def _welcome(self, welcome: dict[str, Any], now: int) -> None:
        if welcome["incarnation"] != self._incarnation:
            return
        if not welcome["shared_clock"]:
            raise ProtocolError("the daemon has another clock")
        self._greets = False
        self._topic, self._purgatory = welcome["topic"], welcome["purgatories"][PURGATORY]
        self._apply(welcome["applied"], now)
        self._sent = self._applied
        for number in welcome["unknown"]:
            self._settle(number, Fate.FAILED, CODE_SESSION_GONE)
        if welcome["session"] != self._session:
            self._session = welcome["session"]
            self._is_live = False
            self._open_outlet()

    def _complain(self, now: int) -> None:
        """The daemon wants a hello: at once, or after a growing pause if it wants one again and again."""
        again = now - self._complained < 3 * SECOND
        self._pause = min(max(20 * MILLISECOND, 2 * self._pause), SECOND) if again else 0
        self._complained = now
        self._greets, self._next_hello = True, now + self._pause

    def _error(self, number: int, error: dict[str, Any]) -> None:
        """An ERROR refuses a hello, or the next command."""
        if self._greets:
            raise ProtocolError(f"{error['message']} (code {error['code']})")
        if number not in self._commands:
            return  # it was sent twice, and refused twice
        self._commands[number] = lambda _: pack_cancel(0)
        self._settle(number, Fate.FAILED, error["code"])
        self._sent = min(self._sent, number - 1)

    def _apply(self, applied: int, now: int) -> None:
        """The daemon has applied the commands up to this one."""
        if not self._applied < applied <= self._last:
            return
        for number in range(self._applied + 1, applied + 1):
            del self._commands[number]
        self._applied, self._sent = applied, max(self._sent, applied)
        self._progress, self._patience = now, FIRST_PATIENCE
        self._holds = [hold for hold in self._holds if hold[1] > applied]

    def _report(self, header: HeaderDown, body: bytes, now: int) -> None:
        lost_before = header.outcome_first > self._received + 1 or (
            header.answers > 0 and header.answer_previous > self._answered
        )
        if not lost_before:
            answers = header.outcomes * OUTCOME.size
            heap = answers + header.answers * ANSWER.size  # this client has no looks
            for command, number, place, length, error, fate, flags in OUTCOME.iter_unpack(body[:answers]):
                if number > self._received:
                    value = body[heap + place : heap + place + length]
                    self._take_outcome(command, number, Fate(fate), error, flags, value)
            self._received = max(self._received, header.outcome_last)
            for command, code in ANSWER.iter_unpack(body[answers:heap]):
                self._answered = max(self._answered, command)
                if code:
                    self._settle(command, Fate.FAILED, code)
            is_reminder = header.applied == self._applied
            self._owes_ack |= is_reminder or header.outcomes > 0 or header.answers > 0
            self._apply(header.applied, now)
        is_behind = header.outcome_newest > self._received or header.answer_newest > self._answered
        if (lost_before or is_behind) and now >= self._next_ask:
            self._next_ask = now + 50 * MILLISECOND
            self._send(Up.ASK)

    def _take_outcome(self, command: int, number: int, fate: Fate, error: int, flags: int, value: bytes) -> None:
        if cancel := self._withdrawn.pop(command, 0):
            if flags & GRANTED and cancel > self._applied:
                self._holds.append((number, cancel))
        elif command in self._operations:
            self._settle(command, fate, error, value)
        else:
            self.strays += 1

    def _settle(self, number: int, fate: Fate, error: int, value: bytes = b"") -> None:
        if operation := self._operations.pop(number, None):
            operation.fate, operation.error, operation.value = fate, error, value
            operation.told_ns = time.monotonic_ns()
            self._settled.append(operation)


def storm(client: Client, operations: int, seconds: float, seed: int | None) -> bool:
    """Registers operations, fires at about half of them, waits for every outcome; whether nothing went wrong."""
    chance = random.Random(seed)
    start = time.monotonic_ns()
    run = os.urandom(4).hex()
    plan: list[tuple[int, int, float]] = []  # when, which operation, and its timeout; 0 = it is fired
    for number in range(operations):
        at, timeout = chance.uniform(0, seconds), chance.uniform(0.2, 3.0)
        plan.append((start + round(at * SECOND), number, timeout))
        if chance.random() < 0.5:
            plan.append((start + round((at + timeout * chance.uniform(0.01, 1.02)) * SECOND), number, 0.0))
    heapq.heapify(plan)
    waiting: set[Operation] = set()
    fates: Counter[Fate] = Counter()
    early = lost = 0
    while plan or waiting:
        while plan and plan[0][0] <= time.monotonic_ns():
            _, number, timeout = heapq.heappop(plan)
            key = f"storm/{run}/{number}".encode()
            if timeout:
                waiting.add(client.register(key, timeout))
            else:
                client.fire(key)
        rest = (plan[0][0] - time.monotonic_ns()) / SECOND if plan else 1.0
        for operation in client.poll(max(rest, 0.0)):
            waiting.remove(operation)
            fates[operation.fate] += 1
            early += operation.fate is Fate.EXPIRED and operation.told_ns < operation.deadline_ns
        late = {operation for operation in waiting if time.monotonic_ns() > operation.deadline_ns + 30 * SECOND}
        lost += len(late)
        waiting -= late
    twice = client.strays
    report = {
        "registered": operations,
        "completed": fates[Fate.COMPLETED],
        "expired": fates[Fate.EXPIRED],
        "lost": lost,
        "twice": twice,
        "early": early,
        "unavailable": fates[Fate.UNAVAILABLE],
        "reconnects": client.reconnects,
    }
    print(json.dumps(report), flush=True)
    return not (lost or twice or early)


def main() -> None:
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--directory", type=Path, default=Path(os.environ.get("TIMERD_RUNTIME_DIR", "/run/timerd")))
    shared.add_argument("--instance", default="default")
    parser = argparse.ArgumentParser(description="A minimal client of timerd.")
    commands = parser.add_subparsers(dest="command", required=True)
    wait = commands.add_parser("wait", parents=[shared], help="wait until a key is fired")
    wait.add_argument("key")
    wait.add_argument("--timeout", type=float, default=60.0, metavar="S")
    fire = commands.add_parser("fire", parents=[shared], help="complete what waits for a key")
    fire.add_argument("key")
    fire.add_argument("value", nargs="?", default="")
    storming = commands.add_parser("storm", parents=[shared], help="many operations, every outcome counted")
    storming.add_argument("--operations", type=int, required=True, metavar="N")
    storming.add_argument("--seconds", type=float, required=True, metavar="S")
    storming.add_argument("--seed", type=int, metavar="K")
    arguments = parser.parse_args()
    with Client(arguments.directory, arguments.instance, f"minimal-{arguments.command}") as client:
        match arguments.command:
            case "wait":
                operation = client.register(arguments.key.encode(), arguments.timeout)
                while operation.fate is Fate.PENDING:
                    client.poll(1.0)
                print(operation.fate.name.lower(), operation.value.decode(errors="replace"))
                sys.exit(0 if operation.fate is Fate.COMPLETED else 1)
            case "fire":
                client.fire(arguments.key.encode(), arguments.value.encode())
                while client.unconfirmed:
                    client.poll(0.01)
                print("fired")
            case "storm":
                held = storm(client, arguments.operations, arguments.seconds, arguments.seed)
                sys.exit(0 if held else 1)


if __name__ == "__main__":
    main()
