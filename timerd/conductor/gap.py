"""The gap: after a turn that began late, the sockets are read before the wheel moves.

A turn that begins a second late means that the process was stopped, or starved. The frames of that time wait in the
sockets. For example: an event that was fired in time must not lose against a deadline that passed while the daemon was
stopped. So a frame that is read in a gap has the *effective time* of the last turn before the gap, and the wheel waits
until the sockets are dry, 100 ms at most. The daemon's first turn is a gap as well, because clients may have sent
frames while no daemon ran. The last turn before is then that of the previous daemon.
"""

from __future__ import annotations

from timerd.core import NEVER

GAP_READ_NS = 100_000_000  # the longest that the wheel waits in a gap
DRY_NS = 5_000_000  # the sockets are dry if nothing came for this time: a client may have stopped too, and send later


class Gap:
    """Whether the wheel waits for the sockets, and when the sockets were last read until they were dry."""

    def __init__(self, now_ns: int, last_turn_ns: int) -> None:
        self._before_ns = last_turn_ns or now_ns  # an arena without a turn has no deadlines
        self._last_frame_ns = now_ns
        self._until_ns = now_ns + GAP_READ_NS
        self.is_open = True  # the wheel still waits for the sockets to be dry
        self.dry_ns = 0  # time of the last turn outside of a gap that had read all that had come

    @property
    def due_ns(self) -> int:
        """When an open gap ends, if nothing comes."""
        return min(self._until_ns, self._last_frame_ns + DRY_NS)

    @property
    def before_ns(self) -> int:
        """The time of the last turn before the gap, while the gap is open. Else NEVER."""
        return self._before_ns if self.is_open else NEVER

    def begin(self, now_ns: int, last_turn_ns: int) -> None:
        """This turn began late, at `now_ns`."""
        if not self.is_open:
            self._before_ns = last_turn_ns
        self._last_frame_ns = now_ns
        self._until_ns = now_ns + GAP_READ_NS
        self.is_open = True

    def received(self, now_ns: int) -> None:
        """A frame was read in this turn."""
        self._last_frame_ns = now_ns

    def read_dry(self, now_ns: int) -> None:
        """This turn has read all that the command socket had."""
        if not self.is_open:
            self.dry_ns = now_ns

    def end_if_dry(self, now_ns: int) -> None:
        """Close the gap when nothing came for DRY_NS, or when its time is up."""
        if now_ns >= self.due_ns:
            self.is_open = False
