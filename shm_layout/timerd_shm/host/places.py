"""The places of a user: the directories that may hold an instance, in one order for every process of the user.

    $TIMERD_RUNTIME_DIR, or a directory that is given    if there is one, it is the only place
    /run/timerd                                          a service of the machine
    /run/user/UID/timerd                                 the user's own; logind makes /run/user/UID at a login
    /tmp/timerd-UID                                      the user's own, also without a login: cron, su, a service

No other variable counts, neither XDG_RUNTIME_DIR nor TMPDIR: a cron job has the places of a login session. UID is the
effective user at this moment. So a worker that root has started, and that has changed its user, looks in the places of
its new user.
"""

from __future__ import annotations

import os
from pathlib import Path

RUNTIME_DIR_VARIABLE = "TIMERD_RUNTIME_DIR"
SYSTEM_PLACE = Path("/run/timerd")
SESSIONS = Path("/run/user")
TEMPORARY = Path("/tmp")
OTHER_PLACE = f"choose another directory ({RUNTIME_DIR_VARIABLE}, or --runtime-dir of timerd)"


def places(directory: str | None = None) -> tuple[Path, ...]:
    """The places of this process, in order, absolute. `directory`, if given, is the only one."""
    if only := directory or os.environ.get(RUNTIME_DIR_VARIABLE):
        return (Path(os.path.abspath(only)),)
    return (SYSTEM_PLACE, *own_places())


def own_places() -> tuple[Path, ...]:
    """The places that are this user's own: first that of a login, then the one that is always there."""
    uid = os.geteuid()
    return SESSIONS / str(uid) / "timerd", TEMPORARY / f"timerd-{uid}"
