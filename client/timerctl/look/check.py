"""timerctl check: compares an arena's links, counts and tables with its records, in pure Python.

A live daemon is asked for a copy of its arena between two turns: an arena that is read while it changes looks broken. A
dead daemon's arena is read as it is.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from timerctl.exits import Exit, NoDaemonError, UsageError
from timerctl.instance import connected, open_arena, paths_of
from timerctl.listing import declare
from timerctl.show.text import print_json
from timerd_shm.check.check import examine, finished
from timerd_shm.check.truth import Findings
from timerd_shm.declare.errors import (
    ArenaNotReadyError,
    ArenaTruncatedError,
    LayoutMismatchError,
    ResourceLimitError,
    TimerdUnavailableError,
)
from timerd_shm.host.paths import read_location
from timerd_shm.host.plain_file import open_plain
from timerd_shm.read.alive import is_alive
from timerd_shm.read.hashing import SEED_SIZE, seed_check
from timerd_shm.read.reader import RETRY, ArenaReader

EPILOG = """\
Exit status 1 when something is wrong; 4 when the check was not possible,
because the daemon has made no copy of its arena. A daemon that was killed may
have left derived things (lists, counts) half changed: the next start rebuilds
them. These differences are printed, and are not an error.

The hashes of keys and ids have a secret seed. Only the daemon's user may read
it. For any other user, for a copy, and where the seed is missing, tables are
compared with the hashes in the records, and these hashes are not verified
(hashes_verified: false; hashes_unverified says why).

examples:
  timerctl check
  timerctl check --file /tmp/copy.arena     a copy of an arena
  timerctl check --json | jq .truth
"""

COPIES_MAX = 5  # how often to ask for a copy, if each copy is removed before it is opened


class Seed(NamedTuple):
    """The seed of the arena's hashes, or why this process has none."""

    path: Path | None
    seed: bytes | None
    lack: str = ""


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Declare the command."""
    command = declare(
        commands,
        common,
        "check",
        run,
        help="compare an arena's links and counts with its records",
        description="Compute an arena's derived links and counts again from its records, and print\nwhat differs.",
        epilog=EPILOG,
    )
    command.add_argument("--file", metavar="PATH", type=Path, help="a copy of an arena, instead of an instance")


def run(arguments: argparse.Namespace) -> int:
    """Check, and print what was found."""
    path, seed, lack = seed_of(arguments)
    with arena_of(arguments) as (reader, live):
        began = time.monotonic()
        header = reader.header()
        # No process writes this arena, so an odd turn number means that the turn has never ended.
        killed_in_turn = not live and bool(header.turn & 1 or header.redo_count)
        with ArenaReader.from_bytes(finished(reader)) as whole:
            found = examine(whole, cut=True, progress=show_progress if sys.stderr.isatty() else None, seed=seed)
            operations = whole.ops.row().in_use
    if seed is not None and header.seed_check != seed_check(seed):
        lack = "ARENA.seed is not the seed of this arena"
    if sys.stderr.isatty():
        show_progress("")
    if killed_in_turn:
        problems, lagging = found.truth, found.derived
    else:
        problems, lagging = [*found.truth, *found.derived], []
    if arguments.json:
        print_json(
            {
                "sound": not problems,
                "live": live,
                "killed_in_turn": killed_in_turn,
                "hashes_verified": not lack,
                "hashes_unverified": lack or None,
                **found._asdict(),
            }
        )
    else:
        report(found, problems, lagging, operations, time.monotonic() - began)
        if lack:
            print(f"Hashes were not computed again: {lack}.")
            if path is not None:
                print(f"ARENA.seed is {path}")
    return Exit.PROBLEM if problems else Exit.OK


def report(found: Findings, problems: list[str], lagging: list[str], operations: int, seconds: float) -> None:
    for sentence in problems:
        print(sentence)
    if lagging:
        print(
            f"The arena's daemon was killed in the middle of a turn. {len(lagging)} derived things lag behind the "
            "records; the next start rebuilds them:"
        )
        for sentence in lagging:
            print(f"  {sentence}")
    verdict = f"{len(problems)} problems" if problems else "Sound"
    print(f"{verdict}: {operations} operations checked in {seconds:.2f} s.")


def seed_of(arguments: argparse.Namespace) -> Seed:
    """The seed of the arena's hashes. Raises ArenaNotReadyError or LayoutMismatchError if no arena is found."""
    if arguments.file is not None:
        return Seed(None, None, "a copy (--file) has no seed")
    paths = paths_of(arguments)
    path = read_location(paths).seed
    try:
        descriptor = open_plain(path, owners=paths.owners)
        with open(descriptor, "rb") as file:
            seed, held = file.read(SEED_SIZE), os.fstat(descriptor).st_size
    except FileNotFoundError:
        return Seed(path, None, "ARENA.seed is missing: a start makes a new one")
    except PermissionError:
        return Seed(path, None, "only the daemon's user can read ARENA.seed")
    except OSError as error:
        return Seed(path, None, f"ARENA.seed cannot be read: {error.strerror}")
    if held != SEED_SIZE:
        return Seed(path, None, f"ARENA.seed has {held} bytes, and a seed has {SEED_SIZE}")
    return Seed(path, seed)


def show_progress(part: str) -> None:
    """Show at a terminal which part is being checked."""
    print(f"\r{part:20}", end="" if part else "\r", file=sys.stderr, flush=True)


@contextmanager
def arena_of(arguments: argparse.Namespace) -> Iterator[tuple[ArenaReader, bool]]:
    """An arena that no process writes, and whether it is a copy of a live one."""
    if arguments.file is not None:
        try:
            reader = ArenaReader.from_path(arguments.file)
        except (ArenaNotReadyError, LayoutMismatchError, ArenaTruncatedError) as error:
            message = str(error).removesuffix(RETRY)
            raise LayoutMismatchError(f"{arguments.file} is no arena that can be read: {message}") from None
        except PermissionError:
            raise
        except OSError as error:
            raise UsageError(f"--file {arguments.file} cannot be read: {error.strerror}") from None
        with reader:
            yield reader, False
        return
    paths = paths_of(arguments)
    with open_arena(paths) as reader:
        alive = is_alive(paths, reader.header())
        if not alive:
            yield reader, False
    if alive:
        with snapshot(arguments) as reader:
            yield reader, True


@contextmanager
def snapshot(arguments: argparse.Namespace) -> Iterator[ArenaReader]:
    """A copy that the daemon makes of its arena, opened before the client ends, because the daemon then removes it."""
    if sys.stderr.isatty():
        show_progress("the daemon's copy")
    with connected(arguments) as client:
        for _ in range(COPIES_MAX):
            try:
                reader = ArenaReader.from_path(client.snapshot(), owners=paths_of(arguments).owners)
                break
            except (TimerdUnavailableError, ResourceLimitError) as error:
                raise NoDaemonError(f"the arena could not be checked: {error}") from None
            except FileNotFoundError:
                continue  # the daemon has removed it after a second, because another client waits for the next copy
        else:
            raise NoDaemonError(f"the daemon has removed its copy before this process could open it{RETRY}")
    with reader:
        yield reader
