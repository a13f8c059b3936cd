"""The time without a frame of the daemon, and when the daemon is lost.

A daemon sends a frame at least once a second. It is lost after 3 s in which this client listened and no frame came, or
2 s after its end was seen. A pause of this process (it was stopped, or its loop or thread was blocked) counts as one
heartbeat: frames that came meanwhile may still be in the sockets.

Not here: the steps of the client after a loss (protocol.py, `_look_at_silence`).
"""

from __future__ import annotations

from typing import Final

from timerd_shm.declare.limits import GAP_NS, HEARTBEAT_NS

ENDED_LOST_NS: Final = 2_000_000_000  # a daemon that is started again needs less time than this


class Silence:
    """When the last frame came. All times are in ns of CLOCK_MONOTONIC."""

    def __init__(self, now_ns: int, lost_ns: int) -> None:
        self.lost_ns = lost_ns
        self.last_frame_ns = now_ns  # when the last frame came, plus the time in which this process could not listen
        self._ended_ns = 0  # when the end of a daemon was last seen
        self._looked_ns = now_ns

    def end_seen(self, now_ns: int) -> None:
        """The daemon has ended. It is lost if no frame comes within 2 s."""
        self._ended_ns = now_ns

    @property
    def lost_at_ns(self) -> int:
        """When the daemon is lost, unless a frame comes first."""
        at_ns = self.last_frame_ns + self.lost_ns
        return min(at_ns, self._ended_ns + ENDED_LOST_NS) if self._ended_ns > self.last_frame_ns else at_ns

    def look(self, now_ns: int) -> int:
        """For how long no frame has come, not counting a pause of this process since the last look."""
        late_ns = now_ns - max(self._looked_ns, self.last_frame_ns) - HEARTBEAT_NS
        if late_ns >= GAP_NS:
            self.last_frame_ns += late_ns
        self._looked_ns = now_ns
        return now_ns - self.last_frame_ns
