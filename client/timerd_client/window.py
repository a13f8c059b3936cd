"""The window: commands that the daemon has not acknowledged yet, numbered one by one from 1, kept and sent again.

    1 .. applied      acknowledged, gone
    .. sent           in frames that nobody has answered yet; going back (go-back-n) sends them again
    .. offered        have been in a frame at some time: the daemon may have applied them, or may do so yet
    .. issued         kept; those above `offered` are nobody's secret but ours

A number is never given to another command, but for one: a command that does nothing takes the place of what is
withdrawn, or cannot be read. What was offered before may have been applied all the same, so it is cancelled as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from timerd_shm.fields import offset_of, size_of
from timerd_shm.limits import COMMANDS_PER_FRAME_MAX, FRAME_SIZE_MAX
from timerd_shm.wire import CommandFlag, CommandHeader, CommandKind, KeyCommand

from .commands import NOTHING, operation_command, with_time_left

_BODY_SIZE_MAX = FRAME_SIZE_MAX - size_of(CommandHeader)
_PURGATORY_AT = offset_of(KeyCommand, "purgatory")  # the same in every command
_DROPPED_AT_ONCE = 1_024  # else the list would be moved for each acknowledgement


class Commands(NamedTuple):
    """What a COMMANDS frame carries."""

    first: int
    number: int
    body: bytes


class Window:
    """Number `_base + i` is `commands[i]`."""

    def __init__(self, window: int) -> None:
        self.window = window
        self.issued = 0
        self.applied = 0
        self.commands: list[bytes] = []
        self.resets = 0  # raised when a frame that is not sent yet has become stale
        self.commands_unknown = 0  # were unacknowledged when the daemon lost sight of this client
        self._sent = 0
        self._offered = 0
        self._base = 1

    @property
    def room(self) -> int:
        """Commands that may still be issued before some are acknowledged."""
        return self.window - (self.issued - self.applied)

    def issue(self, command: bytes) -> int:
        """Take a command, whose number is returned. The caller has seen that there is room."""
        self.issued += 1
        self.commands.append(command)
        return self.issued

    def issue_all(self, commands: Sequence[bytes]) -> int:
        """Take several commands at once; the number of the first."""
        first = self.issued + 1
        self.issued += len(commands)
        self.commands += commands
        return first

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
        self.commands[number - self._base] = NOTHING

    def _go_back(self) -> None:
        """Send again from the first command that is not acknowledged."""
        self._sent = self.applied
        self.resets += 1

    def _take_commands(self, now_ns: int, *, shared_clock: bool) -> Commands:
        """The next commands that are not sent, as many as a frame holds; there are some."""
        start = self._sent + 1 - self._base
        commands = self.commands[start : start + COMMANDS_PER_FRAME_MAX]
        body = b"".join(commands)
        while len(body) > _BODY_SIZE_MAX:
            commands = commands[: (len(commands) + 1) // 2]
            body = b"".join(commands)
        if not shared_clock:
            body = b"".join(with_time_left(command, now_ns) for command in commands)
        first = self._sent + 1
        self._sent += len(commands)
        self._offered = max(self._offered, self._sent)
        return Commands(first, len(commands), body)

    def _drop_applied(self, applied: int) -> bool:
        """The daemon has applied commands up to this one; False if that is not news, or cannot be."""
        if not self.applied < applied <= self.issued:
            return False
        self.applied = applied
        self._sent = max(self._sent, applied)
        drop = applied + 1 - self._base
        if drop >= _DROPPED_AT_ONCE or drop == len(self.commands):
            del self.commands[:drop]
            self._base += drop
        return True

    def _move_purgatories(self, moved: dict[int, int]) -> None:
        """Commands that were kept for another arena carry its indices: {old: new}."""
        at = _PURGATORY_AT
        self.commands = [
            command[:at] + bytes((moved.get(command[at], command[at]),)) + command[at + 1 :]
            for command in self.commands
        ]

    def _begin_numbering_anew(self) -> int:
        """Forget what is unacknowledged, for a daemon that does not know this client; how many commands that were."""
        unknown = self.issued - self.applied
        self.commands_unknown += unknown
        self.commands.clear()
        self._base, self._sent, self._offered, self.issued, self.applied = 1, 0, 0, 0, 0
        self.resets += 1
        return unknown
