"""timerd inside a task: a client for each attempt. If the attempt ends well, its operations go to the application.

    def register(batches):                                  # df.mapInArrow(register, schema)
        with timerd_spark.task_client() as client:
            for batch in batches:
                client.register_many(batch["key"].to_pylist(), timeout=30)
                yield batch

Until the block ends, operations belong to the attempt. If the attempt fails, is killed, or is closed by GeneratorExit
(LIMIT does this), its operations are cancelled. If the block ends well, everything is acknowledged, and pending
operations are committed: they run on to their deadlines, even if the worker ends. Fired events stay fired.

A retry registers the same ids again, and the daemon knows these ids as cancelled: give `if_exists="replace_cancelled"`.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from types import TracebackType
from typing import TYPE_CHECKING, Final, NamedTuple

from timerd_shm.declare.errors import InvalidValueError, SessionGoneError, TimerdError
from timerd_shm.declare.limits import CONNECT_TIMEOUT_S, NAME_SIZE_MAX
from timerd_shm.host.paths import INSTANCE_VARIABLE
from timerd_shm.host.places import RUNTIME_DIR_VARIABLE
from timerd_spark.durations import duration_ns

if TYPE_CHECKING:
    from pyspark import TaskContext
    from pyspark.sql import DataFrame

    from timerd_client import Client
    from timerd_client.types import OrphanPolicy

DRAIN_TIMEOUT_S: Final = 60.0  # at the end of a block: until the daemon has acknowledged everything
ABORT_TIMEOUT_S: Final = 1.0
# With these settings Spark kills a worker that gives it no rows for some seconds. The session's setting comes first.
KILL_IDLE: Final = ("spark.sql.execution.pyspark.udf.killOnIdleTimeout", "spark.python.worker.killOnIdleTimeout")
IDLE_S: Final = ("spark.sql.execution.pyspark.udf.idleTimeoutSeconds", "spark.python.worker.idleTimeoutSeconds")


class Sidecar(NamedTuple):
    """The arguments to reach the daemon of a host. It is made on the driver and used on the executors."""

    instance: str | None = None
    runtime_dir: str | None = None
    autostart: bool = False

    @classmethod
    def of(cls, instance: str | None, runtime_dir: str | None, autostart: bool) -> Sidecar:
        """Takes missing arguments from the driver's environment, because the executors may have another one."""
        return cls(
            instance or os.environ.get(INSTANCE_VARIABLE),
            runtime_dir or os.environ.get(RUNTIME_DIR_VARIABLE),
            autostart,
        )

    def connect(self, *, name: str, timeout: float, group: str | None, orphans: OrphanPolicy) -> Client:
        """Connect to the daemon of this executor's host. Raises the errors of connect()."""
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
        """A client for the attempt that runs here."""
        return task_client(self.instance, runtime_dir=self.runtime_dir, autostart=self.autostart)

    def row_client(self) -> row_client:
        """A client for an attempt that commits no operations, because its rows have their outcomes."""
        return row_client(self.instance, runtime_dir=self.runtime_dir, autostart=self.autostart)


def owner_name() -> str:
    """The name of this attempt in `timerctl clients` and in the journal: APPLICATION/s3p12a0t145.

    The letters stand for stage, partition, attempt and task. If the name is too long, the application's id loses its
    beginning. Outside a task the name is spark/PID.
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

    The client begins and ends with the block. Spark uses a worker process again for other attempts, and each attempt
    has a client of its own. So an operation's owner is its attempt, the daemon learns of the end of the block, and an
    idle worker holds no operations. Outside Spark, the attempt is the process.
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
        """`group`: its members receive the outcomes of committed operations (`client.outcomes()`). Without a group, the
        journal alone has these outcomes. `autostart` starts the host's daemon if none runs. Missing arguments come from
        the executor's environment. `timeout` bounds the connecting, `drain_timeout` the end of the block; both in
        seconds. Nothing happens before the block begins.
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
        self._maker = self._client.incarnation
        return self._client

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        client = self._client
        if client is None or self._pid != os.getpid():  # in a forked child: the client is the parent's
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
        """Commit the pending operations to the application or the group. Waits for the acknowledgement."""
        client.set_orphans("keep" if self._group is None else "group")
        client.flush(timeout=self._drain_timeout)
        if client.incarnation != self._maker:
            raise SessionGoneError(
                "the daemon has forgotten this attempt, and the attempt's operations are lost: let Spark retry the task"
            )
        client.close(timeout=self._drain_timeout)

    def _abort(self, client: Client) -> None:
        """Cancel the pending operations, and wait: a retry may follow at once. After a kill the daemon cancels them."""
        with contextlib.suppress(TimerdError):
            client.cancel_all()
            client.close(timeout=ABORT_TIMEOUT_S)


class row_client(task_client):
    """A task client that commits nothing, for deliver() and await_events(): their rows have the outcomes.

    It does not fail at its end when the daemon is lost. A failure would make Spark do all rows again.
    """

    def _commit(self, client: Client) -> None:
        self._abort(client)


def warn_of_idle_kill(df: DataFrame, argument: str, timeout_ns: int) -> None:
    """Warn on the driver if Spark would kill a worker whose rows wait for that long, because it seems to be idle."""

    def setting(names: tuple[str, str], default: str) -> str:
        found = (df.sparkSession.conf.get(name, None) for name in names)
        return next((text for text in found if text is not None), default)

    text = setting(IDLE_S, "0")
    try:
        idle_ns = duration_ns("idle", float(text) if text.isdecimal() else text)
    except InvalidValueError:  # a form that only Spark reads, such as "5min"
        return
    if setting(KILL_IDLE, "false").lower() == "true" and 0 < idle_ns < timeout_ns:
        warnings.warn(
            f"{argument} is {timeout_ns / 1e9:g} s, and Spark kills a Python worker that gives it no rows for "
            f"{idle_ns / 1e9:g} s: rows that wait for longer fail with their task. Set {KILL_IDLE[0]} to false, or "
            f"{IDLE_S[0]} to more than the timeout",
            RuntimeWarning,
            stacklevel=3,
        )


def _context() -> TaskContext | None:
    """Spark's task that runs in this process; None if there is none, or no Spark."""
    try:
        from pyspark import TaskContext
    except ImportError:
        return None
    return TaskContext.get()
