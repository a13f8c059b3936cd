"""Serves an instance: opens what a daemon has, in order, runs its loop, and closes all in the opposite order.

    lock, arena, core, journal, transport, liveness, snapshots, sessions, conductor, loop; NAME.arena last

Nothing is left when a start fails: an arena that nobody ever used goes as well.
"""

from __future__ import annotations

import logging
import os
import stat
from contextlib import ExitStack

from timerd.arena.arena import ATTACHED
from timerd.arena.open import open_or_create
from timerd.clients.liveness import Watches, room_for_watches
from timerd.clients.process import Host
from timerd.clients.sessions import Sessions
from timerd.conductor.loop import Loop
from timerd.conductor.transport import ZmqTransport
from timerd.conductor.turn import Conductor
from timerd.config.config import Config
from timerd.host.group import group_id_of
from timerd.host.lock import InstanceLock
from timerd.host.sd_notify import READY, STOPPING, notify, watchdog_ns
from timerd.journal.writer import open_journal
from timerd_shm.host.paths import InstancePaths, make_instance, write_location

from .clock import SystemClock
from .core import NEVER, Core
from .snapshots import CopyFiles

log = logging.getLogger("timerd")


def serve(config: Config) -> None:
    """Serve an instance until a signal ends it.

    Raises the errors of `__main__.EXITS` before it is ready, and leaves nothing then.
    """
    clock = SystemClock()
    paths = make_instance(config.instance, config.runtime_dir)
    group_id = group_id_of(config.unix_group) if config.unix_group else None
    _ = paths.commands_endpoint, paths.outcomes_endpoint  # too long a path is said before anything is made
    watches_max = room_for_watches(config.clients)  # libzmq ends its process where it may open too few files
    if watches_max < config.clients:
        log.warning(
            "of %d clients the ends of %d only are noticed at once: raise the limit of open files (LimitNOFILE=)",
            config.clients,
            watches_max,
        )
    with ExitStack() as undo:
        # Undone in the opposite order: sockets before the arena, the lock last.
        lock = InstanceLock(paths, group_id)
        undo.callback(lock.release)
        if group_id is not None:
            _open_directory(paths, group_id)
        arena = open_or_create(config, paths, wall_ns=clock.wall_ns(), group_id=group_id)
        undo.callback(arena.close)
        kept = arena.origin == ATTACHED

        def remove() -> None:
            """An arena that nobody ever used goes when the start fails, an ephemeral one always."""
            if config.ephemeral or not kept:
                paths.arena.unlink(missing_ok=True)
                arena.remove()

        undo.callback(remove)
        now_ns = clock.now_ns()
        huge = arena.map_pages()
        pages = f", {huge >> 20:,} MiB of it on huge pages" if huge else ""
        log.info("arena %s: %s: %s%s", arena.origin, arena.location.path, arena.plan.in_words(), pages)
        core = Core(arena.memory, now_ns)
        undo.callback(core.release)
        log.info("attached in %.1f ms, at event %d", (clock.now_ns() - now_ns) / 1e6, core.newest)
        if core.redo_replayed:
            log.warning("an earlier daemon was killed in a transaction of %d words: finished", core.redo_replayed)
        arena.sign(os.getpid(), now_ns)
        undo.callback(arena.sign, 0, 0)
        paths.journal.unlink(missing_ok=True)
        journal = open_journal(config, paths, arena, core, clock, group_id) if config.journal else None
        if journal is not None:
            undo.callback(journal.close)
        transport = ZmqTransport(paths, group_id)
        undo.callback(transport.close)
        liveness = Watches(paths, group_id, watches_max=watches_max)
        undo.callback(liveness.close)

        copies = CopyFiles(arena, paths, group_id)
        undo.callback(copies.remove)
        now_ns = clock.now_ns()
        sessions = Sessions(core, arena.client, Host.here(), liveness, lease_ns=config.lease, now_ns=now_ns)
        conductor = Conductor(
            core,
            transport,
            clock,
            sessions,
            liveness,
            copies=copies,
            pid=os.getpid(),
            now_ns=now_ns,
            journal=journal,
        )
        loop = Loop(conductor, transport, liveness, clock, watchdog_ns=watchdog_ns())
        undo.callback(loop.close)

        def is_over(now_ns: int) -> int:
            """0 when an ephemeral daemon has been idle for long enough, else when to ask again."""
            if not config.ephemeral or sessions.idle_since_ns == NEVER:
                return NEVER
            over_ns = sessions.idle_since_ns + config.idle_exit
            return 0 if now_ns >= over_ns else over_ns

        # Last, because a client that finds this file expects to be answered.
        write_location(paths, arena.location, group_id)
        log.info("ready: instance %s in %s, pid %d", paths.instance, paths.directory, os.getpid())
        notify(READY)
        kept = True
        reason = loop.run(is_over)
        notify(STOPPING)
        log.info("ending: %s; the arena is %s", reason, "removed" if config.ephemeral else "kept")


def _open_directory(paths: InstancePaths, group_id: int) -> None:
    """Let the group into a runtime directory that is ours (0750); another's is as its owner wants it."""
    status = paths.directory.stat()
    if status.st_uid == os.geteuid():
        os.chown(paths.directory, -1, group_id)
        paths.directory.chmod(stat.S_IMODE(status.st_mode) | 0o050)
