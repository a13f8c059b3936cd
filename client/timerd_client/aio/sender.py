"""The sender of an asyncio client: no command waits for room, and the loop sends in its next pass (passes.py)."""

from __future__ import annotations

from timerd_client.arguments import patience_s, unsigned, within
from timerd_client.link.base import LinkBase
from timerd_client.link.connection import Connection
from timerd_client.link.sender import Sender
from timerd_client.scope import noted
from timerd_client.types import Patience
from timerd_shm.declare.errors import BackpressureError
from timerd_shm.declare.limits import BACKPRESSURE_TIMEOUT_S

from .waiters import LoopWaiters


class LoopSender(Sender):
    """The sender of an asyncio link. It sends all commands of one iteration of the loop as one frame."""

    def __init__(self, link: LinkBase, connection: Connection, waiters: LoopWaiters) -> None:
        super().__init__(link, connection)
        self._waiters = waiters

    def ring(self) -> None:
        if not self._link.closed:
            self._link.wake()

    def make_room(self) -> None:
        status = self._connection.status()
        raise noted(BackpressureError(f"{self._fullness()} ({status}); `await client.room()` before the next"))

    def check_room(self, commands: int) -> None:
        room = self._protocol.outgoing.room
        if commands > room:
            window = self._protocol.ledger.window
            raise noted(
                BackpressureError(
                    f"{commands} at once, and there is room for {max(room, 0)} ({self._fullness()}); nothing was sent: "
                    f"`await client.room({min(commands, window)})` first"
                    + (f", and send {window} at most at once" if commands > window else "")
                )
            )

    async def room(self, commands: int = 1, timeout: Patience = BACKPRESSURE_TIMEOUT_S) -> int:
        """Wait for room in the window for `commands` commands. Returns the room. Raises BackpressureError."""
        link, ledger, outgoing = self._link, self._protocol.ledger, self._protocol.outgoing
        unsigned("commands", commands, ledger.window, 1)
        if outgoing.room < commands:
            self.confirm_locked()
        if not await self._waiters.until(lambda: outgoing.room >= commands or link.sealed, patience_s(timeout)):
            raise noted(
                BackpressureError(
                    f"no room for {commands} more in a window of {ledger.window} {within(timeout)} "
                    f"({self._connection.status()}); {self._remedy()}"
                )
            )
        link.check_open()
        return outgoing.room
