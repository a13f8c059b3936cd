"""The sender of a link: it issues commands if the window has room, and wakes the thread or loop that sends."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from timerd_client.hot.commands import in_purgatory

from .base import LinkBase
from .connection import Connection


class Sender:
    """The window, and when frames are sent. threaded/ and aio/ add how a call waits for room, and how a pass begins.

    In a pass, the link's thread or loop receives, does what is due, and sends.
    """

    def __init__(self, link: LinkBase, connection: Connection) -> None:
        self._link = link
        self._protocol = link.protocol
        self._connection = connection
        self.chores: deque[Callable[[], None]] = deque()  # left for the next pass

    def make_room(self) -> None:
        """Return when the full window has room, or raise BackpressureError. Called with the lock held."""
        raise NotImplementedError

    def check_room(self, commands: int) -> None:
        """Before a column of commands: raise BackpressureError if there is no room for all and the call cannot wait."""

    def ring(self) -> None:
        """Start a pass soon, if a thread or loop makes the passes. Needs no lock."""

    def issue(self, command: bytes, purgatory: str | None = None) -> int:
        """Issue a command, for the purgatory with this name. Returns the command's number.

        Raises ClosedError, BackpressureError.
        """
        with self._link.lock:
            return self.issue_locked(command, purgatory)

    def issue_locked(self, command: bytes, purgatory: str | None = None) -> int:
        """Like issue(), with the lock held."""
        self.ready_locked()
        if purgatory is not None:
            command = in_purgatory(command, self._protocol.session.purgatories[purgatory])
        number = self._protocol.ledger.issue(command)
        self._link.wake_if_due(number)
        return number

    def ready_locked(self) -> None:
        """With the lock held: check that the link is open and wait for room. Raises ClosedError, BackpressureError."""
        self._link.check_open()
        if self._protocol.outgoing.room <= 0:
            self.make_room()

    def confirm_locked(self) -> None:
        """With the lock held: ask for a confirmation, because a caller waits until all issued commands are applied."""
        self._protocol.confirm()
        if self._protocol.wants_to_send():
            self._link.wake()

    def soon(self, chore: Callable[[], None]) -> None:
        """Do a chore with the lock held: now, or in the next pass if the lock is taken.

        For example, a garbage collection may end a generator in a thread that holds the lock already.
        """
        if self._link.lock.acquire(blocking=False):
            try:
                chore()
            finally:
                self._link.lock.release()
        else:
            self.in_next_pass(chore)

    def in_next_pass(self, chore: Callable[[], None]) -> None:
        """Do a chore in the next pass, with the lock held."""
        self.chores.append(chore)
        self.ring()

    def do_chores(self) -> None:
        """Do the chores that were left for this pass. Called with the lock held."""
        while self.chores:
            self.chores.popleft()()

    def _fullness(self) -> str:
        """How full the window is, for messages."""
        ledger = self._protocol.ledger
        return f"{ledger.issued - ledger.applied} of {ledger.window} commands are unacknowledged"

    def _remedy(self) -> str:
        """The remedy for a full window, for messages."""
        return f"start the daemon ({self._connection.paths.command})" if self._protocol.lost else "slow down and retry"
