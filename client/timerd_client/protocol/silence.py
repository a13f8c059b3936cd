"""How long nothing was heard of the daemon, and when that means that it is lost.

A daemon says something at least once a second. It is lost when no frame was heard for 3 s in which this client
listened, or 2 s after its end was seen. A pause of this process (it was stopped, its loop or thread was blocked) counts
as one heartbeat: what the daemon said meanwhile may still stand in the sockets.

Not here: what the client then does (protocol.py, `_look_at_silence`).
"""

from __future__ import annotations

from typing import Final

from timerd_shm.declare.limits import GAP_NS, HEARTBEAT_NS

ENDED_LOST_NS: Final = 2_000_000_000  # a daemon that is started again needs less


class Silence:
    """When the last frame was heard. All times are in ns of CLOCK_MONOTONIC."""

    def __init__(self, now_ns: int, lost_ns: int) -> None:
        self.lost_ns = lost_ns
        self.heard_ns = now_ns  # when the last frame came; later by what this process was kept from listening
        self._ended_ns = 0  # when the end of a daemon was seen last
        self._looked_ns = now_ns

    def end_seen(self, now_ns: int) -> None:
        """The daemon has ended. It is lost if it is not back within 2 s; the next frame says that it is."""
        self._ended_ns = now_ns

    @property
    def lost_at_ns(self) -> int:
        """When the daemon is lost, unless a frame comes before."""
        at_ns = self.heard_ns + self.lost_ns
        return min(at_ns, self._ended_ns + ENDED_LOST_NS) if self._ended_ns > self.heard_ns else at_ns

    def look(self, now_ns: int) -> int:
        """How long the daemon has been silent by now, without this process's own pause since the last look."""
        late_ns = now_ns - max(self._looked_ns, self.heard_ns) - HEARTBEAT_NS
        if late_ns >= GAP_NS:
            self.heard_ns += late_ns
        self._looked_ns = now_ns
        return now_ns - self.heard_ns
