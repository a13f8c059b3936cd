"""Finding a daemon: whether one runs, whether one has run lately, and how long to look for it."""

from __future__ import annotations

import math
import time

from timerd_client.transport.lifeline import changing
from timerd_shm.declare.errors import TimerdError, TimerdUnavailableError
from timerd_shm.declare.limits import CONNECT_TIMEOUT_S
from timerd_shm.host import reach
from timerd_shm.host.paths import InstancePaths, daemon_running, instance_name, open_arena_file
from timerd_shm.host.places import places
from timerd_shm.host.search import find_instance
from timerd_shm.host.trust import daemon_user_of
from timerd_shm.read.reader import ArenaReader

from .target import Target

RESTART_S = 10.0  # a daemon that has run within this time may be restarting
LOOK_AGAIN_S = 0.05


class Search:
    """The search for a daemon, for `seconds` (None: without end), or for the default time if the caller stated none."""

    def __init__(self, target: Target, seconds: float | None, *, is_stated: bool) -> None:
        self._target = target
        self._stated = is_stated
        self._seconds = CONNECT_TIMEOUT_S if not is_stated else math.inf if seconds is None else seconds
        self._end = time.monotonic() + self._seconds

    def look(self) -> InstancePaths | None:
        """The instance, if its daemon runs. None: the caller should look again soon.

        Raises TimerdUnavailableError when the time is over, PermissionError if this user may not look.
        """
        try:
            paths, is_running = find(self._target)
        except TimerdUnavailableError as error:
            may_come = self._stated or has_run_lately(self._target)
            self._go_on(may_come, f"{error}, or connect(autostart=True)")
            return None
        except PermissionError:
            if self._stated and time.monotonic() < self._end:
                return None
            raise
        if is_running:
            return paths
        missing = f"the daemon of instance {paths.instance!r} is not running: start it ({paths.command})"
        self._go_on(self._stated or has_run_lately(self._target), missing)
        return None

    def patience(self) -> float:
        """How many seconds to wait for the answer of a daemon that was found.

        A daemon that is found late still has the default time to answer, or `seconds` if that is less. Otherwise a
        daemon that comes at the last moment would have no time.
        """
        least = min(CONNECT_TIMEOUT_S, self._seconds)
        return max(least, self._end - time.monotonic())

    def _go_on(self, waits: bool, missing: str) -> None:
        if waits and time.monotonic() < self._end:
            return
        waited = f"waited {self._seconds:g} s for it" if waits else "connect(timeout=SECONDS) waits for one"
        raise TimerdUnavailableError(f"{missing}; {waited}", in_doubt=False) from None


def find(target: Target) -> tuple[InstancePaths, bool]:
    """The instance, and whether its daemon runs. Raises TimerdUnavailableError, PermissionError, ResourceLimitError."""
    check_reach(target)
    with changing:  # no fork meanwhile: a child would have a copy of the connection that is made here
        paths = find_instance(target.instance, target.runtime_dir, target.daemon_user)
        return paths, daemon_running(paths)


def kept_away(target: Target) -> str:
    """Why a client of this target may not look for its daemon now; empty: it may. A stated directory is always free."""
    return reach.closed_because if target.runtime_dir is None else ""


def check_reach(target: Target) -> None:
    """Raise TimerdUnavailableError if a client of this target may not look for its daemon now."""
    if why := kept_away(target):
        raise TimerdUnavailableError(why, in_doubt=False)


def expected_paths(target: Target) -> InstancePaths:
    """The place of the instance, for messages. If there is no such instance: the first place where it is looked for."""
    try:
        return find(target)[0]
    except (TimerdError, OSError):
        return InstancePaths(places(target.runtime_dir)[0], instance_name(target.instance))


def has_run_lately(target: Target) -> bool:
    """Whether a daemon has run within RESTART_S in one of the places, or is about to serve there.

    The lock file is written when a daemon starts and when it ends. A daemon that was killed has not written the file at
    its end, but its arena has the time of its last turn.
    """
    name, user = instance_name(target.instance), daemon_user_of(target.daemon_user)
    return any(_lately(InstancePaths(place, name, user)) for place in places(target.runtime_dir))


def _lately(paths: InstancePaths) -> bool:
    try:
        paths = paths.judged()
        # An age below 0 means that the clock was set back, or that the arena is of an earlier boot.
        if 0 <= time.time() - paths.lock.stat().st_mtime < RESTART_S:
            return True
        with ArenaReader.from_descriptor(open_arena_file(paths)) as reader:
            return 0 <= time.monotonic_ns() - reader.header().turn_at_ns < RESTART_S * 1e9
    except (TimerdError, OSError):
        return False
