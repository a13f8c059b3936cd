"""The session of a group's member, which each heartbeat prolongs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress

from timerd_client import DelayedOperation, Purgatory, State
from timerd_client.errors import ClosedError, MarkTooOldError, TimerdError, TimerdUnavailableError
from timerd_client.operations.codes import Errors
from timerd_client.operations.keys import member_key
from timerd_client.operations.named import Lock, threaded


class DelayedHeartbeat:
    """A member is alive while a heartbeat comes within each session timeout. Otherwise `expired()` is called, once.

    As Kafka's DelayedHeartbeat (GroupCoordinator.completeAndScheduleNextHeartbeatExpiration): a heartbeat completes the
    operation that waits for it, and the next operation begins. `rebalancing(timeout)` gives the member the rebalance
    timeout instead, because the member may be at work and join late. `leave()` ends the session without a call of
    `expired`. A member that comes back after its session gets UNKNOWN_MEMBER_ID, and joins as a new member: make a new
    DelayedHeartbeat.

    While the daemon is lost, no member expires. A second after a session would have ended, it begins again, as with a
    new coordinator in Kafka. If the daemon refuses a session because it has no room, the member expires at once:
    `error` says why. If a heartbeat raises an error, the session goes on as before.

    Any process may send a heartbeat: `client.fire(member_key(group, member))`, or heartbeat() here.

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
        """The session begins now. `session_timeout` is in seconds. `expired` is called with `lock` held.

        Raises the errors of register().
        """
        self._purgatory, self._key = threaded(purgatory), member_key(group, member)
        self._session_timeout, self._expired = session_timeout, expired
        self._owners_lock = lock
        self._lock = threading.RLock()
        self._waits: DelayedOperation | None = None
        self._over = False
        self.error: Exception | None = None  # the error that has ended the session; None: no error has ended it
        self._arm(session_timeout)

    @property
    def is_alive(self) -> bool:
        """Whether the session goes on."""
        return not self._over

    def heartbeat(self) -> Errors:
        """Note a sign of life of the member. Returns UNKNOWN_MEMBER_ID if its session is over.

        Raises the errors of register().
        """
        return self._arm(self._session_timeout)

    def rebalancing(self, timeout: float) -> Errors:
        """Begin a rebalance: the member has `timeout` seconds to join."""
        return self._arm(timeout)

    def leave(self) -> None:
        """End the session, because the member leaves. It does not expire."""
        with self._lock:
            self._over = True
            waits, self._waits = self._waits, None
        if waits is not None:
            waits.cancel()

    def _arm(self, timeout: float) -> Errors:
        if self._over:
            return Errors.UNKNOWN_MEMBER_ID
        waits = _Beat(self, self._owners_lock)
        self._purgatory.try_complete_else_watch(waits, self._key, timeout=timeout)  # if this raises, nothing changes
        with self._lock:
            is_over, before = self._over, self._waits
            if not is_over:
                self._waits = waits
        if is_over:  # the member has left, or expired, meanwhile
            waits.cancel()
            return Errors.UNKNOWN_MEMBER_ID
        if before is not None:
            before.cancel()
        if waits.done():  # the operation ended before it was in `_waits`, so its end was not noticed
            with self._owners_lock or nullcontext():
                self._ended(waits)
        return Errors.NONE

    def _ended(self, beat: _Beat) -> None:
        """The session's operation has ended. Called with the owner's lock held."""
        with self._lock:
            if beat is not self._waits or self._over:
                return  # a heartbeat has come meanwhile, or the session is over
        if isinstance(beat.error, ClosedError):
            return
        if beat.goes_on:
            with suppress(TimerdError):
                self._arm(self._session_timeout)
                return
        with self._lock:
            if self._over:
                return
            self._over, self.error = True, beat.error
        self._expired()


class _Beat(DelayedOperation):
    """The operation that waits for the next heartbeat."""

    def __init__(self, session: DelayedHeartbeat, lock: Lock | None) -> None:
        super().__init__(lock=lock)
        self._session, self._looks = session, 0

    @property
    def goes_on(self) -> bool:
        """Whether the session begins again: another process has sent a heartbeat, or nobody knows whether one came."""
        return self.state is State.COMPLETED or isinstance(self.error, (TimerdUnavailableError, MarkTooOldError))

    def try_complete(self) -> bool:
        self._looks += 1
        return self._looks > 1  # any event on the member's key is a heartbeat

    def on_complete(self) -> None:
        if self.state is State.COMPLETED:
            self._session._ended(self)

    def on_expiration(self) -> None:
        self._session._ended(self)

    def on_error(self) -> None:
        self._session._ended(self)
