"""Clients that leave without BYE: they have certainly ended, or they have been silent for too long.

The room clients/ notices an end: by a sign of the kernel, or by a count of silence. This module acts upon it: it closes
the client, logs it and counts it. A client that has ended is closed only when none of its frames is deferred any more.
"""

from __future__ import annotations

import logging

from timerd.clients.liveness import Kind, Liveness
from timerd.clients.session import Session
from timerd.clients.sessions import Sessions
from timerd.core import Core
from timerd_shm.declare.counters import DAEMON_COUNTERS, index_of

from .bounds import Bounds
from .deferred import Deferred

SIGNS_PER_TURN = 128
CLIENTS_SILENCED = index_of(DAEMON_COUNTERS, "clients_silenced")
CLIENTS_DIED = index_of(DAEMON_COUNTERS, "clients_died")
LIVENESS_REFUSED = index_of(DAEMON_COUNTERS, "liveness_refused")

log = logging.getLogger("timerd")


class Departures:
    """Closes the clients that have ended, or were silent for too long."""

    def __init__(self, core: Core, sessions: Sessions, liveness: Liveness, deferred: Deferred, bounds: Bounds) -> None:
        self._core = core
        self._sessions = sessions
        self._liveness = liveness
        self._deferred = deferred
        self._bounds = bounds

    def take_signs(self, now_ns: int) -> int:
        """Deal with connections that show a session, and with ended connections and processes. Returns their number."""
        sessions, liveness = self._sessions, self._liveness
        signs = liveness.signs(SIGNS_PER_TURN, now_ns)
        for watch, kind, secret in signs:
            if kind is Kind.ENDED:
                sessions.ends.ended(watch, now_ns)
            elif kind is Kind.BROKEN:
                sessions.ends.broken(watch, now_ns)
            elif (session := sessions.find(secret)) is not None:
                sessions.ends.hold(watch, session)
            else:
                liveness.drop(watch)
                self._core.count(LIVENESS_REFUSED)
        if refused := liveness.take_refused():
            self._core.count(LIVENESS_REFUSED, refused)
        return len(signs) + refused

    def act_upon_ends(self, now_ns: int) -> int:
        """Close the clients that have ended and have nothing left to be applied. Returns how many it looked at."""
        sessions = self._sessions
        if now_ns < sessions.due_ns:
            return 0
        ended = sessions.ends.take(now_ns)
        unfinished = self._deferred.slots()
        for session in ended:
            if session.slot in unfinished:
                sessions.ends.put_off(session, now_ns)
            else:
                self._close(session, "has ended", now_ns, goodbye=session.is_leaving)
        return len(ended)

    def count_silence(self, dry_ns: int, now_ns: int) -> None:
        """Count silence up to the last turn that had read the sockets dry. Close clients that were silent too long."""
        silent, lost, dead = self._sessions.count_silence(dry_ns, now_ns)
        for session in silent:
            kept = ", and keeps what it holds of its group: its process runs" if session.keeps else ""
            log.info("client %d (pid %d) is silent%s", session.slot, session.process.pid, kept)
        for session in lost:
            log.info(
                "client %d (pid %d) has been silent for %d s: what it holds of its group goes to other members",
                session.slot,
                session.process.pid,
                session.silent_ns // 1_000_000_000,
            )
        if silent:
            self._core.count(CLIENTS_SILENCED, len(silent))
        for session in dead:
            self._close(session, f"has been silent for {session.silent_ns // 1_000_000_000} s", now_ns)

    def _close(self, session: Session, why: str, now_ns: int, *, goodbye: bool = False) -> None:
        if goodbye:
            log.debug("client %d (pid %d) %s, as it had announced", session.slot, session.process.pid, why)
        else:
            log.info("client %d (pid %d) %s", session.slot, session.process.pid, why)
            self._core.count(CLIENTS_DIED)
        self._sessions.close(session, now_ns, goodbye=goodbye)
        self._bounds.cut()
