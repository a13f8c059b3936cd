"""The command `timerd`: reads the configuration, opens the arena and the sockets, and runs until it is told to end."""

from __future__ import annotations

import logging
import os
import stat
import sys
from collections.abc import Sequence
from contextlib import ExitStack

from timerd.arena.arena import ATTACHED, ArenaPlan, group_id_of, open_or_create, plan_of
from timerd.config.config import Config, read_command_line
from timerd.host.lock import InstanceLock
from timerd.host.sd_notify import READY, STOPPING, notify, watchdog_ns
from timerd_shm.declare.errors import (
    ArenaDamagedError,
    ArenaNotReadyError,
    ArenaTruncatedError,
    InstanceRunningError,
    InvalidConfigError,
    InvalidNameError,
    LayoutMismatchError,
    ResourceLimitError,
    TimerdError,
)
from timerd_shm.host.paths import InstancePaths, make_instance, write_place

from .clock import SystemClock

EXIT_CONFIG, EXIT_RUNNING, EXIT_RESOURCES, EXIT_ARENA = 2, 3, 4, 5  # described in config.EXIT_STATUSES
EXITS: dict[type[TimerdError], int] = {
    InvalidConfigError: EXIT_CONFIG,
    InvalidNameError: EXIT_CONFIG,
    InstanceRunningError: EXIT_RUNNING,
    ResourceLimitError: EXIT_RESOURCES,
    LayoutMismatchError: EXIT_ARENA,
    ArenaTruncatedError: EXIT_ARENA,
    ArenaNotReadyError: EXIT_ARENA,
    ArenaDamagedError: EXIT_ARENA,
}

log = logging.getLogger("timerd")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the daemon; the exit status (see `timerd --help`)."""
    if not __debug__:
        print("timerd: python -O switches off the checks that guard the arena: start without it", file=sys.stderr)
        return EXIT_CONFIG
    try:
        settings, show_config, as_json = read_command_line(sys.argv[1:] if arguments is None else arguments)
        if show_config:
            _ask_the_machine(settings.config)
            for warning in settings.warnings:
                print(f"timerd: {warning}", file=sys.stderr)
            return _show(
                settings.as_json() if as_json else f"{settings.table()}\n\n{memory_of(plan_of(settings.config))}"
            )
        _set_up_logging(settings.config.log_level)
        for warning in settings.warnings:
            log.warning("%s", warning)
        serve(settings.config)
    except TimerdError as error:
        print(f"timerd: {error}", file=sys.stderr)
        return EXITS.get(type(error), 1)
    return 0


def _show(text: str) -> int:
    """Print it; the exit status."""
    try:
        print(text, flush=True)
        return 0
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python tries it again at its end
        if isinstance(error, BrokenPipeError):  # whoever read it has had enough (`timerd --show-config | head -1`)
            return 0
        print(f"timerd: what was to be shown cannot be written: {error.strerror}", file=sys.stderr)
        return EXIT_RESOURCES


def _ask_the_machine(config: Config) -> None:
    """What of a configuration only this machine knows to be wrong, without making anything. Raises as serve() does."""
    paths = make_instance(config.instance, config.runtime_dir, look_only=True)
    _ = paths.commands_endpoint, paths.outcomes_endpoint
    if config.unix_group:
        group_id_of(config.unix_group)
    if config.arena_file and not os.access(os.path.dirname(os.path.abspath(config.arena_file)), os.W_OK | os.X_OK):
        raise ResourceLimitError(f"the arena {config.arena_file} cannot be opened: its directory may not be written")
    if config.journal:
        directory = os.path.abspath(config.journal)
        if not os.access(directory if os.path.isdir(directory) else os.path.dirname(directory), os.W_OK | os.X_OK):
            raise ResourceLimitError(f"the journal's directory {directory} cannot be made, or may not be written")


def memory_of(plan: ArenaPlan) -> str:
    """What an arena takes, in a sentence."""
    size = plan.size / (1 << 20)
    return f"an arena of {plan.capacity:,} operations takes {size:,.0f} MiB of memory, all of it from the start"


def serve(config: Config) -> None:
    """Serve an instance until a signal ends it. Raises the errors of EXITS before it is ready, and leaves nothing."""
    # Here, not above: --help, --show-config and a wrong flag need no compiled core.
    from timerd.clients.liveness import Watches, room_for_watches
    from timerd.clients.sessions import Host, Sessions
    from timerd.conductor.loop import Loop
    from timerd.conductor.transport import ZmqTransport
    from timerd.conductor.turn import Conductor
    from timerd.journal.writer import open_journal

    from .core import NEVER, Core
    from .snapshots import CopyFiles

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
        kept = arena.news == ATTACHED

        def remove() -> None:
            """An arena that nobody ever used goes when the start fails, an ephemeral one always."""
            if config.ephemeral or not kept:
                paths.arena.unlink(missing_ok=True)
                arena.remove()

        undo.callback(remove)
        now_ns = clock.now_ns()
        huge = arena.map_pages()
        pages = f", {huge >> 20:,} MiB of it on huge pages" if huge else ""
        log.info("arena %s: %s: %s%s", arena.news, arena.place.path, memory_of(arena.plan), pages)
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
        write_place(paths, arena.place, group_id)
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


def _set_up_logging(level: str) -> None:
    """One line a fact on stderr; systemd's journal adds the time itself."""
    in_journal = "JOURNAL_STREAM" in os.environ
    logging.basicConfig(
        level=level.upper(),
        format="%(levelname)s %(message)s" if in_journal else "%(asctime)s timerd %(levelname)s %(message)s",
    )


if __name__ == "__main__":
    sys.exit(main())
