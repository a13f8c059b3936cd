"""The threaded client: `Client()`, which connects at its first use, and `connect()`, which waits for the daemon."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self, Unpack

from timerd_client.arguments import name_of, patience_s, within
from timerd_client.declared import CLIENT, ClientArguments
from timerd_client.discovery.target import Target, target_of
from timerd_client.link import flows
from timerd_client.link.lazy import CommonClient, Lazy
from timerd_client.link.operation import ThreadedOperation
from timerd_client.link.questions import copy_of, name_purgatory, query
from timerd_client.protocol.session import DEFAULT_PURGATORY
from timerd_client.types import Key, OrphanPolicy, Patience, Payload
from timerd_shm.declare.errors import TimerdError, TimerdUnavailableError
from timerd_shm.declare.limits import CLOSE_TIMEOUT_S, CONNECT_TIMEOUT_S, SNAPSHOT_TIMEOUT_S

from .link import ThreadedLink, drive
from .member import Member
from .purgatory import Purgatory


class Client(CommonClient[ThreadedLink], Purgatory, Member):
    """A client of one instance's daemon; also its purgatory "default". A context manager.

    Making it needs no daemon. It opens files and starts a thread at its first use, and again in a forked child.
    `register`, `fire` and the like are kept until there is a daemon. Calls that wait raise TimerdUnavailableError if
    there is none. Any thread may use it. It cannot be pickled. A client that is dropped ends when none of its
    operations is pending.
    """

    @staticmethod
    def _lazy_to(target: Target, link: ThreadedLink | None = None) -> Lazy[ThreadedLink]:
        return Lazy(target, ThreadedLink, link)

    def _take(self, lazy: Lazy[ThreadedLink]) -> None:
        self._purgatories: dict[str, Purgatory] = {}  # without "default": the client would refer to itself
        Purgatory.__init__(self, lazy, DEFAULT_PURGATORY, ThreadedOperation)

    def _bind(self, link: ThreadedLink) -> ThreadedLink:
        self._join(link)
        return super()._bind(link)

    def ready(self, *, timeout: Patience = CONNECT_TIMEOUT_S) -> None:
        drive(flows.ready(self._live(), timeout))

    def purgatory(self, name: str, *, timeout: Patience = CONNECT_TIMEOUT_S) -> Purgatory:
        if name_of("purgatory", name) == DEFAULT_PURGATORY:
            return self
        patience_s(timeout)
        known = self._purgatories.get(name)
        if known is None:
            reply = name_purgatory(self._live(), name)
            if reply is not None:
                reply.answer_in_time(timeout)
            self._lazy.purgatories.append(name)
            known = self._purgatories.setdefault(name, Purgatory(self._lazy, name, ThreadedOperation))
        return known

    def snapshot(self, *, timeout: Patience = SNAPSHOT_TIMEOUT_S) -> str:
        """Path of a copy of the arena as it was between two turns, for `timerctl check`. Copying begins after the call.

        Open the copy at once. The daemon removes it when this client ends, at the latest after 10 s (1 s if somebody
        waits for the next copy). A process that has opened it keeps it. The daemon makes one copy at a time, for all
        callers that wait for it. Then it pauses for 9 times the CPU time of the copying. So the call may have to wait
        for another caller's copy and for the pause.
        Raises TimerdUnavailableError after `timeout` s, TimeoutOutOfRangeError, and ResourceLimitError if no copy can
        be made: the runtime directory has no room, or turns change the arena faster than it is copied.
        """
        connection = self._live().connection
        reply = query(self._live(), {"query": "snapshot"})
        if not reply._wait(timeout):
            raise TimerdUnavailableError(
                f"no copy of the arena {within(timeout)} ({connection.status()}): the daemon makes one "
                "at a time, and then pauses for 9 times the CPU time of the copying; try again later, or wait longer"
            )
        return str(copy_of(connection.paths, reply.get()))

    def ping(self, *, timeout: Patience = CONNECT_TIMEOUT_S) -> float:
        link = self._live()
        start_ns = link.now_ns()
        query(link, {"query": "ping"}).answer_in_time(timeout)
        return (link.now_ns() - start_ns) / 1e9

    def fire_together_wait(
        self, events: Sequence[tuple[Purgatory, Key, Payload]], *, timeout: Patience = CLOSE_TIMEOUT_S
    ) -> list[int]:
        return drive(flows.fire_together(self._live(), events, timeout))

    def set_orphans(self, policy: OrphanPolicy) -> None:
        drive(flows.set_orphans(self._live(), policy))

    def flush(self, *, timeout: Patience = CLOSE_TIMEOUT_S) -> None:
        link = self._live()
        link.waiters.may_block()
        drive(flows.flush(link, timeout))

    def close(self, *, timeout: Patience = CLOSE_TIMEOUT_S) -> None:
        drive(flows.close(self._lazy, timeout))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except TimerdError as failure:
            self._close_has_raised(failure, error)


@CLIENT.shown
def connect(instance: str | None = None, *, timeout: Patience = None, **arguments: Unpack[ClientArguments]) -> Client:
    """A client that the daemon has accepted; the arguments are those of `Client`, and how long to wait.

    With a `timeout`, in seconds, connect() waits up to that time for a daemon to run and to answer, even if none was
    ever started. A daemon that comes late still has 2 s to answer, or `timeout` if that is less. Without a `timeout`, a
    running daemon has 2 s to answer. If none runs, TimerdUnavailableError is raised at once, or after 2 s if one has
    run within the last 10 s, because it may be restarting. (So workers that boot during a restart connect; workers that
    boot before the first start need a `timeout`, or a `Client()`, which connects when the daemon is there.) The
    `timeout` is for this call alone: a connected client waits for a daemon that restarts, however long that takes.

    Raises TimerdUnavailableError, PermissionError (this user may not look into the runtime directory),
    ResourceLimitError (no file can be opened, or the path of the instance's sockets is too long),
    TimeoutOutOfRangeError, and the errors of `Client`.
    """
    client = Client._over(None, target_of("connect", instance, arguments))
    client._bind(drive(flows.connect(client._lazy, timeout)))
    return client
