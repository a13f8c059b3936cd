"""`connect()`: a client of threads."""

from __future__ import annotations

from timerd_client.link import flows
from timerd_wire.transports import Transport

from .client import Client
from .link import ThreadedLink, drive


def connect(
    instance: str | None = None,
    *,
    autostart: bool = False,
    timeout: float | None = None,
    group: str | None = None,
    orphans: str = "cancel",
    name: str = "",
    runtime_dir: str | None = None,
    transport: Transport | None = None,
) -> Client:
    """A client of the instance (default: $TIMERD_INSTANCE, else "default"), ready for use.

    `group` is a named set of clients. What belongs to the group is delivered to one live member: named calls, and
    operations that the group has adopted. `orphans` says what becomes of this client's operations when its process
    dies: "cancel", "keep" (they run on, and their outcomes go to nobody) or "group" (its group adopts them).
    `autostart` starts the instance's daemon if none runs; it ends 10 s after its last client. `name` is a label for
    `timerctl clients`: printable text of at most 32 bytes. `runtime_dir` is the instance's directory (default:
    $TIMERD_RUNTIME_DIR, else the standard places).

    `transport` is "zeromq", or "unix": packets over one Unix socket, without libzmq and its thread. That is quicker for
    who waits, and costs less at up to some 10,000 operations a second (default: $TIMERD_TRANSPORT, else "zeromq").

    With a `timeout`, in seconds, connect() waits so long for a daemon to run and to answer, even if none was ever
    started. A daemon that comes late has 2 s to answer all the same, or `timeout` if that is less. Without a `timeout`,
    a running daemon has 2 s to answer. If none runs, TimerdUnavailableError is raised at once, or after 2 s if one has
    run within the last 10 s, because it may be restarting. (So workers that boot during a restart connect; workers that
    boot before the first start need a `timeout`.) The `timeout` is for this call alone: a connected client waits for a
    daemon that restarts, however long that takes.

    Raises TimerdUnavailableError, PermissionError (this user may not look into the runtime directory),
    InvalidNameError, TimeoutOutOfRangeError, InvalidValueError, NotAMemberError (orphans="group" without a group),
    ResourceLimitError (no file can be opened, or the path of the instance's sockets is too long).
    """
    search = flows.connect(ThreadedLink, instance, autostart, timeout, group, orphans, name, runtime_dir, transport)
    return Client(drive(search))
