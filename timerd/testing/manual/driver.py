"""The interface of Manual (manual.py) for the links, gates and loops of a manual daemon."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any
from typing import Protocol as Interface

from timerd_shm.host.paths import InstancePaths

from .clock import JumpingClock
from .daemon import ManualDaemon
from .ends import Lifeline


class ManualDriver(Interface):
    """Drives a test without waiting: it has the daemon and the clock, and does the work that is due."""

    clock: JumpingClock
    daemon: ManualDaemon
    paths: InstancePaths
    is_over: bool
    """Whether the test has ended, so that clients need other links."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing is ever due: no pending operation has a deadline, and no call is planned."""

    def lifeline(self) -> Lifeline:
        """The connection by whose end the daemon notices the end of a client."""

    def thread(self, run: Callable[[], None], name: str) -> threading.Thread:
        """A thread of a client, for handlers."""

    def settle(self) -> None:
        """Do all pending work, without moving the clock."""

    def wait(self, condition: Callable[[], bool], seconds: float | None) -> bool:
        """Wait until the condition holds, `seconds` of the manual clock at most. Returns whether it holds."""

    def jump(self, end_ns: int | None, is_enough: Callable[[], bool]) -> None:
        """Move the clock until `is_enough()`, to `end_ns` at most."""

    def changed(self) -> None:
        """Make all waiting threads look again. The caller may hold any lock."""

    def forget(self, link: Any) -> None:
        """Forget a link that has ended."""
