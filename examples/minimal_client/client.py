#!/usr/bin/env python3
"""A minimal client of timerd, written from PROTOCOL.md (version 6) on pyzmq and msgpack alone.

    with closing(Client(Path("/run/timerd/default"))) as client:
        order = client.register(b"order/17", timeout=2.5)
        client.fire(b"order/17", b"paid")
        while order.fate is Fate.PENDING:
            client.poll(timeout=1.0)
        print(order.fate.name, order.value)

One thread owns a client, and calls `poll` at least once a second. The daemon may be killed and started again at any
time: no outcome is lost, and none comes twice. For this each side keeps what it has sent until the other side has it:

* Commands have numbers. The client keeps a command, and sends it again, until the daemon says that it is applied.
* Outcomes have numbers. The daemon keeps an outcome until the client has acknowledged it. The client asks for outcomes
  that it has missed, and skips those that it has.
* Answers have the numbers of their commands, and are acknowledged like outcomes. Here each answer is a refusal.

These parts of the protocol are left out:

* UNAVAILABLE: while no daemon runs, an operation stays pending, even after its deadline.
* A new incarnation: SESSION_GONE and ERROR raise a ProtocolError, and the application makes another Client.
* NAME.live: the daemon finds the end of this process by its pid. In a container it may not see the pid.
* A daemon with another clock, on the other side of a time namespace, is refused.
* Trust: whatever listens at the path counts as the daemon. So only its user may make files in that directory.
* Cancels, ids, marks, watermarks, other conditions, groups, queries, answers to fires.
"""

import logging
import os
import struct
import sys
import time
from collections import namedtuple
from contextlib import closing
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, Final

import zmq

import msgpack

PROTOCOL: Final = 6
PURGATORY: Final = "demo"

SECOND: Final = 1_000_000_000  # all times are ns of CLOCK_MONOTONIC
HELLO_AGAIN: Final = SECOND
SEND_AGAIN: Final = SECOND // 2  # commands, if the daemon has applied none of them meanwhile
ASK_AGAIN: Final = SECOND // 20
SIGN_OF_LIFE: Final = SECOND
TICK_MS: Final = 20  # how often these times are looked at

WINDOW: Final = 65_536  # the most commands that are not applied
COMMANDS_PER_FRAME: Final = 60  # of the largest ones, too: a frame has at most 4 MiB
KEY_SIZE: Final = 255
VALUE_SIZE: Final = 65_536

Up = IntEnum("Up", {"COMMANDS": 1, "ACK": 2, "ASK": 3, "HELLO": 4, "BYE": 6})
Down = IntEnum("Down", {"REPORT": 1, "EXPECTED": 2, "HELLO_FIRST": 3, "WELCOME": 4, "ERROR": 6, "SESSION_GONE": 7})
Fate = IntEnum("Fate", {"PENDING": 0, "COMPLETED": 1, "EXPIRED": 2, "CANCELLED": 3, "FAILED": 4})
SESSION_GONE: Final = 21  # the code of an operation whose fate the daemon does not know

# The records, little endian and unaligned. An x is a byte that this client does not read.
HEADER_UP: Final = struct.Struct("<BBHI 8s16s QQQ")
HEADER_DOWN: Final = struct.Struct("<9xB2x II4x 8s 6Q 16x")
HeaderDown = namedtuple(
    "HeaderDown",
    "kind outcomes answers arena applied outcome_first outcome_last outcome_newest answer_previous answer_newest",
)
OUTCOME: Final = struct.Struct("<QQ 56x II 8x IB 3x")  # command, number, place in the heap, length, error, fate
ANSWER: Final = struct.Struct("<Q8xI4x")  # command, code

# Commands, without their first two bytes: kind and purgatory.
REGISTER: Final = struct.Struct("<HI BBBBI QQQQQ")
FIRE: Final = struct.Struct("<BBI QII")
REGISTER_KIND, FIRE_KIND = 1, 2
NO_MARK, AT_LEAST, EVENT_KEY = 0x40, 0, 0  # a flag, a condition, a kind of key


