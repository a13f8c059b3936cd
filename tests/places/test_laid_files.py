"""Files that another user has laid where a daemon makes its own: the start names the file, its owner and the remedy."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path

import pytest

import timerd.serve  # noqa: F401 - `main` imports it late, when the user of a test may not read Python's own files
from support.real.daemons import SMALL, clean_up
from support.real.patience import PATIENCE_S
from support.real.planted_files import PLANTED, within
from support.real.users import NOBODY, shut_out
from timerd.__main__ import EXIT_RESOURCES, main
from timerd.clock import ManualClock
from timerd.journal.files import JournalFiles, JournalPlan
from timerd_shm.declare.errors import ResourceLimitError
from timerd_shm.declare.journal import JournalLevel
from timerd_shm.host.lock import open_lock
from timerd_shm.host.paths import ArenaLocation, InstancePaths, read_location, write_location

IN_DIRECTORY = ("lock", "arena", "sock", "pub", "unix", "live", "journal")
BESIDE_ARENA = ("", ".lock", ".seed", ".journal", ".journal.new")


def arena_of(directory: Path) -> Path:
    """The arena of a daemon of the user `nobody` in this directory."""
    name = InstancePaths(directory, "default").shm_name.replace(f"-{os.geteuid()}-", f"-{NOBODY}-", 1)
    return ArenaLocation("shm", name, 0).path


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Path]:
    """A directory that another user can reach."""
    for parent in (tmp_path, *tmp_path.parents):
        if parent not in (Path("/"), Path("/tmp")):
            parent.chmod(parent.stat().st_mode | 0o011)
    yield tmp_path


@pytest.mark.root("lays files, and becomes another user")
def test_a_start_names_each_file_that_another_user_has_laid(room: Path) -> None:
    """In an earlier version ARENA.journal, NAME.journal and NAME.arena gave a bare PermissionError with a traceback."""
    laid: dict[str, Path] = {}
    for number, suffix in enumerate((*IN_DIRECTORY, *(f"ARENA{one}" for one in BESIDE_ARENA))):
        directory = room / str(number)
        directory.mkdir()
        directory.chmod(0o1777)
        arena = arena_of(directory)
        beside = arena.with_name(arena.name + suffix.removeprefix("ARENA"))
        laid[suffix] = beside if suffix.startswith("ARENA") else directory / f"default.{suffix}"
        laid[suffix].touch()

    def start() -> str:
        said: dict[str, tuple[int, str]] = {}
        for suffix, path in laid.items():
            place = room / str(list(laid).index(suffix))
            flags = (*SMALL, "--ephemeral", "--idle-exit=0", f"--runtime-dir={place}", f"--journal={place}/rows")
            with redirect_stderr(StringIO()) as error:
                try:
                    status = main(flags)
                except Exception as bare:
                    status = -1
                    print(repr(bare), file=error)
            said[suffix] = status, error.getvalue()
            assert path.exists()
        return json.dumps(said)

    try:
        said = json.loads(shut_out(start))
        for suffix, (status, text) in said.items():
            path = laid[suffix]
            assert status == EXIT_RESOURCES, (suffix, text)
            last = text.strip().splitlines()[-1]
            assert str(path) in last and "it belongs to user root, and this is user nobody" in last, (suffix, last)
            assert f"`rm -r {path}`" in last, (suffix, last)
            assert path.exists() and path.lstat().st_uid == 0, "nothing of another user is removed"
            arena = arena_of(room / str(list(laid).index(suffix)))
            assert [*arena.parent.glob(f"{arena.name}*")] == ([path] if suffix.startswith("ARENA") else []), suffix
    finally:
        for path in laid.values():
            path.unlink(missing_ok=True)
        for number in range(len(laid)):
            clean_up(room / str(number))


@pytest.mark.parametrize(
    "kind", sorted(PLANTED.keys() - {"no text", "a gigabyte", "a file without a number, unreadable"})
)
def test_nothing_that_stands_in_place_of_a_lock_is_waited_for(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "lock"
    PLANTED[kind](path)
    with pytest.raises(ResourceLimitError, match=f"the lock {path} cannot be opened: .*"):
        open_lock(path)
    plan = JournalPlan(tmp_path, JournalLevel.OUTCOMES, 1 << 20, 1 << 24, 0, None, "default")
    with pytest.raises(ResourceLimitError, match=f"the journal's (lock|directory).*{tmp_path}"):
        JournalFiles(plan, ManualClock(), bytes(16))


@pytest.mark.root("makes files of another user")
def test_a_journals_directory_that_others_may_write_and_its_lock_of_another_user_are_refused(tmp_path: Path) -> None:
    plan = JournalPlan(tmp_path, JournalLevel.OUTCOMES, 1 << 20, 1 << 24, 0, None, "default")
    lock = tmp_path / "lock"
    lock.touch()
    os.chown(lock, NOBODY, -1)
    with pytest.raises(
        ResourceLimitError, match=f"the journal's lock {lock} cannot be opened: it belongs to user nobody"
    ):
        JournalFiles(plan, ManualClock(), bytes(16))
    lock.unlink()
    os.chown(tmp_path, NOBODY, -1)
    tmp_path.chmod(0o777)
    with pytest.raises(ResourceLimitError, match=r"belongs to user nobody, and others may write it .*\(--journal\)"):
        JournalFiles(plan, ManualClock(), bytes(16))


@pytest.mark.root("lays files, and becomes another user")
@pytest.mark.parametrize("kind", ["a FIFO", "a link to /dev/zero", "no text", "a socket"])
def test_what_stands_under_the_first_name_of_a_location_is_replaced_or_refused(
    monkeypatch: pytest.MonkeyPatch, room: Path, kind: str
) -> None:
    """NAME.arena is written under a name that holds the pid of the daemon, and pids can be guessed."""
    monkeypatch.setattr(os, "getpid", lambda: 4711)
    paths = InstancePaths(room, "default")
    laid = room / ".default.arena.4711"
    PLANTED[kind](laid)
    location = ArenaLocation("shm", "/timerd-none", 1)
    assert within(PATIENCE_S, lambda: write_location(paths, location)) == [None], "it waits for what stands there"
    assert read_location(paths) == location and not laid.exists()

    room.chmod(0o1777)
    PLANTED[kind](laid)

    def write() -> str:
        with pytest.raises(ResourceLimitError) as error:
            write_location(paths, location)
        return str(error.value)

    assert f"{laid}: it belongs to user root, and this is user nobody" in shut_out(write)
