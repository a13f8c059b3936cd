"""The command line `timerd`: reads the configuration, shows it or runs the daemon (serve.py), and prints errors."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence

from timerd.arena.plan import plan_of
from timerd.config.command_line import read_command_line
from timerd.config.settings import Settings
from timerd.host.group import group_id_of
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
from timerd_shm.host.search import make_instance

EXIT_CONFIG, EXIT_RUNNING, EXIT_RESOURCES, EXIT_ARENA = 2, 3, 4, 5  # described in config/command_line.py
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
    """Run the daemon. Returns the exit status (see `timerd --help`)."""
    if not __debug__:
        print("timerd: python -O switches off the checks that guard the arena: start without -O", file=sys.stderr)
        return EXIT_CONFIG
    try:
        settings, show_config, as_json = read_command_line(sys.argv[1:] if arguments is None else arguments)
        if show_config:
            _ask_the_machine(settings)
            for warning in settings.warnings:
                print(f"timerd: {warning}", file=sys.stderr)
            return _show(
                settings.as_json() if as_json else f"{settings.table()}\n\n{plan_of(settings.config).in_words()}"
            )
        _set_up_logging(settings.config.log_level)
        for warning in settings.warnings:
            log.warning("%s", warning)
        from .serve import serve  # here, not above: --help, --show-config and a wrong flag need no compiled core

        serve(settings.config, _group_of(settings))
    except TimerdError as error:
        print(f"timerd: {error}", file=sys.stderr)
        return EXITS.get(type(error), 1)
    return 0


def _show(text: str) -> int:
    """Print the text. Returns the exit status."""
    try:
        print(text, flush=True)
        return 0
    except OSError as error:
        # Otherwise Python writes the text again when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):  # the reader has closed the pipe (`timerd --show-config | head -1`)
            return 0
        print(f"timerd: the output cannot be written: {error.strerror}", file=sys.stderr)
        return EXIT_RESOURCES


def _group_of(settings: Settings) -> int | None:
    """The id of the group that may connect. Raises InvalidConfigError."""
    name = settings.config.unix_group
    return group_id_of(name, settings.sources["unix_group"]) if name else None


def _ask_the_machine(settings: Settings) -> None:
    """Check a configuration against this machine, without making anything. Raises the errors of serve()."""
    config = settings.config
    paths = make_instance(config.instance, config.runtime_dir, look_only=True)
    _ = paths.commands_endpoint, paths.outcomes_endpoint
    _group_of(settings)
    arena = os.path.abspath(config.arena_file) if config.arena_file else ""
    if arena and not os.access(os.path.dirname(arena), os.W_OK | os.X_OK):
        raise ResourceLimitError(
            f"the arena {arena} cannot be opened: its directory may not be written: choose another file (--arena-file)"
        )
    if config.journal:
        directory = os.path.abspath(config.journal)
        if not os.access(directory if os.path.isdir(directory) else os.path.dirname(directory), os.W_OK | os.X_OK):
            raise ResourceLimitError(
                f"the journal's directory {directory} cannot be made, or may not be written: choose another (--journal)"
            )


def _set_up_logging(level: str) -> None:
    """Log to stderr; without the time under systemd, whose journal adds the time itself."""
    in_journal = "JOURNAL_STREAM" in os.environ
    logging.basicConfig(
        level=level.upper(),
        format="%(levelname)s %(message)s" if in_journal else "%(asctime)s timerd %(levelname)s %(message)s",
    )


if __name__ == "__main__":
    sys.exit(main())
