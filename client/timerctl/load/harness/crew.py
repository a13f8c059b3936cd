"""The processes of a load test, seen from the load test: it starts them, exchanges messages, and ends them."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import wait
from typing import Any, Self

from timerctl.exits import Exit
from timerd_shm.host.paths import INSTANCE_VARIABLE, InstancePaths
from timerd_shm.host.places import RUNTIME_DIR_VARIABLE

from .messages import Answer, Failure, Ready, Start, Stop, Task

STOP_TIMEOUT_S = 10.0  # for the answers of processes that end early
END_TIMEOUT_S = 5.0
POLL_S = 0.05


class Member:
    """One process."""

    def __init__(self, task: Task, paths: InstancePaths) -> None:
        self.task = task
        self.ready: Ready | None = None
        self.answer: Answer | None = None
        self.connection, theirs = multiprocessing.Pipe()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", f"{__package__}.worker", str(theirs.fileno())],
                env={**os.environ, RUNTIME_DIR_VARIABLE: str(paths.directory), INSTANCE_VARIABLE: paths.instance},
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        self.connection.send(task)

    @property
    def topic(self) -> int:
        """The topic of its client; 0 until the process is ready."""
        return self.ready.topic if self.ready is not None else 0

    def __str__(self) -> str:
        return f"{self.task.role.value} {self.task.index} (pid {self.process.pid})"


class CrewError(Exception):
    """A process cannot go on, or has ended; `status` is the load test's exit status."""

    def __init__(self, what: str, status: Exit = Exit.PROBLEM) -> None:
        super().__init__(what)
        self.status = status


class Crew:
    """All processes of a run. A context manager: at its end no process is left."""

    def __init__(self, paths: InstancePaths) -> None:
        self._paths = paths
        self.members: list[Member] = []

    def add(self, task: Task) -> Member:
        """Start a process. It prepares at once."""
        member = Member(task, self._paths)
        self.members.append(member)
        return member

    def listen(self, timeout_s: float) -> None:
        """Receive the processes' messages, `timeout_s` at most. Raises CrewError when a process cannot go on."""
        open_ones: dict[Any, Member] = {member.connection: member for member in self.members if not member.answer}
        for connection in wait(list(open_ones), timeout_s):
            member = open_ones[connection]
            try:
                message = member.connection.recv()
            except (EOFError, ConnectionResetError):
                member.process.wait(END_TIMEOUT_S)
                raise CrewError(f"{member} has ended with status {member.process.returncode}") from None
            if isinstance(message, Failure):
                raise CrewError(f"{member}: {message.what}", message.status)
            if isinstance(message, Ready):
                member.ready = message
            else:
                member.answer = message

    def await_ready(self, check: Callable[[], None]) -> None:
        """Wait until all are ready. Meanwhile `check` is called again and again; it may raise."""
        while not all(member.ready for member in self.members):
            self.listen(POLL_S)
            check()

    def start(self, members: list[Member], start_ns: int) -> None:
        """Let those members begin."""
        for member in members:
            member.connection.send(Start(start_ns))

    def stop(self, members: list[Member]) -> None:
        """Make those members end early, and receive the answers that they send within STOP_TIMEOUT_S."""
        for member in members:
            if member.answer is None and member.process.poll() is None:
                try:
                    member.connection.send(Stop())
                except OSError:
                    continue
        end = time.monotonic() + STOP_TIMEOUT_S
        waiting: dict[Any, Member] = {member.connection: member for member in members if member.answer is None}
        while waiting and time.monotonic() < end:
            for connection in wait(list(waiting), POLL_S):
                try:
                    message = waiting[connection].connection.recv()
                except (EOFError, OSError):
                    message = None
                if isinstance(message, Ready):
                    continue
                member = waiting.pop(connection)
                member.answer = None if isinstance(message, Failure) else message

    def close(self) -> None:
        """End the processes. For a process, the end of its connection means Stop."""
        for member in self.members:
            member.connection.close()
        end = time.monotonic() + END_TIMEOUT_S
        for member in self.members:
            try:
                member.process.wait(max(end - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                member.process.kill()
                member.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
