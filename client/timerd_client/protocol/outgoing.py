"""The window: commands that the daemon has not acknowledged yet, numbered one by one from 1, kept and sent again.

    1 .. answered     and what the daemon has to say of them, refusals too, has been heard
    1 .. applied      acknowledged, gone
    .. sent           in frames that nobody has answered yet; going back (go-back-n) sends them again
    .. offered        have been in a frame at some time: the daemon may have applied them, or may do so yet
    .. issued         kept; those above `offered` are nobody's secret but ours

A number is never given to another command, but for one: a command that does nothing takes the place of what is
withdrawn, or cannot be read. What was offered before may have been applied all the same, so it is cancelled as well.
"""

from __future__ import annotations

from timerd_client.hot import Ledger
from timerd_client.hot.commands import NOTHING, operation_command, with_time_left
from timerd_shm.declare.fields import size_of
from timerd_shm.declare.limits import COMMANDS_PER_FRAME_MAX, FRAME_SIZE_MAX
from timerd_shm.declare.wire import CommandFlag, CommandHeader, CommandKind

_BODY_SIZE_MAX = FRAME_SIZE_MAX - size_of(CommandHeader)


class Window(Ledger):
    """What is sent of a ledger, when it is sent again, and when it is forgotten."""

    def __init__(self, window: int) -> None:
        super().__init__(window)
        self.resets = 0  # raised when a frame that is not sent yet has become stale
        self.commands_unknown = 0  # were unacknowledged when the daemon lost sight of this client
        self.answered = 0  # up to this one they are applied, and all answers to them have been received
        self._sent = 0
        self._offered = 0

    @property
    def room(self) -> int:
        """Commands that may still be issued before some are acknowledged."""
        return self.window - (self.issued - self.applied)

    def withdraw(self, registration: int) -> int:
        """Undo a registration, whose outcome nobody will see: it is not applied, or cancelled.

        What it may have been handed goes back (GIVE_BACK). The number of the command that does it; 0 = none is needed.
        It goes beyond a full window, by one command for each registration at most.
        """
        if registration > self.applied:
            self._void(registration)
        if registration > self._offered:
            return 0
        return self.issue(operation_command(CommandKind.CANCEL, registration, flags=CommandFlag.GIVE_BACK))

    def _void(self, number: int) -> None:
        """An unacknowledged number goes to a command that does nothing."""
        self.replace(number, NOTHING)

    def _go_back(self) -> None:
        """Send again from the first command that is not acknowledged."""
        self._sent = self.applied
        self.resets += 1

    def _take_commands(self) -> tuple[int, int]:
        """The next commands that are not sent, as many as a frame holds; there are some. (first, number)"""
        first = self._sent + 1
        number = self.fit(first, COMMANDS_PER_FRAME_MAX, _BODY_SIZE_MAX)
        self._sent += number
        self._offered = max(self._offered, self._sent)
        return first, number

    def _with_time_left(self, header: bytes, first: int, number: int, now_ns: int) -> bytes:
        """As join(), for a daemon whose clock is another."""
        commands = (self.command(one) for one in range(first, first + number))
        return header + b"".join(with_time_left(command, now_ns) for command in commands)

    def _drop_applied(self, applied: int) -> bool:
        """The daemon has applied commands up to this one; False if that is not news, or cannot be."""
        if not self.applied < applied <= self.issued:
            return False
        self.drop(applied)
        self._sent = max(self._sent, applied)
        return True

    def _begin_numbering_anew(self) -> int:
        """Forget what is unacknowledged, for a daemon that does not know this client; how many commands that were."""
        unknown = self.issued - self.answered
        self.commands_unknown += unknown
        self.begin_after(0)
        self._sent = self._offered = self.answered = 0
        self.resets += 1
        return unknown
