"""Checks that the names of a daemon's files still lead to them: somebody else may remove the names while it runs.

At the end of a user's last session logind removes /run/user/UID with all that is in it, and with RemoveIPC=yes all
shared memory of the user. The daemon and its clients go on, because they have the files open. But no new process finds
the daemon, and with the daemon its operations end. Linux gives no name to a file that has lost its last one, and a copy
would be another file than that of the clients. So the daemon only logs what has happened, and what helps.
"""

from __future__ import annotations

import logging
import os
from typing import Final

from timerd_shm.host.access import user_named
from timerd_shm.host.paths import InstancePaths

from .arena.arena import Arena
from .host.own_file import file_at

LOOK_NS: Final = 30_000_000_000
HELP: Final = (
    "If the user has logged out, it was logind: run the daemon as a system service (systemd/timerd.service), or let "
    "the user stay (`loginctl enable-linger {user}`){also}. Then start this daemon again"
)

log = logging.getLogger("timerd")


class Names:
    """Looks now and then whether the names still lead to the files. Logs a loss once."""

    def __init__(self, arena: Arena, paths: InstancePaths, now_ns: int) -> None:
        """The sockets and NAME.arena exist."""
        self.due_ns = now_ns + LOOK_NS
        self._arena = arena
        self._paths = paths
        self._files = {path: file_at(path) for path in (paths.arena, *paths.sockets)}
        self._arena_is_missed = self._directory_is_missed = False

    def look(self, now_ns: int) -> int:
        """Look if it is time. Returns when it is time again."""
        if now_ns >= self.due_ns:
            self.due_ns = now_ns + LOOK_NS
            if not self._arena_is_missed and not self._arena.is_named():
                self._arena_is_missed = True
                effect = "Its operations go on, and end with this daemon; `timerctl stats` cannot read it"
                _complain(f"the arena {self._arena.location.path}", effect, ", or set RemoveIPC=no in logind.conf")
            missed = [path.name for path, file in self._files.items() if file_at(path) != file]
            if not self._directory_is_missed and missed:
                self._directory_is_missed = True
                _complain(f"{', '.join(missed)} in {self._paths.directory}", "New clients do not find this daemon")
        return self.due_ns


def _complain(what: str, effect: str, also: str = "") -> None:
    remedy = HELP.format(user=user_named(os.geteuid()).split()[-1], also=also)
    log.error("%s: removed by another process, while this daemon runs. %s. %s", what, effect, remedy)
