"""The threaded client: what `connect()` returns."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Self

from timerd_client.arguments import name_of
from timerd_client.link import flows
from timerd_client.protocol.protocol import LinkState, Statistics
from timerd_client.protocol.session import DEFAULT_PURGATORY
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
        self._purgatories: dict[str, Purgatory] = {DEFAULT_PURGATORY: self}

    def wait_ready(self, timeout: float = CONNECT_TIMEOUT_S) -> None:
        """Wait until the daemon has taken this client; raises its refusal, or TimerdUnavailableError."""
        drive(flows.ready(self._link, timeout))

    @property
    def state(self) -> LinkState:
        """CONNECTING, HELLO, LIVE, LOST or CLOSED."""
        return self._protocol.state

    @property
    def connected(self) -> bool:
        """Whether the daemon was heard of lately: False before the first time, after 3 s without, 2 s after its end."""
        return self._protocol.state is LinkState.LIVE

    def stats(self) -> Statistics:
        """What this client has seen, in numbers: what waits, what was given up, what came too late."""
        with self._link.lock:
            return self._protocol.statistics()

    @property
    def closed(self) -> bool:
        """Whether close() was called, or the process has forked since."""
        return self._link.sealed

    def purgatory(self, name: str, *, timeout: float = CONNECT_TIMEOUT_S) -> Purgatory:
        """The purgatory of that name ([a-z0-9_-]{1,32}), made if it is new; raises InvalidNameError, ArenaFullError."""
        known = self._purgatories.get(name_of("purgatory", name))
        if known is not None:
            return known
        self._answer(self._link.ask_purgatory(name), timeout)
        return self._purgatories.setdefault(name, Purgatory(self._threaded, name))

    def snapshot(self, timeout: float = SNAPSHOT_TIMEOUT_S) -> str:
        """Path of a copy of the arena between two turns (for `timerctl check`), to be opened within 10 s.

        The daemon removes it after that, or before when this client ends; who has opened it keeps it. There is one at a
        time, so another client's is waited for, and 9 times as long as the last one took to make. Raises
        TimerdUnavailableError after `timeout` s, ResourceLimitError if the runtime directory has no room for it.
        """
        reply = self._link.query({"query": "snapshot"})
        if not reply.wait(timeout):
            raise TimerdUnavailableError(
                f"no copy of the arena within {timeout:g} s ({self._link.plight()}): the daemon makes one at a time, "
                "and rests 9 times as long as one takes; try again later, or wait longer"
            )
        return str(reply.get()["path"])

    def ping(self, timeout: float = CONNECT_TIMEOUT_S) -> float:
        """Seconds that a question and its answer took; raises TimerdUnavailableError, at once if the daemon is lost."""
        start_ns = self._link.now_ns()
        self._answer(self._link.query({"query": "ping"}), timeout)
        return (self._link.now_ns() - start_ns) / 1e9

    def set_orphans(self, policy: str) -> int:
        """What becomes of the operations that are pending here when this client ends: "cancel", "keep" or "group".

        How many those are. Later ones have connect()'s policy. Raises NotAMemberError, ClosedError, BackpressureError.
        """
        return drive(flows.set_orphans(self._link, policy))

    def flush(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Wait until everything issued so far has been applied; raises TimerdUnavailableError after `timeout` s.

        Raises SessionGoneError if the daemon has lost sight of this client since the last flush: what it has applied is
        unknown. Raises the refusal (ArenaFullError, QuotaExceededError) if it has refused since the last flush what has
        no operation to settle: `fire`, `advance`, `fail` and their kin, a deadline or policy moved without waiting. All
        say how many commands that were; of several refusals the first is raised, all are in the log.
        """
        self._threaded.may_block()
        drive(flows.flush(self._link, timeout))

    def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Wait until handlers have returned and everything is acknowledged, `timeout` seconds at most, and end.

        Once the handlers have returned, calls in other threads raise ClosedError; what was called before is waited for.
        What this client still waits for goes the way of its orphans policy; its operations here fail with ClosedError.
        Raises TimerdUnavailableError if commands were left unacknowledged, SessionGoneError if that is unknown, and
        what was refused since the last flush(), as that does; the client is closed all the same. At the end of a `with`
        block that raises itself these are logged instead.
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
