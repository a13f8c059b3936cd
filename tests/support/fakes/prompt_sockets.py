"""Sockets of a client to a daemon in memory that answers at once. The threads are real."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from types import SimpleNamespace
from typing import Any

from support.fakes.fakedaemon import FakeDaemon
from timerd_client.protocol.deadlines import NEVER
from timerd_shm.declare.fields import unpack
from timerd_shm.declare.limits import FRAME_SIZE_MAX
from timerd_shm.declare.wire import CommandHeader, UpKind


class Sockets:
    """Sockets to a daemon that answers at once, in the thread that sends. With `full`, nothing can be sent."""

    frame_size_max: int = FRAME_SIZE_MAX
    wake_ns: int = 130_000
    due_ns: int = NEVER

    def __init__(self) -> None:
        self.lifeline: Any = SimpleNamespace(
            fileno=lambda: -1, is_held=lambda session: True, hold=lambda session, now_ns: False, let_go=lambda: None
        )
        self.daemon = FakeDaemon()
        self.full = False
        self.frames: list[tuple[int, CommandHeader, int]] = []  # time, header, thread
        self._published: deque[bytes] = deque()
        self._routed: deque[bytes] = deque()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK)
        self._turn = threading.Lock()

    def send(self, frame: bytes) -> bool:
        if self.full:
            return False
        self.frames.append((time.monotonic_ns(), unpack(CommandHeader, frame), threading.get_ident()))
        with self._turn:
            self.daemon.receive(frame)
            self._take()
        return True

    def subscribe(self, session: bytes) -> None:
        with self._turn:
            self.daemon.subscribe(session)
            self._take()

    def _take(self) -> None:
        self.daemon.turn()
        self._published += self.daemon.published
        self._routed += self.daemon.routed
        self.daemon.published.clear()
        self.daemon.routed.clear()
        os.eventfd_write(self._bell, 1)

    def make_room(self) -> None:
        self.full = False
        os.eventfd_write(self._bell, 1)

    def receive(self, *, published: bool) -> bytes | None:
        frames = self._published if published else self._routed
        if published:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._bell)
        return frames.popleft() if frames else None

    def has_answer(self) -> bool:
        return bool(self._routed)

    def has_room(self) -> bool:
        return not self.full

    def filenos(self) -> list[int]:
        return [self._bell]

    def sources(self, descriptor: int) -> tuple[bool, ...]:
        return True, False

    def map_arena(self) -> Any:
        raise OSError("there is no arena")

    def tend(self, now_ns: int) -> bool:
        return False

    def lost(self, now_ns: int) -> bool:
        return False

    def trouble(self) -> str:
        return ""

    def forked(self) -> None:
        """Nothing to do."""

    def close(self, *, linger: bool) -> None:
        """Nothing to do."""

    def commands(self) -> list[tuple[int, int, int]]:
        """(time, number of commands, thread) of each frame with commands."""
        return [(at_ns, header.count, by) for at_ns, header, by in self.frames if header.kind == UpKind.COMMANDS]
