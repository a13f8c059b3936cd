"""A client without a daemon or a socket: the frames that it sends are dropped, and its reports are made beforehand."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import msgpack
from timerd_client.discovery.identity import identity
from timerd_client.discovery.target import target_of
from timerd_client.link.lazy import Lazy
from timerd_client.link.link import Link
from timerd_client.link.operation import ThreadedOperation
from timerd_client.protocol.deadlines import NEVER
from timerd_client.protocol.protocol import Protocol
from timerd_client.protocol.state import LinkState
from timerd_client.threaded.purgatory import Purgatory
from timerd_client.transport.sockets import Sockets
from timerd_client.types import Keys
from timerd_shm.declare.fields import struct_of
from timerd_shm.declare.limits import FRAME_SIZE_MAX
from timerd_shm.declare.states import Orphans
from timerd_shm.declare.wire import PROTOCOL_VERSION, DownKind, OutcomeFlag, OutcomeRecord, ReportHeader
from timerd_shm.host.paths import InstancePaths

ARENA = 7
TOPIC = 5
KEY = "request/{:09}"
PAYLOAD = bytes(100)
VALUE = bytes(8)
ROWS = 1_024  # of one register_many or fire_many
TOGETHER = 10_000  # commands that are sent and applied together
T = TypeVar("T")
REPORT, OUTCOME = struct_of(ReportHeader), struct_of(OutcomeRecord)


class QuietLink(Link):
    """A link that sends no frames, and needs no waking."""

    def wake(self) -> None:
        self.idle = False


class Rig:
    """A client that received a welcome, and so believes in a live daemon."""

    def __init__(self) -> None:
        nothing = SimpleNamespace(
            lifeline=SimpleNamespace(), subscribe=lambda message: None, frame_size_max=FRAME_SIZE_MAX, due_ns=NEVER
        )
        who = identity("", Orphans.CANCEL, None)
        self.link = QuietLink(
            InstancePaths(Path("/nowhere"), "bench"), Protocol(who, time.monotonic_ns()), cast(Sockets, nothing)
        )
        self.protocol = self.link.protocol
        lazy = Lazy(target_of("Client", None, {}), QuietLink, self.link)
        self.purgatory = Purgatory(cast(Any, lazy), "default", ThreadedOperation)
        self.outcomes = 0
        welcome = {"session": b"s" * 16, "slot": 0, "topic": TOPIC, "applied": 0, "shared_clock": True}
        welcome |= {"newest": 0, "now_ns": 0, "heartbeat_ns": 10**9, "lease_ns": 10**10, "daemon_pid": 1}
        self.now = time.monotonic_ns()
        self.protocol.tick(self.now)
        self.receive(self.header(DownKind.WELCOME) + bytes(msgpack.packb(welcome)))
        self.receive(self.header())
        while self.protocol.next_frame(self.now) is not None:
            pass
        assert self.protocol.state is LinkState.LIVE

    def header(self, kind: DownKind = DownKind.REPORT, outcomes: int = 0) -> bytes:
        first, last = self.outcomes + 1, self.outcomes + outcomes
        applied = self.protocol.ledger.issued
        fields = (TOPIC, PROTOCOL_VERSION, kind, 0, outcomes, 0, 0, ARENA, applied, first, last, last, 0, 0, 0, 0)
        return REPORT.pack(*fields)

    def receive(self, frame: bytes) -> None:
        self.protocol.receive(frame, self.now, published=True)

    def reports(self, commands: list[int], per_report: int) -> list[bytes]:
        """Reports in which these operations complete, with `per_report` outcomes in each. Each outcome has a value."""
        frames = []
        for start in range(0, len(commands), per_report):
            part = commands[start : start + per_report]
            rows = [
                OUTCOME.pack(
                    command, self.outcomes + 1 + at, command, 2, 3, 1, 4, 1, 0, 8 * at, len(VALUE), 0, 0, 0, 1, 1,
                    OutcomeFlag.HAS_VALUE, 0,
                )
                for at, command in enumerate(part)
            ]  # fmt: skip
            frames.append(self.header(outcomes=len(part)) + b"".join(rows) + VALUE * len(part))
            self.outcomes += len(part)
        return frames

    def send(self) -> None:
        while self.protocol.next_frame(self.now) is not None:
            pass

    def settle(self) -> None:
        """Send all commands, and receive a report that they were applied. So the client keeps none of them."""
        self.send()
        self.receive(self.header())


def keys_of(first: int, count: int, keys: int) -> list[Keys]:
    """The keys of `count` registrations, as register() takes them: a name, or a tuple of names."""
    names = [KEY.format(number) for number in range(first * keys, (first + count) * keys)]
    return list(names) if keys == 1 else list(zip(*(names[at::keys] for at in range(keys)), strict=True))


def pieces_of(rows: Sequence[T]) -> list[Sequence[T]]:
    """The rows of each bulk call."""
    return [rows[start : start + ROWS] for start in range(0, len(rows), ROWS)]
