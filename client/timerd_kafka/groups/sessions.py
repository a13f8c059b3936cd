"""The sessions of members: each is a DelayedHeartbeat, which every heartbeat prolongs.

When a session expires, coordinator.py removes the member from its group. The daemon holds the sessions. If the daemon
refuses one, the member goes on without, and the session is tried again each second and with the next heartbeat.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from typing import Protocol

from timerd_client.errors import BackpressureError, TimerdError
from timerd_client.operations import DelayedHeartbeat, Errors
from timerd_kafka.waits.waits import Waits

NAME_MAX = 100  # bytes of a name in a key, of which there may be two; a key has 255
AGAIN_S = 1.0  # so often a session is tried again that the daemon has refused
AGAIN_MAX = 100  # at once: each costs the loop some 50 us

log = logging.getLogger("timerd_kafka.groups")


def key_name(name: str) -> str:
    """The name of a group or a member in a key. Names of clients may be longer than a key."""
    encoded = name.encode()
    return name if len(encoded) <= NAME_MAX else hashlib.sha256(encoded).hexdigest()


class Session:
    """One session. Its end is told once, unless another one has taken its place."""

    beats: DelayedHeartbeat | None = None

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout


class Holder(Protocol):
    """A member, or a client that is to become one."""

    session: Session | None

    @property
    def id(self) -> str:
        """Its member id."""

    @property
    def is_kept(self) -> bool:
        """Whether it is alive although it is silent."""


class Sessions:
    """The sessions of one broker's members. Its methods are called in the broker's loop."""

    def __init__(self, waits: Waits, expired: Callable[[str, Holder], object]) -> None:
        """`expired` gets the group's id."""
        self._waits, self._expired = waits, expired
        self._without: dict[Holder, tuple[str, float]] = {}  # holders that the daemon did not take
        self._again_at = 0.0

    def beat(self, group: str, holder: Holder, timeout: float) -> None:
        """The holder lives. Its session goes on, or begins."""
        if not self._prolong(holder, timeout):
            self.end(holder)
            self._begin(group, timeout, holder)

    def end(self, holder: Holder) -> None:
        """The holder leaves, or is gone."""
        session, holder.session = holder.session, None
        self._without.pop(holder, None)
        if session is not None and session.beats is not None:
            session.beats.leave()

    def look(self) -> None:
        """Try again what the daemon has refused. Called again and again."""
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
            return  # a heartbeat has come meanwhile
        if session.beats is not None and session.beats.error is not None:
            self._refused(group, holder, session.timeout, session.beats.error)
            return
        holder.session = None
        if not holder.is_kept:  # a member that waits gets its next session with its answer
            self._expired(group, holder)

    def _refused(self, group: str, holder: Holder, timeout: float, why: object) -> None:
        if not self._without:
            log.warning("the timer daemon does not take the session of %r in group %r: %s", holder.id, group, why)
        holder.session = None
        self._without[holder] = group, timeout
