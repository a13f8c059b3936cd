"""Finds the instance that the command line means: its files, its arena, its daemon."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from timerd_shm.declare.errors import TimerdUnavailableError
from timerd_shm.declare.records import ArenaHeader
from timerd_shm.host.paths import InstancePaths, daemon_running, open_arena_file, refusal
from timerd_shm.host.process import process_is_stopped
from timerd_shm.host.search import find_instance
from timerd_shm.read.alive import is_alive
from timerd_shm.read.reader import ArenaReader

from .exits import NoDaemonError, NoInstanceError
from .show.text import key_of, shell_word

if TYPE_CHECKING:
    from timerd_client import Client, Purgatory

NS = 1_000_000_000
PURGATORY = "default"


def paths_of(arguments: argparse.Namespace) -> InstancePaths:
    """The files of the instance that the command line means. Raises NoInstanceError, InvalidNameError."""
    try:
        return find_instance(arguments.instance)
    except TimerdUnavailableError as error:
        raise NoInstanceError(str(error)) from None


def open_arena(paths: InstancePaths) -> ArenaReader:
    """The instance's arena, read-only. Raises the errors of ArenaReader."""
    return ArenaReader.from_descriptor(open_arena_file(paths))


class Life(NamedTuple):
    """Whether an instance's daemon runs."""

    instance: str
    alive: bool
    stopped: bool  # by a signal or a debugger: nothing changes until it goes on
    pid: int

    def note(self) -> str:
        """A line to print above the state of the arena if nothing changes there; empty if the daemon runs."""
        if not self.alive:
            return f"The daemon of {self.instance!r} is not running: this is what its arena holds."
        if self.stopped:
            return f"The daemon is stopped, and nothing changes until it goes on: kill -CONT {self.pid}"
        return ""

    def row(self) -> dict[str, Any]:
        """These facts for programs: the first fields of each JSON document about an arena."""
        return {"instance": self.instance, "alive": self.alive, "stopped": self.stopped}


def life_of(paths: InstancePaths, header: ArenaHeader) -> Life:
    """Whether the daemon of this arena runs now."""
    alive = is_alive(paths, header)
    return Life(paths.instance, alive, alive and process_is_stopped(header.pid, header.start_ticks), header.pid)


def running(arguments: argparse.Namespace) -> InstancePaths:
    """As paths_of, for a command that needs the daemon: also raises NoDaemonError if the daemon does not run."""
    paths = paths_of(arguments)
    if not daemon_running(paths):
        raise NoDaemonError(
            f"the daemon of instance {paths.instance!r} is not running: start it (`timerd --instance {paths.instance}`)"
        )
    return paths


@contextmanager
def connected(arguments: argparse.Namespace, group: str | None = None) -> Iterator[Client]:
    """A client of the instance, and of a group if one is given.

    Raises NoInstanceError, NoDaemonError if the daemon does not run or does not answer, and PermissionError.
    """
    from timerd_client import connect

    paths = running(arguments)
    try:
        with connect(paths.instance, name="timerctl", group=group) as client:
            yield client
    except TimerdUnavailableError:
        if refused := refusal(paths):
            raise refused from None
        raise NoDaemonError(
            f"the daemon of instance {paths.instance!r} does not answer: it is stopped, overloaded or has just ended"
        ) from None


def command_line(
    arguments: argparse.Namespace,
    verb: str,
    *words: bytes | str,
    purgatory: str = PURGATORY,
    options: Sequence[str] = (),
) -> str:
    """A command line of timerctl for the same instance, to be copied: timerctl fire --purgatory fetch orders/7."""
    instance = [] if arguments.instance is None else ["--instance", arguments.instance]
    named = [] if purgatory == PURGATORY else ["--purgatory", purgatory]
    given = [key_of(word) if isinstance(word, str) else word for word in words]
    dashes = ["--"] if any(word.startswith(b"-") for word in given) else []
    # All are quoted for the shell: other users may have chosen some of these names.
    before = (*instance, *verb.split(), *named, *options, *dashes)
    return " ".join(("timerctl", *(shell_word(key_of(word)) for word in before), *map(shell_word, given)))


def add_purgatory(command: argparse.ArgumentParser) -> None:
    """Declare --purgatory of a command that acts."""
    command.add_argument("--purgatory", metavar="NAME", help=f"the purgatory (default: {PURGATORY})")


def purgatory_of(client: Client, arguments: argparse.Namespace) -> Purgatory:
    """The client's default purgatory, or the purgatory of --purgatory."""
    return client if arguments.purgatory is None else client.purgatory(arguments.purgatory)
