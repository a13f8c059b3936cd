"""Serves an instance: opens the parts of a daemon in order, runs its loop, and closes all in the opposite order.

    lock, arena, core, journal, liveness, transport, copies, sessions, conductor, loop; NAME.arena last

A start that fails leaves nothing: it also removes an arena that no daemon had used before.
"""

from __future__ import annotations

import gc
import logging
import os
import stat
from collections.abc import Callable
from contextlib import ExitStack

from timerd.arena.arena import ATTACHED, Arena
from timerd.arena.open import open_or_create
from timerd.clients.liveness import Watches
from timerd.clients.process import Host
from timerd.clients.sessions import Sessions
from timerd.conductor.loop import Loop
from timerd.conductor.transport import SocketTransport
from timerd.conductor.turn import Conductor
from timerd.config.config import Config
from timerd.host.budget import Budget
from timerd.host.descriptors import Descriptors, divide
from timerd.host.group import change_group
from timerd.host.lock import InstanceLock
from timerd.host.malloc import return_large_blocks, trim
from timerd.host.own_file import File, file_at, in_the_way, remove_own, remove_stale
from timerd.host.selector import Selector
from timerd.journal.writer import Journal, open_journal
from timerd.sd_notify import READY, STOPPING, notify, watchdog_ns
from timerd_shm.declare.errors import ErrorCode
from timerd_shm.host.paths import InstancePaths, write_location
from timerd_shm.host.search import make_instance, refuse_second

from .clock import SystemClock
from .core import NEVER, Core
from .names import Names
from .snapshots import CopyFiles

log = logging.getLogger("timerd")


def serve(config: Config, group_id: int | None) -> None:
    """Serve an instance until a signal ends it. Users in the unix group `group_id` may connect; None: this user alone.

    Raises the errors of `__main__.EXITS` before it is ready, and leaves nothing then.
    """
    refuse_second(config.instance, config.runtime_dir)
    paths = make_instance(config.instance, config.runtime_dir)
    # Too long a path is refused before anything is made.
    _ = paths.commands_endpoint, paths.outcomes_endpoint
    descriptors = _descriptors(config)
    with ExitStack() as undo:
        # Undone in the opposite order: sockets before the arena, the lock last.
        start = _Start(config, paths, group_id, undo)
        arena = start.open_arena()
        core = start.attach(arena)
        journal = start.open_journal(arena, core)
        clients_max = arena.header().quota_clients
        selector = Selector()
        undo.callback(selector.close)
        connections_max = descriptors.connections
        liveness = Watches(paths, selector, group_id, watches_max=descriptors.watches)
        undo.callback(liveness.close)
        return_large_blocks()
        budget = Budget(config.frame_memory, trim)
        transport = SocketTransport(
            paths, selector, liveness, group_id, clients_max=clients_max, connections_max=connections_max, budget=budget
        )
        undo.callback(transport.close)
        copies = CopyFiles(core, arena, paths, group_id)
        undo.callback(copies.close)

        clock, now_ns = start.clock, start.clock.now_ns()
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
        loop = Loop(conductor, transport, selector, clock, watchdog_ns=watchdog_ns())
        undo.callback(loop.close)

        # A full collection of Python's garbage comes in the middle of a turn. Modules and code are 24,000 objects, and
        # to visit them takes 4 ms, or more where they are in no cache. A collection does not visit what is frozen.
        gc.collect()
        gc.freeze()
        undo.callback(gc.unfreeze)

        # Last, because a client that finds this file expects to be answered.
        try:
            write_location(paths, arena.location, group_id)
        except OSError as error:
            raise in_the_way("the file", paths.arena, error) from None
        start.location_file = file_at(paths.arena)
        names = Names(arena, paths, clock.now_ns())
        log.info("ready: instance %s in %s, pid %d", paths.instance, paths.directory, os.getpid())
        notify(READY)
        start.keeps_arena = not config.ephemeral
        reason = loop.run(_between_turns(config, sessions, names))
        notify(STOPPING)
        log.info("ending: %s; the arena is %s", reason, "kept" if start.keeps_arena else "removed")


