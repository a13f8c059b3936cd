"""`connect()`: a client of threads."""

from __future__ import annotations

from timerd_client.link import flows

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
) -> Client:
    """A client of the instance (default: $TIMERD_INSTANCE, else "default"), ready for use.

    `group` is a named set of clients of which one live member is told what is the group's: named calls, and what it has
    adopted. `orphans` says what becomes of this client's operations when its process dies: "cancel", "keep" (they run
    on, and nobody is told) or "group" (its group adopts them). `autostart` starts the instance's daemon if none runs;
    it ends 10 s after its last client. `name` is a label for `timerctl clients`: printable text of at most 32 bytes.
    `runtime_dir` is where the instance is, if not where $TIMERD_RUNTIME_DIR or the usual places say.

    `timeout`, in seconds, waits so long for a daemon to be there and to answer, also for one that nobody has started
    yet. Without it a daemon that runs has 2 s to answer, and where none runs TimerdUnavailableError is raised at once;
    unless one has run within the last 10 s: it may be restarting, so it is waited for 2 s. (Workers that boot beside a
    restart live through it; those that boot before the first start need a `timeout`.) It is about this call alone:
    a client that has connected waits for a daemon that restarts, however long that takes.

    Raises TimerdUnavailableError, PermissionError (this user may not look into the runtime directory),
    InvalidNameError, TimeoutOutOfRangeError, NotAMemberError (orphans="group" without a group).
    """
    search = flows.connect(ThreadedLink, instance, autostart, timeout, group, orphans, name, runtime_dir)
    return Client(drive(search))
