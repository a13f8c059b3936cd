"""timerd inside a task: a client for each attempt, whose operations become the application's when it ends well.

    def register(batches):                                  # df.mapInArrow(register, schema)
        with timerd_spark.task_client() as client:
            for batch in batches:
                client.register_many(batch["key"].to_pylist(), timeout=30)
                yield batch

What the attempt registers is its own until it ends: if it fails, is cancelled by GeneratorExit (as LIMIT does) or is
killed, its operations are cancelled. When the block ends well, what is pending is committed: it runs on to its
deadline, whatever becomes of the worker. Everything is acknowledged before that. Events that were fired stay fired.

A retried attempt registers the same ids again, and its predecessor's are known as cancelled: give
`if_exists="replace_cancelled"`.
"""

from __future__ import annotations

import contextlib
import os
from types import TracebackType
from typing import TYPE_CHECKING, Final, NamedTuple

from timerd_shm.declare.errors import SessionGoneError, TimerdError
from timerd_shm.declare.limits import CONNECT_TIMEOUT_S, NAME_SIZE_MAX
from timerd_shm.host.paths import INSTANCE_VARIABLE, RUNTIME_DIR_VARIABLE

if TYPE_CHECKING:
    from pyspark import TaskContext

    from timerd_client import Client

DRAIN_TIMEOUT_S: Final = 60.0  # until all that a task has issued is acknowledged, at its end
ABORT_TIMEOUT_S: Final = 1.0


class Sidecar(NamedTuple):
    """How to reach the daemon of a host; made on the driver, and used on the executors."""

    instance: str | None = None
    runtime_dir: str | None = None
    autostart: bool = False

    @classmethod
    def of(cls, instance: str | None, runtime_dir: str | None, autostart: bool) -> Sidecar:
        """Arguments that are not given come from the driver's environment: executors may have another."""
        return cls(
            instance or os.environ.get(INSTANCE_VARIABLE),
            runtime_dir or os.environ.get(RUNTIME_DIR_VARIABLE),
            autostart,
        )

    def connect(self, *, name: str, timeout: float, group: str | None, orphans: str) -> Client:
        """A client of that daemon, on the executor. Raises the errors of connect()."""
        from timerd_client import connect

        return connect(
            self.instance,
            autostart=self.autostart,
            timeout=timeout,
            group=group,
            orphans=orphans,
            name=name,
            runtime_dir=self.runtime_dir,
        )

    def client(self) -> task_client:
        """A client of that daemon for the attempt that runs here."""
        return task_client(self.instance, runtime_dir=self.runtime_dir, autostart=self.autostart)

    def row_client(self) -> row_client:
        """The same for an attempt whose rows report all its operations."""
        return row_client(self.instance, runtime_dir=self.runtime_dir, autostart=self.autostart)


def owner_name() -> str:
    """The name of an attempt, in `timerctl clients` and in the journal: APPLICATION/sSTAGEpPARTITIONaATTEMPTtTASK.

    The application's id is cut from the left where it is too long. Outside a task it is the process.
    """
    context = _context()
    if context is None:
        return f"spark/{os.getpid()}"
    attempt = f"s{context.stageId()}p{context.partitionId()}a{context.attemptNumber()}t{context.taskAttemptId()}"
    application = context.getLocalProperty("spark.app.id") or "spark"
    room = NAME_SIZE_MAX - 1 - len(attempt)
    return f"{application[-room:]}/{attempt}" if room > 0 else attempt[-NAME_SIZE_MAX:]


class task_client:
    """`with task_client() as client:`: a `timerd_client.Client` of the attempt that runs here.

    It is made here and ends here, and is nobody else's: a worker process is used again for other attempts, and so has
    one client at a time. So an operation's owner is its attempt, the end of the block is known to the daemon, and a
    worker that idles, or is reaped, holds nothing back. Outside Spark it is the same for a process.
    """

    def __init__(
        self,
        instance: str | None = None,
        *,
        runtime_dir: str | None = None,
        autostart: bool = False,
        group: str | None = None,
        timeout: float = CONNECT_TIMEOUT_S,
        drain_timeout: float = DRAIN_TIMEOUT_S,
    ) -> None:
        """`group`: its members receive the outcomes of what was committed (`client.outcomes()`); without a group, these
        stand in the journal only. `autostart` starts the host's daemon if none runs. Arguments that are not given are
        those of the environment, here on the executor. Nothing happens before the block begins.
        """
        self._sidecar = Sidecar(instance, runtime_dir, autostart)
        self._group = group
        self._timeout = timeout
        self._drain_timeout = drain_timeout
        self._pid = -1
        self._client: Client | None = None

    def __enter__(self) -> Client:
        """Raises TimerdUnavailableError, and the other errors of connect()."""
        self._client = self._sidecar.connect(
            name=owner_name(), timeout=self._timeout, group=self._group, orphans="cancel"
        )
        self._pid = os.getpid()
        self._maker = self._client._protocol.session.incarnation
        return self._client

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        client = self._client
        if client is None or self._pid != os.getpid():  # a forked child leaves the block: it is the parent's
            return
        if kind is None:
            try:
                self._commit(client)
            except BaseException:
                self._abort(client)
                raise
        else:
            self._abort(client)

    def _commit(self, client: Client) -> None:
        """Give the pending operations to the application, and wait until that is done."""
        client.set_orphans("keep" if self._group is None else "group")
        client.flush(self._drain_timeout)
        if client._protocol.session.incarnation != self._maker:
            raise SessionGoneError(
                "the daemon has lost sight of this attempt, so what it had registered is gone: let Spark retry the task"
            )
        client.close(self._drain_timeout)

    def _abort(self, client: Client) -> None:
        """Cancel the pending operations, and wait for that: a retry may be next. After a death the daemon does it."""
        with contextlib.suppress(TimerdError):
            link = client._link
            with link.lock:
                pending = list(client._protocol.ledger.pending)
            link.withdraw(pending)
            client.close(ABORT_TIMEOUT_S)


class row_client(task_client):
    """The same for an attempt whose rows report how all its operations have settled, also without a daemon.

    It commits nothing, so it does not fail where the daemon is gone: another attempt would do again what was done.
    """

    def _commit(self, client: Client) -> None:
        self._abort(client)


def _context() -> TaskContext | None:
    """The task that runs here, if Spark runs one."""
    try:
        from pyspark import TaskContext
    except ImportError:
        return None
    return TaskContext.get()