class _Start:
    """The steps of a start that need an explanation. Each step also registers how to undo it."""

    def __init__(self, config: Config, paths: InstancePaths, group_id: int | None, undo: ExitStack) -> None:
        """Take the instance's lock, and let the group into the directory."""
        self.clock = SystemClock()
        self.keeps_arena = False  # whether the arena stays when all is undone
        self.location_file: File | None = None  # NAME.arena, as soon as this daemon has written it
        self._config = config
        self._paths = paths
        self._group_id = group_id
        self._undo = undo
        undo.callback(InstanceLock(paths).release)
        if group_id is not None:
            _open_directory(paths, group_id)

    def open_arena(self) -> Arena:
        """Open the arena, or make it, with its pages mapped."""
        arena = open_or_create(self._config, self._paths, wall_ns=self.clock.wall_ns(), group_id=self._group_id)
        self._undo.callback(arena.close)
        self.keeps_arena = arena.origin == ATTACHED and not self._config.ephemeral
        self._undo.callback(self._remove_unless_kept, arena)
        return arena

    def attach(self, arena: Arena) -> Core:
        """The core on this arena. It finishes the transaction of a killed daemon, and rebuilds derived fields."""
        now_ns = self.clock.now_ns()
        huge = arena.map_pages()
        pages = f", {huge >> 20:,} MiB of it on huge pages" if huge else ""
        log.info("arena %s: %s: %s%s", arena.origin, arena.location.path, arena.plan.in_words(), pages)
        was_cut = arena.header().seed_check == 0  # an earlier start was killed while it made the hashes anew
        core = Core(arena.memory, now_ns, arena.seed)
        self._undo.callback(core.release)
        log.info("attached in %.1f ms, at event %d", (self.clock.now_ns() - now_ns) / 1e6, core.newest)
        if core.redo_replayed:
            log.warning("an earlier daemon was killed in a transaction of %d words: finished", core.redo_replayed)
        if core.rehashed and arena.origin == ATTACHED:
            why = arena.seed_lost or ("was used by a start that was killed" if was_cut else "was of another arena")
            why += ": the hashes were made anew"
            # In the arena's log as well, for `timerctl errors`: the file's name fits there, but a whole path may not.
            text = f"{arena.location.seed.name} {why}"
            core.log_error(ErrorCode.RESOURCE_LIMIT, text.encode(), self.clock.wall_ns())
            log.warning("%s %s, and marks before event %d are too old", arena.location.seed, why, arena.header().tail)
        arena.sign(os.getpid(), now_ns)
        self._undo.callback(arena.sign, 0, 0)
        return core

    def open_journal(self, arena: Arena, core: Core) -> Journal | None:
        """The journal, if one is configured. A link to an earlier daemon's journal is removed in any case."""
        remove_stale("the link to the journal", self._paths.journal)
        if not self._config.journal:
            return None
        journal = open_journal(self._config, self._paths, arena, core, self.clock, self._group_id)
        self._undo.callback(journal.close)
        return journal

    def _remove_unless_kept(self, arena: Arena) -> None:
        """Remove an ephemeral arena; and if the start fails, an arena that no daemon ever used."""
        if not self.keeps_arena:
            remove_own(self._paths.arena, self.location_file)
            arena.remove()


def _descriptors(config: Config) -> Descriptors:
    """The division of the open files. If it is too small to watch the ends of all clients, that is logged."""
    descriptors = divide(config.clients)
    if descriptors.watches < config.clients:
        log.warning(
            "of %d clients, the ends of only %d are noticed at once: raise the limit of open files (LimitNOFILE=)",
            config.clients,
            descriptors.watches,
        )
    return descriptors


def _between_turns(config: Config, sessions: Sessions, names: Names) -> Callable[[int], int]:
    """For Loop.run(): 0 when an ephemeral daemon has been idle for long enough, else when to ask again."""

    def is_over(now_ns: int) -> int:
        look_ns = names.look(now_ns)
        if not config.ephemeral or sessions.idle_since_ns == NEVER:
            return look_ns
        over_ns = sessions.idle_since_ns + config.idle_exit
        return 0 if now_ns >= over_ns else min(over_ns, look_ns)

    return is_over


def _open_directory(paths: InstancePaths, group_id: int) -> None:
    """Let the group into the runtime directory (0750), if it is ours. A directory of another user stays as it is."""
    status = paths.directory.stat()
    if status.st_uid == os.geteuid():
        change_group(paths.directory, group_id)
        paths.directory.chmod(stat.S_IMODE(status.st_mode) | 0o050)
