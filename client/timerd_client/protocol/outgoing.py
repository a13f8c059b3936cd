"""The window: commands that the daemon has not acknowledged yet, numbered one by one from 1, kept and sent again.

    1 .. answered     applied, and all answers to them, refusals too, were received
    1 .. applied      acknowledged, and no longer kept
    .. sent           in frames that are not acknowledged yet; going back (go-back-n) sends these commands again
    .. offered        were in a frame at some time: the daemon may have applied them, or may still do so
    .. issued         kept; the daemon cannot know commands above `offered`

A number belongs to one command, with one exception. A command that is withdrawn, or that the daemon cannot read, is
replaced by a command that does nothing. If its number was in a frame already, the daemon may still apply the first
command, so a withdrawn registration is cancelled as well.
"""

from __future__ import annotations

from timerd_client.hot import Ledger
from timerd_client.hot.commands import NOTHING, operation_command, with_time_left
from timerd_shm.declare.fields import size_of
from timerd_shm.declare.limits import (
    COMMANDS_PER_FRAME_MAX,
    FRAME_SIZE_MAX,
    KEY_SIZE_MAX,
    KEYS_MAX,
    PACKET_SIZE_MAX,
    PAYLOAD_SIZE_MAX,
)
from timerd_shm.declare.wire import CommandFlag, CommandHeader, CommandKind, RegisterCommand

_HEADER_SIZE = size_of(CommandHeader)
# Any command has to fit into a frame of one packet: otherwise Ledger.fit() would find no number of commands that fits.
assert size_of(RegisterCommand) + KEYS_MAX * (10 + KEY_SIZE_MAX) + PAYLOAD_SIZE_MAX < PACKET_SIZE_MAX - _HEADER_SIZE


class Outgoing:
    """The commands of a ledger: when they are sent, sent again, and forgotten."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.frame_size_max = FRAME_SIZE_MAX  # the largest frame of commands, in bytes
        self.resets = 0  # how often an unsent frame has become stale
        self.beginnings = 0  # how often begin_anew() was called
        self.commands_unknown = 0  # commands that were unacknowledged when the daemon forgot this client
        self.answered = 0  # commands up to this one are applied, and their answers were received
        self.sent = 0
        self.offered = 0
        self._confirm_to = 0  # somebody waits until commands up to this one are applied

    @property
    def room(self) -> int:
        """Commands that may still be issued before some are acknowledged."""
        return self._ledger.window - (self._ledger.issued - self._ledger.applied)

    def withdraw(self, registration: int) -> int:
        """Undo a registration: replace its command if it is not applied yet, and cancel it if it was offered.

        If the registration has a grant, the grant is requeued (REQUEUE). Returns the number of the CANCEL; 0 = none is
        needed. The CANCEL may exceed the window: there is at most one for each registration.
        """
        if registration > self._ledger.applied:
            self.void(registration)
        if registration > self.offered:
            return 0
        return self.requeue(registration)

    def requeue(self, registration: int) -> int:
        """Requeue the grant of a registration, and cancel it if it is pending. Returns the command's number."""
        return self._ledger.issue(operation_command(CommandKind.CANCEL, registration, flags=CommandFlag.REQUEUE))

    @property
    def has_commands(self) -> bool:
        """Whether there are commands to send."""
        return self.sent < self._ledger.issued

    @property
    def in_flight(self) -> bool:
        """Whether commands were sent that the daemon has not acknowledged."""
        return self._ledger.applied < self.sent

    def confirm(self) -> bool:
        """A caller waits until all issued commands are applied. Returns whether an extra frame must ask for it."""
        if max(self._confirm_to, self._ledger.applied) >= self._ledger.issued:
            return False
        self._confirm_to = self._ledger.issued
        return not self.has_commands

    def asks(self, first: int, number: int) -> bool:
        """Whether a frame with these commands asks for a confirmation: a caller waits, or the window fills."""
        last = first + number - 1
        return first <= self._confirm_to <= last or last - self._ledger.applied > self._ledger.window // 2

    def void(self, number: int) -> None:
        """Replace an unacknowledged command by a command that does nothing."""
        self._ledger.replace(number, NOTHING)

    def go_back(self) -> None:
        """Send again from the first command that is not acknowledged."""
        self.sent = self._ledger.applied
        self.resets += 1

    def take(self) -> tuple[int, int]:
        """The commands for the next frame: (first, number). There must be some to send."""
        first = self.sent + 1
        number = self._ledger.fit(first, COMMANDS_PER_FRAME_MAX, self.frame_size_max - _HEADER_SIZE)
        self.sent += number
        self.offered = max(self.offered, self.sent)
        return first, number

    def join(self, header: bytes, first: int, number: int) -> bytes:
        """A frame: this header, and `number` commands from `first` on."""
        return self._ledger.join(header, first, number)

    def with_time_left(self, header: bytes, first: int, number: int, now_ns: int) -> bytes:
        """Like join(), for a daemon with another clock: the commands carry the time that is left."""
        commands = (self._ledger.command(one) for one in range(first, first + number))
        return header + b"".join(with_time_left(command, now_ns) for command in commands)

    def drop_applied(self, applied: int) -> bool:
        """Drop commands up to this one: the daemon has applied them. False if this was known, or is impossible."""
        if not self._ledger.applied < applied <= self._ledger.issued:
            return False
        self.sent = max(self.sent, applied)
        self._ledger.drop(applied)
        return True

    def skip_answers(self, last: int) -> None:
        """Count commands up to this one as unknown: the daemon has kept no answers, and may have refused them."""
        if self.answered < last <= self._ledger.applied:
            self.commands_unknown += last - self.answered
            self.answered = last

    def begin_anew(self) -> int:
        """Forget all unacknowledged commands, because the daemon does not know this client. Returns their number."""
        unknown = self._ledger.issued - self.answered
        self.commands_unknown += unknown
        self._ledger.begin_after(0)
        self.sent = self.offered = self.answered = self._confirm_to = 0
        self.resets += 1
        self.beginnings += 1
        return unknown