@dataclass(slots=True, eq=False)
class Operation:
    """An operation of this client. It has settled when its fate is no longer PENDING."""

    key: bytes
    fate: Fate = Fate.PENDING
    error: int = 0
    value: bytes = b""


def check(what: str, data: bytes, least: int, most: int) -> None:
    if not least <= len(data) <= most:
        raise ValueError(f"a {what} has {len(data)} bytes, and not {least} to {most}")


class ProtocolError(Exception):
    """The daemon refuses this client, or does not know it any more."""


class Client:
    """A client of the daemons that serve one instance, one after the other. `path` is DIRECTORY/NAME."""

    def __init__(self, path: Path, name: str = "minimal") -> None:
        self._path, self._name = path, name
        self._context, self._poller = zmq.Context(), zmq.Poller()
        self._dealer = self._context.socket(zmq.DEALER)
        self._dealer.immediate = 1  # otherwise frames for a daemon that has ended wait, and all reach the next one
        self._connect(self._dealer, "sock")
        self._outlet: zmq.Socket[bytes] | None = None
        self._proof, self._session, self._arena = os.urandom(16), bytes(16), bytes(8)
        self._purgatory = 0
        self._is_live = False  # whether reports come. Before that no command is sent
        self._operations: dict[int, Operation] = {}  # the pending ones, by the number of their REGISTER
        self._settled: list[Operation] = []
        self._commands: dict[int, tuple[int, bytes]] = {}  # those that are not applied: kind, rest
        self._last = self._sent = self._applied = 0  # the newest command: of all, of those sent, of those applied
        self._received = self._answered = 0  # the newest outcome, and the newest answer
        self._owes_ack = False
        self._hello_at = self._send_again_at = self._ask_at = self._sign_at = 0

    # Calls of the application.

    def register(self, key: bytes, timeout: float) -> Operation:
        """An operation that a fire on `key` completes, and that expires after `timeout` seconds."""
        check("key", key, 1, KEY_SIZE)
        keys = bytes((len(key), EVENT_KEY)) + key
        head = NO_MARK, 2 + REGISTER.size + len(keys), AT_LEAST, 1, 1, 0, 0
        times = time.monotonic_ns(), round(timeout * SECOND)
        number = self._command(REGISTER_KIND, REGISTER.pack(*head, *times, 0, 0, 0) + keys)
        operation = self._operations[number] = Operation(key)
        return operation

    def fire(self, key: bytes, value: bytes = b"") -> None:
        """Complete the operations of all clients that wait for `key`."""
        check("key", key, 1, KEY_SIZE)
        check("value", value, 0, VALUE_SIZE)
        size = 2 + FIRE.size + len(key) + len(value)
        self._command(FIRE_KIND, FIRE.pack(0, len(key), size, 1, len(value), 0) + key + value)

    @property
    def unconfirmed(self) -> int:
        """How many commands are not applied, as far as this client knows."""
        return self._last - self._applied

    def poll(self, timeout: float) -> list[Operation]:
        """Send and receive for `timeout` seconds, or until operations settle. Returns these operations."""
        until = time.monotonic_ns() + round(timeout * SECOND)
        while True:
            self._send_what_is_due(time.monotonic_ns())
            rest = until - time.monotonic_ns()
            if self._settled or rest <= 0:
                settled, self._settled = self._settled, []
                return settled
            for ready, _ in self._poller.poll(max(1, min(rest * 1_000 // SECOND, TICK_MS))):
                while not ready.closed and ready.poll(0):
                    self._take(ready.recv(), is_published=ready is self._outlet)

    def close(self) -> None:
        """Say goodbye: the daemon cancels what is pending."""
        if self._outlet:
            self._send(Up.BYE)
        self._context.destroy(linger=1_000)

    # Up.

    def _connect(self, made: "zmq.Socket[bytes]", ending: str) -> None:
        """Connect a socket. libzmq itself connects it to each later daemon."""
        made.connect(f"ipc://{self._path}.{ending}")
        self._poller.register(made, zmq.POLLIN)

    def _command(self, kind: int, rest: bytes) -> int:
        """Give a command its number, and keep it until it is applied."""
        if self.unconfirmed >= WINDOW:
            raise BlockingIOError("the window is full: poll first")
        self._last += 1
        self._commands[self._last] = kind, rest
        return self._last

    def _send(self, kind: Up, body: bytes = b"", count: int = 0) -> bool:
        """Send a frame. Each frame acknowledges what was received. Returns False if no daemon is connected."""
        ends = self._sent + 1, self._received, self._answered
        header = HEADER_UP.pack(PROTOCOL, kind, 0, count, self._arena, self._session, *ends)
        try:
            self._dealer.send(header + body, zmq.DONTWAIT)
        except zmq.Again:
            return False
        self._owes_ack, self._sign_at = False, time.monotonic_ns() + SIGN_OF_LIFE
        return True

    def _send_what_is_due(self, now: int) -> None:
        if not self._is_live:
            if now >= self._hello_at and self._hello():
                self._hello_at = now + HELLO_AGAIN
            return
        if self._sent > self._applied and now >= self._send_again_at:
            self._sent = self._applied  # frames were lost, perhaps with their daemon
        while self._sent < self._last and self._send_commands(now):
            pass
        if self._owes_ack or now >= self._sign_at:
            self._send(Up.ACK)

    def _hello(self) -> bool:
        # The pid and the start ticks name this process. The rest shows whether the daemon has the same pids and clock.
        status = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        hello = {
            "protocol": PROTOCOL,
            "proof": self._proof,
            "name": self._name,
            "pid": os.getpid(),
            "start_ticks": int(status[19]),
            "pid_namespace": Path("/proc/self/ns/pid").stat().st_ino,
            "time_namespace": Path("/proc/self/ns/time").stat().st_ino,
            "boot_id": bytes.fromhex(Path("/proc/sys/kernel/random/boot_id").read_text().replace("-", "")),
            "orphans": 0,  # cancel them
            "takeover_ms": 2_000,
            # WELCOME names those that the daemon does not know. It need not know a REGISTER that it has not confirmed.
            "waits": [number for number in self._operations if number <= self._applied],
            "purgatories": [PURGATORY],
        }
        return self._send(Up.HELLO, msgpack.packb(hello))

    def _send_commands(self, now: int) -> bool:
        """Send the next frame of commands. Returns False if no daemon is connected."""
        last = min(self._sent + COMMANDS_PER_FRAME, self._last)
        commands = [self._commands[number] for number in range(self._sent + 1, last + 1)]
        body = b"".join(bytes((kind, self._purgatory)) + rest for kind, rest in commands)
        if not self._send(Up.COMMANDS, body, len(commands)):
            return False
        if self._sent == self._applied:
            self._send_again_at = now + SEND_AGAIN
        self._sent = last
        return True

    # Down.

    def _take(self, frame: bytes, is_published: bool) -> None:
        header, body = HeaderDown._make(HEADER_DOWN.unpack_from(frame)), frame[HEADER_DOWN.size :]
        match header.kind:
            case Down.REPORT:
                self._is_live |= is_published
                self._take_report(header, body)
            case Down.EXPECTED:  # a frame was lost
                self._confirm(header.applied)
                self._sent = self._applied
            case Down.HELLO_FIRST:
                self._is_live = False
            case Down.WELCOME if not self._is_live:
                self._arena = header.arena
                self._take_welcome(msgpack.unpackb(body))
            case Down.SESSION_GONE if self._outlet:
                raise ProtocolError("the daemon does not know this client any more")
            case Down.ERROR:
                raise ProtocolError(msgpack.unpackb(body)["message"])

    def _take_welcome(self, welcome: dict[str, Any]) -> None:
        if not welcome["shared_clock"]:
            raise ProtocolError("the daemon has another clock")
        self._purgatory = welcome["purgatories"][PURGATORY]
        self._confirm(welcome["applied"])
        self._sent = self._applied
        for number in list(self._operations):
            if number in welcome["unknown"] or number <= welcome["gone"]:
                self._settle(number, Fate.FAILED, SESSION_GONE)
        if welcome["session"] != self._session:
            self._session = welcome["session"]
            self._open_outlet()

    def _open_outlet(self) -> None:
        """Connect for reports. The first one shows that the session was accepted."""
        if self._outlet:
            self._poller.unregister(self._outlet)
            self._outlet.close(linger=0)
        self._outlet = self._context.socket(zmq.XSUB)
        self._outlet.plain_username, self._outlet.plain_password = b"timerd", self._session
        self._connect(self._outlet, "pub")
        self._outlet.send(b"\x01")  # the subscription

    def _confirm(self, applied: int) -> None:
        """The daemon has applied the commands up to this one: forget them."""
        if self._applied < applied <= self._last:
            for number in range(self._applied + 1, applied + 1):
                del self._commands[number]
            self._applied, self._sent = applied, max(self._sent, applied)
            self._send_again_at = time.monotonic_ns() + SEND_AGAIN

    def _take_report(self, header: HeaderDown, body: bytes) -> None:
        """Take a report, unless one before it is missing. Ask for what is missing."""
        now = time.monotonic_ns()
        self._owes_ack = True  # an empty report may be a reminder
        is_after_gap = header.outcome_first > self._received + 1
        is_after_gap |= header.answers > 0 and header.answer_previous > self._answered
        if not is_after_gap:
            self._take_records(header, body)
            self._confirm(header.applied)
        is_behind = header.outcome_newest > self._received or header.answer_newest > self._answered
        if (is_after_gap or is_behind) and now >= self._ask_at and self._send(Up.ASK):
            self._ask_at = now + ASK_AGAIN

    def _take_records(self, header: HeaderDown, body: bytes) -> None:
        answers = header.outcomes * OUTCOME.size
        heap = answers + header.answers * ANSWER.size
        for command, number, place, length, error, fate in OUTCOME.iter_unpack(body[:answers]):
            if number > self._received:  # otherwise it came before
                self._settle(command, Fate(fate), error, body[heap + place : heap + place + length])
        self._received = max(self._received, header.outcome_last)
        for command, code in ANSWER.iter_unpack(body[answers:heap]):
            if command > self._answered:
                self._answered = command
                if command in self._operations:
                    self._settle(command, Fate.FAILED, code)
                else:
                    logging.warning("a fire was refused with code %d", code)

    def _settle(self, number: int, fate: Fate, error: int, value: bytes = b"") -> None:
        operation = self._operations.pop(number)  # a KeyError would mean that an outcome came twice
        operation.fate, operation.error, operation.value = fate, error, value
        self._settled.append(operation)


def main() -> None:
    if len(sys.argv) not in (3, 4) or sys.argv[1] not in ("wait", "fire"):
        sys.exit("usage: client.py wait KEY [SECONDS]\n       client.py fire KEY [VALUE]")
    command, key, rest = [*sys.argv[1:], ""][:3]
    path = Path(os.environ.get("TIMERD_RUNTIME_DIR", "/run/timerd")) / "default"
    with closing(Client(path)) as client:
        if command == "fire":
            client.fire(key.encode(), rest.encode())
            while client.unconfirmed:
                client.poll(0.01)
            print("fired")
            return
        operation = client.register(key.encode(), float(rest or 60))
        while operation.fate is Fate.PENDING:
            client.poll(1.0)
        print(operation.fate.name.lower(), operation.value.decode(errors="replace"))


if __name__ == "__main__":
    main()
