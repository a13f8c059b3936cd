"""Silence: nothing came from a client for a lease. Silence is a suspicion, not an end: the next frame ends it.

Silence changes nothing for the client's own operations. The client gets nothing more of its group, and its calls and
outcomes go to other members, unless its process runs (keepers.py).

Silence is counted only in turns that have read the sockets until they were dry, and one count adds at most a heartbeat.
A start renews every lease, and a gap the lease of every client that is not silent. So a daemon that was stopped does
not suspect a client because of that time.

After an hour of silence, counted like this, a client is dead. One case is quicker: a client of an earlier daemon, on
which this daemon has no watch, is dead when it has not come back after 60 s.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from timerd.core import Core
from timerd_shm.declare.limits import HEARTBEAT_NS

from .keepers import Keepers
from .process import Host
from .session import Session

DEAD_AFTER_NS = 3_600_000_000_000  # silence that counts as death
BACK_WITHIN_NS = 60_000_000_000  # silence after a restart that counts as death, where the client cannot be watched


class Lapses(NamedTuple):
    """Clients that a count of silence has found."""

    silent: list[Session]  # from now on
    lost: list[Session]  # silent before; from now on their calls and outcomes go to other members
    dead: list[Session]


class Silence:
    """Counts how long clients have been silent."""

    def __init__(self, core: Core, host: Host, now_ns: int) -> None:
        self._core = core
        self.keepers = Keepers(core, host)
        self._counted_ns = now_ns  # silence was counted up to this time

    def came(self, session: Session, now_ns: int, *, shows_session: bool = True) -> None:
        """A frame came from the client: it is not silent, and has come back if there was a restart.

        A hello without a session is no proof that the client is back: it may have ended while the hello waited.
        """
        self._core.heard(session.slot, now_ns)
        session.last_frame_ns = now_ns
        session.silent_ns = 0
        session.has_returned |= shows_session
        if session.is_silent:
            session.is_silent = False
            self.keepers.forget(session)
            self._core.revive(session.slot, now_ns)

    def make_leases_whole(self, sessions: Iterable[Session], now_ns: int) -> None:
        """After a gap: no client was read, so none was silent. A client that was silent before it stays silent."""
        self._counted_ns = now_ns
        for session in sessions:
            if not session.is_silent:
                session.silent_ns = 0

    def count(self, sessions: Iterable[Session], until_ns: int, now_ns: int) -> Lapses:
        """Count how long clients have been silent until the last turn that had read the sockets dry.

        Tells the core which clients are silent; the caller closes the dead ones.
        """
        lapses = Lapses([], [], [])
        counted_ns, self._counted_ns = self._counted_ns, max(until_ns, self._counted_ns)
        if until_ns <= counted_ns:
            return lapses  # the sockets have not been dry since: a frame of a client may still wait there
        self.keepers.begin_beat()
        for session in sessions:
            silence_ns = until_ns - max(counted_ns, session.last_frame_ns)
            if silence_ns <= 0:
                continue
            session.silent_ns += min(silence_ns, HEARTBEAT_NS)
            self._core.set_silent_ns(session.slot, session.silent_ns)
            if session.silent_ns < session.lease_ns:
                continue
            if not session.is_silent:
                session.is_silent = True
                self.keepers.fell_silent(session, now_ns)
                lapses.silent.append(session)
            is_unseen = not (session.has_returned or session.watch or session.keeps)
            if session.silent_ns >= (BACK_WITHIN_NS if is_unseen else DEAD_AFTER_NS):
                lapses.dead.append(session)
        lapses.lost.extend(self.keepers.look(now_ns))
        return lapses
