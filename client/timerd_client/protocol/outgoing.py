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


class Outgoing:
    """What is sent of a ledger, when it is sent again, and when it is forgotten."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.resets = 0  # raised when a frame that is not sent yet has become stale
        self.commands_unknown = 0  # were unacknowledged when the daemon lost sight of this client
        self.answered = 0  # up to this one they are applied, and all answers to them have been received
        self.sent = 0
        self.offered = 0

    @property
    def room(self) -> int:
        """Commands that may still be issued before some are acknowledged."""
        return self._ledger.window - (self._ledger.issued - self._ledger.applied)

    def withdraw(self, registration: int) -> int:
        """Undo a registration, whose outcome nobody will see: it is not applied, or cancelled.

        What it may have been handed goes back (REQUEUE). The number of the command that does it; 0 = none is needed.
        It goes beyond a full window, by one command for each registration at most.
        """
        if registration > self._ledger.applied:
            self.void(registration)
        if registration > self.offered:
            return 0
        return self._ledger.issue(operation_command(CommandKind.CANCEL, registration, flags=CommandFlag.REQUEUE))

    @property
    def has_commands(self) -> bool:
        """Whether there are commands to send."""
        return self.sent < self._ledger.issued

    @property
    def in_flight(self) -> bool:
        """Whether commands were sent that nobody has acknowledged."""
        return self._ledger.applied < self.sent

    def void(self, number: int) -> None:
        """An unacknowledged number goes to a command that does nothing."""
        self._ledger.replace(number, NOTHING)

    def go_back(self) -> None:
        """Send again from the first command that is not acknowledged."""
        self.sent = self._ledger.applied
        self.resets += 1

    def take(self) -> tuple[int, int]:
        """The next commands that are not sent, as many as a frame holds; there are some. (first, number)"""
        first = self.sent + 1
        number = self._ledger.fit(first, COMMANDS_PER_FRAME_MAX, _BODY_SIZE_MAX)
        self.sent += number
        self.offered = max(self.offered, self.sent)
        return first, number

    def join(self, header: bytes, first: int, number: int) -> bytes:
        """A frame: that header, and so many commands from `first` on."""
        return self._ledger.join(header, first, number)

    def with_time_left(self, header: bytes, first: int, number: int, now_ns: int) -> bytes:
        """As join(), for a daemon whose clock is another."""
        commands = (self._ledger.command(one) for one in range(first, first + number))
        return header + b"".join(with_time_left(command, now_ns) for command in commands)

    def drop_applied(self, applied: int) -> bool:
        """The daemon has applied commands up to this one; False if that is not news, or cannot be."""
        if not self._ledger.applied < applied <= self._ledger.issued:
            return False
        self._ledger.drop(applied)
        self.sent = max(self.sent, applied)
        return True

    def skip_answers(self, last: int) -> None:
        """The daemon kept no answers to the commands up to this one: it is not known which were refused."""
        if self.answered < last <= self._ledger.applied:
            self.commands_unknown += last - self.answered
            self.answered = last

    def begin_anew(self) -> int:
        """Forget what is unacknowledged, for a daemon that does not know this client; how many commands that were."""
        unknown = self._ledger.issued - self.answered
        self.commands_unknown += unknown
        self._ledger.begin_after(0)
        self.sent = self.offered = self.answered = 0
        self.resets += 1
        return unknown
