"""A command of a client. Later one can ask whether the daemon has applied it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .process import Process


class Issued:
    """A command that was issued; `applied` tells later whether the daemon has applied it."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.incarnation = process.client._protocol.session.incarnation
        self.arena = process.client._protocol.session.arena  # 0: the client has none; its next arena gets the command
        self.number = process.client._protocol.ledger.issued
        self.was_applied: bool | None = None  # as known when its process died

    def applied(self) -> bool | None:
        """True: the command was applied. False: it was refused. None: not known."""
        if self.was_applied is not None or not self.process.alive:
            return self.was_applied
        protocol = self.process.client._protocol
        if (self.incarnation, self.number) in self.process.refused:
            return False
        session = protocol.session
        is_same = session.incarnation == self.incarnation and self.arena in (0, session.arena)
        return True if is_same and protocol.ledger.applied >= self.number else None

    def freeze(self) -> None:
        self.was_applied = self.applied()
