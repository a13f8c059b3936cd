"""The sockets of a client whose daemon does not run yet. They send nothing, and look for the daemon.

    client = td.Client()           # no daemon runs
    client.fire("inbox/7")         # is kept
    $ timerd                       # a moment later, the client has found it and sends

The daemon is looked for in all places (timerd_shm/host/places.py), because nobody knows where it will start. When it
runs, `found` has the real sockets, and the link moves to them (link/connection.py, `_move`).
"""

from __future__ import annotations

import errno
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from timerd_client.protocol.deadlines import NEVER
from timerd_client.transport.make import make_sockets
from timerd_client.transport.sockets import Held, Sockets
from timerd_shm.declare.errors import ResourceLimitError, TimerdError
from timerd_shm.declare.limits import PACKET_SIZE_MAX
from timerd_shm.host.access import in_words
from timerd_shm.host.paths import InstancePaths, open_arena_file
from timerd_shm.read.reader import ArenaReader
from timerd_wire.native import Thread

from .autostart import start_daemon
from .find_daemon import expected_paths, find, has_run_lately, kept_away
from .target import Target

LOOK_FIRST_NS: Final = 20_000_000
LOOK_LAST_NS: Final = 500_000_000  # the pauses double up to this


class NoLifeline:
    """Stands for the lifeline, the connection to NAME.live, while there is no daemon."""

    def fileno(self) -> int:
        return -1

    def is_held(self, session: bytes) -> bool:
        return True

    def hold(self, session: bytes, now_ns: int) -> bool:
        return False

    def has_ended(self, now_ns: int) -> bool:
        return False

    def let_go(self) -> None:
        pass


class LateSockets:
    """Sockets without a daemon, until `found` has real ones."""

    frame_size_max: int = PACKET_SIZE_MAX
    wake_ns: int = 0

    def __init__(self, target: Target, now_ns: int) -> None:
        self.lifeline: Held = NoLifeline()
        self.paths = expected_paths(target)
        self.found: Sockets | None = None
        self.due_ns = now_ns
        self._target = target
        self._pause_ns = LOOK_FIRST_NS
        self._looked_ns = now_ns
        self.is_hopeless = False  # do not wait: at the last look no daemon ran, and none is about to start
        self._trouble = ""
        self._starter: Thread | None = None
        self._start_failed = ""  # why the daemon could not be started here: the start is not tried again
        self.kept_away = kept_away(target)  # why these sockets never look; a client that needs a daemon makes others
        if self.kept_away:
            self._trouble, self.is_hopeless, self.due_ns = self.kept_away, True, NEVER

    def tend(self, now_ns: int) -> bool:
        """Look whether the daemon runs. With `autostart`, begin to start it."""
        if self.found is None and not self.kept_away:
            self._tend(now_ns)
        return False

    def lost(self, now_ns: int) -> bool:
        return False

    def _tend(self, now_ns: int) -> None:
        self._looked_ns = now_ns
        self.due_ns = now_ns + self._pause_ns
        self._pause_ns = min(2 * self._pause_ns, LOOK_LAST_NS)
        try:
            with files_named():
                self._look()
        except (TimerdError, OSError) as error:
            self._trouble = self._start_failed or text_of(error)
            # After an OSError a restart does not help: it does not change what this user may open.
            self.is_hopeless = not (self._may_be_started() if isinstance(error, OSError) else self._may_come())
        if self.found is not None:
            self.due_ns = NEVER
        elif self._target.autostart and self._starter is None:
            self._starter = Thread(self._start, "timerd-autostart")
            try:
                self._starter.start()
            except RuntimeError:  # main has ended, so no thread can begin
                self._start()

    def _look(self) -> None:
        paths, is_running = find(self._target)
        if not is_running:
            self._trouble = self._start_failed or (
                f"the daemon of instance {paths.instance!r} is not running: start it ({paths.command})"
            )
            self.is_hopeless = not self._may_come()
            return
        self._trouble = ""
        self.found = make_sockets(self._target.transport, paths)
        self.paths = paths

    def _may_come(self) -> bool:
        """Whether a daemon is being started, or may be restarting."""
        return self._may_be_started() or has_run_lately(self._target)

    def _may_be_started(self) -> bool:
        return self._target.autostart and not self._start_failed

    def look_again(self, trouble: str) -> None:
        """Close the sockets that were found, because they could not be used, and look again later."""
        if self.found is not None:
            self.found.close(linger=False)
        self.found, self._trouble = None, trouble
        self.due_ns = self._looked_ns + self._pause_ns

    def _start(self) -> None:
        try:
            start_daemon(self._target)
        except (TimerdError, OSError) as error:
            self._start_failed = self._trouble = text_of(error)
            self.is_hopeless = True
        else:
            self._starter = None

    def trouble(self) -> str:
        return self._trouble

    def hopeless(self) -> str:
        """The trouble, with what the caller can do about it."""
        if self._target.autostart or self.kept_away:
            return self._trouble
        return f"{self._trouble}, or make the client with autostart=True"

    def send(self, frame: bytes) -> bool:
        return False

    def has_answer(self) -> bool:
        return False

    def subscribe(self, session: bytes) -> None:
        pass

    def receive(self, *, published: bool) -> bytes | None:
        return None

    def has_room(self) -> bool:
        return False

    def filenos(self) -> list[int]:
        return []

    def sources(self, descriptor: int) -> tuple[bool, ...]:
        return ()

    def map_arena(self) -> ArenaReader:
        """The arena that a daemon has left. The next daemon may go on with it. Raises TimerdError, OSError."""
        return map_arena(find(self._target)[0])

    def forked(self) -> None:
        if self.found is not None:
            self.found.forked()

    def close(self, *, linger: bool) -> None:
        self.due_ns = NEVER
        if self.found is not None:
            self.found.close(linger=linger)


def text_of(error: Exception) -> str:
    """The message of an error. For an error of the system, the message names the file."""
    return in_words(error) if isinstance(error, OSError) else str(error)


def map_arena(paths: InstancePaths) -> ArenaReader:
    """Map the arena of an instance. Raises TimerdError, OSError."""
    return ArenaReader.from_descriptor(open_arena_file(paths))


@contextmanager
def files_named() -> Iterator[None]:
    """If no file can be opened in this block, raise ResourceLimitError, which names the limit."""
    try:
        yield
    except Exception as error:  # not only OSError: a ZMQError has an errno, too
        if getattr(error, "errno", None) not in (errno.EMFILE, errno.ENFILE):
            raise
        most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        raise ResourceLimitError(
            f"no file can be opened for a client: close some, or raise the limit. {most} files may be open in this "
            f"process (ulimit -n); fs.file-max is the limit of all processes"
        ) from error
