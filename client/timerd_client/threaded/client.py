"""The threaded client: what `connect()` returns."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Self

from timerd_client.arguments import name_of, patience_of
from timerd_client.link import flows
from timerd_client.protocol.session import DEFAULT_PURGATORY
from timerd_client.protocol.state import LinkState
from timerd_client.protocol.statistics import Statistics
from timerd_shm.declare.errors import TimerdError, TimerdUnavailableError
from timerd_shm.declare.limits import CLOSE_TIMEOUT_S, CONNECT_TIMEOUT_S, SNAPSHOT_TIMEOUT_S

from .link import ThreadedLink, drive
from .member import Member
from .purgatory import Purgatory

if TYPE_CHECKING:
    pass


class Client(Purgatory, Member):
    """A connection to a daemon, from `connect()`; also its purgatory "default". A context manager."""

    def __init__(self, link: ThreadedLink) -> None:
        super().__init__(link, DEFAULT_PURGATORY)
        self._join(link)
        self._use = link.use()
        self._purgatories: dict[str, Purgatory] = {}  # not this one: it would keep itself

    def wait_ready(self, timeout: float = CONNECT_TIMEOUT_S) -> None:
        """Wait until the daemon has accepted this client. Raises its refusal, or TimerdUnavailableError."""
        drive(flows.ready(self._link, timeout))

    @property
    def state(self) -> LinkState:
        """CONNECTING, HELLO, LIVE, LOST or CLOSED."""
        return self._protocol.state

    @property
    def connected(self) -> bool:
        """Whether the daemon is there: False before its first frame, after 3 s without one, and 2 s after its end."""
        return self._protocol.state is LinkState.LIVE

    def stats(self) -> Statistics:
        """The counters of this client: pending operations, operations given up, late outcomes, and more."""
        with self._link.lock:
            return self._protocol.statistics()

    @property
    def closed(self) -> bool:
        """Whether close() was called, or this process is a fork of the one that made the client."""
        return self._link.sealed

    def purgatory(self, name: str, *, timeout: float = CONNECT_TIMEOUT_S) -> Purgatory:
        """The purgatory of a name ([a-z0-9_-]{1,32}), made if it is new. Raises InvalidNameError, ArenaFullError."""
        if name_of("purgatory", name) == DEFAULT_PURGATORY:
            return self
        known = self._purgatories.get(name)
        if known is not None:
            return known
        self._answer(self._link.ask_purgatory(name), timeout)
        made = self._purgatories.setdefault(name, Purgatory(self._threaded, name))
        made._use = self._use
        return made

    def snapshot(self, timeout: float = SNAPSHOT_TIMEOUT_S) -> str:
        """Path of a copy of the arena between two turns (for `timerctl check`), which was begun after the call.

        Open it at once. The daemon removes it after 10 s, after 1 s if somebody waits for the next copy, and when this
        client ends before. A process that has opened it keeps it. There is one copy at a time, for all who wait for
        it, and then a pause of 9 times the CPU time of the copying. So the call may wait for its turn. Raises
        TimerdUnavailableError after `timeout` s, TimeoutOutOfRangeError, and ResourceLimitError if no copy can be made:
        the runtime directory has no room, or turns change the arena faster than it is copied.
        """
        patience = patience_of(timeout)
        patience_s = SNAPSHOT_TIMEOUT_S if patience is None else patience
        reply = self._link.query({"query": "snapshot"})
        if not reply.wait(patience_s):
            raise TimerdUnavailableError(
                f"no copy of the arena within {patience_s:g} s ({self._link.plight()}): the daemon makes one at a "
                "time, and rests 9 times the CPU time that one takes; try again later, or wait longer"
            )
        return str(reply.get()["path"])

    def ping(self, timeout: float = CONNECT_TIMEOUT_S) -> float:
        """Ask the daemon, and return how many seconds it took. Raises TimerdUnavailableError, at once if it is lost."""
        start_ns = self._link.now_ns()
        self._answer(self._link.query({"query": "ping"}), timeout)
        return (self._link.now_ns() - start_ns) / 1e9

    def set_orphans(self, policy: str) -> int:
        """Set what becomes of the pending operations when this client ends: "cancel", "keep" or "group".

        Returns how many they are. Later registrations have the policy of connect(). Raises NotAMemberError,
        ClosedError, BackpressureError.
        """
        return drive(flows.set_orphans(self._link, policy))

    def flush(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Wait until everything issued so far has been applied. Raises TimerdUnavailableError after `timeout` s.

        Raises SessionGoneError if the daemon has forgotten this client since the last flush: it is then unknown what
        was applied. Raises a refusal (ArenaFullError, QuotaExceededError) of a command that has no operation to settle:
        `fire`, `advance`, `fail` and the like, or a deadline or policy that was changed without waiting. Each error
        says how many commands were concerned. Of several refusals the first is raised, and the log has all.
        """
        self._threaded.may_block()
        drive(flows.flush(self._link, timeout))

    def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Wait until handlers have returned and everything is acknowledged, `timeout` seconds at most, and end.

        Once the handlers have returned, calls in other threads raise ClosedError; earlier calls are waited for. Pending
        operations follow the orphans policy at the daemon, and fail here with ClosedError. Raises
        TimerdUnavailableError if commands were left unacknowledged, SessionGoneError if that is unknown, and refusals
        as flush() does. The client is closed all the same. At the end of a `with` block that raises an error, these
        errors are logged instead.
        """
        if self._link.closed:
            return
        drive(flows.close(self._link, timeout))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except TimerdError as failure:
            if error is None:
                raise
            self._link.complain_of_close(failure, error)

    def __repr__(self) -> str:
        return f"<Client of {self._link.paths.instance!r} {self.state.value}>"
