"""The sessions of members: each is a DelayedHeartbeat, which every heartbeat prolongs.

When a session expires, coordinator.py removes the member from its group, unless the member waits for the others
(Member.is_kept). The daemon holds the sessions. If it refuses a session, the member stays without one, and the session
is tried again each second and with the next heartbeat.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from typing import Protocol

from timerd_client.errors import BackpressureError, TimerdError
from timerd_client.operations import DelayedHeartbeat, Errors
from timerd_kafka.waits.waits import Waits

NAME_MAX = 100  # bytes of a name in a key: a key has up to two names, and at most 255 bytes
AGAIN_S = 1.0  # sessions that the daemon has refused are tried again at this interval
AGAIN_MAX = 100  # the most sessions that are tried again at once: each takes some 50 us of the loop

log = logging.getLogger("timerd_kafka.groups")


def key_name(name: str) -> str:
    """The name of a group or a member in a key. Names of clients may be longer than a key."""
    encoded = name.encode()
    return name if len(encoded) <= NAME_MAX else hashlib.sha256(encoded).hexdigest()


class Session:
    """One session. Its expiry is ignored if another session has replaced it, or if its holder has left."""

    beats: DelayedHeartbeat | None = None

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout


class Holder(Protocol):
    """A member, or a client with a new member id."""

    session: Session | None

    @property
    def id(self) -> str:
        """The member id of the holder."""

    @property
    def is_kept(self) -> bool:
        """Whether the holder counts as alive without heartbeats."""


class Sessions:
    """The sessions of one broker's members. Call the methods in the broker's loop."""

    def __init__(self, waits: Waits, expired: Callable[[str, Holder], object]) -> None:
        """`expired` gets the group's id, and the holder whose session has expired."""
        self._waits, self._expired = waits, expired
        self._without: dict[Holder, tuple[str, float]] = {}  # holders whose sessions the daemon refused
        self._again_at = 0.0

    def beat(self, group: str, holder: Holder, timeout: float) -> None:
        """Prolong the session of a holder that lives, or begin one."""
        if not self._prolong(holder, timeout):
            self.end(holder)
            self._begin(group, timeout, holder)

    def end(self, holder: Holder) -> None:
        """End the session of a holder that leaves."""
        session, holder.session = holder.session, None
        self._without.pop(holder, None)
        if session is not None and session.beats is not None:
            session.beats.leave()

    def look(self) -> None:
        """Try again sessions that the daemon has refused. The broker calls this periodically."""
        now = self._waits.loop.time()
        if self._without and now >= self._again_at:
            self._again_at = now + AGAIN_S
            for holder in list(self._without)[:AGAIN_MAX]:
                self._begin(*self._without.pop(holder), holder)

    def _prolong(self, holder: Holder, timeout: float) -> bool:
        session = holder.session
        if session is None or session.beats is None or session.timeout != timeout:
            return False
        if self._waits.is_full:
            return True
        try:
            return session.beats.heartbeat() is Errors.NONE
        except TimerdError:
            return False

    def _begin(self, group: str, timeout: float, holder: Holder) -> None:
        session = holder.session = Session(timeout)

        def expired() -> None:  # in the timer client's thread
            self._waits.call(self._over, group, holder, session)

        try:
            if self._waits.is_full:
                raise BackpressureError("it takes no commands")
            session.beats = DelayedHeartbeat(
                self._waits["heartbeat"], key_name(group), key_name(holder.id), timeout, expired
            )
        except TimerdError as error:
            self._refused(group, holder, timeout, error)

    def _over(self, group: str, holder: Holder, session: Session) -> None:
        if holder.session is not session:
            return  # a heartbeat has begun another session meanwhile, or the holder has left
        if session.beats is not None and session.beats.error is not None:
            self._refused(group, holder, session.timeout, session.beats.error)
            return
        holder.session = None
        if not holder.is_kept:  # a waiting member gets its next session with its answer
            self._expired(group, holder)

    def _refused(self, group: str, holder: Holder, timeout: float, why: object) -> None:
        if not self._without:
            log.warning("the timer daemon does not take the session of %r in group %r: %s", holder.id, group, why)
        holder.session = None
        self._without[holder] = group, timeout
