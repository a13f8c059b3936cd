"""The session of a group's member, which each heartbeat prolongs."""

from __future__ import annotations

import threading
from collections.abc import Callable

from timerd_client import DelayedOperation, Purgatory
from timerd_client.errors import ArenaFullError, ClosedError, QuotaExceededError
from timerd_client.operations.codes import Errors
from timerd_client.operations.keys import member_key
from timerd_client.operations.named import Lock, threaded


class DelayedHeartbeat:
    """A member is alive while a heartbeat comes within each session timeout. Else `expired()` is called, once.

    As Kafka's DelayedHeartbeat (GroupCoordinator.completeAndScheduleNextHeartbeatExpiration): a heartbeat completes the
    operation that waits for it, and another one begins. `rebalancing(timeout)` gives the member the rebalance timeout
    instead: it may be at work, and joins late. `leave()` ends the session without a call of `expired`. A member that
    comes back after its session is answered UNKNOWN_MEMBER_ID, and joins as a new one: make another DelayedHeartbeat.

    While the daemon is lost nobody is expired. When a session would have ended a second ago, it begins again, as with a
    new coordinator of Kafka's. Without room in the daemon for the session, the member is expired at once.

    Any process may say that a member lives: `client.fire(member_key(group, member))`, or heartbeat() here.

    Key: member_key(group, member).
    """

    def __init__(
        self,
        purgatory: Purgatory,
        group: str,
        member: str,
        session_timeout: float,
        expired: Callable[[], object],
        *,
        lock: Lock | None = None,
    ) -> None:
        """`session_timeout` in seconds. The session begins now. `expired` is called with `lock` held."""
        self._purgatory, self._key = threaded(purgatory), member_key(group, member)
        self._session_timeout, self._expired = session_timeout, expired
        self._owners_lock = lock
        self._lock = threading.RLock()
        self._waits: DelayedOperation | None = None
        self._over = False
        self._arm(session_timeout)

    @property
    def is_alive(self) -> bool:
        """Whether the session goes on."""
        return not self._over

    def heartbeat(self) -> Errors:
        """The member lives. UNKNOWN_MEMBER_ID: its session is over."""
        return self._arm(self._session_timeout)

    def rebalancing(self, timeout: float) -> Errors:
        """A rebalance begins: the member has so many seconds to join."""
        return self._arm(timeout)

    def leave(self) -> None:
        """The member leaves: nothing expires any more."""
        with self._lock:
            self._over = True
            waits, self._waits = self._waits, None
        if waits is not None:
            waits.cancel()

    def _arm(self, timeout: float) -> Errors:
        with self._lock:
            if self._over:
                return Errors.UNKNOWN_MEMBER_ID
            before, self._waits = self._waits, _Beat(self, timeout, self._owners_lock)
            waits = self._waits
        self._purgatory.try_complete_else_watch(waits, self._key, timeout=timeout)
        if before is not None:
            before.cancel()
        return Errors.NONE

    def _begin_again(self, beat: _Beat) -> None:
        """A heartbeat has come from another process, or nobody knows: the next session timeout begins."""
        with self._lock:
            goes_on = beat is self._waits and not self._over
        if goes_on:
            self._arm(self._session_timeout)

    def _beat_missed(self, beat: _Beat) -> None:
        with self._lock:
            if beat is not self._waits or self._over:
                return  # a heartbeat has come meanwhile
            self._over = True
        self._expired()


class _Beat(DelayedOperation):
    """Waits for the next heartbeat."""

    def __init__(self, session: DelayedHeartbeat, timeout: float, lock: Lock | None) -> None:
        super().__init__(lock=lock)
        self._session, self._looks = session, 0

    def try_complete(self) -> bool:
        self._looks += 1
        return self._looks > 1  # any event on the member's key is a heartbeat

    def on_complete(self) -> None:
        if self.error is None and self._looks > 1:
            self._session._begin_again(self)

    def on_expiration(self) -> None:
        self._session._beat_missed(self)

    def on_error(self) -> None:
        if isinstance(self.error, (ArenaFullError, QuotaExceededError)):
            self._session._beat_missed(self)
        elif not isinstance(self.error, ClosedError):
            self._session._begin_again(self)
